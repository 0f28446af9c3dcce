//! NodeAffinity: the node selector and node affinity of the pod, and what the profile adds to them.

use api::view::{NodeSelector, PreferredSchedulingTerm};

use crate::{
    framework::{Ask, Change, Event, Filter, NodeScore, Plugin, Rejection, normalize_to_max},
    node::{Node, NodeInfo},
    pod::Pod,
};

pub struct NodeAffinityPlugin;

fn accepts(pod: &Pod, node: &Node) -> bool {
    pod.accepts_node(&node.name, &node.labels)
}

/// The nodes named by `metadata.name In` in every term, if each has one: no other node can match. Several names in
/// different requirements of one term must all hold.
fn named_nodes(required: &NodeSelector) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for term in &required.node_selector_terms {
        let fields = term.match_fields.iter();
        let by_name = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
        let of_term = by_name
            .map(|field| field.values.clone())
            .reduce(|a, b| a.into_iter().filter(|name| b.contains(name)).collect())?;
        names.extend(of_term);
    }
    names.sort();
    names.dedup();
    Some(names)
}

struct Score<'a>(Vec<&'a PreferredSchedulingTerm>);

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

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let pod = ask.pod;
        let added = ask
            .args
            .added_affinity
            .as_ref()
            .and_then(|added| added.required.as_ref());
        let required = pod
            .node_affinity
            .as_ref()
            .and_then(|affinity| affinity.required.as_ref());
        if pod.node_selector.is_empty() && required.is_none() && added.is_none() {
            return Filter::Skip;
        }
        let check = Box::new(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            let Some(node) = &info.node else { return };
            if added.is_some_and(|added| !added.matches(&node.name, &node.labels)) {
                let reason = "node(s) didn't match scheduler-enforced node affinity";
                why.push(Rejection::unresolvable(reason));
            } else if !accepts(pod, node) {
                why.push(Rejection::unresolvable(
                    "node(s) didn't match Pod's node affinity/selector",
                ));
            }
        });
        match required.and_then(named_nodes) {
            Some(names) if names.is_empty() => {
                Filter::Reject(Rejection::unresolvable("pod affinity terms conflict"))
            }
            Some(names) => Filter::Among(names, check),
            None => Filter::Check(check),
        }
    }

    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let added = ask
            .args
            .added_affinity
            .iter()
            .flat_map(|added| &added.preferred);
        let own = ask
            .pod
            .node_affinity
            .iter()
            .flat_map(|affinity| &affinity.preferred);
        let terms: Vec<_> = own.chain(added).collect();
        if terms.is_empty() {
            return None;
        }
        Some(Box::new(Score(terms)))
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
