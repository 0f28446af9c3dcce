//! The kubelet.

pub mod cri;
mod k8s;
pub mod pod;
mod text;
