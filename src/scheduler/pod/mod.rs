//! A pod as the scheduler sees it: only what decides where it may run, worked out once when it is read.

mod intern;
mod raw;

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use api::view::{NodeAffinity, OwnerReference, Toleration};
use apimachinery::selector::LabelSelector;
use serde::Deserialize;

use crate::{devices::extended::ContainerAsk, resources::Resources};

/// One pod. Built from the API's object; never changed. Its template's fields are read as its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "raw::Raw")]
pub struct Pod {
    template: Arc<Template>,
    pub name: String,
    pub uid: Arc<str>,
    pub resource_version: String,
    pub is_deleting: bool,
    /// Succeeded or Failed.
    pub is_terminal: bool,
    /// Empty until bound.
    pub node_name: String,
    pub claims: Vec<Claim>,
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

/// What pods of one workload have in common; held once for all of them (see `intern`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    pub owner: Option<OwnerReference>,
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
    pub disks: Vec<Disk>,
    /// What its node must declare, sorted.
    pub features: Vec<&'static str>,
    /// The containers that ask for resources that devices may stand for.
    pub device_asks: Vec<ContainerAsk>,
}

impl Deref for Pod {
    type Target = Template;

    fn deref(&self) -> &Template {
        &self.template
    }
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
        if Arc::ptr_eq(&self.template, &old.template) && self.resource_claims == old.resource_claims
        {
            return false;
        }
        self.resource_claims != old.resource_claims
            || self.labels != old.labels
            || self.scheduling_gates != old.scheduling_gates
            || self.requests != old.requests
            || self.tolerations != old.tolerations
            || self.node_selector != old.node_selector
            || self.node_affinity != old.node_affinity
            || self.priority != old.priority
            || self.spread != old.spread
            || self.features != old.features
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

#[cfg(test)]
pub(crate) fn pod(value: serde_json::Value) -> Pod {
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
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}},
                    {"name": "i", "image": {"reference": "data:2"}}],
                "initContainers": [{"image": "setup:1"}],
            },
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "x"}]},
        }));
        assert_eq!(
            (pod.requests.milli_cpu, pod.requests.memory),
            (250, 64 << 20)
        );
        assert_eq!(pod.host_ports[0].ip, "0.0.0.0");
        assert_eq!(pod.images, ["setup:1", "nginx:latest", "data:2"]);
        let affinity = pod.pod_affinity.as_ref().unwrap();
        assert_eq!(affinity.anti_required[0].namespaces, ["n"]);
        assert!(pod.spread[0].selector.matches(&pod.labels));
        assert!(!pod.spread[0].selector.matches(&BTreeMap::new()));
        assert_eq!(pod.claims[1].name, "p-e");
        assert_eq!(pod.scheduled.as_ref().unwrap().reason, "x");
    }

    #[test]
    fn while_a_pod_is_resized_the_larger_of_wish_and_possession_counts() {
        let resized = |asks: &str, has: &str, conditions: serde_json::Value| {
            let pod = pod(json!({
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": asks}}}]},
                "status": {"conditions": conditions, "containerStatuses": [{
                    "name": "c", "allocatedResources": {"cpu": has}, "resources": {"requests": {"cpu": has}}}]},
            }));
            pod.requests.milli_cpu
        };
        assert_eq!(resized("2", "1", json!([])), 2000);
        assert_eq!(resized("1", "2", json!([])), 2000);
        let whole = pod(json!({
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                "resources": {"requests": {"cpu": "2"}}},
            "status": {"allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "4"}}},
        }));
        assert_eq!(whole.requests.milli_cpu, 4000);
        let never = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        assert_eq!(resized("64", "2", never), 2000);
    }
}
