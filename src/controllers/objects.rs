//! The parts of objects the controllers read. One view for each kind, so that the informers are shared.

use std::{collections::BTreeMap, time::Duration};

use api::view::{NodeAffinity, ObjectMeta, Taint, Toleration};
use apimachinery::{
    Value,
    time::{Time, parse},
};
use serde::{Deserialize, Serialize};

use crate::storage::attach_detach::AttachedVolume;

/// Anything of which only the metadata matters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: ObjectMeta,
    pub spec: NamespaceSpec,
    pub status: NamespaceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    pub finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    pub phase: String,
    pub conditions: Vec<Condition>,
}

impl Namespace {
    pub fn is_terminating(&self) -> bool {
        self.metadata.is_deleting() || self.status.phase == "Terminating"
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: ObjectMeta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    pub conditions: Vec<Condition>,
    /// Volumes the kubelet has mounted, or is about to.
    pub volumes_in_use: Vec<String>,
    pub volumes_attached: Vec<AttachedVolume>,
}

/// A condition of a node or a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}

/// The condition of this type.
pub fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub metadata: ObjectMeta,
    pub spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    pub renew_time: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: String,
    pub hostname: String,
    pub subdomain: String,
    pub host_network: bool,
    pub restart_policy: String,
    pub priority_class_name: String,
    pub active_deadline_seconds: Option<i64>,
    pub overhead: BTreeMap<String, String>,
    /// Of the pod as a whole.
    pub resources: Option<Box<Resources>>,
    pub affinity: PodAffinity,
    pub tolerations: Vec<Toleration>,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    /// Only those with a claim.
    #[serde(deserialize_with = "with_claim")]
    pub volumes: Vec<PodVolume>,
    pub resource_claims: Vec<PodClaim>,
}

/// A resource claim of a pod: one that is there, or one to be made of a template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodClaim {
    pub name: String,
    pub resource_claim_name: Option<String>,
    pub resource_claim_template_name: Option<String>,
}

/// A volume of a pod that has a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolume {
    pub name: String,
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A generic ephemeral volume; null is none.
    pub ephemeral: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSource {
    pub claim_name: String,
}

impl PodVolume {
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral.is_object()
    }

    /// The name of its claim.
    pub fn claim(&self, pod: &Pod) -> Option<String> {
        if self.is_ephemeral() {
            return Some(format!("{}-{}", pod.metadata.name, self.name));
        }
        let source = self.persistent_volume_claim.as_ref()?;
        Some(source.claim_name.clone())
    }
}

/// Leaves out the volumes without a claim: every pod has some.
fn with_claim<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<PodVolume>, D::Error> {
    let all = Option::<Vec<PodVolume>>::deserialize(from)?.unwrap_or_default();
    let claims =
        |volume: &PodVolume| volume.is_ephemeral() || volume.persistent_volume_claim.is_some();
    Ok(all.into_iter().filter(claims).collect())
}

/// Where a pod must run; daemon pods name their node here before they are bound.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinity {
    pub node_affinity: Option<Box<NodeAffinity>>,
    pub pod_affinity: Value,
    pub pod_anti_affinity: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub ports: Vec<ContainerPort>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: String,
    pub resources: Resources,
}

/// Quantities by resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    pub name: String,
    pub container_port: i32,
    pub protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: String,
    pub start_time: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    pub conditions: Vec<Condition>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
    /// The claims made of templates.
    pub resource_claim_statuses: Vec<PodClaim>,
    /// The claim made for extended resources.
    pub extended_resource_claim_status: Option<ExtendedClaim>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtendedClaim {
    pub resource_claim_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    pub restart_count: i64,
    pub state: ContainerState,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub terminated: Option<Box<Terminated>>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    pub exit_code: i64,
    pub finished_at: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

/// Index of pods by their node.
pub const BY_NODE: &str = "node";

/// The index value of `BY_NODE`.
pub fn pods_by_node(pod: &Pod) -> Vec<String> {
    if pod.spec.node_name.is_empty() {
        Vec::new()
    } else {
        vec![pod.spec.node_name.clone()]
    }
}

impl Pod {
    /// Succeeded or Failed: it will never run again.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Its kubelet has nothing more to do for it: only finalizers keep it (podIsShutDown).
    pub fn is_shut_down(&self) -> bool {
        self.metadata.is_deleting() && self.metadata.deletion_grace_period_seconds == Some(0)
    }

    /// Neither finished nor being deleted (IsPodActive).
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.metadata.is_deleting()
    }

    /// The time from which the pod has been ready for `min_seconds`; `None` while it is not ready.
    pub fn available_at(&self, min_seconds: i64) -> Option<Time> {
        let ready =
            condition(&self.status.conditions, "Ready").filter(|ready| ready.status == "True")?;
        let since = ready.last_transition_time.as_deref().and_then(parse);
        let delay = Duration::from_secs(u64::try_from(min_seconds).unwrap_or(0));
        Some(since.map_or(Time::UNIX_EPOCH, |since| since + delay))
    }

    /// The node it runs on, or must run on (GetTargetNodeName).
    pub fn target_node(&self) -> Option<&str> {
        if !self.spec.node_name.is_empty() {
            return Some(&self.spec.node_name);
        }
        let required = self
            .spec
            .affinity
            .node_affinity
            .as_ref()?
            .required
            .as_ref()?;
        let fields = required
            .node_selector_terms
            .iter()
            .flat_map(|term| &term.match_fields);
        let mut named =
            fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
        named.next()?.values.first().map(String::as_str)
    }

    /// Restarts of the container with the most of them, and of such an init container.
    pub fn restarts(&self) -> (i64, i64) {
        let most = |statuses: &[ContainerStatus]| {
            let counts = statuses.iter().map(|status| status.restart_count);
            counts.max().unwrap_or(0)
        };
        (
            most(&self.status.container_statuses),
            most(&self.status.init_container_statuses),
        )
    }

    pub fn is_ready(&self) -> bool {
        condition(&self.status.conditions, "Ready").is_some_and(|ready| ready.status == "True")
    }
}
/// A LabelSelector as upstream's messages print one.
pub fn printed_selector(selector: &Value) -> String {
    if !selector.is_object() {
        return "nil".into();
    }
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels: String = labels
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or("")))
        .collect();
    let rules = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    let rules: String = rules
        .map(|rule| {
            let text = |field: &str| rule[field].as_str().unwrap_or("");
            let values = rule["values"].as_array().into_iter().flatten();
            let values: Vec<&str> = values.filter_map(Value::as_str).collect();
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                text("key"),
                text("operator"),
                values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{rules}}},}}"
    )
}
