//! `skiff etcd-gateway`: stands at etcd's address and carries its connections to where the store is served.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use cluster::gateway;
use tokio::net::TcpListener;

use super::runtime::{self, Common};

#[derive(clap::Args, Debug)]
pub struct EtcdGateway {
    /// Where to listen, comma separated.
    #[arg(
        long = "listen-addr",
        value_delimiter = ',',
        default_value = "127.0.0.1:2379"
    )]
    listen: Vec<SocketAddr>,
    /// Where the connections go. TLS is not ended on the way.
    #[arg(long)]
    endpoint: SocketAddr,
    #[command(flatten)]
    common: Common,
}

impl EtcdGateway {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            listen,
            endpoint,
            common,
        } = self;
        runtime::run(&common, |shutdown| async move {
            let mut listeners = Vec::new();
            for address in listen {
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("cannot listen on {address}"))?;
                listeners.push((listener, endpoint));
            }
            tracing::info!(%endpoint, "Carrying connections");
            gateway::run(listeners, shutdown).await;
            Ok(())
        })
    }
}
