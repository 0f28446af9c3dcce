//! Pods of a controller: which are its own, making new ones from a template, deleting.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{
    r::PODS,
    view::{ObjectMeta, OwnerReference},
};
use apimachinery::{Value, selector::LabelSelector, time::Time};
use client::{
    Client, ClientError, DeleteOptions, Delta, Informer, Patch, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
};
use futures::future::join_all;
use serde_json::json;
use tokio::sync::Semaphore;

use super::ledger::Ledger;
use crate::{
    Context,
    context::gather,
    objects::{Metadata, Pod},
};

/// Pods made or deleted in one go (BurstReplicas).
pub const BURST: usize = 500;
/// Requests of one kind of controller under way at a time, so that a server answers others in between.
const CONCURRENCY: usize = 32;
/// Index of pods by the uid of their controller, or by `orphan/<namespace>`.
pub const BY_CONTROLLER: &str = "controller";

/// The index value of `BY_CONTROLLER`.
pub fn by_controller(pod: &Pod) -> Vec<String> {
    vec![match pod.metadata.controller() {
        Some(owner) => owner.uid.clone(),
        None => format!("orphan/{}", pod.metadata.namespace),
    }]
}

/// A kind of controller of pods.
pub struct Kind {
    pub resource: &'static api::Resource,
    pub api_version: &'static str,
    /// What its pods have until it lets them go.
    pub finalizer: Option<&'static str>,
}

impl Kind {
    pub fn reference(&self, meta: &ObjectMeta) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version.into(),
            kind: self.resource.kind.into(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    pub fn object(&self, meta: &ObjectMeta) -> ObjectReference {
        ObjectReference {
            api_version: self.api_version.into(),
            kind: self.resource.kind.into(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: String::new(),
        }
    }

    /// Whether an owner is of this kind, in whichever version.
    pub fn owns(&self, owner: &OwnerReference) -> bool {
        let (group, _) = apimachinery::meta::group_version(&owner.api_version);
        owner.kind == self.resource.kind && group == self.resource.group
    }

    /// The keys of the owners of this kind that a change concerns.
    pub fn owners_in(&self, sides: [Option<&ObjectMeta>; 2]) -> Vec<String> {
        let owner = |meta: &ObjectMeta| {
            let owner = meta.controller().filter(|owner| self.owns(owner))?;
            Some(apimachinery::meta::join_key(&meta.namespace, &owner.name))
        };
        let mut keys: Vec<String> = sides.into_iter().flatten().filter_map(owner).collect();
        keys.dedup();
        keys
    }
}

/// Both sides' metadata of a pod's change.
pub fn sides(change: &Delta<Pod>) -> [Option<&ObjectMeta>; 2] {
    [
        change.old.as_ref().map(|pod| &pod.metadata),
        change.new.as_ref().map(|pod| &pod.metadata),
    ]
}

/// What makes and deletes the pods of one kind of controller.
pub struct PodControl {
    pub client: Client,
    pub recorder: Recorder,
    pub kind: Kind,
    pub ledger: Ledger,
    pub pods: Informer<Pod>,
    /// `CONCURRENCY` of them; never closed.
    slots: Semaphore,
}

impl PodControl {
    /// Events come from `component`. Pods can be found by their controller from here on.
    pub fn new(context: &Context, component: &str, kind: Kind, pods: &Informer<Pod>) -> Self {
        pods.add_index(BY_CONTROLLER, by_controller);
        Self {
            client: context.client.clone(),
            recorder: context.recorder(component),
            kind,
            ledger: Ledger::default(),
            pods: pods.clone(),
            slots: Semaphore::new(CONCURRENCY),
        }
    }

    /// Whether the cache shows all that was written for the object with this key, lost answers included.
    pub async fn has_seen(&self, key: &str) -> Result<bool, ClientError> {
        self.ledger.settle(key, &self.client, &PODS).await?;
        Ok(self.ledger.is_seen(key, &self.pods))
    }

    /// How long to gather changes of the pods of the changed one's owner, all of which a reconcile looks at.
    pub fn gather(&self, change: &Delta<Pod>) -> Duration {
        let owner = change.object().metadata.controller();
        gather(owner.map_or(0, |owner| {
            self.pods.count_by_index(BY_CONTROLLER, &owner.uid)
        }))
    }

    /// The controller's pods: those it owns and its selector matches. Owned ones it no longer matches are released,
    /// matching ones without a controller are adopted (PodControllerRefManager).
    pub async fn claim(
        &self,
        meta: &ObjectMeta,
        selector: &LabelSelector,
        is_adoptable: impl Fn(&Pod) -> bool,
    ) -> Result<Vec<Arc<Pod>>, ClientError> {
        let key = meta.key();
        let mut claimed = Vec::new();
        for pod in self.pods.by_index(BY_CONTROLLER, &meta.uid) {
            if selector.matches(&pod.metadata.labels) {
                claimed.push(pod);
            } else if !pod.metadata.is_deleting() && !meta.is_deleting() {
                let release = |owners: &mut Vec<OwnerReference>| {
                    owners.retain(|owner| owner.uid != meta.uid);
                };
                self.set_owners(&key, &pod, release).await?;
            }
        }
        let mut orphans = self
            .pods
            .by_index(BY_CONTROLLER, &format!("orphan/{}", meta.namespace));
        orphans.retain(|pod| {
            let meta = &pod.metadata;
            !meta.is_deleting() && selector.matches(&meta.labels) && is_adoptable(pod)
        });
        if meta.is_deleting()
            || orphans.is_empty()
            || !is_still_there(&self.client, &self.kind, meta).await?
        {
            return Ok(claimed);
        }
        for pod in orphans {
            let reference = self.kind.reference(meta);
            let adopted = self.set_owners(&key, &pod, |owners| owners.push(reference));
            if adopted.await? {
                claimed.push(pod);
            }
        }
        Ok(claimed)
    }

    /// Changes a pod's owners; false if the pod is gone or another one.
    async fn set_owners(
        &self,
        key: &str,
        pod: &Pod,
        change: impl FnOnce(&mut Vec<OwnerReference>),
    ) -> Result<bool, ClientError> {
        let meta = &pod.metadata;
        let mut owners = meta.owner_references.clone();
        change(&mut owners);
        let mut patch = json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners,
        }});
        if let Some(finalizer) = self.kind.finalizer {
            let mut finalizers = meta.finalizers.clone();
            finalizers.retain(|one| one != finalizer);
            if owners.len() > meta.owner_references.len() {
                finalizers.push(finalizer.into());
            }
            patch["metadata"]["finalizers"] = json!(finalizers);
        }
        let patch = Patch::Merge(patch);
        let options = WriteOptions::default();
        let patched = self
            .client
            .patch::<Metadata>(&PODS, &meta.namespace, &meta.name, "", &patch, &options)
            .await;
        match patched {
            Ok(stored) => {
                self.ledger.wrote(key, &stored.metadata.resource_version);
                Ok(true)
            }
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes `count` pods, first one, then twice as many each time, so that a refusal is met once and not `count`
    /// times (slowStartBatch). Returns how many were made, and the first error.
    pub async fn create(
        &self,
        meta: &ObjectMeta,
        pods: Vec<Value>,
    ) -> (usize, Option<ClientError>) {
        let key = meta.key();
        let mut pods = pods.into_iter().take(BURST);
        let mut batch = 1;
        let mut made = 0;
        loop {
            let now: Vec<Value> = pods.by_ref().take(batch).collect();
            if now.is_empty() {
                return (made, None);
            }
            let results = join_all(now.iter().map(|pod| self.create_one(meta, &key, pod))).await;
            made += results.iter().filter(|result| result.is_ok()).count();
            if let Some(error) = results.into_iter().find_map(Result::err) {
                return (made, Some(error));
            }
            batch *= 2;
        }
    }

    async fn create_one(
        &self,
        meta: &ObjectMeta,
        key: &str,
        pod: &Value,
    ) -> Result<(), ClientError> {
        let object = self.kind.object(meta);
        let options = WriteOptions::default();
        let _slot = self.slots.acquire().await;
        match self
            .client
            .create::<_, Pod>(&PODS, &meta.namespace, pod, &options)
            .await
        {
            Ok(stored) => {
                self.ledger.wrote(key, &stored.metadata.resource_version);
                let message = format!("Created pod: {}", stored.metadata.name);
                self.recorder
                    .event(&object, EventKind::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                self.ledger.failed(key, &error);
                if !error.is_namespace_terminating() {
                    let message = format!("Error creating: {error}");
                    self.recorder
                        .event(&object, EventKind::Warning, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    /// Deletes pods, all at once; the first error, if any.
    pub async fn delete(&self, meta: &ObjectMeta, pods: &[Arc<Pod>]) -> Result<(), ClientError> {
        let key = meta.key();
        let deletions = pods
            .iter()
            .take(BURST)
            .map(|pod| self.delete_one(meta, &key, pod));
        join_all(deletions).await.into_iter().collect()
    }

    async fn delete_one(&self, meta: &ObjectMeta, key: &str, pod: &Pod) -> Result<(), ClientError> {
        let object = self.kind.object(meta);
        let options = DeleteOptions::uid(&pod.metadata.uid);
        let name = &pod.metadata.name;
        let _slot = self.slots.acquire().await;
        match self
            .client
            .delete(&PODS, &pod.metadata.namespace, name, &options)
            .await
        {
            Ok(_) => {
                self.ledger.deleted(key, &pod.metadata.uid);
                let message = format!("Deleted pod: {name}");
                self.recorder
                    .event(&object, EventKind::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                let message = format!("Error deleting: {error}");
                self.recorder
                    .event(&object, EventKind::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// The pods without those already deleted, though the cache may not show it.
    pub fn without_deleted(&self, key: &str, pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let stale: HashMap<&str, bool> = pods
            .iter()
            .map(|pod| (pod.metadata.uid.as_str(), !pod.metadata.is_deleting()))
            .collect();
        self.ledger
            .prune(key, |uid| stale.get(uid).copied().unwrap_or(false));
        pods.iter()
            .filter(|pod| !self.ledger.is_deleted(key, &pod.metadata.uid))
            .cloned()
            .collect()
    }
}

/// Whether the owner is there and not being deleted, asked of the server itself before anything is adopted
/// (RecheckDeletionTimestamp): a cache that is behind must not give pods to what is gone.
pub async fn is_still_there(
    client: &Client,
    kind: &Kind,
    meta: &ObjectMeta,
) -> Result<bool, ClientError> {
    let fresh = client.get::<Metadata>(kind.resource, &meta.namespace, &meta.name);
    match fresh.await {
        Ok(fresh) => Ok(fresh.metadata.uid == meta.uid && !fresh.metadata.is_deleting()),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A pod made from a template, owned by the controller.
pub fn from_template(template: &Value, meta: &ObjectMeta, owner: &OwnerReference) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": format!("{}-", meta.name), "namespace": meta.namespace, "ownerReferences": [owner]},
        "spec": template["spec"],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if !template["metadata"][field].is_null() {
            pod["metadata"][field] = template["metadata"][field].clone();
        }
    }
    pod
}

/// Sorts pods so that those to be deleted first come first (ActivePodsWithRanks): without a node, pending, not ready,
/// cheaper by annotation, on a node with more of `related` pods, ready for a shorter time, restarted more often,
/// younger. Ages count by their order of magnitude (KEP-2185), so that not always the newest go.
pub fn sort_for_deletion(pods: &mut [Arc<Pod>], related: &[Arc<Pod>], now: Time) {
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related {
        *on_node.entry(pod.spec.node_name.as_str()).or_default() += 1;
    }
    let cost = |pod: &Pod| {
        let text = pod
            .metadata
            .annotations
            .get("controller.kubernetes.io/pod-deletion-cost");
        text.and_then(|text| text.parse::<i32>().ok()).unwrap_or(0)
    };
    let phase = |pod: &Pod| match pod.status.phase.as_str() {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    let magnitude = |since: Option<Time>| {
        let age = since.map_or(0, |since| (now - since).whole_nanoseconds());
        u128::try_from(age).unwrap_or(0).checked_ilog2()
    };
    let created = |pod: &Pod| {
        let text = pod.metadata.creation_timestamp.as_deref();
        text.and_then(apimachinery::time::parse)
    };
    pods.sort_by_cached_key(|pod| {
        let crowd = on_node.get(pod.spec.node_name.as_str()).copied();
        (
            !pod.spec.node_name.is_empty(),
            phase(pod),
            pod.is_ready(),
            cost(pod),
            std::cmp::Reverse(crowd.unwrap_or(0)),
            magnitude(pod.available_at(0)),
            std::cmp::Reverse(pod.restarts()),
            magnitude(created(pod)),
            pod.metadata.uid.clone(),
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, phase: &str, ready: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": name}, "spec": {"nodeName": node},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn the_least_useful_pods_go_first() {
        let mut pods = vec![
            pod("alone", "b", "Running", "True"),
            pod("ready", "a", "Running", "True"),
            pod("unready", "a", "Running", "False"),
            pod("pending", "a", "Pending", "False"),
            pod("unassigned", "", "Pending", "False"),
        ];
        let related = pods.clone();
        sort_for_deletion(&mut pods, &related, apimachinery::time::now());
        let names: Vec<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        assert_eq!(
            names,
            ["unassigned", "pending", "unready", "ready", "alone"]
        );
    }

    #[test]
    fn a_pod_takes_over_the_templates_metadata_and_spec() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}});
        let meta = ObjectMeta {
            name: "rs".into(),
            namespace: "n".into(),
            ..ObjectMeta::default()
        };
        let pod = from_template(&template, &meta, &OwnerReference::default());
        assert_eq!(pod["metadata"]["generateName"], "rs-");
        assert_eq!(pod["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(pod["spec"], json!({"containers": []}));
    }
}
