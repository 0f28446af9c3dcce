//! The rules of custom objects: their schema's defaults and bounds, a status of its own where the definition says so.

use api::Resource;
use apimachinery::field::ErrorList;
use apimachinery::{Value, meta, schema};

use super::definition::{Definition, Version};
use crate::kinds::tree::{remove, restore};
use crate::registry::strategy::{Change, Strategy, keep_all_but};

/// A custom kind.
pub struct Custom {
    group: &'static str,
    plural: &'static str,
    versions: Vec<&'static Version>,
    storage: &'static Version,
}

impl Custom {
    pub fn new(definition: &Definition) -> Self {
        Self {
            group: definition.group,
            plural: definition.plural,
            versions: definition.versions.clone(),
            storage: definition.storage,
        }
    }

    /// The version an object is in.
    fn version(&self, object: &Value) -> &'static Version {
        let (_, version) = meta::group_version(meta::api_version(object));
        self.versions
            .iter()
            .copied()
            .find(|known| known.resource.version == version)
            .unwrap_or(self.storage)
    }

    fn has_status(&self) -> bool {
        self.storage.resource.subresource("status").is_some()
    }
}

impl Strategy for Custom {
    fn id(&self) -> (&'static str, &'static str) {
        (self.group, self.plural)
    }

    fn custom(&self, resource: &Resource) -> Option<&'static Version> {
        let known = |version: &&'static Version| std::ptr::eq(&version.resource, resource);
        self.versions
            .iter()
            .copied()
            .chain([self.storage])
            .find(known)
    }

    fn default(&self, object: &mut Value) {
        self.version(object).schema.default(object);
    }

    fn revise(&self, object: &mut Value) {
        let version = self.version(object);
        version.schema.default(object);
        schema::prune(object, version.resource.schema);
    }

    fn convert(&self, object: &mut Value, _from: &Resource, to: &Resource) {
        schema::prune(object, to.schema);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn status_fields(&self) -> &'static [&'static str] {
        if self.has_status() { &["status"] } else { &[] }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        if self.has_status() {
            remove(object, "status");
        }
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        if change.subresource == "status" {
            keep_all_but(new, old, &["status"]);
            // Of the metadata only who wrote it is new.
            let managed = new["metadata"].get("managedFields").cloned();
            restore(new, old, "metadata");
            if let (Some(managed), Some(metadata)) = (managed, new["metadata"].as_object_mut()) {
                metadata.insert("managedFields".to_owned(), managed);
            }
        } else if self.has_status() {
            restore(new, old, "status");
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        self.version(object).schema.validate(object, None)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        self.version(new).schema.validate(new, Some(old))
    }

    fn warnings(&self, change: &Change<'_>, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        let asked = change.request.info.version.as_str();
        self.versions
            .iter()
            .find(|version| version.resource.version == asked)
            .and_then(|version| version.deprecation.clone())
            .into_iter()
            .collect()
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }
}
