//! Reads a pod from the API's object.

use std::collections::BTreeMap;

use api::declared_features;
use api::view::{NodeAffinity, ObjectMeta, Toleration};
use apimachinery::{Value, selector::LabelSelector};
use serde::Deserialize;

use super::{
    Claim, Disk, HostPort, Pod, PodAffinity, ScheduledCondition, SpreadConstraint, Template, Term,
    intern::intern,
};
use crate::{
    devices::extended::{self, ContainerAsk},
    resources::{PodResources, ResourceList},
};

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Raw {
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
    /// What the pod as a whole was given (KEP-5419).
    allocated_resources: ResourceList,
    resources: Option<RawRequests>,
    container_statuses: Vec<RawContainerStatus>,
    init_container_statuses: Vec<RawContainerStatus>,
}

/// What a container has while its resources are being changed.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainerStatus {
    name: String,
    allocated_resources: ResourceList,
    resources: Option<RawRequests>,
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
    host_network: bool,
    host_users: Option<bool>,
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
    name: String,
    image: String,
    resources: RawRequests,
    ports: Vec<RawPort>,
    restart_policy: String,
    restart_policy_rules: Vec<RawRestartRule>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawRestartRule {
    action: String,
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
    image: Option<RawImage>,
    gce_persistent_disk: Option<RawDisk>,
    aws_elastic_block_store: Option<RawDisk>,
    iscsi: Option<RawDisk>,
    rbd: Option<RawDisk>,
}

/// A volume that is an image.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawImage {
    reference: String,
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
        let is_infeasible = status
            .conditions
            .iter()
            .any(|one| one.kind == "PodResizePending" && one.reason == "Infeasible");
        let has = |one: &RawContainer, statuses: &[RawContainerStatus]| {
            let status = statuses.iter().find(|status| status.name == one.name);
            one.requests(status, is_infeasible)
        };
        let containers: Vec<ResourceList> = spec
            .containers
            .iter()
            .map(|one| has(one, &status.container_statuses))
            .collect();
        let init_containers: Vec<(ResourceList, bool)> = spec
            .init_containers
            .iter()
            .map(|one| {
                (
                    has(one, &status.init_container_statuses),
                    one.restart_policy == "Always",
                )
            })
            .collect();
        let whole = larger(
            &spec.resources.requests,
            &status.allocated_resources,
            status.resources.as_ref(),
            is_infeasible,
        );
        let resources = PodResources {
            containers: containers.iter().collect(),
            init_containers: init_containers
                .iter()
                .map(|(list, sidecar)| (list, *sidecar))
                .collect(),
            overhead: spec.overhead.as_ref(),
            pod_level: Some(&whole).filter(|_| !spec.resources.requests.is_empty()),
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
        let of_volumes = spec.volumes.iter().filter_map(|one| one.image.as_ref());
        let images = spec
            .init_containers
            .iter()
            .chain(&spec.containers)
            .map(|one| one.image.as_str())
            .chain(of_volumes.map(|image| image.reference.as_str()));
        let images = images.map(normal_image).collect();
        let spread = spec.topology_spread_constraints.into_iter();
        let spread = spread.map(|one| one.parse(&meta.labels)).collect();
        let disks = spec.volumes.iter().flat_map(RawVolume::disks).collect();
        let rules = spec.init_containers.iter().chain(&spec.containers);
        let rules = rules.flat_map(|one| &one.restart_policy_rules);
        let actions = rules.map(|rule| rule.action.as_str());
        let features = declared_features::of_pod(actions, spec.host_network, spec.host_users);
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
        let gates = spec.scheduling_gates.into_iter();
        let claims = volumes
            .filter_map(|volume| volume.claim(&meta.name))
            .collect();
        let inits = spec.init_containers.iter().map(|one| (one, true));
        let containers = spec.containers.iter().map(|one| (one, false));
        let device_asks = inits
            .chain(containers)
            .enumerate()
            .filter_map(|(place, (one, is_init))| one.device_ask(place, is_init))
            .collect();
        let template = Template {
            device_asks,
            disks,
            features,
            pod_affinity: spec.affinity.pods(&meta.namespace).map(Box::new),
            owner: meta.controller().cloned(),
            namespace: meta.namespace,
            labels: meta.labels,
            scheduler_name: spec.scheduler_name,
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy == "Never",
            scheduling_gates: gates.map(|gate| gate.name).collect(),
            requests,
            scored_cpu: scored.milli_cpu,
            scored_memory: scored.memory,
            host_ports,
            tolerations: spec.tolerations,
            node_selector: spec.node_selector,
            node_affinity: spec.affinity.node_affinity,
            spread,
            images,
        };
        Pod {
            template: intern(template),
            resource_claims: spec.resource_claims.into_iter().map(named).collect(),
            claims,
            uid: meta.uid.as_str().into(),
            is_deleting: meta.deletion_timestamp.is_some(),
            generation: meta.generation,
            name: meta.name,
            resource_version: meta.resource_version,
            is_terminal: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            node_name: spec.node_name,
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

impl RawContainer {
    /// The larger of what it asks for, what the node set aside for it and what it has (UseStatusResources, KEP-1287);
    /// what the node can never give does not count.
    fn requests(&self, status: Option<&RawContainerStatus>, is_infeasible: bool) -> ResourceList {
        let asked = &self.resources.requests;
        match status {
            Some(status) => {
                let RawContainerStatus {
                    allocated_resources,
                    resources,
                    ..
                } = status;
                larger(
                    asked,
                    allocated_resources,
                    resources.as_ref(),
                    is_infeasible,
                )
            }
            None => asked.clone(),
        }
    }
}

impl RawContainer {
    /// What it asks for that devices may stand for; `None` if nothing.
    fn device_ask(&self, place: usize, is_init: bool) -> Option<ContainerAsk> {
        let asked = self.resources.requests.iter().enumerate();
        let devices = asked.filter(|(_, (name, _))| extended::may_be_devices(name));
        let resources: Vec<_> = devices
            .map(|(index, (name, amount))| (name.as_str().into(), amount.0.value(), index))
            .collect();
        (!resources.is_empty()).then(|| ContainerAsk {
            place,
            name: self.name.clone(),
            is_brief: is_init && self.restart_policy != "Always",
            resources,
        })
    }
}

/// Of each resource the largest of what is asked for, set aside and had. Nothing set aside is no resize.
fn larger(
    asked: &ResourceList,
    allocated: &ResourceList,
    has: Option<&RawRequests>,
    is_infeasible: bool,
) -> ResourceList {
    let mut list = asked.clone();
    if allocated.is_empty() {
        return list;
    }
    if is_infeasible {
        list.clone_from(allocated);
    }
    let has = has.iter().flat_map(|one| &one.requests);
    for (name, amount) in allocated.iter().chain(has) {
        let mine = list.entry(name.clone()).or_insert(*amount);
        if amount.0.milli_value() > mine.0.milli_value() {
            *mine = *amount;
        }
    }
    list
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
