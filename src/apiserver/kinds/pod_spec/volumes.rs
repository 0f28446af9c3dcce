//! Volumes of a pod: a name and exactly one well-formed source each.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};

use super::super::tree::{at, has, int, items, text};
use super::containers::field_ref;

const DOWNWARD_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// Members that a source cannot do without.
const REQUIRED: &[(&str, &[&str])] = &[
    ("persistentVolumeClaim", &["claimName"]),
    ("secret", &["secretName"]),
    ("configMap", &["name"]),
    ("nfs", &["server", "path"]),
    ("hostPath", &["path"]),
    ("csi", &["driver"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("gitRepo", &["repository"]),
    ("glusterfs", &["endpoints", "path"]),
    ("cephfs", &[]),
    ("flexVolume", &["driver"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("azureFile", &["secretName", "shareName"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("image", &["reference"]),
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
    let sources: Vec<&str> = volume
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| *key != "name" && !value.is_null())
        .map(|(key, _)| key.as_str())
        .collect();
    if sources.is_empty() {
        errors.push(Error::required(path, "must specify a volume type"));
    }
    for extra in sources.iter().skip(1) {
        errors.push(Error::forbidden(
            &path.child(extra),
            "may not specify more than 1 volume type",
        ));
    }
    let Some(kind) = sources.first() else { return };
    let source = at(volume, &[kind]);
    let path = path.child(kind);
    if let Some((_, fields)) = REQUIRED.iter().find(|(name, _)| name == kind) {
        for field in *fields {
            if text(source, &[field]).is_empty() {
                errors.push(Error::required(&path.child(field), ""));
            }
        }
    }
    match *kind {
        "hostPath" => host_path(source, &path, errors),
        "nfs" => {
            let export = text(source, &["path"]);
            if !export.is_empty() && !export.starts_with('/') {
                errors.push(Error::invalid(
                    &path.child("path"),
                    export,
                    "must be an absolute path",
                ));
            }
        }
        "secret" | "configMap" => {
            mode(source, "defaultMode", &path, errors);
            for (index, item) in items(source, &["items"]).iter().enumerate() {
                key_to_path(item, &path.child("items").index(index), errors);
            }
        }
        "downwardAPI" => {
            mode(source, "defaultMode", &path, errors);
            downward(items(source, &["items"]), &path.child("items"), errors);
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
                let spec = at(source, &["volumeClaimTemplate", "spec"]);
                super::super::core::volumes::claim_spec(spec, &template.child("spec"), errors);
            } else {
                errors.push(Error::required(&template, ""));
            }
        }
        "image" => {
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

fn host_path(source: &Value, path: &Path, errors: &mut ErrorList) {
    let dir = text(source, &["path"]);
    if dir.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(
            &path.child("path"),
            dir,
            "must not contain '..'",
        ));
    }
    let kind = text(source, &["type"]);
    let valid = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if !valid.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &valid));
    }
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
        return;
    }
    if file.starts_with('/') {
        errors.push(Error::invalid(&path, file, "must be a relative path"));
    }
    if file.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(&path, file, "must not contain '..'"));
    } else if file.starts_with("..") {
        errors.push(Error::invalid(&path, file, "must not start with '..'"));
    }
}

fn downward(files: &[Value], path: &Path, errors: &mut ErrorList) {
    for (index, file) in files.iter().enumerate() {
        let path = path.index(index);
        relative(file, &path, errors);
        mode(file, "mode", &path, errors);
        if has(file, &["fieldRef"]) {
            let path = path.child("fieldRef");
            field_ref(at(file, &["fieldRef"]), &DOWNWARD_FIELDS, &path, errors);
            if has(file, &["resourceFieldRef"]) {
                errors.push(Error::invalid(
                    &path,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                ));
            }
        } else if !has(file, &["resourceFieldRef"]) {
            errors.push(Error::required(
                &path,
                "one of fieldRef and resourceFieldRef is required",
            ));
        }
    }
}

fn projected(source: &Value, path: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    for (index, projection) in items(source, &["sources"]).iter().enumerate() {
        let path = path.child("sources").index(index);
        let count = projection
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .count();
        if count != 1 {
            errors.push(Error::forbidden(
                &path,
                "may not specify more than 1 volume type",
            ));
        }
        for kind in ["secret", "configMap"] {
            if has(projection, &[kind]) && text(projection, &[kind, "name"]).is_empty() {
                errors.push(Error::required(&path.child(kind).child("name"), ""));
            }
        }
        downward(
            items(projection, &["downwardAPI", "items"]),
            &path.child("downwardAPI").child("items"),
            errors,
        );
        if has(projection, &["serviceAccountToken"]) {
            let token = at(projection, &["serviceAccountToken"]);
            let path = path.child("serviceAccountToken");
            if int(token, &["expirationSeconds"]).is_some_and(|seconds| seconds < 600) {
                errors.push(Error::invalid(
                    &path.child("expirationSeconds"),
                    at(token, &["expirationSeconds"]).clone(),
                    "may not specify a duration less than 10 minutes",
                ));
            }
            relative(token, &path, errors);
        }
    }
}
