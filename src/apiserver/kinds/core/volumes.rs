//! Persistent volumes and claims.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::quantity::Quantity;
use serde_json::json;

use super::super::pod_spec::defaults::network_volume;
use super::super::pod_spec::validation::one_of;
use super::super::tree::{at, default_text, default_value, has, items, map, restore, set, text};
use crate::registry::strategy::{Change, Strategy, default_prepare_update};

const MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Members of a volume's spec that are no source.
const NO_SOURCE: [&str; 10] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
    "",
];

pub struct PersistentVolumes;

impl Strategy for PersistentVolumes {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "persistentvolumes")
    }

    fn default(&self, object: &mut Value) {
        default_text(&mut object["status"], "phase", "Pending");
        let spec = &mut object["spec"];
        if spec.is_object() {
            default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
            default_value(spec, "volumeMode", "Filesystem");
            if has(spec, &["hostPath"]) {
                default_value(&mut spec["hostPath"], "type", "");
            }
            network_volume(spec);
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        let now = apimachinery::time::now_text();
        set(
            object,
            "status",
            json!({"phase": "Pending", "lastPhaseTransitionTime": now}),
        );
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        default_prepare_update(&["status"], change, new, old);
        if change.subresource == "status"
            && at(new, &["status", "phase"]) != at(old, &["status", "phase"])
        {
            let now = apimachinery::time::now_text();
            set(&mut new["status"], "lastPhaseTransitionTime", now);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        access_modes(object, &path, &mut errors);
        let capacity = map(object, &["spec", "capacity"]);
        if capacity.is_none_or(|capacity| !capacity.contains_key("storage") || capacity.len() > 1) {
            errors.push(Error::not_supported(
                &path.child("capacity"),
                at(object, &["spec", "capacity"]).clone(),
                &["storage"],
            ));
        }
        let sources: Vec<&String> = map(object, &["spec"])
            .into_iter()
            .flatten()
            .filter(|(key, value)| !NO_SOURCE.contains(&key.as_str()) && !value.is_null())
            .map(|(key, _)| key)
            .collect();
        if sources.is_empty() {
            errors.push(Error::required(&path, "must specify a volume type"));
        }
        for extra in sources.iter().skip(1) {
            errors.push(Error::forbidden(
                &path.child(extra),
                "may not specify more than 1 volume type",
            ));
        }
        let policy = text(object, &["spec", "persistentVolumeReclaimPolicy"]);
        one_of(
            policy,
            &POLICIES,
            &path.child("persistentVolumeReclaimPolicy"),
            &mut errors,
        );
        let mode = text(object, &["spec", "volumeMode"]);
        one_of(mode, &VOLUME_MODES, &path.child("volumeMode"), &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        let mut errors = self.validate_create(change, new);
        let mut source_changed = false;
        for key in map(old, &["spec"])
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
        {
            if !NO_SOURCE.contains(&key.as_str()) {
                source_changed |= at(new, &["spec", key]) != at(old, &["spec", key]);
            }
        }
        if source_changed {
            errors.push(Error::forbidden(
                &Path::new("spec.persistentvolumesource"),
                "spec.persistentvolumesource is immutable after creation",
            ));
        }
        errors
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}

fn access_modes(object: &Value, path: &Path, errors: &mut ErrorList) {
    let modes = items(object, &["spec", "accessModes"]);
    let path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(Error::required(&path, "at least 1 access mode is required"));
    }
    for mode in modes {
        one_of(mode.as_str().unwrap_or(""), &MODES, &path, errors);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.push(Error::forbidden(
            &path,
            "may not use ReadWriteOncePod with other access modes",
        ));
    }
}

pub struct PersistentVolumeClaims;

impl Strategy for PersistentVolumeClaims {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "persistentvolumeclaims")
    }

    fn default(&self, object: &mut Value) {
        default_text(&mut object["status"], "phase", "Pending");
        let spec = &mut object["spec"];
        if spec.is_object() {
            default_value(spec, "volumeMode", "Filesystem");
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"phase": "Pending"}));
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        access_modes(object, &path, &mut errors);
        let requests = path.child("resources").key("storage");
        match text(object, &["spec", "resources", "requests", "storage"]) {
            "" => errors.push(Error::required(&requests, "")),
            amount => {
                if amount
                    .parse::<Quantity>()
                    .is_ok_and(|amount| amount.sign() <= 0)
                {
                    errors.push(Error::invalid(
                        &requests,
                        amount,
                        "must be greater than zero",
                    ));
                }
            }
        }
        let mode = text(object, &["spec", "volumeMode"]);
        one_of(mode, &VOLUME_MODES, &path.child("volumeMode"), &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        let mut errors = self.validate_create(change, new);
        let frozen = |claim: &Value| {
            let mut spec = claim["spec"].clone();
            restore(&mut spec, &json!({}), "volumeAttributesClassName");
            if let Some(resources) = spec.get_mut("resources") {
                restore(resources, &json!({}), "requests");
            }
            // A claim is bound once.
            if text(old, &["spec", "volumeName"]).is_empty() {
                restore(&mut spec, &json!({}), "volumeName");
            }
            spec
        };
        if frozen(new) != frozen(old) {
            errors.push(Error::forbidden(
                &Path::new("spec"),
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n",
            ));
        }
        let size = |claim: &Value| {
            text(claim, &["spec", "resources", "requests", "storage"])
                .parse::<Quantity>()
                .ok()
        };
        if let (Some(is), Some(was)) = (size(new), size(old))
            && is < was
        {
            errors.push(Error::forbidden(
                &Path::new("spec.resources.requests.storage"),
                "field can not be less than status.capacity",
            ));
        }
        errors
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}
