//! The kubelet's HTTPS server.

pub mod logs;
