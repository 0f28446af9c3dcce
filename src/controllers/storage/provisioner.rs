//! local-volume-provisioner: makes volumes of the classes whose provisioner is `skiff.io/node-local`: a folder on the
//! node the scheduler chose for the first pod that uses the claim.
//!
//! The kubelet makes the folder when the pod starts. When a claim is deleted its volume goes too, the folder stays on
//! the node until that goes: nothing runs there that could remove it.

use std::sync::Arc;

use api::{
    r::{NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES},
    view::ObjectMeta,
};
use apimachinery::Value;
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use super::{
    binder::{BIND_COMPLETED, OLD_PROVISIONER, PROVISIONED_BY, PROVISIONER, SELECTED_NODE},
    view::{Claim, StorageClass, Volume},
};
use crate::{Context, Controller, context::synced, objects::Node};

/// The provisioner's name, as storage classes have it.
pub const NAME: &str = "skiff.io/node-local";
/// Where the folders are.
const ROOT: &str = "/var/lib/skiff/volumes";
const HOSTNAME: &str = "kubernetes.io/hostname";
const WORKERS: usize = 2;

pub struct LocalProvisioner;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Claim(String),
    Volume(String),
}

struct Provisioner {
    claims: Informer<Claim>,
    volumes: Informer<Volume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    client: client::Client,
    recorder: Recorder,
}

#[async_trait]
impl Controller for LocalProvisioner {
    fn name(&self) -> &'static str {
        "local-volume-provisioner"
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let all = Selectors::default;
        let provisioner = Provisioner {
            claims: informers.informer(&PERSISTENTVOLUMECLAIMS, "", all()),
            volumes: informers.informer(&PERSISTENTVOLUMES, "", all()),
            classes: informers.informer(&STORAGECLASSES, "", all()),
            nodes: informers.informer(&NODES, "", all()),
            client: context.client.clone(),
            recorder: context.recorder(NAME),
        };
        let Provisioner {
            claims,
            volumes,
            classes,
            nodes,
            ..
        } = &provisioner;
        if !synced!(context, claims, volumes, classes, nodes) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        claims.add_handler(move |change| {
            if change.new.as_ref().is_some_and(|claim| is_wanted(claim)) {
                keys.add(Key::Claim(change.key.to_string()));
            }
        });
        let keys = queue.clone();
        volumes.add_handler(move |change| {
            if change
                .new
                .as_ref()
                .is_some_and(|volume| is_left_over(volume))
            {
                keys.add(Key::Volume(change.key.to_string()));
            }
        });
        workqueue::run(
            "local-volume-provisioner",
            &queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let provisioner = &provisioner;
                async move {
                    match key {
                        Key::Claim(key) => provisioner.provision(&key).await,
                        Key::Volume(name) => provisioner.delete(&name).await,
                    }
                }
            },
        )
        .await;
    }
}

/// Whether the claim waits for a volume of this provisioner, and it is known where.
fn is_wanted(claim: &Claim) -> bool {
    let annotations = &claim.metadata.annotations;
    let asked = annotations
        .get(PROVISIONER)
        .or_else(|| annotations.get(OLD_PROVISIONER));
    asked.is_some_and(|name| name == NAME)
        && claim.spec.volume_name.is_empty()
        && !annotations.contains_key(BIND_COMPLETED)
        && !claim.metadata.is_deleting()
}

/// Whether the volume was made here and its claim is gone.
fn is_left_over(volume: &Volume) -> bool {
    volume
        .metadata
        .annotations
        .get(PROVISIONED_BY)
        .is_some_and(|name| name == NAME)
        && volume.status.phase == "Released"
        && volume.spec.persistent_volume_reclaim_policy == "Delete"
        && !volume.metadata.is_deleting()
}

impl Provisioner {
    async fn provision(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(claim) = self.claims.get(key).filter(|claim| is_wanted(claim)) else {
            return Ok(Requeue::No);
        };
        let Some(class) = self
            .classes
            .get(claim.class())
            .filter(|class| class.provisioner == NAME)
        else {
            return Ok(Requeue::No);
        };
        let meta = &claim.metadata;
        let object = reference(meta);
        let selected = meta.annotations.get(SELECTED_NODE);
        let nodes = self.nodes.list();
        // A class that binds at once leaves the choice to chance: the first node there is.
        let node = match selected {
            Some(name) => nodes.iter().find(|node| node.metadata.name == *name),
            None if class.waits_for_consumer() => return Ok(Requeue::No),
            None => nodes.iter().find(|node| !node.spec.unschedulable),
        };
        let Some(node) = node else {
            let message = "failed to provision volume: there is no node for it";
            self.recorder
                .event(&object, EventKind::Warning, "ProvisioningFailed", message);
            return Ok(Requeue::No);
        };
        let volume = match volume_for(&claim, &class, node) {
            Ok(volume) => volume,
            Err(why) => {
                let message = format!(
                    "failed to provision volume with StorageClass {:?}: {why}",
                    class.metadata.name
                );
                self.recorder
                    .event(&object, EventKind::Warning, "ProvisioningFailed", message);
                return Ok(Requeue::No);
            }
        };
        let options = WriteOptions::default();
        let created = self
            .client
            .create::<_, Value>(&PERSISTENTVOLUMES, "", &volume, &options);
        match created.await {
            Ok(_) => {
                let message = format!(
                    "Successfully provisioned volume {}",
                    apimachinery::meta::name(&volume)
                );
                self.recorder
                    .event(&object, EventKind::Normal, "ProvisioningSucceeded", message);
                Ok(Requeue::No)
            }
            Err(error) if error.is_already_exists() => Ok(Requeue::No),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, name: &str) -> Result<Requeue, ClientError> {
        let Some(volume) = self.volumes.get(name).filter(|volume| is_left_over(volume)) else {
            return Ok(Requeue::No);
        };
        let options = DeleteOptions::uid(&volume.metadata.uid);
        match self
            .client
            .delete(&PERSISTENTVOLUMES, "", name, &options)
            .await
        {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(Requeue::No),
        }
    }
}

fn reference(meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "PersistentVolumeClaim".into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: String::new(),
    }
}

/// The volume for a claim on a node; its name is that of the claim's uid, so there is never a second one.
fn volume_for(
    claim: &Claim,
    class: &StorageClass,
    node: &Arc<Node>,
) -> Result<Value, &'static str> {
    if claim.mode() != "Filesystem" {
        return Err("only volumes with a file system are supported");
    }
    if claim
        .spec
        .access_modes
        .iter()
        .any(|mode| !mode.starts_with("ReadWriteOnce"))
    {
        return Err("only the access modes ReadWriteOnce and ReadWriteOncePod are supported");
    }
    if !claim.spec.selector.is_null() {
        return Err("claim.Spec.Selector is not supported");
    }
    let meta = &claim.metadata;
    let name = format!("pvc-{}", meta.uid);
    let host = node
        .metadata
        .labels
        .get(HOSTNAME)
        .unwrap_or(&node.metadata.name);
    let path = format!("{ROOT}/{name}_{}_{}", meta.namespace, meta.name);
    Ok(json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: NAME}},
        "spec": {
            "capacity": {"storage": claim.spec.resources.requests.get("storage")},
            "accessModes": claim.spec.access_modes,
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
                "uid": meta.uid, "resourceVersion": meta.resource_version,
            },
            "hostPath": {"path": path, "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [host]}]}]}},
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_bound_once_a_node_is_chosen_and_its_volume_goes_with_it() {
        let server = Server::default();
        let config = crate::ControllersConfig {
            controllers: vec![
                "persistentvolume-binder".into(),
                "local-volume-provisioner".into(),
            ],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        let (claims, volumes) = (&PERSISTENTVOLUMECLAIMS, &PERSISTENTVOLUMES);
        server.put(
            &NODES,
            json!({"metadata": {"name": "w", "labels": {HOSTNAME: "host"}}}),
        );
        server.put(
            &STORAGECLASSES,
            json!({"metadata": {"name": "standard", "annotations": {
            "storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": NAME,
            "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"}),
        );
        server.put(
            claims,
            json!({"metadata": {"name": "data", "namespace": "n"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
        let mut claim = server.get(claims, "n/data").unwrap();
        assert_eq!(claim["spec"]["storageClassName"], "standard");
        assert!(server.list(volumes).is_empty());
        // As the scheduler does.
        apimachinery::meta::set_annotation(&mut claim, SELECTED_NODE, "w");
        server.put(claims, claim);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let claim = server.get(claims, "n/data").unwrap();
        assert_eq!(claim["status"]["phase"], "Bound");
        let volume = server.list(volumes).remove(0);
        assert_eq!(volume["spec"]["hostPath"]["type"], "DirectoryOrCreate");
        let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchExpressions"][0]["values"], json!(["host"]));
        server.remove(claims, "n/data");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.list(volumes).is_empty());
    }
}
