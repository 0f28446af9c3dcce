//! What a pod's worker remembers between two looks at the runtime: why a
//! container waits, how long it backs off, what its probes said. None of it is
//! needed for correctness after a restart of the kubelet; it starts empty.

use std::collections::BTreeMap;

use super::back_off::BackOff;
use super::view::Nanos;
use crate::k8s::{PodStatus, ResourceRequirements};

/// A pod's memory. Written by the pod's worker alone.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By name of the container.
    pub containers: BTreeMap<String, ContainerMemory>,
    /// Failures to create the sandbox since the last success, and when to try again.
    pub sandbox_failures: u32,
    /// Not before this time is another sandbox tried.
    pub sandbox_retry_at: Nanos,
    /// A verdict that overrides what the containers say: rejected, evicted, out of time.
    pub verdict: Option<Verdict>,
    /// The status the API had when the worker started, for what CRI cannot tell.
    pub at_start: PodStatus,
}

/// A pod's end that its containers did not choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `Evicted`, `DeadlineExceeded`, `OutOfcpu`, …
    pub reason: String,
    /// For people.
    pub message: String,
    /// Reason and message of a DisruptionTarget condition, when the kubelet ends the pod.
    pub disruption: Option<(String, String)>,
    /// The node did not take the pod, so nothing of it ever ran.
    pub rejected: bool,
}

/// What is remembered of one container.
#[derive(Clone, Debug, Default)]
pub struct ContainerMemory {
    /// Why the last attempt to start it failed, until it starts.
    pub waiting: Option<Waiting>,
    /// After crashes.
    pub crash: BackOff,
    /// Not before this time is a failed creation tried again.
    pub retry_at: Nanos,
    /// After failed pulls.
    pub pull: BackOff,
    /// A failed pull, and when it is shown as the wait that follows it.
    pub pull_error: Option<(Nanos, String)>,
    /// What its probes say of the instance they ran in.
    pub probes: ProbeState,
    /// The instance and the resources it was last given.
    pub given: Option<(String, ResourceRequirements)>,
    /// It is being started right now: its last crash has had its answer.
    pub starting: bool,
    /// The resources of the instance that is being started.
    pub starting_with: ResourceRequirements,
}

/// The `waiting` state of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// `ErrImagePull`, `CrashLoopBackOff`, `CreateContainerConfigError`, …
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What the probes of one instance said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeState {
    /// The instance; results of another one are void.
    pub container_id: String,
    /// The readiness probe's standing.
    pub ready: bool,
    /// The startup probe passed.
    pub started: bool,
    /// The postStart hook of this instance has not returned yet.
    pub post_start_pending: bool,
    /// The probe whose failure asks for a restart.
    pub failed: Option<FailedProbe>,
}

/// A liveness or startup probe that failed often enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedProbe {
    /// `liveness` or `startup`, as the event says it.
    pub kind: &'static str,
    /// The probe's own terminationGracePeriodSeconds.
    pub grace_seconds: Option<i64>,
}

impl Memory {
    /// The memory of one container, made on first use.
    pub fn container(&mut self, name: &str) -> &mut ContainerMemory {
        if !self.containers.contains_key(name) {
            self.containers
                .insert(name.to_owned(), ContainerMemory::default());
        }
        self.containers
            .get_mut(name)
            .expect("it was inserted above if it was missing")
    }

    /// The resources the instance `id` of `name` has, where that is known.
    pub fn given(&self, name: &str, id: &str) -> Option<&ResourceRequirements> {
        let (of, given) = self.containers.get(name)?.given.as_ref()?;
        (of == id).then_some(given)
    }

    /// The probes' standing of the instance `id` of `name`.
    pub fn probes(&self, name: &str, id: &str) -> Option<&ProbeState> {
        let probes = &self.containers.get(name)?.probes;
        (probes.container_id == id).then_some(probes)
    }
}
