//! Custom resources: definitions become resources that are served like built-in ones.
//!
//! ```text
//! CustomResourceDefinition ─ rules (its own validation) ─▶ stored
//!        └─ controller: names accepted, established ─▶ definition (tables from the schema) ─▶ Served, Registry
//! custom object ─▶ the one write path ─ custom::Custom (a Strategy): defaults and validation by `schema`
//! ```
//!
//! Read `definition::Version` first: one served version of a custom resource, with the `Resource` all else works on.
//!
//! A version lives as long as the process, as built-in resources do: a changed definition leaves its old tables behind,
//! a few kilobytes for each change somebody makes.
//!
//! Conversion webhooks are not called: versions differ in their names.

mod controller;
mod custom;
mod definition;
mod path;
mod rules;
mod schema;

pub use controller::{Known, run, sync};
pub use custom::Custom;
pub use definition::{Definition, Scale, Version};
pub use rules::CustomResourceDefinitions;

/// Whether a resource is a custom one: it has no numbers of protobuf.
pub fn is_custom(message: &apimachinery::schema::Message) -> bool {
    message.wire.is_empty()
}
