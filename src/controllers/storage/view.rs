//! PersistentVolumes, claims and storage classes, as far as the controllers read them.

use std::collections::BTreeMap;

use api::view::ObjectMeta;
use apimachinery::{Value, quantity::Quantity};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub metadata: ObjectMeta,
    pub spec: VolumeSpec,
    pub status: VolumeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    pub capacity: BTreeMap<String, String>,
    pub access_modes: Vec<String>,
    pub claim_ref: Option<ClaimReference>,
    pub persistent_volume_reclaim_policy: String,
    pub storage_class_name: String,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    pub node_affinity: Value,
    pub host_path: Value,
    pub csi: Value,
}

/// core/v1 ObjectReference of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimReference {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    pub phase: String,
    pub message: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Claim {
    pub metadata: ObjectMeta,
    pub spec: ClaimSpec,
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    pub access_modes: Vec<String>,
    pub selector: Value,
    pub resources: Requests,
    pub volume_name: String,
    pub storage_class_name: Option<String>,
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Requests {
    pub requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    pub phase: String,
    pub access_modes: Vec<String>,
    pub capacity: BTreeMap<String, String>,
    pub current_volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    pub metadata: ObjectMeta,
    pub provisioner: String,
    pub parameters: BTreeMap<String, String>,
    pub reclaim_policy: Option<String>,
    pub mount_options: Vec<String>,
    pub allow_volume_expansion: bool,
    pub volume_binding_mode: Option<String>,
}

impl StorageClass {
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    /// Whether claims without a class get this one.
    pub fn is_default(&self) -> bool {
        [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|key| {
            self.metadata
                .annotations
                .get(*key)
                .is_some_and(|value| value == "true")
        })
    }
}

/// storage.k8s.io/v1 VolumeAttachment: a volume that belongs on a node, and what its driver says of that.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    pub metadata: ObjectMeta,
    pub spec: AttachmentSpec,
    pub status: AttachmentStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    pub attacher: String,
    pub node_name: String,
    pub source: AttachmentSource,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    pub persistent_volume_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    pub attached: bool,
    pub attach_error: Option<VolumeError>,
    pub detach_error: Option<VolumeError>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeError {
    pub time: String,
    pub message: String,
}

impl VolumeAttachment {
    /// The name of its PersistentVolume.
    pub fn volume(&self) -> &str {
        &self.spec.source.persistent_volume_name
    }
}

/// storage.k8s.io/v1 CSIDriver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    pub metadata: ObjectMeta,
    pub spec: CsiDriverSpec,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    pub attach_required: bool,
}

impl Default for CsiDriverSpec {
    fn default() -> Self {
        CsiDriverSpec {
            attach_required: true,
        }
    }
}

fn storage(amounts: &BTreeMap<String, String>) -> Option<Quantity> {
    amounts.get("storage")?.parse().ok()
}

impl Volume {
    pub fn capacity(&self) -> Option<Quantity> {
        storage(&self.spec.capacity)
    }

    pub fn mode(&self) -> &str {
        self.spec.volume_mode.as_deref().unwrap_or("Filesystem")
    }

    /// Its class, also by the old annotation.
    pub fn class(&self) -> &str {
        let annotation = self
            .metadata
            .annotations
            .get("volume.beta.kubernetes.io/storage-class");
        annotation.unwrap_or(&self.spec.storage_class_name)
    }

    /// Whether it is of this claim: by name, and by uid if it has one.
    pub fn is_bound_to(&self, claim: &Claim) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| {
            reference.name == claim.metadata.name
                && reference.namespace == claim.metadata.namespace
                && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
        })
    }
}

impl Claim {
    /// What it has.
    pub fn capacity(&self) -> Option<Quantity> {
        storage(&self.status.capacity)
    }

    pub fn request(&self) -> Option<Quantity> {
        storage(&self.spec.resources.requests)
    }

    pub fn mode(&self) -> &str {
        self.spec.volume_mode.as_deref().unwrap_or("Filesystem")
    }

    /// Its class, also by the old annotation; empty is none.
    pub fn class(&self) -> &str {
        let annotation = self
            .metadata
            .annotations
            .get("volume.beta.kubernetes.io/storage-class");
        annotation
            .or(self.spec.storage_class_name.as_ref())
            .map_or("", String::as_str)
    }
}
