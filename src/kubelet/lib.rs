//! The kubelet.

pub mod cri;
mod k8s;
pub mod pod;
pub mod resources;
mod text;
