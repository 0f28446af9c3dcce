//! Persistent volumes and claims.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::quantity::Quantity;
use apimachinery::{Value, name};
use serde_json::json;

use super::super::check::Node;
use super::super::pod_spec::affinity::{label_selector, node_selector};
use super::super::pod_spec::defaults::network_volume;
use super::super::tree::{at, default_text, default_value, has, map, restore, set, text};
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
        volume(object)
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
        let spec = Node::root(at(new, &["spec"]), "spec");
        for field in ["volumeMode", "nodeAffinity"] {
            let was = at(old, &["spec", field]);
            // An affinity may be given late.
            if field == "volumeMode" || !was.is_null() {
                spec.at(field).unchanged(&mut errors, was);
            }
        }
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

/// `ValidatePersistentVolume`.
fn volume(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    access_modes(&spec.at("accessModes"), errors);
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
        if amount.quantity().is_some_and(|size| size.sign() <= 0) {
            amount.invalid(errors, "must be greater than zero");
        }
    }
    let affinity = spec.at("nodeAffinity");
    let required = affinity.at("required");
    if affinity.is_set() {
        if required.is_set() {
            node_selector(required.value, &required.path(), errors);
        } else {
            required.required(errors, "must specify required node constraints");
        }
    }
    source(&spec, affinity.is_set(), errors);
    let policy = spec.at("persistentVolumeReclaimPolicy");
    policy.known(errors, &POLICIES);
    spec.at("storageClassName")
        .syntax_if_set(errors, name::dns_1123_subdomain);
    spec.at("volumeMode").known_if_set(errors, &VOLUME_MODES);
    let class = spec.at("volumeAttributesClassName");
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

/// Exactly one source, whole.
fn source(spec: &Node<'_, '_>, placed: bool, errors: &mut ErrorList) {
    let sources: Vec<&str> = spec
        .value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| !NO_SOURCE.contains(&key.as_str()) && !value.is_null())
        .map(|(key, _)| key.as_str())
        .collect();
    let Some(first) = sources.first() else {
        spec.required(errors, "must specify a volume type");
        return;
    };
    for extra in sources.iter().skip(1) {
        spec.at(extra)
            .forbidden(errors, "may not specify more than 1 volume type");
    }
    let source = spec.at(first);
    match *first {
        "hostPath" => {
            let dir = source.at("path");
            if dir.present(errors) && dir.text().split('/').any(|part| part == "..") {
                dir.invalid(errors, "must not contain '..'");
            }
            if dir.text() == "/" && spec.at("persistentVolumeReclaimPolicy").text() == "Recycle" {
                spec.at("persistentVolumeReclaimPolicy")
                    .forbidden(errors, "may not be 'recycle' for a hostPath mount of '/'");
            }
        }
        "local" => {
            let dir = source.at("path");
            if dir.present(errors) && dir.text().split('/').any(|part| part == "..") {
                dir.invalid(errors, "must not contain '..'");
            }
            if !placed {
                Node::root(&Value::Null, "metadata.annotations")
                    .required(errors, "Local volume requires node affinity");
            }
        }
        "nfs" => {
            source.at("server").present(errors);
            let export = source.at("path");
            if export.present(errors) && !export.text().starts_with('/') {
                export.invalid(errors, "must be an absolute path");
            }
        }
        "csi" => {
            let driver = source.at("driver");
            crate::kinds::storage::csi::driver_name(&driver, errors);
            source.at("volumeHandle").present(errors);
            secrets(&source, errors);
        }
        "iscsi" => {
            for field in ["targetPortal", "iqn"] {
                source.at(field).present(errors);
            }
        }
        "fc" => {
            if source.at("targetWWNs").is_empty() && source.at("wwids").is_empty() {
                source.at("targetWWNs").required(
                    errors,
                    "must specify either targetWWNs or wwids, but not both",
                );
            }
        }
        _ => {}
    }
}

fn secrets(source: &Node<'_, '_>, errors: &mut ErrorList) {
    for field in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeStageSecretRef",
        "nodeExpandSecretRef",
    ] {
        let reference = source.at(field);
        if reference.is_set() {
            reference.at("name").present(errors);
            reference.at("namespace").present(errors);
        }
    }
}

fn access_modes(modes: &Node<'_, '_>, errors: &mut ErrorList) {
    if modes.list().is_empty() {
        modes.required(errors, "at least 1 access mode is required");
    }
    for mode in modes.list() {
        if !MODES.contains(&mode.as_str().unwrap_or("")) {
            errors.push(Error::not_supported(&modes.path(), mode, &MODES));
        }
    }
    if modes.list().len() > 1 && modes.list().iter().any(|mode| mode == "ReadWriteOncePod") {
        modes.forbidden(
            errors,
            "may not use ReadWriteOncePod with other access modes",
        );
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
        claim_spec(at(object, &["spec"]), &Path::new("spec"), &mut errors);
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

/// `ValidatePersistentVolumeClaimSpec`.
pub fn claim_spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let spec = Node::root(spec, path.as_str());
    access_modes(&spec.at("accessModes"), errors);
    let selector = spec.at("selector");
    label_selector(selector.value, &selector.path(), errors);
    // Upstream tells about the size at a path without `requests`.
    let resources = spec.at("resources");
    let size = resources.at("requests");
    let size = size.at("storage");
    let told = resources.path().key("storage");
    if !size.is_set() {
        errors.push(Error::required(&told, ""));
    } else if size.quantity().is_some_and(|size| size.sign() <= 0) {
        errors.push(Error::invalid(
            &told,
            size.value,
            "must be greater than zero",
        ));
    }
    spec.at("storageClassName")
        .syntax_if_set(errors, name::dns_1123_subdomain);
    spec.at("volumeMode").known_if_set(errors, &VOLUME_MODES);
    for field in ["dataSource", "dataSourceRef"] {
        let source = spec.at(field);
        if !source.is_set() {
            continue;
        }
        source.at("name").present(errors);
        source.at("kind").present(errors);
        let (kind, group) = (source.at("kind").text(), source.at("apiGroup"));
        if group.text().is_empty() && kind != "PersistentVolumeClaim" && !kind.is_empty() {
            source.invalid_as(
                errors,
                kind,
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            );
        }
    }
    let class = spec.at("volumeAttributesClassName");
    if !class.text().is_empty() {
        class.syntax(errors, name::dns_1123_subdomain);
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
                "local": {"path": "/a/../b"}, "nfs": {}}}),
            ),
            &[
                "spec.accessModes: Unsupported value: \"ReadWriteTwice\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
                "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
                "spec.nfs: Forbidden: may not specify more than 1 volume type",
                "spec.local.path: Invalid value: \"/a/../b\": must not contain '..'",
                "metadata.annotations: Required value: Local volume requires node affinity",
            ],
        );
    }

    #[test]
    fn a_claim_asks_for_storage() {
        let mut errors = ErrorList::new();
        let spec = json!({"accessModes": ["ReadWriteOncePod", "ReadOnlyMany"], "storageClassName": "A",
            "dataSource": {"kind": "Thing", "name": "x"}});
        claim_spec(&spec, &Path::new("spec"), &mut errors);
        let texts: Vec<String> = errors
            .iter()
            .map(|error| error.to_string().chars().take(72).collect())
            .collect();
        assert_eq!(
            texts,
            [
                "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other acc",
                "spec.resources[storage]: Required value",
                "spec.storageClassName: Invalid value: \"A\": a lowercase RFC 1123 subdomai",
                "spec.dataSource: Invalid value: \"Thing\": must be 'PersistentVolumeClaim'",
            ]
        );
    }
}
