//! What a service may be (`ValidateService`, `ValidateServiceUpdate`).

use std::net::IpAddr;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};

use super::super::super::check::Node;
use super::super::super::object_meta::validate_labels;
use super::super::super::tree::{at, has, int, items, text};
use super::addresses::Cidr;
use super::families;
use super::{cluster_ips, is_headless, needs_health_port, type_of};
use crate::registry::strategy::Change;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Longest session affinity (seconds).
const MAX_AFFINITY: i64 = 86_400;

pub fn service(_change: &Change<'_>, service: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Path::new("spec");
    let kind = type_of(service);
    let ports = items(service, &["spec", "ports"]);
    if ports.is_empty() && kind != "ExternalName" && !is_headless(service) {
        errors.push(Error::required(&spec.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" if is_headless(service) => errors.push(Error::invalid(
            &spec.child("clusterIPs").index(0),
            "None",
            "may not be set to 'None' for LoadBalancer services",
        )),
        "NodePort" if is_headless(service) => errors.push(Error::invalid(
            &spec.child("clusterIPs").index(0),
            "None",
            "may not be set to 'None' for NodePort services",
        )),
        "ExternalName" => external_name(service, &spec, &mut errors),
        _ => {}
    }
    port_list(service, &spec.child("ports"), &mut errors);
    errors.extend(validate_labels(
        at(service, &["spec", "selector"]),
        &spec.child("selector"),
    ));
    affinity(service, &spec, &mut errors);
    addresses(service, &spec, &mut errors);
    if !TYPES.contains(&text(service, &["spec", "type"])) {
        errors.push(Error::not_supported(
            &spec.child("type"),
            text(service, &["spec", "type"]),
            &TYPES,
        ));
    }
    traffic(service, &spec, &mut errors);
    for (at, address) in items(service, &["spec", "externalIPs"]).iter().enumerate() {
        let address = address.as_str().unwrap_or("");
        let path = spec.child("externalIPs").index(at);
        let wrong = name::ip_address(address);
        if wrong.is_empty() {
            special_address(address, &path, &mut errors);
        }
        errors.push_invalid(&path, address, wrong);
    }
    load_balancer(service, &mut errors);
    errors
}

/// Addresses that are no host's (`ValidateNonSpecialIP`).
pub fn special_address(text: &str, path: &Path, errors: &mut ErrorList) {
    let Ok(address) = text.parse::<IpAddr>() else {
        return;
    };
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let local_multicast = match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] == 0xff02,
    };
    let why = if address.is_unspecified() {
        format!("may not be unspecified ({text})")
    } else if address.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
    } else if link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()
    } else if local_multicast {
        "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()
    } else {
        return;
    };
    errors.push(Error::invalid(path, text, why));
}

/// What only load balancers have, and how traffic is spread.
fn load_balancer(service: &Value, errors: &mut ErrorList) {
    let spec = Node::root(at(service, &["spec"]), "spec");
    let ranges = spec.at("loadBalancerSourceRanges");
    if ranges.is_set() {
        if type_of(service) != "LoadBalancer" {
            ranges.forbidden(errors, "may only be used when `type` is 'LoadBalancer'");
        }
        for range in ranges.items() {
            if Cidr::parse(range.text().trim()).is_none() {
                range.invalid(
                    errors,
                    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                );
            }
        }
    }
    if type_of(service) == "LoadBalancer" && !spec.at("allocateLoadBalancerNodePorts").is_set() {
        spec.at("allocateLoadBalancerNodePorts")
            .required(errors, "");
    }
    let class = spec.at("loadBalancerClass");
    if class.is_set() && type_of(service) == "LoadBalancer" {
        class.syntax(errors, name::qualified_name);
    }
    spec.at("trafficDistribution")
        .known_if_set(errors, &["PreferClose", "PreferSameNode", "PreferSameZone"]);
    let ports = spec.at("ports");
    for port in ports.items() {
        let protocol = port.at("appProtocol");
        if protocol.is_set() {
            protocol.syntax(errors, name::qualified_name);
        }
    }
}

/// What the author of a service is told.
pub fn warnings(service: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    if is_headless(service) {
        if !text(service, &["spec", "loadBalancerIP"]).is_empty() {
            texts.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if !items(service, &["spec", "externalIPs"]).is_empty() {
            texts.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if text(service, &["spec", "sessionAffinity"]) != "None" {
            texts.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    if type_of(service) == "ExternalName" && !items(service, &["spec", "externalIPs"]).is_empty() {
        texts.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if text(service, &["spec", "trafficDistribution"]) == "PreferClose" {
        texts.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\" instead"
                .to_owned(),
        );
    }
    texts
}

fn external_name(service: &Value, spec: &Path, errors: &mut ErrorList) {
    if !cluster_ips(service).is_empty() {
        errors.push(Error::forbidden(
            &spec.child("clusterIPs"),
            "may not be set for ExternalName services",
        ));
    }
    let target = text(service, &["spec", "externalName"]);
    let bare = target.strip_suffix('.').unwrap_or(target);
    if bare.is_empty() {
        errors.push(Error::required(&spec.child("externalName"), ""));
    } else {
        errors.push_invalid(
            &spec.child("externalName"),
            target,
            name::dns_1123_subdomain(bare),
        );
    }
}

fn port_list(service: &Value, path: &Path, errors: &mut ErrorList) {
    let ports = items(service, &["spec", "ports"]);
    let mut names: Vec<&str> = Vec::new();
    let mut numbers: Vec<(&str, i64)> = Vec::new();
    let mut node_ports: Vec<(&str, i64)> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let called = text(port, &["name"]);
        if called.is_empty() {
            if ports.len() > 1 {
                errors.push(Error::required(&path.child("name"), ""));
            }
        } else {
            errors.push_invalid(&path.child("name"), called, name::dns_1123_label(called));
            if names.contains(&called) {
                errors.push(Error::duplicate(&path.child("name"), called));
            }
            names.push(called);
        }
        let number = int(port, &["port"]).unwrap_or(0);
        for why in name::port_number(number) {
            errors.push(Error::invalid(&path.child("port"), number, why));
        }
        let protocol = text(port, &["protocol"]);
        if protocol.is_empty() {
            errors.push(Error::required(&path.child("protocol"), ""));
        } else if !PROTOCOLS.contains(&protocol) {
            errors.push(Error::not_supported(
                &path.child("protocol"),
                protocol,
                &PROTOCOLS,
            ));
        }
        target_port(at(port, &["targetPort"]), &path, errors);
        if numbers.contains(&(protocol, number)) {
            let value = serde_json::json!({"protocol": protocol, "port": number});
            errors.push(Error::duplicate(&path, value));
        }
        numbers.push((protocol, number));
        let node_port = int(port, &["nodePort"]).unwrap_or(0);
        if node_port == 0 {
            continue;
        }
        if !matches!(type_of(service), "NodePort" | "LoadBalancer") {
            errors.push(Error::forbidden(
                &path.child("nodePort"),
                format!("may not be used when `type` is '{}'", type_of(service)),
            ));
        }
        if node_ports.contains(&(protocol, node_port)) {
            errors.push(Error::duplicate(&path.child("nodePort"), node_port));
        }
        node_ports.push((protocol, node_port));
    }
}

fn target_port(target: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("targetPort");
    match target {
        Value::String(text) => errors.push_invalid(&path, text, name::port_name(text)),
        target => {
            let value = target.as_i64().unwrap_or(0);
            for why in name::port_number(value) {
                errors.push(Error::invalid(&path, value, why));
            }
        }
    }
}

fn affinity(service: &Value, spec: &Path, errors: &mut ErrorList) {
    let affinity = text(service, &["spec", "sessionAffinity"]);
    let seconds = int(
        service,
        &[
            "spec",
            "sessionAffinityConfig",
            "clientIP",
            "timeoutSeconds",
        ],
    );
    match affinity {
        "" => errors.push(Error::required(&spec.child("sessionAffinity"), "")),
        "ClientIP" => {
            let seconds = seconds.unwrap_or(0);
            if !(1..=MAX_AFFINITY).contains(&seconds) {
                errors.push(Error::invalid(
                    &spec.child("sessionAffinityConfig.clientIP.timeoutSeconds"),
                    seconds,
                    format!("must be greater than 0 and less than {MAX_AFFINITY}"),
                ));
            }
        }
        "None" => {
            if has(service, &["spec", "sessionAffinityConfig"]) {
                errors.push(Error::forbidden(
                    &spec.child("sessionAffinityConfig"),
                    "must not be set when session affinity is None",
                ));
            }
        }
        other => errors.push(Error::not_supported(
            &spec.child("sessionAffinity"),
            other,
            &["ClientIP", "None"],
        )),
    }
}

fn addresses(service: &Value, spec: &Path, errors: &mut ErrorList) {
    let list = cluster_ips(service);
    let path = spec.child("clusterIPs");
    let single = text(service, &["spec", "clusterIP"]);
    if single.is_empty() && !list.is_empty() {
        errors.push(Error::invalid(
            &path,
            &list,
            "must be empty when `clusterIP` is not specified",
        ));
    } else if let Some(first) = list.first()
        && *first != single
    {
        errors.push(Error::invalid(
            &path,
            at(service, &["spec", "clusterIPs"]).clone(),
            "first value must match `clusterIP`",
        ));
    }
    if list.len() > 2 {
        errors.push(Error::invalid(
            &path,
            at(service, &["spec", "clusterIPs"]).clone(),
            "may only hold up to 2 values",
        ));
    }
    for (at, address) in list.iter().enumerate() {
        if *address == "None" && at == 0 {
            if list.len() > 1 {
                let why = "'None' must be the first and only value";
                errors.push(Error::invalid(&path, &list, why));
            }
        } else if address.parse::<IpAddr>().is_err() {
            errors.push_invalid(&path.index(at), address, name::ip_address(address));
        }
    }
    let parsed: Option<Vec<IpAddr>> = list.iter().map(|ip| ip.parse().ok()).collect();
    if let Some(parsed) = parsed.as_deref() {
        address_families(service, &list, parsed, &path, errors);
    }
    let policy = text(service, &["spec", "ipFamilyPolicy"]);
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if !policy.is_empty() && !policies.contains(&policy) {
        errors.push(Error::not_supported(
            &spec.child("ipFamilyPolicy"),
            policy,
            &policies,
        ));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (at, family) in items(service, &["spec", "ipFamilies"]).iter().enumerate() {
        let family = family.as_str().unwrap_or("");
        let path = spec.child("ipFamilies").index(at);
        if !matches!(family, "IPv4" | "IPv6") {
            errors.push(Error::not_supported(&path, family, &["IPv4", "IPv6"]));
        } else if seen.contains(&family) {
            errors.push(Error::duplicate(&path, family));
        }
        seen.push(family);
    }
}

/// No two addresses of one family, each of the family that stands where it does.
fn address_families(
    service: &Value,
    list: &[&str],
    parsed: &[IpAddr],
    path: &Path,
    errors: &mut ErrorList,
) {
    if let [first, second] = parsed
        && first.is_ipv6() == second.is_ipv6()
    {
        let why = "may specify no more than one IP for each IP family";
        errors.push(Error::invalid(path, list, why));
    }
    let families = items(service, &["spec", "ipFamilies"]);
    for (index, (ip, family)) in parsed.iter().zip(families).enumerate() {
        let is = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
        let wanted = family.as_str().unwrap_or(is);
        if wanted != is {
            errors.push(Error::invalid(
                &path.index(index),
                list[index],
                format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`"),
            ));
        }
    }
}

fn traffic(service: &Value, spec: &Path, errors: &mut ErrorList) {
    let external = text(service, &["spec", "externalTrafficPolicy"]);
    let path = spec.child("externalTrafficPolicy");
    let is_external = matches!(type_of(service), "NodePort" | "LoadBalancer")
        || (type_of(service) == "ClusterIP"
            && !items(service, &["spec", "externalIPs"]).is_empty());
    if !is_external && !external.is_empty() {
        errors.push(Error::invalid(
            &path,
            external,
            "may only be set for externally-accessible services",
        ));
    } else if is_external && external.is_empty() {
        errors.push(Error::required(&path, ""));
    } else if is_external && !matches!(external, "Cluster" | "Local") {
        errors.push(Error::not_supported(&path, external, &["Cluster", "Local"]));
    }
    let health = int(service, &["spec", "healthCheckNodePort"]).unwrap_or(0);
    if health != 0 && !needs_health_port(service) {
        errors.push(Error::invalid(
            &spec.child("healthCheckNodePort"),
            health,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ));
    }
    let internal = at(service, &["spec", "internalTrafficPolicy"]);
    let path = spec.child("internalTrafficPolicy");
    match internal.as_str() {
        None if matches!(type_of(service), "ClusterIP" | "NodePort" | "LoadBalancer") => {
            errors.push(Error::required(&path, ""));
        }
        None | Some("Cluster" | "Local") => {}
        Some(other) => errors.push(Error::not_supported(&path, other, &["Cluster", "Local"])),
    }
    if has(service, &["spec", "allocateLoadBalancerNodePorts"])
        && type_of(service) != "LoadBalancer"
    {
        errors.push(Error::forbidden(
            &spec.child("allocateLoadBalancerNodePorts"),
            "may only be used when `type` is 'LoadBalancer'",
        ));
    }
    if has(service, &["spec", "loadBalancerClass"]) && type_of(service) != "LoadBalancer" {
        errors.push(Error::forbidden(
            &spec.child("loadBalancerClass"),
            "may only be used when `type` is 'LoadBalancer'",
        ));
    }
}

/// What an update must not change: the first address, once given.
pub fn update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if type_of(new) == "ExternalName" || type_of(old) == "ExternalName" {
        return errors;
    }
    families::unchanged(new, old, &mut errors);
    let health = &["spec", "healthCheckNodePort"];
    if needs_health_port(old) && needs_health_port(new) && at(new, health) != at(old, health) {
        errors.push(Error::forbidden(
            &Path::new("spec").child("healthCheckNodePort"),
            "field is immutable",
        ));
    }
    let class = &["spec", "loadBalancerClass"];
    if type_of(old) == "LoadBalancer"
        && type_of(new) == "LoadBalancer"
        && at(new, class) != at(old, class)
    {
        errors.push(Error::invalid(
            &Path::new("spec").child("loadBalancerClass"),
            at(new, class),
            "may not change once set",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_port_for_health_checks_stays() {
        let service = |port: i64| {
            serde_json::json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": port}})
        };
        assert!(update(&service(1), &service(1)).is_empty());
        assert_eq!(
            update(&service(2), &service(1)).aggregate(),
            "spec.healthCheckNodePort: Forbidden: field is immutable"
        );
    }

    #[test]
    fn addresses_that_are_no_hosts_are_refused() {
        for (address, fine) in [
            ("10.0.0.1", true),
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            ("169.254.1.1", false),
            ("224.0.0.1", false),
            ("::1", false),
            ("2001:db8::1", true),
        ] {
            let mut errors = ErrorList::new();
            special_address(address, &Path::new("ip"), &mut errors);
            assert_eq!(errors.is_empty(), fine, "{address}");
        }
    }

    #[test]
    fn only_load_balancers_have_sources() {
        let mut errors = ErrorList::new();
        let service = json!({"spec": {"type": "ClusterIP", "loadBalancerSourceRanges": ["x"], "trafficDistribution": "Far",
            "ports": [{"appProtocol": "!"}]}});
        load_balancer(&service, &mut errors);
        let texts: Vec<String> = errors
            .iter()
            .map(|error| error.to_string().chars().take(60).collect())
            .collect();
        assert_eq!(
            texts,
            [
                "spec.loadBalancerSourceRanges: Forbidden: may only be used w",
                "spec.loadBalancerSourceRanges[0]: Invalid value: \"x\": must b",
                "spec.trafficDistribution: Unsupported value: \"Far\": supporte",
                "spec.ports[0].appProtocol: Invalid value: \"!\": name part mus",
            ]
        );
    }
}
