//! Claims, volumes and classes as far as they decide where a pod may run.

use std::{collections::HashMap, sync::Arc};

use api::view::{NodeSelector, ObjectMeta};
use serde::Deserialize;

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
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    pub node_affinity: VolumeAffinity,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAffinity {
    pub required: Option<NodeSelector>,
}

/// storage.k8s.io/v1 StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    pub metadata: ObjectMeta,
    pub volume_binding_mode: String,
}

/// All of them; claims by `namespace/name`.
#[derive(Default)]
pub struct Storage {
    pub claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    pub volumes: HashMap<String, Arc<PersistentVolume>>,
    pub classes: HashMap<String, Arc<StorageClass>>,
}

impl Storage {
    /// Whether an unbound claim waits for a pod's node to be chosen.
    pub fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let name = claim.spec.storage_class_name.as_deref().unwrap_or("");
        let class = self.classes.get(name);
        class.is_some_and(|class| class.volume_binding_mode == "WaitForFirstConsumer")
    }
}
