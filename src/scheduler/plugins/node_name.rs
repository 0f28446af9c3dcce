//! NodeName: a pod that names its node runs there only.

use crate::{
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::Pod,
};

pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let pod = ask.pod;
        if pod.node_name.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |node: &NodeInfo, why: &mut Vec<Rejection>| {
            if node.name != pod.node_name {
                why.push(Rejection::unresolvable(
                    "node(s) didn't match the requested node name",
                ));
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        matches!(change, Change::NodeAdded(node) if node.name == pod.node_name)
    }
}
