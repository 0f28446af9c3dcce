//! A node as the scheduler sees it, with what runs on it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::view::{ObjectMeta, Taint};
use serde::Deserialize;

use crate::{
    pod::{HostPort, Pod},
    resources::{ResourceList, Resources},
};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

/// A Node's fields that decide what may run there. A heartbeat changes none of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Raw")]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub is_unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    /// Bytes of each image, by each of its names.
    pub images: HashMap<String, i64>,
    /// What its kubelet says it can (KEP-5328).
    pub declared_features: BTreeSet<String>,
}

/// A node with its pods and their sums. Changed only by `Cluster`.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// Its place in the cluster's table.
    pub index: usize,
    pub name: String,
    /// `None` while only pods of it are known.
    pub node: Option<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub requested: Resources,
    /// Sums of the requests with defaults, for scoring.
    pub scored_cpu: i64,
    pub scored_memory: i64,
    pub ports: Vec<HostPort>,
    /// The lowest priority of its pods; `None` without any.
    pub lowest_priority: Option<i32>,
}

impl NodeInfo {
    pub(crate) fn add(&mut self, pod: Arc<Pod>) {
        self.requested.add(&pod.requests);
        self.scored_cpu += pod.scored_cpu;
        self.scored_memory += pod.scored_memory;
        self.ports.extend(pod.host_ports.iter().cloned());
        let lowest = self.lowest_priority.unwrap_or(pod.priority);
        self.lowest_priority = Some(lowest.min(pod.priority));
        self.pods.push(pod);
    }

    pub(crate) fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let position = self.pods.iter().position(|pod| &*pod.uid == uid)?;
        let pod = self.pods.swap_remove(position);
        self.requested.sub(&pod.requests);
        self.scored_cpu -= pod.scored_cpu;
        self.scored_memory -= pod.scored_memory;
        if self.lowest_priority == Some(pod.priority) {
            self.lowest_priority = self.pods.iter().map(|pod| pod.priority).min();
        }
        for port in &pod.host_ports {
            if let Some(position) = self.ports.iter().position(|used| used == port) {
                self.ports.swap_remove(position);
            }
        }
        Some(pod)
    }

    /// The value of a label, if the node is known and has it.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.as_ref()?.labels.get(key).map(String::as_str)
    }
}

impl Node {
    /// Region and zone, by which nodes are taken in turn.
    pub fn zone(&self) -> (&str, &str) {
        let label = |key| self.labels.get(key).map_or("", String::as_str);
        (label(REGION), label(ZONE))
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
#[serde(default)]
struct RawSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    allocatable: ResourceList,
    images: Vec<RawImage>,
    declared_features: BTreeSet<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawImage {
    names: Vec<String>,
    size_bytes: i64,
}

impl From<Raw> for Node {
    fn from(raw: Raw) -> Self {
        let images = raw.status.images.into_iter();
        Node {
            name: raw.metadata.name,
            labels: raw.metadata.labels,
            is_unschedulable: raw.spec.unschedulable,
            taints: raw.spec.taints,
            allocatable: Resources::from_list(&raw.status.allocatable),
            declared_features: raw.status.declared_features,
            images: images
                .flat_map(|image| {
                    image
                        .names
                        .into_iter()
                        .map(move |name| (name, image.size_bytes))
                })
                .collect(),
        }
    }
}

#[cfg(test)]
pub(crate) fn node(value: serde_json::Value) -> Node {
    serde_json::from_value(value).expect("a test's node is well-formed")
}
