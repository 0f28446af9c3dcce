//! deployment-controller: moves a Deployment's pods from one ReplicaSet to the next.
//!
//! `rollout` decides how many replicas each ReplicaSet should have, `history` which of them is the new one and which
//! old ones go, `status` what the Deployment says of itself. This file observes and carries out.

mod history;
mod rollout;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use api::{
    r::{DEPLOYMENTS, PODS, REPLICASETS},
    view::{ObjectMeta, OwnerReference},
};
use apimachinery::{Value, selector::LabelSelector, time::now};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Patch, Selectors, WriteOptions,
    events::{EventKind, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    ledger::Ledger,
    pods::{BY_CONTROLLER, Kind, by_controller, is_still_there},
    replica_set::{BY_OWNER, ReplicaSet, by_owner},
    selector_of,
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{Condition, Pod},
    writes::{modify, write_status},
};
use history::{DESIRED, HASH, MAX, REVISION};

/// Deployments reconciled at a time (`--concurrent-deployment-syncs`).
const WORKERS: usize = 5;
/// Index of Deployments by namespace.
const BY_NAMESPACE: &str = "namespace";

pub struct Deployments;

/// apps/v1 Deployment; the template is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    pub metadata: ObjectMeta,
    pub spec: DeploymentSpec,
    pub status: DeploymentStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    pub replicas: Option<i64>,
    pub selector: Value,
    pub template: Value,
    pub strategy: Strategy,
    pub min_ready_seconds: i64,
    pub revision_history_limit: Option<i64>,
    pub paused: bool,
    pub progress_deadline_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    #[serde(rename = "type")]
    pub kind: String,
    pub rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Numbers, or percentages of the replicas.
    pub max_surge: Value,
    pub max_unavailable: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    pub observed_generation: i64,
    pub replicas: i64,
    pub updated_replicas: i64,
    pub ready_replicas: i64,
    pub available_replicas: i64,
    pub unavailable_replicas: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    pub conditions: Vec<DeploymentCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentCondition {
    #[serde(flatten)]
    pub condition: Condition,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<String>,
}

impl Deployment {
    /// `spec.replicas`, 1 if it is absent.
    pub fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    pub fn recreates(&self) -> bool {
        self.spec.strategy.kind == "Recreate"
    }
}

/// What a reconcile wants done. ReplicaSets are named by their index in what was observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the ReplicaSet of the present template.
    CreateNew { replicas: i64 },
    /// Set a ReplicaSet's replicas.
    Scale { set: usize, replicas: i64 },
    /// Bring a ReplicaSet's annotations (and minReadySeconds) up to date.
    Annotate {
        set: usize,
        annotations: BTreeMap<String, String>,
        min_ready_seconds: i64,
    },
    /// Delete an old ReplicaSet.
    Delete { set: usize },
    /// Set the Deployment's own revision annotation.
    SetRevision(String),
}

struct Observed {
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
    client: client::Client,
    recorder: Recorder,
    kind: Kind,
    ledger: Ledger,
}

#[async_trait]
impl Controller for Deployments {
    fn name(&self) -> &'static str {
        "deployment-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["deployment"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let observed = Arc::new(Observed {
            deployments: informers.informer(&DEPLOYMENTS, "", Selectors::default()),
            sets: informers.informer(&REPLICASETS, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            client: context.client.clone(),
            recorder: context.recorder("deployment-controller"),
            kind: Kind {
                resource: &DEPLOYMENTS,
                api_version: "apps/v1",
                finalizer: None,
            },
            ledger: Ledger::default(),
        });
        let Observed {
            deployments,
            sets,
            pods,
            ..
        } = &*observed;
        pods.add_index(BY_CONTROLLER, by_controller);
        deployments.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        sets.add_index(BY_OWNER, by_owner);
        if !synced!(context, deployments, sets, pods) {
            return;
        }
        let queue = Queue::default();
        observed.feed(&queue);
        workqueue::run("deployment", &queue, WORKERS, &context.shutdown, |key| {
            let observed = &observed;
            async move { observed.reconcile(&key).await }
        })
        .await;
    }
}

impl Observed {
    fn feed(self: &Arc<Self>, queue: &Queue<String>) {
        let keys = queue.clone();
        self.deployments
            .add_handler(move |change| keys.add(change.key.to_string()));
        let (keys, to) = (queue.clone(), self.clone());
        self.sets.add_handler(move |change| {
            let sides = [
                change.old.as_ref().map(|set| &set.metadata),
                change.new.as_ref().map(|set| &set.metadata),
            ];
            to.kind
                .owners_in(sides)
                .into_iter()
                .for_each(|key| keys.add(key));
            let Some(set) = change
                .new
                .as_ref()
                .filter(|set| set.metadata.controller().is_none())
            else {
                return;
            };
            for deployment in to
                .deployments
                .by_index(BY_NAMESPACE, &set.metadata.namespace)
            {
                if selector(&deployment).matches(&set.metadata.labels) {
                    keys.add(deployment.metadata.key());
                }
            }
        });
        // Recreate waits for the last old pod to be gone.
        let (keys, to) = (queue.clone(), self.clone());
        self.pods.add_handler(move |change| {
            if !change.is_deleted() {
                return;
            }
            let meta = &change.object().metadata;
            let Some(owner) = meta.controller().filter(|owner| owner.kind == "ReplicaSet") else {
                return;
            };
            let set = to
                .sets
                .get(&apimachinery::meta::join_key(&meta.namespace, &owner.name));
            let owners = set.map(|set| to.kind.owners_in([Some(&set.metadata), None]));
            owners.into_iter().flatten().for_each(|key| keys.add(key));
        });
    }

    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(deployment) = self.deployments.get(key) else {
            self.ledger.forget(key);
            return Ok(Requeue::No);
        };
        self.ledger.settle(key, &self.client, &REPLICASETS).await?;
        if !self.ledger.is_seen(key, &self.sets) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let sets = self.claim(&deployment).await?;
        let sets: Vec<&ReplicaSet> = sets.iter().map(AsRef::as_ref).collect();
        let mut done = status::Done::default();
        if !deployment.metadata.is_deleting() {
            let old_pods_run = deployment.recreates() && self.old_pods_run(&deployment, &sets);
            for action in rollout::plan(&deployment, &sets, old_pods_run) {
                self.apply(&deployment, &sets, action, &mut done).await?;
            }
        }
        let (status, progress) = status::status(&deployment, &sets, &done, now());
        if status != deployment.status {
            write_status(&self.client, &DEPLOYMENTS, &deployment.metadata, &status).await?;
        }
        if let Some(error) = done.failed {
            return Err(error);
        }
        Ok(progress.map_or(Requeue::No, Requeue::After))
    }

    /// The Deployment's ReplicaSets; orphans that match are adopted.
    async fn claim(&self, deployment: &Deployment) -> Result<Vec<Arc<ReplicaSet>>, ClientError> {
        let meta = &deployment.metadata;
        let selector = selector(deployment);
        let own = self.sets.by_index(BY_OWNER, &meta.uid).into_iter();
        let mut sets: Vec<_> = own
            .filter(|set| selector.matches(&set.metadata.labels))
            .collect();
        if meta.is_deleting() {
            return Ok(sets);
        }
        let mut orphans = self
            .sets
            .by_index(BY_OWNER, &format!("orphan/{}", meta.namespace));
        orphans.retain(|set| !set.metadata.is_deleting() && selector.matches(&set.metadata.labels));
        if orphans.is_empty() || !is_still_there(&self.client, &self.kind, meta).await? {
            return Ok(sets);
        }
        for set in orphans {
            let mut owners: Vec<OwnerReference> = set.metadata.owner_references.clone();
            owners.push(self.kind.reference(meta));
            let patch = json!({"metadata": {"uid": set.metadata.uid, "ownerReferences": owners}});
            if let Some(adopted) = self.patch_set(meta, &set, patch).await? {
                sets.push(Arc::new(adopted));
            }
        }
        Ok(sets)
    }

    /// Whether any pod of an old ReplicaSet is still there and not finished.
    fn old_pods_run(&self, deployment: &Deployment, sets: &[&ReplicaSet]) -> bool {
        let new = history::new_set(deployment, sets);
        let old = sets
            .iter()
            .enumerate()
            .filter(|(index, _)| Some(*index) != new);
        old.flat_map(|(_, set)| self.pods.by_index(BY_CONTROLLER, &set.metadata.uid))
            .any(|pod| !pod.is_terminal())
    }

    async fn apply(
        &self,
        deployment: &Deployment,
        sets: &[&ReplicaSet],
        action: Action,
        done: &mut status::Done,
    ) -> Result<(), ClientError> {
        let meta = &deployment.metadata;
        match action {
            Action::CreateNew { replicas } => {
                self.create_new(deployment, sets, replicas, done).await;
                Ok(())
            }
            Action::Scale { set, replicas } => {
                let set = sets[set];
                let mut annotations = set.metadata.annotations.clone();
                annotations.insert(DESIRED.into(), deployment.replicas().to_string());
                annotations.insert(
                    MAX.into(),
                    (deployment.replicas() + rollout::max_surge(deployment)).to_string(),
                );
                let patch = json!({"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}});
                if self.patch_set(meta, set, patch).await?.is_some() && set.replicas() != replicas {
                    self.scaled(deployment, &set.metadata.name, set.replicas(), replicas);
                }
                Ok(())
            }
            Action::Annotate {
                set,
                annotations,
                min_ready_seconds,
            } => {
                let patch = json!({"metadata": {"annotations": annotations}, "spec": {"minReadySeconds": min_ready_seconds}});
                self.patch_set(meta, sets[set], patch).await.map(drop)
            }
            Action::Delete { set } => {
                let set = &sets[set].metadata;
                match self
                    .client
                    .delete(
                        &REPLICASETS,
                        &set.namespace,
                        &set.name,
                        &DeleteOptions::uid(&set.uid),
                    )
                    .await
                {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
                    _ => Ok(()),
                }
            }
            Action::SetRevision(revision) => {
                modify(&self.client, &DEPLOYMENTS, meta, |deployment| {
                    apimachinery::meta::set_annotation(deployment, REVISION, &revision);
                })
                .await
                .map(drop)
            }
        }
    }

    /// Makes the ReplicaSet of the present template; `done` tells how that went.
    async fn create_new(
        &self,
        deployment: &Deployment,
        sets: &[&ReplicaSet],
        replicas: i64,
        done: &mut status::Done,
    ) {
        let meta = &deployment.metadata;
        let set = history::make(deployment, sets, replicas, self.kind.reference(meta));
        let name = apimachinery::meta::name(&set).to_string();
        let options = WriteOptions::default();
        let created =
            self.client
                .create::<_, ReplicaSet>(&REPLICASETS, &meta.namespace, &set, &options);
        match created.await {
            Ok(stored) => {
                self.ledger
                    .wrote(&meta.key(), &stored.metadata.resource_version);
                if replicas > 0 {
                    self.scaled(deployment, &name, 0, replicas);
                }
                done.created = Some(name);
            }
            Err(error) if error.is_already_exists() => {
                // Another template with the same hash: the next attempt hashes with a higher count.
                done.collided = true;
                done.failed = Some(error);
            }
            Err(error) => {
                self.ledger.failed(&meta.key(), &error);
                if error.is_namespace_terminating() {
                    return;
                }
                let message = format!("Failed to create new replica set {name:?}: {error}");
                let object = self.kind.object(meta);
                self.recorder.event(
                    &object,
                    EventKind::Warning,
                    "ReplicaSetCreateError",
                    &message,
                );
                done.create_error = Some(message);
                done.failed = Some(error);
            }
        }
    }

    async fn patch_set(
        &self,
        of: &ObjectMeta,
        set: &ReplicaSet,
        mut patch: Value,
    ) -> Result<Option<ReplicaSet>, ClientError> {
        let meta = &set.metadata;
        patch["metadata"]["resourceVersion"] = json!(meta.resource_version);
        let options = WriteOptions::default();
        let patch = Patch::Merge(patch);
        let patched = self.client.patch::<ReplicaSet>(
            &REPLICASETS,
            &meta.namespace,
            &meta.name,
            "",
            &patch,
            &options,
        );
        match patched.await {
            Ok(stored) => {
                self.ledger
                    .wrote(&of.key(), &stored.metadata.resource_version);
                Ok(Some(stored))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn scaled(&self, deployment: &Deployment, set: &str, from: i64, to: i64) {
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
        let object = self.kind.object(&deployment.metadata);
        self.recorder
            .event(&object, EventKind::Normal, "ScalingReplicaSet", message);
    }
}

fn selector(deployment: &Deployment) -> LabelSelector {
    selector_of(&deployment.spec.selector)
}

/// The label that tells the pods of one template from those of another.
fn hash_label(set: &ReplicaSet) -> Option<&String> {
    set.metadata.labels.get(HASH)
}

#[cfg(test)]
mod tests;
