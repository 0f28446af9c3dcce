//! Namespaces: two-phase deletion. A deleted namespace turns Terminating and stays until its content is gone and the last
//! of `spec.finalizers` was taken off by the finalize subresource.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta, name};
use serde_json::json;

use super::super::object_meta::{NameRule, dns_label};
use super::super::tree::{default_text, has, items, object_mut, restore, set, text};
use crate::registry::strategy::{Change, Strategy};

const FINALIZER: &str = "kubernetes";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub struct Namespaces;

impl Strategy for Namespaces {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "namespaces")
    }

    fn name_rule(&self) -> NameRule {
        dns_label
    }

    fn default(&self, object: &mut Value) {
        let name = meta::name(object).to_owned();
        if !name.is_empty() {
            meta::set_label(object, NAME_LABEL, &name);
        }
        default_text(&mut object["status"], "phase", "Active");
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"phase": "Active"}));
        let mut finalizers = items(object, &["spec", "finalizers"]).to_vec();
        if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
        object_mut(object, &["spec"]).insert("finalizers".to_owned(), finalizers.into());
        let name = meta::name(object).to_owned();
        meta::set_label(object, NAME_LABEL, &name);
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        match change.subresource {
            "status" => restore(new, old, "spec"),
            "finalize" => restore(new, old, "status"),
            _ => {
                restore(new, old, "status");
                let finalizers = old["spec"].get("finalizers").cloned();
                let spec = object_mut(new, &["spec"]);
                match finalizers {
                    Some(list) => spec.insert("finalizers".to_owned(), list),
                    None => spec.remove("finalizers"),
                };
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        validate_finalizers(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if change.subresource == "finalize" {
            errors.extend(validate_finalizers(new));
        }
        if change.subresource == "status" {
            let phase = text(new, &["status", "phase"]);
            let wanted = if meta::is_deleting(new) {
                "Terminating"
            } else {
                "Active"
            };
            if phase != wanted {
                let path = Path::new("status.Phase");
                let why = if wanted == "Active" {
                    "may only be 'Active' if `deletionTimestamp` is empty"
                } else {
                    "may only be 'Terminating' if `deletionTimestamp` is not empty"
                };
                errors.push(Error::invalid(&path, phase, why));
            }
        }
        errors
    }

    fn may_vanish(&self, object: &Value) -> bool {
        items(object, &["spec", "finalizers"]).is_empty()
    }

    fn begin_delete(&self, object: &mut Value) {
        object_mut(object, &["status"]).insert("phase".to_owned(), "Terminating".into());
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "status.phase" {
            "Active"
        } else {
            ""
        }
    }
}

fn validate_finalizers(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec.finalizers");
    if !has(object, &["spec", "finalizers"]) {
        return errors;
    }
    for finalizer in items(object, &["spec", "finalizers"]) {
        let finalizer = finalizer.as_str().unwrap_or("");
        errors.push_invalid(&path, finalizer, name::qualified_name(finalizer));
        if !finalizer.contains('/') && finalizer != FINALIZER {
            errors.push(Error::invalid(
                &path,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    errors
}
