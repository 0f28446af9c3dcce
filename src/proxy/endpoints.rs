//! Which endpoints of a Service port take traffic on this node.
//!
//! Pure. Follows upstream's `CategorizeEndpoints`: ready ones, narrowed by topology hints; if there is
//! no ready one, those that terminate but still serve (KEP-1669, ProxyTerminatingEndpoints).

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::{EndpointSlice, Family, Protocol, SliceEndpoint};

/// Where a connection can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address of the endpoint.
    pub ip: IpAddr,
    /// Port of the endpoint.
    pub port: u16,
}

/// The node the rules are made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Name of the node, compared with the endpoints' `nodeName`.
    pub name: String,
    /// Zone of the node, compared with the endpoints' hints.
    pub zone: Option<String>,
}

/// The endpoints of one Service port in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Take traffic under the policy Cluster.
    pub cluster: BTreeSet<Endpoint>,
    /// Take traffic under the policy Local.
    pub local: BTreeSet<Endpoint>,
    /// Addresses on this node among both.
    pub on_node: BTreeSet<IpAddr>,
}

struct Candidate<'a> {
    endpoint: Endpoint,
    source: &'a SliceEndpoint,
    ready: bool,
    draining: bool,
    local: bool,
}

/// Picks the endpoints for `port_name` out of a Service's slices.
pub fn choose(
    slices: &[&EndpointSlice],
    family: Family,
    port_name: &str,
    protocol: Protocol,
    node: &NodeInfo,
) -> Choice {
    let candidates = candidates(slices, family, port_name, protocol, node);
    let ready: Vec<_> = candidates.iter().filter(|c| c.ready).collect();
    let mut choice = Choice::default();
    let hinted = hinted(&ready, node);
    choice.cluster = hinted.iter().map(|c| c.endpoint).collect();
    if choice.cluster.is_empty() {
        choice.cluster = candidates
            .iter()
            .filter(|c| c.draining)
            .map(|c| c.endpoint)
            .collect();
    }
    choice.local = ready
        .iter()
        .filter(|c| c.local)
        .map(|c| c.endpoint)
        .collect();
    if choice.local.is_empty() {
        choice.local = candidates
            .iter()
            .filter(|c| c.draining && c.local)
            .map(|c| c.endpoint)
            .collect();
    }
    choice.on_node = candidates
        .iter()
        .filter(|c| {
            c.local && (choice.cluster.contains(&c.endpoint) || choice.local.contains(&c.endpoint))
        })
        .map(|c| c.endpoint.ip)
        .collect();
    choice
}

fn candidates<'a>(
    slices: &[&'a EndpointSlice],
    family: Family,
    port_name: &str,
    protocol: Protocol,
    node: &NodeInfo,
) -> Vec<Candidate<'a>> {
    let address_type = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let mut found = Vec::new();
    for slice in slices.iter().filter(|s| s.address_type == address_type) {
        let port = slice.ports.iter().find(|p| {
            p.name.as_deref().unwrap_or("") == port_name
                && Protocol::parse(p.protocol.as_deref().unwrap_or("")) == Some(protocol)
        });
        let Some(port) = port.and_then(|p| p.port).filter(|p| *p != 0) else {
            continue;
        };
        for source in &slice.endpoints {
            let Some(ip) = source
                .addresses
                .first()
                .and_then(|a| a.parse::<IpAddr>().ok())
            else {
                continue;
            };
            if Family::of(&ip) != family {
                continue;
            }
            let ready = source.conditions.ready.unwrap_or(true);
            let serving = source.conditions.serving.unwrap_or(ready);
            let draining = serving && source.conditions.terminating.unwrap_or(false);
            let local = source.node_name.as_deref() == Some(node.name.as_str());
            found.push(Candidate {
                endpoint: Endpoint { ip, port },
                source,
                ready,
                draining,
                local,
            });
        }
    }
    found
}

/// Narrows the ready endpoints by hints: those for this node, else those for its zone, else all. Hints are
/// used only when every ready endpoint has them, so that no endpoint is starved while slices are being updated.
fn hinted<'a, 'b>(ready: &[&'b Candidate<'a>], node: &NodeInfo) -> Vec<&'b Candidate<'a>> {
    let by = |wanted: &str, names: fn(&SliceEndpoint) -> Option<&[crate::model::Named]>| {
        let all_hinted = ready
            .iter()
            .all(|c| names(c.source).is_some_and(|n| !n.is_empty()));
        if !all_hinted {
            return Vec::new();
        }
        let mine =
            |c: &&&Candidate| names(c.source).is_some_and(|n| n.iter().any(|n| n.name == wanted));
        ready.iter().filter(mine).copied().collect::<Vec<_>>()
    };
    let for_node = by(&node.name, |e| {
        e.hints.as_ref().map(|h| h.for_nodes.as_slice())
    });
    if !for_node.is_empty() {
        return for_node;
    }
    if let Some(zone) = node.zone.as_deref() {
        let for_zone = by(zone, |e| e.hints.as_ref().map(|h| h.for_zones.as_slice()));
        if !for_zone.is_empty() {
            return for_zone;
        }
    }
    ready.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(endpoints: Value, cluster: &[&str], local: &[&str]) {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "addressType": "IPv4", "ports": [{"name": "http", "port": 80}], "endpoints": endpoints,
        }))
        .unwrap();
        let node = NodeInfo {
            name: "n1".into(),
            zone: Some("z1".into()),
        };
        let choice = choose(&[&slice], Family::V4, "http", Protocol::Tcp, &node);
        let text =
            |set: &BTreeSet<Endpoint>| set.iter().map(|e| e.ip.to_string()).collect::<Vec<_>>();
        assert_eq!(text(&choice.cluster), cluster, "cluster");
        assert_eq!(text(&choice.local), local, "local");
    }

    #[test]
    fn only_ready_endpoints_take_traffic() {
        check(
            json!([
                {"addresses": ["10.0.0.1"], "nodeName": "n1"},
                {"addresses": ["10.0.0.2"], "nodeName": "n1", "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"], "nodeName": "n2", "conditions": {"ready": true}},
            ]),
            &["10.0.0.1", "10.0.0.3"],
            &["10.0.0.1"],
        );
    }

    #[test]
    fn terminating_endpoints_serve_only_when_no_ready_one_is_left() {
        let draining = json!({"ready": false, "serving": true, "terminating": true});
        check(
            json!([{"addresses": ["10.0.0.1"], "nodeName": "n1", "conditions": draining},
                   {"addresses": ["10.0.0.2"], "nodeName": "n2"}]),
            &["10.0.0.2"],
            &["10.0.0.1"],
        );
        check(
            json!([{"addresses": ["10.0.0.1"], "nodeName": "n2", "conditions": draining},
                   {"addresses": ["10.0.0.2"], "nodeName": "n2", "conditions": {"ready": false}}]),
            &["10.0.0.1"],
            &[],
        );
    }

    #[test]
    fn hints_narrow_by_node_then_by_zone_and_only_if_all_have_them() {
        let zones = |z: &str| json!({"forZones": [{"name": z}]});
        check(
            json!([{"addresses": ["10.0.0.1"], "hints": zones("z1")}, {"addresses": ["10.0.0.2"], "hints": zones("z2")}]),
            &["10.0.0.1"],
            &[],
        );
        check(
            json!([{"addresses": ["10.0.0.1"], "hints": zones("z1")}, {"addresses": ["10.0.0.2"]}]),
            &["10.0.0.1", "10.0.0.2"],
            &[],
        );
        check(
            json!([{"addresses": ["10.0.0.1"], "hints": zones("z3")}, {"addresses": ["10.0.0.2"], "hints": zones("z2")}]),
            &["10.0.0.1", "10.0.0.2"],
            &[],
        );
        let both = |n: &str| json!({"forZones": [{"name": "z1"}], "forNodes": [{"name": n}]});
        check(
            json!([{"addresses": ["10.0.0.1"], "hints": both("n1")}, {"addresses": ["10.0.0.2"], "hints": both("n2")}]),
            &["10.0.0.1"],
            &[],
        );
    }

    #[test]
    fn ports_are_matched_by_name_and_protocol() {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "all", "protocol": "TCP"}],
        }))
        .unwrap();
        let node = NodeInfo::default();
        assert_eq!(
            choose(&[&slice], Family::V4, "dns", Protocol::Udp, &node)
                .cluster
                .len(),
            1
        );
        assert!(
            choose(&[&slice], Family::V4, "dns", Protocol::Tcp, &node)
                .cluster
                .is_empty()
        );
        assert!(
            choose(&[&slice], Family::V4, "all", Protocol::Tcp, &node)
                .cluster
                .is_empty()
        );
        assert!(
            choose(&[&slice], Family::V6, "dns", Protocol::Udp, &node)
                .cluster
                .is_empty()
        );
    }
}
