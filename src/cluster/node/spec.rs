//! What a node is, as told to its first process: plain data, written to the node's `spec.json`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::netlink::Network;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    pub cluster: String,
    pub name: String,
    /// The node's folder on the machine.
    pub directory: PathBuf,
    pub network: NodeNetwork,
    /// Bound over `/etc/kubernetes/pki` (the control-plane node's).
    pub pki: Option<PathBuf>,
    /// Ports of the machine's 127.0.0.1 that answer at the same address inside the node.
    pub forwarded_ports: Vec<u16>,
    /// A port of the machine's 127.0.0.1 whose listening socket the service with `listener` gets as its
    /// standard input. 0 lets the kernel choose.
    pub listen_port: Option<u16>,
    pub services: Vec<Service>,
}

/// How a node is joined to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNetwork {
    pub bridge: String,
    /// The bridge's end of the node's link.
    pub link: String,
    pub address: Ipv4Addr,
    pub prefix: u8,
    /// The bridge's address.
    pub gateway: Ipv4Addr,
    pub mtu: u32,
    /// All pods of the cluster.
    pub pods: Network,
    /// The other nodes' pods, each by its node's address.
    pub routes: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub to: Network,
    pub via: Ipv4Addr,
}

/// A process that the node's first process keeps running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its log file's name, and what others wait for.
    pub name: String,
    /// Looked up in `/run/skiff/bin`, then in `$PATH`.
    pub program: String,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// All of these must hold before it is started for the first time.
    pub after: Vec<Condition>,
    pub readiness: Readiness,
    /// Its standard input is the socket of `NodeSpec::listen_port`.
    pub listener: bool,
}

impl Service {
    pub fn new(name: &str, program: &str) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            after: Vec::new(),
            readiness: Readiness::Started,
            listener: false,
        }
    }

    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn after(mut self, service: &str) -> Self {
        self.after.push(Condition::Ready(service.into()));
        self
    }

    pub fn ready_when(mut self, readiness: Readiness) -> Self {
        self.readiness = readiness;
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Another service of this node is ready.
    Ready(String),
    /// The address accepts connections. Given up after a few seconds, since the service can wait better.
    Reachable(SocketAddr),
}

/// When a service counts as ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// As soon as it runs.
    Started,
    /// When it says so on `$NOTIFY_SOCKET` (sd_notify).
    Notified,
    /// When it has ended with 0. It is not started again then.
    Ended,
}

/// What a node tells the one who starts it, a JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The node's cgroups hold what starts it.
    Joined,
    /// The first process runs; its number is the machine's.
    Started {
        pid: i32,
    },
    /// The port of `NodeSpec::listen_port`.
    Listening {
        port: u16,
    },
    Ready {
        service: String,
    },
    /// A service ended where it should not have; it is started again.
    Restarting {
        service: String,
        reason: String,
    },
    /// Every service has been ready.
    Complete,
    /// The node cannot start.
    Failed {
        reason: String,
    },
}
