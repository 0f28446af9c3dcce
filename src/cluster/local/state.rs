//! What a cluster is and where its nodes run, kept in `cluster.json`: enough to find and end all of it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::netlink::Network;
use crate::paths::{Paths, ROOT};
use crate::process::Process;

/// All pods; node `n` has the `n`th /24 of it.
pub const PODS: Network = Network::new(Ipv4Addr::new(10, 244, 0, 0), 16);
/// All services.
pub const SERVICES: Network = Network::new(Ipv4Addr::new(10, 96, 0, 0), 16);
/// The `kubernetes` service, and the cluster's DNS.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Most workers: node subnets and the pods' network are cut into /24s.
pub const MAX_WORKERS: u8 = 200;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} cannot be read: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error("cluster {0} does not exist; skiff up --name {0} makes it")]
    NoCluster(String),
    #[error(
        "{0:?} is no cluster name: at most 20 lower-case letters, digits and dashes, a letter first"
    )]
    Name(String),
    #[error("cannot lock {path}: {source}")]
    Lock {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Where the API server keeps its objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum StoreKind {
    /// In the API server's process.
    #[default]
    Embedded,
    /// etcd: the servers named, or one of its own on the control-plane node when there are none.
    Etcd {
        servers: Vec<String>,
        /// Replace the cluster's own `pki/etcd` for servers that others run.
        authority: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    },
}

/// Where images of one registry come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// Such as `docker.io`.
    pub registry: String,
    /// Such as `http://127.0.0.1:5000`.
    pub url: String,
}

impl Mirror {
    /// The port, when the mirror is on the machine's own loopback address.
    pub fn loopback_port(&self) -> Option<u16> {
        let (scheme, rest) = self.url.split_once("://")?;
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, if scheme == "https" { 443 } else { 80 }),
        };
        let loopback = host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback());
        loopback.then_some(port)
    }
}

/// What `skiff up` was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub workers: u8,
    pub store: StoreKind,
    pub mirrors: Vec<Mirror>,
    /// More flags for components, by component (`kube-controller-manager`).
    pub flags: Vec<(String, String)>,
    /// Nodes without containers, and the file with the rules their pods follow, as text.
    #[serde(default)]
    pub simulated_nodes: u32,
    #[serde(default)]
    pub simulation: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub name: String,
    pub control_plane: bool,
    pub address: Ipv4Addr,
    pub pods: Network,
    /// The node's first process, when it was started last.
    pub process: Option<Process>,
}

impl NodeState {
    pub fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_alive)
    }
}

/// Where skiff's entry is in the user's kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserKubeconfig {
    pub path: PathBuf,
    pub created: bool,
    pub previous_context: Option<String>,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    pub name: String,
    /// Tells clusters of this machine apart: the third byte of the node subnet, and the priority of its routes.
    pub number: u8,
    pub subnet: Network,
    pub mtu: u32,
    /// The port of 127.0.0.1 that leads to the API server; 0 before it was chosen.
    pub port: u16,
    pub settings: Settings,
    pub nodes: Vec<NodeState>,
    /// Every file that an `up` put the cluster into.
    #[serde(default)]
    pub kubeconfigs: Vec<UserKubeconfig>,
    /// `net.ipv4.ip_forward` before the first cluster of this boot turned it on.
    pub forwarding_before: Option<String>,
}

impl Cluster {
    /// Reads a cluster; `None` when it does not exist.
    pub fn load(name: &str) -> Result<Option<Self>, StateError> {
        check_name(name)?;
        let path = Paths::of(name).state();
        let Some(text) = files::read_optional(&path)? else {
            return Ok(None);
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| StateError::Damaged {
                path,
                reason: error.to_string(),
            })
    }

    /// Reads a cluster that must exist.
    pub fn open(name: &str) -> Result<Self, StateError> {
        Self::load(name)?.ok_or_else(|| StateError::NoCluster(name.into()))
    }

    /// Every readable cluster of the machine.
    pub fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(ROOT)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| Self::load(&name).ok().flatten())
            .collect()
    }

    pub fn save(&self) -> Result<(), StateError> {
        let paths = self.paths();
        files::create_directory(paths.root(), 0o755)?;
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        Ok(files::write(&paths.state(), &text, 0o600)?)
    }

    pub fn paths(&self) -> Paths {
        Paths::of(&self.name)
    }

    pub fn bridge(&self) -> String {
        bridge_name(&self.name)
    }

    /// The bridge's address, which is the nodes' gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        self.subnet.nth(1)
    }

    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.iter().find(|node| node.name == name)
    }

    pub fn node_mut(&mut self, name: &str) -> Option<&mut NodeState> {
        self.nodes.iter_mut().find(|node| node.name == name)
    }

    pub fn control_plane(&self) -> Option<&NodeState> {
        self.nodes.iter().find(|node| node.control_plane)
    }

    /// Whether the name is a worker's that the cluster can have had and does not have.
    pub fn lost_worker(&self, name: &str) -> bool {
        let number = name.strip_prefix(&format!("{}-worker", self.name));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
            && self.node(name).is_none()
    }

    /// Records where the cluster's context was put, once for each file.
    pub fn remember_kubeconfig(&mut self, entry: UserKubeconfig) {
        if self
            .kubeconfigs
            .iter()
            .all(|known| known.path != entry.path)
        {
            self.kubeconfigs.push(entry);
        }
    }

    pub fn context(&self) -> String {
        context_name(&self.name)
    }
}

pub fn context_name(cluster: &str) -> String {
    format!("skiff-{cluster}")
}

/// Interface names have at most 15 bytes; a long cluster name is replaced by its hash.
pub fn bridge_name(cluster: &str) -> String {
    let name = format!("skiff-{cluster}");
    if name.len() <= 15 {
        name
    } else {
        format!("skiff-{}", short_hash(cluster))
    }
}

/// The bridge's end of a node's link.
pub fn link_name(cluster: &str, node: &str) -> String {
    format!("skf{}", short_hash(&format!("{cluster}/{node}")))
}

fn short_hash(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text)
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A cluster's name becomes part of paths, host names and interface names.
pub fn check_name(name: &str) -> Result<(), StateError> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let framed = name.starts_with(|first: char| first.is_ascii_lowercase()) && !name.ends_with('-');
    if plain && framed && name.len() <= 20 {
        Ok(())
    } else {
        Err(StateError::Name(name.into()))
    }
}

/// One change to the machine's clusters at a time. Released when dropped, or when the process dies.
pub struct MachineLock {
    _lock: Flock<std::fs::File>,
}

/// Waits for the lock on the folder of all clusters.
pub fn lock_machine() -> Result<MachineLock, StateError> {
    let path = Path::new(ROOT);
    let failed = |source: std::io::Error| StateError::Lock {
        path: path.into(),
        source,
    };
    loop {
        files::create_directory(path, 0o755)?;
        let folder = std::fs::File::open(path).map_err(failed)?;
        let inode = folder.metadata().map_err(failed)?.ino();
        let lock = Flock::lock(folder, FlockArg::LockExclusive)
            .map_err(|(_, error)| failed(error.into()))?;
        // The last `down` removes the folder: then the lock is on one that nobody else will open.
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.ino() == inode) {
            return Ok(MachineLock { _lock: lock });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_folder_or_break_a_host_name_are_refused() {
        for good in ["lab", "a", "two-words", "x1"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "..",
            "a/b",
            "Lab",
            "-a",
            "a-",
            "1a",
            "a_b",
            "a234567890123456789012",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn interface_names_fit_and_differ() {
        assert_eq!(bridge_name("lab"), "skiff-lab");
        let long = bridge_name("a-very-long-name");
        assert!(long.len() <= 15, "{long}");
        assert_ne!(long, bridge_name("a-very-long-nama"));
        assert_eq!(link_name("lab", "lab-worker").len(), 11);
    }

    #[test]
    fn only_mirrors_on_this_machine_are_forwarded() {
        let port = |url: &str| {
            Mirror {
                registry: "docker.io".into(),
                url: url.into(),
            }
            .loopback_port()
        };
        assert_eq!(port("http://127.0.0.1:5000"), Some(5000));
        assert_eq!(port("http://localhost/v2"), Some(80));
        assert_eq!(port("https://[::1]:5443/"), Some(5443));
        assert_eq!(port("https://127.0.0.2"), Some(443));
        assert_eq!(port("http://mirror.example:5000"), None);
        assert_eq!(port("nonsense"), None);
    }
}
