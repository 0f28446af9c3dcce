//! PodTopologySpread (KEP-895): pods of a kind are spread over the values of a node label.
//!
//! A pod without constraints of its own is spread softly over hosts and zones together with the pods of its service
//! or workload, as upstream's system defaults say.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use api::view::untolerated;

use crate::{
    args::{SpreadDefaults, system_spread},
    cluster::{Cluster, Column, Tally},
    framework::{
        Ask, Change, Event, Filter, MAX_SCORE, NodeFilter, NodeScore, Plugin, Rejection, Trial,
    },
    node::NodeInfo,
    pod::{Pod, SpreadConstraint},
};

const HOSTNAME: &str = "kubernetes.io/hostname";

pub struct PodTopologySpread;

/// Whether a node takes part in a constraint (matchNodeInclusionPolicies).
fn takes_part(constraint: &SpreadConstraint, pod: &Pod, info: &NodeInfo) -> bool {
    let Some(node) = &info.node else { return false };
    (!constraint.honors_affinity || pod.accepts_node(&node.name, &node.labels))
        && (!constraint.honors_taints
            || untolerated(&node.taints, &pod.tolerations, &["NoSchedule", "NoExecute"]).is_none())
}

/// Whether every node takes part in a constraint, so that nobody need look.
fn all_take_part(constraint: &SpreadConstraint, pod: &Pod, cluster: &Cluster) -> bool {
    let is_free = pod.node_selector.is_empty()
        && pod
            .node_affinity
            .as_ref()
            .is_none_or(|one| one.required.is_none());
    (is_free || !constraint.honors_affinity)
        && (!constraint.honors_taints || cluster.tainted_nodes() == 0)
}

/// A hard constraint with the pods counted in each of its domains, which are the values of the topology.
struct Hard<'a> {
    constraint: Cow<'a, SpreadConstraint>,
    pod: &'a Pod,
    column: Arc<Column>,
    pods: Arc<Tally>,
    /// Which values are domains.
    is_domain: Vec<bool>,
    /// The emptiest domain with its pods, and the pods of the next (criticalPaths).
    emptiest: Option<(usize, i64)>,
    next: Option<i64>,
    /// There are fewer domains than wanted: the emptiest counts as having none.
    too_few: bool,
    own: i64,
}

impl<'a> Hard<'a> {
    fn new(
        constraint: Cow<'a, SpreadConstraint>,
        keys: &[&str],
        pod: &'a Pod,
        cluster: &'a Cluster,
    ) -> Self {
        let column = cluster.column(&constraint.topology_key);
        let columns: Vec<Arc<Column>> = keys.iter().map(|key| cluster.column(key)).collect();
        let (namespace, selector) = (&pod.namespace, &constraint.selector);
        let is_plain = all_take_part(&constraint, pod, cluster)
            && (keys.len() < 2 || columns.iter().all(|column| column.is_complete()));
        let (pods, is_domain) = if is_plain {
            let pods = cluster.tally(
                namespace,
                selector,
                false,
                &column,
                &constraint.topology_key,
            );
            (
                pods,
                (0..column.len())
                    .map(|value| column.is_in_use(value))
                    .collect(),
            )
        } else {
            let counts = cluster.matching(namespace, selector, false);
            let (mut pods, mut is_domain) = (vec![0; column.len()], vec![false; column.len()]);
            for info in cluster.nodes() {
                let is_labelled = columns.iter().all(|column| column.at(info.index).is_some());
                if let Some(domain) = column.at(info.index).filter(|_| is_labelled)
                    && takes_part(&constraint, pod, info)
                {
                    is_domain[domain] = true;
                    pods[domain] += counts.get(&info.index).copied().unwrap_or(0);
                }
            }
            (Arc::new(pods), is_domain)
        };
        let mut hard = Hard {
            own: i64::from(constraint.selector.matches(&pod.labels)),
            too_few: is_domain.iter().filter(|is| **is).count() < constraint.min_domains,
            constraint,
            pod,
            column,
            pods,
            is_domain,
            emptiest: None,
            next: None,
        };
        hard.find_emptiest();
        hard
    }

    fn find_emptiest(&mut self) {
        let (mut emptiest, mut next): (Option<(usize, i64)>, Option<i64>) = (None, None);
        for domain in (0..self.is_domain.len()).filter(|domain| self.is_domain[*domain]) {
            let pods = self.pods_in(domain);
            match emptiest {
                Some((_, least)) if least <= pods => {
                    next = Some(next.map_or(pods, |next| next.min(pods)))
                }
                _ => {
                    next = emptiest.map(|(_, least)| least).or(next);
                    emptiest = Some((domain, pods));
                }
            }
        }
        (self.emptiest, self.next) = (emptiest, next);
    }

    fn pods_in(&self, domain: usize) -> i64 {
        self.pods.get(domain).copied().unwrap_or(0)
    }

    /// The pods of the emptiest domain, if `domain` has so many instead.
    fn least(&self, domain: usize, pods: i64) -> i64 {
        if self.too_few {
            return 0;
        }
        let others = match self.emptiest {
            Some((emptiest, _)) if emptiest == domain => self.next,
            Some((_, least)) => Some(least),
            None => None,
        };
        let is_domain = self.is_domain.get(domain).copied().unwrap_or(false);
        match others {
            Some(others) if is_domain => others.min(pods),
            Some(others) => others,
            None if is_domain => pods,
            None => 0,
        }
    }

    fn verdict(&self, info: &NodeInfo, more: i64) -> Option<Rejection> {
        let Some(domain) = self.column.at(info.index) else {
            let reason =
                "node(s) didn't match pod topology spread constraints (missing required label)";
            return Some(Rejection::unresolvable(reason));
        };
        let more = if more != 0 && takes_part(&self.constraint, self.pod, info) {
            more
        } else {
            0
        };
        let is_domain = self.is_domain.get(domain).copied().unwrap_or(false);
        let here = if is_domain { self.pods_in(domain) } else { 0 } + more;
        if here + self.own - self.least(domain, here) > self.constraint.max_skew {
            return Some(Rejection::resolvable(
                "node(s) didn't match pod topology spread constraints",
            ));
        }
        None
    }

    /// How many more pods that count a trial's node has.
    fn more(&self, trial: &Trial) -> i64 {
        let counts = |other: &Pod| {
            other.namespace == self.pod.namespace
                && !other.is_deleting
                && self.constraint.selector.matches(&other.labels)
        };
        trial
            .changes()
            .map(|(by, other)| if counts(other) { by } else { 0 })
            .sum()
    }
}

struct AllHard<'a>(Vec<Hard<'a>>);

impl NodeFilter for AllHard<'_> {
    fn check(&self, node: &NodeInfo, why: &mut Vec<Rejection>) {
        why.extend(self.0.iter().find_map(|one| one.verdict(node, 0)));
    }

    fn check_trial(&self, trial: &Trial, why: &mut Vec<Rejection>) {
        why.extend(
            self.0
                .iter()
                .find_map(|one| one.verdict(&trial.node, one.more(trial))),
        );
    }
}

/// Soft constraints with what each domain, or each host, already has.
struct Soft {
    constraints: Vec<SoftConstraint>,
    /// Nodes that lack a label of the pod's own constraints do not take part.
    needs_all_labels: bool,
}

struct SoftConstraint {
    max_skew: i64,
    weight: f64,
    column: Arc<Column>,
    pods: SoftPods,
}

enum SoftPods {
    /// Hosts are their own domains, even where several have the same name.
    ByHost(Arc<HashMap<usize, i64>>),
    ByDomain(Arc<Tally>),
}

impl Soft {
    fn new(
        constraints: &[SpreadConstraint],
        needs_all_labels: bool,
        pod: &Pod,
        cluster: &Cluster,
        nodes: &[&NodeInfo],
    ) -> Self {
        let columns: Vec<Arc<Column>> = constraints
            .iter()
            .map(|one| cluster.column(&one.topology_key))
            .collect();
        let takes_part_in_all = |info: &NodeInfo| {
            !needs_all_labels || columns.iter().all(|column| column.at(info.index).is_some())
        };
        let part: Vec<&NodeInfo> = nodes
            .iter()
            .copied()
            .filter(|info| takes_part_in_all(info))
            .collect();
        let count = |(constraint, column): (&SpreadConstraint, &Arc<Column>)| {
            let (namespace, selector) = (&pod.namespace, &constraint.selector);
            let (size, pods) = if constraint.topology_key == HOSTNAME {
                (
                    part.len(),
                    SoftPods::ByHost(cluster.matching(namespace, selector, false)),
                )
            } else {
                let mut is_domain = vec![false; column.len()];
                part.iter()
                    .filter_map(|info| column.at(info.index))
                    .for_each(|domain| is_domain[domain] = true);
                let size = is_domain.iter().filter(|is| **is).count();
                let is_plain = all_take_part(constraint, pod, cluster)
                    && (!needs_all_labels || columns.iter().all(|column| column.is_complete()));
                let tally = if is_plain {
                    cluster.tally(namespace, selector, false, column, &constraint.topology_key)
                } else {
                    let mut tally = vec![0; column.len()];
                    // Only nodes that have such pods add anything.
                    for (index, pods) in cluster.matching(namespace, selector, false).iter() {
                        let info = cluster.node(*index);
                        if let Some(domain) = column.at(*index)
                            && takes_part_in_all(info)
                            && takes_part(constraint, pod, info)
                        {
                            tally[domain] += pods;
                        }
                    }
                    Arc::new(tally)
                };
                (size, SoftPods::ByDomain(tally))
            };
            SoftConstraint {
                max_skew: constraint.max_skew,
                weight: (size as f64 + 2.0).ln(),
                column: column.clone(),
                pods,
            }
        };
        Soft {
            constraints: constraints.iter().zip(&columns).map(count).collect(),
            needs_all_labels,
        }
    }

    fn is_ignored(&self, info: &NodeInfo) -> bool {
        self.needs_all_labels
            && self
                .constraints
                .iter()
                .any(|one| one.column.at(info.index).is_none())
    }
}

impl NodeScore for Soft {
    fn score(&self, info: &NodeInfo) -> i64 {
        if self.is_ignored(info) {
            return 0;
        }
        let mut score = 0.0;
        for constraint in &self.constraints {
            let Some(domain) = constraint.column.at(info.index) else {
                continue;
            };
            let pods = match &constraint.pods {
                SoftPods::ByHost(hosts) => hosts.get(&info.index),
                SoftPods::ByDomain(tally) => tally.get(domain),
            };
            let pods = pods.copied().unwrap_or(0) as f64;
            score += pods * constraint.weight + (constraint.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    /// Fewer pods become a higher score.
    fn normalize(&self, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let (mut min, mut max) = (i64::MAX, 0);
        for (info, score) in nodes.iter().zip(scores.iter()) {
            if !self.is_ignored(info) {
                min = min.min(*score);
                max = max.max(*score);
            }
        }
        for (info, score) in nodes.iter().zip(scores) {
            *score = if self.is_ignored(info) {
                0
            } else if max == 0 {
                MAX_SCORE
            } else {
                MAX_SCORE * (max + min - *score) / max
            };
        }
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let Ask { pod, cluster, args } = ask;
        let own = pod
            .spread
            .iter()
            .filter(|one| one.is_hard)
            .map(Cow::Borrowed);
        let mut hard: Vec<Cow<'a, SpreadConstraint>> = own.collect();
        if let SpreadDefaults::List(list) = &args.spread
            && pod.spread.is_empty()
            && list.iter().any(|one| one.is_hard)
            && let Some(selector) = cluster.default_selector(pod)
        {
            let defaults = list.iter().filter(|one| one.is_hard).cloned();
            hard.extend(defaults.map(|one| {
                Cow::Owned(SpreadConstraint {
                    selector: selector.clone(),
                    ..one
                })
            }));
        }
        if hard.is_empty() {
            return Filter::Skip;
        }
        let keys: Vec<String> = hard.iter().map(|one| one.topology_key.clone()).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let hard = hard
            .into_iter()
            .map(|one| Hard::new(one, &keys, pod, cluster))
            .collect();
        Filter::check(AllHard(hard))
    }

    fn score<'a>(&self, ask: Ask<'a>, nodes: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let Ask { pod, cluster, args } = ask;
        if !pod.spread.is_empty() {
            let soft: Vec<SpreadConstraint> = pod
                .spread
                .iter()
                .filter(|one| !one.is_hard)
                .cloned()
                .collect();
            if soft.is_empty() {
                return None;
            }
            return Some(Box::new(Soft::new(&soft, true, pod, cluster, nodes)));
        }
        let selector = || cluster.default_selector(pod);
        let (soft, needs_all_labels) = match &args.spread {
            SpreadDefaults::System => (system_spread(&selector()?), false),
            SpreadDefaults::List(list) if list.is_empty() => return None,
            SpreadDefaults::List(list) => {
                let selector = selector()?;
                let soft = list.iter().filter(|one| !one.is_hard).cloned();
                (
                    soft.map(|one| SpreadConstraint {
                        selector: selector.clone(),
                        ..one
                    })
                    .collect(),
                    true,
                )
            }
        };
        if soft.is_empty() {
            return None;
        }
        Some(Box::new(Soft::new(
            &soft,
            needs_all_labels,
            pod,
            cluster,
            nodes,
        )))
    }

    fn events(&self) -> &'static [Event] {
        &[
            Event::NodeAdded,
            Event::NodeUpdated,
            Event::PodAdded,
            Event::PodUpdated,
            Event::PodDeleted,
            Event::NominationGone,
        ]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        // Without constraints of its own it was turned down by the profile's, whose selector is not known here.
        let concerns = |other: &Pod| {
            other.namespace == pod.namespace
                && (pod.spread.is_empty()
                    || pod
                        .spread
                        .iter()
                        .any(|one| one.is_hard && one.selector.matches(&other.labels)))
        };
        match change {
            Change::NodeAdded(_) | Change::NominationGone => true,
            Change::NodeUpdated { old, new } => {
                old.labels != new.labels || old.taints != new.taints
            }
            Change::PodAdded(other) | Change::PodDeleted(other) => concerns(other),
            Change::PodUpdated { old, new } => {
                (old.labels != new.labels || old.is_deleting != new.is_deleting)
                    && (concerns(old) || concerns(new))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::testing::*, pod::pod};
    use serde_json::{Value, json};

    fn zoned(name: &str, zone: &str) -> Value {
        let mut node = mk_node(name);
        node["metadata"]["labels"]["zone"] = json!(zone);
        node
    }

    fn spread(name: &str, when: &str) -> Value {
        let mut pod = mk_pod(name);
        pod["spec"]["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "a"}},
        }]);
        pod
    }

    #[test]
    fn a_domain_may_not_be_ahead_by_more_than_the_skew() {
        let nodes = [zoned("a", "1"), zoned("b", "2"), mk_node("c")];
        let cluster = cluster(&nodes, &[on(mk_pod("x"), "a")]);
        let pod = pod(spread("p", "DoNotSchedule"));
        let args = Default::default();
        let Filter::Check(check) = PodTopologySpread.filter(Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        }) else {
            panic!("checks nodes")
        };
        let verdict = |name: &str| {
            let mut why = Vec::new();
            check.check(cluster.find_node(name).unwrap(), &mut why);
            why.first().map_or(Ok(()), |one| Err(one.is_resolvable))
        };
        assert_eq!(verdict("a"), Err(true));
        assert_eq!(verdict("b"), Ok(()));
        assert_eq!(verdict("c"), Err(false));
    }

    #[test]
    fn emptier_domains_score_higher_and_nodes_without_the_label_not_at_all() {
        let nodes = [zoned("a", "1"), zoned("b", "2"), mk_node("c")];
        let pods = [
            on(mk_pod("x"), "a"),
            on(mk_pod("y"), "a"),
            on(mk_pod("z"), "b"),
        ];
        let cluster = cluster(&nodes, &pods);
        let pod = pod(spread("p", "ScheduleAnyway"));
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let args = Default::default();
        let ask = Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        };
        let scorer = PodTopologySpread.score(ask, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        scorer.normalize(&nodes, &mut scores);
        assert!(scores[0] < scores[1], "{scores:?}");
        assert_eq!(scores[2], 0);
    }

    #[test]
    fn pods_of_a_service_are_spread_over_hosts_by_default() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[on(mk_pod("x"), "a")]);
        let pod = pod(mk_pod("p"));
        let args = Default::default();
        let ask = Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        };
        assert!(PodTopologySpread.score(ask, &[]).is_none());
        cluster.set_service(
            "default",
            "s",
            Some([("app".to_string(), "a".to_string())].into()),
        );
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let args = Default::default();
        let ask = Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        };
        let scorer = PodTopologySpread.score(ask, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        scorer.normalize(&nodes, &mut scores);
        assert!(scores[0] < scores[1], "{scores:?}");
    }
}
