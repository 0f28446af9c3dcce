//! Volumes of a pod: a name and exactly one well-formed source each.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::object_meta::{validate_annotations, validate_labels};
use super::super::policy::signers::signer_name;
use super::super::tree::{at, has, int, items, text};
use super::super::volume_source::{self, Form, local_path};
use super::containers::{field_ref, resource_field_ref};

/// Shortest and longest life of a projected token, in seconds.
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;

const DOWNWARD_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// The sources in upstream's order: the first that is set is the volume's.
const ORDER: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "flocker",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// Validates `spec.volumes` and answers with their names.
pub fn list<'a>(spec: &'a Value, path: &Path, errors: &mut ErrorList) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (index, volume) in items(spec, &["volumes"]).iter().enumerate() {
        let path = path.index(index);
        let called = text(volume, &["name"]);
        if called.is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        } else {
            errors.push_invalid(&path.child("name"), called, name::dns_1123_label(called));
            if names.contains(&called) {
                errors.push(Error::duplicate(&path.child("name"), called));
            }
        }
        names.push(called);
        source(volume, &path, errors);
    }
    names
}

fn source(volume: &Value, path: &Path, errors: &mut ErrorList) {
    let node = Node::root(volume, path.as_str());
    let Some(kind) = volume_source::only(&node, &ORDER, errors) else {
        return;
    };
    volume_source::check(&node, kind, Form::Inline, errors);
    let source = at(volume, &[kind]);
    let path = path.child(kind);
    match kind {
        "secret" | "configMap" => {
            let called = if kind == "secret" {
                "secretName"
            } else {
                "name"
            };
            if text(source, &[called]).is_empty() {
                errors.push(Error::required(&path.child(called), ""));
            }
            mode(source, "defaultMode", &path, errors);
            for (index, item) in items(source, &["items"]).iter().enumerate() {
                key_to_path(item, &path.child("items").index(index), errors);
            }
        }
        "downwardAPI" => {
            mode(source, "defaultMode", &path, errors);
            for file in items(source, &["items"]) {
                downward(file, &path, errors);
            }
        }
        "projected" => projected(source, &path, errors),
        "emptyDir" => {
            let negative = text(source, &["sizeLimit"])
                .parse::<apimachinery::quantity::Quantity>()
                .is_ok_and(|size| size.sign() < 0);
            if negative {
                errors.push(Error::forbidden(
                    &path.child("sizeLimit"),
                    "SizeLimit field must be a valid resource quantity",
                ));
            }
        }
        "ephemeral" => {
            let template = path.child("volumeClaimTemplate");
            if has(source, &["volumeClaimTemplate"]) {
                claim_template(at(source, &["volumeClaimTemplate"]), &template, errors);
            } else {
                errors.push(Error::required(&template, ""));
            }
        }
        "image" => {
            if text(source, &["reference"]).is_empty() {
                errors.push(Error::required(&path.child("reference"), ""));
            }
            let policy = text(source, &["pullPolicy"]);
            let valid = ["Always", "IfNotPresent", "Never"];
            if !policy.is_empty() && !valid.contains(&policy) {
                let path = path.child("pullPolicy");
                errors.push(Error::not_supported(&path, policy, &valid));
            }
        }
        _ => {}
    }
}

/// `ValidatePersistentVolumeClaimTemplate`: labels and annotations are all of an object's metadata that is used.
fn claim_template(template: &Value, path: &Path, errors: &mut ErrorList) {
    let metadata = at(template, &["metadata"]);
    let told = path.child("metadata");
    errors.extend(validate_annotations(
        at(metadata, &["annotations"]),
        &told.child("annotations"),
    ));
    errors.extend(validate_labels(
        at(metadata, &["labels"]),
        &told.child("labels"),
    ));
    for (field, value) in metadata.as_object().into_iter().flatten() {
        if !["annotations", "labels"].contains(&field.as_str()) && !value.is_null() {
            errors.push(Error::forbidden(&told.child(field), "cannot be set"));
        }
    }
    let spec = at(template, &["spec"]);
    super::super::core::claims::claim_spec(spec, &path.child("spec"), errors);
}

fn mode(source: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(mode) = int(source, &[field])
        && !(0..=0o777).contains(&mode)
    {
        errors.push(Error::invalid(
            &path.child(field),
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        ));
    }
}

fn key_to_path(item: &Value, path: &Path, errors: &mut ErrorList) {
    if text(item, &["key"]).is_empty() {
        errors.push(Error::required(&path.child("key"), ""));
    }
    relative(item, path, errors);
    mode(item, "mode", path, errors);
}

fn relative(item: &Value, path: &Path, errors: &mut ErrorList) {
    let file = text(item, &["path"]);
    let path = path.child("path");
    if file.is_empty() {
        errors.push(Error::required(&path, ""));
    }
    local_path(file, &path, errors);
}

/// `validateDownwardAPIVolumeFile`; upstream tells about every file at the volume's path.
fn downward(file: &Value, path: &Path, errors: &mut ErrorList) {
    relative(file, path, errors);
    let (field, resource) = (at(file, &["fieldRef"]), at(file, &["resourceFieldRef"]));
    if !field.is_null() {
        field_ref(field, &DOWNWARD_FIELDS, &path.child("fieldRef"), errors);
        if !resource.is_null() {
            errors.push(Error::invalid(
                path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ));
        }
    } else if !resource.is_null() {
        resource_field_ref(resource, true, &path.child("resourceFieldRef"), errors);
    } else {
        errors.push(Error::required(
            path,
            "one of fieldRef and resourceFieldRef is required",
        ));
    }
    mode(file, "mode", path, errors);
}

/// `validateProjectionSources`: each source alone, and no two that write the same file.
fn projected(source: &Value, path: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    let mut files: Vec<&str> = Vec::new();
    let mut taken = |file, shown: &str, errors: &mut ErrorList| {
        if files.contains(&file) {
            errors.push(Error::invalid(path, shown, "conflicting duplicate paths"));
        } else {
            files.push(file);
        }
    };
    for (index, projection) in items(source, &["sources"]).iter().enumerate() {
        let told = path.child("sources").index(index);
        for kind in ["secret", "configMap"] {
            let called = text(projection, &[kind, "name"]);
            if has(projection, &[kind]) && called.is_empty() {
                errors.push(Error::required(&told.child(kind).child("name"), ""));
            }
            for (index, item) in items(projection, &[kind, "items"]).iter().enumerate() {
                let told = told.child(kind).child("items").index(index);
                key_to_path(item, &told, errors);
                let file = text(item, &["path"]);
                if !file.is_empty() {
                    taken(file, called, errors);
                }
            }
        }
        for item in items(projection, &["downwardAPI", "items"]) {
            downward(item, &told.child("downwardAPI"), errors);
            let file = text(item, &["path"]);
            if !file.is_empty() {
                taken(file, file, errors);
            }
        }
        if has(projection, &["serviceAccountToken"]) {
            let token = at(projection, &["serviceAccountToken"]);
            projected_token(token, &told.child("serviceAccountToken"), path, errors);
        }
        if has(projection, &["clusterTrustBundle"]) {
            let bundle = Node::root(projection, told.as_str());
            trust_bundle(&bundle.at("clusterTrustBundle"), errors);
            let file = text(projection, &["clusterTrustBundle", "path"]);
            taken(file, file, errors);
        }
        let kinds = projection.as_object().into_iter().flatten();
        if kinds.filter(|(_, value)| !value.is_null()).count() > 1 {
            errors.push(Error::forbidden(
                &told,
                "may not specify more than 1 volume type per source",
            ));
        }
    }
}

/// A token's file is told about at the volume's path.
fn projected_token(token: &Value, path: &Path, volume: &Path, errors: &mut ErrorList) {
    let seconds = int(token, &["expirationSeconds"]).unwrap_or(0);
    let told = path.child("expirationSeconds");
    if seconds < MIN_TOKEN_SECONDS {
        errors.push(Error::invalid(
            &told,
            seconds,
            "may not specify a duration less than 10 minutes",
        ));
    }
    if seconds > MAX_TOKEN_SECONDS {
        errors.push(Error::invalid(
            &told,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    relative(token, volume, errors);
}

fn trust_bundle(bundle: &Node<'_, '_>, errors: &mut ErrorList) {
    let (called, signer) = (bundle.at("name"), bundle.at("signerName"));
    let labels = bundle.at("labelSelector");
    match (called.is_set(), signer.is_set()) {
        (true, true) => bundle.invalid(errors, "only one of name and signerName may be used"),
        (true, false) => {
            called.present_or(errors, "must be a valid object name");
            // `example.com:signer:name`: a name under a signer's.
            let own = called.text().rsplit(':').next().unwrap_or("");
            for why in name::dns_1123_subdomain(own) {
                called.invalid(errors, format!("not a valid clustertrustbundlename: {why}"));
            }
            if labels.is_set() {
                labels.invalid(errors, "labelSelector must be unset if name is specified");
            }
        }
        (false, true) => {
            if signer.text().is_empty() {
                signer.required(errors, "must be a valid signer name");
            }
            signer_name(&signer, errors);
            super::affinity::label_selector(labels.value, &labels.path(), errors);
        }
        (false, false) => bundle.required(errors, "either name or signerName must be specified"),
    }
    relative(bundle.value, &bundle.path(), errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[track_caller]
    fn errors_of(volume: Value, texts: &[&str]) {
        let mut errors = ErrorList::new();
        list(&json!({"volumes": [volume]}), &Path::new("v"), &mut errors);
        check(errors, texts);
    }

    #[test]
    fn projections_may_not_write_the_same_file() {
        errors_of(
            json!({"name": "p", "projected": {"sources": [
                {"secret": {"name": "a", "items": [{"key": "k", "path": "x"}]}},
                {"configMap": {"name": "b", "items": [{"key": "", "path": "x"}]}},
                {},
            ]}}),
            &[
                "v[0].projected.sources[1].configMap.items[0].key: Required value",
                "v[0].projected: Invalid value: \"b\": conflicting duplicate paths",
            ],
        );
    }

    #[test]
    fn resources_of_the_downward_api_name_a_container() {
        errors_of(
            json!({"name": "d", "downwardAPI": {"items": [
                {"path": "x", "resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}},
                {"path": "y", "resourceFieldRef": {"resource": "limits.disk", "containerName": "c"}},
            ]}}),
            &[
                "v[0].downwardAPI.resourceFieldRef.containerName: Required value",
                "v[0].downwardAPI.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
                "v[0].downwardAPI.resourceFieldRef.resource: Unsupported value: \"limits.disk\": supported values: \"limits.cpu\", \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\", \"requests.ephemeral-storage\", \"requests.memory\"",
            ],
        );
    }

    #[test]
    fn a_template_of_a_claim_has_no_name() {
        let spec =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}});
        errors_of(
            json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": spec}}}),
            &["v[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set"],
        );
    }

    #[test]
    fn a_trust_bundle_is_named_or_selected() {
        errors_of(
            json!({"name": "p", "projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}}),
            &[
                "v[0].projected.sources[0].clusterTrustBundle: Required value: either name or signerName must be specified",
            ],
        );
    }
}
