//! What the scheduler is told, as upstream's flags and configuration tell kube-scheduler.

mod arguments;
mod file;
mod plugin_sets;

use std::{sync::Arc, time::Duration};

use crate::{extender::ExtenderConfig, metrics::Metrics, profile::Profile};

pub use file::{ConfigError, Loaded, load};

/// Flags of kube-scheduler; `default` has upstream's values.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// At least one; each has a name of its own.
    pub profiles: Vec<Profile>,
    /// `--leader-elect`; off where only one can run, as in the server in one process.
    pub leader_elect: bool,
    pub leader_lease_duration: Duration,
    pub leader_renew_deadline: Duration,
    pub leader_retry_period: Duration,
    /// The lease's namespace and name.
    pub leader_namespace: String,
    pub leader_name: String,
    /// Begins the identity in the lease.
    pub host: String,
    /// `podInitialBackoffSeconds` and `podMaxBackoffSeconds`.
    pub pod_initial_backoff: Duration,
    pub pod_max_backoff: Duration,
    /// `--pod-max-in-unschedulable-pods-duration`: a pod that nothing helped for so long is tried again.
    pub pod_max_unschedulable: Duration,
    /// Programs of others that have a say.
    pub extenders: Vec<ExtenderConfig>,
    /// What it counts; whoever keeps this can tell.
    pub metrics: Arc<Metrics>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        SchedulerConfig {
            profiles: vec![Profile::default()],
            leader_elect: true,
            leader_lease_duration: Duration::from_secs(15),
            leader_renew_deadline: Duration::from_secs(10),
            leader_retry_period: Duration::from_secs(2),
            leader_namespace: "kube-system".into(),
            leader_name: "kube-scheduler".into(),
            host: "localhost".into(),
            pod_initial_backoff: Duration::from_secs(1),
            pod_max_backoff: Duration::from_secs(10),
            pod_max_unschedulable: Duration::from_secs(300),
            extenders: Vec::new(),
            metrics: Arc::default(),
        }
    }
}
