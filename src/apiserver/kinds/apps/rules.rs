//! What workloads have in common: replicas, a selector that selects the template's labels, a template that may run for ever.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::selector::LabelSelector;

use super::super::object_meta::{validate_annotations, validate_labels};
use super::super::pod_spec::affinity::label_selector;
use super::super::pod_spec::validation::pod_spec;
use super::super::tree::{at, has, int, text};
use crate::registry::strategy::{Change, Strategy};

pub fn replicas(object: &Value, errors: &mut ErrorList) {
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        let number = int(object, &["spec", field]).unwrap_or(0);
        if number < 0 {
            errors.push(Error::invalid(
                &Path::new("spec").child(field),
                number,
                "must be greater than or equal to 0",
            ));
        }
    }
}

/// Replicas, selector and template; `kind` names the workload in texts.
pub fn workload(object: &Value, kind: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    replicas(object, &mut errors);
    let path = Path::new("spec");
    let selector = at(object, &["spec", "selector"]);
    if selector.is_null() {
        errors.push(Error::required(&path.child("selector"), ""));
    } else {
        label_selector(selector, &path.child("selector"), &mut errors);
        let parsed = LabelSelector::from_value(selector);
        if parsed.as_ref().is_ok_and(LabelSelector::is_everything) {
            errors.push(Error::invalid(
                &path.child("selector"),
                selector.clone(),
                format!("empty selector is invalid for {kind}"),
            ));
        }
        if let Ok(parsed) = parsed {
            let labels = at(object, &["spec", "template", "metadata", "labels"]);
            if !parsed.is_everything() && !parsed.matches(labels) {
                errors.push(Error::invalid(
                    &path.child("template").child("metadata").child("labels"),
                    labels.clone(),
                    "`selector` does not match template `labels`",
                ));
            }
        }
    }
    pod_template(object, &mut errors);
    errors
}

/// The template of a workload whose pods are restarted for ever.
pub fn pod_template(object: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("template");
    let template = at(object, &["spec", "template"]);
    template_metadata(template, &path, errors);
    errors.extend(pod_spec(at(template, &["spec"]), &path.child("spec")));
    let policy = text(template, &["spec", "restartPolicy"]);
    if policy != "Always" && !policy.is_empty() {
        errors.push(Error::not_supported(
            &path.child("spec").child("restartPolicy"),
            policy,
            &["Always"],
        ));
    }
    if has(template, &["spec", "activeDeadlineSeconds"]) {
        errors.push(Error::forbidden(
            &path.child("spec").child("activeDeadlineSeconds"),
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        ));
    }
}

pub fn template_metadata(template: &Value, path: &Path, errors: &mut ErrorList) {
    errors.extend(validate_labels(
        at(template, &["metadata", "labels"]),
        &path.child("labels"),
    ));
    errors.extend(validate_annotations(
        at(template, &["metadata", "annotations"]),
        &path.child("annotations"),
    ));
}

/// An update may not change the selector.
pub fn update(strategy: &dyn Strategy, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
    if change.subresource == "status" {
        return status(new);
    }
    let mut errors = strategy.validate_create(change, new);
    if at(new, &["spec", "selector"]) != at(old, &["spec", "selector"]) {
        errors.push(Error::invalid(
            &Path::new("spec").child("selector"),
            at(new, &["spec", "selector"]).clone(),
            "field is immutable",
        ));
    }
    errors
}

/// Counters of a status are not negative.
fn status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    for (field, value) in at(object, &["status"]).as_object().into_iter().flatten() {
        if let Some(number) = value.as_i64()
            && number < 0
        {
            errors.push(Error::invalid(
                &Path::new("status").child(field),
                number,
                "must be greater than or equal to 0",
            ));
        }
    }
    errors
}

/// A deployment's strategy.
pub fn strategy(object: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("strategy");
    let strategy = at(object, &["spec", "strategy"]);
    match text(strategy, &["type"]) {
        "Recreate" => {
            if has(strategy, &["rollingUpdate"]) {
                errors.push(Error::forbidden(
                    &path.child("rollingUpdate"),
                    "may not be specified when strategy `type` is 'Recreate'",
                ));
            }
        }
        "RollingUpdate" => {
            let zero = |field: &str| {
                let value = at(strategy, &["rollingUpdate", field]);
                value.as_i64() == Some(0) || value.as_str() == Some("0%")
            };
            if zero("maxUnavailable") && zero("maxSurge") {
                errors.push(Error::invalid(
                    &path.child("rollingUpdate").child("maxUnavailable"),
                    at(strategy, &["rollingUpdate", "maxUnavailable"]).clone(),
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
        }
        other => errors.push(Error::not_supported(
            &path.child("type"),
            other,
            &["Recreate", "RollingUpdate"],
        )),
    }
    let deadline = int(object, &["spec", "progressDeadlineSeconds"]);
    let ready = int(object, &["spec", "minReadySeconds"]).unwrap_or(0);
    if let Some(deadline) = deadline {
        let path = Path::new("spec").child("progressDeadlineSeconds");
        if deadline < 0 {
            errors.push(Error::invalid(
                &path,
                deadline,
                "must be greater than or equal to 0",
            ));
        } else if deadline <= ready {
            errors.push(Error::invalid(
                &path,
                deadline,
                "must be greater than minReadySeconds",
            ));
        }
    }
}
