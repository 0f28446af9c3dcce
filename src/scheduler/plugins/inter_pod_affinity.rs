//! InterPodAffinity: pods that want to be near, or far from, others.

use std::{collections::BTreeSet, sync::Arc};

use apimachinery::selector::LabelSelector;

use crate::{
    cluster::{Cluster, Column, Tally, TermKind},
    framework::{
        Ask, Change, Event, Filter, MAX_SCORE, NodeFilter, NodeScore, Plugin, Rejection, Trial,
    },
    node::NodeInfo,
    pod::{Pod, PodAffinity, Term},
};

pub struct InterPodAffinity;

/// Pods by the values of one topology; several selectors' may add up.
struct Places {
    column: Arc<Column>,
    tallies: Vec<(i64, Arc<Tally>)>,
}

impl Places {
    /// The sum of what is at the node, each with its weight.
    #[inline]
    fn at(&self, info: &NodeInfo) -> i64 {
        let Some(value) = self.column.at(info.index) else {
            return 0;
        };
        let here = self
            .tallies
            .iter()
            .map(|(weight, tally)| weight * tally.get(value).copied().unwrap_or(0));
        here.sum()
    }

    fn is_labelled(&self, info: &NodeInfo) -> bool {
        self.column.at(info.index).is_some()
    }

    /// Whether there is no pod anywhere the topology reaches.
    fn total(&self) -> i64 {
        self.tallies
            .iter()
            .map(|(_, tally)| tally.iter().sum::<i64>())
            .sum()
    }

    /// Where the pods of these namespaces are that a selector selects.
    fn of<'n>(
        cluster: &Cluster,
        namespaces: impl IntoIterator<Item = &'n str>,
        selector: &LabelSelector,
        key: &str,
        weight: i64,
    ) -> Self {
        let column = cluster.column(key);
        let tally = |namespace: &str| {
            (
                weight,
                cluster.tally(namespace, selector, true, &column, key),
            )
        };
        Places {
            tallies: namespaces.into_iter().map(tally).collect(),
            column,
        }
    }

    fn of_term(cluster: &Cluster, term: &Term, weight: i64) -> Self {
        Places::of(
            cluster,
            cluster.namespaces_of(term),
            &term.selector,
            &term.topology_key,
            weight,
        )
    }
}

/// Where the pods are that match all of the terms, by each term's topology.
fn wanted(cluster: &Cluster, terms: &[Term]) -> Vec<Places> {
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
    let selector = match LabelSelector::parse(&texts.join(",")) {
        Ok(selector) if !nothing => selector,
        _ => LabelSelector::nothing(),
    };
    let places = |term: &Term| {
        Places::of(
            cluster,
            namespaces.iter().copied(),
            &selector,
            &term.topology_key,
            1,
        )
    };
    terms.iter().map(places).collect()
}

struct Checks<'a> {
    pod: &'a Pod,
    cluster: &'a Cluster,
    own: Option<&'a PodAffinity>,
    /// Pods that match all required terms, and those that match each anti-affinity term.
    wanted: Vec<Places>,
    shunned: Vec<Places>,
    /// Pods whose required anti-affinity is about the new one.
    shunning: Vec<Places>,
    /// The pod matches its own required terms and no other does, so it may be the first.
    may_be_first: bool,
    wanted_totals: Vec<i64>,
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
        if !self.wanted.is_empty() {
            let more = changes.map_or(0, |changes| changes.wanted);
            let labelled = self.wanted.iter().all(|places| places.is_labelled(info));
            let found = labelled && self.wanted.iter().all(|places| places.at(info) + more > 0);
            let of_trial = if labelled { more } else { 0 };
            let first =
                self.may_be_first && self.wanted_totals.iter().all(|total| total + of_trial <= 0);
            if !labelled || (!found && !first) {
                why.push(Rejection::unresolvable(
                    "node(s) didn't match pod affinity rules",
                ));
                return;
            }
        }
        let shunned = self.shunned.iter().enumerate().any(|(index, places)| {
            let more = changes
                .and_then(|changes| changes.shunned.get(index))
                .copied()
                .unwrap_or(0);
            places.is_labelled(info) && places.at(info) + more > 0
        });
        if shunned {
            why.push(Rejection::resolvable(
                "node(s) didn't match pod anti-affinity rules",
            ));
            return;
        }
        let more = changes.map_or(0, |changes| changes.shunning);
        if self
            .shunning
            .iter()
            .map(|places| places.at(info))
            .sum::<i64>()
            + more
            > 0
        {
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
            let theirs = other
                .pod_affinity
                .iter()
                .flat_map(|theirs| &theirs.anti_required);
            for term in theirs {
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

struct Score(Vec<Places>);

impl NodeScore for Score {
    fn score(&self, info: &NodeInfo) -> i64 {
        self.0.iter().map(|places| places.at(info)).sum()
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
        let about_us =
            |kind, term: &Term| kind == TermKind::AntiRequired && cluster.term_matches(term, pod);
        let shunning = cluster.terms(about_us).into_iter();
        let shunning: Vec<Places> = shunning
            .map(|(_, column, tally)| Places {
                column,
                tallies: vec![(1, tally)],
            })
            .collect();
        let own = pod.pod_affinity.as_deref();
        let own = own.filter(|own| !own.required.is_empty() || !own.anti_required.is_empty());
        // Those nominated may shun it, too.
        if own.is_none() && shunning.is_empty() && !cluster.has_nominations() {
            return Filter::Skip;
        }
        let mut checks = Checks {
            pod,
            cluster,
            own,
            wanted: Vec::new(),
            shunned: Vec::new(),
            shunning,
            may_be_first: false,
            wanted_totals: Vec::new(),
        };
        if let Some(own) = own {
            checks.may_be_first = own
                .required
                .iter()
                .all(|term| cluster.term_matches(term, pod));
            checks.wanted = wanted(cluster, &own.required);
            checks.wanted_totals = checks.wanted.iter().map(Places::total).collect();
            let shunned = own.anti_required.iter();
            checks.shunned = shunned
                .map(|term| Places::of_term(cluster, term, 1))
                .collect();
        }
        Filter::check(checks)
    }

    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let Ask { pod, cluster, args } = ask;
        let mut places = Vec::new();
        if let Some(own) = pod.pod_affinity.as_deref() {
            let liked = own.preferred.iter().map(|(weight, term)| (*weight, term));
            let disliked = own
                .anti_preferred
                .iter()
                .map(|(weight, term)| (-weight, term));
            let own = liked.chain(disliked);
            places.extend(own.map(|(weight, term)| Places::of_term(cluster, term, weight)));
        }
        if !places.is_empty() || !args.ignore_preferred_terms_of_existing_pods {
            let weight = |kind| match kind {
                TermKind::Required => args.hard_pod_affinity_weight,
                TermKind::AntiRequired => 0,
                TermKind::Preferred(weight) => weight,
                TermKind::AntiPreferred(weight) => -weight,
            };
            let theirs =
                cluster.terms(|kind, term| weight(kind) != 0 && cluster.term_matches(term, pod));
            places.extend(theirs.into_iter().map(|(kind, column, tally)| Places {
                column,
                tallies: vec![(weight(kind), tally)],
            }));
        }
        if places.is_empty() {
            return None;
        }
        Some(Box::new(Score(places)))
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
            Change::Storage | Change::Devices | Change::DeviceClass => false,
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
