//! What a DNS server is started with.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How the DNS server runs.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// Addresses to serve on, UDP and TCP each.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain, usually `cluster.local`.
    pub domain: String,
    /// File whose `nameserver` lines say who knows all other names. Without it, or when it names nobody, other
    /// names get SERVFAIL.
    pub upstream_resolv_conf: Option<PathBuf>,
    /// Seconds that answers about the cluster may be cached.
    pub ttl: u32,
}

impl DnsConfig {
    /// The usual domain and a TTL of 5 s (CoreDNS' default) on these addresses.
    pub fn on(listen: Vec<SocketAddr>) -> Self {
        Self {
            listen,
            domain: "cluster.local".into(),
            upstream_resolv_conf: None,
            ttl: 5,
        }
    }
}
