//! NodeUnschedulable: a cordoned node takes only pods that tolerate it.

use api::view::Taint;

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, Plugin, Rejection},
    node::{Node, NodeInfo},
    pod::Pod,
};

pub struct NodeUnschedulable;

fn accepts(pod: &Pod, node: &Node) -> bool {
    !node.is_unschedulable || {
        let taint = Taint::new("node.kubernetes.io/unschedulable", "NoSchedule");
        pod.tolerations
            .iter()
            .any(|toleration| toleration.tolerates(&taint))
    }
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Filter<'a> {
        Filter::check(move |info: &NodeInfo| match &info.node {
            Some(node) if accepts(pod, node) => Ok(()),
            _ => Err(vec![Rejection::unresolvable("node(s) were unschedulable")]),
        })
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(node) => accepts(pod, node),
            Change::NodeUpdated { old, new } => !accepts(pod, old) && accepts(pod, new),
            _ => false,
        }
    }
}
