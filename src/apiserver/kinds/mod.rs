//! The kinds: what is special about each, as rows of one table. A kind without a row is served by the defaults alone.
//!
//! To add a kind's rules: a unit struct that implements `Strategy` in the file of its group, and its line in `KINDS`.

pub mod core;
pub mod object_meta;
pub mod pod_spec;
pub mod tree;
pub mod unstored;

use std::sync::LazyLock;

use api::Resource;

use crate::registry::strategy::{Plain, Strategy};

/// Every kind with rules of its own.
pub static KINDS: &[&dyn Strategy] = &[
    &core::events::Events,
    &core::namespaces::Namespaces,
    &core::nodes::Nodes,
    &core::pods::Pods,
    &core::service_accounts::ServiceAccounts,
    &core::services::Services,
];

static PLAIN: LazyLock<Vec<Plain>> =
    LazyLock::new(|| api::RESOURCES.iter().copied().map(Plain).collect());

/// The rules of a stored resource.
pub fn strategy_of(resource: &'static Resource) -> &'static dyn Strategy {
    let id = (resource.group, resource.plural);
    if let Some(strategy) = KINDS.iter().find(|kind| kind.id() == id) {
        return *strategy;
    }
    let plain = PLAIN
        .iter()
        .find(|plain| std::ptr::eq(plain.0, resource))
        .expect("every resource has a plain strategy");
    plain
}
