//! Kinds that say what may be: disruption budgets, priorities, roles, flow control, webhooks, certificate requests, quotas.

pub mod admission;
pub mod certificates;
pub mod flow;
pub mod pod_certificates;
pub mod quota;
pub mod rbac;
pub mod signers;
pub mod signing_request;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta};
use serde_json::json;

use super::check::Node;
use super::pod_spec::affinity::label_selector;
use super::tree::{at, default_value, int, set, text};
use crate::registry::strategy::{Change, Strategy};

pub struct PodDisruptionBudgets;

impl Strategy for PodDisruptionBudgets {
    fn id(&self) -> (&'static str, &'static str) {
        ("policy", "poddisruptionbudgets")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(
            object,
            "status",
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
        );
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        budget(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        if change.subresource != "status" {
            return budget(new);
        }
        let mut errors = ErrorList::new();
        let status = Node::root(at(new, &["status"]), "status");
        super::status::conditions(&status.at("conditions"), &mut errors);
        for field in [
            "currentHealthy",
            "desiredHealthy",
            "disruptionsAllowed",
            "expectedPods",
        ] {
            status.at(field).nonnegative(&mut errors);
        }
        errors
    }
}

/// `ValidatePodDisruptionBudgetSpec`.
fn budget(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let (least, most) = (spec.at("minAvailable"), spec.at("maxUnavailable"));
    if least.is_set() && most.is_set() {
        spec.invalid(errors, "minAvailable and maxUnavailable cannot be both set");
    }
    int_or_percent(&least, errors);
    int_or_percent(&most, errors);
    let selector = spec.at("selector");
    label_selector(selector.value, &selector.path(), errors);
    spec.at("unhealthyPodEvictionPolicy")
        .known_if_set(errors, &["AlwaysAllow", "IfHealthyBudget"]);
    std::mem::take(errors)
}

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// `ValidatePositiveIntOrPercent` and `IsNotMoreThan100Percent`.
pub fn int_or_percent(value: &Node<'_, '_>, errors: &mut ErrorList) {
    if let Some(number) = value.int() {
        if number < 0 {
            value.invalid(errors, "must be greater than or equal to 0");
        }
    } else if value.is_set() {
        match percent(value.text()) {
            None => value.invalid(errors, PERCENT),
            Some(number) if number > 100 => {
                value.invalid(errors, "must not be greater than 100%");
            }
            Some(_) => {}
        }
    }
}

/// The number of a text like `25%`.
pub fn percent(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%')?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

pub struct PriorityClasses;

/// Users' priorities end here; the system's are above.
const HIGHEST: i64 = 1_000_000_000;

impl Strategy for PriorityClasses {
    fn id(&self) -> (&'static str, &'static str) {
        ("scheduling.k8s.io", "priorityclasses")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_value(object, "preemptionPolicy", "PreemptLowerPriority");
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        Node::root(at(object, &["preemptionPolicy"]), "preemptionPolicy")
            .known_if_set(&mut errors, &["Never", "PreemptLowerPriority"]);
        let value = int(object, &["value"]).unwrap_or(0);
        let system = matches!(
            (meta::name(object), value),
            ("system-node-critical", 2_000_001_000) | ("system-cluster-critical", 2_000_000_000)
        );
        if meta::name(object).starts_with("system-") {
            if !system {
                errors.push(Error::forbidden(
                    &Path::new("metadata").child("name"),
                    "priority class names with 'system-' prefix are reserved for system use only. error: the value of the system priority class cannot be changed",
                ));
            }
        } else if value > HIGHEST {
            errors.push(Error::forbidden(
                &Path::new("value"),
                format!("maximum allowed value of a user defined priority is {HIGHEST}"),
            ));
        }
        errors
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if int(new, &["value"]).unwrap_or(0) != int(old, &["value"]).unwrap_or(0) {
            errors.push(Error::forbidden(
                &Path::new("value"),
                "may not be changed in an update.",
            ));
        }
        if at(new, &["preemptionPolicy"]) != at(old, &["preemptionPolicy"]) {
            errors.push(Error::invalid(
                &Path::new("preemptionPolicy"),
                text(new, &["preemptionPolicy"]),
                "field is immutable",
            ));
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_count_pods_or_percents() {
        let errors = budget(
            &json!({"spec": {"minAvailable": "x", "maxUnavailable": "101%", "unhealthyPodEvictionPolicy": "No"}}),
        );
        let texts: Vec<String> = errors
            .iter()
            .map(|error| error.to_string().chars().take(70).collect())
            .collect();
        assert_eq!(
            texts,
            [
                "spec: Invalid value: {\"maxUnavailable\":\"101%\",\"minAvailable\":\"x\",\"unhe",
                "spec.minAvailable: Invalid value: \"x\": a valid percent string must be ",
                "spec.maxUnavailable: Invalid value: \"101%\": must not be greater than 1",
                "spec.unhealthyPodEvictionPolicy: Unsupported value: \"No\": supported va",
            ]
        );
    }
}
