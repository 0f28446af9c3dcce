//! Persistent volumes.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};
use serde_json::json;

use super::super::check::{IMMUTABLE, Node};
use super::super::pod_spec::affinity::node_selector;
use super::super::pod_spec::defaults::network_volume;
use super::super::tree::{
    at, default_text, default_value, has, remove, semantically_equal, set, text,
};
use super::super::volume_source::{self, Form};
use crate::registry::strategy::{Change, Strategy, default_prepare_update};

const MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];
/// The class whose attributes a volume has.
pub const CLASS: &str = "volumeAttributesClassName";
pub const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// The sources in upstream's order: the first that is set is the volume's.
const ORDER: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
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
        volume(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        let mut errors = self.validate_create(change, new);
        unchanged(new, old, &mut errors);
        errors
    }

    fn warnings(&self, _change: &Change<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut texts = Vec::new();
        if text(new, &["spec", "persistentVolumeReclaimPolicy"]) == "Recycle" {
            texts.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
        }
        for (annotation, why) in [
            (
                "volume.beta.kubernetes.io/storage-class",
                "deprecated since v1.8; use \"storageClassName\" attribute instead",
            ),
            (
                "volume.beta.kubernetes.io/mount-options",
                "deprecated since v1.31; use \"mountOptions\" attribute instead",
            ),
        ] {
            if has(new, &["metadata", "annotations", annotation]) {
                texts.push(format!("metadata.annotations[{annotation}]: {why}"));
            }
        }
        texts
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}

/// What an update of a volume may not change (`ValidatePersistentVolumeUpdate`).
fn unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    let mut new_spec = at(new, &["spec"]).clone();
    let old_spec = at(old, &["spec"]);
    const EXPAND: &str = "controllerExpandSecretRef";
    // A secret for expansion may be given late.
    if has(old_spec, &["csi"]) && !has(old_spec, &["csi", EXPAND]) {
        remove(&mut new_spec["csi"], EXPAND);
    }
    let same = |kind: &&str| semantically_equal(at(&new_spec, &[kind]), at(old_spec, &[kind]));
    if !ORDER.iter().all(same) {
        errors.push(Error::forbidden(
            &Path::new("spec.persistentvolumesource"),
            "spec.persistentvolumesource is immutable after creation\n",
        ));
    }
    // Upstream tells about these two without `spec`.
    let mode = at(new, &["spec", "volumeMode"]);
    Node::root(mode, "volumeMode").unchanged(errors, at(old_spec, &["volumeMode"]));
    let (affinity, was) = (
        at(new, &["spec", "nodeAffinity"]),
        at(old_spec, &["nodeAffinity"]),
    );
    // An affinity may be given late.
    if !was.is_null() && !semantically_equal(affinity, was) {
        Node::root(affinity, "nodeAffinity").invalid(
            errors,
            format!("{IMMUTABLE}, except for updating from beta label to GA"),
        );
    }
    if has(old_spec, &[CLASS]) && !has(new, &["spec", CLASS]) {
        errors.push(Error::forbidden(
            &Path::new("spec").child(CLASS),
            "update from non-nil value to nil is forbidden",
        ));
    }
}

/// `ValidatePersistentVolume`.
fn volume(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    access_modes(&spec.at("accessModes"), "", errors);
    let capacity = spec.at("capacity");
    if capacity.is_empty() {
        capacity.required(errors, "");
    }
    let map = capacity.value.as_object();
    if map.is_none_or(|map| !map.contains_key("storage") || map.len() > 1) {
        errors.push(Error::not_supported(
            &capacity.path(),
            capacity.value,
            &["storage"],
        ));
    }
    for (_, amount) in capacity.entries() {
        basic_resource(&amount, errors);
        if amount.quantity().is_some_and(|size| size.sign() <= 0) {
            amount.invalid(errors, "must be greater than zero");
        }
    }
    let policy = spec.at("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        policy.known(errors, &POLICIES);
    }
    let affinity = spec.at("nodeAffinity");
    let required = affinity.at("required");
    if required.is_set() {
        node_selector(required.value, &required.path(), errors);
    } else if affinity.is_set() {
        required.required(errors, "must specify required node constraints");
    }
    if let Some(kind) = volume_source::only(&spec, &ORDER, errors) {
        let form = Form::Persistent(text(object, &["metadata", "name"]));
        volume_source::check(&spec, kind, form, errors);
        if kind == "local" && !required.is_set() {
            affinity.required(errors, "Local volume requires node affinity");
        }
    }
    let host = spec.at("hostPath");
    let is_root = host.at("path").text().starts_with('/')
        && host
            .at("path")
            .text()
            .split('/')
            .all(|part| part.is_empty() || part == ".");
    if is_root && policy.text() == "Recycle" {
        policy.forbidden(errors, "may not be 'recycle' for a hostPath mount of '/'");
    }
    spec.at("storageClassName")
        .syntax_if_set(errors, name::dns_1123_subdomain);
    spec.at("volumeMode").known_if_set(errors, &VOLUME_MODES);
    let class = spec.at(CLASS);
    if class.is_set() {
        if class.present_or(errors, "an empty string is disallowed") {
            class.syntax(errors, name::dns_1123_subdomain);
        }
        if !spec.at("csi").is_set() {
            spec.at("csi").required(
                errors,
                "has to be specified when using volumeAttributesClassName",
            );
        }
    }
    std::mem::take(errors)
}

/// `validateBasicResource`: shows the amount in whole units.
pub fn basic_resource(amount: &Node<'_, '_>, errors: &mut ErrorList) {
    if let Some(size) = amount.quantity().filter(|size| size.sign() < 0) {
        amount.invalid_as(errors, size.value(), "must be a valid resource quantity");
    }
}

/// How a volume may be accessed; `why` one must say.
pub fn access_modes(modes: &Node<'_, '_>, why: &str, errors: &mut ErrorList) {
    if modes.list().is_empty() {
        modes.required(errors, why);
    }
    let is = |mode: &Value, one: &str| mode.as_str() == Some(one);
    for mode in modes.list() {
        if !MODES.iter().any(|known| is(mode, known)) {
            errors.push(Error::not_supported(&modes.path(), mode, &MODES));
        }
    }
    let (single, others): (Vec<_>, Vec<_>) = modes
        .list()
        .iter()
        .filter(|mode| MODES.iter().any(|known| is(mode, known)))
        .partition(|mode| is(mode, "ReadWriteOncePod"));
    if !single.is_empty() && !others.is_empty() {
        modes.forbidden(
            errors,
            "may not use ReadWriteOncePod with other access modes",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;

    #[test]
    fn a_volume_has_a_size_a_mode_and_one_source() {
        check(
            volume(
                &json!({"spec": {"capacity": {"storage": "0"}, "accessModes": ["ReadWriteTwice"],
                "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
                "local": {"path": "/a/../b"}, "nfs": {"server": "s", "path": "/"}}}),
            ),
            &[
                "spec.accessModes: Unsupported value: \"ReadWriteTwice\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
                "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
                "spec.local: Forbidden: may not specify more than 1 volume type",
            ],
        );
    }

    #[test]
    fn a_local_volume_says_on_which_node_it_is() {
        check(
            volume(
                &json!({"spec": {"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"],
                "local": {"path": "/a/../b"}}}),
            ),
            &[
                "spec.local.path: Invalid value: \"/a/../b\": must not contain '..'",
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ],
        );
    }

    #[test]
    fn an_update_keeps_the_source_but_may_add_a_secret_for_expansion() {
        let old =
            json!({"spec": {"csi": {"driver": "d", "volumeHandle": "h"}, "volumeMode": "Block"}});
        let mut new = old.clone();
        new["spec"]["csi"]["controllerExpandSecretRef"] = json!({"name": "a", "namespace": "b"});
        let mut errors = ErrorList::new();
        unchanged(&new, &old, &mut errors);
        check(errors, &[]);
        new["spec"]["csi"]["driver"] = json!("e");
        new["spec"]["volumeMode"] = json!("Filesystem");
        let mut errors = ErrorList::new();
        unchanged(&new, &old, &mut errors);
        check(
            errors,
            &[
                "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n",
                "volumeMode: Invalid value: \"Filesystem\": field is immutable",
            ],
        );
    }
}
