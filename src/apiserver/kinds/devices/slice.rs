//! What drivers publish (`ValidateResourceSlice`): a pool's devices and where they are, their attributes, capacities and
//! taints, and the counters they share.

use std::sync::LazyLock;

use apimachinery::field::{Error, ErrorList};
use apimachinery::quantity::Quantity;
use apimachinery::{Value, name};
use regex::Regex;

use super::super::check::Node;
use super::super::pod_spec::affinity::node_selector;
use super::super::tree::{at, items, semantically_equal, text};
use super::capacity::request_policy;
use super::names::{
    binding_conditions, driver, fully_qualified, is_bounded, pool_name, qualified,
    skipped_operations, taint, unique,
};

const MAX_DEVICES: usize = 128;
/// Devices of a slice in which one has taints, counters or lists of values.
const MAX_ADVANCED_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
const MAX_CONSUMED_SETS: usize = 2;
const MAX_TAINTS: usize = 16;
const MAX_ATTRIBUTES: usize = 32;
const MAX_VALUE: usize = 64;
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];
const WHERE: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
const DEVICE_WHERE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
const DEVICE_NOWHERE: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";

/// A slice, and what it was where it was there before.
pub fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    driver(&spec.at("driver"), errors);
    pool(&spec.at("pool"), errors);
    if let Some(old) = old {
        spec.at("pool")
            .at("name")
            .unchanged(errors, at(old, &["spec", "pool", "name"]));
        for field in ["driver", "nodeName"] {
            spec.at(field).unchanged(errors, at(old, &["spec", field]));
        }
    }
    placement(&spec, errors);
    let (shared, devices) = (spec.at("sharedCounters"), spec.at("devices"));
    if shared.is_set() && devices.is_set() {
        spec.invalid_as(
            errors,
            "",
            "only one of `sharedCounters` or `devices` is allowed",
        );
    }
    let most = match devices.list().iter().any(is_advanced) {
        true => MAX_ADVANCED_DEVICES,
        false => MAX_DEVICES,
    };
    let picks_nodes = spec.at("perDeviceNodeSelection").flag();
    if is_bounded(&devices, most, errors) {
        for one in devices.items() {
            let called = text(one.value, &["name"]);
            let before = old
                .map_or(&[][..], |old| items(old, &["spec", "devices"]))
                .iter()
                .find(|before| text(before, &["name"]) == called);
            device(&one, before, picks_nodes, errors);
        }
        unique(&devices, |one| one.at("name").text().to_owned(), errors);
    }
    if is_bounded(&shared, MAX_COUNTER_SETS, errors) {
        for set in shared.items() {
            set.at("name").named(errors, name::dns_1123_label);
            counters(&set.at("counters"), errors);
        }
        unique(&shared, |set| set.at("name").text().to_owned(), errors);
    }
    partition_type(&spec, errors);
    skipped_operations(&spec.at("skipNodeOperations"), errors);
    std::mem::take(errors)
}

fn is_advanced(device: &Value) -> bool {
    let has_lists = |attribute: &Value| LISTS.iter().any(|list| !attribute[list].is_null());
    !items(device, &["taints"]).is_empty()
        || !items(device, &["consumesCounters"]).is_empty()
        || device["attributes"]
            .as_object()
            .is_some_and(|attributes| attributes.values().any(has_lists))
}

fn pool(pool: &Node<'_, '_>, errors: &mut ErrorList) {
    pool_name(&pool.at("name"), errors);
    let count = pool.at("resourceSliceCount");
    let number = count.int().unwrap_or(0);
    if number <= 0 {
        count.invalid_as(errors, number, "must be greater than zero");
    }
    let generation = pool.at("generation");
    if generation.int().is_some_and(|number| number < 0) {
        generation.invalid(errors, "must be greater than or equal to zero");
    }
}

/// Which of a few ways to say where devices are is taken. `empty` is what an empty name is told.
fn places(
    of: &Node<'_, '_>,
    flags: &[&str],
    empty: &str,
    is_slice: bool,
    errors: &mut ErrorList,
) -> Vec<String> {
    let mut given = Vec::new();
    let node = of.at("nodeName");
    if node.is_set() {
        if node.text().is_empty() {
            node.invalid(errors, empty);
        } else {
            given.push("`nodeName`".to_owned());
            node.syntax(errors, name::dns_1123_subdomain);
        }
    }
    let selector = of.at("nodeSelector");
    if selector.is_set() {
        given.push("`nodeSelector`".to_owned());
        node_selector(selector.value, &selector.path(), errors);
        let terms = selector.at("nodeSelectorTerms");
        if is_slice && terms.list().len() != 1 {
            terms.invalid(errors, "must have exactly one node selector term");
        }
    }
    for flag in flags {
        let node = of.at(flag);
        if node.flag() {
            given.push(format!("`{flag}`"));
        } else if node.is_set() {
            node.invalid(errors, "must be either unset or set to true");
        }
    }
    given
}

/// Where a slice's devices are: exactly one way to say it.
fn placement(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let given = places(
        spec,
        &["allNodes", "perDeviceNodeSelection"],
        "must be either unset or set to a non-empty string",
        true,
        errors,
    );
    match given.len() {
        0 => spec.required(errors, WHERE),
        1 => {}
        _ => spec.invalid_as(
            errors,
            format!("{{{}}}", given.join(", ")),
            format!("{WHERE}, but multiple fields are set"),
        ),
    }
}

fn device_placement(device: &Node<'_, '_>, picks_nodes: bool, errors: &mut ErrorList) {
    if !picks_nodes {
        let fields = ["nodeName", "nodeSelector", "allNodes"];
        if fields.iter().any(|field| device.at(field).is_set()) {
            device.invalid_as(errors, Value::Null, DEVICE_NOWHERE);
        }
        return;
    }
    let given = places(device, &["allNodes"], "must not be empty", false, errors);
    match given.len() {
        0 => device.required(errors, DEVICE_WHERE),
        1 => {}
        _ => device.invalid_as(errors, format!("{{{}}}", given.join(", ")), DEVICE_WHERE),
    }
}

fn device(device: &Node<'_, '_>, old: Option<&Value>, picks_nodes: bool, errors: &mut ErrorList) {
    device.at("name").syntax(errors, name::dns_1123_label);
    let (attributes, capacity) = (device.at("attributes"), device.at("capacity"));
    let size = |map: &Node<'_, '_>| map.value.as_object().map_or(0, serde_json::Map::len);
    let all = size(&attributes) + size(&capacity);
    if all > MAX_ATTRIBUTES {
        device.invalid_as(
            errors,
            all,
            format!(
                "the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}"
            ),
        );
    }
    for (key, one) in attributes.entries() {
        qualified(&attributes, key, errors);
        attribute(&one, errors);
    }
    let is_new = |field: &str| {
        old.is_none_or(|old| !semantically_equal(at(old, &[field]), device.at(field).value))
    };
    if is_new("capacity") {
        let shared = device.at("allowMultipleAllocations").flag();
        for (key, one) in capacity.entries() {
            qualified(&capacity, key, errors);
            let policy = one.at("requestPolicy");
            match (policy.is_set(), shared) {
                (false, _) => {}
                (true, true) => {
                    let value = one.at("value").quantity().unwrap_or(Quantity::ZERO);
                    request_policy(&policy, value, errors);
                }
                (true, false) => policy.forbidden(errors, "allowMultipleAllocations must be true"),
            }
        }
    }
    let taints = device.at("taints");
    if is_new("taints") && is_bounded(&taints, MAX_TAINTS, errors) {
        for one in taints.items() {
            taint(&one, None, errors);
        }
    }
    let consumed = device.at("consumesCounters");
    if is_bounded(&consumed, MAX_CONSUMED_SETS, errors) {
        for one in consumed.items() {
            one.at("counterSet").named(errors, name::dns_1123_label);
            counters(&one.at("counters"), errors);
        }
        unique(
            &consumed,
            |one| one.at("counterSet").text().to_owned(),
            errors,
        );
    }
    device_placement(device, picks_nodes, errors);
    binding_conditions(device, errors);
    allocatable(&device.at("nodeAllocatableResources"), &capacity, errors);
}

fn counters(counters: &Node<'_, '_>, errors: &mut ErrorList) {
    if counters.is_empty() {
        counters.required(errors, "");
    } else if is_bounded(counters, MAX_COUNTERS, errors) {
        for (key, _) in counters.entries() {
            for why in name::dns_1123_label(key) {
                counters.invalid_as(errors, key, why);
            }
        }
    }
}

fn attribute(attribute: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut given = 0;
    for field in ["bool", "int", "string", "version"] {
        let value = attribute.at(field);
        given += usize::from(value.is_set());
        if value.is_set() {
            attribute_text(&value, field == "version", errors);
        }
    }
    for field in LISTS {
        let list = attribute.at(field);
        if !list.is_set() {
            continue;
        }
        given += 1;
        if list.list().is_empty() {
            list.invalid(errors, "must not be empty if specified");
        }
        for value in list.items() {
            attribute_text(&value, field == "versions", errors);
        }
    }
    let why = "exactly one value must be specified";
    match given {
        0 => attribute.invalid_as(errors, "", why),
        1 => {}
        _ => attribute.invalid(errors, why),
    }
}

fn attribute_text(value: &Node<'_, '_>, is_version: bool, errors: &mut ErrorList) {
    static VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let number = r"(0|[1-9]\d*)";
        let pre = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)";
        let build = "[0-9a-zA-Z-]+";
        let pattern =
            format!(r"^{number}\.{number}\.{number}(-{pre}(\.{pre})*)?(\+{build}(\.{build})*)?$");
        Regex::new(&pattern).ok()
    });
    let text = value.text();
    let fits = || {
        VERSION
            .as_ref()
            .is_none_or(|version| version.is_match(text))
    };
    if is_version && !fits() {
        value.invalid(
            errors,
            "must be a string compatible with semver.org spec 2.0.0",
        );
    }
    if text.len() > MAX_VALUE {
        errors.push(Error::too_long(&value.path(), MAX_VALUE));
    }
}

/// What a device takes of a node beside itself (KEP-5517).
fn allocatable(resources: &Node<'_, '_>, capacity: &Node<'_, '_>, errors: &mut ErrorList) {
    for (key, resource) in resources.entries() {
        let known =
            matches!(key, "cpu" | "memory" | "ephemeral-storage") || key.starts_with("hugepages-");
        if !known {
            resource.invalid_as(errors, key, "must be a node allocatable resource name");
        }
        let (mapping, overhead) = (resource.at("mapping"), resource.at("overhead"));
        if !mapping.is_set() && !overhead.is_set() {
            resource.required(errors, "at least one of mapping or overhead must be set");
        }
        if mapping.is_set() {
            allocatable_mapping(&mapping, capacity, errors);
        }
        if !overhead.is_set() {
            continue;
        }
        let amounts = [overhead.at("perPod"), overhead.at("perContainer")];
        if amounts.iter().all(|amount| !amount.is_set()) {
            overhead.invalid_as(
                errors,
                "",
                "at least one of perPod or perContainer must be set",
            );
        }
        for amount in &amounts {
            if amount.quantity().is_some_and(|amount| amount.sign() < 0) {
                amount.invalid(errors, "must be non-negative");
            }
        }
    }
}

fn allocatable_mapping(mapping: &Node<'_, '_>, capacity: &Node<'_, '_>, errors: &mut ErrorList) {
    let (key, factor) = (mapping.at("capacityKey"), mapping.at("capacityMultiplier"));
    let positive = |factor: &Node<'_, '_>, errors: &mut ErrorList| {
        if factor.quantity().is_some_and(|factor| factor.sign() <= 0) {
            factor.invalid(errors, "must be positive");
        }
    };
    if key.is_set() {
        match key.text() {
            "" => key.invalid(errors, "capacityKey must not be an empty string"),
            called if capacity.value.get(called).is_none() => key.not_found(errors),
            _ => {}
        }
        match factor.is_set() {
            true => positive(&factor, errors),
            false => factor.required(
                errors,
                "capacityMultiplier is required when capacityKey is set",
            ),
        }
    }
    positive(&mapping.at("deviceMultiplier"), errors);
    if factor.is_set() && !key.is_set() {
        key.required(
            errors,
            "capacityKey is required when capacityMultiplier is set",
        );
    }
}

/// Devices that consume counters tell what kind of partition they are by this attribute.
fn partition_type(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let attribute = spec.at("partitionTypeAttribute");
    if !attribute.is_set() {
        return;
    }
    let before = errors.len();
    fully_qualified(&attribute, errors);
    let devices = spec.at("devices");
    let consumes = |device: &Value| !items(device, &["consumesCounters"]).is_empty();
    if !devices.list().iter().any(consumes) {
        attribute.invalid(
            errors,
            "may only be set on a slice which declares devices that consume counters",
        );
        return;
    }
    if errors.len() > before {
        return;
    }
    let called = attribute.text();
    let own = called
        .strip_prefix(spec.at("driver").text())
        .and_then(|rest| rest.strip_prefix('/'));
    for device in devices.items().filter(|device| consumes(device.value)) {
        let values = device.at("attributes");
        let found = values.value.get(called).or_else(|| values.value.get(own?));
        let path = values.path().key(called);
        match found {
            None => errors.push(Error::required(
                &path,
                "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set",
            )),
            Some(value) if value["string"].is_null() => errors.push(Error::invalid(
                &path,
                value,
                "must be a string value because `partitionTypeAttribute` names this attribute",
            )),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    fn slice(spec: Value) -> Value {
        let mut object = json!({"spec": {"driver": "d.io", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n"}});
        for (key, value) in spec.as_object().expect("a spec") {
            object["spec"][key] = value.clone();
        }
        object
    }

    #[track_caller]
    fn told(spec: Value, texts: &[&str]) {
        check(validate(&slice(spec), None), texts);
    }

    #[test]
    fn a_slice_is_in_one_place() {
        told(json!({}), &[]);
        told(
            json!({"nodeName": null}),
            &[
                "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
            ],
        );
        told(
            json!({"allNodes": true}),
            &[
                "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set",
            ],
        );
        told(
            json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [{}, {}]}}),
            &[
                "spec.nodeSelector.nodeSelectorTerms: Invalid value: [{},{}]: must have exactly one node selector term",
            ],
        );
        told(
            json!({"allNodes": false, "pool": {"name": "", "generation": -1}}),
            &[
                "spec.pool.name: Required value",
                "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
                "spec.allNodes: Invalid value: false: must be either unset or set to true",
            ],
        );
    }

    #[test]
    fn devices_have_names_and_attributes_of_one_value() {
        told(
            json!({"devices": [{"name": "a", "attributes": {"x": {}, "y": {"int": 1, "bool": true}, "z": {"version": "1.0"},
                "l": {"strings": []}}}, {"name": "a", "nodeName": "n"}]}),
            &[
                "spec.devices[0].attributes[l].strings: Invalid value: []: must not be empty if specified",
                "spec.devices[0].attributes[x]: Invalid value: \"\": exactly one value must be specified",
                "spec.devices[0].attributes[y]: Invalid value: {\"bool\":true,\"int\":1}: exactly one value must be specified",
                "spec.devices[0].attributes[z].version: Invalid value: \"1.0\": must be a string compatible with semver.org spec 2.0.0",
                "spec.devices[1]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
                "spec.devices[1]: Duplicate value: \"a\"",
            ],
        );
    }

    #[test]
    fn counters_are_shared_in_a_slice_of_their_own() {
        told(
            json!({"sharedCounters": [{"name": "c", "counters": {"memory": {"value": "1Gi"}}}, {"name": "c"}]}),
            &[
                "spec.sharedCounters[1].counters: Required value",
                "spec.sharedCounters[1]: Duplicate value: \"c\"",
            ],
        );
        told(
            json!({"sharedCounters": [], "devices": [{"name": "a", "consumesCounters": [{}]}]}),
            &[
                "spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed",
                "spec.devices[0].consumesCounters[0].counterSet: Required value",
                "spec.devices[0].consumesCounters[0].counters: Required value",
            ],
        );
    }

    #[test]
    fn pools_drivers_and_nodes_stay_what_they_were() {
        let mut new = slice(json!({}));
        new["spec"]["pool"]["name"] = "q".into();
        new["spec"]["nodeName"] = "m".into();
        check(
            validate(&new, Some(&slice(json!({})))),
            &[
                "spec.pool.name: Invalid value: \"q\": field is immutable",
                "spec.nodeName: Invalid value: \"m\": field is immutable",
            ],
        );
    }

    #[test]
    fn what_is_advanced_makes_slices_smaller() {
        let devices: Vec<Value> = (0..65)
            .map(|number| json!({"name": format!("d{number}")}))
            .collect();
        told(json!({ "devices": devices }), &[]);
        let mut tainted = devices;
        tainted[0]["taints"] = json!([{"key": "k", "effect": "None"}]);
        told(
            json!({ "devices": tainted }),
            &["spec.devices: Too many: 65: must have at most 64 items"],
        );
    }

    #[test]
    fn partitions_tell_their_type() {
        let device = |attributes: Value| {
            json!({"name": "a", "attributes": attributes,
                "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]})
        };
        let of = |attributes: Value| json!({"partitionTypeAttribute": "d.io/type", "devices": [device(attributes)]});
        told(of(json!({"type": {"string": "half"}})), &[]);
        told(
            of(json!({})),
            &[
                "spec.devices[0].attributes[d.io/type]: Required value: device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set",
            ],
        );
        told(
            json!({"partitionTypeAttribute": "d.io/type", "devices": []}),
            &[
                "spec.partitionTypeAttribute: Invalid value: \"d.io/type\": may only be set on a slice which declares devices that consume counters",
            ],
        );
    }
}
