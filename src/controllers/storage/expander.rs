//! persistentvolume-expander-controller: tells of a claim that asks for more that somebody else has to give it more.
//!
//! Every volume that can grow is a CSI driver's today, and the driver's own controller does it.

use api::r::{PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    events::{EventKind, ObjectReference},
    workqueue::{self, Queue, Requeue},
};

use super::view::{Claim, Volume};
use crate::{Context, Controller, context::synced};

pub struct Expander;

/// Whether the claim is bound and asks for more than it has.
fn wants_more(claim: &Claim, volume: Option<&Volume>) -> bool {
    let Some(volume) = volume else {
        return false;
    };
    let has = claim.capacity().or_else(|| volume.capacity());
    claim.status.phase == "Bound" && volume.is_bound_to(claim) && claim.request() > has
}

#[async_trait]
impl Controller for Expander {
    fn name(&self) -> &'static str {
        "persistentvolume-expander-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["persistentvolume-expander"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let all = Selectors::default;
        let claims: Informer<Claim> = informers.informer(&PERSISTENTVOLUMECLAIMS, "", all());
        let volumes: Informer<Volume> = informers.informer(&PERSISTENTVOLUMES, "", all());
        if !synced!(context, claims, volumes) {
            return;
        }
        let recorder = context.recorder("volume_expand");
        let queue = Queue::default();
        let keys = queue.clone();
        claims.add_handler(move |change| {
            let (Some(old), Some(new)) = (&change.old, &change.new) else {
                return;
            };
            if old.request() < new.request() {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run(
            "persistentvolume-expander",
            &queue,
            1,
            &context.shutdown,
            |key| {
                let (claims, volumes, recorder) = (&claims, &volumes, &recorder);
                async move {
                    let Some(claim) = claims.get(&key) else {
                        return Ok::<_, ClientError>(Requeue::No);
                    };
                    let volume = volumes.get(&claim.spec.volume_name);
                    if wants_more(&claim, volume.as_deref()) {
                        let meta = &claim.metadata;
                        let object = ObjectReference {
                            api_version: "v1".into(),
                            kind: "PersistentVolumeClaim".into(),
                            namespace: meta.namespace.clone(),
                            name: meta.name.clone(),
                            uid: meta.uid.clone(),
                            resource_version: meta.resource_version.clone(),
                            field_path: String::new(),
                        };
                        let message = "waiting for an external controller to expand this PVC";
                        recorder.event(&object, EventKind::Normal, "ExternalExpanding", message);
                    }
                    Ok(Requeue::No)
                }
            },
        )
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bound_claim_that_asks_for_more_than_it_has_waits_for_its_driver() {
        let claim = |request: &str, has: &str| -> Claim {
            serde_json::from_value(json!({
                "metadata": {"name": "c", "namespace": "n", "uid": "u"},
                "spec": {"resources": {"requests": {"storage": request}}, "volumeName": "v"},
                "status": {"phase": "Bound", "capacity": {"storage": has}},
            }))
            .unwrap()
        };
        let volume: Volume = serde_json::from_value(json!({
            "metadata": {"name": "v"}, "spec": {"claimRef": {"name": "c", "namespace": "n", "uid": "u"}},
        }))
        .unwrap();
        assert!(wants_more(&claim("2Gi", "1Gi"), Some(&volume)));
        assert!(!wants_more(&claim("1Gi", "1Gi"), Some(&volume)));
        assert!(!wants_more(&claim("2Gi", "1Gi"), None));
    }
}
