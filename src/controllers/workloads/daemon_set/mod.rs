//! daemonset-controller: one pod of a template on every node that takes it.
//!
//! `plan` decides, for all nodes at once, which pods are missing and which must go; this file observes and carries
//! out. The pods name their node in their affinity; the scheduler binds them.

mod backoff;
mod plan;

use std::{sync::Arc, time::Duration};

use api::{
    r::{CONTROLLERREVISIONS, DAEMONSETS, NODES, PODS},
    view::ObjectMeta,
};
use apimachinery::{Value, selector::LabelSelector, time::now};
use async_trait::async_trait;
use client::{
    ClientError, Delta, Informer, Selectors,
    events::EventKind,
    workqueue::{self, Queue, Requeue},
};
use serde::{Deserialize, Serialize};

use super::{
    pods::{Kind, PodControl, sides},
    revisions::{self, ControllerRevision, Current, Revisions},
    selector_of,
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{Condition, Node, Pod},
    writes::write_status,
};

/// DaemonSets reconciled at a time (`--concurrent-daemonset-syncs`).
const WORKERS: usize = 2;
const BY_NAMESPACE: &str = "namespace";

pub struct DaemonSets;

/// apps/v1 DaemonSet; the template is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    pub metadata: ObjectMeta,
    pub spec: DaemonSetSpec,
    pub status: DaemonSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    pub selector: Value,
    pub template: Value,
    pub min_ready_seconds: i64,
    pub update_strategy: UpdateStrategy,
    pub revision_history_limit: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    #[serde(rename = "type")]
    pub kind: String,
    pub rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    pub max_surge: Value,
    pub max_unavailable: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    pub current_number_scheduled: i64,
    pub number_misscheduled: i64,
    pub desired_number_scheduled: i64,
    pub number_ready: i64,
    pub observed_generation: i64,
    pub updated_number_scheduled: i64,
    pub number_available: i64,
    pub number_unavailable: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    pub conditions: Vec<Condition>,
}

impl DaemonSet {
    fn selector(&self) -> LabelSelector {
        selector_of(&self.spec.selector)
    }

    /// The generation of its template, as pods are labelled with.
    fn template_generation(&self) -> String {
        let annotation = self
            .metadata
            .annotations
            .get("deprecated.daemonset.template.generation");
        annotation
            .cloned()
            .unwrap_or_else(|| self.metadata.generation.to_string())
    }
}

struct Observed {
    sets: Informer<DaemonSet>,
    nodes: Informer<Node>,
    control: PodControl,
    revisions: Revisions,
    backoff: backoff::Backoff,
}

#[async_trait]
impl Controller for DaemonSets {
    fn name(&self) -> &'static str {
        "daemonset-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["daemonset"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let pods: Informer<Pod> = informers.informer(&PODS, "", Selectors::default());
        let history: Informer<ControllerRevision> =
            informers.informer(&CONTROLLERREVISIONS, "", Selectors::default());
        let observed = Arc::new(Observed {
            sets: informers.informer(&DAEMONSETS, "", Selectors::default()),
            nodes: informers.informer(&NODES, "", Selectors::default()),
            control: PodControl::new(
                &context,
                "daemonset-controller",
                Kind {
                    resource: &DAEMONSETS,
                    api_version: "apps/v1",
                    finalizer: None,
                },
                &pods,
            ),
            revisions: Revisions::new(context.client.clone(), history.clone()),
            backoff: backoff::Backoff::default(),
        });
        let Observed { sets, nodes, .. } = &*observed;
        sets.add_index(BY_NAMESPACE, |set| vec![set.metadata.namespace.clone()]);
        if !synced!(context, sets, nodes, pods, history) {
            return;
        }
        let queue = Queue::default();
        observed.feed(&queue);
        workqueue::run("daemonset", &queue, WORKERS, &context.shutdown, |key| {
            let observed = &observed;
            async move { observed.reconcile(&key).await }
        })
        .await;
    }
}

impl Observed {
    fn feed(self: &Arc<Self>, queue: &Queue<String>) {
        let keys = queue.clone();
        self.sets
            .add_handler(move |change| keys.add(change.key.to_string()));
        let (keys, to) = (queue.clone(), self.clone());
        self.nodes.add_handler(move |change| {
            let same = match (&change.old, &change.new) {
                (Some(old), Some(new)) => {
                    old.metadata.labels == new.metadata.labels && old.spec.taints == new.spec.taints
                }
                _ => false,
            };
            if !same {
                to.sets
                    .keys()
                    .into_iter()
                    .for_each(|key| keys.add(key.to_string()));
            }
        });
        let (keys, to) = (queue.clone(), self.clone());
        self.control
            .pods
            .add_handler(move |change| to.pod_changed(change, &keys));
    }

    fn pod_changed(&self, change: &Delta<Pod>, queue: &Queue<String>) {
        let delay = self.control.gather(change);
        for key in self.control.kind.owners_in(sides(change)) {
            queue.add_after(key, delay);
        }
        let Some(pod) = change
            .new
            .as_ref()
            .filter(|pod| pod.metadata.controller().is_none())
        else {
            return;
        };
        if change
            .old
            .as_ref()
            .is_some_and(|old| old.metadata.labels == pod.metadata.labels)
        {
            return;
        }
        for set in self.sets.by_index(BY_NAMESPACE, &pod.metadata.namespace) {
            if set.selector().matches(&pod.metadata.labels) {
                queue.add(set.metadata.key());
            }
        }
    }

    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let control = &self.control;
        let Some(set) = self.sets.get(key) else {
            control.ledger.forget(key);
            self.revisions.forget(key);
            return Ok(Requeue::No);
        };
        if set.metadata.is_deleting() {
            return Ok(Requeue::No);
        }
        if !control.has_seen(key).await? || !self.revisions.is_seen(key) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let meta = &set.metadata;
        let reference = control.kind.reference(meta);
        let collisions = set.status.collision_count;
        let template = &set.spec.template;
        let revision = match self
            .revisions
            .current(meta, reference.clone(), template, collisions)
            .await?
        {
            Current::Is(revision) => revision,
            Current::Collides => {
                // Another template with the same hash: the next attempt hashes with a higher count.
                let mut status = set.status.clone();
                status.collision_count = Some(collisions.unwrap_or(0) + 1);
                write_status(&control.client, &DAEMONSETS, meta, &status).await?;
                return Ok(Requeue::After(LAG_RETRY));
            }
        };
        let claimed = control.claim(meta, &set.selector(), |_| true).await?;
        let pods = control.without_deleted(key, claimed);
        let nodes = self.nodes.list();
        let plan = plan::plan(&plan::Observed {
            set: &set,
            hash: revision.hash(),
            nodes: &nodes,
            pods: &pods,
            pause: &|node| self.backoff.left(&meta.uid, node),
            now: now(),
        });
        for (pod, why) in &plan.failed {
            let node = pod.target_node().unwrap_or("");
            self.backoff.replaced(&meta.uid, node);
            let name = &pod.metadata.name;
            let message = format!(
                "Found {why} daemon pod {}/{name} on node {node}, will try to kill it",
                meta.namespace
            );
            let reason = if *why == "failed" {
                "FailedDaemonPod"
            } else {
                "SucceededDaemonPod"
            };
            control.recorder.event(
                &control.kind.object(meta),
                EventKind::Warning,
                reason,
                message,
            );
        }
        let made = plan
            .create
            .iter()
            .map(|node| plan::pod_for(&set, revision.hash(), &reference, node))
            .collect();
        let (_, error) = control.create(meta, made).await;
        control.delete(meta, &plan.delete).await?;
        if plan.status != set.status {
            write_status(&control.client, &DAEMONSETS, meta, &plan.status).await?;
        }
        if let Some(error) = error.filter(|error| !error.is_namespace_terminating()) {
            return Err(error);
        }
        let in_use = |one: &ControllerRevision| {
            one.metadata.name == revision.metadata.name
                || pods.iter().any(|pod| {
                    pod.metadata
                        .labels
                        .get(revisions::HASH)
                        .is_some_and(|hash| hash == one.hash())
                })
        };
        self.revisions
            .clean_up(meta, set.spec.revision_history_limit, in_use)
            .await?;
        Ok(plan.again.map_or(Requeue::No, |after| {
            Requeue::After(after + Duration::from_millis(10))
        }))
    }
}
