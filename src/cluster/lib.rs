//! Certificates, kubeconfig, local nodes, and what starts and ends a cluster.

pub mod cgroup;
pub mod component;
pub mod control;
pub mod files;
pub mod gateway;
pub mod image;
pub mod kubeconfig;
pub mod local;
pub mod netlink;
pub mod node;
pub mod paths;
pub mod pki;
pub mod process;
pub mod progress;

/// The crates whose configurations a command line fills in.
pub use {apiserver, client, controllers, dns, kubelet, proxy, scheduler, simulator};
