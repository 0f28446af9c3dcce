//! Waits until the devices of a pod's claims are ready for it (binding conditions, KEP-5007): a driver says so in the
//! claim's status. Devices that never will be are given up, so that the pod can be given others.

use std::sync::Arc;

use client::Client;
use serde_json::json;
use tokio::time::timeout;

use super::{
    Served, Shared,
    writes::{self, ClaimError},
};
use crate::{
    pod::Pod,
    storage::{ResourceClaim, SPECIAL_CLAIM},
};

/// Returns once all are ready; they mostly are at once.
///
/// # Errors
///
/// A condition says that a device's binding failed, or the profile's time is over. The devices are given up.
pub async fn ready(
    client: &Client,
    shared: &Shared,
    served: &Served,
    pod: &Pod,
    node: &str,
) -> Result<(), ClaimError> {
    let is_ready = |claim: &Arc<ResourceClaim>| claim.status.is_ready() == Some(true);
    // It may take long: others are told where the pod will be (NominatedNodeNameForExpectation, KEP-5278).
    if !claims(shared, pod).iter().all(is_ready) && pod.nominated_node != node {
        writes::patch_status(client, pod, &json!({"nominatedNodeName": node})).await;
    }
    let limit = served.profile.args.device_bind_timeout;
    let waited = timeout(limit, wait(shared, pod)).await;
    let Err(error) = waited.unwrap_or_else(|_| Err(ClaimError::BindingTimeout(pod.key()))) else {
        return Ok(());
    };
    for claim in claims(shared, pod) {
        // What others have reserved, too, is not for this pod to give up. What was made for it is deleted.
        let mut consumers = claim.status.reserved_for.iter();
        let is_special = claim.metadata.annotations.contains_key(SPECIAL_CLAIM);
        if !is_special && !is_ready(&claim) && consumers.all(|one| *one.uid == *pod.uid) {
            writes::release(client, &claim).await;
        }
    }
    Err(error)
}

async fn wait(shared: &Shared, pod: &Pod) -> Result<(), ClaimError> {
    let mut changes = shared.storage_changes.subscribe();
    loop {
        changes.borrow_and_update();
        if !shared.state.lock().cluster.is_assumed(&pod.uid) {
            return Err(ClaimError::PodGone);
        }
        let mut all_ready = true;
        for claim in claims(shared, pod) {
            match claim.status.is_ready() {
                Some(is_ready) => all_ready &= is_ready,
                None => return Err(ClaimError::BindingFailed(claim.metadata.key())),
            }
        }
        // The sender lives as long as `shared`.
        if all_ready || changes.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// The pod's claims as they are now, with what was decided here.
fn claims(shared: &Shared, pod: &Pod) -> Vec<Arc<ResourceClaim>> {
    let state = shared.state.lock();
    let storage = &state.cluster.storage;
    let names = pod.resource_claims.iter().flatten();
    let claims = names.filter_map(|name| {
        let key = format!("{}/{name}", pod.namespace);
        storage.resource_claim(&key)
    });
    claims
        .chain(storage.special_claim(&pod.uid))
        .cloned()
        .collect()
}
