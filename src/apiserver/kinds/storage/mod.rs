//! Storage classes and drivers.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use serde_json::json;

use super::pod_spec::validation::one_of;
use super::tree::{at, at_mut, default_value, semantically_equal, text};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "storage.k8s.io";

pub struct StorageClasses;

impl Strategy for StorageClasses {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "storageclasses")
    }

    fn default(&self, object: &mut Value) {
        default_value(object, "reclaimPolicy", "Delete");
        default_value(object, "volumeBindingMode", "Immediate");
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if text(object, &["provisioner"]).is_empty() {
            errors.push(Error::required(&Path::new("provisioner"), ""));
        }
        let policy = text(object, &["reclaimPolicy"]);
        one_of(
            policy,
            &["Delete", "Retain"],
            &Path::new("reclaimPolicy"),
            &mut errors,
        );
        let mode = text(object, &["volumeBindingMode"]);
        let valid = ["Immediate", "WaitForFirstConsumer"];
        one_of(mode, &valid, &Path::new("volumeBindingMode"), &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = self.validate_create(change, new);
        for field in ["parameters", "provisioner", "reclaimPolicy"] {
            if !semantically_equal(at(new, &[field]), at(old, &[field])) {
                errors.push(Error::forbidden(
                    &Path::new(field),
                    format!("updates to {field} are forbidden."),
                ));
            }
        }
        if at(new, &["volumeBindingMode"]) != at(old, &["volumeBindingMode"]) {
            errors.push(Error::invalid(
                &Path::new("volumeBindingMode"),
                text(new, &["volumeBindingMode"]),
                "field is immutable",
            ));
        }
        errors
    }
}

pub struct CsiDrivers;

impl Strategy for CsiDrivers {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "csidrivers")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = at_mut(object, &["spec"]) else {
            return;
        };
        for (field, value) in [
            ("attachRequired", json!(true)),
            ("podInfoOnMount", json!(false)),
            ("storageCapacity", json!(false)),
            ("requiresRepublish", json!(false)),
            ("seLinuxMount", json!(false)),
            ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
            ("volumeLifecycleModes", json!(["Persistent"])),
        ] {
            default_value(spec, field, value);
        }
    }
}
