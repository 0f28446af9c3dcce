//! The cluster's DNS server: names for Services and pods, everything else from the node's resolvers.
//!
//! ```text
//! UDP ┐                            ┌ zone ── cluster (informers: Services, EndpointSlices, Namespaces)
//! TCP ┴ server ── wire ── resolver ┤
//!                                  └ forward ── cache ── upstream resolvers
//! ```
//! Implements the Kubernetes DNS specification 1.1.0 and, where that is silent, what CoreDNS' kubernetes plugin
//! does in kubeadm's configuration (`pods insecure`, reverse lookups fall through). `zone` is pure and is the
//! file to read first.
//!
//! **Invariant:** no packet can stop the server: what cannot be read is answered with FORMERR or dropped, every
//! wait has a time limit, and the numbers of connections and forwarded questions are bounded.

mod cache;
pub mod cluster;
pub mod config;
mod datagram;
pub mod forward;
pub mod model;
pub mod resolver;
mod run;
pub mod server;
mod wire;
pub mod zone;

#[cfg(test)]
mod socket_test;
#[cfg(test)]
mod zone_test;

pub use config::DnsConfig;
pub use run::{DnsError, run};
