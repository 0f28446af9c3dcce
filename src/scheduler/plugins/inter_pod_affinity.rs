//! InterPodAffinity: pods that want to be near, or far from, others.

use std::collections::{BTreeSet, HashMap};

use apimachinery::selector::LabelSelector;

use crate::{
    cluster::Cluster,
    framework::{
        Ask, Change, Event, Filter, MAX_SCORE, NodeFilter, NodeScore, Plugin, Rejection, Trial,
    },
    node::NodeInfo,
    pod::{Pod, PodAffinity, Term},
};

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

    /// The sum over the node's labels with these keys.
    fn sum(&self, info: &NodeInfo, keys: &[&str]) -> i64 {
        keys.iter().map(|key| self.at(info, key)).sum()
    }

    fn keys(&self) -> Vec<&'a str> {
        let keys: BTreeSet<&str> = self.0.keys().map(|(key, _)| *key).collect();
        keys.into_iter().collect()
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
    pod: &'a Pod,
    cluster: &'a Cluster,
    own: Option<&'a PodAffinity>,
    /// Pods that match all required terms, and those that match each anti-affinity term.
    wanted: Domains<'a>,
    shunned: Vec<Domains<'a>>,
    /// Pods whose required anti-affinity is about the new one, and the keys they are counted by.
    shunning: Domains<'a>,
    shunning_keys: Vec<&'a str>,
    /// The pod matches its own required terms, so it may be the first.
    may_be_first: bool,
}

/// What the pods of a trial change in the counts at its node.
#[derive(Default)]
struct Changes {
    wanted: i64,
    shunned: Vec<i64>,
    shunning: i64,
}

impl Checks<'_> {
    fn verdict(&self, info: &NodeInfo, changes: Option<&Changes>, why: &mut Vec<Rejection>) {
        let wanted_by = changes.map_or(0, |changes| changes.wanted);
        if let Some(own) = self.own {
            let labelled = own
                .required
                .iter()
                .all(|term| info.label(&term.topology_key).is_some());
            let found = own
                .required
                .iter()
                .all(|term| self.wanted.at(info, &term.topology_key) + wanted_by > 0);
            let keys = i64::try_from(own.required.len()).unwrap_or(i64::MAX);
            let first =
                self.may_be_first && self.wanted.0.values().sum::<i64>() + wanted_by * keys <= 0;
            if !labelled || (!found && !first) {
                why.push(Rejection::unresolvable(
                    "node(s) didn't match pod affinity rules",
                ));
                return;
            }
            let shunned = own.anti_required.iter().zip(&self.shunned).enumerate().any(
                |(index, (term, domains))| {
                    let by = changes
                        .and_then(|changes| changes.shunned.get(index))
                        .copied()
                        .unwrap_or(0);
                    info.label(&term.topology_key).is_some()
                        && domains.at(info, &term.topology_key) + by > 0
                },
            );
            if shunned {
                why.push(Rejection::resolvable(
                    "node(s) didn't match pod anti-affinity rules",
                ));
                return;
            }
        }
        let by = changes.map_or(0, |changes| changes.shunning);
        if self.shunning.sum(info, &self.shunning_keys) + by > 0 {
            let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
            why.push(Rejection::resolvable(reason));
        }
    }

    fn changes(&self, trial: &Trial) -> Changes {
        let mut changes = Changes::default();
        if let Some(own) = self.own {
            changes.shunned.resize(own.anti_required.len(), 0);
        }
        for (by, other) in trial.changes() {
            if let Some(own) = self.own {
                if !own.required.is_empty()
                    && own
                        .required
                        .iter()
                        .all(|term| self.cluster.term_matches(term, other))
                {
                    changes.wanted += by;
                }
                for (term, count) in own.anti_required.iter().zip(&mut changes.shunned) {
                    if self.cluster.term_matches(term, other) {
                        *count += by;
                    }
                }
            }
            for term in other
                .pod_affinity
                .iter()
                .flat_map(|theirs| &theirs.anti_required)
            {
                if trial.node.label(&term.topology_key).is_some()
                    && self.cluster.term_matches(term, self.pod)
                {
                    changes.shunning += by;
                }
            }
        }
        changes
    }
}

impl NodeFilter for Checks<'_> {
    fn check(&self, node: &NodeInfo, why: &mut Vec<Rejection>) {
        self.verdict(node, None, why);
    }

    fn check_trial(&self, trial: &Trial, why: &mut Vec<Rejection>) {
        self.verdict(&trial.node, Some(&self.changes(trial)), why);
    }
}

fn shunning<'a>(pod: &Pod, cluster: &'a Cluster) -> Domains<'a> {
    let mut domains = Domains::default();
    for info in cluster.with_required_anti_affinity() {
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

struct Score<'a> {
    domains: Domains<'a>,
    keys: Vec<&'a str>,
}

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        self.domains.sum(info, &self.keys)
    }

    fn normalize(&self, _: &[&NodeInfo], scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            *score = if max == min {
                0
            } else {
                (MAX_SCORE as f64 * ((*score - min) as f64 / (max - min) as f64)) as i64
            };
        }
    }
}

/// Whether a term is about a pod, as far as can be told without the namespaces' labels.
fn may_be_about(term: &Term, other: &Pod) -> bool {
    (term.namespace_selector.is_some() || term.namespaces.contains(&other.namespace))
        && term.selector.matches(&other.labels)
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let Ask { pod, cluster, .. } = ask;
        let shunning = shunning(pod, cluster);
        let own = pod.pod_affinity.as_deref();
        let own = own.filter(|own| !own.required.is_empty() || !own.anti_required.is_empty());
        // Those nominated may shun it, too.
        if own.is_none() && shunning.0.is_empty() && !cluster.has_nominations() {
            return Filter::Skip;
        }
        let mut checks = Checks {
            pod,
            cluster,
            own,
            wanted: Domains::default(),
            shunned: Vec::new(),
            shunning_keys: shunning.keys(),
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
                let mut domains = Domains::default();
                count(&mut domains, cluster, term, 1);
                checks.shunned.push(domains);
            }
        }
        Filter::check(checks)
    }

    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let Ask { pod, cluster, args } = ask;
        let mut domains = Domains::default();
        let mut has_preferences = false;
        if let Some(own) = pod.pod_affinity.as_deref() {
            has_preferences = !own.preferred.is_empty() || !own.anti_preferred.is_empty();
            for (weight, term) in &own.preferred {
                count(&mut domains, cluster, term, *weight);
            }
            for (weight, term) in &own.anti_preferred {
                count(&mut domains, cluster, term, -weight);
            }
        }
        if has_preferences || !args.ignore_preferred_terms_of_existing_pods {
            for info in cluster.with_affinity() {
                let affinities = info
                    .pods
                    .iter()
                    .filter_map(|other| other.pod_affinity.as_ref());
                for theirs in affinities {
                    let hard = args.hard_pod_affinity_weight;
                    let required = theirs.required.iter().map(|term| (hard, term));
                    let preferred = theirs
                        .preferred
                        .iter()
                        .map(|(weight, term)| (*weight, term));
                    let anti = theirs
                        .anti_preferred
                        .iter()
                        .map(|(weight, term)| (-weight, term));
                    for (weight, term) in required.chain(preferred).chain(anti) {
                        if weight != 0 && cluster.term_matches(term, pod) {
                            domains.add(info, &term.topology_key, weight);
                        }
                    }
                }
            }
        }
        if domains.0.is_empty() {
            return None;
        }
        Some(Box::new(Score {
            keys: domains.keys(),
            domains,
        }))
    }

    fn events(&self) -> &'static [Event] {
        &[
            Event::NodeAdded,
            Event::NodeUpdated,
            Event::PodAdded,
            Event::PodUpdated,
            Event::PodDeleted,
            Event::NominationGone,
            Event::Namespace,
        ]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        let own = pod.pod_affinity.as_deref();
        let attracted = |other: &Pod| {
            own.is_some_and(|own| own.required.iter().any(|term| may_be_about(term, other)))
        };
        let shuns = |one: &Pod, other: &Pod| {
            let affinity = one.pod_affinity.as_deref();
            affinity.is_some_and(|affinity| {
                affinity
                    .anti_required
                    .iter()
                    .any(|term| may_be_about(term, other))
            })
        };
        match change {
            Change::NodeAdded(_) | Change::Namespace | Change::NominationGone => true,
            Change::NodeUpdated { old, new } => old.labels != new.labels,
            Change::PodAdded(other) => attracted(other),
            Change::PodUpdated { old, new } => {
                old.labels != new.labels && (attracted(new) || shuns(pod, old) || shuns(old, pod))
            }
            Change::PodDeleted(other) => shuns(pod, other) || shuns(other, pod),
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
        let args = Default::default();
        let filter = InterPodAffinity.filter(Ask {
            pod: &pod,
            cluster,
            args: &args,
        });
        let check = |info: &NodeInfo| match &filter {
            Filter::Check(check) => {
                let mut why = Vec::new();
                check.check(info, &mut why);
                why.first().map(|one| one.reason.to_string())
            }
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
        let args = Default::default();
        let ask = Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        };
        let scorer = InterPodAffinity.score(ask, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        assert_eq!(scores, [10, 0]);
        scorer.normalize(&nodes, &mut scores);
        assert_eq!(scores, [100, 0]);
    }
}
