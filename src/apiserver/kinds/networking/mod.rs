//! Ingresses, network policies, address ranges and addresses.

use std::net::IpAddr;

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use serde_json::json;

use super::core::services::addresses::Cidr;
use super::pod_spec::affinity::label_selector;
use super::pod_spec::containers::port_or_name;
use super::pod_spec::validation::one_of;
use super::tree::{at, default_text, has, items, items_mut, object_mut, set, text};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "networking.k8s.io";

pub struct NetworkPolicies;

impl Strategy for NetworkPolicies {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "networkpolicies")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        for rules in ["ingress", "egress"] {
            for rule in items_mut(object, &["spec", rules]) {
                for port in items_mut(rule, &["ports"]) {
                    default_text(port, "protocol", "TCP");
                }
            }
        }
        if items(object, &["spec", "policyTypes"]).is_empty() {
            let mut types = vec!["Ingress"];
            if !items(object, &["spec", "egress"]).is_empty() {
                types.push("Egress");
            }
            object_mut(object, &["spec"]).insert("policyTypes".to_owned(), json!(types));
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        label_selector(
            at(object, &["spec", "podSelector"]),
            &path.child("podSelector"),
            &mut errors,
        );
        for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
            for (index, rule) in items(object, &["spec", rules]).iter().enumerate() {
                let path = path.child(rules).index(index);
                for (index, port) in items(rule, &["ports"]).iter().enumerate() {
                    let path = path.child("ports").index(index);
                    let valid = ["SCTP", "TCP", "UDP"];
                    one_of(
                        text(port, &["protocol"]),
                        &valid,
                        &path.child("protocol"),
                        &mut errors,
                    );
                    if has(port, &["port"]) {
                        port_or_name(at(port, &["port"]), &path.child("port"), &mut errors);
                    }
                }
                for (index, peer) in items(rule, &[peers]).iter().enumerate() {
                    peer_rules(peer, &path.child(peers).index(index), &mut errors);
                }
            }
        }
        for (index, kind) in items(object, &["spec", "policyTypes"]).iter().enumerate() {
            let path = path.child("policyTypes").index(index);
            one_of(
                kind.as_str().unwrap_or(""),
                &["Egress", "Ingress"],
                &path,
                &mut errors,
            );
        }
        errors
    }
}

fn peer_rules(peer: &Value, path: &Path, errors: &mut ErrorList) {
    let selects = has(peer, &["podSelector"]) || has(peer, &["namespaceSelector"]);
    for field in ["podSelector", "namespaceSelector"] {
        label_selector(at(peer, &[field]), &path.child(field), errors);
    }
    if has(peer, &["ipBlock"]) {
        let block = text(peer, &["ipBlock", "cidr"]);
        if Cidr::parse(block).is_none() {
            errors.push(Error::invalid(
                &path.child("ipBlock").child("cidr"),
                block,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ));
        }
        if selects {
            errors.push(Error::forbidden(
                path,
                "may not specify both ipBlock and another peer",
            ));
        }
    } else if !selects {
        errors.push(Error::required(path, "must specify a peer"));
    }
}

pub struct Ingresses;

impl Strategy for Ingresses {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "ingresses")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"loadBalancer": {}}));
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        let spec = at(object, &["spec"]);
        if items(spec, &["rules"]).is_empty() && !has(spec, &["defaultBackend"]) {
            errors.push(Error::invalid(
                &path,
                spec.get("rules").cloned().unwrap_or(json!([])),
                "either `defaultBackend` or `rules` must be specified",
            ));
        }
        if has(spec, &["defaultBackend"]) {
            backend(
                at(spec, &["defaultBackend"]),
                &path.child("defaultBackend"),
                &mut errors,
            );
        }
        for (index, rule) in items(spec, &["rules"]).iter().enumerate() {
            let path = path
                .child("rules")
                .index(index)
                .child("http")
                .child("paths");
            for (index, item) in items(rule, &["http", "paths"]).iter().enumerate() {
                let path = path.index(index);
                let kind = text(item, &["pathType"]);
                let valid = ["Exact", "ImplementationSpecific", "Prefix"];
                if kind.is_empty() {
                    errors.push(Error::required(
                        &path.child("pathType"),
                        "pathType must be specified",
                    ));
                } else {
                    one_of(kind, &valid, &path.child("pathType"), &mut errors);
                }
                let url = text(item, &["path"]);
                if matches!(kind, "Exact" | "Prefix") && !url.starts_with('/') {
                    errors.push(Error::invalid(
                        &path.child("path"),
                        url,
                        "must be an absolute path",
                    ));
                }
                backend(at(item, &["backend"]), &path.child("backend"), &mut errors);
            }
        }
        errors
    }
}

fn backend(backend: &Value, path: &Path, errors: &mut ErrorList) {
    let (service, resource) = (has(backend, &["service"]), has(backend, &["resource"]));
    if service && resource {
        errors.push(Error::invalid(
            path,
            "",
            "cannot set both resource and service backends",
        ));
    } else if service {
        let path = path.child("service");
        if text(backend, &["service", "name"]).is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        }
        let port = at(backend, &["service", "port"]);
        let (named, numbered) = (has(port, &["name"]), has(port, &["number"]));
        if named && numbered {
            errors.push(Error::invalid(
                &path,
                "",
                "cannot set both port name & port number",
            ));
        } else if !named && !numbered {
            errors.push(Error::required(&path, "port name or number is required"));
        }
    } else if !resource {
        errors.push(Error::required(
            path,
            "resource or service backend is required",
        ));
    }
}

pub struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "servicecidrs")
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("cidrs");
        let cidrs = items(object, &["spec", "cidrs"]);
        if cidrs.is_empty() {
            errors.push(Error::required(&path, "at least one CIDR required"));
        }
        if cidrs.len() > 2 {
            errors.push(Error::invalid(
                &path,
                json!(cidrs),
                "may only hold up to 2 values",
            ));
        }
        for (index, cidr) in cidrs.iter().enumerate() {
            let cidr = cidr.as_str().unwrap_or("");
            if Cidr::parse(cidr).is_none_or(|parsed| parsed.to_string() != cidr) {
                errors.push(Error::invalid(
                    &path.index(index),
                    cidr,
                    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                ));
            }
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if change.subresource.is_empty()
            && at(new, &["spec", "cidrs"]) != at(old, &["spec", "cidrs"])
        {
            errors.push(Error::invalid(
                &Path::new("spec").child("cidrs"),
                at(new, &["spec", "cidrs"]).clone(),
                "field is immutable",
            ));
        }
        errors
    }
}

pub struct IpAddresses;

impl Strategy for IpAddresses {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "ipaddresses")
    }

    /// The name is the address in its canonical form.
    fn name_rule(&self) -> super::object_meta::NameRule {
        |name, _| match name.parse::<IpAddr>() {
            Ok(address) if address.to_string() == name => Vec::new(),
            Ok(_) => vec!["must be a valid address in canonical form".to_owned()],
            Err(_) => {
                vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("parentRef");
        if !has(object, &["spec", "parentRef"]) {
            errors.push(Error::required(&path, ""));
            return errors;
        }
        for field in ["resource", "name"] {
            if text(object, &["spec", "parentRef", field]).is_empty() {
                errors.push(Error::required(&path.child(field), ""));
            }
        }
        errors
    }
}
