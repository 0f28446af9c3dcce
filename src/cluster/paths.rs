//! Where things are on the machine: everything of a cluster is under `/var/lib/skiff/<name>`.

use std::path::{Path, PathBuf};

/// The folder of all clusters.
pub const ROOT: &str = "/var/lib/skiff";

/// The folders and files of one cluster.
#[derive(Clone, Debug)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    pub fn of(cluster: &str) -> Self {
        Self {
            root: Path::new(ROOT).join(cluster),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// What the cluster is: see `state::Cluster`.
    pub fn state(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    pub fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    pub fn node(&self, node: &str) -> NodePaths {
        NodePaths {
            root: self.nodes().join(node),
        }
    }
}

/// The folders of one node. All but `spec` and the overlay's are mounted inside the node.
#[derive(Clone, Debug)]
pub struct NodePaths {
    root: PathBuf,
}

impl NodePaths {
    pub fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the node's first process is told.
    pub fn spec(&self) -> PathBuf {
        self.root.join("spec.json")
    }

    /// The node's whole `/var`.
    pub fn var(&self) -> PathBuf {
        self.root.join("var")
    }

    /// The node's changes to the machine's `/etc` (an overlay's upper folder).
    pub fn etc(&self) -> PathBuf {
        self.root.join("etc")
    }

    pub fn etc_work(&self) -> PathBuf {
        self.root.join("etc.work")
    }

    /// `/etc/cni`, `/etc/containerd`, `/etc/kubernetes`.
    pub fn own_etc(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// One file per service; `/var/log/skiff` inside.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }
}
