//! TaintToleration: a node's NoSchedule and NoExecute taints must be tolerated; the fewer PreferNoSchedule taints are
//! not, the better.

use api::view::{Toleration, untolerated};

use crate::{
    framework::{Ask, Change, Event, Filter, NodeScore, Plugin, Rejection, normalize_to_max},
    node::{Node, NodeInfo},
    pod::Pod,
};

pub struct TaintToleration;

fn accepts(pod: &Pod, node: &Node) -> bool {
    untolerated(&node.taints, &pod.tolerations, &["NoSchedule", "NoExecute"]).is_none()
}

struct Score<'a>(Vec<&'a Toleration>);

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let taints = info.node.iter().flat_map(|node| &node.taints);
        let disliked = taints.filter(|taint| {
            taint.effect == "PreferNoSchedule"
                && !self.0.iter().any(|toleration| toleration.tolerates(taint))
        });
        i64::try_from(disliked.count()).unwrap_or(i64::MAX)
    }

    fn normalize(&self, _: &[&NodeInfo], scores: &mut [i64]) {
        normalize_to_max(scores, true);
    }
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let pod = ask.pod;
        if ask.cluster.tainted_nodes() == 0 {
            return Filter::Skip;
        }
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            if info.node.as_ref().is_none_or(|node| !accepts(pod, node)) {
                why.push(Rejection::unresolvable("node(s) had untolerated taint(s)"));
            }
        })
    }

    /// Where no node has such a taint, all are equal.
    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        if ask.cluster.disliked_nodes() == 0 {
            return None;
        }
        let all = ask.pod.tolerations.iter();
        let soft =
            all.filter(|toleration| matches!(toleration.effect.as_str(), "" | "PreferNoSchedule"));
        Some(Box::new(Score(soft.collect())))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::testing::*, node::node, pod::pod};
    use serde_json::json;

    #[test]
    fn nodes_with_fewer_disliked_taints_score_higher() {
        let mut tainted = mk_node("b");
        tainted["spec"]["taints"] = json!([{"key": "k", "effect": "PreferNoSchedule"}]);
        let cluster = cluster(&[mk_node("a"), tainted], &[]);
        let pod = pod(mk_pod("p"));
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let args = Default::default();
        let ask = Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        };
        let scorer = TaintToleration.score(ask, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        scorer.normalize(&nodes, &mut scores);
        assert_eq!(scores, [100, 0]);
    }

    #[test]
    fn a_taint_that_goes_away_helps() {
        let mut value = mk_node("a");
        let clean = node(value.clone());
        value["spec"]["taints"] = json!([{"key": "k", "effect": "NoExecute"}]);
        let tainted = node(value);
        let pod = pod(mk_pod("p"));
        assert!(TaintToleration.may_help(
            &pod,
            &Change::NodeUpdated {
                old: &tainted,
                new: &clean
            }
        ));
        assert!(!TaintToleration.may_help(
            &pod,
            &Change::NodeUpdated {
                old: &clean,
                new: &clean
            }
        ));
    }
}
