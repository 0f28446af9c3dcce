//! NodeName: a pod that names its node runs there only.

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::Pod,
};

pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Filter<'a> {
        if pod.node_name.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |node: &NodeInfo| {
            if node.name == pod.node_name {
                return Ok(());
            }
            Err(vec![Rejection::unresolvable(
                "node(s) didn't match the requested node name",
            )])
        })
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        matches!(change, Change::NodeAdded(node) if node.name == pod.node_name)
    }
}
