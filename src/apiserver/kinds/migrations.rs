//! StorageVersionMigrations: which resource is written anew, and how far that went (`pkg/apis/storagemigration/validation`).

use apimachinery::Value;
use apimachinery::field::ErrorList;
use apimachinery::name;

use super::check::Node;
use super::status::conditions;
use super::tree::{at, items, text};
use crate::registry::strategy::{Change, Strategy};

pub struct StorageVersionMigrations;

impl Strategy for StorageVersionMigrations {
    fn id(&self) -> (&'static str, &'static str) {
        ("storagemigration.k8s.io", "storageversionmigrations")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        migration(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status(new, old);
        }
        let mut errors = migration(new);
        let spec = Node::root(at(new, &["spec"]), "spec");
        spec.unchanged(&mut errors, at(old, &["spec"]));
        errors
    }
}

fn migration(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    let resource = spec.at("resource");
    let (group, plural) = (resource.at("group"), resource.at("resource"));
    if plural.present_or(&mut errors, "resource is required to be set") {
        all_in_one(&plural, name::dns_1035_label, &mut errors);
    }
    if !group.text().is_empty() {
        all_in_one(&group, name::dns_1123_subdomain, &mut errors);
    }
    errors
}

/// What is wrong with a name, as one error.
fn all_in_one(node: &Node<'_, '_>, rule: impl Fn(&str) -> Vec<String>, errors: &mut ErrorList) {
    let wrong = rule(node.text());
    if !wrong.is_empty() {
        node.invalid(errors, wrong.join(","));
    }
}

/// `resourceversion.CompareResourceVersion`: a number without zeros before it.
fn is_version(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is(object: &Value, condition: &str) -> bool {
    items(object, &["status", "conditions"])
        .iter()
        .any(|found| text(found, &["type"]) == condition && text(found, &["status"]) == "True")
}

/// A migration ends well or badly, once, and does not run any more then.
fn status(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let status = Node::root(at(new, &["status"]), "status");
    let version = status.at("resourceVersion");
    if !is_version(version.text()) {
        let said = version.text();
        let why = format!("resource version is not well formed: {said}");
        version.invalid_as(errors, said, why);
    }
    let list = status.at("conditions");
    conditions(&list, errors);
    let was = text(old, &["status", "resourceVersion"]);
    if !was.is_empty() && was != version.text() {
        version.invalid_as(errors, version.text(), "field is immutable");
    }
    if is(new, "Succeeded") && is(new, "Failed") {
        list.invalid(
            errors,
            "Both success and failed conditions cannot be true at the same time",
        );
    }
    const ENDS: [(&str, &str, &str); 2] = [
        ("Succeeded", "success", "Success"),
        ("Failed", "failed", "Failed"),
    ];
    for (end, word, _) in ENDS {
        if is(new, end) && is(new, "Running") {
            list.invalid(
                errors,
                format!("Running condition cannot be true when {word} condition is true"),
            );
        }
    }
    for (end, _, word) in ENDS {
        if is(old, end) && !is(new, end) {
            list.invalid(
                errors,
                format!("{word} condition cannot be set to false once it is true"),
            );
        }
    }
    std::mem::take(errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn a_migration_names_its_resource() {
        check(
            migration(&json!({"spec": {"resource": {"group": "apps"}}})),
            &["spec.resource.resource: Required value: resource is required to be set"],
        );
        let errors = migration(&json!({"spec": {"resource": {"group": "A", "resource": "B"}}}));
        let starts: Vec<String> = errors.iter().map(|error| error.field.to_string()).collect();
        assert_eq!(starts, ["spec.resource.resource", "spec.resource.group"]);
    }

    #[test]
    fn a_version_is_a_number_and_stays() {
        let with = |version: &str| json!({"status": {"resourceVersion": version}});
        check(status(&with("5"), &with("")), &[]);
        for wrong in ["", "05", "abc"] {
            check(
                status(&with(wrong), &with("")),
                &[&format!(
                    "status.resourceVersion: Invalid value: \"{wrong}\": resource version is not well formed: {wrong}"
                )],
            );
        }
        check(
            status(&with("6"), &with("5")),
            &["status.resourceVersion: Invalid value: \"6\": field is immutable"],
        );
    }

    #[test]
    fn a_migration_ends_once() {
        let with = |kinds: &[&str]| {
            let list: Vec<Value> = kinds
                .iter()
                .map(|kind| {
                    json!({"type": kind, "status": "True", "reason": "R",
                        "lastTransitionTime": "2020-01-01T00:00:00Z"})
                })
                .collect();
            json!({"status": {"resourceVersion": "5", "conditions": list}})
        };
        check(status(&with(&["Succeeded"]), &with(&["Running"])), &[]);
        let errors = status(&with(&["Failed", "Running"]), &with(&["Succeeded"]));
        let texts: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
        assert_eq!(
            texts,
            [
                "Running condition cannot be true when failed condition is true",
                "Success condition cannot be set to false once it is true",
            ]
        );
    }
}
