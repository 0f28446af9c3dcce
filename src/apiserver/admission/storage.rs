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
        let classes = attributes
            .registry
            .cached_values("storage.k8s.io", "storageclasses")
            .await?;
        // The newest default wins; of equally old ones, the first by name.
        let newest = classes
            .iter()
            .filter(|class| {
                DEFAULT_CLASS
                    .iter()
                    .any(|key| meta::annotation(class, key) == Some("true"))
            })
            .max_by(|a, b| {
                meta::creation_timestamp(a)
                    .cmp(meta::creation_timestamp(b))
                    .then(meta::name(b).cmp(meta::name(a)))
            });
        if let Some(class) = newest {
            object_mut(object, &["spec"])
                .insert("storageClassName".to_owned(), meta::name(class).into());
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
