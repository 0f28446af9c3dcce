//! What the scheduler writes: bindings, evictions, and the status of pods that wait.

use api::r::{PODS, RESOURCECLAIMS};
use api::view::{ObjectMeta, OwnerReference};
use apimachinery::{Value, meta, time::now_text};
use client::{
    Client, ClientError, DeleteOptions, Patch, WriteOptions,
    events::{EventKind, Recorder},
};
use serde_json::json;

use super::{Evictions, reference};
use crate::{
    plugins::dynamic_resources::{self, ClaimPlan, ForExtended},
    pod::Pod,
    storage::{ResourceClaim, SPECIAL_CLAIM},
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

/// Kept on a claim while it is allocated (resourceapi.Finalizer).
const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// How often a claim that others change at the same time is written anew.
const CLAIM_ATTEMPTS: usize = 5;

/// Why a resource claim could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("reserve ResourceClaim {0}: it is gone, or another by now")]
    Gone(String),
    #[error("reserve ResourceClaim {0}: it was allocated or freed meanwhile")]
    Changed(String),
    #[error("reserve ResourceClaim: {0}")]
    Write(#[from] ClientError),
    #[error("create claim for extended resources {0}: {1}")]
    Create(String, ClientError),
    #[error("update pod {0} ExtendedResourceClaimStatus: {1}")]
    Tell(String, ClientError),
    #[error("ResourceClaim {0}: a device's binding failed")]
    BindingFailed(String),
    #[error("the pod does not exist any more")]
    PodGone,
    #[error("device binding timeout: {0}")]
    BindingTimeout(String),
}

/// Gives a resource claim its devices if it has none, and reserves it for the pod. Returns the version after that.
///
/// # Errors
///
/// It is not as it was when this was decided, or cannot be written.
pub async fn reserve(client: &Client, pod: &Pod, plan: &ClaimPlan) -> Result<String, ClaimError> {
    let mut attempt = 1;
    loop {
        match reserve_once(client, pod, plan).await {
            Err(ClaimError::Write(error)) if error.is_conflict() && attempt < CLAIM_ATTEMPTS => {
                attempt += 1
            }
            result => return result,
        }
    }
}

async fn reserve_once(client: &Client, pod: &Pod, plan: &ClaimPlan) -> Result<String, ClaimError> {
    let of = &plan.claim.metadata;
    let options = WriteOptions::default();
    let mut claim: Value = client.get(&RESOURCECLAIMS, &of.namespace, &of.name).await?;
    if meta::uid(&claim) != of.uid || meta::is_deleting(&claim) {
        return Err(ClaimError::Gone(of.key()));
    }
    if claim["status"]["allocation"].is_null() != plan.allocation.is_some() {
        return Err(ClaimError::Changed(of.key()));
    }
    if plan.allocation.is_some() && !meta::finalizers(&claim).any(|one| one == CLAIM_FINALIZER) {
        let mut finalizers: Vec<&str> = meta::finalizers(&claim).collect();
        finalizers.push(CLAIM_FINALIZER);
        claim["metadata"]["finalizers"] = json!(finalizers);
        claim = client
            .update(&RESOURCECLAIMS, &of.namespace, &of.name, &claim, &options)
            .await?;
    }
    if let Some(allocation) = &plan.allocation {
        claim["status"]["allocation"] = allocation.clone();
        claim["status"]["allocation"]["allocationTimestamp"] = json!(now_text());
    }
    let consumer = json!(dynamic_resources::consumer(pod));
    let mut consumers = claim["status"]["reservedFor"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    if !consumers.iter().any(|one| one["uid"] == consumer["uid"]) {
        consumers.push(consumer);
    }
    claim["status"]["reservedFor"] = json!(consumers);
    let written: Value = client
        .update_status(&RESOURCECLAIMS, &of.namespace, &of.name, &claim, &options)
        .await?;
    Ok(meta::resource_version(&written).to_string())
}

/// The longest part of a generated name that is not random.
const MAX_BASE: usize = 253 - 5;

/// Makes the claim for a pod's extended resources, without devices yet.
///
/// # Errors
///
/// It cannot be made.
pub async fn make(
    client: &Client,
    pod: &Pod,
    extended: &ForExtended,
) -> Result<ResourceClaim, ClaimError> {
    let mut base = format!("{}-extended-resources-", pod.name);
    base.truncate(MAX_BASE);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "generateName": base, "namespace": pod.namespace,
            "annotations": {SPECIAL_CLAIM: "true"}, "ownerReferences": [owner],
        },
        "spec": extended.spec,
    });
    let options = WriteOptions::default();
    client
        .create(&RESOURCECLAIMS, &pod.namespace, &claim, &options)
        .await
        .map_err(|error| ClaimError::Create(pod.key(), error))
}

/// Tells in the pod's status which of its containers is given what of the claim for its extended resources.
///
/// # Errors
///
/// It cannot be told, or another scheduler has made a claim for the pod meanwhile.
pub async fn tell(
    client: &Client,
    pod: &Pod,
    claim: &str,
    extended: &ForExtended,
) -> Result<(), ClaimError> {
    let mut attempt = 1;
    loop {
        match tell_once(client, pod, claim, extended).await {
            Err(ClaimError::Tell(_, error)) if error.is_conflict() && attempt < CLAIM_ATTEMPTS => {
                attempt += 1
            }
            result => return result,
        }
    }
}

async fn tell_once(
    client: &Client,
    pod: &Pod,
    claim: &str,
    extended: &ForExtended,
) -> Result<(), ClaimError> {
    let failed = |error| ClaimError::Tell(pod.key(), error);
    let (namespace, name) = (&pod.namespace, &pod.name);
    let found: Value = client.get(&PODS, namespace, name).await.map_err(failed)?;
    if meta::uid(&found) != &*pod.uid || found["spec"]["nodeName"].is_string() {
        return Err(ClaimError::PodGone);
    }
    let other = told_claim(&found).filter(|other| *other != claim);
    if let Some(other) = other {
        match client.get::<Value>(&RESOURCECLAIMS, namespace, other).await {
            Ok(other) if !meta::is_deleting(&other) => {
                return Err(ClaimError::Changed(meta::key(&other)));
            }
            Err(error) if !error.is_not_found() => return Err(failed(error)),
            _ => {}
        }
    }
    let status = json!({"extendedResourceClaimStatus": {
        "resourceClaimName": claim, "requestMappings": extended.mappings,
    }});
    let version = meta::resource_version(&found);
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": &*pod.uid, "resourceVersion": version}, "status": status,
    }));
    let options = WriteOptions::default();
    let patched = client.patch::<Value>(&PODS, namespace, name, "status", &patch, &options);
    patched.await.map(drop).map_err(failed)
}

/// Makes sure that the claim is not gone: another scheduler takes it for one of an earlier attempt.
///
/// # Errors
///
/// It is gone, or cannot be read.
pub async fn still_there(client: &Client, of: &ObjectMeta) -> Result<(), ClaimError> {
    let found = client.get::<Value>(&RESOURCECLAIMS, &of.namespace, &of.name);
    match found.await {
        Ok(claim) if meta::uid(&claim) == of.uid && !meta::is_deleting(&claim) => Ok(()),
        Err(error) if !error.is_not_found() => Err(ClaimError::Write(error)),
        _ => Err(ClaimError::Gone(of.key())),
    }
}

/// The claim for extended resources that a pod's status names.
fn told_claim(pod: &Value) -> Option<&str> {
    pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"].as_str()
}

/// Deletes the claim that was made for a pod's extended resources, unless the pod has its node with it after all.
pub async fn unmake(client: &Client, pod: &Pod, claim: &ObjectMeta) {
    let found = client.get::<Value>(&PODS, &pod.namespace, &pod.name).await;
    let is_used = |found: &Value| {
        meta::uid(found) == &*pod.uid
            && found["spec"]["nodeName"].is_string()
            && told_claim(found) == Some(&claim.name)
    };
    match found {
        Ok(found) if is_used(&found) => return,
        // The next attempt, or the controller of resource claims, deletes it.
        Err(error) if !error.is_not_found() => {
            tracing::warn!(claim = claim.key(), %error, "cannot tell whether the claim is still needed");
            return;
        }
        _ => {}
    }
    let mut attempt = 1;
    let deleted = loop {
        match unmake_once(client, claim).await {
            Err(error) if error.is_conflict() && attempt < CLAIM_ATTEMPTS => attempt += 1,
            result => break result,
        }
    };
    if let Err(error) = deleted
        && !error.is_not_found()
    {
        tracing::warn!(claim = claim.key(), %error, "cannot delete the claim for extended resources");
    }
}

async fn unmake_once(client: &Client, of: &ObjectMeta) -> Result<(), ClientError> {
    let mut claim: Value = client.get(&RESOURCECLAIMS, &of.namespace, &of.name).await?;
    if meta::uid(&claim) != of.uid {
        return Ok(());
    }
    let kept = meta::finalizers(&claim).filter(|one| *one != CLAIM_FINALIZER);
    let kept: Vec<String> = kept.map(str::to_owned).collect();
    if kept.len() < meta::finalizers(&claim).count() {
        claim["metadata"]["finalizers"] = json!(kept);
        let options = WriteOptions::default();
        client
            .update::<_, Value>(&RESOURCECLAIMS, &of.namespace, &of.name, &claim, &options)
            .await?;
    }
    let options = DeleteOptions::uid(&*of.uid);
    client
        .delete(&RESOURCECLAIMS, &of.namespace, &of.name, &options)
        .await
        .map(drop)
}

/// Gives a claim's devices up, if it is still as it was. If it is not, that is as good.
pub async fn release(client: &Client, claim: &ResourceClaim) {
    let meta = &claim.metadata;
    let patch = Patch::Merge(json!({
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"allocation": null, "reservedFor": null, "devices": null},
    }));
    let options = WriteOptions::default();
    let patched = client.patch::<Value>(
        &RESOURCECLAIMS,
        &meta.namespace,
        &meta.name,
        "status",
        &patch,
        &options,
    );
    if let Err(error) = patched.await
        && !error.is_not_found()
        && !error.is_conflict()
    {
        tracing::warn!(claim = meta.key(), %error, "cannot give up the claim's devices");
    }
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
