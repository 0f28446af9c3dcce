//! Runs the scheduler: one cycle after the other, bindings and status writes beside them.

use std::{sync::Arc, time::Duration};

use api::r::PODS;
use apimachinery::{Value, time::now_text};
use client::{
    Client, ClientError, Factory, Patch, WriteOptions,
    events::{EventKind, ObjectReference, Recorder, Source},
    leader::{LeaderConfig, LeaderElector},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    config::SchedulerConfig,
    cycle::{FitError, Scheduler},
    framework::Change,
    pod::Pod,
    queue::{QueuedPod, SchedulingQueue},
    watch::Informers,
};

/// Bindings and status writes under way at a time; more pods wait for one to end. As many as the streams of a few
/// connections.
const MAX_WRITES: usize = 256;
/// Pause before everything is started anew after losing the lease.
const RESTART: Duration = Duration::from_secs(1);

/// Why the scheduler cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Config(String),
}

/// What the informers' handlers and the cycle share.
pub struct Shared {
    pub state: Mutex<State>,
    /// Told when `pop` may have a pod.
    pub wake: Notify,
    pub scheduler_name: String,
}

/// Held for one change or one cycle at a time, so that no change falls between looking and putting back.
pub struct State {
    pub cluster: Cluster,
    pub queue: SchedulingQueue,
    scheduler: Scheduler,
}

impl Shared {
    /// Changes the state and puts forward the pods that this may help.
    pub fn change(&self, apply: impl FnOnce(&mut State), change: &Change<'_>) {
        let mut state = self.state.lock();
        apply(&mut state);
        state.queue.on_change(change, Instant::now());
        drop(state);
        self.wake.notify_one();
    }
}

/// Schedules until `shutdown`; if `config.leader_elect`, only while holding the lease `kube-system/kube-scheduler`,
/// which is sought again when lost.
pub async fn run(
    client: Client,
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    if config.scheduler_name.is_empty() {
        return Err(Error::Config("the scheduler needs a name".into()));
    }
    let client = client.with_user_agent("kube-scheduler");
    let source = Source {
        component: config.scheduler_name.clone(),
        host: String::new(),
    };
    let recorder = Recorder::new(client.clone(), source);
    while !shutdown.is_cancelled() {
        let lead = |leading| lead(client.clone(), config.clone(), recorder.clone(), leading);
        if config.leader_elect {
            let mut lease = LeaderConfig::new("kube-scheduler", &config.host);
            lease.lease_duration = config.leader_lease_duration;
            lease.renew_deadline = config.leader_renew_deadline;
            lease.retry_period = config.leader_retry_period;
            let mut elector =
                LeaderElector::new(client.clone(), lease).with_recorder(recorder.clone());
            elector.run(&shutdown, lead).await;
        } else {
            lead(shutdown.child_token()).await;
        }
        let _ = tokio::time::timeout(RESTART, shutdown.cancelled()).await;
    }
    Ok(())
}

/// One term of leadership, with informers of its own.
async fn lead(
    client: Client,
    config: SchedulerConfig,
    recorder: Recorder,
    leading: CancellationToken,
) {
    let factory = Factory::new(client.clone(), leading.clone());
    let informers = Informers::new(&factory);
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            cluster: Cluster::default(),
            queue: SchedulingQueue::new(config.pod_initial_backoff, config.pod_max_backoff),
            scheduler: Scheduler::new(config.percentage_of_nodes_to_score),
        }),
        wake: Notify::new(),
        scheduler_name: config.scheduler_name,
    });
    let mut worker = Worker {
        shared: shared.clone(),
        pods: informers.pods.clone(),
        client,
        recorder,
        writes: JoinSet::new(),
    };
    let work = async {
        informers.synced().await;
        informers.feed(&shared);
        worker.run().await;
    };
    tokio::select! {
        () = leading.cancelled() => {}
        () = work => {}
        ended = factory.join() => if let Err(error) = ended {
            tracing::error!(%error, "restarting the scheduler");
        },
    }
    leading.cancel();
    // What was sent is waited for, so that nothing is written after the lease is given up.
    while worker.writes.join_next().await.is_some() {}
}

/// The loop and what it writes with.
struct Worker {
    shared: Arc<Shared>,
    pods: client::Informer<Pod>,
    client: Client,
    recorder: Recorder,
    writes: JoinSet<Written>,
}

/// How a write ended.
enum Written {
    Bound {
        queued: QueuedPod,
        node: String,
        result: Result<(), ClientError>,
    },
    Status,
}

/// What a cycle came to.
enum Step {
    Bind { queued: QueuedPod, node: String },
    Failed { pod: Arc<Pod>, error: FitError },
    Idle(Option<Instant>),
}

impl Worker {
    async fn run(&mut self) {
        loop {
            while let Some(written) = self.writes.try_join_next() {
                self.written(written);
            }
            if self.writes.len() >= MAX_WRITES {
                if let Some(written) = self.writes.join_next().await {
                    self.written(written);
                }
                continue;
            }
            match self.step() {
                Step::Bind { queued, node } => {
                    let client = self.client.clone();
                    self.writes.spawn(async move {
                        let result = bind(&client, &queued.pod, &node).await;
                        Written::Bound {
                            queued,
                            node,
                            result,
                        }
                    });
                }
                Step::Failed { pod, error } => {
                    self.report(&pod, "Unschedulable", &error.to_string())
                }
                Step::Idle(due) => self.idle(due).await,
            }
            tokio::task::consume_budget().await;
        }
    }

    /// Takes the next pod and decides.
    fn step(&self) -> Step {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let Some(queued) = state.queue.pop(now) else {
            return Step::Idle(state.queue.next_due());
        };
        let State {
            cluster,
            queue,
            scheduler,
        } = &mut *state;
        match scheduler.schedule(&queued.pod, cluster) {
            Ok(index) => {
                let node = cluster.node(index).name.clone();
                cluster.assume(queued.pod.clone(), index);
                queue.on_change(&Change::PodAdded(&queued.pod), now);
                Step::Bind { queued, node }
            }
            Err(error) => {
                let pod = queued.pod.clone();
                queue.failed(queued, pod.clone(), error.plugins.clone(), now);
                Step::Failed { pod, error }
            }
        }
    }

    /// Waits for a change, a due back-off, or the end of a write.
    async fn idle(&mut self, due: Option<Instant>) {
        let due = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shared.wake.notified() => {}
            () = due => {}
            Some(written) = self.writes.join_next() => self.written(written),
        }
    }

    fn written(&mut self, written: Result<Written, tokio::task::JoinError>) {
        match written {
            Ok(Written::Bound {
                queued,
                node,
                result: Ok(()),
            }) => {
                let pod = &queued.pod;
                let message = format!(
                    "Successfully assigned {}/{} to {node}",
                    pod.namespace, pod.name
                );
                self.recorder
                    .event(&reference(pod), EventKind::Normal, "Scheduled", message);
            }
            Ok(Written::Bound {
                queued,
                node,
                result: Err(error),
            }) => self.not_bound(queued, &node, &error),
            Ok(Written::Status) => {}
            Err(error) => tracing::error!(%error, "a write of the scheduler failed"),
        }
    }

    /// Takes the decision back. If the Binding was accepted after all, the watch will show the pod's node.
    fn not_bound(&mut self, queued: QueuedPod, node: &str, error: &ClientError) {
        let pod = queued.pod.clone();
        let now = Instant::now();
        // Read before the state is locked: the informer may be waiting for it.
        let newest = self.pods.get(&pod.key());
        let mut state = self.shared.state.lock();
        if !state.cluster.forget(&pod.uid) {
            return;
        }
        state.queue.on_change(&Change::PodDeleted(&pod), now);
        let newest = newest.filter(|newest| {
            newest.uid == pod.uid && newest.node_name.is_empty() && !newest.is_deleting
        });
        let Some(newest) = newest.filter(|_| !error.is_not_found()) else {
            return;
        };
        state.queue.retry_later(queued, newest, now);
        drop(state);
        self.shared.wake.notify_one();
        tracing::warn!(pod = pod.key(), node, %error, "the binding failed, will be retried");
        self.report(
            &pod,
            "SchedulerError",
            &format!("running Bind plugin \"DefaultBinder\": {error}"),
        );
    }

    /// Tells in an event and in the pod's condition why it has no node.
    fn report(&mut self, pod: &Arc<Pod>, reason: &'static str, message: &str) {
        self.recorder.event(
            &reference(pod),
            EventKind::Warning,
            "FailedScheduling",
            message,
        );
        let same = pod.scheduled.as_ref().is_some_and(|present| {
            (
                present.status.as_str(),
                present.reason.as_str(),
                present.message.as_str(),
            ) == ("False", reason, message)
        });
        if same {
            return;
        }
        let first = pod
            .scheduled
            .as_ref()
            .is_none_or(|present| present.status != "False");
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "observedGeneration": pod.generation,
        });
        if first {
            condition["lastTransitionTime"] = json!(now_text());
        }
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": &*pod.uid},
            "status": {"conditions": [condition]},
        }));
        let (client, pod) = (self.client.clone(), pod.clone());
        self.writes.spawn(async move {
            let options = WriteOptions::default();
            let patched =
                client.patch::<Value>(&PODS, &pod.namespace, &pod.name, "status", &patch, &options);
            if let Err(error) = patched.await
                && !error.is_not_found()
            {
                tracing::debug!(pod = pod.key(), %error, "cannot set the PodScheduled condition");
            }
            Written::Status
        });
    }
}

/// Writes the Binding.
async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), ClientError> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": &*pod.uid},
        "target": {"kind": "Node", "name": node},
    });
    let options = WriteOptions::default();
    client
        .create_subresource::<_, Value>(
            &PODS,
            &pod.namespace,
            &pod.name,
            "binding",
            &binding,
            &options,
        )
        .await
        .map(drop)
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference::pod(&pod.namespace, &pod.name, &pod.uid, &pod.resource_version)
}

#[cfg(test)]
mod tests;
