//! Makes a cluster, or brings one that is there to what was asked for.
//!
//! ```text
//!  check the machine ▸ network ▸ certificates and files ▸ start the nodes (all at once) ─▸ complete
//!                                                           └ API server answers ▸ DNS ▸ kubeconfig ▸ nodes Ready
//! ```
//!
//! Every step makes only what is missing, so a cluster of which anything was killed is whole again after `up`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::machine::{self, MachineError, find_program};
use super::nodes::{self, NodeError};
use super::prepare::{self, PrepareError};
use super::ready::{self, ReadyError};
use super::state::{
    Cluster, MAX_WORKERS, Mirror, NodeState, PODS, Settings, StateError, StoreKind, UserKubeconfig,
    check_name, lock_machine,
};
use super::{containerd, identity};
use crate::files::FileError;
use crate::kubeconfig::{self, KubeconfigError};
use crate::netlink::{Netlink, NetlinkError, Network};
use crate::node::spec::{Event, NodeSpec};
use crate::pki::Pki;
use crate::process::Process;
use crate::progress::Progress;

/// Events that wait to be told; nodes wait for room.
const EVENT_QUEUE: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum UpError {
    #[error("skiff up needs root: a node is made of namespaces, mounts and network interfaces")]
    NotRoot,
    #[error("these programs are missing: {0} (Debian: apt install {1})")]
    Missing(String, String),
    #[error("at most {MAX_WORKERS} workers")]
    TooManyWorkers,
    #[error("cluster {0} keeps its objects in another store; skiff down --name {0} first")]
    OtherStore(String),
    #[error("there is no component {0}; flags can be given to {list}", list = COMPONENTS.join(", "))]
    UnknownComponent(String),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Ready(#[from] ReadyError),
    #[error("a node's start could not be waited for: {0}")]
    Join(#[from] tokio::task::JoinError),
}

/// What the command line asks for. `None` keeps what the cluster has, or upstream's default for a new one.
#[derive(Clone, Debug, Default)]
pub struct UpOptions {
    pub name: String,
    pub workers: Option<u8>,
    pub store: Option<StoreKind>,
    pub mirrors: Option<Vec<Mirror>>,
    /// Flags for components. Those of a component replace the ones it had; an empty one takes them all away.
    pub flags: Vec<(String, String)>,
    pub simulated_nodes: Option<u32>,
    /// The text of a simulation file.
    pub simulation: Option<String>,
    pub kubeconfig: Option<PathBuf>,
    /// How long to wait for the nodes to be Ready.
    pub wait: Duration,
}

/// The programs of nodes that take more flags.
const COMPONENTS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "containerd",
];

/// Workers of a new cluster.
const DEFAULT_WORKERS: u8 = 2;

pub async fn up(options: &UpOptions, progress: &Progress) -> Result<Cluster, UpError> {
    check_name(&options.name)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(UpError::NotRoot);
    }
    let _lock = lock_machine()?;
    let present = Cluster::load(&options.name)?;
    let settings = settle(options, present.as_ref())?;
    // A file that cannot be merged into is told of before there is a cluster.
    kubeconfig::check(&kubeconfig::user_file(options.kubeconfig.as_deref()))?;
    check_programs(&settings)?;

    progress.begin("network", "Making the network");
    let netlink = Netlink::open()?;
    let mut cluster = match present {
        Some(cluster) => cluster,
        None => found(&options.name, &settings, &netlink).await?,
    };
    let surplus = arrange(&mut cluster, settings);
    for node in &surplus {
        nodes::stop(&cluster.name, node)?;
    }
    cluster.save()?;
    machine::set_up(&netlink, &mut cluster).await?;
    cluster.save()?;
    progress.done(
        "network",
        &format!("Network {} on {}", cluster.bridge(), cluster.subnet),
    );

    progress.begin("certificates", "Making certificates");
    let pki = prepare::certificates(&cluster)?;
    let mut starting = Starting::begin(&mut cluster, &pki, progress)?;
    progress.done(
        "certificates",
        &format!("Certificates in {}", pki.directory().display()),
    );

    // Started nodes are recorded as they come, so that `down` finds them if this ends early.
    let finished = finish(options, &mut cluster, &mut starting, progress).await;
    if let Err(error) = &finished {
        progress.failed("api", &error.to_string());
    }
    finished?;
    Ok(cluster)
}

/// From the first started node to all of them Ready.
async fn finish(
    options: &UpOptions,
    cluster: &mut Cluster,
    starting: &mut Starting,
    progress: &Progress,
) -> Result<(), UpError> {
    // The port is known once the control-plane node listens; a connection to it waits until the API server takes it.
    progress.begin("api", "Waiting for the API server");
    while cluster.port == 0 || !starting.listening {
        starting.step(cluster, progress).await?;
    }
    let entry = identity::administrator(cluster)?;
    let path = kubeconfig::user_file(options.kubeconfig.as_deref());
    let client = ready::client(&entry)?;
    let address = cluster.control_plane().map(|node| node.address);
    let api = async {
        ready::api_server(&client, options.wait).await?;
        ready::dns(&client, address).await
    };
    tokio::pin!(api);
    loop {
        tokio::select! {
            answered = &mut api => { answered?; break }
            event = starting.next() => starting.note(cluster, event?, progress)?,
        }
    }
    progress.done("api", &format!("API server on {}", entry.server));

    ready::forget_lost(&client, cluster).await?;
    let merged = kubeconfig::merge(&path, &entry)?;
    cluster.remember_kubeconfig(UserKubeconfig {
        path: std::fs::canonicalize(&path).unwrap_or(path),
        created: merged.created,
        previous_context: merged.previous_context,
    });
    cluster.save()?;
    while !starting.is_empty() {
        starting.step(cluster, progress).await?;
    }
    progress.begin("ready", "Waiting for the nodes to be Ready");
    let waiting = |left: &[String]| {
        progress.update(
            "ready",
            &format!("Waiting for {} to be Ready", left.join(", ")),
        )
    };
    ready::nodes(&client, &cluster.nodes, options.wait, &waiting).await?;
    let ready = match cluster.nodes.len() {
        1 => "1 node is Ready".to_string(),
        count => format!("{count} nodes are Ready"),
    };
    progress.done("ready", &ready);
    Ok(())
}

/// The nodes that are being started.
struct Starting {
    launches: JoinSet<Result<(), NodeError>>,
    events: mpsc::Receiver<(String, Event)>,
    /// The control-plane node has its listening socket.
    listening: bool,
    /// Services whose first end was told; one that ends again and again is told once.
    told: HashSet<(String, String)>,
}

/// Something that happened to a starting node.
enum Happened {
    Told(String, Event),
    Launched(Result<(), NodeError>),
}

impl Starting {
    /// Writes every node's files and starts those that do not run as they should.
    fn begin(cluster: &mut Cluster, pki: &Pki, progress: &Progress) -> Result<Self, UpError> {
        let (sender, events) = mpsc::channel(EVENT_QUEUE);
        let mut starting = Self {
            launches: JoinSet::new(),
            events,
            listening: true,
            told: HashSet::new(),
        };
        for node in cluster.nodes.clone() {
            let spec = nodes::specify(cluster, &node, pki)?;
            if node.is_running() && nodes::runs_as(cluster, &spec) {
                continue;
            }
            starting.listening &= !node.control_plane;
            progress.begin(&node.name, &format!("Starting {}", node.name));
            starting.launch(cluster.clone(), node, spec, sender.clone());
        }
        Ok(starting)
    }

    fn launch(
        &mut self,
        cluster: Cluster,
        node: NodeState,
        spec: NodeSpec,
        events: mpsc::Sender<(String, Event)>,
    ) {
        self.launches.spawn_blocking(move || {
            nodes::stop(&cluster.name, &node)?;
            let mut tell = |event| drop(events.blocking_send((node.name.clone(), event)));
            let started = nodes::start(&cluster, &spec, &mut tell);
            match started {
                // The remembered port was taken by another program meanwhile.
                Err(NodeError::Launch(_))
                    if spec
                        .listen_port
                        .is_some_and(|port| port != 0 && port_is_taken(port)) =>
                {
                    let spec = NodeSpec {
                        listen_port: Some(0),
                        ..spec
                    };
                    nodes::start(&cluster, &spec, &mut tell)
                }
                other => other,
            }
        });
    }

    fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// The next event; for ever when nothing is being started.
    async fn next(&mut self) -> Result<Happened, UpError> {
        tokio::select! {
            biased;
            Some((node, event)) = self.events.recv() => Ok(Happened::Told(node, event)),
            Some(launched) = self.launches.join_next() => {
                let launched = launched?;
                if let Err(error) = launched { return Err(error.into()) }
                Ok(Happened::Launched(launched))
            }
            else => std::future::pending().await,
        }
    }

    async fn step(&mut self, cluster: &mut Cluster, progress: &Progress) -> Result<(), UpError> {
        let happened = self.next().await?;
        self.note(cluster, happened, progress)
    }

    /// Records what happened and tells it.
    fn note(
        &mut self,
        cluster: &mut Cluster,
        happened: Happened,
        progress: &Progress,
    ) -> Result<(), UpError> {
        let (name, event) = match happened {
            Happened::Told(name, event) => (name, event),
            Happened::Launched(launched) => return Ok(launched?),
        };
        match event {
            Event::Joined => {}
            Event::Started { pid } => {
                if let Some(node) = cluster.node_mut(&name) {
                    node.process = Process::of(pid);
                }
                cluster.save()?;
            }
            Event::Listening { port } => {
                cluster.port = port;
                self.listening = true;
                cluster.save()?;
            }
            Event::Ready { service } => {
                progress.update(&name, &format!("Starting {name}: {service} is ready"))
            }
            Event::Restarting { service, reason } => {
                let text = format!("{name}: {service} ended ({reason}); starting it again");
                if self.told.insert((name.clone(), service)) {
                    progress.warn(&text);
                } else {
                    progress.update(&name, &text);
                }
            }
            Event::Complete => progress.done(&name, &format!("{name} started")),
            Event::Failed { reason } => progress.failed(&name, &reason),
        }
        Ok(())
    }
}

fn port_is_taken(port: u16) -> bool {
    std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port)).is_err()
}

/// What was asked for, over what is there, over the defaults.
fn settle(options: &UpOptions, present: Option<&Cluster>) -> Result<Settings, UpError> {
    let mut settings = match present {
        Some(cluster) => cluster.settings.clone(),
        None => Settings {
            workers: DEFAULT_WORKERS,
            store: StoreKind::Embedded,
            mirrors: Vec::new(),
            flags: Vec::new(),
            simulated_nodes: 0,
            simulation: None,
        },
    };
    if let Some(workers) = options.workers {
        settings.workers = workers;
    }
    if settings.workers > MAX_WORKERS {
        return Err(UpError::TooManyWorkers);
    }
    if let Some(store) = &options.store {
        if present.is_some() && settings.store != *store {
            return Err(UpError::OtherStore(options.name.clone()));
        }
        settings.store = store.clone();
    }
    if let Some(mirrors) = &options.mirrors {
        settings.mirrors = mirrors.clone();
    }
    if let Some((unknown, _)) = options
        .flags
        .iter()
        .find(|(component, _)| !COMPONENTS.contains(&component.as_str()))
    {
        return Err(UpError::UnknownComponent(unknown.clone()));
    }
    let asked = |component: &String| options.flags.iter().any(|(asked, _)| asked == component);
    settings.flags.retain(|(component, _)| !asked(component));
    let more = options.flags.iter().filter(|(_, flag)| !flag.is_empty());
    settings.flags.extend(more.cloned());
    if let Some(nodes) = options.simulated_nodes {
        settings.simulated_nodes = nodes;
    }
    if options.simulation.is_some() {
        settings.simulation.clone_from(&options.simulation);
    }
    Ok(settings)
}

/// A new cluster, without nodes yet.
async fn found(name: &str, settings: &Settings, netlink: &Netlink) -> Result<Cluster, UpError> {
    let taken: Vec<u8> = Cluster::all()
        .iter()
        .map(|cluster| cluster.number)
        .collect();
    let (number, subnet) = machine::choose_subnet(netlink, &taken).await?;
    Ok(Cluster {
        name: name.into(),
        number,
        subnet,
        mtu: netlink.default_mtu().await.unwrap_or(1500),
        port: 0,
        settings: settings.clone(),
        nodes: Vec::new(),
        kubeconfigs: Vec::new(),
        forwarding_before: None,
    })
}

/// Gives the cluster the nodes that its settings ask for; returns those that are too many.
fn arrange(cluster: &mut Cluster, settings: Settings) -> Vec<NodeState> {
    let name = cluster.name.clone();
    let wanted =
        std::iter::once(format!("{name}-control-plane")).chain((1..=settings.workers).map(|nth| {
            match nth {
                1 => format!("{name}-worker"),
                nth => format!("{name}-worker{nth}"),
            }
        }));
    let wanted: Vec<String> = wanted.collect();
    cluster.settings = settings;
    let (kept, surplus) = std::mem::take(&mut cluster.nodes)
        .into_iter()
        .partition(|node| wanted.contains(&node.name));
    cluster.nodes = kept;
    for (nth, name) in (0_u8..).zip(wanted) {
        if cluster.node(&name).is_none() {
            cluster.nodes.push(NodeState {
                name,
                control_plane: nth == 0,
                // .1 is the bridge.
                address: cluster.subnet.nth(u32::from(nth) + 2),
                pods: Network::new(PODS.nth(u32::from(nth) << 8), 24),
                process: None,
            });
        }
    }
    surplus
}

fn check_programs(settings: &Settings) -> Result<(), UpError> {
    let mut wanted = vec![
        ("containerd", "containerd"),
        ("ctr", "containerd"),
        ("runc", "runc"),
        ("nft", "nftables"),
    ];
    if matches!(&settings.store, StoreKind::Etcd { servers, .. } if servers.is_empty()) {
        wanted.push(("etcd", "etcd-server"));
    }
    let mut missing: Vec<(&str, &str)> = wanted
        .into_iter()
        .filter(|(program, _)| find_program(program).is_none())
        .collect();
    if containerd::plugin_folder().is_none() {
        missing.push(("CNI plugins", "containernetworking-plugins"));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let join = |names: Vec<&str>, separator: &str| names.join(separator);
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    Err(UpError::Missing(
        join(missing.iter().map(|(program, _)| *program).collect(), ", "),
        join(packages, " "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(workers: u8) -> Settings {
        Settings {
            workers,
            store: StoreKind::Embedded,
            mirrors: Vec::new(),
            flags: Vec::new(),
            simulated_nodes: 0,
            simulation: None,
        }
    }

    fn cluster() -> Cluster {
        Cluster {
            name: "lab".into(),
            number: 3,
            subnet: Network::new([172, 30, 3, 0].into(), 24),
            mtu: 1500,
            port: 0,
            settings: settings(0),
            nodes: Vec::new(),
            kubeconfigs: Vec::new(),
            forwarding_before: None,
        }
    }

    #[test]
    fn nodes_have_kinds_names_and_addresses_in_order() {
        let mut cluster = cluster();
        assert!(arrange(&mut cluster, settings(2)).is_empty());
        let nodes: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| {
                (
                    node.name.as_str(),
                    node.address.to_string(),
                    node.pods.to_string(),
                )
            })
            .collect();
        let expected = [
            ("lab-control-plane", "172.30.3.2", "10.244.0.0/24"),
            ("lab-worker", "172.30.3.3", "10.244.1.0/24"),
            ("lab-worker2", "172.30.3.4", "10.244.2.0/24"),
        ];
        assert_eq!(
            nodes,
            expected.map(|(name, address, pods)| (name, address.to_string(), pods.to_string()))
        );
    }

    #[test]
    fn fewer_workers_leave_the_others_as_they_are() {
        let mut cluster = cluster();
        arrange(&mut cluster, settings(2));
        let before = cluster.nodes.clone();
        let surplus = arrange(&mut cluster, settings(1));
        assert_eq!(surplus, before[2..]);
        assert_eq!(cluster.nodes, before[..2]);
        arrange(&mut cluster, settings(2));
        assert_eq!(cluster.nodes, before);
    }

    #[test]
    fn what_is_not_asked_for_stays_and_the_store_cannot_change() {
        let mut present = cluster();
        present.settings = settings(5);
        let options = UpOptions {
            name: "lab".into(),
            ..UpOptions::default()
        };
        assert_eq!(settle(&options, Some(&present)).expect("fine").workers, 5);
        assert_eq!(settle(&options, None).expect("fine").workers, 2);
        let etcd = StoreKind::Etcd {
            servers: vec![],
            authority: None,
            certificate: None,
            key: None,
        };
        let options = UpOptions {
            store: Some(etcd),
            ..options
        };
        assert!(matches!(
            settle(&options, Some(&present)),
            Err(UpError::OtherStore(_))
        ));
        assert!(settle(&options, None).is_ok());
    }

    #[test]
    fn a_components_flags_replace_its_own_and_no_others() {
        let flags = |flags: &[(&str, &str)]| -> Vec<(String, String)> {
            let owned = flags.iter().map(|(a, b)| (a.to_string(), b.to_string()));
            owned.collect()
        };
        let mut present = cluster();
        present.settings.flags = flags(&[("kubelet", "--a"), ("etcd", "--b"), ("etcd", "--c")]);
        let settled = |asked: &[(&str, &str)]| {
            let options = UpOptions {
                name: "lab".into(),
                flags: flags(asked),
                ..UpOptions::default()
            };
            settle(&options, Some(&present)).map(|settings| settings.flags)
        };
        assert_eq!(
            settled(&[("etcd", "--d")]).expect("fine"),
            flags(&[("kubelet", "--a"), ("etcd", "--d")])
        );
        assert_eq!(
            settled(&[("etcd", "")]).expect("fine"),
            flags(&[("kubelet", "--a")])
        );
        assert!(matches!(
            settled(&[("api-server", "--x")]),
            Err(UpError::UnknownComponent(_))
        ));
    }

    #[test]
    fn every_kubeconfig_is_remembered_as_it_was_first() {
        let mut cluster = cluster();
        for (path, created) in [("/a", true), ("/b", false), ("/a", false)] {
            cluster.remember_kubeconfig(UserKubeconfig {
                path: path.into(),
                created,
                previous_context: None,
            });
        }
        let known = cluster.kubeconfigs.iter();
        let known: Vec<_> = known.map(|k| (k.path.to_str(), k.created)).collect();
        assert_eq!(known, [(Some("/a"), true), (Some("/b"), false)]);
    }

    #[test]
    fn workers_that_are_no_more_are_known_by_their_names() {
        let mut cluster = cluster();
        arrange(&mut cluster, settings(1));
        for (name, lost) in [
            ("lab-worker", false),
            ("lab-worker2", true),
            ("lab-worker17", true),
            ("lab-control-plane", false),
            ("lab-worker-mine", false),
            ("other-worker2", false),
        ] {
            assert_eq!(cluster.lost_worker(name), lost, "{name}");
        }
    }
}
