//! Removes a cluster without a trace, whatever state it is in.

use std::path::{Path, PathBuf};

use super::machine::{self, MachineError};
use super::nodes::{self, NodeError};
use super::state::{
    Cluster, NodeState, StateError, UserKubeconfig, bridge_name, check_name, context_name,
    lock_machine,
};
use crate::cgroup::{CgroupError, Cgroups};
use crate::files::{self, FileError};
use crate::kubeconfig::{self, KubeconfigError, Merged};
use crate::netlink::{Netlink, NetlinkError};
use crate::node::network::NetworkError;
use crate::paths::{Paths, ROOT};
use crate::progress::Progress;

#[derive(Debug, thiserror::Error)]
pub enum DownError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("a node's end could not be waited for: {0}")]
    Join(#[from] tokio::task::JoinError),
}

/// Removes cluster `name`. One that does not exist is no error; then only what carries its name is looked for.
pub async fn down(
    name: &str,
    kubeconfig: Option<&Path>,
    progress: &Progress,
) -> Result<(), DownError> {
    check_name(name)?;
    let _lock = lock_machine()?;
    let known = match Cluster::load(name) {
        Ok(known) => known,
        Err(error @ StateError::Damaged { .. }) => {
            progress.warn(&format!(
                "{error}; removing what carries the cluster's name"
            ));
            None
        }
        Err(error) => return Err(error.into()),
    };
    if known.is_none() && !has_traces(name).await? {
        // The lock's folder is not left behind either.
        let _ = std::fs::remove_dir(ROOT);
        return Ok(());
    }
    // Each part is removed whatever became of the others; the record goes last, so that what failed can be tried again.
    let nodes = known
        .as_ref()
        .map(|cluster| cluster.nodes.as_slice())
        .unwrap_or_default();
    let ended = end_nodes(name, nodes, progress).await;
    progress.begin("network", "Removing the network");
    let removed = remove_network(name, known.as_ref()).await;
    if removed.is_ok() {
        progress.done("network", "Network removed");
    }
    let recorded = known
        .as_ref()
        .map(|cluster| cluster.kubeconfigs.clone())
        .unwrap_or_default();
    let taken_out = take_out(name, recorded, kubeconfig);
    ended?;
    removed?;
    taken_out?;
    files::remove(Paths::of(name).root())?;
    // The last cluster takes the folder with it.
    let _ = std::fs::remove_dir(ROOT);
    Ok(())
}

/// Takes the cluster out of every kubeconfig it is known to be in; without a record, out of the user's.
fn take_out(
    name: &str,
    recorded: Vec<UserKubeconfig>,
    kubeconfig: Option<&Path>,
) -> Result<(), KubeconfigError> {
    let mut files: Vec<(PathBuf, Merged)> = recorded
        .into_iter()
        .map(|recorded| {
            let merged = Merged {
                created: recorded.created,
                previous_context: recorded.previous_context,
            };
            (recorded.path, merged)
        })
        .collect();
    if files.is_empty() {
        files.push((kubeconfig::user_file(kubeconfig), Merged::default()));
    }
    let mut result = Ok(());
    for (path, merged) in files {
        // One that fails keeps none of the others.
        result = result.and(kubeconfig::remove(&path, &context_name(name), &merged));
    }
    result
}

/// Whether anything is on the machine that only a cluster of this name makes.
async fn has_traces(name: &str) -> Result<bool, DownError> {
    let netlink = Netlink::open()?;
    Ok(Paths::of(name).root().exists()
        || netlink.link(&bridge_name(name)).await.is_some()
        || Cgroups::of_cluster(name)?.exist())
}

async fn end_nodes(name: &str, nodes: &[NodeState], progress: &Progress) -> Result<(), DownError> {
    let mut ends = tokio::task::JoinSet::new();
    for node in nodes.iter().cloned() {
        progress.begin(&node.name, &format!("Stopping {}", node.name));
        let cluster = name.to_string();
        ends.spawn_blocking(move || nodes::stop(&cluster, &node).map(|()| node.name));
    }
    while let Some(ended) = ends.join_next().await {
        let node = ended??;
        progress.done(&node, &format!("{node} stopped"));
    }
    // Whatever else is in the cluster's cgroups, such as a node that was started and not recorded.
    let name = name.to_string();
    tokio::task::spawn_blocking(move || Cgroups::of_cluster(&name)?.destroy()).await??;
    Ok(())
}

async fn remove_network(name: &str, known: Option<&Cluster>) -> Result<(), DownError> {
    let netlink = Netlink::open()?;
    let mut others: Vec<Cluster> = Cluster::all()
        .into_iter()
        .filter(|other| other.name != name)
        .collect();
    let Some(cluster) = known else {
        // Without its record the routes' priority is unknown: they are those that belong to nobody. The bridge and the
        // table are found by name.
        netlink.delete_link(&bridge_name(name)).await?;
        machine::remove_rules(name)?;
        let numbers: Vec<u8> = others.iter().map(|other| other.number).collect();
        return Ok(machine::remove_stray_routes(&netlink, &numbers).await?);
    };
    machine::tear_down(&netlink, cluster, !others.is_empty()).await?;
    if let (Some(before), Some(heir)) = (&cluster.forwarding_before, others.first_mut()) {
        // The last cluster puts the setting back.
        heir.forwarding_before = Some(before.clone());
        heir.save()?;
    }
    Ok(())
}
