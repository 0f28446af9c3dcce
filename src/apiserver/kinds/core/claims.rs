//! Claims of persistent volumes: what may be asked for, and what may still change once it was.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::quantity::Quantity;
use apimachinery::{Value, name};
use serde_json::json;

use super::super::check::Node;
use super::super::pod_spec::affinity::label_selector;
use super::super::tree::{
    at, default_text, default_value, has, remove, semantically_equal, set, text,
};
use super::volumes::{CLASS, VOLUME_MODES, access_modes, basic_resource};
use crate::registry::strategy::{Change, Strategy, default_prepare_update};

const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const RESIZES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// What a claim is filled from, in its two forms.
const SOURCE: &str = "dataSource";
const REFERENCE: &str = "dataSourceRef";

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
        data_source(&mut object["spec"], &Value::Null);
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        default_prepare_update(&["status"], change, new, old);
        if change.subresource != "status" {
            data_source(&mut new["spec"], at(old, &["spec"]));
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        claim_spec(at(object, &["spec"]), &Path::new("spec"), &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status(at(new, &["status"]));
        }
        let mut errors = self.validate_create(change, new);
        unchanged(new, old, &mut errors);
        errors
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}

/// Brings `dataSource` and `dataSourceRef` in line (KEP 1495): a source that is neither a claim nor a snapshot is only
/// known by its reference, otherwise each is filled in from the other.
fn data_source(spec: &mut Value, old: &Value) {
    let in_use = has(old, &[SOURCE]) || has(old, &[REFERENCE]);
    // Namespaces of sources are an alpha.
    if !has(old, &[REFERENCE, "namespace"])
        && let Some(reference) = spec.get_mut(REFERENCE)
    {
        remove(reference, "namespace");
    }
    let classic = match (
        text(spec, &[SOURCE, "apiGroup"]),
        text(spec, &[SOURCE, "kind"]),
    ) {
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot") => true,
        _ => in_use,
    };
    if !classic {
        remove(spec, SOURCE);
    }
    fill_in(spec);
}

/// The source out of the reference, or the other way round.
fn fill_in(spec: &mut Value) {
    let (source, reference) = (at(spec, &[SOURCE]).clone(), at(spec, &[REFERENCE]).clone());
    if !source.is_null() && reference.is_null() {
        set(spec, REFERENCE, source);
    } else if source.is_null()
        && !reference.is_null()
        && text(&reference, &["namespace"]).is_empty()
    {
        let mut reference = reference;
        remove(&mut reference, "namespace");
        set(spec, SOURCE, reference);
    }
}

/// `ValidatePersistentVolumeClaimSpec`.
pub fn claim_spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let spec = Node::root(spec, path.as_str());
    let modes = spec.at("accessModes");
    if modes.list().is_empty() {
        modes.required(errors, "at least 1 access mode is required");
    }
    let selector = spec.at("selector");
    label_selector(selector.value, &selector.path(), errors);
    if !modes.list().is_empty() {
        access_modes(&modes, "", errors);
    }
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
    let (source, reference) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    for source in [&source, &reference] {
        if source.is_set() {
            source_is_whole(source, errors);
        }
    }
    let shown = source.path().to_string();
    if source.is_set() && !reference.at("namespace").text().is_empty() {
        spec.invalid_as(
            errors,
            shown,
            "may not be specified when dataSourceRef.namespace is specified",
        );
    } else if source.is_set()
        && reference.is_set()
        && ["apiGroup", "kind", "name"]
            .iter()
            .any(|field| source.at(field).value != reference.at(field).value)
    {
        spec.invalid_as(errors, shown, "must match dataSourceRef");
    }
    spec.at(CLASS)
        .syntax_if_set(errors, name::dns_1123_subdomain);
}

fn source_is_whole(source: &Node<'_, '_>, errors: &mut ErrorList) {
    source.at("name").present(errors);
    source.at("kind").present(errors);
    let (kind, group) = (source.at("kind").text(), source.at("apiGroup"));
    if group.text().is_empty() && kind != "PersistentVolumeClaim" {
        source.invalid_as(
            errors,
            kind,
            "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        );
    }
    group.syntax_if_set(errors, name::dns_1123_subdomain);
    source
        .at("namespace")
        .syntax_if_set(errors, name::dns_1123_label);
}

/// `ValidatePersistentVolumeClaimUpdate`.
fn unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    let annotation = |claim: &Value| {
        at(claim, &["metadata", "annotations", STORAGE_CLASS])
            .as_str()
            .map(str::to_owned)
    };
    let (named, was_named) = (annotation(new), annotation(old));
    let (class, old_class) = (
        at(new, &["spec", "storageClassName"]),
        at(old, &["spec", "storageClassName"]),
    );
    // The class may move from the annotation to its field, or be given late.
    let upgraded = was_named.is_some()
        && old_class.is_null()
        && class.as_str() == was_named.as_deref()
        && (named.is_none() || named == was_named);
    if !upgraded && named != was_named {
        errors.push(Error::invalid(
            &Path::new("metadata")
                .child("annotations")
                .key(STORAGE_CLASS),
            named.unwrap_or_default(),
            super::super::check::IMMUTABLE,
        ));
    }
    let late = old_class.is_null()
        && class.is_string()
        && was_named.as_deref().is_none_or(|was| class == was);
    let bound = text(new, &["status", "phase"]) == "Bound";
    let (mut frozen, mut was) = (at(new, &["spec"]).clone(), at(old, &["spec"]).clone());
    for spec in [&mut frozen, &mut was] {
        // What was stored before both were kept counts as if they had been.
        fill_in(spec);
        if upgraded || late {
            remove(spec, "storageClassName");
        }
        // A claim is bound once.
        if text(old, &["spec", "volumeName"]).is_empty() {
            remove(spec, "volumeName");
        }
        if bound && let Some(requests) = spec["resources"].get_mut("requests") {
            remove(requests, "storage");
        }
        if bound && has(new, &["spec", CLASS]) {
            remove(spec, CLASS);
        }
    }
    if !semantically_equal(&frozen, &was) {
        errors.push(Error::forbidden(
            &Path::new("spec"),
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n",
        ));
    }
    shrinks(new, old, errors);
    let mode = at(new, &["spec", "volumeMode"]);
    Node::root(mode, "volumeMode").unchanged(errors, at(old, &["spec", "volumeMode"]));
    let told = Path::new("spec").child(CLASS);
    if has(old, &["spec", CLASS]) {
        match at(new, &["spec", CLASS]) {
            Value::Null => errors.push(Error::forbidden(
                &told,
                "update from non-nil value to nil is forbidden",
            )),
            Value::String(text) if text.is_empty() && text != self::text(old, &["spec", CLASS]) => {
                errors.push(Error::forbidden(
                    &told,
                    "update from non-nil value to an empty string is forbidden",
                ));
            }
            _ => {}
        }
    }
}

/// A claim may ask for less than before only while it does not have it.
fn shrinks(new: &Value, old: &Value, errors: &mut ErrorList) {
    const REQUEST: [&str; 4] = ["spec", "resources", "requests", "storage"];
    let size = |claim: &Value, path: &[&str]| text(claim, path).parse::<Quantity>().ok();
    let (Some(is), Some(was)) = (size(new, &REQUEST), size(old, &REQUEST)) else {
        return;
    };
    let has = size(old, &["status", "capacity", "storage"]);
    if is < was && has.map_or(is.sign() <= 0, |has| is <= has) {
        errors.push(Error::forbidden(
            &Path::new("spec.resources.requests.storage"),
            "field can not be less than status.capacity",
        ));
    }
}

/// `ValidatePersistentVolumeClaimStatusUpdate`.
fn status(status: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let status = Node::root(status, "status");
    for (_, amount) in status.at("capacity").entries() {
        basic_resource(&amount, errors);
    }
    let told = status.told_at("allocatedResourceStatus");
    for (key, resize) in status.at("allocatedResourceStatuses").entries() {
        resource_key(key, &told, errors);
        if !RESIZES.contains(&resize.text()) {
            errors.push(Error::not_supported(&told.path(), key, &RESIZES));
        }
    }
    let allocated = status.at("allocatedResources");
    for (key, amount) in allocated.entries() {
        if resource_key(key, &allocated, errors) {
            basic_resource(&amount, errors);
        }
    }
    std::mem::take(errors)
}

/// Storage, or a resource of somebody else; answers whether it is.
fn resource_key(key: &str, told: &Node<'_, '_>, errors: &mut ErrorList) -> bool {
    let wrong = name::qualified_name(key);
    let native = !key.contains('/') || key.contains("kubernetes.io/");
    if wrong.is_empty() && native && key != "storage" {
        errors.push(Error::not_supported(&told.path(), key, &["storage"]));
        return false;
    }
    for why in &wrong {
        told.invalid_as(errors, key, why);
    }
    wrong.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;

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

    #[test]
    fn sources_and_references_to_them_fill_each_other_in() {
        let none = Value::Null;
        let mut spec = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}});
        data_source(&mut spec, &none);
        assert_eq!(spec["dataSourceRef"], spec["dataSource"]);
        let mut spec =
            json!({"dataSourceRef": {"apiGroup": "x", "kind": "K", "name": "a", "namespace": "n"}});
        data_source(&mut spec, &none);
        assert_eq!(
            spec["dataSource"],
            json!({"apiGroup": "x", "kind": "K", "name": "a"})
        );
        let mut spec = json!({"dataSource": {"apiGroup": "x", "kind": "K", "name": "a"}});
        data_source(&mut spec, &none);
        assert_eq!(spec, json!({}), "only a reference may name any kind");
    }

    fn claim(phase: &str, size: &str) -> Value {
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "v", "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": size}}},
            "status": {"phase": phase, "capacity": {"storage": "2Gi"}}})
    }

    #[track_caller]
    fn update(old: &Value, new: &Value, texts: &[&str]) {
        let mut errors = ErrorList::new();
        unchanged(new, old, &mut errors);
        check(errors, texts);
    }

    #[test]
    fn only_bound_claims_grow_and_none_shrinks_below_what_it_has() {
        const FROZEN: &str = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
        update(&claim("Bound", "2Gi"), &claim("Bound", "3Gi"), &[]);
        update(
            &claim("Pending", "2Gi"),
            &claim("Pending", "3Gi"),
            &[FROZEN],
        );
        update(&claim("Bound", "4Gi"), &claim("Bound", "3Gi"), &[]);
        update(
            &claim("Bound", "4Gi"),
            &claim("Bound", "1Gi"),
            &[
                "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity",
            ],
        );
    }

    #[test]
    fn a_claim_from_before_references_is_as_it_was() {
        let mut old = claim("Bound", "2Gi");
        old["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "a"});
        let mut new = old.clone();
        data_source(&mut new["spec"], &old["spec"]);
        assert!(has(&new, &["spec", REFERENCE]));
        update(&old, &new, &[]);
    }

    #[test]
    fn a_class_may_be_given_late_but_not_changed() {
        let old = claim("Bound", "2Gi");
        let mut new = old.clone();
        new["spec"]["storageClassName"] = json!("fast");
        update(&old, &new, &[]);
        let mut other = new.clone();
        other["spec"]["storageClassName"] = json!("slow");
        let mut errors = ErrorList::new();
        unchanged(&other, &new, &mut errors);
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn a_status_tells_of_storage_only() {
        check(
            status(
                &json!({"capacity": {"storage": "-1"}, "allocatedResources": {"cpu": "1"},
                "allocatedResourceStatuses": {"storage": "Growing"}}),
            ),
            &[
                "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                "status.allocatedResourceStatus: Unsupported value: \"storage\": supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"",
                "status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\"",
            ],
        );
    }
}
