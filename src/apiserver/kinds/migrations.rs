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
        let resource = spec.at("resource");
        for field in ["group", "resource"] {
            let was = at(old, &["spec", "resource", field]);
            resource.at(field).unchanged(&mut errors, was);
        }
        errors
    }
}

fn migration(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    let resource = spec.at("resource");
    resource
        .at("group")
        .syntax_if_set(&mut errors, name::dns_1123_subdomain);
    let plural = resource.at("resource");
    if plural.present_or(&mut errors, "resource is required") {
        plural.syntax(&mut errors, name::dns_1035_label);
    }
    errors
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
    if !version.text().is_empty() && version.text().parse::<u64>().is_err() {
        version.invalid(errors, "resource version must be a non-negative integer");
    }
    if !text(old, &["status", "resourceVersion"]).is_empty() {
        version.unchanged(errors, at(old, &["status", "resourceVersion"]));
    }
    let list = status.at("conditions");
    conditions(&list, errors);
    if is(new, "Succeeded") && is(new, "Failed") {
        list.invalid(
            errors,
            "Both success and failed conditions cannot be true at the same time",
        );
    }
    for (end, word) in [("Succeeded", "success"), ("Failed", "failed")] {
        if is(new, end) && is(new, "Running") {
            list.invalid(
                errors,
                format!("Running condition cannot be true when {word} condition is true"),
            );
        }
        if is(old, end) && !is(new, end) {
            let word = if end == "Failed" { "Failed" } else { "Success" };
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
            &["spec.resource.resource: Required value: resource is required"],
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
                "Success condition cannot be set to false once it is true",
                "Running condition cannot be true when failed condition is true",
            ]
        );
    }
}
