//! Kinds that say what may be: disruption budgets, priorities, roles, flow control, webhooks, certificate requests, quotas.

pub mod admission;
pub mod certificates;
pub mod flow;
pub mod quota;
pub mod rbac;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta};
use serde_json::json;

use super::pod_spec::affinity::label_selector;
use super::tree::{at, default_value, has, int, set, text};
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
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        if has(object, &["spec", "minAvailable"]) && has(object, &["spec", "maxUnavailable"]) {
            errors.push(Error::invalid(
                &path,
                at(object, &["spec"]).clone(),
                "minAvailable and maxUnavailable cannot be both set",
            ));
        }
        for field in ["minAvailable", "maxUnavailable"] {
            if int(object, &["spec", field]).is_some_and(|number| number < 0) {
                errors.push(Error::invalid(
                    &path.child(field),
                    at(object, &["spec", field]).clone(),
                    "must be greater than or equal to 0",
                ));
            }
        }
        label_selector(
            at(object, &["spec", "selector"]),
            &path.child("selector"),
            &mut errors,
        );
        errors
    }
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
