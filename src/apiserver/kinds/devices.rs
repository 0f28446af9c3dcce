//! Dynamic resource allocation (KEP-4381): claims, their templates, device classes, and the slices drivers publish.

mod claim_status;

use api::Resource;
use apimachinery::field::{Error, ErrorList};
use apimachinery::{Map, Value, name};

use super::check::Node;
use super::tree::{at, at_mut, default_value, has, items_mut};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "resource.k8s.io";

/// Bounds of one claim, class and slice (`resource.k8s.io/v1` types).
const MAX_REQUESTS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGS: usize = 32;
const MAX_SELECTORS: usize = 32;
const MAX_SUBREQUESTS: usize = 8;
const MAX_DEVICES: usize = 128;
const MAX_DRIVER_NAME: usize = 63;
const MAX_POOL_NAME: usize = 253;

fn limit(list: &Node<'_, '_>, most: usize, errors: &mut ErrorList) {
    let count = list.list().len();
    if count > most {
        errors.push(Error::too_many(&list.path(), count, most));
    }
}

pub struct ResourceClaims;

impl Strategy for ResourceClaims {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "resourceclaims")
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        convert_claim(object, &["spec"], from, to);
    }

    fn default(&self, object: &mut Value) {
        default_claim(object, &["spec"]);
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        claim(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return claim_status::validate(new, old);
        }
        let mut errors = claim(new);
        Node::root(at(new, &["spec"]), "spec").unchanged(&mut errors, at(old, &["spec"]));
        errors
    }
}

pub struct ResourceClaimTemplates;

impl Strategy for ResourceClaimTemplates {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "resourceclaimtemplates")
    }

    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        convert_claim(object, &["spec", "spec"], from, to);
    }

    fn default(&self, object: &mut Value) {
        default_claim(object, &["spec", "spec"]);
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        claim_template(object)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = claim_template(new);
        Node::root(at(new, &["spec"]), "spec").unchanged(&mut errors, at(old, &["spec"]));
        errors
    }
}

/// A request without alternatives is under `exactly`, but in v1beta1, which has its members in the request itself.
fn convert_claim(object: &mut Value, spec: &[&str], from: &Resource, to: &Resource) {
    let flat = |resource: &Resource| resource.version == "v1beta1";
    if flat(from) == flat(to) {
        return;
    }
    let Some(spec) = at_mut(object, spec) else {
        return;
    };
    for request in items_mut(spec, &["devices", "requests"]) {
        let Some(map) = request.as_object_mut() else {
            continue;
        };
        if flat(from) {
            let alone = map
                .get("firstAvailable")
                .is_none_or(|list| list.as_array().is_none_or(Vec::is_empty));
            let members = std::mem::take(map);
            let (kept, moved): (Map<String, Value>, Map<String, Value>) = members
                .into_iter()
                .partition(|(key, _)| matches!(key.as_str(), "name" | "firstAvailable"));
            *map = kept;
            if alone {
                map.insert("exactly".to_owned(), moved.into());
            }
        } else if let Some(Value::Object(exactly)) = map.remove("exactly") {
            map.extend(exactly);
        }
    }
}

fn default_claim(object: &mut Value, spec: &[&str]) {
    let Some(spec) = at_mut(object, spec) else {
        return;
    };
    for request in items_mut(spec, &["devices", "requests"]) {
        if let Some(exactly) = at_mut(request, &["exactly"]) {
            default_count(exactly);
        }
        for sub in items_mut(request, &["firstAvailable"]) {
            default_count(sub);
        }
    }
}

fn default_count(request: &mut Value) {
    super::tree::default_text(request, "allocationMode", "ExactCount");
    if super::tree::text(request, &["allocationMode"]) == "ExactCount" {
        super::tree::default_number(request, "count", 1);
    }
}

pub struct ResourceSlices;

impl Strategy for ResourceSlices {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "resourceslices")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    /// What a device has is in the device, but in v1beta1, which has it under `basic`.
    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        let nested = |resource: &Resource| resource.version == "v1beta1";
        if nested(from) == nested(to) {
            return;
        }
        for device in items_mut(object, &["spec", "devices"]) {
            let Some(map) = device.as_object_mut() else {
                continue;
            };
            if nested(from) {
                if let Some(Value::Object(basic)) = map.remove("basic") {
                    map.extend(basic);
                }
            } else {
                let name = map.remove("name");
                let basic = std::mem::take(map);
                map.extend(name.map(|name| ("name".to_owned(), name)));
                map.insert("basic".to_owned(), basic.into());
            }
        }
    }

    fn default(&self, object: &mut Value) {
        for device in items_mut(object, &["spec", "devices"]) {
            for taint in items_mut(device, &["taints"]) {
                if !has(taint, &["timeAdded"]) {
                    default_value(taint, "timeAdded", apimachinery::time::now_text());
                }
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        slice(object)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = slice(new);
        let spec = Node::root(at(new, &["spec"]), "spec");
        for field in ["driver", "nodeName"] {
            spec.at(field)
                .unchanged(&mut errors, at(old, &["spec", field]));
        }
        spec.at("pool")
            .at("name")
            .unchanged(&mut errors, at(old, &["spec", "pool", "name"]));
        errors
    }
}

fn claim(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    claim_spec(&Node::root(at(object, &["spec"]), "spec"), &mut errors);
    errors
}

fn claim_template(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    claim_spec(
        &Node::root(at(object, &["spec", "spec"]), "spec.spec"),
        &mut errors,
    );
    errors
}

fn claim_spec(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let devices = spec.at("devices");
    let requests = devices.at("requests");
    limit(&requests, MAX_REQUESTS, errors);
    let mut names: Vec<&str> = Vec::new();
    for request in requests.items() {
        let called = request.at("name");
        called.named(errors, name::dns_1123_label);
        if names.contains(&called.text()) {
            called.duplicate(errors);
        }
        names.push(called.text());
        device_request(&request, errors);
    }
    let constraints = devices.at("constraints");
    limit(&constraints, MAX_CONSTRAINTS, errors);
    for constraint in constraints.items() {
        request_names(&constraint.at("requests"), &names, errors);
        if !constraint.at("matchAttribute").is_set() && !constraint.at("distinctAttribute").is_set()
        {
            constraint.at("matchAttribute").required(errors, "");
        }
    }
    let configs = devices.at("config");
    limit(&configs, MAX_CONFIGS, errors);
    for config in configs.items() {
        request_names(&config.at("requests"), &names, errors);
        opaque(&config, errors);
    }
}

fn request_names(list: &Node<'_, '_>, names: &[&str], errors: &mut ErrorList) {
    for request in list.items() {
        let first = request.text().split('/').next().unwrap_or("");
        if !names.contains(&first) {
            request.invalid(
                errors,
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            );
        }
    }
}

fn device_request(request: &Node<'_, '_>, errors: &mut ErrorList) {
    let (exactly, first) = (request.at("exactly"), request.at("firstAvailable"));
    match (exactly.is_set(), first.list().is_empty()) {
        (false, true) => request.required(
            errors,
            "exactly one of `exactly` or `firstAvailable` is required",
        ),
        (true, false) => request.invalid(
            errors,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (true, true) => exact(&exactly, errors),
        (false, false) => {
            limit(&first, MAX_SUBREQUESTS, errors);
            for sub in first.items() {
                sub.at("name").named(errors, name::dns_1123_label);
                exact(&sub, errors);
            }
        }
    }
}

fn exact(request: &Node<'_, '_>, errors: &mut ErrorList) {
    request
        .at("deviceClassName")
        .named(errors, name::dns_1123_subdomain);
    selectors(&request.at("selectors"), errors);
    let (mode, count) = (request.at("allocationMode"), request.at("count"));
    match mode.text() {
        "All" if count.int().unwrap_or(0) != 0 => {
            count.invalid(errors, "must not be specified when allocationMode is 'All'")
        }
        "All" => {}
        "ExactCount" => {
            if count.int().unwrap_or(0) <= 0 {
                count.invalid_as(
                    errors,
                    count.int().unwrap_or(0),
                    "must be greater than zero",
                );
            }
        }
        _ => mode.not_supported(errors, &["All", "ExactCount"]),
    }
}

fn selectors(list: &Node<'_, '_>, errors: &mut ErrorList) {
    limit(list, MAX_SELECTORS, errors);
    for selector in list.items() {
        let cel = selector.at("cel");
        if !cel.is_set() {
            cel.required(errors, "");
        }
    }
}

fn opaque(config: &Node<'_, '_>, errors: &mut ErrorList) {
    let opaque = config.at("opaque");
    if !opaque.is_set() {
        opaque.required(errors, "");
        return;
    }
    driver(&opaque.at("driver"), errors);
    let parameters = opaque.at("parameters");
    if !parameters.is_set() {
        parameters.required(errors, "");
    } else if !parameters.value.is_object() {
        parameters.invalid_as(
            errors,
            "<value omitted>",
            "parameters must be a valid JSON object",
        );
    }
}

/// `validateDriverName`.
fn driver(driver: &Node<'_, '_>, errors: &mut ErrorList) {
    if !driver.present(errors) {
        return;
    }
    if driver.text().len() > MAX_DRIVER_NAME {
        errors.push(Error::too_long(&driver.path(), MAX_DRIVER_NAME));
    }
    driver.syntax(errors, |text| {
        name::dns_1123_subdomain(&text.to_lowercase())
    });
}

pub fn class(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    selectors(&spec.at("selectors"), &mut errors);
    let configs = spec.at("config");
    limit(&configs, MAX_CONFIGS, &mut errors);
    for config in configs.items() {
        opaque(&config, &mut errors);
    }
    errors
}

pub fn taint_rule(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    taint(&spec.at("taint"), &mut errors);
    errors
}

fn taint(taint: &Node<'_, '_>, errors: &mut ErrorList) {
    taint.at("key").syntax(errors, name::qualified_name);
    taint.at("value").syntax_if_set(errors, name::label_value);
    taint
        .at("effect")
        .one_of(errors, &["NoExecute", "NoSchedule", "None"]);
}

fn slice(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    driver(&spec.at("driver"), errors);
    let pool = spec.at("pool");
    pool_name(&pool.at("name"), errors);
    let count = pool.at("resourceSliceCount");
    if count.int().unwrap_or(0) <= 0 {
        count.invalid_as(
            errors,
            count.int().unwrap_or(0),
            "must be greater than zero",
        );
    }
    pool.at("generation").nonnegative(errors);
    placement(&spec, errors);
    let devices = spec.at("devices");
    limit(&devices, MAX_DEVICES, errors);
    let mut names: Vec<&str> = Vec::new();
    for device in devices.items() {
        let called = device.at("name");
        called.named(errors, name::dns_1123_label);
        if names.contains(&called.text()) {
            called.duplicate(errors);
        }
        names.push(called.text());
        let taints = device.at("taints");
        for item in taints.items() {
            taint(&item, errors);
        }
    }
    std::mem::take(errors)
}

/// `validatePoolName`.
fn pool_name(called: &Node<'_, '_>, errors: &mut ErrorList) {
    if !called.present(errors) {
        return;
    }
    if called.text().len() > MAX_POOL_NAME {
        errors.push(Error::too_long(&called.path(), MAX_POOL_NAME));
    }
    for part in called.text().split('/') {
        for why in name::dns_1123_subdomain(part) {
            called.invalid(errors, why);
        }
    }
}

/// Where a slice's devices are: exactly one way to say it.
fn placement(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let node = spec.at("nodeName");
    let mut given: Vec<String> = Vec::new();
    if node.is_set() {
        if node.text().is_empty() {
            node.invalid(errors, "must be either unset or set to a non-empty string");
        } else {
            node.syntax(errors, name::dns_1123_subdomain);
        }
        given.push("`nodeName`".to_owned());
    }
    if spec.at("nodeSelector").is_set() {
        given.push("`nodeSelector`".to_owned());
    }
    for flag in ["allNodes", "perDeviceNodeSelection"] {
        let node = spec.at(flag);
        if node.is_set() {
            if node.flag() {
                given.push(format!("`{flag}`"));
            } else {
                node.invalid(errors, "must be either unset or set to true");
            }
        }
    }
    match given.len() {
        0 => spec.required(
            errors,
            "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
        ),
        1 => {}
        _ => errors.push(Error::invalid(
            &spec.path(),
            format!("{{{}}}", given.join(", ")),
            "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn requests_have_a_name_a_class_and_a_count() {
        check(
            claim(&json!({"spec": {"devices": {"requests": [
                {"name": "a", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}},
                {"name": "a", "exactly": {"allocationMode": "ExactCount"}}, {"name": "b"}],
                "constraints": [{"requests": ["x"], "matchAttribute": "d/a"}]}}})),
            &[
                "spec.devices.requests[1].name: Duplicate value: \"a\"",
                "spec.devices.requests[1].exactly.deviceClassName: Required value",
                "spec.devices.requests[1].exactly.count: Invalid value: 0: must be greater than zero",
                "spec.devices.requests[2]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                "spec.devices.constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            ],
        );
    }

    #[test]
    fn old_versions_keep_what_a_request_says_elsewhere() {
        let version = |version| api::find(GROUP, version, "resourceclaims").expect("is known");
        let (old, new) = (version("v1beta1"), version("v1"));
        let flat = json!({"spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "c", "count": 2}]}}});
        let mut object = flat.clone();
        ResourceClaims.convert(&mut object, old, new);
        assert_eq!(
            object["spec"]["devices"]["requests"],
            json!([{"name": "a", "exactly": {"deviceClassName": "c", "count": 2}}])
        );
        ResourceClaims.convert(&mut object, new, old);
        assert_eq!(object, flat);
    }

    #[test]
    fn a_slice_is_in_one_place() {
        check(
            slice(
                &json!({"spec": {"driver": "d.io", "pool": {"name": "p", "resourceSliceCount": 1}}}),
            ),
            &[
                "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
            ],
        );
    }
}
