//! The kinds as data. Everything the server, the clients and the patches know of a built-in type comes from the
//! tables here; `hack/update-api` makes them from recorded facts.
//!
//! ```text
//! RESOURCES ──▶ Resource ──schema──▶ apimachinery::schema::Message ──▶ fields, list keys, protobuf layout
//!     │             └─columns──▶ table::rows
//!     └─▶ find, find_kind, r::PODS …
//! ```
//!
//! Read `resource::Resource` first. `k8s` are typed views for rules in code; they never decide what is stored.
//!
//! **Invariant:** nothing here is computed at start: the tables are constants of the binary.

#[cfg(test)]
mod bench;
pub mod declared_features;
mod generated;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod mutations;
pub mod openapi;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod random;
pub mod resource;
#[cfg(test)]
mod shape;
pub mod table;
pub mod view;

pub use generated::{resources as r, schema};
pub use k8s_openapi as k8s;

pub use resource::{
    Column, RESOURCES, Resource, Subresource, find, find_kind, message, message_for,
};
