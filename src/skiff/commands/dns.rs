//! `skiff dns`: the cluster's DNS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use cluster::dns::{self, DnsConfig};

use super::runtime::{self, ClientFlags, Common};

#[derive(clap::Args, Debug)]
pub struct Dns {
    #[command(flatten)]
    client: ClientFlags,
    /// Where to answer, over UDP and TCP, comma separated.
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0:53")]
    listen: Vec<SocketAddr>,
    /// The domain of services and pods.
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    /// The resolvers that everything else is asked of.
    #[arg(long, default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
    #[command(flatten)]
    common: Common,
}

impl Dns {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            client,
            listen,
            cluster_domain,
            resolv_conf,
            common,
        } = self;
        let config = DnsConfig {
            domain: cluster_domain,
            upstream_resolv_conf: Some(resolv_conf),
            ..DnsConfig::on(listen)
        };
        runtime::run(&common, |shutdown| async move {
            let client = client.client("dns")?;
            Ok(dns::run(client, config, shutdown).await?)
        })
    }
}
