//! What configurations of admission may say (`pkg/apis/admissionregistration/validation`): what webhooks and policies
//! have in common.

mod policies;
mod webhooks;

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};
use cel::Program;
use cel::check::{Env, Ty};

pub use policies::{policy, policy_binding};
pub use webhooks::webhooks;

use super::super::super::check::Node;
use super::super::super::pod_spec::affinity::label_selector;

const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const REINVOCATION: [&str; 2] = ["IfNeeded", "Never"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
/// Conditions a webhook or a policy may have.
const MAX_CONDITIONS: usize = 64;

/// `validateMatchConditions`.
fn match_conditions(conditions: &Node<'_, '_>, env: &Env, errors: &mut ErrorList) {
    let count = conditions.list().len();
    if count > MAX_CONDITIONS {
        errors.push(apimachinery::field::Error::too_many(
            &conditions.path(),
            count,
            MAX_CONDITIONS,
        ));
    }
    let mut seen: Vec<&str> = Vec::new();
    for condition in conditions.items() {
        let expression = condition.at("expression");
        if expression.present(errors) {
            compiled(&expression, env, &["bool"], errors);
        }
        let called = condition.at("name");
        if called.present(errors) {
            called.syntax(errors, name::qualified_name);
            if seen.contains(&called.text()) {
                called.duplicate(errors);
            }
            seen.push(called.text());
        }
    }
}

/// A list that must not be empty, and where `*` stands alone.
fn wildcard_list(list: &Node<'_, '_>, what: &str, errors: &mut ErrorList) {
    if !list.present(errors) {
        return;
    }
    let texts: Vec<&str> = list.list().iter().filter_map(Value::as_str).collect();
    if texts.len() > 1 && texts.contains(&"*") {
        list.invalid(
            errors,
            format!("if '*' is present, must not specify other {what}"),
        );
    }
}

fn rule_with_operations(rule: &Node<'_, '_>, errors: &mut ErrorList) {
    let operations = rule.at("operations");
    wildcard_list(&operations, "operations", errors);
    for operation in operations.items() {
        operation.known(errors, &OPERATIONS);
    }
    wildcard_list(&rule.at("apiGroups"), "API groups", errors);
    let versions = rule.at("apiVersions");
    wildcard_list(&versions, "API versions", errors);
    for version in versions.items() {
        version.present(errors);
    }
    resources(&rule.at("resources"), errors);
    rule.at("scope").known_if_set(errors, &SCOPES);
}

/// `validateResources`: wildcards do not meet what they cover.
fn resources(resources: &Node<'_, '_>, errors: &mut ErrorList) {
    if !resources.present(errors) {
        return;
    }
    let list: Vec<&str> = resources.list().iter().filter_map(Value::as_str).collect();
    if list.contains(&"*/*") && list.len() > 1 {
        resources.invalid(
            errors,
            "if '*/*' is present, must not specify other resources",
        );
        return;
    }
    let plain = list.iter().filter(|text| !text.contains('/')).count();
    if list.contains(&"*") && plain > 1 {
        resources.invalid(
            errors,
            "if '*' is present, must not specify other resources without subresources",
        );
    }
    for resource in resources.items() {
        let text = resource.text();
        if text.is_empty() {
            resource.required(errors, "");
        } else if let Some((parent, sub)) = text.split_once('/') {
            if sub == "*" && list.iter().any(|other| covers(other, parent, text)) {
                resource.invalid(
                    errors,
                    format!("if '{text}' is present, must not specify {parent}/x"),
                );
            }
        }
    }
}

fn covers(other: &str, parent: &str, wildcard: &str) -> bool {
    other != wildcard && other.split_once('/').is_some_and(|(of, _)| of == parent)
}

fn match_resources(resources: &Node<'_, '_>, policy: bool, errors: &mut ErrorList) {
    resources
        .at("matchPolicy")
        .known_if_set(errors, &MATCH_POLICIES);
    for field in ["namespaceSelector", "objectSelector"] {
        let selector = resources.at(field);
        label_selector(selector.value, &selector.path(), errors);
    }
    let rules = resources.at("resourceRules");
    if policy && rules.list().is_empty() {
        rules.required(errors, "");
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        let rules = resources.at(list);
        for rule in rules.items() {
            rule_with_operations(&rule, errors);
        }
    }
}

/// The type of an expression; unknown where it is refused.
fn compiled(expression: &Node<'_, '_>, env: &Env, wanted: &[&str], errors: &mut ErrorList) -> Ty {
    let made = Program::parse(expression.text()).and_then(|program| {
        if wanted.is_empty() {
            return program
                .check(env)
                .map_err(|why| format!("compilation failed: {why}"));
        }
        program.compile(env, wanted)
    });
    made.unwrap_or_else(|why| {
        expression.invalid(errors, why);
        Ty::Dyn
    })
}
