//! persistentvolumeclaim-protection-controller and persistentvolume-protection-controller: a claim that a pod uses,
//! and a volume that is bound, are deleted only when that has ended (StorageObjectInUseProtection).

use std::sync::Arc;

use api::r::{PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS};
use apimachinery::{Value, meta::join_key};
use async_trait::async_trait;
use client::{
    ClientError, Informer, ListOptions, Selectors,
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use super::view::{Claim, Volume};
use crate::{Context, Controller, context::synced, objects::Pod, writes::modify};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
/// Index of pods by the claims they use, `namespace/name`.
pub const BY_CLAIM: &str = "claim";

pub struct ClaimProtection;
pub struct VolumeProtection;

/// The index value of `BY_CLAIM`.
pub fn pods_by_claim(pod: &Pod) -> Vec<String> {
    let claims = pod
        .spec
        .volumes
        .iter()
        .filter_map(|volume| volume.claim(pod));
    claims
        .map(|claim| join_key(&pod.metadata.namespace, &claim))
        .collect()
}

/// What becomes of a finalizer.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Add,
    Remove,
}

#[async_trait]
impl Controller for ClaimProtection {
    fn name(&self) -> &'static str {
        "persistentvolumeclaim-protection-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["pvc-protection"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let claims: Informer<Claim> =
            informers.informer(&PERSISTENTVOLUMECLAIMS, "", Selectors::default());
        let pods: Informer<Pod> = informers.informer(&PODS, "", Selectors::default());
        pods.add_index(BY_CLAIM, pods_by_claim);
        if !synced!(context, claims, pods) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        claims.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        let keys = queue.clone();
        pods.add_handler(move |change| {
            // A claim comes free when a pod goes, or ends.
            let Some(old) = &change.old else { return };
            if change.new.as_ref().is_none_or(|new| {
                new.is_terminal() || new.is_shut_down() || new.metadata.uid != old.metadata.uid
            }) {
                pods_by_claim(old).into_iter().for_each(|key| keys.add(key));
            }
        });
        workqueue::run("pvc-protection", &queue, 5, &context.shutdown, |key| {
            let (context, claims, pods) = (&context, &claims, &pods);
            async move { protect_claim(context, claims.get(&key), pods).await }
        })
        .await;
    }
}

async fn protect_claim(
    context: &Context,
    claim: Option<Arc<Claim>>,
    pods: &Informer<Pod>,
) -> Result<Requeue, ClientError> {
    let Some(claim) = claim else {
        return Ok(Requeue::No);
    };
    let meta = &claim.metadata;
    let key = meta.key();
    let in_use = || {
        pods.by_index(BY_CLAIM, &key)
            .iter()
            .any(|pod| uses(pod, &claim))
    };
    let Some(action) = plan(meta, CLAIM, in_use) else {
        return Ok(Requeue::No);
    };
    if action == Action::Remove {
        // The cache of pods may be behind; a pod that was just scheduled must keep its claim.
        let all = context
            .client
            .list_all::<Pod>(&PODS, &meta.namespace, &ListOptions::default())
            .await?;
        if all.items.iter().any(|pod| uses(pod, &claim)) {
            return Ok(Requeue::No);
        }
    }
    let resource = &PERSISTENTVOLUMECLAIMS;
    modify(&context.client, resource, meta, |claim| {
        apply(claim, CLAIM, &action)
    })
    .await?;
    Ok(Requeue::No)
}

/// Whether a pod with a node uses the claim; one without may not start with a claim that is being deleted.
fn uses(pod: &Pod, claim: &Claim) -> bool {
    if pod.spec.node_name.is_empty() || pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    let mut volumes = pod.spec.volumes.iter();
    volumes.any(|volume| {
        let named = volume
            .claim(pod)
            .is_some_and(|name| name == claim.metadata.name);
        let owned = || {
            claim
                .metadata
                .controller()
                .is_some_and(|owner| owner.uid == pod.metadata.uid)
        };
        named && (!volume.is_ephemeral() || (owned() && !pod.is_shut_down()))
    })
}

#[async_trait]
impl Controller for VolumeProtection {
    fn name(&self) -> &'static str {
        "persistentvolume-protection-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["pv-protection"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let volumes: Informer<Volume> =
            informers.informer(&PERSISTENTVOLUMES, "", Selectors::default());
        if !synced!(context, volumes) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        volumes.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run("pv-protection", &queue, 1, &context.shutdown, |name| {
            let (context, volumes) = (&context, &volumes);
            async move {
                let Some(volume) = volumes.get(&name) else {
                    return Ok::<_, ClientError>(Requeue::No);
                };
                let meta = &volume.metadata;
                if let Some(action) = plan(meta, VOLUME, || volume.status.phase == "Bound") {
                    let resource = &PERSISTENTVOLUMES;
                    modify(&context.client, resource, meta, |one| {
                        apply(one, VOLUME, &action)
                    })
                    .await?;
                }
                Ok(Requeue::No)
            }
        })
        .await;
    }
}

/// Whether the finalizer is missing, or not needed any more.
pub fn plan(
    meta: &api::view::ObjectMeta,
    finalizer: &str,
    in_use: impl FnOnce() -> bool,
) -> Option<Action> {
    let present = meta.finalizers.iter().any(|one| one == finalizer);
    match (meta.is_deleting(), present) {
        (false, false) => Some(Action::Add),
        (true, true) if !in_use() => Some(Action::Remove),
        _ => None,
    }
}

pub fn apply(object: &mut Value, finalizer: &str, action: &Action) {
    let mut finalizers: Vec<String> = apimachinery::meta::finalizers(object)
        .filter(|one| *one != finalizer)
        .map(ToString::to_string)
        .collect();
    if *action == Action::Add {
        finalizers.push(finalizer.into());
    }
    object["metadata"]["finalizers"] = json!(finalizers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seconds;
    use client::fake::Server;

    fn start(server: &Server) -> tokio_util::sync::DropGuard {
        crate::testing::start(server, &["pvc-protection", "pv-protection"])
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_goes_when_its_last_pod_has_gone() {
        let server = Server::default();
        let _guard = start(&server);
        let claims = &PERSISTENTVOLUMECLAIMS;
        server.put(
            claims,
            json!({"metadata": {"name": "data", "namespace": "n"}}),
        );
        server.put(
            &PODS,
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "w",
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}),
        );
        seconds(5).await;
        let mut claim = server.get(claims, "n/data").unwrap();
        assert_eq!(claim["metadata"]["finalizers"], json!([CLAIM]));
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.put(claims, claim);
        seconds(5).await;
        assert!(server.get(claims, "n/data").is_some());
        server.remove(&PODS, "n/p");
        seconds(5).await;
        assert!(server.get(claims, "n/data").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_goes_when_it_is_bound_no_more() {
        let server = Server::default();
        let _guard = start(&server);
        let volumes = &PERSISTENTVOLUMES;
        server.put(
            volumes,
            json!({"metadata": {"name": "v", "finalizers": [VOLUME],
            "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Bound"}}),
        );
        seconds(5).await;
        let mut volume = server.get(volumes, "v").unwrap();
        volume["status"]["phase"] = json!("Released");
        server.put(volumes, volume);
        seconds(5).await;
        assert!(server.get(volumes, "v").is_none());
    }

    #[test]
    fn a_pods_own_claim_is_used_until_its_kubelet_is_done_with_it() {
        let claim: Claim = serde_json::from_value(json!({"metadata": {"name": "p-v", "namespace": "n",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]}}))
        .unwrap();
        let is_used = |deletion: Value, phase: &str| {
            let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
                "spec": {"nodeName": "w", "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]},
                "status": {"phase": phase}});
            for (key, value) in deletion.as_object().into_iter().flatten() {
                pod["metadata"][key] = value.clone();
            }
            uses(&serde_json::from_value(pod).unwrap(), &claim)
        };
        let deletion = |grace: i64| json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace});
        assert!(is_used(json!({}), "Running"));
        assert!(is_used(json!({}), "Succeeded"));
        assert!(is_used(deletion(30), "Running"));
        assert!(!is_used(deletion(0), "Running"));
    }
}
