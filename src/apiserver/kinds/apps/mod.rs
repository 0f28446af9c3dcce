//! Workloads that keep pods running: Deployments, ReplicaSets, StatefulSets, DaemonSets, and the old ReplicationControllers.

mod rules;

pub use rules::{no_ephemeral, template_metadata, warnings};

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use serde_json::json;

use super::pod_spec::defaults::{self, template};
use super::tree::{
    at, at_mut, default_text, default_value, has, items_mut, object_mut, remove, set, text,
};
use crate::registry::strategy::{Change, Propagation, Strategy, default_prepare_update};

const TEMPLATE: &[&str] = &["spec", "template"];

pub struct Deployments;

impl Strategy for Deployments {
    fn id(&self) -> (&'static str, &'static str) {
        ("apps", "deployments")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        template(object, TEMPLATE);
        let spec = &mut object["spec"];
        if !spec.is_object() {
            return;
        }
        default_value(spec, "replicas", 1);
        default_value(spec, "revisionHistoryLimit", 10);
        default_value(spec, "progressDeadlineSeconds", 600);
        let strategy = object_mut(spec, &["strategy"]);
        let kind = strategy.get("type").and_then(Value::as_str).unwrap_or("");
        if kind.is_empty() {
            strategy.insert("type".to_owned(), "RollingUpdate".into());
        }
        if text(spec, &["strategy", "type"]) == "RollingUpdate" {
            object_mut(spec, &["strategy", "rollingUpdate"]);
            let rolling = &mut spec["strategy"]["rollingUpdate"];
            default_value(rolling, "maxUnavailable", "25%");
            default_value(rolling, "maxSurge", "25%");
        }
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        rules::warnings(change, new, old, true)
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = rules::workload(object, "deployment");
        rules::strategy(object, &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        rules::update(self, change, new, old)
    }
}

pub struct ReplicaSets;

impl Strategy for ReplicaSets {
    fn id(&self) -> (&'static str, &'static str) {
        ("apps", "replicasets")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        template(object, TEMPLATE);
        default_value(&mut object["spec"], "replicas", 1);
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"replicas": 0}));
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        rules::warnings(change, new, old, true)
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        rules::workload(object, "replicaset")
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        rules::update(self, change, new, old)
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "status.replicas" { "0" } else { "" }
    }
}

pub struct StatefulSets;

impl Strategy for StatefulSets {
    fn id(&self) -> (&'static str, &'static str) {
        ("apps", "statefulsets")
    }

    fn name_rule(&self) -> super::object_meta::NameRule {
        super::object_meta::dns_label
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        template(object, TEMPLATE);
        let spec = &mut object["spec"];
        if !spec.is_object() {
            return;
        }
        default_text(spec, "podManagementPolicy", "OrderedReady");
        default_value(spec, "replicas", 1);
        default_value(spec, "revisionHistoryLimit", 10);
        let update = object_mut(spec, &["updateStrategy"]);
        let kind = update.get("type").and_then(Value::as_str).unwrap_or("");
        if kind.is_empty() {
            update.insert("type".to_owned(), "RollingUpdate".into());
        }
        if text(spec, &["updateStrategy", "type"]) == "RollingUpdate" {
            object_mut(spec, &["updateStrategy", "rollingUpdate"]);
            default_value(&mut spec["updateStrategy"]["rollingUpdate"], "partition", 0);
        }
        object_mut(spec, &["persistentVolumeClaimRetentionPolicy"]);
        let retention = &mut spec["persistentVolumeClaimRetentionPolicy"];
        default_text(retention, "whenDeleted", "Retain");
        default_text(retention, "whenScaled", "Retain");
        for claim in items_mut(spec, &["volumeClaimTemplates"]) {
            set(claim, "kind", "PersistentVolumeClaim");
            set(claim, "apiVersion", "v1");
            default_value(&mut claim["spec"], "volumeMode", "Filesystem");
            default_text(&mut claim["status"], "phase", "Pending");
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(
            object,
            "status",
            json!({"replicas": 0, "availableReplicas": 0}),
        );
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        rules::warnings(change, new, old, false)
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = rules::workload(object, "statefulset");
        rules::stateful(object, &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return rules::status(new, old, &rules::STATEFUL_COUNTS);
        }
        let mut errors = self.validate_create(change, new);
        let frozen = |object: &Value| {
            let mut spec = object["spec"].clone();
            for field in [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ] {
                remove(&mut spec, field);
            }
            for claim in items_mut(&mut spec, &["volumeClaimTemplates"]) {
                remove(claim, "status");
            }
            spec
        };
        if !super::tree::semantically_equal(&frozen(new), &frozen(old)) {
            errors.push(Error::forbidden(
                &Path::new("spec"),
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
            ));
        }
        errors
    }
}

pub struct DaemonSets;

impl Strategy for DaemonSets {
    fn id(&self) -> (&'static str, &'static str) {
        ("apps", "daemonsets")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        template(object, TEMPLATE);
        let spec = &mut object["spec"];
        if !spec.is_object() {
            return;
        }
        default_value(spec, "revisionHistoryLimit", 10);
        let update = object_mut(spec, &["updateStrategy"]);
        let kind = update.get("type").and_then(Value::as_str).unwrap_or("");
        if kind.is_empty() {
            update.insert("type".to_owned(), "RollingUpdate".into());
        }
        if text(spec, &["updateStrategy", "type"]) == "RollingUpdate" {
            object_mut(spec, &["updateStrategy", "rollingUpdate"]);
            let rolling = &mut spec["updateStrategy"]["rollingUpdate"];
            default_value(rolling, "maxUnavailable", 1);
            default_value(rolling, "maxSurge", 0);
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(
            object,
            "status",
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}),
        );
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        rules::warnings(change, new, old, false)
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = rules::workload(object, "daemonset");
        rules::daemon_update(object, &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        rules::update(self, change, new, old)
    }
}

pub struct ReplicationControllers;

impl Strategy for ReplicationControllers {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "replicationcontrollers")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        template(object, TEMPLATE);
        default_value(&mut object["spec"], "replicas", 1);
        defaults::selector_from_template(object);
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"replicas": 0}));
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        default_prepare_update(&["status"], change, new, old);
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        rules::warnings(change, new, old, true)
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        let selector = at(object, &["spec", "selector"]);
        if selector.as_object().is_none_or(|map| map.is_empty()) {
            errors.push(Error::required(&path.child("selector"), ""));
        }
        rules::replicas(object, &mut errors);
        if !has(object, &["spec", "template"]) {
            errors.push(Error::required(&path.child("template"), ""));
            return errors;
        }
        let labels = at(object, &["spec", "template", "metadata", "labels"]);
        let matches = selector
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| labels.get(key) == Some(value));
        if !matches {
            errors.push(Error::invalid(
                &path.child("template").child("metadata").child("labels"),
                labels.clone(),
                "`selector` does not match template `labels`",
            ));
        }
        rules::pod_template(object, "ReplicaSet", &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return rules::status(new, old, &rules::COUNTS);
        }
        self.validate_create(change, new)
    }

    /// As it was before there was garbage collection.
    fn propagation(&self) -> Propagation {
        Propagation::Orphan
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "status.replicas" { "0" } else { "" }
    }
}

pub struct PodTemplates;

impl Strategy for PodTemplates {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "podtemplates")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        template(object, &["template"]);
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let template = at(object, &["template"]);
        rules::template_metadata(template, &Path::new("template"), &mut errors);
        errors.extend(super::pod_spec::validation::pod_spec(
            at(template, &["spec"]),
            &Path::new("template").child("spec"),
        ));
        errors
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}

/// `ValidateControllerRevision`.
pub fn controller_revision(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if !has(object, &["data"]) {
        errors.push(Error::required(&Path::new("data"), "data is mandatory"));
    }
    let revision = super::check::Node::root(at(object, &["revision"]), "revision");
    revision.nonnegative(&mut errors);
    errors
}

/// Defaults of a job's spec (`SetDefaults_Job`).
pub fn job_spec(spec: &mut Value) {
    template(spec, &["template"]);
    if !has(spec, &["completions"]) && !has(spec, &["parallelism"]) {
        default_value(spec, "completions", 1);
    }
    default_value(spec, "parallelism", 1);
    default_value(spec, "suspend", false);
    default_value(spec, "completionMode", "NonIndexed");
    if has(spec, &["backoffLimitPerIndex"]) {
        default_value(spec, "backoffLimit", i64::from(i32::MAX));
    }
    default_value(spec, "backoffLimit", 6);
    let replacement = if has(spec, &["podFailurePolicy"]) {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    default_value(spec, "podReplacementPolicy", replacement);
    if let Some(policy) = at_mut(spec, &["podFailurePolicy"]) {
        for rule in items_mut(policy, &["rules"]) {
            for pattern in items_mut(rule, &["onPodConditions"]) {
                default_text(pattern, "status", "True");
            }
        }
    }
}
