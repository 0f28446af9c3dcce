//! The conditions of a pod that the kubelet owns, from its container statuses.
//! Types, reasons and messages are upstream's (`pkg/kubelet/status/generate.go`);
//! conditions of other owners are kept as they are. Pure.

use super::spec::{self, Kind};
use super::status::{Input, time};
use crate::k8s::{ContainerStatus, PodCondition, PodStatus};

/// A condition before it has its times.
struct Verdict {
    kind: &'static str,
    status: bool,
    reason: Option<String>,
    message: Option<String>,
}

impl Verdict {
    fn yes(kind: &'static str) -> Self {
        Self {
            kind,
            status: true,
            reason: None,
            message: None,
        }
    }

    fn no(kind: &'static str, reason: &str, message: Option<String>) -> Self {
        Self {
            kind,
            status: false,
            reason: Some(reason.to_owned()),
            message,
        }
    }
}

const SANDBOX: &str = "PodReadyToStartContainers";
const INITIALIZED: &str = "Initialized";
const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
const SCHEDULED: &str = "PodScheduled";
const DISRUPTION: &str = "DisruptionTarget";

/// The conditions of `status`, which has everything else already.
pub fn conditions(input: &Input<'_>, status: &PodStatus) -> Vec<PodCondition> {
    let containers = containers_ready(input, status);
    let ready = pod_ready(input, &containers);
    let mut own = vec![
        sandbox(input),
        initialized(input, status),
        ready,
        containers,
        Verdict::yes(SCHEDULED),
    ];
    let disruption = super::status::verdict(input).and_then(|verdict| verdict.disruption.clone());
    own.extend(disruption.map(|(reason, message)| Verdict {
        kind: DISRUPTION,
        status: true,
        reason: Some(reason),
        message: Some(message),
    }));
    let others = input.previous.conditions.iter().flatten();
    let others = others
        .filter(|other| own.iter().all(|own| own.kind != other.type_))
        .cloned();
    let others: Vec<_> = others.collect();
    own.into_iter()
        .map(|verdict| dated(input, verdict))
        .chain(others)
        .collect()
}

/// Keeps the time of the last transition while the status stays the same.
fn dated(input: &Input<'_>, verdict: Verdict) -> PodCondition {
    let status = if verdict.status { "True" } else { "False" };
    let before = input
        .previous
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == verdict.kind);
    let since = before.filter(|before| before.status == status);
    PodCondition {
        type_: verdict.kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason,
        message: verdict.message,
        observed_generation: input.pod.metadata.generation,
        last_transition_time: since
            .and_then(|before| before.last_transition_time.clone())
            .or_else(|| Some(time(input.now))),
        last_probe_time: None,
    }
}

/// KEP-3085: a sandbox is up and has its network.
fn sandbox(input: &Input<'_>) -> Verdict {
    let up = input.view.ready_sandbox();
    match up.is_some_and(|sandbox| sandbox.host_network || !sandbox.ips.is_empty()) {
        true => Verdict::yes(SANDBOX),
        false => Verdict {
            status: false,
            ..Verdict::yes(SANDBOX)
        },
    }
}

fn initialized(input: &Input<'_>, status: &PodStatus) -> Verdict {
    let regular = status.container_statuses.iter().flatten();
    let begun = regular.clone().any(|status| status.container_id.is_some());
    let slots = spec::slots(input.pod);
    let incomplete: Vec<_> = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|status| {
            let slot = slots.iter().find(|slot| slot.name() == status.name);
            match slot.map(|slot| slot.kind) {
                Some(Kind::Sidecar) => status.started != Some(true),
                _ => !status.ready,
            }
        })
        .map(|status| status.name.clone())
        .collect();
    if status.phase.as_deref() == Some("Succeeded") {
        return Verdict {
            reason: Some("PodCompleted".to_owned()),
            ..Verdict::yes(INITIALIZED)
        };
    }
    if begun || incomplete.is_empty() {
        return Verdict::yes(INITIALIZED);
    }
    let message = format!(
        "containers with incomplete status: [{}]",
        incomplete.join(" ")
    );
    Verdict::no(INITIALIZED, "ContainersNotInitialized", Some(message))
}

fn containers_ready(input: &Input<'_>, status: &PodStatus) -> Verdict {
    match status.phase.as_deref() {
        Some("Succeeded") => return Verdict::no(CONTAINERS_READY, "PodCompleted", None),
        Some("Failed") => return Verdict::no(CONTAINERS_READY, "PodFailed", None),
        _ => {}
    }
    let slots = spec::slots(input.pod);
    let counts = |status: &&ContainerStatus| {
        let slot = slots.iter().find(|slot| slot.name() == status.name);
        slot.is_some_and(|slot| matches!(slot.kind, Kind::Sidecar | Kind::Regular))
    };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let unready: Vec<_> = lists
        .into_iter()
        .flatten()
        .flatten()
        .filter(counts)
        .filter(|status| !status.ready)
        .map(|status| status.name.clone())
        .collect();
    if unready.is_empty() {
        return Verdict::yes(CONTAINERS_READY);
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    Verdict::no(CONTAINERS_READY, "ContainersNotReady", Some(message))
}

fn pod_ready(input: &Input<'_>, containers: &Verdict) -> Verdict {
    if !containers.status {
        let reason = containers.reason.clone().unwrap_or_default();
        return Verdict::no(READY, &reason, containers.message.clone());
    }
    let gates = input
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten());
    let known = input.previous.conditions.as_deref().unwrap_or_default();
    let messages: Vec<_> = gates
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match known.iter().find(|condition| condition.type_ == *kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{kind}\" does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if messages.is_empty() {
        return Verdict::yes(READY);
    }
    Verdict::no(READY, "ReadinessGatesNotReady", Some(messages.join(", ")))
}
