//! kube-proxy: makes Services reachable from a node and its pods.
//!
//! ```text
//! Services, EndpointSlices, the own Node ─(informers)→ plan ─→ ruleset ─→ nft  ─→ kernel
//!                                                       ├────→ conntrack ───────→ kernel
//!                                                       └────→ health ──────────→ load balancers
//! ```
//! `plan`, `endpoints` and `ruleset` are pure; `proxier` carries out. Read [`plan::PortPlan`] first.
//!
//! **Invariant:** the rules change in single transactions. At no moment, a start or a failure included, does
//! the node have half of them; and what the process leaves behind when it ends keeps working.

pub mod config;
pub mod conntrack;
pub mod endpoints;
pub mod health;
pub mod model;
pub mod nft;
pub mod plan;
pub mod proxier;
pub mod ruleset;
mod run;

#[cfg(test)]
mod netns_test;

pub use config::ProxyConfig;
pub use run::{ProxyError, cleanup, run};
