//! Who stands behind a Service: EndpointSlices and Endpoints made of the pods a Service selects, and EndpointSlices
//! that mirror Endpoints written by hand.
//!
//! `service` reads Services and pods; `slices` plans EndpointSlices whoever they are for; `slice_controller`,
//! `legacy` and `mirroring` are the three controllers.

pub mod legacy;
pub mod mirroring;
mod service;
pub mod slice_controller;
mod slices;

pub use service::BY_NAMESPACE;
