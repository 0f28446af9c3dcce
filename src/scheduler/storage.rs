//! Claims, volumes and classes as far as they decide where a pod may run, with what was decided here and is not in
//! the API yet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::view::{NodeSelector, ObjectMeta};
use apimachinery::{Value, selector::LabelSelector};
use serde::{Deserialize, Serialize};

use crate::{
    devices::{
        Inventory,
        view::{
            AllocatedDevice, ClaimSpec as ClaimOfDevices, DeviceClass, DeviceStatus, ResourceSlice,
        },
    },
    plugins::dynamic_resources::ClaimPlan,
    resources::{Amount, ResourceList},
};

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

/// storage.k8s.io/v1 VolumeAttachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    pub spec: AttachmentSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    pub attacher: String,
    pub node_name: String,
    pub source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    pub persistent_volume_name: String,
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
    pub spec: ClaimOfDevices,
    pub status: ResourceClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimStatus {
    pub allocation: Option<Allocation>,
    pub reserved_for: Vec<Consumer>,
    pub devices: Vec<DeviceStatus>,
}

/// Where an allocated claim's devices can be used; without a selector, everywhere.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    pub node_selector: Option<NodeSelector>,
    pub devices: AllocatedDevices,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    pub results: Vec<AllocatedDevice>,
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

impl ResourceClaimStatus {
    /// Whether all its devices are ready for a pod to be bound; `None` if one never will be.
    pub fn is_ready(&self) -> Option<bool> {
        let results = self.allocation.iter().flat_map(|one| &one.devices.results);
        let mut is_ready = true;
        for result in results {
            is_ready &= result.is_ready(&self.devices)?;
        }
        Some(is_ready)
    }
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

/// Marks a claim that the scheduler made for a pod's extended resources (ExtendedResourceClaimAnnotation).
pub const SPECIAL_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// A claim that is made for a pod's extended resources, until the API shows it.
struct Pending {
    claim: Arc<ResourceClaim>,
    /// Its key, and the version it was written as.
    written: Option<(String, u64)>,
}

/// The uid of the pod that a special claim was made for.
fn special_owner(claim: &ResourceClaim) -> Option<&str> {
    let is_special = claim.metadata.annotations.get(SPECIAL_CLAIM)? == "true";
    let owner = claim.metadata.controller().filter(|_| is_special)?;
    (owner.kind == "Pod").then_some(&owner.uid)
}

/// A claim with what was decided here.
struct AssumedClaim {
    claim: Arc<ResourceClaim>,
    /// Whether its devices were decided here, too.
    is_allocated_here: bool,
    /// The version it was written as.
    written: Option<u64>,
}

/// All of them; namespaced ones by `namespace/name`.
#[derive(Default)]
pub struct Storage {
    pub claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    pub classes: HashMap<String, Arc<StorageClass>>,
    pub csi_nodes: HashMap<String, Arc<CsiNode>>,
    pub csi_drivers: HashMap<String, Arc<CsiDriver>>,
    pub capacities: HashMap<String, Arc<CsiStorageCapacity>>,
    pub slices: HashMap<String, Arc<ResourceSlice>>,
    pub device_classes: HashMap<String, Arc<DeviceClass>>,
    resource_claims: HashMap<String, Arc<ResourceClaim>>,
    /// Claims as they will be once what was decided here is written and seen.
    assumed_claims: HashMap<String, AssumedClaim>,
    /// Keys of claims for extended resources, by the uid of their pod, and those that are to be seen yet.
    special_claims: HashMap<String, BTreeSet<String>>,
    pending_claims: HashMap<Arc<str>, Pending>,
    /// By node, then by name.
    attachments: HashMap<String, HashMap<String, Arc<VolumeAttachment>>>,
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

    /// Puts an attachment, or removes it. Its node never changes.
    pub fn set_attachment(
        &mut self,
        name: &str,
        old: Option<&VolumeAttachment>,
        new: Option<Arc<VolumeAttachment>>,
    ) {
        if let Some(old) = old
            && let Some(of_node) = self.attachments.get_mut(&old.spec.node_name)
        {
            of_node.remove(name);
            if of_node.is_empty() {
                self.attachments.remove(&old.spec.node_name);
            }
        }
        if let Some(new) = new {
            let of_node = self
                .attachments
                .entry(new.spec.node_name.clone())
                .or_default();
            of_node.insert(name.into(), new);
        }
    }

    /// The CSI volumes attached to a node, whether or not a pod there needs them: driver and handle.
    pub fn attached_to<'a>(&'a self, node: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let attachments = self
            .attachments
            .get(node)
            .into_iter()
            .flat_map(HashMap::values);
        attachments.filter_map(|one| {
            let csi = self
                .volumes
                .get(&one.spec.source.persistent_volume_name)?
                .spec
                .csi
                .as_ref()?;
            Some((one.spec.attacher.as_str(), csi.volume_handle.as_str()))
        })
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

    /// A claim, with what was decided here.
    pub fn resource_claim(&self, key: &str) -> Option<&Arc<ResourceClaim>> {
        let known = self.resource_claims.get(key)?;
        Some(
            self.assumed_claims
                .get(key)
                .map_or(known, |assumed| &assumed.claim),
        )
    }

    /// Puts a claim as the API has it, or removes it. What was decided here stays until the API shows it.
    pub fn set_resource_claim(&mut self, key: &str, claim: Option<Arc<ResourceClaim>>) {
        let Some(claim) = claim else {
            let old = self.resource_claims.remove(key);
            self.assumed_claims.remove(key);
            if let Some(owner) = old.as_deref().and_then(special_owner) {
                self.pending_claims
                    .retain(|_, one| one.written.as_ref().is_none_or(|(other, _)| other != key));
                if let Some(keys) = self.special_claims.get_mut(owner) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.special_claims.remove(owner);
                    }
                }
            }
            return;
        };
        if let Some(owner) = special_owner(&claim) {
            let owner = owner.to_owned();
            let keys = self.special_claims.entry(owner.clone()).or_default();
            keys.insert(key.into());
            self.resource_claims.insert(key.into(), claim);
            self.drop_if_shown(&owner);
            return;
        }
        self.resource_claims.insert(key.into(), claim);
        self.drop_if_seen(key);
    }

    /// The claim for a pod's extended resources, as it will be, or as the API has it.
    pub fn special_claim(&self, pod: &str) -> Option<&Arc<ResourceClaim>> {
        if let Some(pending) = self.pending_claims.get(pod) {
            return Some(&pending.claim);
        }
        let keys = self.special_claims.get(pod)?;
        keys.iter().find_map(|key| self.resource_claims.get(key))
    }

    /// Notes the claim that is to be made for a pod's extended resources, until `forget_special`, or `special_written`
    /// and the API shows it.
    pub fn assume_special(&mut self, pod: &Arc<str>, plan: &ClaimPlan) {
        let mut claim = ResourceClaim::clone(&plan.claim);
        let allocation = plan.allocation.as_ref();
        claim.status.allocation = allocation.and_then(|one| Allocation::deserialize(one).ok());
        let pending = Pending {
            claim: Arc::new(claim),
            written: None,
        };
        self.pending_claims.insert(pod.clone(), pending);
    }

    /// The claim for a pod's extended resources is in the API with its devices, as this version.
    pub fn special_written(&mut self, pod: &str, key: &str, version: &str) {
        if let Some(pending) = self.pending_claims.get_mut(pod) {
            pending.written = Some((key.into(), version.parse().unwrap_or(0)));
        }
        self.drop_if_shown(pod);
    }

    /// Takes back what was decided for a pod's extended resources.
    pub fn forget_special(&mut self, pod: &str) {
        self.pending_claims.remove(pod);
    }

    fn drop_if_shown(&mut self, pod: &str) {
        let pending = self.pending_claims.get(pod);
        let Some((key, written)) = pending.and_then(|one| one.written.as_ref()) else {
            return;
        };
        let shown = self.resource_claims.get(key);
        let version = |claim: &Arc<ResourceClaim>| claim.metadata.resource_version.parse::<u64>();
        if shown.is_some_and(|claim| version(claim).unwrap_or(u64::MAX) >= *written) {
            self.pending_claims.remove(pod);
        }
    }

    /// Whether devices decided here are still to be written.
    pub fn is_being_allocated(&self, key: &str) -> bool {
        let assumed = self.assumed_claims.get(key);
        assumed.is_some_and(|one| one.is_allocated_here && one.written.is_none())
    }

    /// Notes what a claim is given and for whom, until `forget_claim`, or `claim_written` and the API shows it.
    pub fn assume_claim(&mut self, plan: &ClaimPlan, consumer: Consumer) {
        let mut claim = ResourceClaim::clone(&plan.claim);
        claim.status.reserved_for.push(consumer);
        if let Some(allocation) = &plan.allocation {
            claim.status.allocation = Allocation::deserialize(allocation).ok();
        }
        let assumed = AssumedClaim {
            claim: Arc::new(claim),
            is_allocated_here: plan.allocation.is_some(),
            written: None,
        };
        self.assumed_claims
            .insert(plan.claim.metadata.key(), assumed);
    }

    /// What was decided for a claim is in the API, as this version.
    pub fn claim_written(&mut self, key: &str, version: &str) {
        if let Some(assumed) = self.assumed_claims.get_mut(key) {
            assumed.written = Some(version.parse().unwrap_or(0));
        }
        self.drop_if_seen(key);
    }

    /// Takes back what was decided for a claim.
    pub fn forget_claim(&mut self, key: &str) {
        self.assumed_claims.remove(key);
    }

    fn drop_if_seen(&mut self, key: &str) {
        let (Some(assumed), Some(known)) =
            (self.assumed_claims.get(key), self.resource_claims.get(key))
        else {
            return;
        };
        let seen: u64 = known.metadata.resource_version.parse().unwrap_or(u64::MAX);
        if assumed.written.is_some_and(|written| seen >= written) {
            self.assumed_claims.remove(key);
        }
    }

    /// All devices, and what claims have of them.
    pub fn inventory(&self) -> Inventory {
        let pending = self.pending_claims.values();
        let replaced = |key: &String| {
            let mut written = pending.clone().filter_map(|one| one.written.as_ref());
            written.any(|(other, _)| other == key)
        };
        let claims = self
            .resource_claims
            .keys()
            .filter(|key| !replaced(key))
            .filter_map(|key| self.resource_claim(key))
            .chain(pending.clone().map(|one| &one.claim));
        let allocations = claims.filter_map(|claim| claim.status.allocation.as_ref());
        Inventory::new(
            self.slices.values(),
            allocations.flat_map(|one| &one.devices.results),
        )
    }
}
