//! Claims and devices, as far as the controllers read them.

use api::view::ObjectMeta;
use apimachinery::Value;
use serde::{Deserialize, Serialize};

/// Kept on a claim while it is allocated (resourceapi.Finalizer).
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// On a claim made for a pod: the pod's own name of it (PodResourceClaimAnnotation).
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// resource.k8s.io/v1 ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    pub metadata: ObjectMeta,
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    pub allocation: Option<Allocation>,
    pub reserved_for: Vec<Consumer>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    pub devices: AllocatedDevices,
    pub allocation_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    pub results: Vec<AllocatedDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocatedDevice {
    pub driver: String,
    pub pool: String,
    pub device: String,
    pub admin_access: Option<bool>,
    /// Alike to a pod's, with the same meaning.
    pub tolerations: Vec<api::view::Toleration>,
}

/// Who may use a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    pub resource: String,
    pub name: String,
    pub uid: String,
}

impl Consumer {
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

/// resource.k8s.io/v1 ResourceClaimTemplate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplate {
    pub metadata: ObjectMeta,
    pub spec: TemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TemplateSpec {
    pub metadata: ObjectMeta,
    pub spec: Value,
}

/// resource.k8s.io/v1 ResourceSlice: taints only.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    pub metadata: ObjectMeta,
    pub spec: SliceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SliceSpec {
    pub driver: String,
    pub pool: Pool,
    #[serde(deserialize_with = "tainted")]
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub name: String,
    pub generation: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Device {
    pub name: String,
    pub taints: Vec<api::view::Taint>,
}

/// Leaves out the devices without a taint.
fn tainted<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Device>, D::Error> {
    let mut all = Option::<Vec<Device>>::deserialize(from)?.unwrap_or_default();
    all.retain(|device| !device.taints.is_empty());
    Ok(all)
}

/// resource.k8s.io/v1 DeviceTaintRule: a taint for all devices it selects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRule {
    pub metadata: ObjectMeta,
    pub spec: RuleSpec,
    pub status: RuleStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleSpec {
    /// None selects nothing.
    pub device_selector: Option<DeviceSelector>,
    pub taint: api::view::Taint,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceSelector {
    pub driver: Option<String>,
    pub pool: Option<String>,
    pub device: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RuleStatus {
    pub conditions: Vec<Value>,
}

impl DeviceSelector {
    /// Whether the device is selected: what is not named may be anything.
    pub fn matches(&self, device: &AllocatedDevice) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == value)
        };
        is(&self.driver, &device.driver)
            && is(&self.pool, &device.pool)
            && is(&self.device, &device.device)
    }
}
