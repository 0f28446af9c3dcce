//! Certificates, kubeconfig, local nodes, and what starts and ends a cluster.

pub mod files;
pub mod kubeconfig;
pub mod pki;
