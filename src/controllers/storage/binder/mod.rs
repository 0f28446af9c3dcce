//! persistentvolume-binder-controller: binds claims to volumes, and settles what becomes of volumes whose claim is
//! gone.
//!
//! `claim` and `volume` plan one write each; the change it makes brings the next. A write is done on what the server
//! has, not on the cache, and gives up if that is not what it was planned for: two claims never get one volume.

mod claim;
mod volume;

use std::{sync::Arc, time::Duration};

use api::{
    r::{PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS, STORAGECLASSES},
    view::ObjectMeta,
};
use apimachinery::{Value, meta::join_key};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use super::{
    protection::{BY_CLAIM, pods_by_claim},
    view::{Claim, StorageClass, Volume},
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::Pod,
    workloads::ledger::Ledger,
    writes::{modify, modify_status},
};

const WORKERS: usize = 5;
/// Index of volumes by the claim they are of (`namespace/name`), and by class.
const OF_CLAIM: &str = "of-claim";
const BY_CLASS: &str = "class";
/// Index of claims by class, as long as they are not bound.
const UNBOUND: &str = "unbound";
/// Index of claims by their volume.
const BY_VOLUME: &str = "volume";

pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub struct Binder;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Claim(String),
    Volume(String),
}

struct Observed {
    claims: Informer<Claim>,
    volumes: Informer<Volume>,
    classes: Informer<StorageClass>,
    pods: Informer<Pod>,
    client: client::Client,
    recorder: Recorder,
    written_claims: Ledger,
    written_volumes: Ledger,
}

#[async_trait]
impl Controller for Binder {
    fn name(&self) -> &'static str {
        "persistentvolume-binder-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["persistentvolume-binder"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let all = Selectors::default;
        let observed = Arc::new(Observed {
            claims: informers.informer(&PERSISTENTVOLUMECLAIMS, "", all()),
            volumes: informers.informer(&PERSISTENTVOLUMES, "", all()),
            classes: informers.informer(&STORAGECLASSES, "", all()),
            pods: informers.informer(&PODS, "", all()),
            client: context.client.clone(),
            recorder: context.recorder("persistentvolume-controller"),
            written_claims: Ledger::default(),
            written_volumes: Ledger::default(),
        });
        let Observed {
            claims,
            volumes,
            classes,
            pods,
            ..
        } = &*observed;
        pods.add_index(BY_CLAIM, pods_by_claim);
        volumes.add_index(OF_CLAIM, |volume| {
            let reference = volume.spec.claim_ref.iter();
            reference
                .map(|one| join_key(&one.namespace, &one.name))
                .collect()
        });
        volumes.add_index(BY_CLASS, |volume| vec![volume.class().to_string()]);
        claims.add_index(UNBOUND, |claim| {
            let bound = claim.metadata.annotations.contains_key(BIND_COMPLETED);
            if bound {
                Vec::new()
            } else {
                vec![claim.class().to_string()]
            }
        });
        claims.add_index(BY_VOLUME, |claim| {
            let name = &claim.spec.volume_name;
            if name.is_empty() {
                Vec::new()
            } else {
                vec![name.clone()]
            }
        });
        if !synced!(context, claims, volumes, classes, pods) {
            return;
        }
        let queue = Queue::default();
        observed.feed(&queue);
        workqueue::run(
            "persistentvolume-binder",
            &queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let observed = &observed;
                async move {
                    match key {
                        Key::Claim(key) => observed.sync_claim(&key).await,
                        Key::Volume(name) => observed.sync_volume(&name).await,
                    }
                }
            },
        )
        .await;
    }
}

impl Observed {
    fn feed(self: &Arc<Self>, queue: &Queue<Key>) {
        let (keys, to) = (queue.clone(), self.clone());
        self.claims.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(Key::Claim(change.key.to_string()));
            }
            let volume = &change.object().spec.volume_name;
            if !volume.is_empty() {
                keys.add(Key::Volume(volume.clone()));
            }
            for volume in to.volumes.by_index(OF_CLAIM, &change.key) {
                keys.add(Key::Volume(volume.metadata.name.clone()));
            }
        });
        let (keys, to) = (queue.clone(), self.clone());
        self.volumes.add_handler(move |change| {
            let volume = change.object();
            if change.new.is_some() {
                keys.add(Key::Volume(change.key.to_string()));
            }
            if let Some(reference) = &volume.spec.claim_ref {
                keys.add(Key::Claim(join_key(&reference.namespace, &reference.name)));
            } else if change.new.is_some() {
                for claim in to.claims.by_index(UNBOUND, volume.class()) {
                    keys.add(Key::Claim(claim.metadata.key()));
                }
            }
            for claim in to.claims.by_index(BY_VOLUME, &change.key) {
                keys.add(Key::Claim(claim.metadata.key()));
            }
        });
        let (keys, to) = (queue.clone(), self.clone());
        self.classes.add_handler(move |change| {
            let Some(class) = &change.new else { return };
            let waiting = to.claims.by_index(UNBOUND, &class.metadata.name);
            let without = class.is_default().then(|| to.claims.by_index(UNBOUND, ""));
            for claim in waiting.iter().chain(without.iter().flatten()) {
                keys.add(Key::Claim(claim.metadata.key()));
            }
        });
    }

    async fn sync_claim(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(claim) = self.claims.get(key) else {
            self.written_claims.forget(key);
            return Ok(Requeue::No);
        };
        if !self.written_claims.is_seen(key, &self.claims) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let meta = &claim.metadata;
        let mut candidates = self.volumes.by_index(BY_CLASS, claim.class());
        candidates.extend(self.volumes.by_index(OF_CLAIM, key));
        let pods = self.pods.by_index(BY_CLAIM, key);
        let default = default_class(&self.classes.list());
        let (steps, events) = claim::plan(&claim::Observed {
            claim: &claim,
            volume: self.volumes.get(&claim.spec.volume_name).as_deref(),
            candidates: &candidates,
            class: self.classes.get(claim.class()).as_deref(),
            default_class: default.as_deref(),
            waiting_pod: pods
                .iter()
                .find(|pod| pod.is_active())
                .map(|pod| pod.metadata.name.as_str()),
        });
        let object = reference("PersistentVolumeClaim", meta);
        for (kind, reason, message) in events {
            self.recorder.event(&object, kind, reason, message);
        }
        let mut again = Requeue::No;
        for step in steps {
            if let claim::Step::TakeVolume(name) = &step {
                // Another claim was faster: there may be another volume.
                if !self.take(&claim, name).await? {
                    again = Requeue::After(LAG_RETRY);
                }
            } else {
                self.carry_out(&claim, step).await?;
            }
        }
        Ok(again)
    }

    async fn carry_out(&self, claim: &Claim, step: claim::Step) -> Result<(), ClientError> {
        let meta = &claim.metadata;
        let (client, resource) = (&self.client, &PERSISTENTVOLUMECLAIMS);
        let written = match step {
            claim::Step::TakeVolume(_) => None,
            claim::Step::SetVolume(name) => {
                modify(client, resource, meta, |claim| {
                    claim::set_volume(claim, &name)
                })
                .await?
            }
            claim::Step::SetClass(class) => {
                modify(client, resource, meta, |claim| {
                    if claim["spec"]["storageClassName"].is_null() {
                        claim["spec"]["storageClassName"] = json!(class);
                    }
                })
                .await?
            }
            claim::Step::Provision(provisioner) => {
                modify(client, resource, meta, |claim| {
                    for key in [PROVISIONER, OLD_PROVISIONER] {
                        apimachinery::meta::set_annotation(claim, key, &provisioner);
                    }
                })
                .await?
            }
            claim::Step::Status(status) => {
                modify_status(client, resource, meta, |claim| {
                    for (field, value) in status.as_object().into_iter().flatten() {
                        claim["status"][field] = value.clone();
                    }
                })
                .await?
            }
        };
        if let Some(version) = written {
            self.written_claims.wrote(&meta.key(), &version);
        }
        Ok(())
    }

    /// Makes a volume this claim's, unless it is another's by now; whether it was done.
    async fn take(&self, claim: &Claim, name: &str) -> Result<bool, ClientError> {
        let Some(volume) = self.volumes.get(name) else {
            return Ok(false);
        };
        let resource = &PERSISTENTVOLUMES;
        let written = modify(&self.client, resource, &volume.metadata, |volume| {
            volume::set_claim(volume, claim);
        })
        .await?;
        let Some(version) = written else {
            return Ok(false);
        };
        self.written_volumes.wrote(name, &version);
        Ok(true)
    }

    async fn sync_volume(&self, name: &str) -> Result<Requeue, ClientError> {
        let Some(volume) = self.volumes.get(name) else {
            self.written_volumes.forget(name);
            return Ok(Requeue::No);
        };
        if !self.written_volumes.is_seen(name, &self.volumes) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let claim = volume.spec.claim_ref.as_ref().and_then(|reference| {
            self.claims
                .get(&join_key(&reference.namespace, &reference.name))
        });
        let (step, event) = volume::plan(&volume, claim.as_deref());
        let object = reference("PersistentVolume", &volume.metadata);
        if let Some((reason, message)) = event {
            self.recorder
                .event(&object, EventKind::Warning, reason, message);
        }
        let (client, resource, meta) = (&self.client, &PERSISTENTVOLUMES, &volume.metadata);
        let written = match step {
            volume::Step::Nothing => None,
            volume::Step::Phase { phase, .. }
                if phase == "Released" && self.claim_lives(&volume).await? =>
            {
                // The cache of claims is behind.
                return Ok(Requeue::After(Duration::from_secs(1)));
            }
            volume::Step::Phase {
                phase,
                reason,
                message,
            } => {
                modify_status(client, resource, meta, |volume| {
                    volume["status"]["phase"] = json!(phase);
                    for (field, value) in [("reason", reason), ("message", message.as_str())] {
                        if let Some(status) = volume["status"].as_object_mut() {
                            status.remove(field);
                            if !value.is_empty() {
                                status.insert(field.into(), json!(value));
                            }
                        }
                    }
                })
                .await?
            }
            volume::Step::Release => modify(client, resource, meta, volume::release).await?,
        };
        if let Some(version) = written {
            self.written_volumes.wrote(name, &version);
        }
        Ok(Requeue::No)
    }

    /// Whether the volume's claim is there, asked of the server: a volume is not given up because a cache is behind.
    async fn claim_lives(&self, volume: &Volume) -> Result<bool, ClientError> {
        let Some(reference) = &volume.spec.claim_ref else {
            return Ok(false);
        };
        let resource = &PERSISTENTVOLUMECLAIMS;
        let found = self
            .client
            .get::<Claim>(resource, &reference.namespace, &reference.name);
        match found.await {
            Ok(claim) => Ok(claim.metadata.uid == reference.uid),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The class of claims that name none: of several, the newest.
fn default_class(classes: &[Arc<StorageClass>]) -> Option<Arc<StorageClass>> {
    let defaults = classes.iter().filter(|class| class.is_default());
    let newest = defaults.max_by_key(|class| {
        let meta = &class.metadata;
        (
            meta.creation_timestamp.clone(),
            std::cmp::Reverse(meta.name.clone()),
        )
    });
    newest.cloned()
}

fn reference(kind: &str, meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: String::new(),
    }
}

/// Sets an annotation to `yes`.
fn mark(object: &mut Value, annotation: &str) {
    apimachinery::meta::set_annotation(object, annotation, "yes");
}

#[cfg(test)]
mod tests;
