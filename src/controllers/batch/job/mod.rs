//! job-controller: runs pods until as many as are wanted have succeeded.
//!
//! `plan` decides; `policy` says what failures mean; `intervals` are the sets of indexes. This file observes and
//! carries out: pods first, then the status, then the finalizers of the pods that status counts.

mod intervals;
mod plan;
mod policy;

use std::sync::Arc;

use api::{
    r::{JOBS, PODS},
    view::OwnerReference,
};
use apimachinery::{Value, time::now};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use futures::future::join_all;
use serde_json::{Map, json};

use super::view::{FAILURES, IGNORED, INDEX, Job, TRACKING};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::Pod,
    workloads::{
        ledger::Ledger,
        pods::{BY_CONTROLLER, Kind, PodControl, from_template, sides},
        selector_of,
    },
    writes::put_status,
};
use plan::{NewPod, Seen, is_tracked};

/// Jobs reconciled at a time (`--concurrent-job-syncs`).
const WORKERS: usize = 5;
/// Finalizers taken away at a time.
const RELEASES: usize = 50;
/// Longest beginning of a generated name: five characters follow, and a hostname has at most 63.
const MAX_PREFIX: usize = 58;

pub struct Jobs;

struct Observed {
    jobs: Informer<Job>,
    control: PodControl,
    /// Status writes the informer of Jobs must show.
    statuses: Ledger,
}

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Job(String),
    /// A pod whose Job may be gone.
    Pod(String),
}

#[async_trait]
impl Controller for Jobs {
    fn name(&self) -> &'static str {
        "job-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["job"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let pods: Informer<Pod> = informers.informer(&PODS, "", Selectors::default());
        let observed = Arc::new(Observed {
            jobs: informers.informer(&JOBS, "", Selectors::default()),
            control: PodControl::new(
                &context,
                "job-controller",
                Kind {
                    resource: &JOBS,
                    api_version: "batch/v1",
                    finalizer: Some(TRACKING),
                },
                &pods,
            ),
            statuses: Ledger::default(),
        });
        let jobs = &observed.jobs;
        if !synced!(context, pods, jobs) {
            return;
        }
        let queue = Queue::default();
        let (keys, to) = (queue.clone(), observed.clone());
        jobs.add_handler(move |change| {
            keys.add(Key::Job(change.key.to_string()));
            if change.is_deleted() {
                let uid = &change.object().metadata.uid;
                for pod in to.control.pods.by_index(BY_CONTROLLER, uid) {
                    keys.add(Key::Pod(pod.metadata.key()));
                }
            }
        });
        let (keys, to) = (queue.clone(), observed.clone());
        pods.add_handler(move |change| {
            let delay = to.control.gather(change);
            for key in to.control.kind.owners_in(sides(change)) {
                keys.add_after(Key::Job(key), delay);
            }
            if change.new.as_ref().is_some_and(|pod| to.is_orphan(pod)) {
                keys.add(Key::Pod(change.key.to_string()));
            }
        });
        workqueue::run("job", &queue, WORKERS, &context.shutdown, |key| {
            let observed = &observed;
            async move {
                match key {
                    Key::Job(key) => observed.reconcile(&key).await,
                    Key::Pod(key) => observed.let_go(&key).await,
                }
            }
        })
        .await;
    }
}

impl Observed {
    /// Whether the pod is tracked by a Job that is not there.
    fn is_orphan(&self, pod: &Pod) -> bool {
        if !is_tracked(pod) {
            return false;
        }
        let Some(owner) = pod.metadata.controller() else {
            return true;
        };
        let key = apimachinery::meta::join_key(&pod.metadata.namespace, &owner.name);
        let job = self.jobs.get(&key);
        self.control.kind.owns(owner) && job.is_none_or(|job| job.metadata.uid != owner.uid)
    }

    /// Takes the finalizer off a pod whose Job is gone: nobody will count it.
    async fn let_go(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(pod) = self.control.pods.get(key) else {
            return Ok(Requeue::No);
        };
        if !self.is_orphan(&pod) {
            return Ok(Requeue::No);
        }
        if let Some(owner) = pod.metadata.controller() {
            // The cache of Jobs may be behind that of pods.
            let found = self
                .control
                .client
                .get::<Job>(&JOBS, &pod.metadata.namespace, &owner.name)
                .await;
            match found {
                Ok(job) if job.metadata.uid == owner.uid => return Ok(Requeue::No),
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        self.release(key, &pod).await?;
        Ok(Requeue::No)
    }

    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let control = &self.control;
        let Some(job) = self.jobs.get(key) else {
            control.ledger.forget(key);
            self.statuses.forget(key);
            return Ok(Requeue::No);
        };
        if !job.is_ours() {
            return Ok(Requeue::No);
        }
        if !control.has_seen(key).await? || !self.statuses.is_seen(key, &self.jobs) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let meta = &job.metadata;
        let selector = selector_of(&job.spec.selector);
        let claimed = control.claim(meta, &selector, |_| true).await?;
        let _ = control.without_deleted(key, claimed.clone());
        let pods: Vec<Seen> = claimed
            .into_iter()
            .map(|pod| Seen {
                deleting: pod.metadata.is_deleting()
                    || control.ledger.is_deleted(key, &pod.metadata.uid),
                pod,
            })
            .collect();
        let mut plan = plan::plan(&plan::Observed {
            job: &job,
            pods: &pods,
            now: now(),
        });
        control.delete(meta, &plan.delete).await?;
        let owner = control.kind.reference(meta);
        let made: Vec<Value> = plan
            .create
            .iter()
            .map(|new| pod_for(&job, &owner, new))
            .collect();
        let wanted = made.len();
        let (count, error) = control.create(meta, made).await;
        plan.status.active -= i64::try_from(wanted - count).unwrap_or(0);
        if plan.status != job.status {
            let stored = put_status(&control.client, &JOBS, meta, &plan.status).await?;
            let Some(version) = stored else {
                // A newer Job is on its way: nothing of this status is stored, so no pod is let go.
                return Ok(Requeue::After(LAG_RETRY));
            };
            self.statuses.wrote(key, &version);
        }
        for (kind, reason, message) in plan.events {
            let object = control.kind.object(meta);
            control.recorder.event(&object, kind, &reason, message);
        }
        for pods in plan.release.chunks(RELEASES) {
            let releases = pods.iter().map(|pod| self.release(key, pod));
            join_all(releases)
                .await
                .into_iter()
                .collect::<Result<(), ClientError>>()?;
        }
        if let Some(error) = error.filter(|error| !error.is_namespace_terminating()) {
            return Err(error);
        }
        Ok(plan.again.map_or(Requeue::No, Requeue::After))
    }

    /// Takes the tracking finalizer off a pod.
    async fn release(&self, key: &str, pod: &Pod) -> Result<(), ClientError> {
        let meta = &pod.metadata;
        let finalizers: Vec<&String> = meta
            .finalizers
            .iter()
            .filter(|one| *one != TRACKING)
            .collect();
        let patch = Patch::Merge(json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
        }}));
        let options = WriteOptions::default();
        let client = &self.control.client;
        let patched = client
            .patch::<crate::objects::Metadata>(
                &PODS,
                &meta.namespace,
                &meta.name,
                "",
                &patch,
                &options,
            )
            .await;
        match patched {
            Ok(stored) => {
                // Of a pod that is thereby gone, the cache sees the deletion alone, at a later version.
                self.control
                    .ledger
                    .wrote(key, &stored.metadata.resource_version);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A pod of the Job; of an index, it knows which.
fn pod_for(job: &Job, owner: &OwnerReference, new: &NewPod) -> Value {
    let mut pod = from_template(&job.spec.template, &job.metadata, owner);
    let mut finalizers = pod["metadata"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    finalizers.push(json!(TRACKING));
    pod["metadata"]["finalizers"] = Value::Array(finalizers);
    let Some(index) = new.index else {
        return pod;
    };
    let meta = &mut pod["metadata"];
    for field in ["labels", "annotations"] {
        if !meta[field].is_object() {
            meta[field] = Value::Object(Map::new());
        }
        meta[field][INDEX] = json!(index.to_string());
    }
    if job.spec.backoff_limit_per_index.is_some() {
        meta["annotations"][FAILURES] = json!(new.failures.to_string());
        if new.ignored > 0 {
            meta["annotations"][IGNORED] = json!(new.ignored.to_string());
        }
    }
    let name = &job.metadata.name;
    let suffix = format!("-{index}-");
    let kept = MAX_PREFIX.saturating_sub(suffix.len()).min(name.len());
    meta["generateName"] = json!(format!("{}{suffix}", &name[..kept]));
    pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
    let variable = json!({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {
        "fieldPath": format!("metadata.labels['{INDEX}']")}}});
    for field in ["initContainers", "containers"] {
        let containers = pod["spec"].get_mut(field).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            match container.get_mut("env").and_then(Value::as_array_mut) {
                Some(env) if env.iter().any(|one| one["name"] == "JOB_COMPLETION_INDEX") => {}
                Some(env) => env.push(variable.clone()),
                None => container["env"] = json!([variable]),
            }
        }
    }
    pod
}

#[cfg(test)]
mod tests;
