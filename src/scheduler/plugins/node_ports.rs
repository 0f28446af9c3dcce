//! NodePorts: two pods cannot have the same host port.

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::{HostPort, Pod},
};

pub struct NodePorts;

fn collide(wanted: &[HostPort], used: &[HostPort]) -> bool {
    wanted
        .iter()
        .any(|port| used.iter().any(|other| port.conflicts(other)))
}

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Filter<'a> {
        if pod.host_ports.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |node: &NodeInfo| {
            if !collide(&pod.host_ports, &node.ports) {
                return Ok(());
            }
            let reason = "node(s) didn't have free ports for the requested pod ports";
            Err(vec![Rejection::resolvable(reason)])
        })
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(_) => true,
            Change::PodDeleted(gone) => collide(&pod.host_ports, &gone.host_ports),
            _ => false,
        }
    }
}
