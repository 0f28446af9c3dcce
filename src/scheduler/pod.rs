//! A pod as the scheduler sees it: only what decides where it may run, worked out once when it is read.

use std::{collections::BTreeMap, sync::Arc};

use api::view::{NodeAffinity, ObjectMeta, OwnerReference, Toleration};
use apimachinery::{Value, selector::LabelSelector};
use serde::Deserialize;

use crate::resources::{PodResources, ResourceList, Resources};

/// One pod. Built from the API's object; never changed.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Raw")]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: Arc<str>,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub owner: Option<OwnerReference>,
    pub is_deleting: bool,
    /// Succeeded or Failed.
    pub is_terminal: bool,
    /// Empty until bound.
    pub node_name: String,
    pub scheduler_name: String,
    pub priority: i32,
    /// `preemptionPolicy: Never`.
    pub never_preempts: bool,
    pub scheduling_gates: Vec<String>,
    pub requests: Resources,
    /// Requests with defaults for what is not set, for scoring: milli CPU and bytes.
    pub scored_cpu: i64,
    pub scored_memory: i64,
    pub host_ports: Vec<HostPort>,
    pub tolerations: Vec<Toleration>,
    pub node_selector: BTreeMap<String, String>,
    pub node_affinity: Option<Box<NodeAffinity>>,
    pub pod_affinity: Option<Box<PodAffinity>>,
    pub spread: Vec<SpreadConstraint>,
    /// Images of all containers, with a tag.
    pub images: Vec<String>,
    pub claims: Vec<Claim>,
    pub disks: Vec<Disk>,
    /// The names of its resource claims; `None` for one that is still to be made from a template.
    pub resource_claims: Vec<Option<String>>,
    /// The PodScheduled condition: status, reason, message.
    pub scheduled: Option<ScheduledCondition>,
    pub generation: i64,
    /// `status.nominatedNodeName`, empty if none.
    pub nominated_node: String,
    /// `status.startTime`, empty before it starts.
    pub start_time: String,
    /// It ends since the scheduler evicted it for another.
    pub is_preempted: bool,
}

/// The PodScheduled condition as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduledCondition {
    #[serde(rename = "type")]
    kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// A port a pod takes on its node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// `0.0.0.0` is every address.
    pub ip: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Whether both cannot be had on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

/// A PersistentVolumeClaim the pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: String,
    /// Made for this pod by the ephemeral volume controller.
    pub is_ephemeral: bool,
}

/// A disk a pod mounts without a claim, that not every other pod of a node can have, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its kind and what identifies it.
    pub id: String,
    /// Pods that only read it can share it.
    pub is_shared: bool,
}

impl Disk {
    /// Whether both cannot be had on one node (haveOverlap, isVolumeConflict).
    pub fn conflicts(&self, other: &Disk) -> bool {
        self.id == other.id && !(self.is_shared && other.is_shared)
    }
}

/// The pod's affinity to other pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodAffinity {
    pub required: Vec<Term>,
    pub anti_required: Vec<Term>,
    pub preferred: Vec<(i64, Term)>,
    pub anti_preferred: Vec<(i64, Term)>,
}

/// Pods somewhere in a topology.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The same for terms that say the same.
    pub id: Arc<str>,
    pub namespaces: Vec<String>,
    /// Further namespaces by their labels.
    pub namespace_selector: Option<LabelSelector>,
    pub selector: LabelSelector,
    pub topology_key: String,
}

/// How evenly pods are spread over a topology.
#[derive(Clone, Debug, PartialEq)]
pub struct SpreadConstraint {
    pub max_skew: i64,
    pub topology_key: String,
    /// `DoNotSchedule` rather than `ScheduleAnyway`.
    pub is_hard: bool,
    pub selector: LabelSelector,
    pub min_domains: usize,
    /// `nodeAffinityPolicy: Honor`
    pub honors_affinity: bool,
    /// `nodeTaintsPolicy: Honor`
    pub honors_taints: bool,
}

impl Pod {
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether a change from `old` may make an unschedulable pod schedulable: anything but its status.
    pub fn differs_for_scheduling(&self, old: &Pod) -> bool {
        self.labels != old.labels
            || self.scheduling_gates != old.scheduling_gates
            || self.requests != old.requests
            || self.tolerations != old.tolerations
            || self.node_selector != old.node_selector
            || self.node_affinity != old.node_affinity
            || self.priority != old.priority
            || self.spread != old.spread
    }

    /// Whether the node selector and the required node affinity allow a node (GetRequiredNodeAffinity).
    pub fn accepts_node(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let selector = &self.node_selector;
        let required = self
            .node_affinity
            .as_ref()
            .and_then(|affinity| affinity.required.as_ref());
        selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && required.is_none_or(|required| required.matches(name, labels))
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
struct RawStatus {
    phase: String,
    conditions: Vec<ScheduledCondition>,
    nominated_node_name: String,
    start_time: Option<String>,
    resource_claim_statuses: Vec<RawResourceClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: String,
    scheduler_name: String,
    priority: Option<i32>,
    preemption_policy: String,
    scheduling_gates: Vec<Named>,
    tolerations: Vec<Toleration>,
    node_selector: BTreeMap<String, String>,
    affinity: RawAffinity,
    topology_spread_constraints: Vec<RawSpread>,
    containers: Vec<RawContainer>,
    init_containers: Vec<RawContainer>,
    overhead: Option<ResourceList>,
    resources: RawRequests,
    volumes: Vec<RawVolume>,
    resource_claims: Vec<RawResourceClaim>,
}

/// Of the spec, or of the status, which names the claims that were made from templates.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawResourceClaim {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    image: String,
    resources: RawRequests,
    ports: Vec<RawPort>,
    restart_policy: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawRequests {
    requests: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    host_port: i32,
    #[serde(rename = "hostIP")]
    host_ip: String,
    protocol: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawVolume {
    name: String,
    persistent_volume_claim: Option<RawClaim>,
    ephemeral: Option<serde::de::IgnoredAny>,
    gce_persistent_disk: Option<RawDisk>,
    aws_elastic_block_store: Option<RawDisk>,
    iscsi: Option<RawDisk>,
    rbd: Option<RawDisk>,
}

/// The fields that identify a disk, of all kinds together.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawDisk {
    pd_name: String,
    #[serde(rename = "volumeID")]
    volume_id: String,
    iqn: String,
    monitors: Vec<String>,
    pool: String,
    image: String,
    read_only: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawClaim {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawAffinity {
    node_affinity: Option<Box<NodeAffinity>>,
    pod_affinity: Option<RawPodAffinity>,
    pod_anti_affinity: Option<RawPodAffinity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Vec<RawTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    preferred: Vec<RawWeighted>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawWeighted {
    weight: i64,
    pod_affinity_term: RawTerm,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawTerm {
    label_selector: Value,
    namespaces: Vec<String>,
    namespace_selector: Value,
    topology_key: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpread {
    max_skew: i64,
    topology_key: String,
    when_unsatisfiable: String,
    label_selector: Value,
    min_domains: Option<usize>,
    node_affinity_policy: String,
    node_taints_policy: String,
    match_label_keys: Vec<String>,
}

impl From<Raw> for Pod {
    fn from(raw: Raw) -> Self {
        let Raw {
            metadata: meta,
            spec,
            status,
        } = raw;
        let resources = PodResources {
            containers: spec
                .containers
                .iter()
                .map(|one| &one.resources.requests)
                .collect(),
            init_containers: spec
                .init_containers
                .iter()
                .map(|one| (&one.resources.requests, one.restart_policy == "Always"))
                .collect(),
            overhead: spec.overhead.as_ref(),
            pod_level: Some(&spec.resources.requests).filter(|list| !list.is_empty()),
        };
        let requests = resources.requests(false);
        let scored = resources.requests(true);
        let sidecars = spec
            .init_containers
            .iter()
            .filter(|one| one.restart_policy == "Always");
        let ports = spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|one| &one.ports);
        let host_ports = ports
            .filter(|port| port.host_port > 0)
            .map(RawPort::parse)
            .collect();
        let images = spec
            .containers
            .iter()
            .map(|one| normal_image(&one.image))
            .collect();
        let spread = spec.topology_spread_constraints.into_iter();
        let spread = spread.map(|one| one.parse(&meta.labels)).collect();
        let disks = spec.volumes.iter().flat_map(RawVolume::disks).collect();
        let made = status.resource_claim_statuses;
        let named = |wanted: RawResourceClaim| {
            let of_template = || {
                made.iter()
                    .find(|one| one.name == wanted.name)?
                    .resource_claim_name
                    .clone()
            };
            wanted.resource_claim_name.clone().or_else(of_template)
        };
        let volumes = spec.volumes.into_iter();
        Pod {
            resource_claims: spec.resource_claims.into_iter().map(named).collect(),
            disks,
            claims: volumes
                .filter_map(|volume| volume.claim(&meta.name))
                .collect(),
            pod_affinity: spec.affinity.pods(&meta.namespace).map(Box::new),
            uid: meta.uid.as_str().into(),
            owner: meta.controller().cloned(),
            is_deleting: meta.is_deleting(),
            generation: meta.generation,
            namespace: meta.namespace,
            name: meta.name,
            resource_version: meta.resource_version,
            labels: meta.labels,
            is_terminal: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            node_name: spec.node_name,
            scheduler_name: spec.scheduler_name,
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy == "Never",
            scheduling_gates: spec
                .scheduling_gates
                .into_iter()
                .map(|gate| gate.name)
                .collect(),
            requests,
            scored_cpu: scored.milli_cpu,
            scored_memory: scored.memory,
            host_ports,
            tolerations: spec.tolerations,
            node_selector: spec.node_selector,
            node_affinity: spec.affinity.node_affinity,
            spread,
            images,
            nominated_node: status.nominated_node_name,
            start_time: status.start_time.unwrap_or_default(),
            is_preempted: status.conditions.iter().any(|one| {
                one.kind == "DisruptionTarget"
                    && one.status == "True"
                    && one.reason == "PreemptionByScheduler"
            }),
            scheduled: status
                .conditions
                .into_iter()
                .find(|one| one.kind == "PodScheduled"),
        }
    }
}

impl RawPort {
    fn parse(&self) -> HostPort {
        let or =
            |text: &str, default: &str| if text.is_empty() { default } else { text }.to_string();
        HostPort {
            ip: or(&self.host_ip, "0.0.0.0"),
            protocol: or(&self.protocol, "TCP"),
            port: self.host_port,
        }
    }
}

impl RawVolume {
    fn disks(&self) -> Vec<Disk> {
        let disk = |id: String, is_shared: bool| Disk { id, is_shared };
        let mut disks = Vec::new();
        if let Some(one) = &self.gce_persistent_disk {
            disks.push(disk(format!("gce/{}", one.pd_name), one.read_only));
        }
        if let Some(one) = &self.aws_elastic_block_store {
            disks.push(disk(format!("ebs/{}", one.volume_id), false));
        }
        if let Some(one) = &self.iscsi {
            disks.push(disk(format!("iscsi/{}", one.iqn), one.read_only));
        }
        // Two are the same if they share a monitor.
        let rbd = self
            .rbd
            .iter()
            .flat_map(|one| one.monitors.iter().map(move |monitor| (one, monitor)));
        disks.extend(rbd.map(|(one, monitor)| {
            disk(
                format!("rbd/{monitor}/{}/{}", one.pool, one.image),
                one.read_only,
            )
        }));
        disks
    }

    fn claim(self, pod: &str) -> Option<Claim> {
        if self.ephemeral.is_some() {
            return Some(Claim {
                name: format!("{pod}-{}", self.name),
                is_ephemeral: true,
            });
        }
        let claim = self.persistent_volume_claim?;
        Some(Claim {
            name: claim.claim_name,
            is_ephemeral: false,
        })
    }
}

impl RawAffinity {
    fn pods(&self, namespace: &str) -> Option<PodAffinity> {
        let required = |affinity: &Option<RawPodAffinity>| {
            let terms = affinity.iter().flat_map(|affinity| &affinity.required);
            terms.map(|term| term.parse(namespace)).collect::<Vec<_>>()
        };
        let preferred = |affinity: &Option<RawPodAffinity>| {
            let terms = affinity.iter().flat_map(|affinity| &affinity.preferred);
            let parse = |one: &RawWeighted| (one.weight, one.pod_affinity_term.parse(namespace));
            terms.map(parse).collect::<Vec<_>>()
        };
        let affinity = PodAffinity {
            required: required(&self.pod_affinity),
            anti_required: required(&self.pod_anti_affinity),
            preferred: preferred(&self.pod_affinity),
            anti_preferred: preferred(&self.pod_anti_affinity),
        };
        (affinity != PodAffinity::default()).then_some(affinity)
    }
}

impl RawTerm {
    fn parse(&self, own_namespace: &str) -> Term {
        let by_labels =
            (!self.namespace_selector.is_null()).then(|| selector(&self.namespace_selector));
        let mut namespaces = self.namespaces.clone();
        if namespaces.is_empty() && by_labels.is_none() {
            namespaces.push(own_namespace.into());
        }
        let pods = selector(&self.label_selector);
        let by = by_labels
            .as_ref()
            .map_or(String::new(), |labels| format!("+{labels}"));
        Term {
            id: format!("{}{by}/{pods}/{}", namespaces.join(","), self.topology_key).into(),
            namespaces,
            namespace_selector: by_labels,
            selector: pods,
            topology_key: self.topology_key.clone(),
        }
    }
}

impl RawSpread {
    fn parse(mut self, labels: &BTreeMap<String, String>) -> SpreadConstraint {
        for key in &self.match_label_keys {
            let Some(value) = labels.get(key) else {
                continue;
            };
            let requirement = serde_json::json!({"key": key, "operator": "In", "values": [value]});
            if !self.label_selector["matchExpressions"].is_array() {
                self.label_selector["matchExpressions"] = Value::Array(Vec::new());
            }
            if let Some(all) = self.label_selector["matchExpressions"].as_array_mut() {
                all.push(requirement);
            }
        }
        SpreadConstraint {
            max_skew: self.max_skew,
            topology_key: self.topology_key,
            is_hard: self.when_unsatisfiable != "ScheduleAnyway",
            selector: selector(&self.label_selector),
            min_domains: self.min_domains.unwrap_or(1),
            honors_affinity: self.node_affinity_policy != "Ignore",
            honors_taints: self.node_taints_policy == "Honor",
        }
    }
}

/// A malformed selector, which validation does not let through, selects nothing.
fn selector(value: &Value) -> LabelSelector {
    LabelSelector::from_value(value).unwrap_or_else(|_| LabelSelector::nothing())
}

/// An image's name with `:latest` if it has neither tag nor digest (normalizedImageName).
fn normal_image(name: &str) -> String {
    let after_host = name.rfind('/').map_or(name, |slash| &name[slash..]);
    if after_host.contains(':') || after_host.contains('@') {
        name.into()
    } else {
        format!("{name}:latest")
    }
}

#[cfg(test)]
pub(crate) fn pod(value: Value) -> Pod {
    serde_json::from_value(value).expect("a test's pod is well-formed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_read_with_all_that_decides_its_place() {
        let pod = pod(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "a"}},
            "spec": {
                "containers": [{
                    "image": "nginx", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}},
                    "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
                }],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"},
                ]}},
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {}, "matchLabelKeys": ["app", "missing"],
                }],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}}],
            },
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "x"}]},
        }));
        assert_eq!(
            (pod.requests.milli_cpu, pod.requests.memory),
            (250, 64 << 20)
        );
        assert_eq!(pod.host_ports[0].ip, "0.0.0.0");
        assert_eq!(pod.images, ["nginx:latest"]);
        let affinity = pod.pod_affinity.as_ref().unwrap();
        assert_eq!(affinity.anti_required[0].namespaces, ["n"]);
        assert!(pod.spread[0].selector.matches(&pod.labels));
        assert!(!pod.spread[0].selector.matches(&BTreeMap::new()));
        assert_eq!(pod.claims[1].name, "p-e");
        assert_eq!(pod.scheduled.as_ref().unwrap().reason, "x");
    }
}
