//! resource.k8s.io/v1: slices, classes and claims, as far as they decide who gets which device.

use std::collections::BTreeMap;

use api::view::{NodeSelector, ObjectMeta, Taint, Toleration};
use apimachinery::Value;
use serde::{Deserialize, Serialize};

use crate::resources::{Amount, ResourceList};

/// ResourceSlice: some devices of a pool of a driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    pub metadata: ObjectMeta,
    pub spec: SliceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceSpec {
    pub driver: String,
    pub pool: Pool,
    #[serde(flatten)]
    pub place: Place,
    /// Each device has a place of its own.
    pub per_device_node_selection: bool,
    pub devices: Vec<Device>,
    pub shared_counters: Vec<CounterSet>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    pub name: String,
    pub generation: i64,
    pub resource_slice_count: usize,
}

/// Where devices can be used: on one node, on some, or on all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Place {
    pub node_name: String,
    pub node_selector: Option<Selecting>,
    pub all_nodes: bool,
}

/// A node selector with its text, which is handed on as it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct Selecting {
    pub raw: Value,
    pub parsed: NodeSelector,
}

impl TryFrom<Value> for Selecting {
    type Error = serde_json::Error;

    fn try_from(raw: Value) -> Result<Self, serde_json::Error> {
        let parsed = NodeSelector::deserialize(&raw)?;
        Ok(Selecting { raw, parsed })
    }
}

impl Place {
    pub fn includes(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        self.all_nodes
            || self.node_name == node
            || self
                .node_selector
                .as_ref()
                .is_some_and(|one| one.parsed.matches(node, labels))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    pub name: String,
    pub attributes: BTreeMap<String, Attribute>,
    pub capacity: BTreeMap<String, Capacity>,
    pub taints: Vec<Taint>,
    #[serde(flatten)]
    pub place: Place,
    /// Several claims may have it, each a part of its capacity (KEP-5075).
    pub allow_multiple_allocations: bool,
    /// What it takes of the counters it shares with other devices (KEP-4815).
    pub consumes_counters: Vec<CounterSet>,
    /// Being given binds it to the node it is given for (KEP-5007).
    pub binds_to_node: bool,
    /// What must be true of it before a pod is bound, and what ends the attempt.
    pub binding_conditions: Vec<String>,
    pub binding_failure_conditions: Vec<String>,
}

/// One of its fields is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Attribute {
    pub bool: Option<bool>,
    pub int: Option<i64>,
    pub string: Option<String>,
    pub version: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capacity {
    pub value: Option<Amount>,
    pub request_policy: Option<RequestPolicy>,
}

/// Which parts of a capacity can be had.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestPolicy {
    pub default: Option<Amount>,
    pub valid_values: Vec<Amount>,
    pub valid_range: Option<ValidRange>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ValidRange {
    pub min: Option<Amount>,
    pub max: Option<Amount>,
    pub step: Option<Amount>,
}

/// Counters of a pool by their set, or what a device takes of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CounterSet {
    /// In a pool.
    pub name: String,
    /// In a device.
    pub counter_set: String,
    pub counters: BTreeMap<String, Counter>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counter {
    pub value: Option<Amount>,
}

/// DeviceClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    pub metadata: ObjectMeta,
    pub spec: ClassSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassSpec {
    /// The extended resource that its devices stand for (KEP-5004).
    pub extended_resource_name: Option<String>,
    pub selectors: Vec<Selector>,
    pub config: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Selector {
    pub cel: Option<CelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CelSelector {
    pub expression: String,
}

/// The `spec` of a ResourceClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    pub devices: DeviceClaim,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    pub requests: Vec<DeviceRequest>,
    pub constraints: Vec<Constraint>,
    pub config: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequest {
    pub name: String,
    pub exactly: Option<Wish>,
    /// The first of these that can be had.
    pub first_available: Vec<Wish>,
}

/// What is asked for, exactly or as one of several.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wish {
    /// Of one of several.
    pub name: String,
    pub device_class_name: String,
    pub selectors: Vec<Selector>,
    /// `ExactCount` (also when empty) or `All`.
    pub allocation_mode: String,
    pub count: usize,
    pub admin_access: bool,
    pub tolerations: Vec<Toleration>,
    pub capacity: CapacityWish,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityWish {
    pub requests: ResourceList,
}

/// Devices must have an attribute in common, or all differ in it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Constraint {
    /// Empty: all requests.
    pub requests: Vec<String>,
    pub match_attribute: Option<String>,
    pub distinct_attribute: Option<String>,
}

/// A device a claim has been given, as its status says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocatedDevice {
    pub request: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub consumed_capacity: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binding_conditions: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binding_failure_conditions: Vec<String>,
}

/// What a driver says of a device that a claim has (AllocatedDeviceStatus).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    pub driver: String,
    pub pool: String,
    pub device: String,
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    pub conditions: Vec<DeviceCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

impl AllocatedDevice {
    /// Whether it is ready for its pod to be bound; `None` if it never will be.
    pub fn is_ready(&self, statuses: &[DeviceStatus]) -> Option<bool> {
        let own = |one: &&DeviceStatus| {
            (&one.driver, &one.pool, &one.device, &one.share_id)
                == (&self.driver, &self.pool, &self.device, &self.share_id)
        };
        let own = statuses.iter().filter(own);
        let conditions: Vec<&DeviceCondition> = own.flat_map(|one| &one.conditions).collect();
        let holds = |kind: &String| {
            let mut of_kind = conditions.iter().filter(|one| one.kind == *kind);
            of_kind.any(|one| one.status == "True")
        };
        if self.binding_failure_conditions.iter().any(holds) {
            return None;
        }
        Some(self.binding_conditions.iter().all(holds))
    }
}
