//! What a running pod needs next: `plan(&Input) -> Plan`, pure. It compares the
//! spec with what the runtime has and names the sandbox to make or stop, the
//! containers to start and to kill, and when to look again. It must not know
//! how any of it is done; `worker` applies it.
//!
//! **Invariant:** an action is only ever planned from what the runtime shows,
//! so planning twice from the same view plans the same thing.

use super::memory::{Memory, Waiting};
use super::spec::{self, Kind, Slot};
use super::view::{ContainerView, Nanos, PodView, SandboxView, State};
use crate::k8s::Pod;
use crate::resources;

/// What is looked at.
pub struct Input<'a> {
    /// The pod as the API has it.
    pub pod: &'a Pod,
    /// What the runtime has of it.
    pub view: &'a PodView,
    /// What the worker remembers.
    pub memory: &'a Memory,
    /// The time.
    pub now: Nanos,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a sandbox; `changed` when it replaces one.
    CreateSandbox {
        /// How many came before.
        attempt: u32,
        /// An earlier one is no longer fit.
        changed: bool,
    },
    /// Kill what is in these sandboxes and stop them.
    StopSandboxes {
        /// Runtime ids.
        ids: Vec<String>,
    },
    /// Start a container in the ready sandbox.
    Start {
        /// Its name.
        name: String,
        /// How many instances came before.
        restart_count: u32,
        /// An instance that never ran, to be removed first.
        replaces: Option<String>,
        /// When the instance before ended, if it did: a crash to count.
        crashed_at: Option<Nanos>,
    },
    /// Give a running container other resources.
    Resize {
        /// Runtime id.
        id: String,
        /// Its name.
        name: String,
    },
    /// Kill a container.
    Kill {
        /// Runtime id.
        id: String,
        /// Its name.
        name: String,
        /// What the `Killing` event says.
        message: String,
        /// Instead of the pod's grace period, seconds.
        grace_seconds: Option<i64>,
    },
}

/// What to do now, and what follows from looking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order; the worker starts one container at a time.
    pub actions: Vec<Action>,
    /// The soonest time at which the plan changes by itself.
    pub wake_at: Option<Nanos>,
    /// Containers that wait for their back-off.
    pub waiting: Vec<(String, Waiting)>,
    /// Every container has ended for good: the pod is done.
    pub finished: bool,
}

impl Plan {
    fn wake(&mut self, at: Nanos) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

/// Plans for a pod that is to run.
pub fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    match usable_sandbox(input.view) {
        Some(sandbox) => plan_containers(input, sandbox, &mut plan),
        None => plan_sandbox(input, &mut plan),
    }
    plan
}

/// The sandbox containers can run in: the newest, alone in being ready, and
/// with an address unless it has the host's network.
fn usable_sandbox(view: &PodView) -> Option<&SandboxView> {
    let sandbox = view.ready_sandbox()?;
    let alone = view
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .count()
        == 1;
    (alone && (sandbox.host_network || !sandbox.ips.is_empty())).then_some(sandbox)
}

fn plan_sandbox(input: &Input<'_>, plan: &mut Plan) {
    let old: Vec<_> = input
        .view
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .collect();
    let leftovers = input.view.alive().next().is_some();
    if !old.is_empty() || leftovers {
        let in_use = input
            .view
            .alive()
            .map(|container| container.sandbox_id.clone());
        let mut ids: Vec<_> = old
            .iter()
            .map(|sandbox| sandbox.id.clone())
            .chain(in_use)
            .collect();
        ids.sort();
        ids.dedup();
        plan.actions.push(Action::StopSandboxes { ids });
        return;
    }
    if !input.view.containers.is_empty() && !wants_to_run(input) {
        plan.finished = true;
        return;
    }
    if input.memory.sandbox_retry_at > input.now {
        plan.wake(input.memory.sandbox_retry_at);
        return;
    }
    let newest = input.view.sandbox();
    plan.actions.push(Action::CreateSandbox {
        attempt: newest.map_or(0, |sandbox| sandbox.attempt + 1),
        changed: newest.is_some(),
    });
}

/// Whether a pod without a sandbox has anything left to run. Containers that
/// never started count only while their policy lets the pod start over.
fn wants_to_run(input: &Input<'_>) -> bool {
    let slots = spec::slots(input.pod);
    let regular = slots.iter().filter(|slot| slot.kind == Kind::Regular);
    let never = spec::restart_policy(input.pod) == Some("Never");
    let mut any = false;
    for slot in regular {
        match input.view.latest(slot.name()) {
            None => any |= !never,
            Some(container) => any |= restarts(input.pod, slot, container),
        }
    }
    any
}

fn restarts(pod: &Pod, slot: &Slot<'_>, container: &ContainerView) -> bool {
    container.state != State::Exited || spec::restarts_after(pod, slot, container.exit_code)
}

fn plan_containers(input: &Input<'_>, sandbox: &SandboxView, plan: &mut Plan) {
    let slots = spec::slots(input.pod);
    let init = slots
        .iter()
        .filter(|slot| matches!(slot.kind, Kind::Init | Kind::Sidecar));
    let regular: Vec<_> = slots
        .iter()
        .filter(|slot| slot.kind == Kind::Regular)
        .collect();
    let begun = regular
        .iter()
        .any(|slot| input.view.latest_in(&sandbox.id, slot.name()).is_some());
    let initialized = begun || {
        let outcome = plan_init(input, sandbox, init.clone(), plan);
        if outcome == Init::Failed {
            plan.finished = true;
        }
        outcome == Init::Done
    };
    for slot in slots.iter().filter(|slot| slot.kind == Kind::Ephemeral) {
        if input.view.latest(slot.name()).is_none() {
            start(input, slot, plan);
        }
    }
    if !initialized {
        return;
    }
    let mut kept = 0;
    for slot in &regular {
        kept += usize::from(plan_regular(input, sandbox, slot, plan));
    }
    if kept == 0 {
        plan.actions.clear();
        plan.finished = true;
    } else if begun {
        for slot in init.filter(|slot| slot.kind == Kind::Sidecar) {
            plan_regular(input, sandbox, slot, plan);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Init {
    Done,
    Pending,
    Failed,
}

/// Walks the init containers of a sandbox in which no regular one has started.
fn plan_init<'s, 'p: 's>(
    input: &Input<'_>,
    sandbox: &SandboxView,
    slots: impl Iterator<Item = &'s Slot<'p>>,
    plan: &mut Plan,
) -> Init {
    for slot in slots {
        let Some(container) = input.view.latest_in(&sandbox.id, slot.name()) else {
            start(input, slot, plan);
            return Init::Pending;
        };
        match (slot.kind, container.state) {
            (_, State::Running) => {
                if kill_if_unfit(input, slot, container, plan) {
                    return Init::Pending;
                }
                let started = slot.kind == Kind::Sidecar && is_started(input, slot, container);
                if !started {
                    return Init::Pending;
                }
            }
            (Kind::Init, State::Exited) if container.exit_code == 0 => {}
            (Kind::Init, State::Exited)
                if !spec::restarts_after(input.pod, slot, container.exit_code) =>
            {
                return Init::Failed;
            }
            _ => {
                start(input, slot, plan);
                return Init::Pending;
            }
        }
    }
    Init::Done
}

/// Whether the containers after a sidecar may start: its startup probe passed,
/// or it has none and its postStart hook returned.
fn is_started(input: &Input<'_>, slot: &Slot<'_>, container: &ContainerView) -> bool {
    match input.memory.probes(slot.name(), &container.id) {
        Some(probes) if slot.container.startup_probe.is_some() => probes.started,
        Some(probes) => !probes.post_start_pending,
        None => slot.container.startup_probe.is_none(),
    }
}

/// Plans one container that is to be kept running; says whether it runs or will.
fn plan_regular(
    input: &Input<'_>,
    sandbox: &SandboxView,
    slot: &Slot<'_>,
    plan: &mut Plan,
) -> bool {
    let Some(container) = input.view.latest_in(&sandbox.id, slot.name()) else {
        let ended = input.view.latest(slot.name());
        if ended.is_some_and(|ended| !restarts(input.pod, slot, ended)) {
            return false;
        }
        start(input, slot, plan);
        return true;
    };
    if container.is_running() {
        let killed =
            kill_if_unfit(input, slot, container, plan) || resize(input, slot, container, plan);
        // One that is killed and not restarted leaves the pod by itself.
        return !killed || restarts(input.pod, slot, container);
    }
    if !restarts(input.pod, slot, container) {
        return false;
    }
    start(input, slot, plan);
    true
}

/// Kills a running container whose spec changed or whose probe failed.
fn kill_if_unfit(
    input: &Input<'_>,
    slot: &Slot<'_>,
    container: &ContainerView,
    plan: &mut Plan,
) -> bool {
    let name = slot.name();
    let failed = input
        .memory
        .probes(name, &container.id)
        .and_then(|probes| probes.failed.as_ref());
    let (message, grace_seconds) = if container.hash != spec::hash(&slot.container) {
        (
            format!("Container {name} definition changed, will be restarted"),
            None,
        )
    } else if let Some(failed) = failed {
        let message = format!(
            "Container {name} failed {} probe, will be restarted",
            failed.kind
        );
        (message, failed.grace_seconds)
    } else {
        return false;
    };
    let (id, name) = (container.id.clone(), name.to_owned());
    plan.actions.push(Action::Kill {
        id,
        name,
        message,
        grace_seconds,
    });
    true
}

/// Resizes a running container whose resources changed; says whether that kills
/// it, as its resizePolicy may want (KEP-1287).
fn resize(input: &Input<'_>, slot: &Slot<'_>, container: &ContainerView, plan: &mut Plan) -> bool {
    let name = slot.name();
    let Some(has) = input.memory.given(name, &container.id) else {
        return false;
    };
    let changed = resources::resized(has, slot.container.resources.as_ref());
    if changed.is_empty() {
        return false;
    }
    let mut policies = slot.container.resize_policy.iter().flatten();
    let restarts = policies.any(|policy| {
        policy.restart_policy == "RestartContainer"
            && changed.contains(&policy.resource_name.as_str())
    });
    let (id, name) = (container.id.clone(), name.to_owned());
    plan.actions.push(if restarts {
        let message = format!("Container {name} resize requires restart");
        Action::Kill {
            id,
            name,
            message,
            grace_seconds: None,
        }
    } else {
        Action::Resize { id, name }
    });
    restarts
}

/// Starts a container unless it is backing off.
fn start(input: &Input<'_>, slot: &Slot<'_>, plan: &mut Plan) {
    let name = slot.name();
    let memory = input.memory.containers.get(name);
    if memory.is_some_and(|memory| memory.starting) {
        return;
    }
    let latest = input.view.latest(name);
    if let Some(retry_at) = memory
        .map(|memory| memory.retry_at)
        .filter(|at| *at > input.now)
    {
        plan.wake(retry_at);
        return;
    }
    let ended = latest.filter(|container| container.state == State::Exited);
    let crashed_at = ended.map(|container| container.finished_at);
    let crash = memory.map(|memory| memory.crash).unwrap_or_default();
    if let Some(until) = crashed_at.and_then(|at| crash.until(at, input.now)) {
        plan.wake(until);
        plan.waiting.push((
            name.to_owned(),
            crash_waiting(input.pod, name, crash.delay()),
        ));
        return;
    }
    let unborn =
        latest.filter(|container| matches!(container.state, State::Created | State::Unknown));
    let restart_count = match (latest, unborn) {
        (_, Some(unborn)) => unborn.restart_count,
        (Some(latest), None) => latest.restart_count + 1,
        (None, None) => recorded_restarts(input.memory, name),
    };
    plan.actions.push(Action::Start {
        name: name.to_owned(),
        restart_count,
        replaces: unborn.map(|container| container.id.clone()),
        crashed_at,
    });
}

/// A container the API saw running, of which the runtime has no trace any
/// more, is still a restart.
fn recorded_restarts(memory: &Memory, name: &str) -> u32 {
    let status = &memory.at_start;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut statuses = lists.into_iter().flatten().flatten();
    let ran = statuses.find(|status| status.name == name && status.container_id.is_some());
    ran.map_or(0, |status| {
        u32::try_from(status.restart_count).unwrap_or(0) + 1
    })
}

fn crash_waiting(pod: &Pod, name: &str, delay: Nanos) -> Waiting {
    let delay = crate::text::duration(std::time::Duration::from_nanos(delay.unsigned_abs()));
    Waiting {
        reason: "CrashLoopBackOff".to_owned(),
        message: format!(
            "back-off {delay} restarting failed container={name} pod={}",
            spec::describe(pod)
        ),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
