//! NodeUnschedulable: a cordoned node takes only pods that tolerate it.

use api::view::Taint;

use crate::{
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
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

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let pod = ask.pod;
        if ask.cluster.unschedulable_nodes() == 0 {
            return Filter::Skip;
        }
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            if info.node.as_ref().is_none_or(|node| !accepts(pod, node)) {
                why.push(Rejection::unresolvable("node(s) were unschedulable"));
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::NodeUpdated]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(node) => accepts(pod, node),
            Change::NodeUpdated { old, new } => !accepts(pod, old) && accepts(pod, new),
            _ => false,
        }
    }
}
