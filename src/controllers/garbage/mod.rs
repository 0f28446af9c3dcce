//! garbage-collector-controller: deletes what no owner is left of, and carries out foreground and orphaning deletions.
//!
//! `follow` keeps a metadata-only informer for every resource that can be listed, watched and deleted, custom kinds
//! too; they feed `graph`, which decides.
//! Before an object goes, the server itself is asked about owners that are not in the graph.

mod follow;
mod graph;

use std::{collections::HashMap, sync::Arc, time::Instant};

use api::view::OwnerReference;
use apimachinery::{Value, meta::join_group_version};
use async_trait::async_trait;
use client::{
    Client, ClientError, DeleteOptions, Patch, Propagation, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::{Context, Controller, objects::Metadata};
use graph::{Action, Graph, Object};

const NAME: &str = "garbage-collector-controller";
/// Objects looked at at a time (`--concurrent-gc-syncs`).
const WORKERS: usize = 20;
/// Absent owners remembered, as upstream's absentOwnerCache.
const MAX_ABSENT: usize = 500;

pub struct GarbageCollector;

struct Collector {
    client: Client,
    graph: Mutex<Graph>,
    queue: Queue<String>,
    /// Owners that the server said are not there, and when: the namespace that was asked, and the uid.
    absent: Mutex<HashMap<(String, String), Instant>>,
    recorder: Recorder,
    /// The followed resource of each group and kind.
    kinds: Mutex<HashMap<(&'static str, &'static str), &'static api::Resource>>,
    /// Rung when an owner is of a kind that is not followed.
    unknown_kind: Arc<Notify>,
}

#[async_trait]
impl Controller for GarbageCollector {
    fn name(&self) -> &'static str {
        NAME
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["garbagecollector"]
    }

    async fn run(&self, context: Context) {
        let collector = Arc::new(Collector {
            client: context.client.clone(),
            graph: Mutex::default(),
            queue: Queue::default(),
            absent: Mutex::default(),
            recorder: context.recorder(NAME),
            kinds: Mutex::default(),
            unknown_kind: Arc::default(),
        });
        let mut follower = follow::Follower::new(&context, collector.clone());
        if !follower.start().await {
            return;
        }
        let (queue, shutdown) = (&collector.queue, &context.shutdown);
        let work = workqueue::run("garbage-collector", queue, WORKERS, shutdown, |uid| {
            let collector = &collector;
            async move { collector.reconcile(&uid).await }
        });
        tokio::select! {
            () = work => {}
            () = follower.run() => {}
        }
    }
}

impl Collector {
    fn changed(&self, resource: &'static api::Resource, change: &client::Delta<Metadata>) {
        let mut graph = self.graph.lock();
        let mut look = Vec::new();
        if let Some(old) = &change.old
            && change
                .new
                .as_ref()
                .is_none_or(|new| new.metadata.uid != old.metadata.uid)
        {
            look.extend(graph.remove(&old.metadata.uid));
        }
        if let Some(new) = &change.new {
            let meta = new.metadata.clone();
            look.extend(graph.set(Object { resource, meta }));
        }
        drop(graph);
        for uid in look {
            self.queue.add(uid);
        }
    }

    /// A kind came to be served: who was kept because its owner's kind was unknown is looked at again.
    fn kind_is_served(&self, resource: &'static api::Resource) {
        self.kinds
            .lock()
            .insert((resource.group, resource.kind), resource);
        let owned = self.graph.lock().owned_by(resource.group, resource.kind);
        owned.into_iter().for_each(|uid| self.queue.add(uid));
    }

    fn kind_is_gone(&self, (group, _, plural): (&str, &str, &str)) {
        self.kinds
            .lock()
            .retain(|_, resource| resource.group != group || resource.plural != plural);
    }

    /// An object is followed no longer.
    fn forget(&self, uid: &str) {
        let look = self.graph.lock().remove(uid);
        look.into_iter().for_each(|uid| self.queue.add(uid));
    }

    async fn reconcile(&self, uid: &str) -> Result<Requeue, ClientError> {
        let (object, unknown, misplaced) = {
            let graph = self.graph.lock();
            let Some(object) = graph.get(uid).cloned() else {
                return Ok(Requeue::No);
            };
            if object.meta.is_deleting() {
                (object, Vec::new(), Vec::new())
            } else {
                (object, graph.unknown_owners(uid), graph.misplaced(uid))
            }
        };
        for owner in misplaced {
            self.tell_misplaced(&object, &owner);
        }
        let mut found = Vec::new();
        for owner in unknown {
            if self.exists(&object, &owner).await? {
                found.push(owner.uid);
            }
        }
        let actions = self
            .graph
            .lock()
            .plan(uid, |owner| found.contains(&owner.uid));
        for action in actions {
            self.apply(&object, action).await?;
        }
        Ok(Requeue::No)
    }

    /// Asks the server whether this very owner exists. A kind it does not serve is taken to exist: nothing is deleted
    /// because an API is missing.
    async fn exists(
        &self,
        dependent: &Object,
        owner: &OwnerReference,
    ) -> Result<bool, ClientError> {
        let (group, version) = apimachinery::meta::group_version(&owner.api_version);
        let followed = self
            .kinds
            .lock()
            .get(&(group, owner.kind.as_str()))
            .copied();
        let Some(resource) = followed.or_else(|| api::find_kind(group, version, &owner.kind))
        else {
            self.unknown_kind.notify_one();
            return Ok(true);
        };
        let namespace = &dependent.meta.namespace;
        if resource.namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot have a namespaced owner; upstream reports it and keeps the object.
            return Ok(true);
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        // What is not in one namespace may be in another.
        let asked = (namespace.to_string(), owner.uid.clone());
        if self.absent.lock().contains_key(&asked) {
            return Ok(false);
        }
        match self
            .client
            .metadata_only()
            .get::<Metadata>(resource, namespace, &owner.name)
            .await
        {
            Ok(present) if present.metadata.uid == owner.uid => return Ok(true),
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let mut absent = self.absent.lock();
        if absent.len() >= MAX_ABSENT
            && let Some(oldest) = absent
                .iter()
                .min_by_key(|(_, at)| **at)
                .map(|(asked, _)| asked.clone())
        {
            absent.remove(&oldest);
        }
        absent.insert(asked, Instant::now());
        Ok(false)
    }

    /// Says on the dependent that its owner is in another namespace, so that it is none (reportInvalidNamespaceOwnerRef).
    fn tell_misplaced(&self, object: &Object, owner: &OwnerReference) {
        let Object { resource, meta } = object;
        let dependent = ObjectReference {
            api_version: join_group_version(resource.group, resource.version),
            kind: resource.kind.into(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        };
        let message = format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
            owner.api_version, owner.kind, meta.namespace, owner.name, owner.uid, meta.namespace
        );
        let reason = "OwnerRefInvalidNamespace";
        self.recorder
            .event(&dependent, EventKind::Warning, reason, message);
    }

    async fn apply(&self, object: &Object, action: Action) -> Result<(), ClientError> {
        let done = match action {
            Action::Delete { foreground } => {
                let policy = if foreground {
                    Propagation::Foreground
                } else {
                    Propagation::Background
                };
                let mut options = DeleteOptions::uid(&object.meta.uid).propagation(policy);
                options.preconditions.resource_version = Some(object.meta.resource_version.clone());
                let (namespace, name) = (&object.meta.namespace, &object.meta.name);
                self.client
                    .delete(object.resource, namespace, name, &options)
                    .await
            }
            Action::Unblock => {
                let mut owners = object.meta.owner_references.clone();
                for owner in &mut owners {
                    owner.block_owner_deletion = Some(false);
                }
                self.patch(object, json!({"ownerReferences": owners})).await
            }
            Action::RemoveOwners(uids) => {
                let kept = object
                    .meta
                    .owner_references
                    .iter()
                    .filter(|owner| !uids.contains(&owner.uid));
                let kept: Vec<_> = kept.collect();
                self.patch(object, json!({"ownerReferences": kept})).await
            }
            Action::RemoveFinalizer(finalizer) => {
                let kept: Vec<_> = object
                    .meta
                    .finalizers
                    .iter()
                    .filter(|one| *one != finalizer)
                    .collect();
                self.patch(object, json!({"finalizers": kept})).await
            }
            Action::Release { dependent, owner } => {
                let Some(dependent) = self.graph.lock().get(&dependent).cloned() else {
                    return Ok(());
                };
                let kept = dependent
                    .meta
                    .owner_references
                    .iter()
                    .filter(|one| one.uid != owner);
                let kept: Vec<_> = kept.collect();
                self.patch(&dependent, json!({"ownerReferences": kept}))
                    .await
            }
        };
        match done {
            Ok(_) => Ok(()),
            // Gone, or another object by now.
            Err(error) if error.is_not_found() => Ok(()),
            // Changed meanwhile: its new state will be looked at.
            Err(error) => Err(error),
        }
    }

    /// Merges into the metadata of the object as it was seen.
    async fn patch(&self, object: &Object, mut metadata: Value) -> Result<Value, ClientError> {
        metadata["uid"] = json!(object.meta.uid);
        metadata["resourceVersion"] = json!(object.meta.resource_version);
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let options = WriteOptions::default();
        let (namespace, name) = (&object.meta.namespace, &object.meta.name);
        self.client
            .patch(object.resource, namespace, name, "", &patch, &options)
            .await
    }
}

#[cfg(test)]
mod tests;
