//! `skiff controller-manager`: kube-controller-manager and its flags.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ArgAction;
use cluster::component;
use cluster::controllers::{self, ControllersConfig};

use super::component::SecureFlags;
use super::runtime::{self, ClientFlags, Common};
use super::scheduler::LeaderFlags;
use crate::flags;

#[derive(clap::Args, Debug)]
pub struct ControllerManager {
    /// The port on which to serve HTTPS with authentication and authorization. If 0, don't serve HTTPS at all.
    #[arg(long, default_value_t = 10257)]
    secure_port: u16,
    #[command(flatten)]
    secure: SecureFlags,
    #[command(flatten)]
    client: ClientFlags,
    #[command(flatten)]
    leader: LeaderFlags,
    /// A list of controllers to enable. '*' enables all on-by-default controllers, 'foo' enables the controller named
    /// 'foo', '-foo' disables the controller named 'foo'.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Should CIDRs for Pods be allocated and set on the cloud provider.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    allocate_node_cidrs: bool,
    /// CIDR Range for Pods in cluster.
    #[arg(long, value_delimiter = ',')]
    cluster_cidr: Vec<String>,
    /// CIDR Range for Services in cluster.
    #[arg(long, value_delimiter = ',')]
    service_cluster_ip_range: Vec<String>,
    /// Mask size for IPv4 node cidr in dual-stack cluster.
    #[arg(long)]
    node_cidr_mask_size_ipv4: Option<u8>,
    /// Mask size for IPv6 node cidr in dual-stack cluster.
    #[arg(long)]
    node_cidr_mask_size_ipv6: Option<u8>,
    /// If set, this root certificate authority will be included in service account's token secret.
    #[arg(long)]
    root_ca_file: Option<PathBuf>,
    /// Filename containing a PEM-encoded X509 CA certificate used to issue cluster-scoped certificates.
    #[arg(long)]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Filename containing a PEM-encoded RSA or ECDSA private key used to sign cluster-scoped certificates.
    #[arg(long)]
    cluster_signing_key_file: Option<PathBuf>,
    /// The max length of duration signed certificates will be given.
    #[arg(long, value_parser = flags::duration)]
    cluster_signing_duration: Option<Duration>,
    /// Amount of time which we allow running Node to be unresponsive before marking it unhealthy.
    #[arg(long, value_parser = flags::duration)]
    node_monitor_grace_period: Option<Duration>,
    /// Amount of time which we allow starting Node to be unresponsive before marking it unhealthy.
    #[arg(long, value_parser = flags::duration)]
    node_startup_grace_period: Option<Duration>,
    /// Number of nodes per second on which pods are deleted in case of node failure when a zone is healthy.
    #[arg(long)]
    node_eviction_rate: Option<f64>,
    /// Number of terminated pods that can exist before the terminated pod garbage collector starts deleting them.
    #[arg(long)]
    terminated_pod_gc_threshold: Option<usize>,
    /// The maximum number of endpoints that will be added to an EndpointSlice.
    #[arg(long)]
    max_endpoints_per_slice: Option<usize>,
    #[command(flatten)]
    common: Common,
}

impl ControllerManager {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            secure_port,
            secure,
            client,
            leader,
            controllers,
            allocate_node_cidrs,
            cluster_cidr,
            service_cluster_ip_range,
            node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6,
            root_ca_file,
            cluster_signing_cert_file,
            cluster_signing_key_file,
            cluster_signing_duration,
            node_monitor_grace_period,
            node_startup_grace_period,
            node_eviction_rate,
            terminated_pod_gc_threshold,
            max_endpoints_per_slice,
            common,
        } = self;
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))
        };
        let LeaderFlags {
            leader_elect,
            leader_elect_lease_duration,
            leader_elect_renew_deadline,
            leader_elect_retry_period,
        } = leader;
        let default = ControllersConfig::default();
        let config = ControllersConfig {
            controllers,
            leader_elect,
            leader_lease_duration: leader_elect_lease_duration,
            leader_renew_deadline: leader_elect_renew_deadline,
            leader_retry_period: leader_elect_retry_period,
            host: cluster::process::host_name(),
            root_ca: root_ca_file.map(read).transpose()?,
            cluster_signing: cluster_signing_cert_file
                .map(read)
                .transpose()?
                .zip(cluster_signing_key_file.map(read).transpose()?),
            cluster_signing_duration: cluster_signing_duration
                .unwrap_or(default.cluster_signing_duration),
            allocate_node_cidrs,
            cluster_cidrs: cluster_cidr,
            service_cidrs: service_cluster_ip_range,
            node_cidr_mask_size_ipv4: node_cidr_mask_size_ipv4
                .unwrap_or(default.node_cidr_mask_size_ipv4),
            node_cidr_mask_size_ipv6: node_cidr_mask_size_ipv6
                .unwrap_or(default.node_cidr_mask_size_ipv6),
            node_monitor_grace_period: node_monitor_grace_period
                .unwrap_or(default.node_monitor_grace_period),
            node_startup_grace_period: node_startup_grace_period
                .unwrap_or(default.node_startup_grace_period),
            node_eviction_rate: node_eviction_rate.unwrap_or(default.node_eviction_rate),
            terminated_pod_gc_threshold: terminated_pod_gc_threshold
                .unwrap_or(default.terminated_pod_gc_threshold),
            max_endpoints_per_slice: max_endpoints_per_slice
                .unwrap_or(default.max_endpoints_per_slice),
            ..default
        };
        runtime::run(&common, |shutdown| async move {
            let client = client.client("kube-controller-manager")?;
            let serving = secure.serving(secure_port)?;
            let serve = super::component::serve(
                serving.map(|serving| component::controller_manager(&config, serving)),
                shutdown.clone(),
            );
            let work = async { Ok(controllers::run(client, config, shutdown).await?) };
            tokio::try_join!(work, serve).map(drop)
        })
    }
}
