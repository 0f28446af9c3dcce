//! Where the kubelet keeps things on disk; upstream's layout, which log
//! shippers, volume tools and people know.

use std::path::{Path, PathBuf};

use crate::k8s::Pod;
use crate::pod::spec;

/// The folders of one pod.
#[derive(Clone, Debug)]
pub struct PodPaths {
    root: PathBuf,
    logs: PathBuf,
}

impl PodPaths {
    /// The folders of `pod` under the kubelet's root and log folders.
    pub fn new(root_dir: &Path, logs_dir: &Path, pod: &Pod) -> Self {
        let log_folder = format!(
            "{}_{}_{}",
            spec::namespace(pod),
            spec::name(pod),
            spec::uid(pod)
        );
        Self {
            root: pods(root_dir).join(spec::uid(pod)),
            logs: logs_dir.join(log_folder),
        }
    }

    /// Everything of the pod but its logs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The pod's logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// A volume; `plugin` is such as `empty-dir`.
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.root
            .join("volumes")
            .join(format!("kubernetes.io~{plugin}"))
            .join(name)
    }

    /// The folder of all volumes.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// Where bind mounts of sub paths are.
    pub fn subpaths(&self) -> PathBuf {
        self.root.join("volume-subpaths")
    }

    /// Termination messages of one container.
    pub fn container(&self, name: &str) -> PathBuf {
        self.root.join("containers").join(name)
    }

    /// The pod's /etc/hosts.
    pub fn etc_hosts(&self) -> PathBuf {
        self.root.join("etc-hosts")
    }
}

/// The folder that holds one folder per pod.
pub fn pods(root_dir: &Path) -> PathBuf {
    root_dir.join("pods")
}

/// `<container>/<instance>.log`, relative to the pod's log folder.
pub fn log_file(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}
