//! PodTopologySpread (KEP-895): pods of a kind are spread over the values of a node label.
//!
//! A pod without constraints of its own is spread softly over hosts and zones together with the pods of its service
//! or workload, as upstream's system defaults say.

use std::collections::{HashMap, HashSet};

use api::view::untolerated;
use apimachinery::selector::LabelSelector;

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, MAX_SCORE, NodeScore, Plugin, Rejection},
    node::NodeInfo,
    pod::{Pod, SpreadConstraint},
};

const HOSTNAME: &str = "kubernetes.io/hostname";
/// Upstream's systemDefaultConstraints: label and skew.
const DEFAULTS: [(&str, i64); 2] = [(HOSTNAME, 3), ("topology.kubernetes.io/zone", 5)];

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
    constraint: &'a SpreadConstraint,
    domains: HashMap<&'a str, i64>,
    /// Pods in the emptiest domain, 0 if there are too few domains.
    min: i64,
    own: i64,
}

impl<'a> Hard<'a> {
    fn new(
        constraint: &'a SpreadConstraint,
        keys: &[&str],
        pod: &Pod,
        cluster: &'a Cluster,
    ) -> Self {
        let counts = cluster.matching(&pod.namespace, &constraint.selector, false);
        let mut domains = HashMap::new();
        for info in cluster.nodes() {
            let Some(domain) = info.label(&constraint.topology_key) else {
                continue;
            };
            if keys.iter().all(|key| info.label(key).is_some()) && takes_part(constraint, pod, info)
            {
                *domains.entry(domain).or_default() +=
                    counts.get(&info.index).copied().unwrap_or(0);
            }
        }
        let min = if domains.len() < constraint.min_domains {
            0
        } else {
            domains.values().copied().min().unwrap_or(0)
        };
        Hard {
            constraint,
            domains,
            min,
            own: i64::from(constraint.selector.matches(&pod.labels)),
        }
    }

    fn check(&self, info: &NodeInfo) -> Result<(), Rejection> {
        let Some(domain) = info.label(&self.constraint.topology_key) else {
            let reason =
                "node(s) didn't match pod topology spread constraints (missing required label)";
            return Err(Rejection::unresolvable(reason));
        };
        let here = self.domains.get(domain).copied().unwrap_or(0);
        if here + self.own - self.min > self.constraint.max_skew {
            return Err(Rejection::resolvable(
                "node(s) didn't match pod topology spread constraints",
            ));
        }
        Ok(())
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

fn defaults(selector: &LabelSelector) -> Vec<SpreadConstraint> {
    let constraint = |(key, max_skew): (&str, i64)| SpreadConstraint {
        max_skew,
        topology_key: key.into(),
        is_hard: false,
        selector: selector.clone(),
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
    };
    DEFAULTS.into_iter().map(constraint).collect()
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn filter<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Filter<'a> {
        let hard: Vec<&SpreadConstraint> = pod.spread.iter().filter(|one| one.is_hard).collect();
        if hard.is_empty() {
            return Filter::Skip;
        }
        let keys: Vec<&str> = hard.iter().map(|one| one.topology_key.as_str()).collect();
        let hard: Vec<Hard<'a>> = hard
            .into_iter()
            .map(|one| Hard::new(one, &keys, pod, cluster))
            .collect();
        Filter::check(move |info: &NodeInfo| {
            let rejected = hard.iter().find_map(|one| one.check(info).err());
            rejected.map_or(Ok(()), |rejection| Err(vec![rejection]))
        })
    }

    fn score<'a>(
        &self,
        pod: &'a Pod,
        cluster: &'a Cluster,
        nodes: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let soft: Vec<SpreadConstraint> = if pod.spread.is_empty() {
            defaults(&cluster.default_selector(pod)?)
        } else {
            pod.spread
                .iter()
                .filter(|one| !one.is_hard)
                .cloned()
                .collect()
        };
        if soft.is_empty() {
            return None;
        }
        Some(Box::new(Soft::new(
            &soft,
            !pod.spread.is_empty(),
            pod,
            cluster,
            nodes,
        )))
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
            Change::NodeAdded(_) => true,
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
        let Filter::Check(check) = PodTopologySpread.filter(&pod, &cluster) else {
            panic!("checks nodes")
        };
        let verdict = |name: &str| {
            check
                .check(cluster.find_node(name).unwrap())
                .map_err(|r| r[0].is_resolvable)
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
        let scorer = PodTopologySpread.score(&pod, &cluster, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        scorer.normalize(&nodes, &mut scores);
        assert!(scores[0] < scores[1], "{scores:?}");
        assert_eq!(scores[2], 0);
    }

    #[test]
    fn pods_of_a_service_are_spread_over_hosts_by_default() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[on(mk_pod("x"), "a")]);
        let pod = pod(mk_pod("p"));
        assert!(PodTopologySpread.score(&pod, &cluster, &[]).is_none());
        cluster.set_service(
            "default",
            "s",
            Some([("app".to_string(), "a".to_string())].into()),
        );
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let scorer = PodTopologySpread.score(&pod, &cluster, &nodes).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        scorer.normalize(&nodes, &mut scores);
        assert!(scores[0] < scores[1], "{scores:?}");
    }
}
