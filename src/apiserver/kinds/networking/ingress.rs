//! What an ingress and its class may say (`pkg/apis/networking/validation`).

use std::net::IpAddr;

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, meta, name};

use super::super::check::Node;
use super::super::tree::at;

const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
/// Sequences no path may hold, and endings.
const BAD_SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const BAD_ENDINGS: [&str; 2] = ["/..", "/."];
/// Longest name of a controller.
const MAX_CONTROLLER: usize = 250;
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// `ValidateIngressCreate`.
pub fn create(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if meta::annotation(object, CLASS_ANNOTATION).is_some()
        && !at(object, &["spec", "ingressClassName"]).is_null()
    {
        let annotations = Node::root(at(object, &["metadata", "annotations"]), "annotations");
        let class = annotations.at(CLASS_ANNOTATION);
        errors.push(Error::invalid(
            &annotations.path().child(CLASS_ANNOTATION),
            class.text(),
            "can not be set when the class field is also set",
        ));
    }
    errors.extend(ingress(object));
    errors
}

/// `validateIngress`.
pub fn ingress(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let (rules, fallback) = (spec.at("rules"), spec.at("defaultBackend"));
    if rules.list().is_empty() && !fallback.is_set() {
        spec.invalid(
            errors,
            "either `defaultBackend` or `rules` must be specified",
        );
    }
    if fallback.is_set() {
        backend(&fallback, errors);
    }
    for rule in rules.items() {
        let host = rule.at("host");
        host_name(&host, true, errors);
        let http = rule.at("http");
        if !http.is_set() {
            continue;
        }
        let paths = http.at("paths");
        if paths.list().is_empty() {
            paths.required(errors, "");
        }
        for path in paths.items() {
            http_path(&path, errors);
        }
    }
    let tls = spec.at("tls");
    for item in tls.items() {
        let hosts = item.at("hosts");
        for host in hosts.items() {
            host_name(&host, false, errors);
        }
        item.at("secretName")
            .syntax_if_set(errors, name::dns_1123_subdomain);
    }
    let class = spec.at("ingressClassName");
    if class.is_set() {
        class.syntax(errors, name::dns_1123_subdomain);
    }
    std::mem::take(errors)
}

/// A host: no address, and a wildcard only as its first label. Rules' hosts may not be addresses.
fn host_name(host: &Node<'_, '_>, of_rule: bool, errors: &mut ErrorList) {
    let text = host.text();
    if text.is_empty() {
        return;
    }
    if of_rule && text.parse::<IpAddr>().is_ok() {
        host.invalid(errors, "must be a DNS name, not an IP address");
    }
    match text.contains('*') {
        true => host.syntax(errors, wildcard_name),
        false => host.syntax(errors, name::dns_1123_subdomain),
    }
}

/// `IsWildcardDNS1123Subdomain`.
fn wildcard_name(text: &str) -> Vec<String> {
    let good = text
        .strip_prefix("*.")
        .is_some_and(|rest| name::dns_1123_subdomain(rest).is_empty());
    if good {
        return Vec::new();
    }
    vec!["a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".to_owned()]
}

fn http_path(path: &Node<'_, '_>, errors: &mut ErrorList) {
    let (kind, url) = (path.at("pathType"), path.at("path"));
    if !kind.is_set() {
        kind.required(errors, "pathType must be specified");
    } else {
        match kind.text() {
            "Exact" | "Prefix" => {
                if !url.text().starts_with('/') {
                    url.invalid_as(errors, url.text(), "must be an absolute path");
                }
                for bad in BAD_SEQUENCES {
                    if url.text().contains(bad) {
                        url.invalid(errors, format!("must not contain '{bad}'"));
                    }
                }
                for bad in BAD_ENDINGS {
                    if url.text().ends_with(bad) {
                        url.invalid(errors, format!("cannot end with '{bad}'"));
                    }
                }
            }
            "ImplementationSpecific" => {
                if !url.text().is_empty() && !url.text().starts_with('/') {
                    url.invalid(errors, "must be an absolute path");
                }
            }
            _ => kind.not_supported(errors, &PATH_TYPES),
        }
    }
    backend(&path.at("backend"), errors);
}

/// `validateIngressBackend`.
fn backend(backend: &Node<'_, '_>, errors: &mut ErrorList) {
    let (service, resource) = (backend.at("service"), backend.at("resource"));
    match (service.is_set(), resource.is_set()) {
        (true, true) => {
            backend.invalid_as(errors, "", "cannot set both resource and service backends");
        }
        (false, true) => {
            resource.at("kind").present(errors);
            resource.at("name").present(errors);
        }
        (true, false) => {
            let called = service.at("name");
            called.named(errors, name::dns_1035_label);
            let port = service.at("port");
            let (label, number) = (port.at("name"), port.at("number"));
            let numbered = number.int().unwrap_or(0) != 0;
            match (label.text().is_empty(), numbered) {
                (false, true) => {
                    service.invalid_as(errors, "", "cannot set both port name & port number");
                }
                (false, false) => {
                    for why in name::port_name(label.text()) {
                        label.invalid(errors, why);
                    }
                }
                (true, true) => {
                    for why in name::port_number(number.int().unwrap_or(0)) {
                        number.invalid(errors, why);
                    }
                }
                (true, false) => service.required(errors, "port name or number is required"),
            }
        }
        (false, false) => backend.invalid_as(errors, "", "resource or service backend is required"),
    }
}

/// `ValidateIngressStatusUpdate`.
pub fn status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let balancer = Node::root(
        at(object, &["status", "loadBalancer"]),
        "status.loadBalancer",
    );
    let ingress = balancer.at("ingress");
    for entry in ingress.items() {
        let (ip, host) = (entry.at("ip"), entry.at("hostname"));
        ip.syntax_if_set(&mut errors, name::ip_address);
        if !host.text().is_empty() {
            host.syntax(&mut errors, name::dns_1123_subdomain);
            if host.text().parse::<IpAddr>().is_ok() {
                host.invalid(&mut errors, "must be a DNS name, not an IP address");
            }
        }
    }
    errors
}

/// `ValidateIngressClass`.
pub fn ingress_class(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let controller = spec.at("controller");
    if controller.text().len() > MAX_CONTROLLER {
        errors.push(Error::too_long(&controller.path(), MAX_CONTROLLER));
    }
    domain_prefixed(&controller, errors);
    let parameters = spec.at("parameters");
    if !parameters.is_set() {
        return std::mem::take(errors);
    }
    for field in ["kind", "name"] {
        let called = parameters.at(field);
        if called.present_or(errors, &format!("{field} is required")) {
            for why in name::path_segment(called.text()) {
                called.invalid(errors, why);
            }
        }
    }
    parameters
        .at("apiGroup")
        .syntax_if_set(errors, name::dns_1123_subdomain);
    let (scope, namespace) = (parameters.at("scope"), parameters.at("namespace"));
    match scope.text() {
        "" => scope.required(errors, ""),
        "Namespace" if !namespace.is_set() => {
            namespace.required(errors, "`parameters.scope` is set to 'Namespace'")
        }
        "Cluster" if namespace.is_set() => {
            namespace.forbidden(errors, "`parameters.scope` is set to 'Cluster'")
        }
        "Namespace" | "Cluster" => {}
        _ => scope.not_supported(errors, &["Cluster", "Namespace"]),
    }
    std::mem::take(errors)
}

/// `IsDomainPrefixedPath`.
fn domain_prefixed(path: &Node<'_, '_>, errors: &mut ErrorList) {
    if !path.present(errors) {
        return;
    }
    match path.text().split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            for why in name::dns_1123_subdomain(domain) {
                path.invalid_as(errors, domain, why);
            }
        }
        _ => path.invalid(
            errors,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn an_ingress_has_hosts_paths_and_backends_that_can_be() {
        check(
            ingress(
                &json!({"spec": {"rules": [{"host": "10.0.0.1", "http": {"paths": [
                {"path": "x", "pathType": "Prefix", "backend": {"service": {"name": "a", "port": {"number": 80}}}},
                {"path": "/a//b", "pathType": "Exact", "backend": {}},
                {"backend": {"service": {"name": "a", "port": {}}}}]}}]}}),
            ),
            &[
                "spec.rules[0].host: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address",
                "spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path",
                "spec.rules[0].http.paths[1].path: Invalid value: \"/a//b\": must not contain '//'",
                "spec.rules[0].http.paths[1].backend: Invalid value: \"\": resource or service backend is required",
                "spec.rules[0].http.paths[2].pathType: Required value: pathType must be specified",
                "spec.rules[0].http.paths[2].backend.service: Required value: port name or number is required",
            ],
        );
        let wild = json!({"spec": {"rules": [{"host": "*.example.com"}, {"host": "a.*.com"}]}});
        assert_eq!(ingress(&wild).len(), 1);
    }

    #[test]
    fn classes_name_their_controller_by_domain() {
        check(
            ingress_class(
                &json!({"spec": {"controller": "x", "parameters": {"kind": "K", "name": "n", "scope": "Namespace"}}}),
            ),
            &[
                "spec.controller: Invalid value: \"x\": must be a domain-prefixed path (such as \"acme.io/foo\")",
                "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'",
            ],
        );
    }
}
