//! Kinds that say what may be: disruption budgets, priorities, roles, flow control, webhooks, certificate requests, quotas.

pub mod admission;
pub mod certificates;
pub mod flow;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta};
use serde_json::json;

use super::object_meta::{NameRule, path_segment};
use super::pod_spec::affinity::label_selector;
use super::tree::{
    at, default_text, default_value, has, int, items, items_mut, object_mut, set, text,
};
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

const RBAC: &str = "rbac.authorization.k8s.io";

/// RoleBindings and ClusterRoleBindings, by their plural.
pub struct Bindings(pub &'static str);

impl Strategy for Bindings {
    fn id(&self) -> (&'static str, &'static str) {
        (RBAC, self.0)
    }

    fn name_rule(&self) -> NameRule {
        path_segment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if let Some(reference) = object
            .get_mut("roleRef")
            .filter(|reference| reference.is_object())
        {
            default_text(reference, "apiGroup", RBAC);
        }
        for subject in items_mut(object, &["subjects"]) {
            if matches!(text(subject, &["kind"]), "User" | "Group") {
                default_text(subject, "apiGroup", RBAC);
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("roleRef");
        let group = text(object, &["roleRef", "apiGroup"]);
        if group != RBAC {
            errors.push(Error::not_supported(
                &path.child("apiGroup"),
                group,
                &[RBAC],
            ));
        }
        let kind = text(object, &["roleRef", "kind"]);
        let valid: &[&str] = if self.0 == "clusterrolebindings" {
            &["ClusterRole"]
        } else {
            &["ClusterRole", "Role"]
        };
        if !valid.contains(&kind) {
            errors.push(Error::not_supported(&path.child("kind"), kind, valid));
        }
        if text(object, &["roleRef", "name"]).is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        }
        for (index, subject) in items(object, &["subjects"]).iter().enumerate() {
            let path = Path::new("subjects").index(index);
            if text(subject, &["name"]).is_empty() {
                errors.push(Error::required(&path.child("name"), ""));
            }
            let group = text(subject, &["apiGroup"]);
            match text(subject, &["kind"]) {
                "ServiceAccount" => {
                    if !group.is_empty() {
                        errors.push(Error::not_supported(&path.child("apiGroup"), group, &[""]));
                    }
                    let cluster = self.0 == "clusterrolebindings";
                    if cluster && text(subject, &["namespace"]).is_empty() {
                        errors.push(Error::required(&path.child("namespace"), ""));
                    }
                }
                "User" | "Group" => {
                    if group != RBAC {
                        errors.push(Error::not_supported(
                            &path.child("apiGroup"),
                            group,
                            &[RBAC],
                        ));
                    }
                }
                other => errors.push(Error::not_supported(
                    &path.child("kind"),
                    other,
                    &["Group", "ServiceAccount", "User"],
                )),
            }
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = self.validate_create(change, new);
        if at(new, &["roleRef"]) != at(old, &["roleRef"]) {
            errors.push(Error::invalid(
                &Path::new("roleRef"),
                at(new, &["roleRef"]).clone(),
                "cannot change roleRef",
            ));
        }
        errors
    }
}

pub struct LimitRanges;

impl Strategy for LimitRanges {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "limitranges")
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    /// Limits follow from maxima, requests from limits or minima.
    fn default(&self, object: &mut Value) {
        for item in items_mut(object, &["spec", "limits"]) {
            if text(item, &["type"]) != "Container" {
                continue;
            }
            for (from, to) in [
                ("max", "default"),
                ("default", "defaultRequest"),
                ("min", "defaultRequest"),
            ] {
                let Some(source) = at(item, &[from]).as_object().cloned() else {
                    continue;
                };
                if source.is_empty() {
                    continue;
                }
                let target = object_mut(item, &[to]);
                for (name, amount) in source {
                    target.entry(name).or_insert(amount);
                }
            }
        }
    }
}

pub struct ResourceQuotas;

impl Strategy for ResourceQuotas {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "resourcequotas")
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if at(new, &["spec", "scopes"]) != at(old, &["spec", "scopes"]) {
            errors.push(Error::invalid(
                &Path::new("spec").child("scopes"),
                at(new, &["spec", "scopes"]).clone(),
                "field is immutable",
            ));
        }
        errors
    }
}
