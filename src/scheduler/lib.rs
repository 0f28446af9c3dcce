//! The scheduler of kube-scheduler: gives every pod without a node the node it fits best.
//!
//! ```text
//! informers ──▶ Cluster (nodes, their pods, counts)      ──▶ cycle: filter, score, pick ──▶ assume ──▶ Binding
//!          └──▶ SchedulingQueue (active, back-off, stuck) ──▶    └ fits nowhere: condition, event, back to the queue
//! ```
//!
//! The cycle is one synchronous step over state that is kept current change by change; bindings are written beside
//! it. Plugins decide (`framework`, `plugins::PLUGINS`). Read `run::Worker` first.
//!
//! **Invariants:** a pod with a node is never touched. A pod is bound only by a Binding that names its uid, which
//! the API server accepts once; what the API shows always wins over what was assumed here.

mod args;
#[cfg(test)]
mod bench;
mod budget;
mod cluster;
mod config;
mod cycle;
mod devices;
mod extender;
mod fit_error;
mod framework;
pub mod metrics;
mod node;
mod plugins;
mod pod;
mod preemption;
mod profile;
#[cfg(test)]
mod property;
mod queue;
mod resources;
mod run;
mod storage;
mod watch;

pub use config::{ConfigError, Loaded, SchedulerConfig, load};
pub use framework::Plugin;
pub use metrics::Metrics;
pub use profile::Profile;
pub use run::{Error, run};
