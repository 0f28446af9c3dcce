//! Nodes: status may come with the object that registers them; what a node is given (its pod ranges, its provider's id) it
//! keeps.

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::tree::{at, at_mut, has, restore, semantically_equal, set};
use super::services::addresses::Cidr;
use crate::registry::strategy::{Change, Strategy, keep_all_but};

pub struct Nodes;

impl Strategy for Nodes {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "nodes")
    }

    fn default(&self, object: &mut Value) {
        if !has(object, &["status", "allocatable"]) {
            let capacity = at(object, &["status", "capacity"]).clone();
            if let Some(status) = at_mut(object, &["status"])
                && capacity.as_object().is_some_and(|map| !map.is_empty())
            {
                set(status, "allocatable", capacity);
            }
        }
    }

    fn keeps_status_on_create(&self) -> bool {
        true
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        match change.subresource {
            "status" => keep_all_but(new, old, &["status"]),
            _ => restore(new, old, "status"),
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        node(object)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        update(new, old)
    }

    fn warnings(&self, _change: &Change<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut texts = Vec::new();
        if has(new, &["spec", "configSource"]) {
            texts.push("spec.configSource: the feature is no longer supported".to_owned());
        }
        if has(new, &["spec", "externalID"]) {
            texts.push(
                "spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned(),
            );
        }
        texts
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "spec.unschedulable" {
            "false"
        } else {
            ""
        }
    }
}

/// `ValidateNode`.
fn node(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    // Upstream looks for taints in the metadata.
    let metadata = Node::root(at(object, &["spec"]), "metadata");
    taints(&metadata.at("taints"), &mut errors);
    let status = Node::root(at(object, &["status"]), "status");
    for field in ["capacity", "allocatable"] {
        let map = status.at(field);
        for (_, amount) in map.entries() {
            amount.amount(&mut errors);
        }
    }
    let spec = Node::root(at(object, &["spec"]), "spec");
    let ranges = spec.at("podCIDRs");
    for range in ranges.items() {
        if Cidr::parse(range.text()).is_none() {
            range.invalid(
                &mut errors,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            );
        }
    }
    let list = ranges.list();
    let six = |range: &Value| range.as_str().unwrap_or("").contains(':');
    if list.len() > 2 || (list.len() == 2 && six(&list[0]) == six(&list[1])) {
        ranges.invalid(
            &mut errors,
            "may specify no more than one CIDR for each IP family",
        );
    }
    errors
}

/// `validateNodeTaints`.
fn taints(taints: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for taint in taints.items() {
        let (key, effect) = (taint.at("key"), taint.at("effect"));
        key.syntax(errors, name::qualified_name);
        let value = taint.at("value");
        value.syntax_if_set(errors, name::label_value);
        effect.one_of(errors, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        let pair = (key.text(), effect.text());
        if seen.contains(&pair) {
            let mut error = Error::duplicate(&taint.path(), taint.value);
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
        seen.push(pair);
    }
}

/// `ValidateNodeUpdate`.
fn update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = node(new);
    let status = Node::root(at(new, &["status"]), "status");
    let addresses = status.at("addresses");
    for (index, address) in addresses.items().enumerate() {
        if addresses.list()[..index].contains(address.value) {
            address.duplicate(&mut errors);
        }
    }
    let (spec, was) = (Node::root(at(new, &["spec"]), "spec"), at(old, &["spec"]));
    for (field, why) in [
        (
            "podCIDRs",
            "node updates may not change podCIDR except from \"\" to valid",
        ),
        (
            "providerID",
            "node updates may not change providerID except from \"\" to valid",
        ),
    ] {
        let before = Node::root(at(was, &[field]), field);
        if !before.is_empty() && before.value != spec.at(field).value {
            spec.at(field).forbidden(&mut errors, why);
        }
    }
    let fixed = ["externalID"];
    if fixed
        .iter()
        .any(|field| !semantically_equal(at(was, &[field]), spec.at(field).value))
    {
        Node::root(new, "").forbidden(
            &mut errors,
            "node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig feature gate is enabled)",
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn taints_are_unique_and_have_an_effect() {
        check(
            node(
                &json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"},
                {"key": "b", "effect": "Go"}]}}),
            ),
            &[
                "metadata.taints[1]: Duplicate value: {\"effect\":\"NoSchedule\",\"key\":\"a\"}: taints must be unique by key and effect pair",
                "metadata.taints[2].effect: Unsupported value: \"Go\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            ],
        );
    }

    #[test]
    fn what_a_node_was_given_it_keeps() {
        let old = json!({"spec": {"podCIDRs": ["10.0.0.0/24"], "providerID": "x"}});
        check(update(&old, &old), &[]);
        let new = json!({"spec": {"podCIDRs": ["10.0.1.0/24"], "providerID": "y"}});
        check(
            update(&new, &old),
            &[
                "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
                "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
            ],
        );
    }
}
