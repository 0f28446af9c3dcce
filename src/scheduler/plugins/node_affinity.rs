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
            // What the profile adds is not known here: any change of the labels may have been about that.
            Change::NodeUpdated { old, new } => {
                accepts(pod, new) && (!accepts(pod, old) || old.labels != new.labels)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::mk_node, node::node, pod::pod};

    #[test]
    fn a_node_that_comes_to_match_helps_also_one_that_only_the_profile_turned_down() {
        let with = |value: &str| {
            let mut one = mk_node("a");
            one["metadata"]["labels"]["disk"] = json!(value);
            node(one)
        };
        let any = pod(json!({"spec": {}}));
        let picky = pod(json!({"spec": {"nodeSelector": {"disk": "ssd"}}}));
        for (pod, old, new, helps) in [
            (&picky, "hdd", "ssd", true),
            (&picky, "ssd", "hdd", false),
            (&picky, "ssd", "ssd", false),
            // Turned down by what the profile adds, which may be about this label.
            (&any, "hdd", "ssd", true),
            (&any, "hdd", "hdd", false),
        ] {
            let (old, new) = (&with(old), &with(new));
            let change = Change::NodeUpdated { old, new };
            assert_eq!(NodeAffinityPlugin.may_help(pod, &change), helps);
        }
    }

    #[test]
    fn the_named_nodes_are_the_only_ones_and_conflicting_names_are_none() {
        let field = |names: serde_json::Value| json!({"key": "metadata.name", "operator": "In", "values": names});
        for (terms, expected) in [
            (
                json!([{"matchFields": [field(json!(["a", "b"]))]}, {"matchFields": [field(json!(["c"]))]}]),
                Some(vec!["a", "b", "c"]),
            ),
            (
                json!([{"matchFields": [field(json!(["a", "b"])), field(json!(["b", "c"]))]}]),
                Some(vec!["b"]),
            ),
            (
                json!([{"matchFields": [field(json!(["a"])), field(json!(["b"]))]}]),
                Some(vec![]),
            ),
            (
                json!([{"matchFields": [field(json!(["a"]))]}, {"matchExpressions": [
                    {"key": "x", "operator": "Exists"}]}]),
                None,
            ),
        ] {
            let selector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
            let expected: Option<Vec<String>> =
                expected.map(|names| names.into_iter().map(String::from).collect());
            assert_eq!(named_nodes(&selector), expected, "{terms}");
        }
    }
}
