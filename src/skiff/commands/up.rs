//! `skiff up`, `skiff down`, `skiff status`: a whole cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cluster::local::state::{Cluster, Mirror, StoreKind};
use cluster::local::up::{self, UpOptions};
use cluster::local::{down, nodes};
use cluster::progress::Progress;

use super::node::print_table;
use super::runtime;
use super::server;
use crate::flags;

#[derive(clap::Args)]
pub struct Up {
    /// The cluster's name. Nodes and the kubeconfig context are named after it.
    #[arg(long, default_value = "lab")]
    name: String,
    /// How many worker nodes (2 for a new cluster).
    #[arg(long)]
    workers: Option<u8>,
    /// Where the API server keeps its objects (embedded for a new cluster).
    #[arg(long, value_enum)]
    store: Option<server::StoreKind>,
    /// etcd and its files; without servers a real etcd is started on the control-plane node.
    #[command(flatten)]
    etcd: server::EtcdFlags,
    /// Take a registry's images from elsewhere: docker.io=http://127.0.0.1:5000. May be repeated.
    #[arg(long, value_parser = flags::mirror)]
    registry_mirror: Vec<(String, String)>,
    /// The kubeconfig to put the cluster's context into, in place of $KUBECONFIG or ~/.kube/config.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// How long to wait for the nodes to be Ready.
    #[arg(long, value_parser = flags::duration, default_value = "2m")]
    wait: Duration,
    /// How long a node may be silent before it counts as unhealthy (kube-controller-manager).
    #[arg(long)]
    node_monitor_grace_period: Option<String>,
    /// How long pods stay on a node that is not Ready (kube-apiserver).
    #[arg(long)]
    default_not_ready_toleration_seconds: Option<i64>,
    /// How long pods stay on a node that is unreachable (kube-apiserver).
    #[arg(long)]
    default_unreachable_toleration_seconds: Option<i64>,
    /// How many nodes without containers to add, for trying controllers and operators at scale.
    #[arg(long)]
    simulated_nodes: Option<u32>,
    /// A file with kinds of simulated nodes and the rules that their pods follow (see skiff simulate).
    #[arg(long)]
    simulation_file: Option<PathBuf>,
    /// One more flag for a component: kube-apiserver=--event-ttl=2h. May be repeated.
    #[arg(long, value_parser = flags::pair)]
    component_flag: Vec<(String, String)>,
}

impl Up {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        runtime::log_warnings();
        let options = self.options()?;
        let progress = Progress::new();
        let cluster = on_one_thread(async { Ok(up::up(&options, &progress).await?) })?;
        println!("kubectl is set to context {}", cluster.context());
        Ok(ExitCode::SUCCESS)
    }

    fn options(self) -> anyhow::Result<UpOptions> {
        let Self {
            name,
            workers,
            store,
            etcd,
            registry_mirror,
            kubeconfig,
            wait,
            node_monitor_grace_period,
            default_not_ready_toleration_seconds,
            default_unreachable_toleration_seconds,
            simulated_nodes,
            simulation_file,
            component_flag,
        } = self;
        let read = |file: PathBuf| {
            let text = std::fs::read_to_string(&file)?;
            // What is wrong with it is told here, where someone looks.
            cluster::simulator::Config::read(&text)?;
            anyhow::Ok(text)
        };
        let simulation = simulation_file.map(read).transpose()?;
        let store = match store {
            Some(server::StoreKind::Embedded) => Some(StoreKind::Embedded),
            None if etcd.etcd_servers.is_empty() => None,
            Some(server::StoreKind::Etcd) | None => Some(StoreKind::Etcd {
                servers: etcd.etcd_servers,
                authority: etcd.etcd_cafile,
                certificate: etcd.etcd_certfile,
                key: etcd.etcd_keyfile,
            }),
        };
        let mut flags = component_flag;
        let mut flag = |component: &str, name: &str, value: Option<String>| {
            flags.extend(value.map(|value| (component.to_string(), format!("--{name}={value}"))));
        };
        flag(
            "kube-controller-manager",
            "node-monitor-grace-period",
            node_monitor_grace_period,
        );
        let not_ready = default_not_ready_toleration_seconds.map(|seconds| seconds.to_string());
        flag(
            "kube-apiserver",
            "default-not-ready-toleration-seconds",
            not_ready,
        );
        let unreachable = default_unreachable_toleration_seconds.map(|seconds| seconds.to_string());
        flag(
            "kube-apiserver",
            "default-unreachable-toleration-seconds",
            unreachable,
        );
        let mirrors: Vec<Mirror> = registry_mirror
            .into_iter()
            .map(|(registry, url)| Mirror { registry, url })
            .collect();
        Ok(UpOptions {
            name,
            workers,
            store,
            mirrors: (!mirrors.is_empty()).then_some(mirrors),
            flags,
            simulated_nodes,
            simulation,
            kubeconfig,
            wait,
        })
    }
}

#[derive(clap::Args)]
pub struct Down {
    /// The cluster's name.
    #[arg(long, default_value = "lab")]
    name: String,
    /// The kubeconfig to take the context out of, should the cluster's record be lost.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

impl Down {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        runtime::log_warnings();
        let progress = Progress::new();
        on_one_thread(async {
            Ok(down::down(&self.name, self.kubeconfig.as_deref(), &progress).await?)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(clap::Args)]
pub struct Status {
    /// The cluster's name.
    #[arg(long, default_value = "lab")]
    name: String,
}

impl Status {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let cluster = Cluster::open(&self.name)?;
        println!(
            "cluster {} on {}, API server on https://127.0.0.1:{}\n",
            cluster.name, cluster.subnet, cluster.port
        );
        let mut rows = Vec::new();
        let mut well = true;
        for node in &cluster.nodes {
            let Some(process) = node.process.as_ref().filter(|process| process.is_alive()) else {
                well = false;
                rows.push([
                    node.name.clone(),
                    "-".into(),
                    "Stopped".into(),
                    String::new(),
                    String::new(),
                ]);
                continue;
            };
            for service in nodes::services(process) {
                let state = match (service.pid, service.ready) {
                    (_, true) => "Ready",
                    (Some(_), false) => "Starting",
                    (None, false) => "Waiting",
                };
                well &= service.ready;
                let last = service
                    .last_end
                    .map(|end| format!("last ended: {end}"))
                    .unwrap_or_default();
                rows.push([
                    node.name.clone(),
                    service.name,
                    state.into(),
                    service.restarts.to_string(),
                    last,
                ]);
            }
        }
        print_table(["NODE", "SERVICE", "STATE", "RESTARTS", ""], &rows);
        Ok(if well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// Commands that wait most of the time need no more.
fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
