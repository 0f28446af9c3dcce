//! What the controllers are told, as upstream's flags tell kube-controller-manager.

use std::time::Duration;

/// Flags of kube-controller-manager. `default` has upstream's values, but for the node grace period.
#[derive(Clone, Debug)]
pub struct ControllersConfig {
    /// `--controllers`: `*`, `name`, `-name`; empty is `*`.
    pub controllers: Vec<String>,
    /// `--leader-elect`; off where only one can run, as in the server in one process.
    pub leader_elect: bool,
    pub leader_lease_duration: Duration,
    pub leader_renew_deadline: Duration,
    pub leader_retry_period: Duration,
    /// Begins the identity in the lease.
    pub host: String,
    /// PEM that `kube-root-ca.crt` publishes (`--root-ca-file`); `None` publishes nothing.
    pub root_ca: Option<String>,
    /// Certificate and key, PEM, that sign certificate requests (`--cluster-signing-cert-file`, `-key-file`); `None`
    /// signs none.
    pub cluster_signing: Option<(String, String)>,
    /// `--cluster-signing-duration`: how long signed certificates are valid at most.
    pub cluster_signing_duration: Duration,
    /// `--allocate-node-cidrs`.
    pub allocate_node_cidrs: bool,
    /// `--cluster-cidr`, one of each family at most.
    pub cluster_cidrs: Vec<String>,
    /// `--service-cluster-ip-range`: never given to nodes.
    pub service_cidrs: Vec<String>,
    /// `--node-cidr-mask-size-ipv4` and `-ipv6`.
    pub node_cidr_mask_size_ipv4: u8,
    pub node_cidr_mask_size_ipv6: u8,
    /// `--node-monitor-grace-period`: a node that has not renewed its lease for so long is unhealthy.
    pub node_monitor_grace_period: Duration,
    /// `--node-startup-grace-period`: the same for one that never posted status.
    pub node_startup_grace_period: Duration,
    /// `--node-eviction-rate`: nodes a second that are tainted NoExecute in a healthy zone.
    pub node_eviction_rate: f64,
    /// `--secondary-node-eviction-rate`: the same in a zone with many unhealthy nodes.
    pub secondary_node_eviction_rate: f64,
    /// `--unhealthy-zone-threshold`: share of unhealthy nodes from which a zone is.
    pub unhealthy_zone_threshold: f64,
    /// `--large-cluster-size-threshold`: smaller unhealthy zones are not tainted at all.
    pub large_cluster_size_threshold: usize,
    /// `--terminated-pod-gc-threshold`: finished pods beyond so many are deleted; 0 keeps all.
    pub terminated_pod_gc_threshold: usize,
    /// `--max-endpoints-per-slice`.
    pub max_endpoints_per_slice: usize,
}

impl Default for ControllersConfig {
    fn default() -> Self {
        ControllersConfig {
            controllers: Vec::new(),
            leader_elect: true,
            leader_lease_duration: Duration::from_secs(15),
            leader_renew_deadline: Duration::from_secs(10),
            leader_retry_period: Duration::from_secs(2),
            host: "localhost".into(),
            root_ca: None,
            cluster_signing: None,
            cluster_signing_duration: Duration::from_secs(365 * 24 * 3600),
            allocate_node_cidrs: false,
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            node_cidr_mask_size_ipv4: 24,
            node_cidr_mask_size_ipv6: 64,
            node_monitor_grace_period: Duration::from_secs(40),
            node_startup_grace_period: Duration::from_secs(60),
            node_eviction_rate: 0.1,
            secondary_node_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_cluster_size_threshold: 50,
            terminated_pod_gc_threshold: 12_500,
            max_endpoints_per_slice: 100,
        }
    }
}

impl ControllersConfig {
    /// What is wrong with it, if anything.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.allocate_node_cidrs {
            crate::node_ipam::Pools::new(self)?;
        }
        Ok(())
    }
}

/// Controllers of upstream that do not exist here yet: naming one in `--controllers` is no error.
pub(crate) const LATER: &[&str] = &[
    "node-route-controller",
    "resourcepoolstatusrequest-controller",
    "selinux-warning-controller",
    "storageversion-garbage-collector-controller",
];
