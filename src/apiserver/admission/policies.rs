//! ValidatingAdmissionPolicy (KEP-3488): rules in CEL that objects are held to, bound where they shall hold.
//!
//! ```text
//! bindings × policies (cached) ─ matching ─▶ parameters ─▶ variables, match conditions, validations ─▶ deny, warn
//! ```

use std::cell::RefCell;
use std::sync::Arc;

use api::Resource;
use apimachinery::selector::LabelSelector;
use apimachinery::status::{Cause, Details, Reason};
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::webhooks::{matching, review};
use super::{Attributes, Operation, Plugin};
use crate::cel::{self, Program, Scope, Val};
use crate::kinds::tree::{at, has, items, text};

const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

/// One thing a policy holds against an object.
struct Denial {
    message: String,
    reason: String,
}

impl Denial {
    fn because(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            reason: "Invalid".to_owned(),
        }
    }
}

pub struct ValidatingAdmissionPolicy;

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.resource.group != GROUP && attributes.operation != Operation::Connect
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let registry = attributes.registry;
        let bindings = registry.cached_values(GROUP, BINDINGS).await?;
        if bindings.is_empty() {
            return Ok(());
        }
        let policies = registry.cached_values(GROUP, POLICIES).await?;
        for binding in bindings.iter() {
            let wanted = text(binding, &["spec", "policyName"]);
            let Some(policy) = policies.iter().find(|policy| meta::name(policy) == wanted) else {
                continue;
            };
            for denial in denials(attributes, policy, binding, object).await? {
                enforce(attributes, policy, binding, denial)?;
            }
        }
        Ok(())
    }
}

/// Refuses or warns, as the binding says.
fn enforce(
    attributes: &Attributes<'_>,
    policy: &Value,
    binding: &Value,
    denial: Denial,
) -> Result<(), Status> {
    let (name, bound) = (meta::name(policy), meta::name(binding));
    let actions = items(binding, &["spec", "validationActions"]);
    if actions.iter().any(|action| action == "Warn") {
        attributes.request.warnings.add(format!(
            "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{bound}': {}",
            denial.message
        ));
    }
    if !actions.iter().any(|action| action == "Deny") {
        return Ok(());
    }
    let told = format!(
        "ValidatingAdmissionPolicy '{name}' with binding '{bound}' denied request: {}",
        denial.message
    );
    let mut status = attributes.forbidden(&told);
    (status.code, status.reason) = match denial.reason.as_str() {
        "Unauthorized" => (401, Reason::Unauthorized),
        "Forbidden" => (403, Reason::Forbidden),
        "RequestEntityTooLarge" => (413, Reason::RequestEntityTooLarge),
        _ => (422, Reason::Invalid),
    };
    let details = status.details.get_or_insert_with(Details::default);
    details.causes.push(Cause {
        message: told,
        ..Cause::default()
    });
    Err(status)
}

/// What a policy holds against an object under a binding; nothing when it does not concern it.
async fn denials(
    attributes: &Attributes<'_>,
    policy: &Value,
    binding: &Value,
    object: Option<&Value>,
) -> Result<Vec<Denial>, Status> {
    let constraints = at(policy, &["spec", "matchConstraints"]);
    let Some(asked) = matching::constrained(attributes, constraints, object).await? else {
        return Ok(Vec::new());
    };
    let narrower = at(binding, &["spec", "matchResources"]);
    if has(binding, &["spec", "matchResources"])
        && matching::constrained(attributes, narrower, object)
            .await?
            .is_none()
    {
        return Ok(Vec::new());
    }
    let fails = text(policy, &["spec", "failurePolicy"]) != "Ignore";
    let parameters = match parameters(attributes, policy, binding).await? {
        Ok(parameters) => parameters,
        Err(why) if fails => return Ok(vec![Denial::because(why)]),
        Err(_) => return Ok(Vec::new()),
    };
    let namespace = if attributes.resource.namespaced {
        attributes.registry.namespace(attributes.namespace).await?
    } else {
        None
    };
    let question = review::question(attributes, &[], &asked, object);
    let seen = Seen {
        attributes,
        policy,
        request: at(&question, &["request"]),
        namespace: namespace.as_ref().unwrap_or(&Value::Null),
        fails,
    };
    let mut denials = Vec::new();
    for parameter in &parameters {
        seen.judge(parameter, &mut denials);
    }
    Ok(denials)
}

type Found = Result<Vec<Value>, String>;

/// The parameters a binding refers to; one null where the policy takes none.
async fn parameters(
    attributes: &Attributes<'_>,
    policy: &Value,
    binding: &Value,
) -> Result<Found, Status> {
    let kind = at(policy, &["spec", "paramKind"]);
    let reference = at(binding, &["spec", "paramRef"]);
    if kind.is_null() || reference.is_null() {
        return Ok(Ok(vec![Value::Null]));
    }
    let (group, version) = meta::group_version(text(kind, &["apiVersion"]));
    let registry = attributes.registry;
    let resource = registry.served().resources().into_iter().find(|resource| {
        resource.group == group
            && resource.version == version
            && resource.kind == text(kind, &["kind"])
    });
    let Some(resource) = resource else {
        return Ok(Err(format!(
            "failed to configure policy: failed to find resource referenced by paramKind: '{}, Kind={}'",
            text(kind, &["apiVersion"]),
            text(kind, &["kind"])
        )));
    };
    let found = referred(attributes, resource, reference).await?;
    if found.is_empty() {
        return Ok(if text(reference, &["parameterNotFoundAction"]) == "Deny" {
            Err("failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction".to_owned())
        } else {
            Ok(Vec::new())
        });
    }
    Ok(Ok(found))
}

async fn referred(
    attributes: &Attributes<'_>,
    resource: &'static Resource,
    reference: &Value,
) -> Result<Vec<Value>, Status> {
    let registry = attributes.registry;
    let namespace = match text(reference, &["namespace"]) {
        _ if !resource.namespaced => "",
        "" => attributes.namespace,
        namespace => namespace,
    };
    let (group, plural) = (resource.storage_group, resource.plural);
    let name = text(reference, &["name"]);
    if !name.is_empty() {
        let found = registry
            .stored_value(group, plural, namespace, name)
            .await?;
        return Ok(found.into_iter().collect());
    }
    let Ok(selector) = LabelSelector::from_value(at(reference, &["selector"])) else {
        return Ok(Vec::new());
    };
    let mut all = registry.all_values(group, plural).await?;
    all.retain(|object| {
        (!resource.namespaced || meta::namespace(object) == namespace)
            && selector.matches_object(object)
    });
    Ok(all)
}

/// What a policy's expressions see, but for the parameter.
struct Seen<'a> {
    attributes: &'a Attributes<'a>,
    policy: &'a Value,
    request: &'a Value,
    namespace: &'a Value,
    fails: bool,
}

impl Seen<'_> {
    fn program(&self, text: &str) -> Arc<Result<Program, String>> {
        self.attributes.registry.admission.programs.get(text)
    }

    fn run<'v>(&self, text: &str, scope: &Scope<'v, '_>) -> Result<Val<'v>, String> {
        match &*self.program(text) {
            Ok(program) => program.evaluate(scope),
            Err(why) => Err(why.clone()),
        }
        .map_err(|why| format!("expression '{text}' resulted in error: {why}"))
    }

    fn judge(&self, parameter: &Value, denials: &mut Vec<Denial>) {
        let variables: Vec<(&str, Val<'_>)> = vec![
            ("object", cel::json(at(self.request, &["object"]))),
            ("oldObject", cel::json(at(self.request, &["oldObject"]))),
            ("request", cel::json(self.request)),
            ("params", cel::json(parameter)),
            ("namespaceObject", cel::json(self.namespace)),
        ];
        let computed: RefCell<Vec<(&str, Result<Val<'_>, String>)>> = RefCell::default();
        let lazy = |name: &str| {
            let computed = computed.borrow();
            let found = computed.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        };
        let scope = Scope::new(&variables).with_variables(&lazy);
        for condition in items(self.policy, &["spec", "matchConditions"]) {
            match self.run(text(condition, &["expression"]), &scope) {
                Ok(Val::Bool(true)) => {}
                Ok(_) => return,
                Err(why) => {
                    if self.fails {
                        denials.push(Denial::because(why));
                    }
                    return;
                }
            }
        }
        for variable in items(self.policy, &["spec", "variables"]) {
            let value = self.run(text(variable, &["expression"]), &scope);
            computed
                .borrow_mut()
                .push((text(variable, &["name"]), value));
        }
        for validation in items(self.policy, &["spec", "validations"]) {
            let expression = text(validation, &["expression"]);
            match self.run(expression, &scope) {
                Ok(Val::Bool(true)) => {}
                Ok(Val::Bool(false)) => denials.push(Denial {
                    message: self.message(validation, expression, &scope),
                    reason: text(validation, &["reason"]).to_owned(),
                }),
                Ok(_) => {
                    if self.fails {
                        denials.push(Denial::because(format!(
                            "expression '{expression}' must evaluate to bool"
                        )));
                    }
                }
                Err(why) => {
                    if self.fails {
                        denials.push(Denial::because(why));
                    }
                }
            }
        }
    }

    fn message(&self, validation: &Value, expression: &str, scope: &Scope<'_, '_>) -> String {
        let made = text(validation, &["messageExpression"]);
        if !made.is_empty()
            && let Ok(Val::Text(message)) = self.run(made, scope)
            && !message.trim().is_empty()
            && !message.contains('\n')
        {
            return message.into_owned();
        }
        match text(validation, &["message"]) {
            "" => format!("failed expression: {}", expression.trim()),
            message => message.trim().to_owned(),
        }
    }
}
