//! `skiff proxy`: kube-proxy and its flags.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgAction;
use cluster::proxy::{self, ProxyConfig};

use super::runtime::{self, ClientFlags, Common};
use crate::flags;

#[derive(clap::Args, Debug)]
pub struct Proxy {
    #[command(flatten)]
    client: ClientFlags,
    /// If non-empty, will be used as the name of the Node that kube-proxy is running on.
    #[arg(long)]
    hostname_override: Option<String>,
    /// Which proxy mode to use: nftables.
    #[arg(long, default_value = "nftables")]
    proxy_mode: String,
    /// The CIDR range of the pods in the cluster.
    #[arg(long, value_delimiter = ',')]
    cluster_cidr: Vec<String>,
    /// SNAT all traffic sent via Service cluster IPs.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    masquerade_all: bool,
    /// A list of CIDR ranges that contain valid node IPs for node ports.
    #[arg(long, value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// The IP address and port for the health check server to serve on.
    #[arg(long)]
    healthz_bind_address: Option<SocketAddr>,
    /// The IP address and port for the metrics server to serve on.
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
    /// The minimum period between rules being synced.
    #[arg(long, value_parser = flags::duration)]
    nftables_min_sync_period: Option<Duration>,
    /// Remove all rules and exit.
    #[arg(long)]
    cleanup: bool,
    #[command(flatten)]
    common: Common,
}

impl Proxy {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            client,
            hostname_override,
            proxy_mode,
            cluster_cidr,
            masquerade_all,
            nodeport_addresses,
            healthz_bind_address,
            metrics_bind_address,
            nftables_min_sync_period,
            cleanup,
            common,
        } = self;
        anyhow::ensure!(
            proxy_mode == "nftables",
            "unsupported proxy mode {proxy_mode:?}: only nftables is"
        );
        let default =
            ProxyConfig::for_node(hostname_override.unwrap_or_else(cluster::process::host_name));
        let config = ProxyConfig {
            cluster_cidrs: cidrs(&cluster_cidr)?,
            masquerade_all,
            nodeport_addresses: cidrs(&nodeport_addresses)?,
            healthz: healthz_bind_address.or(default.healthz),
            metrics: metrics_bind_address.or(default.metrics),
            min_sync_period: nftables_min_sync_period.unwrap_or(default.min_sync_period),
            ..default
        };
        runtime::run(&common, |shutdown| async move {
            if cleanup {
                return Ok(proxy::cleanup().await?);
            }
            let client = client.client("kube-proxy")?;
            Ok(proxy::run(client, config, shutdown).await?)
        })
    }
}

fn cidrs(texts: &[String]) -> anyhow::Result<Vec<proxy::model::Cidr>> {
    texts
        .iter()
        .map(|text| {
            text.parse()
                .map_err(|_| anyhow::anyhow!("invalid CIDR {text:?}"))
        })
        .collect()
}
