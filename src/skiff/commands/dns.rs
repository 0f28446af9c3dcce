//! `skiff dns`: the cluster's DNS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use super::runtime::{self, ClientFlags, Common};

#[derive(clap::Args, Debug)]
pub struct Dns {
    #[command(flatten)]
    client: ClientFlags,
    /// Where to answer, over UDP and TCP.
    #[arg(long, default_value = "0.0.0.0:53")]
    listen: SocketAddr,
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
        runtime::run(&common, |shutdown| async move {
            let _ = (
                client.client("dns")?,
                listen,
                cluster_domain,
                resolv_conf,
                shutdown,
            );
            anyhow::bail!("the DNS server is not built in yet")
        })
    }
}
