//! What the scheduler writes: bindings, evictions, and the status of pods that wait.

use api::r::{PODS, RESOURCECLAIMS};
use apimachinery::{Value, time::now_text};
use client::{
    Client, ClientError, DeleteOptions, Patch, WriteOptions,
    events::{EventKind, Recorder},
};
use serde_json::json;

use super::{Evictions, reference};
use crate::{
    pod::Pod,
    storage::{Consumer, ResourceClaim},
};

/// Writes the Binding.
pub async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), ClientError> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": &*pod.uid},
        "target": {"kind": "Node", "name": node},
    });
    let options = WriteOptions::default();
    client
        .create_subresource::<_, Value>(
            &PODS,
            &pod.namespace,
            &pod.name,
            "binding",
            &binding,
            &options,
        )
        .await
        .map(drop)
}

/// Reserves a resource claim for the pod.
pub async fn reserve(client: &Client, pod: &Pod, claim: &ResourceClaim) -> Result<(), ClientError> {
    let mut consumers = claim.status.reserved_for.clone();
    consumers.push(Consumer {
        resource: "pods".into(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        ..Consumer::default()
    });
    let meta = &claim.metadata;
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": meta.resource_version}, "status": {"reservedFor": consumers},
    }));
    let options = WriteOptions::default();
    client
        .patch::<Value>(
            &RESOURCECLAIMS,
            &meta.namespace,
            &meta.name,
            "status",
            &patch,
            &options,
        )
        .await
        .map(drop)
}

/// Evicts the victims for `pod`: each is told so in a condition, then deleted with its own grace period. Waiting pods
/// of a lower priority are no longer expected on the node.
///
/// # Errors
///
/// The first victim that could not be evicted; those after it are left alone.
pub async fn evict(
    client: &Client,
    recorder: &Recorder,
    pod: &Pod,
    evictions: &Evictions,
) -> Result<(), ClientError> {
    for other in &evictions.unnominated {
        if !other.nominated_node.is_empty() {
            patch_status(client, other, &json!({"nominatedNodeName": null})).await;
        }
    }
    for victim in &evictions.victims {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", pod.scheduler_name),
            "lastTransitionTime": now_text(), "observedGeneration": victim.generation,
        });
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": &*victim.uid},
            "status": {"conditions": [condition]},
        }));
        let options = WriteOptions::default();
        let patched = client
            .patch::<Value>(
                &PODS,
                &victim.namespace,
                &victim.name,
                "status",
                &patch,
                &options,
            )
            .await;
        let deleted = match patched {
            Ok(_) => {
                let options = DeleteOptions::uid(&*victim.uid);
                client
                    .delete(&PODS, &victim.namespace, &victim.name, &options)
                    .await
                    .map(drop)
            }
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => {
                let message = format!("Preempted by pod {} on node {}", pod.uid, evictions.node);
                recorder.event(&reference(victim), EventKind::Normal, "Preempted", message);
            }
            // It is gone already, or is another pod by now.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                tracing::warn!(victim = victim.key(), pod = pod.key(), %error, "cannot evict the pod");
                return Err(error);
            }
        }
    }
    Ok(())
}

/// What changes in the status of a pod without a node; `None` if nothing does.
pub fn status_patch(
    pod: &Pod,
    reason: &str,
    message: &str,
    nominated: Option<&str>,
) -> Option<Value> {
    let mut patch = json!({});
    let present = pod.scheduled.as_ref();
    let same = present.is_some_and(|present| {
        (
            present.status.as_str(),
            present.reason.as_str(),
            present.message.as_str(),
        ) == ("False", reason, message)
    });
    if !same {
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "observedGeneration": pod.generation,
        });
        if present.is_none_or(|present| present.status != "False") {
            condition["lastTransitionTime"] = json!(now_text());
        }
        patch["conditions"] = json!([condition]);
    }
    if let Some(node) = nominated.filter(|node| *node != pod.nominated_node) {
        patch["nominatedNodeName"] = if node.is_empty() {
            Value::Null
        } else {
            json!(node)
        };
    }
    (patch != json!({})).then_some(patch)
}

/// Patches the status of a pod, if it is still this one. A failure is no harm: it is written again when the pod is
/// tried again.
pub async fn patch_status(client: &Client, pod: &Pod, status: &Value) {
    let patch = Patch::Strategic(json!({"metadata": {"uid": &*pod.uid}, "status": status}));
    let options = WriteOptions::default();
    let patched =
        client.patch::<Value>(&PODS, &pod.namespace, &pod.name, "status", &patch, &options);
    if let Err(error) = patched.await
        && !error.is_not_found()
    {
        tracing::debug!(pod = pod.key(), %error, "cannot write the pod's status");
    }
}
