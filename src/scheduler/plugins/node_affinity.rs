//! NodeAffinity: the node selector and node affinity of the pod.

use api::view::{NodeSelector, PreferredSchedulingTerm};

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, NodeScore, Plugin, Rejection, normalize_to_max},
    node::{Node, NodeInfo},
    pod::Pod,
};

pub struct NodeAffinityPlugin;

fn accepts(pod: &Pod, node: &Node) -> bool {
    pod.accepts_node(&node.name, &node.labels)
}

/// The nodes named by `metadata.name In` in every term, if each has one: no other node can match.
fn named_nodes(required: &NodeSelector) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for term in &required.node_selector_terms {
        let fields = &term.match_fields;
        let by_name = fields
            .iter()
            .find(|field| field.key == "metadata.name" && field.operator == "In")?;
        names.extend(by_name.values.iter().cloned());
    }
    names.sort();
    names.dedup();
    Some(names)
}

struct Score<'a>(&'a [PreferredSchedulingTerm]);

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let terms = self.0.iter();
        let matching = terms.filter(|term| term.preference.matches(&node.name, &node.labels));
        matching.map(|term| term.weight).sum()
    }

    fn normalize(&self, _: &[&NodeInfo], scores: &mut [i64]) {
        normalize_to_max(scores, false);
    }
}

impl Plugin for NodeAffinityPlugin {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Filter<'a> {
        let required = pod
            .node_affinity
            .as_ref()
            .and_then(|affinity| affinity.required.as_ref());
        if pod.node_selector.is_empty() && required.is_none() {
            return Filter::Skip;
        }
        let check = Box::new(move |info: &NodeInfo| match &info.node {
            Some(node) if accepts(pod, node) => Ok(()),
            _ => Err(vec![Rejection::unresolvable(
                "node(s) didn't match Pod's node affinity/selector",
            )]),
        });
        match required.and_then(named_nodes) {
            Some(names) => Filter::Among(names, check),
            None => Filter::Check(check),
        }
    }

    fn score<'a>(
        &self,
        pod: &'a Pod,
        _: &'a Cluster,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let preferred = &pod.node_affinity.as_ref()?.preferred;
        if preferred.is_empty() {
            return None;
        }
        Some(Box::new(Score(preferred)))
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(node) => accepts(pod, node),
            Change::NodeUpdated { old, new } => !accepts(pod, old) && accepts(pod, new),
            _ => false,
        }
    }
}
