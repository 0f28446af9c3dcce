//! Simulated nodes: Nodes with leases whose pods become Running, Ready, finished and deleted by rules, without
//! containers. For trying controllers and operators at scale.
//!
//! ```text
//! pods (one watch) ──▶ queue of keys ──▶ plan: what is next for this pod, and when ──▶ one status patch, or a delete
//! nodes (one watch) ─▶ registered, kept Ready          leases: renewed in turn, a few at a time
//! ```
//!
//! Everything is derived from the pod as it is and a hash of its uid, so that a restart goes on where it stopped. Read
//! `plan` first.
//!
//! **Invariant:** only pods and leases of nodes that this simulator names are written.

mod config;
mod lease;
mod node;
mod plan;
mod pod;
mod run;
mod status;

pub use config::{Config, ConfigError, Match, Nodes, Rule, Stage};
pub use run::{Error, run};
