//! Where a container sees the pod's volumes: as folders (`volumeMounts`) and as raw devices (`volumeDevices`).
//!
//! Upstream tells about some members of a mount at the list's path (`volumeMounts.subPath`); so does this.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};

use super::super::check::Node;
use super::super::tree::{flag, has, items, text};

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIVE: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

/// Checks both lists; `volumes` are the names of the pod's volumes.
pub fn validate(
    spec: &Value,
    container: &Value,
    volumes: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let root = Node::root(container, path.as_str());
    let (mounts, devices) = (root.at("volumeMounts"), root.at("volumeDevices"));
    let mut points: Vec<&str> = Vec::new();
    for mount in mounts.items() {
        let called = mount.at("name");
        called.present(errors);
        if !volumes.contains(&called.text()) {
            errors.push(Error::not_found(&called.path(), called.text()));
        }
        let point = mount.at("mountPath");
        point.present(errors);
        if points.contains(&point.text()) {
            point.invalid_as(errors, point.text(), "must be unique");
        }
        points.push(point.text());
        for device in devices.list() {
            if text(device, &["name"]) == called.text() {
                called.invalid(errors, "must not already exist in volumeDevices");
            }
            if text(device, &["devicePath"]) == point.text() {
                point.invalid(errors, "must not already exist as a path in volumeDevices");
            }
        }
        sub_paths(&mounts, &mount, errors);
        propagation(container, &mounts, &mount, errors);
    }
    self::devices(spec, volumes, &mounts, &devices, errors);
}

fn sub_paths(mounts: &Node<'_, '_>, mount: &Node<'_, '_>, errors: &mut ErrorList) {
    let (plain, expanded) = (mount.at("subPath"), mount.at("subPathExpr"));
    if !plain.text().is_empty() && !expanded.text().is_empty() {
        expanded.invalid(errors, "subPathExpr and subPath are mutually exclusive");
    }
    for (field, sub) in [("subPath", plain.text()), ("subPathExpr", expanded.text())] {
        let told = mounts.told_at(field);
        if sub.starts_with('/') {
            told.invalid_as(errors, sub, "must be a relative path");
        }
        if sub.split('/').any(|part| part == "..") {
            told.invalid_as(errors, sub, "must not contain '..'");
        }
    }
}

fn propagation(
    container: &Value,
    mounts: &Node<'_, '_>,
    mount: &Node<'_, '_>,
    errors: &mut ErrorList,
) {
    let mode = mount.at("mountPropagation");
    let told = mounts.told_at("mountPropagation");
    if mode.is_set() && !PROPAGATIONS.contains(&mode.text()) {
        errors.push(Error::not_supported(
            &told.path(),
            mode.text(),
            &PROPAGATIONS,
        ));
    }
    if mode.text() == "Bidirectional" && !flag(container, &["securityContext", "privileged"]) {
        told.forbidden(
            errors,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
    let recursive = mount.at("recursiveReadOnly").text();
    let told = mounts.told_at("recursiveReadOnly");
    match recursive {
        "" | "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.at("readOnly").flag() {
                told.forbidden(errors, "may only be specified when readOnly is true");
            }
            if mode.is_set() && mode.text() != "None" {
                told.forbidden(
                    errors,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        other => errors.push(Error::not_supported(&told.path(), other, &RECURSIVE)),
    }
}

/// `ValidateVolumeDevices`: only claims have a device.
fn devices(
    spec: &Value,
    volumes: &[&str],
    mounts: &Node<'_, '_>,
    devices: &Node<'_, '_>,
    errors: &mut ErrorList,
) {
    let is_claim = |called: &str| {
        items(spec, &["volumes"])
            .iter()
            .filter(|volume| text(volume, &["name"]) == called)
            .any(|volume| has(volume, &["persistentVolumeClaim"]) || has(volume, &["ephemeral"]))
    };
    let (mut names, mut paths): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for device in devices.items() {
        let (called, path) = (device.at("name"), device.at("devicePath"));
        called.present(errors);
        if names.contains(&called.text()) {
            called.invalid(errors, "must be unique");
        }
        if !volumes.contains(&called.text()) {
            errors.push(Error::not_found(&called.path(), called.text()));
        } else if !is_claim(called.text()) {
            called.invalid(
                errors,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            );
        }
        path.present(errors);
        if paths.contains(&path.text()) {
            path.invalid(errors, "must be unique");
        }
        if path.text().split('/').any(|part| part == "..") {
            path.invalid(errors, "can not contain backsteps ('..')");
        } else {
            paths.push(path.text());
        }
        for mount in mounts.list() {
            if text(mount, &["name"]) == called.text() {
                called.invalid(errors, "must not already exist in volumeMounts");
            }
            if text(mount, &["mountPath"]) == path.text() {
                path.invalid(errors, "must not already exist as a path in volumeMounts");
            }
        }
        if !called.text().is_empty() {
            names.push(called.text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[track_caller]
    fn errors_of(container: Value, texts: &[&str]) {
        let spec = json!({"volumes": [{"name": "v", "emptyDir": {}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]});
        let mut errors = ErrorList::new();
        validate(&spec, &container, &["v", "b"], &Path::new("c"), &mut errors);
        check(errors, texts);
    }

    #[test]
    fn only_claims_are_devices_and_each_is_used_once() {
        errors_of(
            json!({"volumeDevices": [{"name": "v", "devicePath": "/a"}, {"name": "b", "devicePath": "/a"},
                {"name": "b", "devicePath": "/x/.."}]}),
            &[
                "c.volumeDevices[0].name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                "c.volumeDevices[1].devicePath: Invalid value: \"/a\": must be unique",
                "c.volumeDevices[2].name: Invalid value: \"b\": must be unique",
                "c.volumeDevices[2].devicePath: Invalid value: \"/x/..\": can not contain backsteps ('..')",
            ],
        );
    }

    #[test]
    fn a_mount_and_a_device_do_not_share_a_volume_or_a_place() {
        errors_of(
            json!({"volumeMounts": [{"name": "b", "mountPath": "/a"}], "volumeDevices": [{"name": "b", "devicePath": "/a"}]}),
            &[
                "c.volumeMounts[0].name: Invalid value: \"b\": must not already exist in volumeDevices",
                "c.volumeMounts[0].mountPath: Invalid value: \"/a\": must not already exist as a path in volumeDevices",
                "c.volumeDevices[0].name: Invalid value: \"b\": must not already exist in volumeMounts",
                "c.volumeDevices[0].devicePath: Invalid value: \"/a\": must not already exist as a path in volumeMounts",
            ],
        );
    }

    #[test]
    fn members_of_a_mount_are_told_at_the_list() {
        errors_of(
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "../x", "recursiveReadOnly": "Enabled",
                "mountPropagation": "Bidirectional"}]}),
            &[
                "c.volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'",
                "c.volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
                "c.volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
                "c.volumeMounts.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified",
            ],
        );
    }
}
