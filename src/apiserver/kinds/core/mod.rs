//! The kinds of the core group.

pub mod claims;
pub mod config;
pub mod endpoints;
pub mod events;
pub mod namespaces;
pub mod nodes;
pub mod pods;
pub mod service_accounts;
pub mod services;
pub mod volumes;
