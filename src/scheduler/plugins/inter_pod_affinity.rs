//! InterPodAffinity: pods that want to be near, or far from, others.

use std::collections::{BTreeSet, HashMap};

use apimachinery::selector::LabelSelector;

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, MAX_SCORE, NodeScore, Plugin, Rejection},
    node::NodeInfo,
    pod::{Pod, PodAffinity, Term},
};

/// What a required term of an existing pod that the new one matches is worth (hardPodAffinityWeight).
const HARD_WEIGHT: i64 = 1;

pub struct InterPodAffinity;

/// Numbers by label key and value of nodes.
#[derive(Default)]
struct Domains<'a>(HashMap<(&'a str, &'a str), i64>);

impl<'a> Domains<'a> {
    fn add(&mut self, info: &'a NodeInfo, key: &'a str, by: i64) {
        if let Some(value) = info.label(key) {
            *self.0.entry((key, value)).or_default() += by;
        }
    }

    fn at(&self, info: &NodeInfo, key: &str) -> i64 {
        let value = info.label(key);
        value
            .and_then(|value| self.0.get(&(key, value)))
            .copied()
            .unwrap_or(0)
    }

    /// The sum over all the node's labels.
    fn sum(&self, info: &NodeInfo) -> i64 {
        let labels = info.node.iter().flat_map(|node| &node.labels);
        labels
            .filter_map(|(key, value)| self.0.get(&(key.as_str(), value.as_str())))
            .sum()
    }
}

/// Adds `weight` for each pod a term is about, wherever it runs.
fn count<'a>(domains: &mut Domains<'a>, cluster: &'a Cluster, term: &'a Term, weight: i64) {
    for namespace in cluster.namespaces_of(term) {
        add_matching(
            domains,
            cluster,
            namespace,
            &term.selector,
            &[&term.topology_key],
            weight,
        );
    }
}

fn add_matching<'a>(
    domains: &mut Domains<'a>,
    cluster: &'a Cluster,
    namespace: &str,
    selector: &LabelSelector,
    keys: &[&'a str],
    weight: i64,
) {
    for (index, pods) in cluster.matching(namespace, selector, true).iter() {
        for key in keys {
            domains.add(cluster.node(*index), key, pods * weight);
        }
    }
}

/// Where the pods are that match all of the terms.
fn count_all<'a>(cluster: &'a Cluster, terms: &'a [Term]) -> Domains<'a> {
    let mut domains = Domains::default();
    let namespaces = terms
        .iter()
        .map(|term| cluster.namespaces_of(term))
        .reduce(|a, b| a.intersection(&b).copied().collect::<BTreeSet<_>>())
        .unwrap_or_default();
    let texts: Vec<String> = terms
        .iter()
        .map(|term| term.selector.to_string())
        .filter(|text| !text.is_empty())
        .collect();
    let nothing = terms
        .iter()
        .any(|term| term.selector == LabelSelector::nothing());
    let Ok(selector) = LabelSelector::parse(&texts.join(",")) else {
        return domains;
    };
    if nothing {
        return domains;
    }
    let keys: Vec<&str> = terms
        .iter()
        .map(|term| term.topology_key.as_str())
        .collect();
    for namespace in namespaces {
        add_matching(&mut domains, cluster, namespace, &selector, &keys, 1);
    }
    domains
}

struct Checks<'a> {
    own: Option<&'a PodAffinity>,
    /// Pods that match all required terms, and those that match each anti-affinity term.
    wanted: Domains<'a>,
    shunned: Domains<'a>,
    /// Pods whose required anti-affinity is about the new one.
    shunning: Domains<'a>,
    /// The pod matches its own required terms, so it may be the first.
    may_be_first: bool,
}

impl Checks<'_> {
    fn check(&self, info: &NodeInfo) -> Result<(), Rejection> {
        if let Some(own) = self.own {
            let labelled = own
                .required
                .iter()
                .all(|term| info.label(&term.topology_key).is_some());
            let found = own
                .required
                .iter()
                .all(|term| self.wanted.at(info, &term.topology_key) > 0);
            let first = self.may_be_first && self.wanted.0.is_empty();
            if !labelled || (!found && !first) {
                return Err(Rejection::unresolvable(
                    "node(s) didn't match pod affinity rules",
                ));
            }
            if own
                .anti_required
                .iter()
                .any(|term| self.shunned.at(info, &term.topology_key) > 0)
            {
                return Err(Rejection::resolvable(
                    "node(s) didn't match pod anti-affinity rules",
                ));
            }
        }
        if self.shunning.sum(info) > 0 {
            let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
            return Err(Rejection::resolvable(reason));
        }
        Ok(())
    }
}

fn shunning<'a>(pod: &Pod, cluster: &'a Cluster) -> Domains<'a> {
    let mut domains = Domains::default();
    for info in cluster
        .nodes()
        .filter(|info| info.with_required_anti_affinity > 0)
    {
        let affinities = info
            .pods
            .iter()
            .filter_map(|other| other.pod_affinity.as_ref());
        for term in affinities.flat_map(|affinity| &affinity.anti_required) {
            if cluster.term_matches(term, pod) {
                domains.add(info, &term.topology_key, 1);
            }
        }
    }
    domains
}

struct Score<'a>(Domains<'a>);

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        self.0.sum(info)
    }

    fn normalize(&self, _: &[&NodeInfo], scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            *score = if max == min {
                0
            } else {
                MAX_SCORE * (*score - min) / (max - min)
            };
        }
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn filter<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Filter<'a> {
        let shunning = shunning(pod, cluster);
        let own = pod.pod_affinity.as_deref();
        let requires =
            own.is_some_and(|own| !own.required.is_empty() || !own.anti_required.is_empty());
        if !requires && shunning.0.is_empty() {
            return Filter::Skip;
        }
        let mut checks = Checks {
            own,
            wanted: Domains::default(),
            shunned: Domains::default(),
            shunning,
            may_be_first: false,
        };
        if let Some(own) = own {
            checks.may_be_first = own
                .required
                .iter()
                .all(|term| cluster.term_matches(term, pod));
            checks.wanted = count_all(cluster, &own.required);
            for term in &own.anti_required {
                count(&mut checks.shunned, cluster, term, 1);
            }
        }
        Filter::check(move |info: &NodeInfo| {
            checks.check(info).map_err(|rejection| vec![rejection])
        })
    }

    fn score<'a>(
        &self,
        pod: &'a Pod,
        cluster: &'a Cluster,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let mut domains = Domains::default();
        if let Some(own) = pod.pod_affinity.as_deref() {
            for (weight, term) in &own.preferred {
                count(&mut domains, cluster, term, *weight);
            }
            for (weight, term) in &own.anti_preferred {
                count(&mut domains, cluster, term, -weight);
            }
        }
        for info in cluster.nodes().filter(|info| info.with_affinity > 0) {
            for theirs in info
                .pods
                .iter()
                .filter_map(|other| other.pod_affinity.as_ref())
            {
                let required = theirs.required.iter().map(|term| (HARD_WEIGHT, term));
                let preferred = theirs
                    .preferred
                    .iter()
                    .map(|(weight, term)| (*weight, term));
                let anti = theirs
                    .anti_preferred
                    .iter()
                    .map(|(weight, term)| (-weight, term));
                for (weight, term) in required.chain(preferred).chain(anti) {
                    if cluster.term_matches(term, pod) {
                        domains.add(info, &term.topology_key, weight);
                    }
                }
            }
        }
        if domains.0.is_empty() {
            return None;
        }
        Some(Box::new(Score(domains)))
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        let repels = |other: &Pod| {
            let theirs = other
                .pod_affinity
                .as_ref()
                .is_some_and(|affinity| !affinity.anti_required.is_empty());
            let ours = pod
                .pod_affinity
                .as_ref()
                .is_some_and(|affinity| !affinity.anti_required.is_empty());
            theirs || ours
        };
        let attracts = pod
            .pod_affinity
            .as_ref()
            .is_some_and(|affinity| !affinity.required.is_empty());
        match change {
            Change::NodeAdded(_) | Change::Namespace => true,
            Change::NodeUpdated { old, new } => old.labels != new.labels,
            Change::PodAdded(_) => attracts,
            Change::PodUpdated { old, new } => old.labels != new.labels,
            Change::PodDeleted(other) => repels(other),
            Change::Storage => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::testing::*, pod::pod};
    use serde_json::{Value, json};

    fn near(mut value: Value, kind: &str, app: &str) -> Value {
        value["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([
            {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"},
        ]);
        value
    }

    fn verdicts(cluster: &Cluster, value: Value) -> Vec<(String, Option<String>)> {
        let pod = pod(value);
        let filter = InterPodAffinity.filter(&pod, cluster);
        let check = |info: &NodeInfo| match &filter {
            Filter::Check(check) => check.check(info).err().map(|all| all[0].reason.to_string()),
            _ => None,
        };
        cluster
            .nodes()
            .map(|info| (info.name.clone(), check(info)))
            .collect()
    }

    fn allowed(cluster: &Cluster, value: Value) -> Vec<String> {
        let fine = verdicts(cluster, value)
            .into_iter()
            .filter(|(_, why)| why.is_none());
        fine.map(|(name, _)| name).collect()
    }

    #[test]
    fn affinity_and_anti_affinity_of_the_new_pod_and_of_those_that_run() {
        let nodes = [mk_node("a"), mk_node("b")];
        let plain = cluster(&nodes, &[on(mk_pod("x"), "a")]);
        assert_eq!(
            allowed(&plain, near(mk_pod("p"), "podAffinity", "a")),
            ["a"]
        );
        assert_eq!(
            allowed(&plain, near(mk_pod("p"), "podAntiAffinity", "a")),
            ["b"]
        );
        assert!(allowed(&plain, near(mk_pod("p"), "podAffinity", "none")).is_empty());
        assert_eq!(allowed(&plain, mk_pod("p")), ["a", "b"]);

        let shunning = cluster(
            &nodes,
            &[on(near(mk_pod("x"), "podAntiAffinity", "a"), "a")],
        );
        assert_eq!(allowed(&shunning, mk_pod("p")), ["b"]);
        let why = verdicts(&shunning, mk_pod("p")).remove(0).1.unwrap();
        assert_eq!(
            why,
            "node(s) didn't satisfy existing pods anti-affinity rules"
        );
    }

    #[test]
    fn the_first_pod_of_a_group_may_go_anywhere() {
        let cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        assert_eq!(
            allowed(&cluster, near(mk_pod("p"), "podAffinity", "a")),
            ["a", "b"]
        );
    }

    #[test]
    fn preferences_of_both_sides_add_up() {
        let mut friend = mk_pod("x");
        friend["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([
            {"weight": 10, "podAffinityTerm": {
                "labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}},
        ]);
        let cluster = cluster(&[mk_node("a"), mk_node("b")], &[on(friend, "a")]);
        let pod = pod(mk_pod("p"));
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let scorer = InterPodAffinity.score(&pod, &cluster, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        assert_eq!(scores, [10, 0]);
        scorer.normalize(&nodes, &mut scores);
        assert_eq!(scores, [100, 0]);
    }
}
