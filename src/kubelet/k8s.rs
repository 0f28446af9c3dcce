//! The typed objects the kubelet reads and writes, under short names. Nothing
//! but re-exports, so that the rest of the crate names each type the same way.

pub use api::k8s::api::core::v1::*;
pub use api::k8s::api::node::v1::RuntimeClass;
pub use api::k8s::apimachinery::pkg::api::resource::Quantity;
pub use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
pub use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
pub use api::k8s::jiff::Timestamp;
