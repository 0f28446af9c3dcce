//! The node as an object of the API: registration, status, lease, and the pod
//! CIDR handed to the runtime. It must know nothing of pods.
//!
//! Data flow: `machine` and the runtime's status are observed every ten seconds
//! → `status` computes → a PATCH if something changed or five minutes passed.
//! Others read the node and the runtime's health from [`NodeState`].

pub mod lease;
pub mod machine;
pub mod registration;
pub mod status;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use client::events::{EventKind, ObjectReference, Recorder};
use client::informer::{Factory, Informer, Selectors};
use client::{Client, ClientError, Patch, options::WriteOptions};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config::KubeletConfig;
use crate::cri::{Runtime, v1};
use crate::k8s::{ContainerImage, Node, NodeStatus};
use machine::Machine;
use status::Observed;

/// How often a node that is not ready yet is looked at: at its start, and later on.
const STARTING_INTERVAL: Duration = Duration::from_millis(100);
const UNREADY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a node is starting.
const STARTING_TIME: Duration = Duration::from_secs(60);

/// What the rest of the kubelet asks of the node; clones share it.
#[derive(Clone)]
pub struct NodeState(Arc<Shared>);

struct Shared {
    node: watch::Sender<Arc<Node>>,
    /// Why no pod with its own network can be started; empty when it can.
    network_problem: watch::Sender<String>,
    images_changed: Notify,
    addresses: Vec<IpAddr>,
    machine: Machine,
}

impl NodeState {
    fn new(addresses: Vec<IpAddr>, machine: Machine) -> Self {
        Self(Arc::new(Shared {
            node: watch::Sender::new(Arc::new(Node::default())),
            network_problem: watch::Sender::new(
                "container runtime status check may not have completed yet".to_owned(),
            ),
            images_changed: Notify::new(),
            addresses,
            machine,
        }))
    }

    /// The Node as last seen in, or written to, the API.
    pub fn node(&self) -> Arc<Node> {
        self.0.node.borrow().clone()
    }

    /// Why the pod network is not ready; empty when it is.
    pub fn network_problem(&self) -> watch::Receiver<String> {
        self.0.network_problem.subscribe()
    }

    /// Has the image list in the Node's status renewed.
    pub fn images_changed(&self) {
        self.0.images_changed.notify_one();
    }

    /// The node's addresses, the primary one first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0.addresses
    }

    /// The machine's facts.
    pub fn machine(&self) -> &Machine {
        &self.0.machine
    }
}

/// Keeps the Node up to date.
pub struct NodeAgent {
    client: Client,
    config: Arc<KubeletConfig>,
    runtime: Runtime,
    recorder: Recorder,
    state: NodeState,
    observed: Observed,
    images_stale: bool,
    pod_cidr: String,
    started: Instant,
}

impl NodeAgent {
    /// Observes the machine once; the runtime need not be up.
    pub fn new(
        client: Client,
        config: Arc<KubeletConfig>,
        runtime: Runtime,
        recorder: Recorder,
    ) -> Self {
        let addresses = match config.node_ips.is_empty() {
            true => machine::primary_address().into_iter().collect(),
            false => config.node_ips.clone(),
        };
        let machine = Machine::read();
        Self {
            state: NodeState::new(addresses.clone(), machine.clone()),
            observed: Observed {
                machine,
                addresses,
                ..Observed::default()
            },
            client,
            config,
            runtime,
            recorder,
            images_stale: true,
            pod_cidr: String::new(),
            started: Instant::now(),
        }
    }

    /// The handle for the rest of the kubelet.
    pub fn state(&self) -> NodeState {
        self.state.clone()
    }

    /// Registers the node, then reports until the shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        self.event("Starting", "Starting kubelet.");
        self.observe().await;
        let node = tokio::select! {
            () = shutdown.cancelled() => return,
            node = registration::register(&self.client, &self.config, &self.observed) => node,
        };
        tracing::info!(node = self.config.node_name, "registered the node");
        let uid = node.metadata.uid.clone().unwrap_or_default();
        self.announce(
            &NodeStatus::default(),
            &node.status.clone().unwrap_or_default(),
        );
        self.state.0.node.send_replace(Arc::new(node));
        let lease = lease::run(
            self.client.clone(),
            self.config.node_name.clone(),
            uid,
            self.config.node_lease_duration,
            shutdown.clone(),
        );
        let factory = Factory::new(self.client.clone(), shutdown.clone());
        let selector = Selectors::fields(format!("metadata.name={}", self.config.node_name));
        let informer = factory.informer::<Node>(&api::r::NODES, "", selector);
        tokio::select! {
            () = lease => {}
            () = self.report(informer, &shutdown) => {}
        }
    }

    async fn report(&mut self, informer: Informer<Node>, shutdown: &CancellationToken) {
        let mut changes = informer.subscribe();
        let state = self.state.clone();
        let mut reported: Option<Instant> = None;
        loop {
            self.tell_pod_cidr().await;
            let now = Instant::now();
            let due =
                reported.is_none_or(|at| now - at >= self.config.node_status_report_frequency);
            match self.send_status(due).await {
                Ok(true) => reported = Some(now),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot update the node's status, will be retried")
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.interval()) => self.observe().await,
                () = state.0.images_changed.notified() => {
                    self.images_stale = true;
                    self.observe().await;
                }
                delta = changes.recv() => if let Some(node) = delta.new {
                    self.take(node);
                },
            }
        }
    }

    /// Takes over a Node that is newer than the known one.
    fn take(&self, node: Arc<Node>) {
        let version = |node: &Node| {
            let version = node.metadata.resource_version.as_deref();
            version.and_then(|version| version.parse::<u64>().ok())
        };
        self.state.0.node.send_if_modified(|known| {
            let newer = version(&node) > version(known) || node.metadata.uid != known.metadata.uid;
            if newer {
                *known = node;
            }
            newer
        });
    }

    fn interval(&self) -> Duration {
        match self.observed.runtime_problems.is_empty() {
            true => self.config.node_status_update_frequency,
            false if self.started.elapsed() < STARTING_TIME => STARTING_INTERVAL,
            false => UNREADY_INTERVAL,
        }
    }

    async fn observe(&mut self) {
        self.observed.disk = machine::disk(&self.config.root_dir);
        self.observed.memory_available = machine::available_memory();
        self.observed.pids = machine::pids();
        if self.observed.runtime_version.is_empty() {
            if let Ok(version) = self.runtime.version().await {
                self.observed.runtime_version =
                    format!("{}://{}", version.runtime_name, version.runtime_version);
            }
        }
        let (problems, network) = match self.runtime.status().await {
            Ok(status) => problems(&status.status.unwrap_or_default()),
            Err(error) => {
                tracing::debug!(%error, "the container runtime does not answer");
                // It may come back as another version.
                self.observed.runtime_version.clear();
                (
                    vec!["container runtime is down".to_owned()],
                    "container runtime is down".to_owned(),
                )
            }
        };
        self.observed.runtime_problems = problems;
        self.state.0.network_problem.send_if_modified(|before| {
            let changed = *before != network;
            before.clone_from(&network);
            changed
        });
        if self.images_stale && self.observed.runtime_problems.is_empty() {
            if let Ok(images) = self.runtime.list_images().await {
                self.observed.images = images.into_iter().map(image).collect();
                self.images_stale = false;
            }
        }
    }

    /// Sends the status if it changed, or `due` it is; says whether it was sent.
    async fn send_status(&mut self, due: bool) -> Result<bool, ClientError> {
        let node = self.state.node();
        let before = node.status.clone().unwrap_or_default();
        let after = status::status(&self.config, &self.observed, &before, &clock::now_time());
        if !due && !status::differs(&before, &after) {
            return Ok(false);
        }
        if due {
            self.images_stale = true;
        }
        let json = |status: &NodeStatus| serde_json::to_value(status).unwrap_or_default();
        let Some(patch) = crate::patch::node_status(&json(&before), &json(&after)) else {
            return Ok(true);
        };
        let name = &self.config.node_name;
        let patch = Patch::Strategic(patch);
        let options = WriteOptions::default();
        let stored: Node = self
            .client
            .patch(&api::r::NODES, "", name, "status", &patch, &options)
            .await?;
        self.take(Arc::new(stored));
        self.announce(&before, &after);
        Ok(true)
    }

    /// An event for each condition that turned.
    fn announce(&self, before: &NodeStatus, after: &NodeStatus) {
        let find = |status: &NodeStatus, kind: &str| {
            let mut conditions = status.conditions.iter().flatten();
            conditions
                .find(|c| c.type_ == kind)
                .map(|c| c.status.clone())
        };
        for condition in after.conditions.iter().flatten() {
            if find(before, &condition.type_).as_ref() == Some(&condition.status) {
                continue;
            }
            let reason = match (condition.type_.as_str(), condition.status.as_str()) {
                ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
                ("MemoryPressure", _) => "NodeHasSufficientMemory",
                ("DiskPressure", "True") => "NodeHasDiskPressure",
                ("DiskPressure", _) => "NodeHasNoDiskPressure",
                ("PIDPressure", "True") => "NodeHasInsufficientPID",
                ("PIDPressure", _) => "NodeHasSufficientPID",
                ("Ready", "True") => "NodeReady",
                ("Ready", _) => "NodeNotReady",
                _ => continue,
            };
            self.event(
                reason,
                &format!("Node {} status is now: {reason}", self.config.node_name),
            );
        }
    }

    /// Upstream's node events name the node as its own uid.
    fn event(&self, reason: &str, message: &str) {
        let name = self.config.node_name.clone();
        let reference = ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            uid: name.clone(),
            name,
            ..ObjectReference::default()
        };
        self.recorder
            .event(&reference, EventKind::Normal, reason, message);
    }

    /// Runtimes that make their CNI configuration from a template wait for this.
    async fn tell_pod_cidr(&mut self) {
        let node = self.state.node();
        let spec = node.spec.as_ref();
        let of_node = spec.and_then(|spec| match spec.pod_cidrs.as_deref() {
            Some([]) | None => spec.pod_cidr.clone(),
            Some(all) => Some(all.join(",")),
        });
        let Some(pod_cidr) = of_node.or_else(|| self.config.pod_cidr.clone()) else {
            return;
        };
        if pod_cidr.is_empty() || pod_cidr == self.pod_cidr {
            return;
        }
        match self.runtime.update_pod_cidr(&pod_cidr).await {
            Ok(()) => self.pod_cidr = pod_cidr,
            Err(error) => {
                tracing::warn!(%error, pod_cidr, "cannot tell the runtime the pod CIDR, will be retried")
            }
        }
    }
}

/// What keeps the node from being ready, and what keeps pods from their network.
fn problems(status: &v1::RuntimeStatus) -> (Vec<String>, String) {
    let describe = |condition: &v1::RuntimeCondition| {
        format!(
            "{}={} reason:{} message:{}",
            condition.r#type, condition.status, condition.reason, condition.message
        )
    };
    let find = |kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.r#type == kind)
    };
    let mut problems = Vec::new();
    if let Some(condition) = find("RuntimeReady").filter(|condition| !condition.status) {
        problems.push(format!(
            "container runtime not ready: {}",
            describe(condition)
        ));
    }
    let mut network = String::new();
    if let Some(condition) = find("NetworkReady").filter(|condition| !condition.status) {
        network = format!(
            "container runtime network not ready: {}",
            describe(condition)
        );
        problems.push(network.clone());
    }
    (problems, network)
}

fn image(image: v1::Image) -> ContainerImage {
    let names = image
        .repo_digests
        .into_iter()
        .chain(image.repo_tags)
        .collect();
    ContainerImage {
        names: Some(names),
        size_bytes: i64::try_from(image.size).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_network_is_told_as_upstream_tells_it() {
        let condition = |kind: &str, status: bool| v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: "NetworkPluginNotReady".to_owned(),
            message: "Network plugin returns error: cni plugin not initialized".to_owned(),
        };
        let status = v1::RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", true),
                condition("NetworkReady", false),
            ],
        };
        let expected = "container runtime network not ready: NetworkReady=false \
            reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized";
        assert_eq!(
            problems(&status),
            (vec![expected.to_owned()], expected.to_owned())
        );
    }
}
