//! What a proxy is started with. Field names follow upstream's `KubeProxyConfiguration`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::model::Cidr;

/// How one node's proxy runs.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Name of the node, as in the endpoints' `nodeName`.
    pub node_name: String,
    /// Ranges of the cluster's pods (`--cluster-cidr`); traffic to cluster addresses from elsewhere is masqueraded.
    pub cluster_cidrs: Vec<Cidr>,
    /// Masquerade all traffic to cluster addresses (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Addresses that node ports listen on (`--nodeport-addresses`); empty is all.
    pub nodeport_addresses: Vec<Cidr>,
    /// Where `/healthz` and `/livez` are served (`--healthz-bind-address`).
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` and `/proxyMode` are served (`--metrics-bind-address`).
    pub metrics: Option<SocketAddr>,
    /// Address of the health check node ports.
    pub health_check_address: IpAddr,
    /// Shortest time between two syncs (`--nftables-min-sync-period`). The first change after a pause does not wait.
    pub min_sync_period: Duration,
}

impl ProxyConfig {
    /// Upstream's defaults for a node.
    pub fn for_node(name: impl Into<String>) -> Self {
        Self {
            node_name: name.into(),
            cluster_cidrs: Vec::new(),
            masquerade_all: false,
            nodeport_addresses: Vec::new(),
            healthz: Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10256))),
            metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10249))),
            health_check_address: Ipv4Addr::UNSPECIFIED.into(),
            min_sync_period: Duration::from_millis(200),
        }
    }
}
