//! `skiff server`: the control plane in one process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use cluster::control::server::{self, ServerConfig, ServerStore};
use cluster::controllers::ControllersConfig;
use cluster::scheduler::SchedulerConfig;

use super::apiserver::ServingFlags;
use super::runtime::{self, Common};
use crate::flags;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    Embedded,
    Etcd,
}

/// Flags of a client of real etcd, for every command that can have one.
#[derive(clap::Args, Debug)]
pub struct EtcdFlags {
    /// List of etcd servers to connect with (scheme://ip:port), comma separated.
    #[arg(long, value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// SSL Certificate Authority file used to secure etcd communication.
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// SSL certification file used to secure etcd communication.
    #[arg(long)]
    pub etcd_certfile: Option<PathBuf>,
    /// SSL key file used to secure etcd communication.
    #[arg(long)]
    pub etcd_keyfile: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub struct Server {
    /// Folder for certificates, the administrator's kubeconfig and the objects.
    #[arg(long)]
    data_dir: PathBuf,
    /// Port of the API server; 0 takes a free one.
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// Address the API server listens on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind_address: IpAddr,
    /// Address on which to tell others to reach the API server.
    #[arg(long)]
    advertise_address: Option<IpAddr>,
    /// More names or addresses for the API server's certificate, comma separated.
    #[arg(long, value_delimiter = ',')]
    tls_san: Vec<String>,
    /// Where objects are kept.
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// Where the embedded store serves etcd's API, comma separated; empty serves it nowhere.
    #[arg(long, default_value = "127.0.0.1:2379")]
    etcd_listen: String,
    /// Controllers to run: '*' all, 'foo' that one, '-foo' not that one, '-*' none.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Run no scheduler.
    #[arg(long)]
    disable_scheduler: bool,
    /// How long a node may be silent before it counts as unhealthy.
    #[arg(long, value_parser = flags::duration)]
    node_monitor_grace_period: Option<Duration>,
    #[command(flatten)]
    serving: ServingFlags,
    #[command(flatten)]
    common: Common,
}

impl Server {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.serving.check()?;
        let Self {
            data_dir,
            secure_port,
            bind_address,
            advertise_address,
            tls_san,
            store,
            etcd,
            etcd_listen,
            controllers,
            disable_scheduler,
            node_monitor_grace_period,
            serving,
            common,
        } = self;
        let kind = store.unwrap_or(if etcd.etcd_servers.is_empty() {
            StoreKind::Embedded
        } else {
            StoreKind::Etcd
        });
        let store = match kind {
            StoreKind::Embedded => ServerStore::Embedded {
                etcd_listen: addresses(&etcd_listen)?,
            },
            StoreKind::Etcd => {
                anyhow::ensure!(
                    !etcd.etcd_servers.is_empty(),
                    "--etcd-servers must be specified"
                );
                let EtcdFlags {
                    etcd_servers,
                    etcd_cafile,
                    etcd_certfile,
                    etcd_keyfile,
                } = etcd;
                ServerStore::Etcd {
                    servers: etcd_servers,
                    authority: etcd_cafile,
                    certificate: etcd_certfile,
                    key: etcd_keyfile,
                }
            }
        };
        let no_controllers = controllers.iter().any(|controller| controller == "-*");
        let mut controllers = ControllersConfig {
            controllers,
            leader_elect: false,
            ..ControllersConfig::default()
        };
        if let Some(period) = node_monitor_grace_period {
            controllers.node_monitor_grace_period = period;
        }
        let config = ServerConfig {
            directory: data_dir,
            bind: SocketAddr::new(bind_address, secure_port),
            advertise: advertise_address,
            names: tls_san,
            store,
            scheduler: (!disable_scheduler).then(|| SchedulerConfig {
                leader_elect: false,
                ..SchedulerConfig::default()
            }),
            controllers: (!no_controllers).then_some(controllers),
            adjust: Box::new(move |options| serving.apply(options)),
        };
        runtime::run(&common, |shutdown| async move {
            Ok(server::run(config, shutdown).await?)
        })
    }
}

fn addresses(text: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            part.parse()
                .map_err(|_| anyhow::anyhow!("--etcd-listen: {part:?} is not ADDRESS:PORT"))
        })
        .collect()
}
