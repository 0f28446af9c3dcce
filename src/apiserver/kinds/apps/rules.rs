//! What workloads have in common: replicas, a selector that selects the template's labels, a template that may run for ever.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::selector::LabelSelector;
use apimachinery::{Value, meta, name};

use super::super::check::Node;
use super::super::object_meta::{validate_annotations, validate_labels};
use super::super::pod_spec::affinity::label_selector;
use super::super::pod_spec::validation::pod_spec;
use super::super::pod_spec::warnings;
use super::super::policy::{int_or_percent, percent};
use super::super::tree::{at, has, int, items, text};
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
    let labels = at(object, &["spec", "template", "metadata", "labels"]);
    // No selector matches nothing.
    let mut matches = false;
    if !selector.is_null() {
        label_selector(selector, &path.child("selector"), &mut errors);
        let parsed = LabelSelector::from_value(selector);
        if parsed.as_ref().is_ok_and(LabelSelector::is_everything) {
            errors.push(Error::invalid(
                &path.child("selector"),
                selector.clone(),
                format!("empty selector is invalid for {kind}"),
            ));
        }
        matches = parsed.map_or(true, |parsed| parsed.matches(labels));
    } else if kind != "daemonset" {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    if !matches {
        errors.push(Error::invalid(
            &path.child("template").child("metadata").child("labels"),
            labels.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    let owner = match kind {
        "daemonset" => "DaemonSet",
        "statefulset" => "StatefulSet",
        _ => "ReplicaSet",
    };
    pod_template(object, owner, &mut errors);
    errors
}

/// The template of a workload whose pods are restarted for ever; `owner` names it in texts.
pub fn pod_template(object: &Value, owner: &str, errors: &mut ErrorList) {
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
            format!("activeDeadlineSeconds in {owner} is not Supported"),
        ));
    }
    no_ephemeral(template, &path, errors);
}

/// Ephemeral containers come to running pods only.
pub fn no_ephemeral(template: &Value, path: &Path, errors: &mut ErrorList) {
    if !items(template, &["spec", "ephemeralContainers"]).is_empty() {
        errors.push(Error::forbidden(
            &path.child("spec").child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
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
        return status(new, old, &COUNTS);
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

/// Pods that a status counts, none of which are more than there are.
pub const COUNTS: [&str; 4] = [
    "fullyLabeledReplicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
];
/// Those of a stateful set, whose text about available pods differs too.
pub const STATEFUL_COUNTS: [&str; 4] = [
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "availableReplicas",
];

/// Counters of a status are not negative, none is above the pods there are, and collisions are not forgotten.
pub fn status(new: &Value, old: &Value, counts: &[&str; 4]) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(new, &["status"]), "status");
    for (field, _) in status.entries() {
        status.at(field).nonnegative(&mut errors);
    }
    if let Some(replicas) = status.at("replicas").int() {
        for field in counts {
            let count = status.at(field);
            if count.int().is_some_and(|count| count > replicas) {
                count.invalid(&mut errors, "cannot be greater than status.replicas");
            }
        }
        let (ready, available) = (status.at("readyReplicas"), status.at("availableReplicas"));
        if available.int().unwrap_or(0) > ready.int().unwrap_or(0) {
            let why = if counts == &STATEFUL_COUNTS {
                "cannot be greater than status.readyReplicas"
            } else {
                "cannot be greater than readyReplicas"
            };
            available.invalid(&mut errors, why);
        }
    }
    let (is, was) = (
        status.at("collisionCount"),
        int(old, &["status", "collisionCount"]),
    );
    if let Some(was) = was
        && is.int().is_none_or(|is| is < was)
    {
        let count = is.int().unwrap_or(0);
        is.invalid_as(&mut errors, count, "cannot be decremented");
    }
    errors
}

/// How a daemon set's pods are replaced.
pub fn daemon_update(object: &Value, errors: &mut ErrorList) {
    let strategy = Node::root(
        at(object, &["spec", "updateStrategy"]),
        "spec.updateStrategy",
    );
    let kind = strategy.at("type");
    match kind.text() {
        "OnDelete" => {}
        "RollingUpdate" => {
            let rolling = strategy.at("rollingUpdate");
            if !rolling.is_set() {
                rolling.required(errors, "");
                return;
            }
            let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
            int_or_percent(&unavailable, errors);
            int_or_percent(&surge, errors);
            match (is_zero(unavailable.value), is_zero(surge.value)) {
                (false, false) => {
                    surge.invalid(errors, "may not be set when maxUnavailable is non-zero");
                }
                (true, true) => unavailable.required(errors, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => kind.not_supported(errors, &["OnDelete", "RollingUpdate"]),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => percent(text) == Some(0),
        other => other.as_i64() == Some(0),
    }
}

/// What is special about stateful sets.
pub fn stateful(object: &Value, errors: &mut ErrorList) {
    let spec = Node::root(at(object, &["spec"]), "spec");
    let management = spec.at("podManagementPolicy");
    match management.text() {
        "" => management.required(errors, ""),
        "OrderedReady" | "Parallel" => {}
        _ => management.invalid(errors, "must be 'OrderedReady' or 'Parallel'"),
    }
    let update = spec.at("updateStrategy");
    let rolling = update.at("rollingUpdate");
    match update.at("type").text() {
        "" => update.required(errors, ""),
        "OnDelete" => {
            if rolling.is_set() {
                rolling.invalid(errors, "only allowed for updateStrategy 'RollingUpdate'");
            }
        }
        "RollingUpdate" => {
            rolling.at("partition").nonnegative(errors);
            let unavailable = rolling.at("maxUnavailable");
            if unavailable.is_set() {
                int_or_percent(&unavailable, errors);
                if is_zero(unavailable.value) {
                    unavailable.invalid(errors, "cannot be 0");
                }
            }
        }
        _ => update.invalid(errors, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    let retention = spec.at("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        retention
            .at(field)
            .known_if_set(errors, &["Delete", "Retain"]);
    }
    spec.at("serviceName")
        .syntax_if_set(errors, name::dns_1123_label);
    let ordinals = spec.at("ordinals");
    ordinals.at("start").nonnegative(errors);
}

/// What the author of a workload is told.
pub fn warnings(change: &Change<'_>, new: &Value, old: Option<&Value>, named: bool) -> Vec<String> {
    let mut texts = Vec::new();
    if !change.subresource.is_empty() {
        return texts;
    }
    if named && old.is_none() {
        warnings::name_of_host(new, "Pod names and hostnames", &mut texts);
    }
    if old.is_none_or(|old| meta::generation(old) != meta::generation(new)) {
        let template = at(new, &["spec", "template"]);
        warnings::pod(template, "spec.template", &mut texts);
    }
    texts
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
            let root = Node::root(strategy, "spec.strategy");
            let rolling = root.at("rollingUpdate");
            int_or_percent(&rolling.at("maxUnavailable"), errors);
            let surge = rolling.at("maxSurge");
            if surge.int().is_some() || percent(surge.text()).is_none() {
                int_or_percent(&surge, errors);
            }
            let zero = |field: &str| is_zero(rolling.at(field).value);
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(errors: &ErrorList, expect: &[&str]) {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn a_rolling_update_makes_progress() {
        let mut errors = ErrorList::new();
        let of = |unavailable: Value, surge: Value| {
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate":
            {"maxUnavailable": unavailable, "maxSurge": surge}}}})
        };
        strategy(&of(json!("25%"), json!("150%")), &mut errors);
        check(&errors, &[]);
        strategy(&of(json!("0%"), json!(0)), &mut errors);
        check(
            &errors,
            &[
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
            ],
        );
        let mut errors = ErrorList::new();
        strategy(&of(json!("101%"), json!("x")), &mut errors);
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn daemons_surge_or_step_back() {
        let mut errors = ErrorList::new();
        let of = |unavailable: i64, surge: i64| {
            json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate":
            {"maxUnavailable": unavailable, "maxSurge": surge}}}})
        };
        daemon_update(&of(1, 0), &mut errors);
        daemon_update(&of(0, 1), &mut errors);
        check(&errors, &[]);
        daemon_update(&of(1, 1), &mut errors);
        daemon_update(&of(0, 0), &mut errors);
        check(
            &errors,
            &[
                "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
            ],
        );
    }

    #[test]
    fn no_selector_matches_no_template() {
        let object = json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
        let selector_errors = |kind: &str| {
            let errors = workload(&object, kind);
            let texts = errors.iter().map(ToString::to_string);
            texts
                .filter(|text| text.contains("elector"))
                .collect::<Vec<_>>()
        };
        let unmatched = "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`";
        assert_eq!(
            selector_errors("deployment"),
            ["spec.selector: Required value", unmatched]
        );
        assert_eq!(selector_errors("daemonset"), [unmatched]);
    }

    #[test]
    fn a_status_counts_what_there_is() {
        check(
            &status(
                &json!({"status": {"replicas": 1, "readyReplicas": 2, "availableReplicas": -1}}),
                &json!({"status": {"collisionCount": 1}}),
                &COUNTS,
            ),
            &[
                "status.availableReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ],
        );
    }
}
