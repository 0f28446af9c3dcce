//! The few fields of Services, EndpointSlices and Nodes that the proxy reads.
//!
//! Owns the slim typed views and the parsing of addresses. A k8s-openapi Service costs many times the
//! memory, and the proxy of every node holds every Service and EndpointSlice of the cluster.
//! **Invariant:** only parsed addresses and checked names leave this module, so nothing an API object
//! says can reach the text of an nftables script unchecked.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Deserialize;

/// Label that names an EndpointSlice's Service (`discovery.LabelServiceName`).
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label that names a node's zone (`v1.LabelTopologyZone`).
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// Seconds a client sticks to its endpoint unless the Service says otherwise
/// (`v1.DefaultClientIPServiceAffinitySeconds`).
pub const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// metadata, as far as the proxy cares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Object name.
    pub name: String,
    /// Object namespace; empty for nodes.
    pub namespace: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Set once deletion has begun.
    pub deletion_timestamp: Option<String>,
}

/// A v1 Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Object metadata.
    pub metadata: Meta,
    /// Desired state.
    pub spec: ServiceSpec,
    /// Load balancer state.
    pub status: ServiceStatus,
}

/// The part of `v1.ServiceSpec` that decides routing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// ClusterIP, NodePort, LoadBalancer or ExternalName.
    pub r#type: String,
    /// The first cluster address, or `None` for headless.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// All cluster addresses, one per family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// Addresses routed here by someone else.
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    /// Exposed ports.
    pub ports: Vec<ServicePort>,
    /// None or ClientIP.
    pub session_affinity: String,
    /// Time-out of ClientIP affinity.
    pub session_affinity_config: Option<AffinityConfig>,
    /// Cluster or Local, for traffic from outside.
    pub external_traffic_policy: String,
    /// Cluster or Local, for traffic to the cluster address.
    pub internal_traffic_policy: String,
    /// Who may reach the load balancer's addresses.
    pub load_balancer_source_ranges: Vec<String>,
    /// Port on which the node tells a load balancer whether it has local endpoints.
    pub health_check_node_port: u16,
}

/// `v1.SessionAffinityConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AffinityConfig {
    /// The only kind of affinity there is.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIpConfig,
}

/// `v1.ClientIPConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// Seconds since the last new connection after which a client is forgotten.
    pub timeout_seconds: Option<u32>,
}

/// `v1.ServicePort`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Port name, empty when the Service has one port.
    pub name: String,
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// Port on the Service's addresses.
    pub port: u16,
    /// Port on every node, 0 for none.
    pub node_port: u16,
}

/// `v1.ServiceStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// What the load balancer's controller wrote.
    pub load_balancer: LoadBalancer,
}

/// `v1.LoadBalancerStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    /// Addresses of the load balancer.
    pub ingress: Vec<Ingress>,
}

/// `v1.LoadBalancerIngress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    /// Address, if the balancer has one.
    pub ip: String,
    /// VIP (packets arrive with this destination) or Proxy (they do not).
    pub ip_mode: String,
}

/// A discovery.k8s.io/v1 EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Object metadata.
    pub metadata: Meta,
    /// IPv4, IPv6 or FQDN.
    pub address_type: String,
    /// The endpoints.
    #[serde(deserialize_with = "null_as_empty")]
    pub endpoints: Vec<SliceEndpoint>,
    /// Ports that all endpoints of the slice share.
    #[serde(deserialize_with = "null_as_empty")]
    pub ports: Vec<SlicePort>,
}

/// `discovery.Endpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// Addresses; consumers use the first.
    pub addresses: Vec<String>,
    /// Readiness.
    pub conditions: Conditions,
    /// Node the endpoint runs on.
    pub node_name: Option<String>,
    /// Topology hints.
    pub hints: Option<Hints>,
}

/// `discovery.EndpointConditions`; absent means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Absent counts as ready.
    pub ready: Option<bool>,
    /// Absent counts as `ready`.
    pub serving: Option<bool>,
    /// Absent counts as not terminating.
    pub terminating: Option<bool>,
}

/// `discovery.EndpointHints`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    /// Zones that should use the endpoint.
    pub for_zones: Vec<Named>,
    /// Nodes that should use the endpoint.
    pub for_nodes: Vec<Named>,
}

/// `discovery.ForZone` and `discovery.ForNode`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The zone or node.
    pub name: String,
}

/// `discovery.EndpointPort`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    /// Matches the Service port's name.
    pub name: Option<String>,
    /// Absent counts as TCP.
    pub protocol: Option<String>,
    /// Absent means all ports, which no proxy can serve.
    pub port: Option<u16>,
}

/// A v1 Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Object metadata.
    pub metadata: Meta,
    /// Desired state.
    pub spec: NodeSpec,
}

/// `v1.NodeSpec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Taints; one of them announces removal by the autoscaler.
    pub taints: Vec<Taint>,
    /// Ranges of the node's pods.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

/// `v1.Taint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Taint key.
    pub key: String,
}

/// An address family; each has its own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: &IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// nftables' keyword: both the table's family and the header's name.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// nftables' type of an address.
    pub fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
        }
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Reads the API's spelling; empty is TCP.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// nftables' spelling.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// A range of addresses, written canonically (host bits cleared).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    base: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The family of the range.
    pub fn family(&self) -> Family {
        Family::of(&self.base)
    }

    /// Whether `other` lies within this range.
    pub fn contains(&self, other: &Self) -> bool {
        self.family() == other.family()
            && self.prefix <= other.prefix
            && masked(other.base, self.prefix) == self.base
    }
}

/// The address with all but the first `prefix` bits cleared; `prefix` is at most the address's width.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((u32::from(a) & mask).into())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((u128::from(a) & mask).into())
        }
    }
}

/// The text is no address range.
#[derive(Debug, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct BadCidr(String);

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = || BadCidr(text.to_owned());
        let (address, prefix) = text.trim().split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if prefix > width {
            return Err(bad());
        }
        Ok(Self {
            base: masked(address, prefix),
            prefix,
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// Whether a name consists of what the API server lets namespaces, services and ports be named by.
pub fn is_plain_name(name: &str) -> bool {
    // 63 is a DNS label; nothing that goes into a chain's name may be longer, for nftables cuts at 255.
    name.len() <= 63
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
}

fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_are_written_canonically() {
        for (text, want) in [
            ("10.244.3.7/16", Some("10.244.0.0/16")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("10.0.0.1/32", Some("10.0.0.1/32")),
            ("fd00::1/64", Some("fd00::/64")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("10.0.0.0", None),
            ("x/8", None),
        ] {
            let got = text.parse::<Cidr>().ok().map(|c| c.to_string());
            assert_eq!(got.as_deref(), want, "{text}");
        }
    }

    #[test]
    fn an_endpointslice_with_nulls_is_read() {
        let slice: EndpointSlice = serde_json::from_str(
            r#"{"metadata":{"name":"a","namespace":"b","uid":"x"},"addressType":"IPv4","endpoints":null,"ports":null}"#,
        )
        .unwrap();
        assert!(slice.endpoints.is_empty() && slice.ports.is_empty());
    }

    #[test]
    fn names_that_could_leave_a_chain_name_are_not_plain() {
        assert!(is_plain_name("nginx-demo"));
        assert!(is_plain_name(""));
        for bad in ["a b", "a\"", "a;", "a\n", "A", "a/b", "a{"] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }
}
