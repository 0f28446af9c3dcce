//! Whether a webhook is meant by a write: its rules, in any version of the resource, and its selectors.

use api::Resource;
use apimachinery::selector::LabelSelector;
use apimachinery::{Status, Value};

use super::super::{Attributes, Operation};
use crate::kinds::tree::{at, items, text};

/// One webhook of a configuration.
pub struct Hook(pub Value);

impl Hook {
    pub fn name(&self) -> &str {
        text(&self.0, &["name"])
    }
}

/// The resource a hook is asked about, and the one the request was about.
#[derive(Clone, Copy)]
pub struct Asked {
    pub resource: &'static Resource,
    pub requested: &'static Resource,
}

pub fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

/// What to ask the hook about, when it is meant.
pub async fn matches(
    attributes: &Attributes<'_>,
    hook: &Hook,
    object: Option<&Value>,
) -> Result<Option<Asked>, Status> {
    concerned(attributes, &hook.0, "rules", object).await
}

/// The same for the constraints of a policy, or of its binding (which may have no rules).
pub async fn constrained(
    attributes: &Attributes<'_>,
    constraints: &Value,
    object: Option<&Value>,
) -> Result<Option<Asked>, Status> {
    let requested = requested(attributes);
    let excluded = items(constraints, &["excludeResourceRules"])
        .iter()
        .any(|rule| rule_concerns(rule, requested, attributes));
    if excluded {
        return Ok(None);
    }
    concerned(attributes, constraints, "resourceRules", object).await
}

async fn concerned(
    attributes: &Attributes<'_>,
    constraints: &Value,
    rules: &str,
    object: Option<&Value>,
) -> Result<Option<Asked>, Status> {
    let requested = requested(attributes);
    let equivalent = text(constraints, &["matchPolicy"]) != "Exact";
    let mut candidates = vec![requested];
    if equivalent {
        candidates.extend(versions(attributes, requested));
    }
    // A binding without rules takes what its policy takes.
    let all = rules == "resourceRules" && items(constraints, &[rules]).is_empty();
    let rules = items(constraints, &[rules]);
    let found = candidates.into_iter().find(|resource| {
        all || rules
            .iter()
            .any(|rule| rule_concerns(rule, resource, attributes))
    });
    let Some(resource) = found else {
        return Ok(None);
    };
    if !selects(
        at(constraints, &["objectSelector"]),
        &[object, attributes.old],
    ) || !in_namespace(attributes, constraints, object).await?
    {
        return Ok(None);
    }
    Ok(Some(Asked {
        resource,
        requested,
    }))
}

/// The resource in the version of the request.
fn requested(attributes: &Attributes<'_>) -> &'static Resource {
    let info = &attributes.request.info;
    attributes
        .registry
        .served()
        .find(&info.group, &info.version, &info.resource)
        .filter(|resource| resource.kind == attributes.resource.kind)
        .unwrap_or(attributes.resource)
}

/// The other served versions of a resource.
fn versions(
    attributes: &Attributes<'_>,
    requested: &'static Resource,
) -> impl Iterator<Item = &'static Resource> {
    let stored = attributes.resource;
    attributes
        .registry
        .served()
        .resources()
        .into_iter()
        .filter(move |other| {
            other.plural == stored.plural
                && other.storage_group == stored.storage_group
                && other.kind == stored.kind
                && !std::ptr::eq(*other, requested)
        })
}

fn rule_concerns(rule: &Value, resource: &Resource, attributes: &Attributes<'_>) -> bool {
    let names = items(rule, &["resourceNames"]);
    (names.is_empty() || names.iter().any(|name| name == attributes.name))
        && rule_matches(rule, resource, attributes.subresource, attributes.operation)
}

fn rule_matches(
    rule: &Value,
    resource: &Resource,
    subresource: &str,
    operation: Operation,
) -> bool {
    let among = |field: &str, wanted: &str| {
        items(rule, &[field])
            .iter()
            .any(|value| value == "*" || value == wanted)
    };
    // A namespace counts as cluster-scoped.
    let scope = match text(rule, &["scope"]) {
        "Namespaced" => resource.namespaced,
        "Cluster" => !resource.namespaced,
        _ => true,
    };
    let named = items(rule, &["resources"])
        .iter()
        .filter_map(Value::as_str)
        .any(|pattern| {
            let (parent, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
            (parent == "*" || parent == resource.plural) && (sub == "*" || sub == subresource)
        });
    scope
        && named
        && among("operations", operation_name(operation))
        && among("apiGroups", resource.group)
        && among("apiVersions", resource.version)
}

/// Whether a selector takes one of the objects in; an empty one takes all.
fn selects(selector: &Value, objects: &[Option<&Value>]) -> bool {
    let Ok(parsed) = LabelSelector::from_value(selector) else {
        return false;
    };
    selector.is_null()
        || parsed.is_everything()
        || objects
            .iter()
            .flatten()
            .any(|object| parsed.matches_object(object))
}

async fn in_namespace(
    attributes: &Attributes<'_>,
    constraints: &Value,
    object: Option<&Value>,
) -> Result<bool, Status> {
    let selector = at(constraints, &["namespaceSelector"]);
    if selector.is_null()
        || LabelSelector::from_value(selector).is_ok_and(|parsed| parsed.is_everything())
    {
        return Ok(true);
    }
    if attributes.is_core("namespaces") {
        return Ok(selects(selector, &[object.or(attributes.old)]));
    }
    if !attributes.resource.namespaced {
        return Ok(true);
    }
    let namespace = attributes.registry.namespace(attributes.namespace).await?;
    Ok(selects(selector, &[namespace.as_ref()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(rule: Value, subresource: &str, expect: bool) {
        let mut whole = json!({"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
        for (key, value) in rule.as_object().expect("a map") {
            whole[key] = value.clone();
        }
        let deployments = api::find("apps", "v1", "deployments").expect("is known");
        assert_eq!(
            rule_matches(&whole, deployments, subresource, Operation::Create),
            expect,
            "{whole}"
        );
    }

    #[test]
    fn rules_match_by_group_version_resource_scope_and_operation() {
        check(json!({}), "", true);
        check(json!({"operations": ["*"]}), "", true);
        check(json!({"operations": ["UPDATE"]}), "", false);
        check(json!({"apiGroups": [""]}), "", false);
        check(json!({"apiVersions": ["v2"]}), "", false);
        check(json!({"scope": "Cluster"}), "", false);
        check(json!({}), "scale", false);
        check(json!({"resources": ["*"]}), "scale", false);
        check(json!({"resources": ["*/*"]}), "scale", true);
        check(json!({"resources": ["*/scale"]}), "scale", true);
        check(json!({"resources": ["deployments/*"]}), "", true);
    }

    #[test]
    fn selectors_take_in_either_object() {
        let selector = json!({"matchLabels": {"a": "b"}});
        let with = json!({"metadata": {"labels": {"a": "b"}}});
        let without = json!({"metadata": {}});
        assert!(selects(&json!({}), &[None, None]));
        assert!(selects(&selector, &[Some(&without), Some(&with)]));
        assert!(!selects(&selector, &[Some(&without), None]));
    }
}
