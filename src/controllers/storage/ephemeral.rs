//! ephemeral-volume-controller: makes the claims of pods' generic ephemeral volumes (KEP-1698).

use std::sync::Arc;

use api::r::{PERSISTENTVOLUMECLAIMS, PODS};
use apimachinery::{Value, meta::join_key};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use super::view::Claim;
use crate::{Context, Controller, context::synced, objects::Pod};

/// Pods looked at at a time (`--concurrent-ephemeralvolume-syncs`).
const WORKERS: usize = 5;

pub struct EphemeralVolumes;

#[async_trait]
impl Controller for EphemeralVolumes {
    fn name(&self) -> &'static str {
        "ephemeral-volume-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["ephemeral-volume"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let claims: Informer<Claim> =
            informers.informer(&PERSISTENTVOLUMECLAIMS, "", Selectors::default());
        let pods: Informer<Pod> = informers.informer(&PODS, "", Selectors::default());
        if !synced!(context, claims, pods) {
            return;
        }
        let recorder = context.recorder("ephemeral_volume");
        let queue = Queue::default();
        let keys = queue.clone();
        pods.add_handler(move |change| {
            let wants = |pod: &Arc<Pod>| {
                pod.is_active() && pod.spec.volumes.iter().any(|volume| volume.is_ephemeral())
            };
            if change.new.as_ref().is_some_and(wants) {
                keys.add(change.key.to_string());
            }
        });
        let keys = queue.clone();
        claims.add_handler(move |change| {
            let owner = change
                .old
                .as_ref()
                .and_then(|old| old.metadata.controller());
            if change.is_deleted()
                && let Some(owner) = owner.filter(|owner| owner.kind == "Pod")
            {
                keys.add(join_key(&change.object().metadata.namespace, &owner.name));
            }
        });
        workqueue::run(
            "ephemeral-volume",
            &queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let (context, claims, pods, recorder) = (&context, &claims, &pods, &recorder);
                async move {
                    let Some(pod) = pods.get(&key).filter(|pod| pod.is_active()) else {
                        return Ok::<_, Unmade>(Requeue::No);
                    };
                    sync(context, recorder, claims, &pod).await?;
                    Ok(Requeue::No)
                }
            },
        )
        .await;
    }
}

/// Why a volume has no claim.
#[derive(Debug, thiserror::Error)]
enum Unmade {
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("create PVC {claim}: {source}")]
    Create { claim: String, source: ClientError },
}

/// Makes the claims that are missing, one after the other; the first that cannot be is told of.
async fn sync(
    context: &Context,
    recorder: &Recorder,
    claims: &Informer<Claim>,
    pod: &Pod,
) -> Result<(), Unmade> {
    let volumes = pod.spec.volumes.iter();
    for volume in volumes.filter(|volume| volume.is_ephemeral()) {
        let Some(name) = volume.claim(pod) else {
            continue;
        };
        let claim = claims.get(&join_key(&pod.metadata.namespace, &name));
        let made = match claim {
            Some(claim) => owned(pod, &claim),
            None => {
                create(
                    context,
                    pod,
                    &name,
                    &volume.ephemeral["volumeClaimTemplate"],
                )
                .await
            }
        };
        if let Err(error) = made {
            let meta = &pod.metadata;
            let version = &meta.resource_version;
            let object = ObjectReference::pod(&meta.namespace, &meta.name, &meta.uid, version);
            let message = format!("ephemeral volume {}: {error}", volume.name);
            recorder.event(&object, EventKind::Warning, "FailedBinding", message);
            return Err(error);
        }
    }
    Ok(())
}

/// Whether the claim is the pod's own (ephemeral.VolumeIsForPod): one that somebody else made of that name is not used.
fn owned(pod: &Pod, claim: &Claim) -> Result<(), Unmade> {
    let owner = claim.metadata.controller();
    if owner.is_some_and(|owner| owner.uid == pod.metadata.uid) {
        return Ok(());
    }
    Err(Unmade::NotOwner {
        claim: claim.metadata.key(),
        pod: pod.metadata.key(),
    })
}

async fn create(context: &Context, pod: &Pod, name: &str, template: &Value) -> Result<(), Unmade> {
    let meta = &pod.metadata;
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name, "namespace": meta.namespace,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    });
    for field in ["labels", "annotations"] {
        if template["metadata"][field].is_object() {
            claim["metadata"][field] = template["metadata"][field].clone();
        }
    }
    let options = WriteOptions::default();
    let resource = &PERSISTENTVOLUMECLAIMS;
    let created = context
        .client
        .create::<_, Value>(resource, &meta.namespace, &claim, &options)
        .await;
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() || error.is_namespace_terminating() => Ok(()),
        Err(source) => Err(Unmade::Create {
            claim: name.to_string(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    #[tokio::test(start_paused = true)]
    async fn a_pods_ephemeral_volume_gets_a_claim_that_goes_with_the_pod() {
        let server = Server::default();
        let config = crate::ControllersConfig {
            controllers: vec!["ephemeral-volume-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        server.put(&PODS, json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"volumes": [
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}}},
            {"name": "other", "emptyDir": {}}]}}));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let claims = server.list(&PERSISTENTVOLUMECLAIMS);
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0]["metadata"]["name"], "p-scratch");
        assert_eq!(claims[0]["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(claims[0]["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(claims[0]["spec"], json!({"x": 1}));
        server.remove(&PERSISTENTVOLUMECLAIMS, "n/p-scratch");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(server.list(&PERSISTENTVOLUMECLAIMS).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_that_name_that_is_not_the_pods_own_is_told_of() {
        let server = Server::default();
        let _guard = crate::testing::start(&server, &["ephemeral-volume"]);
        server.put(
            &PERSISTENTVOLUMECLAIMS,
            json!({"metadata": {"name": "p-scratch", "namespace": "n"}}),
        );
        server.put(
            &PODS,
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"volumes": [
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"x": 1}}}}]}}),
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
        let event = &server.list(&api::r::EVENTS)[0];
        assert_eq!(event["reason"], "FailedBinding");
        assert_eq!(
            event["message"],
            "ephemeral volume scratch: PVC n/p-scratch was not created for pod n/p (pod is not owner)"
        );
    }
}
