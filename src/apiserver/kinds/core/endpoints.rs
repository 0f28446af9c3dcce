//! Endpoints, EndpointSlices and Leases: what controllers and nodes write most.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::lease_candidates;
use super::super::object_meta::validate_labels;
use super::super::pod_spec::validation::one_of;
use super::super::tree::{at, default_text, int, items, items_mut, text};
use super::services::validation::special_address;
use crate::registry::strategy::{Change, Strategy};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Limits of one slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_PORTS: usize = 20_000;
const MAX_ADDRESSES: usize = 100;
const MAX_TOPOLOGY: usize = 16;
const MAX_HINTS: usize = 8;
/// What an address may be called, and where it is.
const ADDRESS_NAMES: [(&str, fn(&str) -> Vec<String>); 2] = [
    ("hostname", name::dns_1123_label),
    ("nodeName", name::dns_1123_subdomain),
];

pub struct Endpoints;

impl Strategy for Endpoints {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "endpoints")
    }

    fn default(&self, object: &mut Value) {
        for subset in items_mut(object, &["subsets"]) {
            for port in items_mut(subset, &["ports"]) {
                default_text(port, "protocol", "TCP");
            }
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        for (index, subset) in items(object, &["subsets"]).iter().enumerate() {
            let path = Path::new("subsets").index(index);
            let none = ["addresses", "notReadyAddresses"]
                .iter()
                .all(|list| items(subset, &[list]).is_empty());
            if none {
                errors.push(Error::required(
                    &path,
                    "must specify `addresses` or `notReadyAddresses`",
                ));
            }
            for list in ["addresses", "notReadyAddresses"] {
                for (index, address) in items(subset, &[list]).iter().enumerate() {
                    let ip = text(address, &["ip"]);
                    let path = path.child(list).index(index);
                    for (field, rule) in ADDRESS_NAMES {
                        let called = text(address, &[field]);
                        if !called.is_empty() {
                            errors.push_invalid(&path.child(field), called, rule(called));
                        }
                    }
                    let path = path.child("ip");
                    errors.push_invalid(&path, ip, name::ip_address(ip));
                    special_address(ip, &path, &mut errors);
                }
            }
            let ports = items(subset, &["ports"]);
            for (index, port) in ports.iter().enumerate() {
                let path = path.child("ports").index(index);
                port_rules(port, ports.len() > 1, &path, &mut errors);
            }
        }
        errors
    }
}

fn port_rules(port: &Value, needs_name: bool, path: &Path, errors: &mut ErrorList) {
    let called = text(port, &["name"]);
    if called.is_empty() {
        if needs_name {
            errors.push(Error::required(&path.child("name"), ""));
        }
    } else {
        errors.push_invalid(&path.child("name"), called, name::dns_1123_label(called));
    }
    let number = int(port, &["port"]).unwrap_or(0);
    for why in name::port_number(number) {
        errors.push(Error::invalid(&path.child("port"), number, why));
    }
    one_of(
        text(port, &["protocol"]),
        &PROTOCOLS,
        &path.child("protocol"),
        errors,
    );
}

pub struct EndpointSlices;

impl Strategy for EndpointSlices {
    fn id(&self) -> (&'static str, &'static str) {
        ("discovery.k8s.io", "endpointslices")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        for port in items_mut(object, &["ports"]) {
            if port.get("name").is_none_or(Value::is_null) {
                super::super::tree::set(port, "name", "");
            }
            default_text(port, "protocol", "TCP");
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let kind = text(object, &["addressType"]);
        let valid = ["FQDN", "IPv4", "IPv6"];
        one_of(kind, &valid, &Path::new("addressType"), &mut errors);
        let endpoints = items(object, &["endpoints"]);
        let path = Path::new("endpoints");
        if endpoints.len() > MAX_ENDPOINTS {
            errors.push(Error::too_many(&path, endpoints.len(), MAX_ENDPOINTS));
        }
        for (index, endpoint) in endpoints.iter().enumerate() {
            let told = path.index(index);
            place(&Node::root(endpoint, told.as_str()), &mut errors);
            let path = told.child("addresses");
            let addresses = items(endpoint, &["addresses"]);
            if addresses.is_empty() {
                errors.push(Error::required(&path, "must contain at least 1 address"));
            }
            if addresses.len() > MAX_ADDRESSES {
                errors.push(Error::too_many(&path, addresses.len(), MAX_ADDRESSES));
            }
            for (index, address) in addresses.iter().enumerate() {
                let address = address.as_str().unwrap_or("");
                address_rules(kind, address, &path.index(index), &mut errors);
            }
        }
        ports(object, &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = self.validate_create(change, new);
        if at(new, &["addressType"]) != at(old, &["addressType"]) {
            let path = Path::new("addressType");
            errors.push(Error::invalid(
                &path,
                text(new, &["addressType"]),
                "field is immutable",
            ));
        }
        errors
    }
}

/// Where an endpoint is, and who should use it.
fn place(endpoint: &Node<'_, '_>, errors: &mut ErrorList) {
    endpoint
        .at("nodeName")
        .syntax_if_set(errors, name::dns_1123_subdomain);
    let topology = endpoint.at("deprecatedTopology");
    let count = topology.entries().count();
    if count > MAX_TOPOLOGY {
        errors.push(Error::too_many(&topology.path(), count, MAX_TOPOLOGY));
    }
    errors.extend(validate_labels(topology.value, &topology.path()));
    let hostname = endpoint.at("hostname");
    if hostname.is_set() {
        hostname.syntax(errors, name::dns_1123_label);
    }
    let hints = endpoint.at("hints");
    for list in ["forZones", "forNodes"] {
        let list = hints.at(list);
        let count = list.list().len();
        if count > MAX_HINTS {
            errors.push(Error::too_many(&list.path(), count, MAX_HINTS));
            continue;
        }
        let mut seen: Vec<&str> = Vec::new();
        for hint in list.items() {
            let called = hint.at("name");
            if seen.contains(&called.text()) {
                called.duplicate(errors);
            }
            seen.push(called.text());
            called.syntax(errors, name::label_value);
        }
    }
}

fn address_rules(kind: &str, address: &str, path: &Path, errors: &mut ErrorList) {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if kind != "FQDN" {
        special_address(address, path, errors);
    }
    match kind {
        "IPv4" if address.parse::<Ipv4Addr>().is_err() => {
            errors.push(Error::invalid(path, address, "must be an IPv4 address"));
        }
        "IPv6" if address.parse::<Ipv6Addr>().is_err() => {
            errors.push(Error::invalid(path, address, "must be an IPv6 address"));
        }
        "FQDN" => errors.push_invalid(path, address, name::dns_1123_subdomain(address)),
        _ => {}
    }
}

fn ports(object: &Value, errors: &mut ErrorList) {
    let ports = items(object, &["ports"]);
    let path = Path::new("ports");
    if ports.len() > MAX_PORTS {
        errors.push(Error::too_many(&path, ports.len(), MAX_PORTS));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let called = text(port, &["name"]);
        if !called.is_empty() {
            errors.push_invalid(&path.child("name"), called, name::dns_1123_label(called));
        }
        if seen.contains(&called) {
            errors.push(Error::duplicate(&path.child("name"), called));
        }
        seen.push(called);
        one_of(
            text(port, &["protocol"]),
            &PROTOCOLS,
            &path.child("protocol"),
            errors,
        );
    }
}

pub struct Leases;

impl Strategy for Leases {
    fn id(&self) -> (&'static str, &'static str) {
        ("coordination.k8s.io", "leases")
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        lease(object)
    }
}

/// `ValidateLeaseSpec`.
fn lease(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    let duration = spec.at("leaseDurationSeconds");
    if duration.int().is_some_and(|seconds| seconds <= 0) {
        duration.invalid(&mut errors, "must be greater than 0");
    }
    spec.at("leaseTransitions").nonnegative(&mut errors);
    let (strategy, preferred) = (spec.at("strategy"), spec.at("preferredHolder"));
    if strategy.is_set() {
        lease_candidates::strategy(&strategy, &mut errors);
    }
    if !preferred.text().is_empty() && strategy.text().is_empty() {
        preferred.forbidden(
            &mut errors,
            "may only be specified if `strategy` is defined",
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn leases_last_and_may_have_no_holder() {
        let errors = lease(
            &json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 0, "leaseTransitions": -1}}),
        );
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn an_endpoint_is_somewhere_and_for_somebody() {
        let endpoint = json!({"nodeName": "A", "hostname": "a.b",
            "hints": {"forZones": [{"name": "z"}, {"name": "z"}]}});
        let mut errors = ErrorList::new();
        place(&Node::root(&endpoint, "e"), &mut errors);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            ["e.nodeName", "e.hostname", "e.hints.forZones[1].name"]
        );
    }
}
