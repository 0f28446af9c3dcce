//! A pod as far as its life is simulated. There may be a hundred thousand, so it is kept small.

use std::collections::BTreeMap;

use api::view::ObjectMeta;
use apimachinery::selector::Labels;
use serde::{Deserialize, de::IgnoredAny};

/// One pod. Built from the API's object; never changed.
#[derive(Debug, Deserialize)]
#[serde(from = "Raw")]
pub struct Pod {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    pub node: Box<str>,
    pub labels: SmallLabels,
    /// Of the controlling owner; empty if none.
    pub owner_kind: Box<str>,
    pub containers: Box<[Container]>,
    pub init_containers: Box<[Container]>,
    /// Conditions of readiness gates that do not hold.
    pub closed_gates: bool,
    pub phase: Phase,
    pub restart_policy: RestartPolicy,
    pub is_ready: bool,
    /// A container waits with a reason: it will not start.
    pub is_stuck: bool,
    pub is_deleting: bool,
    /// Seconds, once it is being deleted.
    pub grace: u32,
    pub has_finalizers: bool,
    pub host_network: bool,
    /// `activeDeadlineSeconds`.
    pub deadline: Option<u32>,
    pub restarts: u32,
    /// `status.startTime`, empty before.
    pub start_time: Box<str>,
    /// The last part of its address, if it is one of the simulator's.
    pub ip: u32,
    pub generation: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Container {
    pub name: Box<str>,
    pub image: Box<str>,
    /// An init container that goes on running (restartPolicy Always).
    pub is_sidecar: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    /// Succeeded or Failed.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// Labels in a row.
#[derive(Debug)]
pub struct SmallLabels(Box<[(Box<str>, Box<str>)]>);

impl Labels for SmallLabels {
    fn get_label(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, _)| &**name == key);
        found.map(|(_, value)| &**value)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Raw {
    metadata: ObjectMeta,
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: String,
    restart_policy: String,
    containers: Vec<RawContainer>,
    init_containers: Vec<RawContainer>,
    host_network: bool,
    active_deadline_seconds: Option<u32>,
    readiness_gates: Vec<RawGate>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    name: String,
    image: String,
    restart_policy: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawGate {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: String,
    conditions: Vec<RawCondition>,
    start_time: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    container_statuses: Vec<RawContainerStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawCondition {
    r#type: String,
    status: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainerStatus {
    restart_count: u32,
    state: BTreeMap<String, Option<RawState>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawState {
    reason: Option<String>,
    #[serde(rename = "message")]
    _message: IgnoredAny,
}

impl From<RawContainer> for Container {
    fn from(raw: RawContainer) -> Self {
        Container {
            name: raw.name.into(),
            image: raw.image.into(),
            is_sidecar: raw.restart_policy == "Always",
        }
    }
}

impl From<Raw> for Pod {
    fn from(raw: Raw) -> Self {
        let Raw {
            metadata: meta,
            spec,
            status,
        } = raw;
        let holds = |name: &str| {
            status
                .conditions
                .iter()
                .any(|one| one.r#type == name && one.status == "True")
        };
        let waits = |one: &RawContainerStatus| {
            let waiting = one.state.get("waiting").and_then(Option::as_ref);
            let reason = waiting.and_then(|state| state.reason.as_deref());
            reason.is_some_and(|reason| !reason.is_empty() && reason != "ContainerCreating")
        };
        Pod {
            owner_kind: meta.controller().map_or("", |owner| &owner.kind).into(),
            is_deleting: meta.is_deleting(),
            grace: meta
                .deletion_grace_period_seconds
                .and_then(|seconds| seconds.try_into().ok())
                .unwrap_or(0),
            has_finalizers: !meta.finalizers.is_empty(),
            generation: meta.generation,
            namespace: meta.namespace.into(),
            name: meta.name.into(),
            uid: meta.uid.into(),
            labels: SmallLabels(
                meta.labels
                    .into_iter()
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect(),
            ),
            node: spec.node_name.into(),
            closed_gates: spec
                .readiness_gates
                .iter()
                .any(|gate| !holds(&gate.condition_type)),
            containers: spec.containers.into_iter().map(Container::from).collect(),
            init_containers: spec
                .init_containers
                .into_iter()
                .map(Container::from)
                .collect(),
            phase: match status.phase.as_str() {
                "Running" => Phase::Running,
                "Succeeded" | "Failed" => Phase::Ended,
                _ => Phase::Pending,
            },
            restart_policy: match spec.restart_policy.as_str() {
                "Never" => RestartPolicy::Never,
                "OnFailure" => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            is_ready: holds("Ready")
                || (holds("ContainersReady") && !spec.readiness_gates.is_empty()),
            is_stuck: status.container_statuses.iter().any(waits),
            host_network: spec.host_network,
            deadline: spec.active_deadline_seconds,
            restarts: status
                .container_statuses
                .iter()
                .map(|one| one.restart_count)
                .max()
                .unwrap_or(0),
            start_time: status.start_time.unwrap_or_default().into(),
            ip: status
                .pod_ip
                .and_then(|text| crate::status::number_of(&text))
                .unwrap_or(0),
        }
    }
}
