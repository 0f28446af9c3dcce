//! Which policies concern a write: matched by their constraints and their bindings', each with its parameters
//! (`policy/generic/policy_dispatcher.go`).

use api::Resource;
use apimachinery::selector::LabelSelector;
use apimachinery::{Status, Value, meta};

use super::super::Attributes;
use super::super::webhooks::matching::{self, Asked};
use super::GROUP;
use crate::kinds::tree::{at, has, text};

/// One policy, under one binding, with one parameter.
pub struct Invocation<'a> {
    pub policy: &'a Value,
    pub binding: &'a Value,
    pub asked: Asked,
    /// Null where the policy takes none.
    pub parameter: Value,
}

/// What is wrong with a policy, or with its binding.
pub struct Trouble<'a> {
    pub policy: &'a Value,
    pub binding: Option<&'a Value>,
    pub message: String,
}

impl Trouble<'_> {
    /// Whether it counts: a policy may be let fail.
    pub fn counts(&self) -> bool {
        fails(self.policy)
    }
}

/// Whether an error of a policy refuses the write.
pub fn fails(policy: &Value) -> bool {
    text(policy, &["spec", "failurePolicy"]) != "Ignore"
}

/// What concerns a write, by the names of policies and bindings.
#[derive(Default)]
pub struct Concerned<'a> {
    pub invocations: Vec<Invocation<'a>>,
    pub troubles: Vec<Trouble<'a>>,
}

/// Policies and bindings of two resources as they are cached.
pub struct Known {
    policies: std::sync::Arc<Vec<Value>>,
    bindings: std::sync::Arc<Vec<Value>>,
}

impl Known {
    /// Nothing when nothing is bound.
    pub async fn read(
        attributes: &Attributes<'_>,
        policies: &'static str,
        bindings: &'static str,
    ) -> Result<Option<Self>, Status> {
        let registry = attributes.registry;
        let bindings = registry.cached_values(GROUP, bindings).await?;
        if bindings.is_empty() {
            return Ok(None);
        }
        let policies = registry.cached_values(GROUP, policies).await?;
        Ok(Some(Self { policies, bindings }))
    }

    /// What of it concerns a write.
    pub async fn concerned(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<Concerned<'_>, Status> {
        let mut concerned = Concerned::default();
        for policy in by_name(&self.policies) {
            let bound: Vec<&Value> = by_name(&self.bindings)
                .into_iter()
                .filter(|binding| text(binding, &["spec", "policyName"]) == meta::name(policy))
                .collect();
            if bound.is_empty() {
                continue;
            }
            let constraints = at(policy, &["spec", "matchConstraints"]);
            let Some(asked) = matching::constrained(attributes, constraints, object).await? else {
                continue;
            };
            let kind = match parameter_kind(attributes, policy) {
                Ok(kind) => kind,
                Err(why) => {
                    concerned.troubles.push(Trouble {
                        policy,
                        binding: None,
                        message: format!("failed to configure policy: {why}"),
                    });
                    continue;
                }
            };
            for binding in bound {
                concerned
                    .under(attributes, policy, binding, asked, kind, object)
                    .await?;
            }
        }
        Ok(concerned)
    }
}

impl<'a> Concerned<'a> {
    async fn under(
        &mut self,
        attributes: &Attributes<'_>,
        policy: &'a Value,
        binding: &'a Value,
        asked: Asked,
        kind: Option<&'static Resource>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let narrower = at(binding, &["spec", "matchResources"]);
        if has(binding, &["spec", "matchResources"])
            && matching::constrained(attributes, narrower, object)
                .await?
                .is_none()
        {
            return Ok(());
        }
        match parameters(attributes, kind, binding).await? {
            Ok(parameters) => {
                let each = parameters.into_iter().map(|parameter| Invocation {
                    policy,
                    binding,
                    asked,
                    parameter,
                });
                self.invocations.extend(each);
            }
            Err(why) => self.troubles.push(Trouble {
                policy,
                binding: Some(binding),
                message: format!("failed to configure binding: {why}"),
            }),
        }
        Ok(())
    }
}

fn by_name(objects: &[Value]) -> Vec<&Value> {
    let mut sorted: Vec<&Value> = objects.iter().collect();
    sorted.sort_by_key(|object| meta::name(object));
    sorted
}

/// The resource of a policy's parameters, when it takes any.
fn parameter_kind(
    attributes: &Attributes<'_>,
    policy: &Value,
) -> Result<Option<&'static Resource>, String> {
    let kind = at(policy, &["spec", "paramKind"]);
    if kind.is_null() {
        return Ok(None);
    }
    let (version, kind) = (text(kind, &["apiVersion"]), text(kind, &["kind"]));
    let (group, of) = meta::group_version(version);
    let mut resources = attributes.registry.served().resources().into_iter();
    resources
        .find(|resource| resource.group == group && resource.version == of && resource.kind == kind)
        .map(Some)
        .ok_or_else(|| {
            format!("failed to find resource referenced by paramKind: '{version}, Kind={kind}'")
        })
}

/// The parameters a binding refers to; one null where there are none to take (`CollectParams`).
async fn parameters(
    attributes: &Attributes<'_>,
    kind: Option<&'static Resource>,
    binding: &Value,
) -> Result<Result<Vec<Value>, String>, Status> {
    let reference = at(binding, &["spec", "paramRef"]);
    let Some(resource) = kind.filter(|_| !reference.is_null()) else {
        return Ok(Ok(vec![Value::Null]));
    };
    let named = text(reference, &["namespace"]);
    let namespace = match (resource.namespaced, named) {
        (false, "") => "",
        (false, _) => {
            return Ok(Err(
                "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
                    .to_owned(),
            ));
        }
        (true, "") if attributes.namespace.is_empty() => {
            return Ok(Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()));
        }
        (true, "") => attributes.namespace,
        (true, named) => named,
    };
    let found = referred(attributes, resource, namespace, reference).await?;
    if found.is_empty() && text(reference, &["parameterNotFoundAction"]) == "Deny" {
        return Ok(Err(
            "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned(),
        ));
    }
    Ok(Ok(found))
}

async fn referred(
    attributes: &Attributes<'_>,
    resource: &'static Resource,
    namespace: &str,
    reference: &Value,
) -> Result<Vec<Value>, Status> {
    let registry = attributes.registry;
    let (group, plural) = (resource.storage_group, resource.plural);
    let name = text(reference, &["name"]);
    let mut found: Vec<Value> = if name.is_empty() {
        let Ok(selector) = LabelSelector::from_value(at(reference, &["selector"])) else {
            return Ok(Vec::new());
        };
        let mut all = registry.all_values(group, plural).await?;
        all.retain(|object| {
            (!resource.namespaced || meta::namespace(object) == namespace)
                && selector.matches_object(object)
        });
        all
    } else {
        let one = registry
            .stored_value(group, plural, namespace, name)
            .await?;
        one.into_iter().collect()
    };
    for parameter in &mut found {
        meta::set_type(parameter, &resource.api_version(), resource.kind);
    }
    Ok(found)
}
