//! NodeDeclaredFeatures (KEP-5328): a pod runs where the kubelet says it has the features that the pod needs.

use crate::{
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::{Node, NodeInfo},
    pod::Pod,
};

pub struct NodeDeclaredFeatures;

fn provides(pod: &Pod, node: &Node) -> bool {
    let mut needed = pod.features.iter();
    needed.all(|name| node.declared_features.contains(*name))
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let pod = ask.pod;
        if pod.features.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            if info.node.as_ref().is_none_or(|node| !provides(pod, node)) {
                let reason = "node(s) didn't match Pod's required features";
                why.push(Rejection::unresolvable(reason));
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::NodeUpdated]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(node) => provides(pod, node),
            Change::NodeUpdated { old, new } => !provides(pod, old) && provides(pod, new),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::*, node::node, plugins::testing::verdict, pod::pod};

    #[test]
    fn a_pod_that_restarts_all_its_containers_needs_a_node_that_can() {
        let mut able = mk_node("able");
        able["status"]["declaredFeatures"] = json!([
            "GuaranteedQoSPodCPUResize",
            "RestartAllContainersOnContainerExits"
        ]);
        let plain = mk_node("plain");
        let cluster = cluster(&[able.clone(), plain.clone()], &[]);
        let mut value = mk_pod("p");
        value["spec"]["containers"][0]["restartPolicyRules"] =
            json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
        let told = |value: &serde_json::Value, node| {
            verdict(&NodeDeclaredFeatures, &cluster, value.clone(), node)
        };
        assert!(told(&value, "plain").is_empty());
        let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
        value["spec"]["initContainers"] = json!([{"restartPolicyRules": [rule]}]);
        assert!(told(&value, "able").is_empty());
        let reason = "node(s) didn't match Pod's required features";
        assert_eq!(told(&value, "plain"), [reason]);

        let (pod, able, plain) = (pod(value), node(able), node(plain));
        let helps =
            |old, new| NodeDeclaredFeatures.may_help(&pod, &Change::NodeUpdated { old, new });
        assert!(helps(&plain, &able) && !helps(&able, &plain) && !helps(&able, &able));
        assert!(NodeDeclaredFeatures.may_help(&pod, &Change::NodeAdded(&able)));
        assert!(!NodeDeclaredFeatures.may_help(&pod, &Change::NodeAdded(&plain)));
    }
}
