//! What every pod's worker uses, and none owns.

use std::sync::Arc;

use client::Client;
use client::events::Recorder;
use client::informer::Informer;

use super::admission::Admitted;
use crate::cgroup::Cgroups;
use crate::config::KubeletConfig;
use crate::cri::Runtime;
use crate::images::Images;
use crate::k8s::{Pod, Service};
use crate::node::NodeState;
use crate::objects::Objects;
use crate::paths::PodPaths;
use crate::volumes::tokens::Tokens;

/// The kubelet's parts that pods need.
pub struct Shared {
    /// Settings.
    pub config: Arc<KubeletConfig>,
    /// The API.
    pub client: Client,
    /// The runtime.
    pub runtime: Runtime,
    /// `containerd`.
    pub runtime_name: String,
    /// Images of the node.
    pub images: Images,
    /// ConfigMaps and Secrets.
    pub objects: Objects,
    /// Service account tokens.
    pub tokens: Tokens,
    /// The node.
    pub node: NodeState,
    /// Events.
    pub recorder: Recorder,
    /// Services, for environments.
    pub services: Informer<Service>,
    /// Cgroups of pods.
    pub cgroups: Cgroups,
    /// What the node's pods take of it.
    pub admitted: Admitted,
}

impl Shared {
    /// The folders of a pod.
    pub fn paths(&self, pod: &Pod) -> PodPaths {
        PodPaths::new(&self.config.root_dir, &self.config.pod_logs_dir, pod)
    }

    /// The node's addresses as text.
    pub fn host_ips(&self) -> Vec<String> {
        self.node
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// The node's own resolver configuration.
    pub fn resolv_conf(&self) -> String {
        std::fs::read_to_string(&self.config.resolv_conf).unwrap_or_default()
    }
}
