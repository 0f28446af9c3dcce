//! disruption-controller: says in each PodDisruptionBudget how many of its pods may be evicted now, and takes back the
//! announcement of a disruption that did not come.
//!
//! `plan` computes the status; `scale` finds out how many pods there should be. This file observes and carries out.

mod plan;
mod scale;

use std::{sync::Arc, time::Duration};

use api::{
    r::{PODDISRUPTIONBUDGETS, PODS},
    view::ObjectMeta,
};
use apimachinery::{
    Value,
    time::{Time, now, now_text, parse},
};
use async_trait::async_trait;
use client::{
    ClientError, Delta, Informer, Patch, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde::Deserialize;
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    endpoints::BY_NAMESPACE,
    objects::{Pod, condition, printed_selector},
    workloads::selector_of,
    writes::write_status,
};
use plan::BudgetStatus;

/// Budgets reconciled at a time.
const WORKERS: usize = 5;
/// Changes of pods are gathered for so long: each reconcile looks at the pods of a namespace.
const GATHER: Duration = Duration::from_millis(100);
/// A pod whose disruption was announced and did not begin within this time stays (stalePodDisruptionTimeout).
const STALE: Duration = Duration::from_secs(2 * 60);

pub struct Disruption;

/// policy/v1 PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Budget {
    pub metadata: ObjectMeta,
    pub spec: BudgetSpec,
    pub status: BudgetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// A number or a percentage; null is absent.
    pub min_available: Value,
    pub max_unavailable: Value,
    pub selector: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Budget(String),
    /// A pod whose disruption was announced.
    Announced(String),
}

struct Observed {
    budgets: Informer<Budget>,
    pods: Informer<Pod>,
    client: client::Client,
    recorder: Recorder,
    scales: scale::Scales,
}

#[async_trait]
impl Controller for Disruption {
    fn name(&self) -> &'static str {
        "disruption-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["disruption"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let observed = Arc::new(Observed {
            budgets: informers.informer(&PODDISRUPTIONBUDGETS, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            client: context.client.clone(),
            recorder: context.recorder("controllermanager"),
            scales: scale::Scales::new(&context),
        });
        let Observed {
            budgets,
            pods,
            scales,
            ..
        } = &*observed;
        budgets.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        pods.add_index(BY_NAMESPACE, |pod| vec![pod.metadata.namespace.clone()]);
        if !synced!(context, budgets, pods, scales) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        budgets.add_handler(move |change| keys.add(Key::Budget(change.key.to_string())));
        let (keys, to) = (queue.clone(), observed.clone());
        pods.add_handler(move |change| to.pod_changed(change, &keys));
        workqueue::run("disruption", &queue, WORKERS, &context.shutdown, |key| {
            let observed = &observed;
            async move {
                match key {
                    Key::Budget(key) => observed.reconcile(&key).await,
                    Key::Announced(key) => observed.take_back(&key).await,
                }
            }
        })
        .await;
    }
}

impl Observed {
    fn pod_changed(&self, change: &Delta<Pod>, queue: &Queue<Key>) {
        let namespace = &change.object().metadata.namespace;
        for budget in self.budgets.by_index(BY_NAMESPACE, namespace) {
            let selector = selector_of(&budget.spec.selector);
            let mut sides = change.old.iter().chain(&change.new);
            if sides.any(|pod| selector.matches(&pod.metadata.labels)) {
                queue.add_after(Key::Budget(budget.metadata.key()), GATHER);
            }
        }
        if change
            .new
            .as_ref()
            .is_some_and(|pod| announced_at(pod).is_some())
        {
            queue.add(Key::Announced(change.key.to_string()));
        }
    }

    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(budget) = self.budgets.get(key) else {
            return Ok(Requeue::No);
        };
        let meta = &budget.metadata;
        let object = ObjectReference {
            api_version: "policy/v1".into(),
            kind: "PodDisruptionBudget".into(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: String::new(),
        };
        let selector = selector_of(&budget.spec.selector);
        let mut pods = self.pods.by_index(BY_NAMESPACE, &meta.namespace);
        pods.retain(|pod| selector.matches(&pod.metadata.labels));
        if pods.is_empty() {
            self.recorder.event(
                &object,
                EventKind::Normal,
                "NoPods",
                "No matching pods found",
            );
        }
        let scale = if plan::needs_scale(&budget.spec) {
            match self.scales.expected(&self.client, &pods).await {
                Ok(scale) => Some(scale),
                Err(why) => {
                    let message = format!("Failed to calculate the number of expected pods: {why}");
                    let reason = "CalculateExpectedPodCountFailed";
                    self.recorder
                        .event(&object, EventKind::Warning, reason, message);
                    let status = plan::failed(&budget, &why.to_string(), now());
                    self.write(&budget, &status).await?;
                    return Err(why);
                }
            }
        } else {
            None
        };
        if scale.as_ref().is_some_and(|scale| scale.unmanaged > 0) {
            let message = format!(
                "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the \
                 status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account \
                 for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
                printed_selector(&budget.spec.selector)
            );
            self.recorder
                .event(&object, EventKind::Warning, "UnmanagedPods", message);
        }
        let plan = plan::plan(&budget, &pods, scale.map(|scale| scale.expected), now());
        let late = |pod: &&Arc<Pod>| plan.not_deleted.contains(&pod.metadata.name);
        for pod in pods.iter().filter(late) {
            let meta = &pod.metadata;
            let pod = ObjectReference::pod(
                &meta.namespace,
                &meta.name,
                &meta.uid,
                &meta.resource_version,
            );
            let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
            self.recorder
                .event(&pod, EventKind::Warning, "NotDeleted", message);
        }
        self.write(&budget, &plan.status).await?;
        Ok(plan.again.map_or(Requeue::No, Requeue::After))
    }

    async fn write(&self, budget: &Budget, status: &BudgetStatus) -> Result<(), ClientError> {
        if *status == budget.status {
            return Ok(());
        }
        let resource = &PODDISRUPTIONBUDGETS;
        write_status(&self.client, resource, &budget.metadata, status).await
    }

    /// Says of a pod that nobody deleted after all that it will not be disrupted.
    async fn take_back(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(pod) = self.pods.get(key) else {
            return Ok(Requeue::No);
        };
        let Some(since) = announced_at(&pod) else {
            return Ok(Requeue::No);
        };
        let left = Duration::try_from(since + STALE - now()).unwrap_or_default();
        if !left.is_zero() {
            return Ok(Requeue::After(left));
        }
        let meta = &pod.metadata;
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": [{"type": "DisruptionTarget", "status": "False", "lastTransitionTime": now_text()}]},
        }));
        let options = WriteOptions::default();
        let (namespace, name) = (&meta.namespace, &meta.name);
        let patched = self
            .client
            .patch::<Value>(&PODS, namespace, name, "status", &patch, &options)
            .await;
        match patched {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(Requeue::No),
        }
    }
}

/// Since when the pod is said to be about to be disrupted; none if it is, or has ended.
fn announced_at(pod: &Pod) -> Option<Time> {
    if !pod.is_active() {
        return None;
    }
    let target = condition(&pod.status.conditions, "DisruptionTarget")?;
    if target.status != "True" {
        return None;
    }
    target.last_transition_time.as_deref().and_then(parse)
}

#[cfg(test)]
mod tests;
