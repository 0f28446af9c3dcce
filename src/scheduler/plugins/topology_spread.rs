//! PodTopologySpread (KEP-895): pods of a kind are spread over the values of a node label.
//!
//! A pod without constraints of its own is spread softly over hosts and zones together with the pods of its service
//! or workload, as upstream's system defaults say.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use api::view::untolerated;

use crate::{
    args::{SpreadDefaults, system_spread},
    cluster::Cluster,
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

/// A hard constraint with the pods counted in each of its domains.
struct Hard<'a> {
    constraint: Cow<'a, SpreadConstraint>,
    pod: &'a Pod,
    domains: HashMap<&'a str, i64>,
    /// The emptiest domain with its pods, and the pods of the next (criticalPaths).
    emptiest: Option<(&'a str, i64)>,
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
        let counts = cluster.matching(&pod.namespace, &constraint.selector, false);
        let mut domains: HashMap<&'a str, i64> = HashMap::new();
        for info in cluster.nodes() {
            let Some(domain) = info.label(&constraint.topology_key) else {
                continue;
            };
            let is_labelled = keys.len() < 2 || keys.iter().all(|key| info.label(key).is_some());
            if is_labelled && takes_part(&constraint, pod, info) {
                *domains.entry(domain).or_default() +=
                    counts.get(&info.index).copied().unwrap_or(0);
            }
        }
        let (mut emptiest, mut next) = (None, None);
        for (domain, pods) in &domains {
            match emptiest {
                Some((_, least)) if least <= *pods => {
                    next = Some(next.map_or(*pods, |next: i64| next.min(*pods)))
                }
                _ => {
                    next = emptiest.map(|(_, least)| least).or(next);
                    emptiest = Some((*domain, *pods));
                }
            }
        }
        Hard {
            too_few: domains.len() < constraint.min_domains,
            own: i64::from(constraint.selector.matches(&pod.labels)),
            constraint,
            pod,
            domains,
            emptiest,
            next,
        }
    }

    /// The pods of the emptiest domain, if `domain` has so many instead.
    fn least(&self, domain: &str, pods: i64) -> i64 {
        if self.too_few {
            return 0;
        }
        let others = match self.emptiest {
            Some((emptiest, _)) if emptiest == domain => self.next,
            Some((_, least)) => Some(least),
            None => None,
        };
        match others {
            Some(others) if self.domains.contains_key(domain) => others.min(pods),
            Some(others) => others,
            None if self.domains.contains_key(domain) => pods,
            None => 0,
        }
    }

    fn verdict(&self, info: &NodeInfo, more: i64) -> Option<Rejection> {
        let Some(domain) = info.label(&self.constraint.topology_key) else {
            let reason =
                "node(s) didn't match pod topology spread constraints (missing required label)";
            return Some(Rejection::unresolvable(reason));
        };
        let more = if more != 0 && takes_part(&self.constraint, self.pod, info) {
            more
        } else {
            0
        };
        let here = self.domains.get(domain).copied().unwrap_or(0) + more;
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
struct Soft<'a> {
    constraints: Vec<SoftConstraint<'a>>,
    /// Nodes that lack a label of the pod's own constraints.
    ignored: HashSet<usize>,
}

struct SoftConstraint<'a> {
    key: String,
    max_skew: i64,
    weight: f64,
    by_host: bool,
    hosts: std::sync::Arc<HashMap<usize, i64>>,
    domains: HashMap<&'a str, i64>,
}

impl<'a> Soft<'a> {
    fn new(
        constraints: &[SpreadConstraint],
        needs_all_labels: bool,
        pod: &Pod,
        cluster: &'a Cluster,
        nodes: &[&'a NodeInfo],
    ) -> Self {
        let has_all = |info: &NodeInfo| {
            constraints
                .iter()
                .all(|one| info.label(&one.topology_key).is_some())
        };
        let left_out = nodes
            .iter()
            .filter(|info| needs_all_labels && !has_all(info));
        let ignored: HashSet<usize> = left_out.map(|info| info.index).collect();
        let count = |constraint: &SpreadConstraint| {
            let hosts = cluster.matching(&pod.namespace, &constraint.selector, false);
            let by_host = constraint.topology_key == HOSTNAME;
            let mut domains = HashMap::new();
            let mut size = nodes.len() - ignored.len();
            if !by_host {
                let part = nodes.iter().filter(|info| !ignored.contains(&info.index));
                domains.extend(
                    part.filter_map(|info| info.label(&constraint.topology_key))
                        .map(|domain| (domain, 0)),
                );
                size = domains.len();
                // Only nodes that have such pods add anything.
                for (index, pods) in hosts.iter() {
                    let info = cluster.node(*index);
                    let counts =
                        (!needs_all_labels || has_all(info)) && takes_part(constraint, pod, info);
                    if let Some(domain) = info.label(&constraint.topology_key).filter(|_| counts)
                        && let Some(sum) = domains.get_mut(domain)
                    {
                        *sum += pods;
                    }
                }
            }
            SoftConstraint {
                key: constraint.topology_key.clone(),
                max_skew: constraint.max_skew,
                weight: (size as f64 + 2.0).ln(),
                by_host,
                hosts,
                domains,
            }
        };
        Soft {
            constraints: constraints.iter().map(count).collect(),
            ignored,
        }
    }
}

impl NodeScore for Soft<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        if self.ignored.contains(&info.index) {
            return 0;
        }
        let mut score = 0.0;
        for constraint in &self.constraints {
            let Some(domain) = info.label(&constraint.key) else {
                continue;
            };
            let pods = if constraint.by_host {
                constraint.hosts.get(&info.index)
            } else {
                constraint.domains.get(domain)
            };
            let pods = pods.copied().unwrap_or(0) as f64;
            score += pods * constraint.weight + (constraint.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    /// Fewer pods become a higher score.
    fn normalize(&self, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let part = |(info, _): &(&&NodeInfo, &i64)| !self.ignored.contains(&info.index);
        let counted: Vec<i64> = nodes
            .iter()
            .zip(scores.iter())
            .filter(part)
            .map(|(_, score)| *score)
            .collect();
        let min = counted.iter().copied().min().unwrap_or(0);
        let max = counted.iter().copied().max().unwrap_or(0);
        for (info, score) in nodes.iter().zip(scores) {
            *score = if self.ignored.contains(&info.index) {
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
        let concerns = |other: &Pod| {
            other.namespace == pod.namespace
                && pod
                    .spread
                    .iter()
                    .any(|one| one.is_hard && one.selector.matches(&other.labels))
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
