//! What the expressions of policies and of webhooks' match conditions see: the object as it is and was, the request,
//! parameters, the namespace, variables, and an authorizer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use apimachinery::{Status, Value};
use cel::authorizer::{Answer, Oracle, Question};
use cel::{Program, Programs, Scope, Val};

use super::super::Attributes;
use super::super::webhooks::matching::Asked;
use super::super::webhooks::review;
use crate::authz;
use crate::kinds::tree::{items, remove, text};
use crate::request::UserInfo;

/// All that expressions see of one write, in the version a policy knows.
pub struct Seen {
    object: Value,
    old: Value,
    request: Value,
    /// Null for what is in none.
    namespace: Value,
}

impl Seen {
    /// The view of a write; the namespace is read.
    ///
    /// # Errors
    /// The namespace is gone.
    pub async fn of(
        attributes: &Attributes<'_>,
        asked: &Asked,
        object: Option<&Value>,
    ) -> Result<Self, Status> {
        let namespace = if attributes.resource.namespaced {
            let found = attributes.registry.namespace(attributes.namespace).await?;
            found.ok_or_else(|| Status::not_found("", "namespaces", attributes.namespace))?
        } else {
            Value::Null
        };
        Ok(Self::from(
            review::question(attributes, &[], asked, object),
            namespace,
        ))
    }

    /// The view a review gives, which has no namespace.
    pub fn from(mut review: Value, namespace: Value) -> Self {
        let mut request = remove(&mut review, "request").unwrap_or_default();
        remove(&mut request, "uid");
        Self {
            object: remove(&mut request, "object").unwrap_or_default(),
            old: remove(&mut request, "oldObject").unwrap_or_default(),
            request,
            namespace,
        }
    }

    /// The object, in the version of the policy.
    pub fn object(&self) -> &Value {
        &self.object
    }

    /// Another object in place of the one seen.
    pub fn replace(&mut self, object: Value) {
        self.object = object;
    }

    /// What `authorizer.requestResource` asks about.
    fn requested(&self) -> Question {
        let member = |path: &[&str]| text(&self.request, path).to_owned();
        Question {
            group: member(&["resource", "group"]),
            resource: member(&["resource", "resource"]),
            subresource: member(&["subResource"]),
            namespace: member(&["namespace"]),
            name: member(&["name"]),
            ..Question::default()
        }
    }
}

/// Evaluates the expressions of one policy, its variables computed when they are first used.
pub struct Evaluation<'v> {
    programs: &'v Programs,
    values: Vec<(&'static str, Val<'v>)>,
    variables: Vec<(&'v str, &'v str)>,
    computed: RefCell<Vec<(&'v str, Result<Val<'v>, String>)>>,
}

impl<'v> Evaluation<'v> {
    /// `policy` is the policy's spec, or a webhook.
    pub fn new(
        programs: &'v Programs,
        seen: &'v Seen,
        parameter: Option<&'v Value>,
        policy: &'v Value,
        oracle: &Rc<Oracle>,
    ) -> Self {
        let mut values = vec![
            ("object", cel::json(&seen.object)),
            ("oldObject", cel::json(&seen.old)),
            ("request", cel::json(&seen.request)),
            ("namespaceObject", cel::json(&seen.namespace)),
            ("authorizer", oracle.authorizer()),
            (
                "authorizer.requestResource",
                oracle.request_resource(seen.requested()),
            ),
        ];
        if let Some(parameter) = parameter {
            values.push(("params", cel::json(parameter)));
        }
        let variables = items(policy, &["variables"])
            .iter()
            .map(|variable| (text(variable, &["name"]), text(variable, &["expression"])))
            .collect();
        Self {
            programs,
            values,
            variables,
            computed: RefCell::default(),
        }
    }

    /// The value of an expression.
    ///
    /// # Errors
    /// As upstream tells them, with the expression.
    pub fn run(&self, expression: &str) -> Result<Val<'v>, String> {
        self.plainly(expression).map_err(|why| match why {
            Failure::Compiling(why) => format!("compilation error: {why}"),
            Failure::Running(why) => {
                format!("expression '{expression}' resulted in error: {why}")
            }
        })
    }

    fn plainly(&self, expression: &str) -> Result<Val<'v>, Failure> {
        let lazy = |name: &str| self.variable(name);
        let scope = Scope::new(&self.values).with_variables(&lazy);
        match &*self.program(expression) {
            Ok(program) => program.evaluate(&scope).map_err(Failure::Running),
            Err(why) => Err(Failure::Compiling(why.clone())),
        }
    }

    fn program(&self, expression: &str) -> Arc<Result<Program, String>> {
        self.programs.get(expression)
    }

    /// A member of `variables`; one sees those before it.
    fn variable(&self, name: &str) -> Option<Result<Val<'v>, String>> {
        let known = |computed: &[(&str, Result<Val<'v>, String>)]| {
            computed
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.clone())
        };
        if let Some(value) = known(&self.computed.borrow()) {
            return Some(value);
        }
        let (name, expression) = self
            .variables
            .iter()
            .find(|(known, _)| *known == name)
            .copied()?;
        // Whoever asks for itself is told so, and not asked for ever.
        let endless = Err(format!("composited variable {name:?} refers to itself"));
        self.computed.borrow_mut().push((name, endless));
        let value = self.plainly(expression).map_err(|why| {
            let (Failure::Compiling(why) | Failure::Running(why)) = why;
            format!("composited variable {name:?} fails to evaluate: {why}")
        });
        for (known, slot) in self.computed.borrow_mut().iter_mut() {
            if *known == name {
                *slot = value.clone();
            }
        }
        Some(value)
    }
}

enum Failure {
    Compiling(String),
    Running(String),
}

/// Whether match conditions hold: one that does not counts more than one that cannot be told
/// (`matchconditions.Matcher`).
pub fn conditions(holder: &Value, evaluation: &Evaluation<'_>) -> Result<bool, String> {
    let mut errors = Vec::new();
    for condition in items(holder, &["matchConditions"]) {
        match evaluation.run(text(condition, &["expression"])) {
            Ok(Val::Bool(true)) => {}
            Ok(Val::Bool(false)) => return Ok(false),
            Ok(_) => errors.push("must evaluate to bool".to_owned()),
            Err(why) => errors.push(why),
        }
    }
    match errors.len() {
        0 => Ok(true),
        1 => Err(errors.swap_remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}

/// Evaluates, and evaluates again with the answers of the authorizers until it has asked for nothing new.
pub async fn decided<T>(
    attributes: &Attributes<'_>,
    mut evaluate: impl FnMut(&Rc<Oracle>) -> T,
) -> T {
    let mut known = Vec::new();
    loop {
        let (value, open) = {
            let oracle = Oracle::new(known.clone());
            let value = evaluate(&oracle);
            (value, oracle.open())
        };
        if open.is_empty() {
            return value;
        }
        for question in open {
            let answer = ask(attributes, &question).await;
            known.push((question, answer));
        }
    }
}

async fn ask(attributes: &Attributes<'_>, question: &Question) -> Answer {
    let account = question.service_account.as_ref().map(|(namespace, name)| {
        let all = format!("system:serviceaccounts:{namespace}");
        UserInfo::new(
            format!("system:serviceaccount:{namespace}:{name}"),
            ["system:serviceaccounts", all.as_str()],
        )
    });
    let user = account.as_ref().unwrap_or(&attributes.request.user);
    let asked = authz::Attributes {
        user,
        verb: &question.verb,
        is_resource: question.path.is_none(),
        group: &question.group,
        version: if question.path.is_none() { "*" } else { "" },
        resource: &question.resource,
        subresource: &question.subresource,
        namespace: &question.namespace,
        name: &question.name,
        path: question.path.as_deref().unwrap_or(""),
        field_selector: &question.field_selector,
        label_selector: &question.label_selector,
    };
    let verdict = attributes.request.authorizers.authorize(&asked).await;
    Answer {
        allowed: verdict.is_allowed(),
        reason: verdict.reason.into_owned(),
        error: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(policy: Value, expression: &str, expect: Result<bool, &str>) {
        let programs = Programs::default();
        let review =
            json!({"request": {"uid": "1", "object": {"a": 1}, "resource": {"resource": "pods"}}});
        let seen = Seen::from(review, Value::Null);
        let oracle = Oracle::new(Vec::new());
        let evaluation = Evaluation::new(&programs, &seen, None, &policy, &oracle);
        let value = evaluation
            .run(expression)
            .map(|value| matches!(value, Val::Bool(true)));
        assert_eq!(value, expect.map_err(str::to_owned), "{expression}");
    }

    #[test]
    fn variables_are_computed_when_used_and_see_each_other() {
        let policy = json!({"variables": [{"name": "one", "expression": "object.a"},
            {"name": "two", "expression": "variables.one + 1"}, {"name": "bad", "expression": "object.none"},
            {"name": "self", "expression": "variables.self"}]});
        check(policy.clone(), "variables.two == 2", Ok(true));
        check(
            policy.clone(),
            "variables.bad == 1",
            Err(
                "expression 'variables.bad == 1' resulted in error: composited variable \"bad\" fails to evaluate: no such key: none",
            ),
        );
        let programs = Programs::default();
        let seen = Seen::from(json!({"request": {}}), Value::Null);
        let oracle = Oracle::new(Vec::new());
        let evaluation = Evaluation::new(&programs, &seen, None, &policy, &oracle);
        let why = evaluation.run("variables.self == 1").expect_err("endless");
        assert!(
            why.ends_with("composited variable \"self\" refers to itself"),
            "{why}"
        );
    }

    #[test]
    fn a_request_has_no_object_in_it() {
        check(
            json!({}),
            "has(request.object) || has(request.uid)",
            Ok(false),
        );
        check(json!({}), "request.resource.resource == 'pods'", Ok(true));
    }

    #[test]
    fn a_condition_that_does_not_hold_hides_errors() {
        let programs = Programs::default();
        let seen = Seen::from(json!({"request": {}}), Value::Null);
        let oracle = Oracle::new(Vec::new());
        let holds = |list: &[&str]| {
            let list: Vec<Value> = list.iter().map(|e| json!({ "expression": e })).collect();
            let holder = json!({ "matchConditions": list });
            let evaluation = Evaluation::new(&programs, &seen, None, &holder, &oracle);
            conditions(&holder, &evaluation)
        };
        assert_eq!(holds(&["true", "1 == 1"]), Ok(true));
        assert_eq!(holds(&["object.none", "false"]), Ok(false));
        assert!(holds(&["object.none", "true"]).is_err());
    }
}
