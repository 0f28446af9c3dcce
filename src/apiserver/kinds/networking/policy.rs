//! What a network policy may say (`ValidateNetworkPolicySpec`).

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList};

use super::super::check::Node;
use super::super::core::services::addresses::Cidr;
use super::super::pod_spec::affinity::label_selector;
use super::super::pod_spec::containers::port_or_name;
use super::super::tree::at;

const CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

pub fn policy(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    selector(&spec.at("podSelector"), errors);
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        let rules = spec.at(rules);
        for rule in rules.items() {
            let ports = rule.at("ports");
            for item in ports.items() {
                port(&item, errors);
            }
            let peers = rule.at(peers);
            for item in peers.items() {
                peer(&item, errors);
            }
        }
    }
    let types = spec.at("policyTypes");
    if types.list().len() > 2 {
        types.invalid(errors, "may not specify more than two policyTypes");
        return std::mem::take(errors);
    }
    for (index, kind) in types.items().enumerate() {
        kind.known(errors, &["Egress", "Ingress"]);
        if types.list()[..index].contains(kind.value) {
            kind.duplicate(errors);
        }
    }
    std::mem::take(errors)
}

fn selector(selector: &Node<'_, '_>, errors: &mut ErrorList) {
    label_selector(selector.value, &selector.path(), errors);
}

fn port(port: &Node<'_, '_>, errors: &mut ErrorList) {
    port.at("protocol")
        .known_if_set(errors, &["SCTP", "TCP", "UDP"]);
    let (number, end) = (port.at("port"), port.at("endPort"));
    if number.is_set() {
        port_or_name(number.value, &number.path(), errors);
    }
    if !end.is_set() {
        return;
    }
    if number.value.is_string() {
        end.invalid(errors, "may not be specified when `port` is non-numeric");
    } else if !number.is_set() {
        end.invalid(errors, "may not be specified when `port` is not specified");
    } else {
        if end.int() < number.int() {
            end.invalid(errors, "must be greater than or equal to `port`");
        }
        port_or_name(end.value, &end.path(), errors);
    }
}

fn peer(peer: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut count = 0;
    for field in ["podSelector", "namespaceSelector"] {
        let given = peer.at(field);
        count += usize::from(given.is_set());
        selector(&given, errors);
    }
    let block = peer.at("ipBlock");
    if block.is_set() {
        ip_block(&block, errors);
        if count > 0 {
            peer.forbidden(errors, "may not specify both ipBlock and another peer");
        }
    } else if count == 0 {
        peer.required(errors, "must specify a peer");
    }
}

fn ip_block(block: &Node<'_, '_>, errors: &mut ErrorList) {
    let cidr = block.at("cidr");
    if cidr.text().is_empty() {
        cidr.required(errors, "");
        return;
    }
    let Some(whole) = Cidr::parse(cidr.text()) else {
        cidr.invalid(errors, CIDR);
        return;
    };
    let except = block.at("except");
    for part in except.items() {
        match Cidr::parse(part.text()) {
            None => part.invalid(errors, CIDR),
            Some(inner) if !whole.strictly_covers(&inner) => errors.push(Error::invalid(
                &part.path(),
                part.text(),
                format!("must be a strict subset of `{}`", cidr.path()),
            )),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        let errors = policy(&json!({ "spec": spec }));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn peers_and_ports_are_whole() {
        check(
            json!({"ingress": [{"from": [{}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16", "10.0.0.0/8", "10.1.0.0/16"]}}],
                "ports": [{"port": 80, "endPort": 70}, {"port": "web", "endPort": 90}, {"endPort": 3}, {"protocol": "X"}]}],
                "policyTypes": ["Ingress", "Ingress"]}),
            &[
                "spec.ingress[0].ports[0].endPort: Invalid value: 70: must be greater than or equal to `port`",
                "spec.ingress[0].ports[1].endPort: Invalid value: 90: may not be specified when `port` is non-numeric",
                "spec.ingress[0].ports[2].endPort: Invalid value: 3: may not be specified when `port` is not specified",
                "spec.ingress[0].ports[3].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                "spec.ingress[0].from[0]: Required value: must specify a peer",
                "spec.ingress[0].from[1].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `spec.ingress[0].from[1].ipBlock.cidr`",
                "spec.ingress[0].from[1].ipBlock.except[1]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `spec.ingress[0].from[1].ipBlock.cidr`",
                "spec.policyTypes[1]: Duplicate value: \"Ingress\"",
            ],
        );
    }
}
