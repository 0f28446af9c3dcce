//! DefaultStorageClass and StorageObjectInUseProtection: claims without a class get the default one, and volumes in
//! use outlive their deletion.

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{has, object_mut};

const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_core("persistentvolumeclaims") && attributes.operation == Operation::Create
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        if has(object, &["spec", "storageClassName"])
            || meta::annotation(object, BETA_CLASS).is_some()
        {
            return Ok(());
        }
        let class = super::classes::newest_default(
            attributes,
            ("storage.k8s.io", "storageclasses"),
            &DEFAULT_CLASS,
        );
        if let Some(class) = class.await? {
            object_mut(object, &["spec"]).insert("storageClassName".to_owned(), class.into());
        }
        Ok(())
    }
}

pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create
            && (attributes.is_core("persistentvolumeclaims")
                || attributes.is_core("persistentvolumes"))
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        let finalizer = if attributes.resource.plural == "persistentvolumes" {
            "kubernetes.io/pv-protection"
        } else {
            "kubernetes.io/pvc-protection"
        };
        let mut list: Vec<String> = meta::finalizers(object).map(str::to_owned).collect();
        if !list.iter().any(|have| have == finalizer) {
            list.push(finalizer.to_owned());
            meta::set_finalizers(object, list);
        }
        Ok(())
    }
}
