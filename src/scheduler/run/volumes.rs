//! Writes what gives a pod's claims their volumes, and waits until they have them (PreBind of VolumeBinding).

use api::r::{PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES};
use apimachinery::Value;
use client::{Client, ClientError, Patch, WriteOptions};
use serde_json::json;
use tokio::time::timeout;

use super::{Served, Shared, writes};
use crate::{
    plugins::volume_binding::VolumePlan,
    pod::Pod,
    storage::{PersistentVolume, PersistentVolumeClaim, SELECTED_NODE},
};

/// Says that the volume was not chosen by the user.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Why a pod's claims did not get their volumes.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("binding volumes: {0}")]
    Write(#[from] ClientError),
    #[error("binding volumes: context deadline exceeded")]
    Timeout,
    #[error("binding volumes: pod does not exist any more")]
    PodGone,
    #[error("binding volumes: PVC \"{0}\" not found")]
    ClaimGone(String),
    #[error("binding volumes: pv {volume:?} node affinity doesn't match node {node:?}")]
    Elsewhere { volume: String, node: String },
    #[error("binding volumes: selectedNode annotation reset for PVC \"{0}\"")]
    NodeReset(String),
}

/// Brings a plan about: gives volumes to claims, asks for others to be provisioned for the node, and waits until every
/// claim is bound, for as long as the profile allows.
pub async fn bind(
    client: &Client,
    shared: &Shared,
    served: &Served,
    pod: &Pod,
    node: &str,
    plan: &VolumePlan,
) -> Result<(), VolumeError> {
    // It may take long: others are told where the pod will be (NominatedNodeNameForExpectation, KEP-5278).
    if pod.nominated_node != node {
        writes::patch_status(client, pod, &json!({"nominatedNodeName": node})).await;
    }
    for (volume, claim) in &plan.bind {
        give(client, volume, claim).await?;
    }
    for claim in &plan.provision {
        ask_for(client, claim, node).await?;
    }
    let bound = wait(shared, pod, node, plan);
    timeout(served.profile.args.volume_bind_timeout, bound)
        .await
        .unwrap_or(Err(VolumeError::Timeout))
}

/// Writes the claim into the volume; the volume controller does the rest.
async fn give(
    client: &Client,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<(), ClientError> {
    let meta = &claim.metadata;
    let mut patch = json!({
        "metadata": {"resourceVersion": volume.metadata.resource_version},
        "spec": {"claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
            "uid": meta.uid, "resourceVersion": meta.resource_version,
        }},
    });
    if !volume.is_reserved_for(claim) {
        patch["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    let options = WriteOptions::default();
    let name = &volume.metadata.name;
    client
        .patch::<Value>(
            &PERSISTENTVOLUMES,
            "",
            name,
            "",
            &Patch::Merge(patch),
            &options,
        )
        .await
        .map(drop)
}

/// Asks for the claim to be provisioned for a node.
async fn ask_for(
    client: &Client,
    claim: &PersistentVolumeClaim,
    node: &str,
) -> Result<(), ClientError> {
    let meta = &claim.metadata;
    let patch = json!({"metadata": {
        "resourceVersion": meta.resource_version, "annotations": {SELECTED_NODE: node},
    }});
    let options = WriteOptions::default();
    client
        .patch::<Value>(
            &PERSISTENTVOLUMECLAIMS,
            &meta.namespace,
            &meta.name,
            "",
            &Patch::Merge(patch),
            &options,
        )
        .await
        .map(drop)
}

/// Waits until every claim is bound, to a volume that is known.
async fn wait(
    shared: &Shared,
    pod: &Pod,
    node: &str,
    plan: &VolumePlan,
) -> Result<(), VolumeError> {
    let mut changes = shared.storage_changes.subscribe();
    let mut asked_for = vec![false; plan.claims.len()];
    loop {
        changes.borrow_and_update();
        if is_bound(shared, pod, node, plan, &mut asked_for)? {
            return Ok(());
        }
        if changes.changed().await.is_err() {
            return Err(VolumeError::PodGone);
        }
    }
}

fn is_bound(
    shared: &Shared,
    pod: &Pod,
    node: &str,
    plan: &VolumePlan,
    asked_for: &mut [bool],
) -> Result<bool, VolumeError> {
    let state = shared.state.lock();
    if !state.cluster.is_assumed(&pod.uid) {
        return Err(VolumeError::PodGone);
    }
    let storage = &state.cluster.storage;
    let mut all = true;
    for (key, asked_for) in plan.claims.iter().zip(asked_for) {
        let claim = storage
            .claims
            .get(key)
            .ok_or_else(|| VolumeError::ClaimGone(key.clone()))?;
        // A provisioner that cannot takes the node back, for another to be chosen.
        match claim.selected_node() {
            Some(selected) if selected == node => *asked_for = true,
            _ if *asked_for && !claim.is_bound() => {
                return Err(VolumeError::NodeReset(key.clone()));
            }
            _ => {}
        }
        let volume = storage.volume(&claim.spec.volume_name);
        let volume = volume.filter(|volume| claim.is_bound() && volume.is_reserved_for(claim));
        all &= volume.is_some();
        // Another scheduler may have been sooner to give the claim a volume.
        let info = state
            .cluster
            .find_node(node)
            .and_then(|info| info.node.as_ref());
        if let Some((volume, info)) = volume.zip(info)
            && !volume.is_reachable(node, &info.labels)
        {
            return Err(VolumeError::Elsewhere {
                volume: volume.metadata.name.clone(),
                node: node.into(),
            });
        }
    }
    Ok(all)
}
