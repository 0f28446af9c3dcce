//! NodePorts: two pods cannot have the same host port.

use crate::{
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
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

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let pod = ask.pod;
        if pod.host_ports.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |node: &NodeInfo, why: &mut Vec<Rejection>| {
            if collide(&pod.host_ports, &node.ports) {
                why.push(Rejection::resolvable(
                    "node(s) didn't have free ports for the requested pod ports",
                ));
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::PodDeleted, Event::NominationGone]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(_) | Change::NominationGone => true,
            Change::PodDeleted(gone) => collide(&pod.host_ports, &gone.host_ports),
            _ => false,
        }
    }
}
