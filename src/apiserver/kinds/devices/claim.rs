//! What a claim asks for (`validateDeviceClaim`): requests or alternatives of them, constraints between them, and
//! configuration for their drivers.

use std::collections::HashMap;

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::tree::{items, text};
use super::names::{
    configuration, expression, fully_qualified, is_bounded, qualified, selectors, tolerations,
    unique,
};

/// Bounds of one claim (`resource.k8s.io/v1` types).
const MAX_REQUESTS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGS: usize = 32;
const MAX_SUBREQUESTS: usize = 8;
const MAX_DERIVED: usize = 8;
const NO_REQUEST: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// The names of a claim's requests and of their alternatives.
pub struct Requests<'v>(HashMap<&'v str, Vec<&'v str>>);

impl<'v> Requests<'v> {
    /// Of a claim's spec.
    pub fn of(spec: &'v Value) -> Self {
        let requests = items(spec, &["devices", "requests"]).iter();
        Self(
            requests
                .map(|request| {
                    let subs = items(request, &["firstAvailable"]).iter();
                    let subs = subs.map(|sub| text(sub, &["name"])).collect();
                    (text(request, &["name"]), subs)
                })
                .collect(),
        )
    }

    fn has(&self, called: &str) -> bool {
        match called.split_once('/') {
            None => self.0.contains_key(called),
            Some((request, sub)) => self.0.get(request).is_some_and(|subs| subs.contains(&sub)),
        }
    }

    /// `validateRequestNameRef`.
    pub fn refer(&self, reference: &Node<'_, '_>, errors: &mut ErrorList) {
        let called = reference.text();
        if called.split('/').count() > 2 {
            reference.invalid(errors, NO_REQUEST);
            return;
        }
        for segment in called.split('/') {
            for why in name::dns_1123_label(segment) {
                reference.invalid_as(errors, segment, why);
            }
        }
        if !self.has(called) {
            reference.invalid(errors, NO_REQUEST);
        }
    }

    /// A set of such references.
    pub fn refer_all(&self, list: &Node<'_, '_>, errors: &mut ErrorList) {
        if !is_bounded(list, MAX_REQUESTS, errors) {
            return;
        }
        for reference in list.items() {
            self.refer(&reference, errors);
        }
        unique(list, |reference| reference.text().to_owned(), errors);
    }
}

/// Whether a constraint on a request, or on all, names the attribute.
fn is_constrained(spec: &Value, attribute: &str, request: &str) -> bool {
    let parent = request.split('/').next().unwrap_or("");
    items(spec, &["devices", "constraints"])
        .iter()
        .filter(|constraint| {
            let named = match text(constraint, &["matchAttribute"]) {
                "" => text(constraint, &["distinctAttribute"]),
                named => named,
            };
            named == attribute
        })
        .any(|constraint| {
            let requests = items(constraint, &["requests"]);
            requests.is_empty() || requests.iter().any(|of| *of == request || *of == parent)
        })
}

/// `validateResourceClaimSpec`.
pub fn spec(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let devices = spec.at("devices");
    let names = Requests::of(spec.value);
    let requests = devices.at("requests");
    if is_bounded(&requests, MAX_REQUESTS, errors) {
        for one in requests.items() {
            request(&one, spec.value, errors);
        }
        unique(&requests, |one| one.at("name").text().to_owned(), errors);
    }
    let constraints = devices.at("constraints");
    if is_bounded(&constraints, MAX_CONSTRAINTS, errors) {
        for one in constraints.items() {
            constraint(&one, &names, errors);
        }
    }
    let configs = devices.at("config");
    if is_bounded(&configs, MAX_CONFIGS, errors) {
        for config in configs.items() {
            names.refer_all(&config.at("requests"), errors);
            configuration(&config, errors);
        }
    }
}

fn constraint(constraint: &Node<'_, '_>, names: &Requests<'_>, errors: &mut ErrorList) {
    names.refer_all(&constraint.at("requests"), errors);
    let (same, distinct) = (
        constraint.at("matchAttribute"),
        constraint.at("distinctAttribute"),
    );
    if same.is_set() {
        fully_qualified(&same, errors);
    } else if distinct.is_set() {
        fully_qualified(&distinct, errors);
    } else {
        constraint.required(
            errors,
            "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set",
        );
    }
}

/// `validateDeviceRequest`.
fn request(request: &Node<'_, '_>, spec: &Value, errors: &mut ErrorList) {
    let called = request.at("name");
    called.syntax(errors, name::dns_1123_label);
    let (exactly, first) = (request.at("exactly"), request.at("firstAvailable"));
    match (exactly.is_set(), first.list().is_empty()) {
        (false, true) => request.required(
            errors,
            "exactly one of `exactly` or `firstAvailable` is required",
        ),
        (true, false) => request.invalid_as(
            errors,
            Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (true, true) => exact(&exactly, called.text(), spec, errors),
        (false, false) => {
            if !is_bounded(&first, MAX_SUBREQUESTS, errors) {
                return;
            }
            for sub in first.items() {
                let name = sub.at("name");
                name.syntax(errors, name::dns_1123_label);
                let whole = format!("{}/{}", called.text(), name.text());
                exact(&sub, &whole, spec, errors);
            }
            unique(&first, |sub| sub.at("name").text().to_owned(), errors);
        }
    }
}

fn exact(request: &Node<'_, '_>, called: &str, spec: &Value, errors: &mut ErrorList) {
    request
        .at("deviceClassName")
        .named(errors, name::dns_1123_subdomain);
    selectors(&request.at("selectors"), errors);
    derived_attributes(&request.at("derivedAttributes"), called, spec, errors);
    let (mode, count) = (request.at("allocationMode"), request.at("count"));
    let number = count.int().unwrap_or(0);
    match mode.text() {
        "All" if number != 0 => {
            count.invalid(errors, "must not be specified when allocationMode is 'All'")
        }
        "All" => {}
        "ExactCount" if number <= 0 => {
            count.invalid_as(errors, number, "must be greater than zero")
        }
        "ExactCount" => {}
        _ => mode.not_supported(errors, &["All", "ExactCount"]),
    }
    tolerations(&request.at("tolerations"), errors);
}

/// `validateDeviceDerivedAttributes`: computed for constraints, and so of use only with one.
fn derived_attributes(list: &Node<'_, '_>, request: &str, spec: &Value, errors: &mut ErrorList) {
    if !is_bounded(list, MAX_DERIVED, errors) {
        return;
    }
    for attribute in list.items() {
        let called = attribute.at("name");
        if called.present(errors) {
            qualified(&called, called.text(), errors);
            if !is_constrained(spec, called.text(), request) {
                called.invalid(
                    errors,
                    "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request",
                );
            }
        }
        let text = attribute.at("expression");
        if text.present(errors) {
            expression(&text, &[], errors);
        }
    }
    unique(
        list,
        |attribute| attribute.at("name").text().to_owned(),
        errors,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    fn validate(devices: Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let object = json!({ "devices": devices });
        spec(&Node::root(&object, "spec"), &mut errors);
        errors
    }

    const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

    #[test]
    fn requests_have_a_name_a_class_and_a_count() {
        check(
            validate(json!({"requests": [
                {"name": "a", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}},
                {"name": "a", "exactly": {"allocationMode": "ExactCount"}}, {"name": "b"}, {"name": "",
                    "exactly": {"deviceClassName": "c", "allocationMode": "Some"}},
                {"name": "d", "exactly": {"deviceClassName": "c", "allocationMode": "All", "count": 2}}]})),
            &[
                "spec.devices.requests[1].exactly.deviceClassName: Required value",
                "spec.devices.requests[1].exactly.count: Invalid value: 0: must be greater than zero",
                "spec.devices.requests[2]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                &format!("spec.devices.requests[3].name: Invalid value: \"\": {LABEL}"),
                "spec.devices.requests[3].exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\"",
                "spec.devices.requests[4].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
                "spec.devices.requests[1]: Duplicate value: \"a\"",
            ],
        );
    }

    #[test]
    fn constraints_and_configuration_name_requests_there_are() {
        let sub = json!({"name": "s", "deviceClassName": "c", "allocationMode": "All"});
        check(
            validate(
                json!({"requests": [{"name": "a", "firstAvailable": [sub, sub]}],
                "constraints": [{"requests": ["a/s", "a", "x", "a/s/t"], "matchAttribute": "d.io/a"}, {"requests": ["a", "a"]}],
                "config": [{"requests": ["a/x"], "opaque": {"parameters": {}}}, {}]}),
            ),
            &[
                "spec.devices.requests[0].firstAvailable[1]: Duplicate value: \"s\"",
                &format!(
                    "spec.devices.constraints[0].requests[2]: Invalid value: \"x\": {NO_REQUEST}"
                ),
                &format!(
                    "spec.devices.constraints[0].requests[3]: Invalid value: \"a/s/t\": {NO_REQUEST}"
                ),
                "spec.devices.constraints[1].requests[1]: Duplicate value: \"a\"",
                "spec.devices.constraints[1]: Required value: exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set",
                &format!(
                    "spec.devices.config[0].requests[0]: Invalid value: \"a/x\": {NO_REQUEST}"
                ),
                "spec.devices.config[0].opaque.driver: Required value",
                "spec.devices.config[1].opaque: Required value",
            ],
        );
    }

    #[test]
    fn derived_attributes_serve_a_constraint() {
        let request = |called: &str| {
            json!({"name": "a", "exactly": {"deviceClassName": "c", "allocationMode": "All",
                "derivedAttributes": [{"name": called, "expression": "device.driver"}]}})
        };
        let constraints = json!([{"requests": ["a"], "matchAttribute": "d.io/a"}]);
        check(
            validate(json!({"requests": [request("d.io/a")], "constraints": constraints})),
            &[],
        );
        check(
            validate(json!({"requests": [request("b")], "constraints": constraints})),
            &[
                "spec.devices.requests[0].exactly.derivedAttributes[0].name: Invalid value: \"b\": must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request",
            ],
        );
    }

    #[test]
    fn too_many_are_not_looked_at() {
        let many = vec![json!({"name": "a"}); 33];
        check(
            validate(json!({ "requests": many })),
            &["spec.devices.requests: Too many: 33: must have at most 32 items"],
        );
    }
}
