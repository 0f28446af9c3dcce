//! Starting, stopping and looking at the nodes of a cluster.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::prepare::{self, PrepareError};
use super::state::{Cluster, NodeState, StateError};
use crate::cgroup::{CgroupError, Cgroups};
use crate::files;
use crate::node::launch::{self, LaunchError};
use crate::node::spec::{Event, NodeSpec};
use crate::node::supervisor::{STATUS, ServiceStatus};
use crate::pki::Pki;
use crate::process::Process;

/// How long a node's services may take to end by themselves. The first process gives them a little less.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
const KILL_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("cluster {cluster} has no node {node}")]
    NoNode { cluster: String, node: String },
    #[error("node {0} is not running; skiff node start {0} starts it")]
    NotRunning(String),
    #[error("the first process of node {node} cannot be killed: {reason}")]
    Kill { node: String, reason: String },
}

impl Cluster {
    /// A node that must exist.
    pub fn expect_node(&self, name: &str) -> Result<&NodeState, NodeError> {
        self.node(name).ok_or_else(|| NodeError::NoNode {
            cluster: self.name.clone(),
            node: name.into(),
        })
    }
}

/// The node's running first process.
pub fn first_process(node: &NodeState) -> Result<&Process, NodeError> {
    node.process
        .as_ref()
        .filter(|process| process.is_alive())
        .ok_or_else(|| NodeError::NotRunning(node.name.clone()))
}

/// Ends everything that is left of a node, then starts it. `each` hears what it tells; the first `Started` comes before
/// anything else of the node can be relied on.
pub fn start(
    cluster: &Cluster,
    spec: &NodeSpec,
    each: &mut dyn FnMut(Event),
) -> Result<(), NodeError> {
    // What an earlier first process left behind (it was killed before its child could be recorded, say).
    Cgroups::of_node(&cluster.name, &spec.name)?.destroy()?;
    Ok(launch::launch(spec, each)?)
}

/// What the node's first process is to be told now.
pub fn specify(cluster: &Cluster, node: &NodeState, pki: &Pki) -> Result<NodeSpec, NodeError> {
    Ok(prepare::node(cluster, node, pki)?)
}

/// Whether a running node was started with this very spec.
pub fn runs_as(cluster: &Cluster, spec: &NodeSpec) -> bool {
    let path = cluster.paths().node(&spec.name).spec();
    let stored = files::read_optional(&path).ok().flatten();
    let stored = stored.and_then(|text| serde_json::from_str::<NodeSpec>(&text).ok());
    stored.is_some_and(|mut stored| {
        // A port that the kernel chose is the one that was remembered.
        if stored.listen_port == Some(0) {
            stored.listen_port = spec.listen_port;
        }
        stored == *spec
    })
}

/// Asks a node to end, kills what does not, and waits until all of it is gone. One that does not run is no error.
pub fn stop(cluster: &str, node: &NodeState) -> Result<(), NodeError> {
    if let Some(process) = node.process.as_ref().filter(|process| process.is_alive()) {
        end(process).map_err(|reason| NodeError::Kill {
            node: node.name.clone(),
            reason,
        })?;
    }
    Ok(Cgroups::of_node(cluster, &node.name)?.destroy()?)
}

fn end(process: &Process) -> Result<(), String> {
    process
        .signal(Signal::SIGTERM)
        .map_err(|error| error.to_string())?;
    if process.wait_gone(STOP_PATIENCE) {
        return Ok(());
    }
    process
        .signal(Signal::SIGKILL)
        .map_err(|error| error.to_string())?;
    if process.wait_gone(KILL_PATIENCE) {
        Ok(())
    } else {
        Err("it is still there".into())
    }
}

/// What the services of a running node do.
pub fn services(process: &Process) -> Vec<ServiceStatus> {
    let path = Path::new("/proc")
        .join(process.pid.to_string())
        .join("root")
        .join(STATUS.trim_start_matches('/'));
    let text = files::read_optional(&path)
        .ok()
        .flatten()
        .unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
