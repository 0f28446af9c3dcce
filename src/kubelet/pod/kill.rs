//! Stopping containers: preStop hook, stop signal, and SIGKILL when the grace
//! period is over; sidecars after the containers they serve, last one first.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::hooks;
use super::reporter::Reporter;
use super::shared::Shared;
use super::spec::{self, Kind, Slot};
use super::view::{ContainerView, State};
use crate::cri::{CriError, labels};
use crate::k8s::{Container, LifecycleHandler, Pod};

/// What a hook leaves to the signal at least (upstream's `minimumGracePeriodInSeconds`).
const MINIMUM_GRACE_SECONDS: i64 = 2;

/// How one container is to be killed.
pub struct Job {
    /// What the kubelet has.
    pub shared: Arc<Shared>,
    /// The pod; none if the API does not know it.
    pub pod: Arc<Pod>,
    /// The instance.
    pub container: ContainerView,
    /// What the event says; none for "Stopping container x".
    pub message: Option<String>,
    /// Seconds from the hook's begin to SIGKILL.
    pub grace_seconds: i64,
    /// The pod's first address, for hooks.
    pub pod_ip: String,
    /// Events about the pod.
    pub reporter: Reporter,
}

/// Kills one container and returns when it is dead.
pub async fn kill(job: Job) -> Result<(), CriError> {
    let name = &job.container.name;
    let slot = spec::slot(&job.pod, name);
    let path = slot
        .as_ref()
        .map_or_else(|| format!("spec.containers{{{name}}}"), Slot::field_path);
    let events = job.reporter.container(path);
    if job.container.state == State::Running {
        let message = job
            .message
            .clone()
            .unwrap_or_else(|| format!("Stopping container {name}"));
        events.normal("Killing", message);
    }
    let mut grace = job.grace_seconds;
    let hook = pre_stop(slot.as_ref(), &job.container);
    if let Some(hook) = hook.filter(|_| grace > 0 && job.container.is_running()) {
        let started = Instant::now();
        let container = slot
            .map(|slot| slot.container.into_owned())
            .unwrap_or_else(|| Container {
                name: name.clone(),
                ..Container::default()
            });
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let (runtime, id) = (&job.shared.runtime, &job.container.id);
        let run = hooks::run(runtime, &job.pod, &container, id, &job.pod_ip, &hook);
        match tokio::time::timeout(limit, run).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => events.warning("FailedPreStopHook", error),
            Err(_) => tracing::info!(
                pod = spec::describe(&job.pod),
                container = name,
                "a preStop hook took the whole grace period"
            ),
        }
        let took = i64::try_from(started.elapsed().as_secs()).unwrap_or(grace);
        grace = (grace - took).max(MINIMUM_GRACE_SECONDS);
    }
    job.shared
        .runtime
        .stop_container(&job.container.id, grace)
        .await
}

/// The hook of the spec, or the one the container was made with when the spec is gone.
fn pre_stop(slot: Option<&Slot<'_>>, container: &ContainerView) -> Option<LifecycleHandler> {
    match slot {
        Some(slot) => slot.container.lifecycle.as_ref()?.pre_stop.clone(),
        None => serde_json::from_str(container.annotation(labels::PRE_STOP)).ok(),
    }
}

/// Kills every container of a pod.
pub struct PodJob {
    /// What the kubelet has.
    pub shared: Arc<Shared>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Those that may have a process.
    pub containers: Vec<ContainerView>,
    /// Seconds for all of it.
    pub grace_seconds: i64,
    /// The pod's first address.
    pub pod_ip: String,
    /// Events about the pod.
    pub reporter: Reporter,
}

/// Kills them all; the first error is answered when everything was tried.
pub async fn kill_pod(job: PodJob) -> Result<(), CriError> {
    let started = Instant::now();
    let slots = spec::slots(&job.pod);
    let sidecar_rank = |container: &ContainerView| {
        slots
            .iter()
            .position(|slot| slot.name() == container.name && slot.kind == Kind::Sidecar)
    };
    let (mut sidecars, others): (Vec<_>, Vec<_>) = job
        .containers
        .iter()
        .cloned()
        .partition(|container| sidecar_rank(container).is_some());
    sidecars.sort_by_key(|container| std::cmp::Reverse(sidecar_rank(container)));
    let left = || {
        let elapsed = i64::try_from(started.elapsed().as_secs()).unwrap_or(job.grace_seconds);
        let left = job.grace_seconds - elapsed;
        // A sidecar gets a little time even when the others took it all.
        if job.grace_seconds == 0 {
            0
        } else {
            left.max(MINIMUM_GRACE_SECONDS.min(job.grace_seconds))
        }
    };
    let one = |container: ContainerView, grace_seconds: i64| {
        kill(Job {
            shared: job.shared.clone(),
            pod: job.pod.clone(),
            container,
            message: None,
            grace_seconds,
            pod_ip: job.pod_ip.clone(),
            reporter: job.reporter.clone(),
        })
    };
    let results = join_all(
        others
            .into_iter()
            .map(|container| one(container, job.grace_seconds)),
    );
    let mut result: Result<(), CriError> = results.await.into_iter().collect();
    for container in sidecars {
        let killed = one(container, left()).await;
        result = result.and(killed);
    }
    result
}
