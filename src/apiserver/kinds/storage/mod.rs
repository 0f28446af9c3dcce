//! Storage classes, classes of volume attributes, and drivers.

pub mod csi;

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::name;
use serde_json::json;

use super::check::{IMMUTABLE, Node};
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
        storage_class(object)
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

/// Bounds of a class's parameters: how many, and bytes of all.
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 * 1024;

/// `ValidateStorageClass`.
fn storage_class(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let root = Node::root(object, "");
    let provisioner = root.at("provisioner");
    if provisioner.present(errors) {
        provisioner.syntax(errors, |text| name::qualified_name(&text.to_lowercase()));
    }
    parameters(&root.at("parameters"), true, errors);
    root.at("reclaimPolicy")
        .known_if_set(errors, &["Delete", "Retain"]);
    let mode = root.at("volumeBindingMode");
    if mode.is_set() {
        mode.known(errors, &["Immediate", "WaitForFirstConsumer"]);
    } else {
        mode.required(errors, "");
    }
    let topologies = root.at("allowedTopologies");
    for term in topologies.items() {
        let expressions = term.at("matchLabelExpressions");
        let mut seen: Vec<&str> = Vec::new();
        for expression in expressions.items() {
            let (key, values) = (expression.at("key"), expression.at("values"));
            if values.list().is_empty() {
                values.required(errors, "");
            }
            if seen.contains(&key.text()) {
                key.duplicate(errors);
            }
            seen.push(key.text());
            key.syntax(errors, name::qualified_name);
            for (index, value) in values.items().enumerate() {
                if values.list()[..index].contains(value.value) {
                    value.duplicate(errors);
                }
            }
        }
    }
    std::mem::take(errors)
}

/// `validateParameters`.
fn parameters(parameters: &Node<'_, '_>, may_be_empty: bool, errors: &mut ErrorList) {
    let Some(map) = parameters.value.as_object().filter(|map| !map.is_empty()) else {
        if !may_be_empty {
            parameters.required(errors, "must contain at least one key/value pair");
        }
        return;
    };
    if map.len() > MAX_PARAMETERS {
        errors.push(Error::too_long(&parameters.path(), MAX_PARAMETERS));
        return;
    }
    let mut bytes = 0;
    for (key, value) in map {
        if key.is_empty() {
            parameters.invalid_as(errors, key, "field can not be empty.");
        }
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > MAX_PARAMETER_BYTES {
        errors.push(Error::too_long(&parameters.path(), MAX_PARAMETER_BYTES));
    }
}

pub struct VolumeAttributesClasses;

impl Strategy for VolumeAttributesClasses {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "volumeattributesclasses")
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let root = Node::root(object, "");
        let driver = root.at("driverName");
        if driver.present(&mut errors) {
            driver.syntax(&mut errors, |text| {
                name::qualified_name(&text.to_lowercase())
            });
        }
        parameters(&root.at("parameters"), false, &mut errors);
        errors
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let root = Node::root(new, "");
        if at(new, &["driverName"]) != at(old, &["driverName"]) {
            root.at("driverName")
                .forbidden(&mut errors, "updates to driverName are forbidden.");
        }
        if !semantically_equal(at(new, &["parameters"]), at(old, &["parameters"])) {
            root.at("parameters")
                .forbidden(&mut errors, "updates to parameters are forbidden.");
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

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        csi::driver(object)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = csi::driver(new);
        let spec = Node::root(at(new, &["spec"]), "spec");
        for (field, told) in [
            ("attachRequired", "attachedRequired"),
            ("volumeLifecycleModes", "volumeLifecycleModes"),
        ] {
            let (is, was) = (spec.at(field), at(old, &["spec", field]));
            if !semantically_equal(is.value, was) {
                errors.push(Error::invalid(
                    &spec.path().child(told),
                    is.value,
                    IMMUTABLE,
                ));
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_name_a_provisioner_and_known_modes() {
        let errors = storage_class(
            &json!({"reclaimPolicy": "Recycle", "volumeBindingMode": "Soon",
            "parameters": {"": "x"}}),
        );
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "provisioner: Required value",
                "parameters: Invalid value: \"\": field can not be empty.",
                "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
                "volumeBindingMode: Unsupported value: \"Soon\": supported values: \"Immediate\", \"WaitForFirstConsumer\"",
            ]
        );
    }
}
