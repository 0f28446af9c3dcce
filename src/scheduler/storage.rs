//! Claims, volumes and classes as far as they decide where a pod may run, with what was decided here and is not in
//! the API yet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::view::{NodeSelector, ObjectMeta};
use apimachinery::{Value, selector::LabelSelector};
use serde::{Deserialize, Serialize};

use crate::resources::{Amount, ResourceList};

/// The claim and its volume have found each other, as the volume controller says.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The node a claim is to be provisioned for.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// core/v1 PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    pub metadata: ObjectMeta,
    pub spec: ClaimSpec,
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    pub volume_name: String,
    pub storage_class_name: Option<String>,
    pub access_modes: Vec<String>,
    pub selector: Value,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    resources: Requests,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Requests {
    requests: ResourceList,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    pub phase: String,
}

/// core/v1 PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    pub metadata: ObjectMeta,
    pub spec: VolumeSpec,
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    pub node_affinity: VolumeAffinity,
    pub storage_class_name: String,
    pub access_modes: Vec<String>,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    pub claim_ref: Option<ClaimReference>,
    pub csi: Option<CsiSource>,
    capacity: ResourceList,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAffinity {
    pub required: Option<NodeSelector>,
}

/// The claim a volume is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    pub driver: String,
    pub volume_handle: String,
}

/// storage.k8s.io/v1 StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    pub metadata: ObjectMeta,
    pub provisioner: String,
    pub volume_binding_mode: String,
    pub allowed_topologies: Vec<TopologyTerm>,
}

/// Where a class provisions: any term whose labels all have one of the values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyTerm {
    pub match_label_expressions: Vec<TopologyLabel>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TopologyLabel {
    pub key: String,
    pub values: Vec<String>,
}

/// storage.k8s.io/v1 CSINode: how many volumes of each driver a node takes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    spec: CsiNodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CsiNodeSpec {
    drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CsiNodeDriver {
    name: String,
    allocatable: Option<CsiAllocatable>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CsiAllocatable {
    count: Option<usize>,
}

/// storage.k8s.io/v1 CSIDriver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    pub spec: CsiDriverSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// The driver publishes what is free as CSIStorageCapacity.
    pub storage_capacity: bool,
}

/// storage.k8s.io/v1 CSIStorageCapacity: what is free of a class in some part of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiStorageCapacity {
    pub storage_class_name: String,
    node_topology: Value,
    capacity: Option<Amount>,
    maximum_volume_size: Option<Amount>,
}

/// resource.k8s.io/v1 ResourceClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    pub metadata: ObjectMeta,
    pub status: ResourceClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimStatus {
    pub allocation: Option<Allocation>,
    pub reserved_for: Vec<Consumer>,
}

/// Where an allocated claim's devices can be used; without a selector, everywhere.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    pub node_selector: Option<NodeSelector>,
}

/// Who may use a claim.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    pub resource: String,
    pub name: String,
    pub uid: String,
}

impl PersistentVolumeClaim {
    pub fn key(&self) -> String {
        self.metadata.key()
    }

    /// Whether it has its volume for good (isPVCFullyBound).
    pub fn is_bound(&self) -> bool {
        !self.spec.volume_name.is_empty() && self.metadata.annotations.contains_key(BIND_COMPLETED)
    }

    /// Bytes asked for.
    pub fn size(&self) -> i64 {
        self.spec
            .resources
            .requests
            .get("storage")
            .map_or(0, |amount| amount.0.value())
    }

    pub fn class(&self) -> &str {
        self.spec.storage_class_name.as_deref().unwrap_or("")
    }

    /// The node it is to be provisioned for, if that is decided.
    pub fn selected_node(&self) -> Option<&str> {
        self.metadata
            .annotations
            .get(SELECTED_NODE)
            .map(String::as_str)
    }

    fn is_of(&self, reference: &ClaimReference) -> bool {
        reference.namespace == self.metadata.namespace
            && reference.name == self.metadata.name
            && (reference.uid.is_empty() || reference.uid == self.metadata.uid)
    }
}

fn mode(mode: &Option<String>) -> &str {
    mode.as_deref().unwrap_or("Filesystem")
}

impl PersistentVolume {
    pub fn size(&self) -> i64 {
        self.spec
            .capacity
            .get("storage")
            .map_or(0, |amount| amount.0.value())
    }

    /// Whether it can be reached from a node of this name and these labels.
    pub fn is_reachable(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let required = self.spec.node_affinity.required.as_ref();
        required.is_none_or(|required| required.matches(name, labels))
    }

    /// Whether it is meant for the claim already.
    pub fn is_reserved_for(&self, claim: &PersistentVolumeClaim) -> bool {
        self.spec
            .claim_ref
            .as_ref()
            .is_some_and(|reference| claim.is_of(reference))
    }

    /// Whether the claim could have it, wherever it is (FindMatchingVolume): one meant for the claim, or a free one of
    /// its class that its selector selects; in the claim's modes and at least as large.
    fn suits(&self, claim: &PersistentVolumeClaim, selector: &LabelSelector) -> bool {
        let free = self.spec.claim_ref.is_none()
            && self.status.phase == "Available"
            && selector.matches(&self.metadata.labels);
        let attributes = |name: &Option<String>| name.clone().unwrap_or_default();
        (free || self.is_reserved_for(claim))
            && !self.metadata.is_deleting()
            && self.spec.storage_class_name == claim.class()
            && mode(&self.spec.volume_mode) == mode(&claim.spec.volume_mode)
            && attributes(&self.spec.volume_attributes_class_name)
                == attributes(&claim.spec.volume_attributes_class_name)
            && claim
                .spec
                .access_modes
                .iter()
                .all(|mode| self.spec.access_modes.contains(mode))
            && self.size() >= claim.size()
    }
}

impl StorageClass {
    /// Whether something provisions its volumes.
    pub fn provisions(&self) -> bool {
        !self.provisioner.is_empty() && self.provisioner != "kubernetes.io/no-provisioner"
    }

    /// Whether volumes can be provisioned for a node with these labels.
    pub fn reaches(&self, labels: &BTreeMap<String, String>) -> bool {
        let holds = |one: &TopologyLabel| {
            labels
                .get(&one.key)
                .is_some_and(|value| one.values.contains(value))
        };
        self.allowed_topologies.is_empty()
            || self
                .allowed_topologies
                .iter()
                .any(|term| term.match_label_expressions.iter().all(holds))
    }
}

impl CsiNode {
    /// How many volumes of a driver the node takes; `None` is any number.
    pub fn limit(&self, driver: &str) -> Option<usize> {
        let driver = self.spec.drivers.iter().find(|one| one.name == driver)?;
        driver.allocatable.as_ref()?.count
    }
}

impl CsiStorageCapacity {
    /// Whether a volume of so many bytes can be had on a node with these labels (capacitySufficient).
    fn is_enough(&self, bytes: i64, labels: &BTreeMap<String, String>) -> bool {
        let limit = self.maximum_volume_size.or(self.capacity);
        let here = LabelSelector::from_value(&self.node_topology);
        !self.node_topology.is_null()
            && limit.is_some_and(|limit| limit.0.value() >= bytes)
            && here.is_ok_and(|selector| selector.matches(labels))
    }
}

/// All of them; namespaced ones by `namespace/name`.
#[derive(Default)]
pub struct Storage {
    pub claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    pub classes: HashMap<String, Arc<StorageClass>>,
    pub csi_nodes: HashMap<String, Arc<CsiNode>>,
    pub csi_drivers: HashMap<String, Arc<CsiDriver>>,
    pub capacities: HashMap<String, Arc<CsiStorageCapacity>>,
    pub resource_claims: HashMap<String, Arc<ResourceClaim>>,
    volumes: HashMap<String, Arc<PersistentVolume>>,
    volumes_of_class: HashMap<String, BTreeSet<String>>,
    /// Volumes promised to a claim here, by name, and the nodes claims are to be provisioned for.
    promised: HashMap<String, String>,
    provisioned_for: HashMap<String, String>,
}

impl Storage {
    /// Whether an unbound claim waits for a pod's node to be chosen.
    pub fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let class = self.classes.get(claim.class());
        class.is_some_and(|class| class.volume_binding_mode == "WaitForFirstConsumer")
    }

    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.get(name)
    }

    /// Puts a volume, or removes it.
    pub fn set_volume(&mut self, name: &str, volume: Option<Arc<PersistentVolume>>) {
        if let Some(old) = self.volumes.remove(name)
            && let Some(names) = self.volumes_of_class.get_mut(&old.spec.storage_class_name)
        {
            names.remove(name);
            if names.is_empty() {
                self.volumes_of_class.remove(&old.spec.storage_class_name);
            }
        }
        if let Some(volume) = volume {
            let class = volume.spec.storage_class_name.clone();
            self.volumes_of_class
                .entry(class)
                .or_default()
                .insert(name.into());
            self.volumes.insert(name.into(), volume);
        }
    }

    /// The smallest volume the claim can have on a node, none of `taken` (FindMatchingVolume). One that is meant for
    /// the claim is preferred.
    pub fn find_volume(
        &self,
        claim: &PersistentVolumeClaim,
        node: &str,
        labels: &BTreeMap<String, String>,
        taken: &[&str],
    ) -> Option<&Arc<PersistentVolume>> {
        let selector = match &claim.spec.selector {
            Value::Null => LabelSelector::everything(),
            value => LabelSelector::from_value(value).ok()?,
        };
        let key = claim.key();
        let names = self.volumes_of_class.get(claim.class())?;
        let free = names.iter().filter(|name| {
            let promised = self.promised.get(*name).is_some_and(|other| *other != key);
            !promised && !taken.contains(&name.as_str())
        });
        free.filter_map(|name| self.volumes.get(name))
            .filter(|volume| volume.suits(claim, &selector) && volume.is_reachable(node, labels))
            .min_by_key(|volume| (!volume.is_reserved_for(claim), volume.size()))
    }

    /// The node a claim is to be provisioned for, in the API or decided here.
    pub fn selected_node<'a>(&'a self, claim: &'a PersistentVolumeClaim) -> Option<&'a str> {
        let decided = self.provisioned_for.get(&claim.key()).map(String::as_str);
        claim.selected_node().or(decided)
    }

    /// Whether there is room for the claim on a node, as far as its driver tells (hasEnoughCapacity).
    pub fn has_room(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let driver = self.csi_drivers.get(&class.provisioner);
        if driver.is_none_or(|driver| !driver.spec.storage_capacity) {
            return true;
        }
        let mut capacities = self
            .capacities
            .values()
            .filter(|one| one.storage_class_name == class.metadata.name);
        capacities.any(|one| one.is_enough(claim.size(), labels))
    }

    /// Promises a volume to a claim, until `forget`.
    pub fn promise(&mut self, volume: &str, claim: &str) {
        self.promised.insert(volume.into(), claim.into());
    }

    /// Decides for which node a claim is provisioned, until `forget`.
    pub fn provision(&mut self, claim: &str, node: &str) {
        self.provisioned_for.insert(claim.into(), node.into());
    }

    /// Takes back what was decided for a claim: it is in the API, or will not be.
    pub fn forget(&mut self, claim: &str) {
        self.promised.retain(|_, other| other != claim);
        self.provisioned_for.remove(claim);
    }
}
