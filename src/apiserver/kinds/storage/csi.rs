//! What CSI drivers say of themselves, and attachments (`pkg/apis/storage/validation`).

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::pod_spec::affinity::label_selector;
use super::super::tree::at;

/// Longest name of a driver.
const MAX_DRIVER: usize = 63;
/// Longest name a driver may give a node.
const MAX_NODE_ID: usize = 192;
const FS_GROUP_POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];
const LIFECYCLES: [&str; 2] = ["Ephemeral", "Persistent"];

/// `ValidateCSIDriverName`.
pub fn driver_name(node: &Node<'_, '_>, errors: &mut ErrorList) {
    let text = node.text();
    if text.is_empty() {
        node.required(errors, "");
    }
    if text.len() > MAX_DRIVER {
        errors.push(Error::too_long(&node.path(), MAX_DRIVER));
    }
    node.syntax(errors, |text| {
        name::dns_1123_subdomain(&text.to_lowercase())
    });
}

/// `ValidateCSIDriver`.
pub fn driver(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let called = at(object, &["metadata", "name"]);
    driver_name(&Node::root(called, "name"), errors);
    let spec = Node::root(at(object, &["spec"]), "spec");
    spec.at("fsGroupPolicy")
        .known_if_set(errors, &FS_GROUP_POLICIES);
    let lifecycles = spec.at("volumeLifecycleModes");
    for mode in lifecycles.items() {
        mode.known(errors, &LIFECYCLES);
    }
    let tokens = spec.at("tokenRequests");
    let mut audiences: Vec<&str> = Vec::new();
    for token in tokens.items() {
        let audience = token.at("audience");
        if audiences.contains(&audience.text()) {
            audience.duplicate(errors);
        }
        audiences.push(audience.text());
        token.at("expirationSeconds").between(
            errors,
            600,
            1 << 32,
            "may not specify a duration less than 10 minutes",
        );
    }
    std::mem::take(errors)
}

/// `ValidateCSINode`.
pub fn node(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let drivers = spec.at("drivers");
    let mut seen: Vec<&str> = Vec::new();
    for driver in drivers.items() {
        let called = driver.at("name");
        driver_name(&called, errors);
        if seen.contains(&called.text()) {
            called.duplicate(errors);
        }
        seen.push(called.text());
        let id = driver.at("nodeID");
        if id.present(errors) && id.text().len() > MAX_NODE_ID {
            id.invalid(errors, format!("must be {MAX_NODE_ID} characters or less"));
        }
        let allocatable = driver.at("allocatable");
        allocatable.at("count").nonnegative(errors);
        let keys = driver.at("topologyKeys");
        let mut known: Vec<&str> = Vec::new();
        for key in keys.items() {
            if known.contains(&key.text()) {
                errors.push(Error::duplicate(&keys.path(), key.text()));
            }
            known.push(key.text());
            for why in name::qualified_name(key.text()) {
                keys.invalid_as(errors, key.text(), why);
            }
        }
    }
    std::mem::take(errors)
}

/// `ValidateCSIStorageCapacity`.
pub fn capacity(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Node::root(object, "");
    root.at("storageClassName")
        .syntax(&mut errors, name::dns_1123_subdomain);
    for field in ["capacity", "maximumVolumeSize"] {
        root.at(field).amount(&mut errors);
    }
    let topology = root.at("nodeTopology");
    label_selector(topology.value, &topology.path(), &mut errors);
    errors
}

/// `ValidateVolumeAttachmentV1`.
pub fn attachment(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    driver_name(&spec.at("attacher"), errors);
    let source = spec.at("source");
    let (inline, volume) = (
        source.at("inlineVolumeSpec"),
        source.at("persistentVolumeName"),
    );
    match (inline.is_set(), volume.is_set()) {
        (false, false) => source.required(
            errors,
            "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ),
        (true, true) => source.forbidden(
            errors,
            "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ),
        (false, true) => {
            volume.present_or(errors, "must specify non empty persistentVolumeName");
        }
        (true, false) => {}
    }
    spec.at("nodeName").syntax(errors, name::dns_1123_subdomain);
    std::mem::take(errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn attachments_name_one_source() {
        check(
            attachment(&json!({"spec": {"attacher": "a", "nodeName": "n", "source": {}}})),
            &[
                "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ],
        );
    }

    #[test]
    fn nodes_name_each_driver_once() {
        check(
            node(
                &json!({"spec": {"drivers": [{"name": "a", "nodeID": "x", "topologyKeys": ["k", "k"]},
                {"name": "a", "nodeID": "", "allocatable": {"count": -1}}]}}),
            ),
            &[
                "spec.drivers[0].topologyKeys: Duplicate value: \"k\"",
                "spec.drivers[1].name: Duplicate value: \"a\"",
                "spec.drivers[1].nodeID: Required value",
                "spec.drivers[1].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
            ],
        );
    }

    #[test]
    fn drivers_know_their_policies() {
        check(
            driver(
                &json!({"metadata": {"name": "d"}, "spec": {"fsGroupPolicy": "x", "volumeLifecycleModes": ["Forever"]}}),
            ),
            &[
                "spec.fsGroupPolicy: Unsupported value: \"x\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
                "spec.volumeLifecycleModes[0]: Unsupported value: \"Forever\": supported values: \"Ephemeral\", \"Persistent\"",
            ],
        );
    }
}
