//! Pods: defaults, what an update may touch, graceful deletion, and the subresources that are not streams.

mod binding;
mod eviction;
mod resize;
mod status;
mod update;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, meta, time};
use async_trait::async_trait;
use serde_json::json;

use super::super::pod_spec::validation::pod_spec;
use super::super::pod_spec::{containers, defaults, qos, warnings};
use super::super::tree::{at, int, items, object_mut, restore, set, text};
use crate::registry::options::WriteOptions;
use crate::registry::strategy::{Change, Grace, Strategy, default_prepare_update, keep_all_but};

pub use binding::bind;

pub struct Pods;

#[async_trait]
impl Strategy for Pods {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "pods")
    }

    fn default(&self, object: &mut Value) {
        defaults::pod(object);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        let class = qos::class(object);
        let mut status = json!({"phase": "Pending", "qosClass": class});
        if !items(object, &["spec", "schedulingGates"]).is_empty() {
            status["conditions"] = json!([{
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null,
                "lastTransitionTime": time::now_text(),
            }]);
        }
        set(object, "status", status);
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        match change.subresource {
            "status" => {
                default_prepare_update(&["status"], change, new, old);
                restore(&mut new["status"], &old["status"], "qosClass");
            }
            "ephemeralcontainers" => {
                let added = at(new, &["spec", "ephemeralContainers"]).clone();
                keep_all_but(new, old, &[]);
                if !added.is_null() {
                    object_mut(new, &["spec"]).insert("ephemeralContainers".to_owned(), added);
                }
            }
            "resize" => resize::keep_all_but_resources(new, old),
            _ => restore(new, old, "status"),
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let path = Path::new("spec");
        let mut errors = pod_spec(at(object, &["spec"]), &path);
        containers::only_for_pods(at(object, &["spec"]), &path, &mut errors);
        app_armor(object, &mut errors);
        if !items(object, &["spec", "ephemeralContainers"]).is_empty() {
            errors.push(Error::forbidden(
                &path.child("ephemeralContainers"),
                "cannot be set on create",
            ));
        }
        if !text(object, &["spec", "nodeName"]).is_empty()
            && !items(object, &["spec", "schedulingGates"]).is_empty()
        {
            errors.push(Error::forbidden(
                &path.child("nodeName"),
                "cannot be set until all schedulingGates have been cleared",
            ));
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        match change.subresource {
            "status" => status::validate(new, old),
            "ephemeralcontainers" => update::ephemeral(new, old),
            "resize" => resize::validate(new, old),
            _ => update::pod(new, old),
        }
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut texts = Vec::new();
        if matches!(change.subresource, "" | "ephemeralcontainers") {
            if old.is_none() {
                warnings::name_of_host(new, "the Pod's hostname", &mut texts);
            }
            if old.is_none_or(|old| meta::generation(old) != meta::generation(new)) {
                warnings::pod(new, "", &mut texts);
            }
        }
        texts
    }

    fn grace(&self, pod: &Value, asked: Option<i64>) -> Grace {
        let mut seconds = asked
            .or_else(|| int(pod, &["spec", "terminationGracePeriodSeconds"]))
            .unwrap_or(0);
        let phase = text(pod, &["status", "phase"]);
        // Nothing runs that would need the time.
        if text(pod, &["spec", "nodeName"]).is_empty() || matches!(phase, "Failed" | "Succeeded") {
            seconds = 0;
        }
        Grace::Seconds(if seconds < 0 { 1 } else { seconds })
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "spec.hostNetwork" {
            "false"
        } else {
            ""
        }
    }

    fn field_paths(&self, label: &str) -> Option<Vec<Vec<&'static str>>> {
        match label {
            // The old name of the node.
            "spec.host" => Some(vec![vec!["spec", "nodeName"]]),
            _ => None,
        }
    }

    async fn post_subresource(
        &self,
        change: &Change<'_>,
        name: &str,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Value, Status> {
        match change.subresource {
            "binding" => binding::bind(change, name, &body).await,
            "eviction" => eviction::evict(change, name, &body, options).await,
            _ => Err(Status::method_not_supported("", "pods", "create")),
        }
    }
}

/// Old annotations for AppArmor name a container of the pod and a profile (`ValidateAppArmorPodAnnotations`).
fn app_armor(pod: &Value, errors: &mut ErrorList) {
    const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    let annotations = at(pod, &["metadata", "annotations"]);
    for (key, profile) in annotations.as_object().into_iter().flatten() {
        let Some(container) = key.strip_prefix(PREFIX) else {
            continue;
        };
        let path = Path::new("metadata.annotations").key(key);
        let known = ["containers", "initContainers", "ephemeralContainers"]
            .iter()
            .flat_map(|list| items(pod, &["spec", list]))
            .any(|one| text(one, &["name"]) == container);
        if !known {
            errors.push(Error::invalid(&path, container, "container not found"));
        }
        let profile = profile.as_str().unwrap_or("");
        let is_profile = matches!(profile, "" | "runtime/default" | "unconfined")
            || profile.starts_with("localhost/");
        if !is_profile {
            let why = format!("invalid AppArmor profile name: {profile:?}");
            errors.push(Error::invalid(&path, profile, why));
        }
    }
}

/// What a subresource without an object answers with.
fn success() -> Value {
    let mut status = Status::success(None).to_value();
    set(&mut status, "code", 201);
    status
}

/// Whether the pod is one that the caller means: a uid, when given, must be the pod's.
fn is_same(pod: &Value, uid: &str) -> bool {
    uid.is_empty() || uid == meta::uid(pod)
}
