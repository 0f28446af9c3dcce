//! A pod's status, computed from its spec, what the runtime shows and what the
//! worker remembers. Pure; `conditions` makes the conditions, `patch` says what
//! to send. **Invariant:** a phase that is terminal never turns back.

use super::conditions;
use super::memory::{Memory, Verdict, Waiting};
use super::spec::{self, Kind, Slot};
use super::view::{ContainerView, Nanos, PodView, State};
use crate::k8s::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, HostIP, LinuxContainerUser, Pod, PodIP,
    PodStatus, ResourceRequirements, Time, Timestamp, VolumeMountStatus,
};

/// The exit code of a container whose end nobody saw, as upstream has it.
const LOST_EXIT_CODE: i32 = 137;
const LOST_REASON: &str = "ContainerStatusUnknown";
const LOST_MESSAGE: &str = "The container could not be located when the pod was terminated";

/// What the status is made from.
pub struct Input<'a> {
    /// The pod as the API has it.
    pub pod: &'a Pod,
    /// What the runtime has.
    pub view: &'a PodView,
    /// What the worker remembers.
    pub memory: &'a Memory,
    /// Containers that back off, from the plan.
    pub waiting: &'a [(String, Waiting)],
    /// The status before this one; conditions and addresses carry over.
    pub previous: &'a PodStatus,
    /// The node's addresses.
    pub host_ips: &'a [String],
    /// `containerd`: the scheme of container ids.
    pub runtime_name: &'a str,
    /// No container will be started any more and none is running.
    pub over: bool,
    /// The time.
    pub now: Nanos,
}

/// Computes the status.
pub fn status(input: &Input<'_>) -> PodStatus {
    if let Some(verdict) = input
        .memory
        .verdict
        .as_ref()
        .filter(|verdict| verdict.rejected)
    {
        return rejected(input, verdict);
    }
    let slots = spec::slots(input.pod);
    let of = |kinds: &[Kind]| -> Vec<ContainerStatus> {
        let wanted = slots.iter().filter(|slot| kinds.contains(&slot.kind));
        wanted.map(|slot| container_status(input, slot)).collect()
    };
    let init = of(&[Kind::Init, Kind::Sidecar]);
    let regular = of(&[Kind::Regular]);
    let ephemeral = of(&[Kind::Ephemeral]);
    let phase = kept_phase(input, phase(input, &slots, &init, &regular));
    let verdict = verdict(input);
    let ips = pod_ips(input);
    let mut status = PodStatus {
        host_ip: input.host_ips.first().cloned(),
        host_ips: some(
            input
                .host_ips
                .iter()
                .map(|ip| HostIP { ip: ip.clone() })
                .collect(),
        ),
        pod_ip: ips.first().cloned(),
        pod_ips: some(ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: input
            .previous
            .start_time
            .clone()
            .or_else(|| Some(time(input.now))),
        qos_class: Some(crate::resources::qos_class(input.pod).to_owned()),
        observed_generation: input.pod.metadata.generation,
        phase: Some(phase.to_owned()),
        reason: verdict.map(|verdict| verdict.reason.clone()),
        message: verdict.map(|verdict| verdict.message.clone()),
        init_container_statuses: some(init),
        container_statuses: some(regular),
        ephemeral_container_statuses: some(ephemeral),
        // The kubelet does not own these: they are the scheduler's and the API's.
        nominated_node_name: input.previous.nominated_node_name.clone(),
        resource_claim_statuses: input.previous.resource_claim_statuses.clone(),
        resources: input
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.clone()),
        ..PodStatus::default()
    };
    status.conditions = Some(conditions::conditions(input, &status));
    status
}

/// The verdict, once it holds: until the last container has ended, the pod is told of as it was, since it still uses
/// what its end would give free (upstream's `mergePodStatus`).
pub(super) fn verdict<'a>(input: &Input<'a>) -> Option<&'a Verdict> {
    let verdict = input.memory.verdict.as_ref();
    verdict.filter(|_| !may_run(input) || has_ended(input))
}

fn may_run(input: &Input<'_>) -> bool {
    input.view.containers.iter().any(ContainerView::is_running)
}

fn has_ended(input: &Input<'_>) -> bool {
    matches!(
        input.previous.phase.as_deref(),
        Some("Succeeded" | "Failed")
    )
}

/// Of a pod that the node did not take, the API is told that and nothing else
/// (upstream's `rejectPod`).
fn rejected(input: &Input<'_>, verdict: &Verdict) -> PodStatus {
    PodStatus {
        start_time: input
            .previous
            .start_time
            .clone()
            .or_else(|| Some(time(input.now))),
        qos_class: Some(crate::resources::qos_class(input.pod).to_owned()),
        observed_generation: input.pod.metadata.generation,
        phase: Some("Failed".to_owned()),
        reason: Some(verdict.reason.clone()),
        message: Some(verdict.message.clone()),
        conditions: input.previous.conditions.clone(),
        ..PodStatus::default()
    }
}

/// Nanoseconds as the API's time, which has whole seconds.
pub fn time(nanos: Nanos) -> Time {
    let seconds = nanos.div_euclid(super::back_off::SECOND);
    Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// A dead sandbox has no address, but a finished pod keeps showing the one it had.
fn pod_ips(input: &Input<'_>) -> Vec<String> {
    if spec::host_network(input.pod) {
        return input.host_ips.to_vec();
    }
    match input.view.ready_sandbox() {
        Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
        _ => input
            .previous
            .pod_ips
            .iter()
            .flatten()
            .map(|ip| ip.ip.clone())
            .collect(),
    }
}

fn container_status(input: &Input<'_>, slot: &Slot<'_>) -> ContainerStatus {
    let name = slot.name();
    let Some(latest) = input.view.latest(name) else {
        return unborn_status(input, slot);
    };
    let previous = input.view.previous(name, latest);
    let waiting = waiting_of(input, name).filter(|_| !latest.is_running() && !input.over);
    let ended = latest.state == State::Exited;
    let (state, last) = match waiting {
        Some(waiting) if ended => (waiting_state(&waiting), Some(latest)),
        Some(waiting) => (waiting_state(&waiting), previous),
        None => (state_of(input, latest), previous),
    };
    let probes = input.memory.probes(name, &latest.id);
    let started = latest.is_running() && is_started(slot, probes);
    let succeeded = ended && latest.exit_code == 0 && state.terminated.is_some();
    let ready = match slot.kind {
        Kind::Init => succeeded,
        Kind::Ephemeral => false,
        Kind::Regular | Kind::Sidecar => {
            let passed = slot.container.readiness_probe.is_none()
                || probes.is_some_and(|probes| probes.ready);
            started && passed
        }
    };
    ContainerStatus {
        name: name.to_owned(),
        image: latest.image.clone(),
        image_id: latest.image_id.clone(),
        container_id: Some(format!("{}://{}", input.runtime_name, latest.id)),
        restart_count: i32::try_from(latest.restart_count).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(last.map(|last| terminated(input, last)).unwrap_or_default()),
        ready,
        started: (slot.kind != Kind::Ephemeral).then_some(started),
        allocated_resources: requests(&slot.container),
        resources: Some(
            input
                .memory
                .given(name, &latest.id)
                .cloned()
                .unwrap_or_else(|| resources(&slot.container)),
        ),
        user: latest.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: some(user.supplemental_groups.clone()),
            }),
        }),
        volume_mounts: volume_mounts(&slot.container),
        ..ContainerStatus::default()
    }
}

fn requests(
    container: &Container,
) -> Option<std::collections::BTreeMap<String, crate::k8s::Quantity>> {
    container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.clone())
}

fn resources(container: &Container) -> ResourceRequirements {
    container.resources.clone().unwrap_or_default()
}

fn is_started(slot: &Slot<'_>, probes: Option<&super::memory::ProbeState>) -> bool {
    match probes {
        Some(probes) => {
            !probes.post_start_pending && (slot.container.startup_probe.is_none() || probes.started)
        }
        None => slot.container.startup_probe.is_none(),
    }
}

/// A container of which the runtime has nothing.
fn unborn_status(input: &Input<'_>, slot: &Slot<'_>) -> ContainerStatus {
    let name = slot.name();
    let lists = [
        &input.previous.init_container_statuses,
        &input.previous.container_statuses,
        &input.previous.ephemeral_container_statuses,
    ];
    let before = lists
        .into_iter()
        .flatten()
        .flatten()
        .find(|status| status.name == name);
    let ran = before.filter(|before| before.container_id.is_some());
    let waiting = waiting_of(input, name).unwrap_or_else(|| Waiting {
        reason: default_waiting(input.pod).to_owned(),
        message: String::new(),
    });
    let state = match ran {
        Some(before) if input.over => before
            .state
            .clone()
            .filter(|state| state.terminated.is_some())
            .unwrap_or_else(|| lost_state(None)),
        _ => waiting_state(&waiting),
    };
    let last_state = before
        .and_then(|before| before.last_state.clone())
        .unwrap_or_default();
    ContainerStatus {
        name: name.to_owned(),
        image: slot.container.image.clone().unwrap_or_default(),
        container_id: ran
            .filter(|_| input.over)
            .and_then(|before| before.container_id.clone()),
        restart_count: before.map_or(0, |before| before.restart_count),
        state: Some(state),
        last_state: Some(last_state),
        started: (slot.kind != Kind::Ephemeral).then_some(false),
        volume_mounts: volume_mounts(&slot.container),
        ..ContainerStatus::default()
    }
}

/// What a container waits for when nothing went wrong.
fn default_waiting(pod: &Pod) -> &'static str {
    let spec = pod.spec.as_ref();
    let has_init = spec.is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
    if has_init {
        "PodInitializing"
    } else {
        "ContainerCreating"
    }
}

fn waiting_of(input: &Input<'_>, name: &str) -> Option<Waiting> {
    let planned = input.waiting.iter().find(|(waiting, _)| waiting == name);
    planned.map(|(_, waiting)| waiting.clone()).or_else(|| {
        let memory = input.memory.containers.get(name)?;
        memory.waiting.clone()
    })
}

fn waiting_state(waiting: &Waiting) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(waiting.reason.clone()),
            message: Some(waiting.message.clone()).filter(|message| !message.is_empty()),
        }),
        ..ContainerState::default()
    }
}

fn state_of(input: &Input<'_>, container: &ContainerView) -> ContainerState {
    match container.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(time(container.started_at)),
            }),
            ..ContainerState::default()
        },
        State::Exited => terminated(input, container),
        State::Created => waiting_state(&Waiting {
            reason: default_waiting(input.pod).to_owned(),
            message: String::new(),
        }),
        State::Unknown => lost_state(Some(format!("{}://{}", input.runtime_name, container.id))),
    }
}

fn terminated(input: &Input<'_>, container: &ContainerView) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(format!("{}://{}", input.runtime_name, container.id)),
            exit_code: container.exit_code,
            reason: Some(container.reason.clone()).filter(|reason| !reason.is_empty()),
            message: Some(container.message.clone()).filter(|message| !message.is_empty()),
            started_at: Some(time(container.started_at)),
            finished_at: Some(time(container.finished_at)),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

fn lost_state(container_id: Option<String>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id,
            exit_code: LOST_EXIT_CODE,
            reason: Some(LOST_REASON.to_owned()),
            message: Some(LOST_MESSAGE.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// What each mount became (KEP-3857); recursive read-only mounts need a newer runtime.
fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.iter().flatten().map(|mount| {
        let read_only = mount.read_only.unwrap_or(false);
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| "Disabled".to_owned()),
            ..VolumeMountStatus::default()
        }
    });
    some(mounts.collect())
}

/// A phase the API was told is not taken back, a verdict is an end, and none comes before the last container's.
fn kept_phase(input: &Input<'_>, computed: &'static str) -> &'static str {
    match input.previous.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let ended = matches!(computed, "Succeeded" | "Failed");
    match (verdict(input), input.previous.phase.as_deref()) {
        (Some(_), _) => "Failed",
        (None, Some("Running")) if ended && may_run(input) => "Running",
        (None, _) if ended && may_run(input) => "Pending",
        (None, _) if input.over && !ended => "Failed",
        (None, _) => computed,
    }
}

#[derive(Default)]
struct Count {
    waiting: usize,
    running: usize,
    stopped: usize,
    succeeded: usize,
}

/// The phase as the containers say it (upstream's `getPhase`).
fn phase(
    input: &Input<'_>,
    slots: &[Slot<'_>],
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
) -> &'static str {
    let policy = spec::restart_policy(input.pod).unwrap_or("Always");
    let begun = regular.iter().any(|status| status.container_id.is_some());
    for status in init.iter().filter(|_| !begun) {
        let slot = slots.iter().find(|slot| slot.name() == status.name);
        let sidecar = slot.is_some_and(|slot| slot.kind == Kind::Sidecar);
        let done = if sidecar {
            status.started == Some(true)
        } else {
            status.ready
        };
        let failed = !sidecar
            && slot.is_some_and(|slot| {
                let exit = exit_code(status.state.as_ref());
                exit.is_some_and(|code| code != 0 && !spec::restarts_after(input.pod, slot, code))
            });
        match (done, failed) {
            (true, _) => {}
            (false, true) => return "Failed",
            (false, false) => return "Pending",
        }
    }
    let mut count = Count::default();
    for status in regular {
        let state = status.state.as_ref();
        let last = exit_code(status.last_state.as_ref());
        if state.is_some_and(|state| state.running.is_some()) {
            count.running += 1;
        } else if let Some(code) = exit_code(state) {
            count.stopped += 1;
            count.succeeded += usize::from(code == 0);
        } else if last.is_some() {
            count.stopped += 1;
        } else {
            count.waiting += 1;
        }
    }
    let restarting = regular.iter().any(|status| {
        let code = exit_code(status.state.as_ref());
        let slot = slots.iter().find(|slot| slot.name() == status.name);
        slot.zip(code)
            .is_some_and(|(slot, code)| spec::restarts_after(input.pod, slot, code))
    });
    let ended = if count.stopped == count.succeeded {
        "Succeeded"
    } else {
        "Failed"
    };
    match count {
        Count { waiting: 1.., .. } => "Pending",
        Count { running: 1.., .. } => "Running",
        Count { stopped: 1.., .. } if input.over => ended,
        Count { stopped: 1.., .. } if restarting || policy == "Always" => "Running",
        Count {
            stopped: 1..,
            succeeded,
            ..
        } if policy == "OnFailure" && count.stopped != succeeded => "Running",
        Count { stopped: 1.., .. } => ended,
        _ => "Pending",
    }
}

fn exit_code(state: Option<&ContainerState>) -> Option<i32> {
    state
        .and_then(|state| state.terminated.as_ref())
        .map(|terminated| terminated.exit_code)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
