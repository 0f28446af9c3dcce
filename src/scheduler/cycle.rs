//! One decision: filter the nodes, score what is left, take the best.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use crate::{
    cluster::Cluster,
    framework::{Filter, NodeFilter, Rejection},
    node::NodeInfo,
    plugins::{self, PLUGINS},
    pod::Pod,
};

/// So many fitting nodes are always looked for (minFeasibleNodesToFind).
const MIN_FEASIBLE: usize = 100;
/// And never fewer than this share of all, in percent (minFeasibleNodesPercentageToFind).
const MIN_PERCENTAGE: usize = 5;

/// Why a pod fits nowhere. `Display` is upstream's FitError with its preemption part.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FitError {
    pub nodes: usize,
    /// A reason that holds for all nodes at once.
    pub of_all: Option<String>,
    /// How many nodes each reason holds for.
    pub reasons: BTreeMap<String, usize>,
    /// Nodes where evicting pods might help, and where it cannot.
    pub resolvable: usize,
    pub unresolvable: usize,
    pub plugins: BTreeSet<&'static str>,
    pub never_preempts: bool,
}

impl std::fmt::Display for FitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        write!(f, "0/{} nodes are available", self.nodes)?;
        match &self.of_all {
            Some(reason) => write!(f, ": {reason}.")?,
            None => f.write_str(&histogram(&self.reasons))?,
        }
        // The dynamic resources' part of the answer comes first, though the pod has no claims.
        f.write_str(" no new claims to deallocate, preemption: ")?;
        if self.never_preempts {
            return f.write_str("not eligible due to preemptionPolicy=Never.");
        }
        let mut reasons = BTreeMap::new();
        for (reason, count) in [
            (
                "Preemption is not helpful for scheduling",
                self.unresolvable,
            ),
            (
                "No preemption victims found for incoming pod",
                self.resolvable,
            ),
        ] {
            if count > 0 {
                reasons.insert(reason.to_string(), count);
            }
        }
        write!(
            f,
            "0/{} nodes are available{}",
            self.nodes,
            histogram(&reasons)
        )
    }
}

/// `: 1 this, 2 that.`, sorted as text.
fn histogram(reasons: &BTreeMap<String, usize>) -> String {
    let mut parts: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    if parts.is_empty() {
        ".".into()
    } else {
        format!(": {}.", parts.join(", "))
    }
}

/// Picks nodes, beginning each search where the last one ended so that all nodes get their turn.
#[derive(Default)]
pub struct Scheduler {
    start: usize,
    /// `percentageOfNodesToScore`; 0 adapts.
    percentage: usize,
}

impl Scheduler {
    pub fn new(percentage: usize) -> Self {
        Scheduler {
            start: 0,
            percentage,
        }
    }

    /// The index of the best node for the pod.
    pub fn schedule(&mut self, pod: &Pod, cluster: &mut Cluster) -> Result<usize, FitError> {
        let order = cluster.order().to_vec();
        let cluster = &*cluster;
        let feasible = self.feasible(pod, cluster, &order)?;
        if let [only] = feasible.as_slice() {
            return Ok(only.index);
        }
        Ok(best(&scores(pod, cluster, &feasible)))
    }

    fn feasible<'a>(
        &mut self,
        pod: &'a Pod,
        cluster: &'a Cluster,
        order: &[usize],
    ) -> Result<Vec<&'a NodeInfo>, FitError> {
        let mut error = FitError {
            nodes: order.len(),
            never_preempts: pod.never_preempts,
            ..FitError::default()
        };
        if order.is_empty() {
            return Err(error);
        }
        let Filters { checks, among } = filters(pod, cluster, &mut error)?;
        let candidates: Vec<usize> = match &among {
            Some((names, _)) => names
                .iter()
                .filter_map(|name| cluster.find_node(name))
                .map(|node| node.index)
                .collect(),
            None => {
                let (before, after) = order.split_at(self.start % order.len());
                after.iter().chain(before).copied().collect()
            }
        };
        let wanted = self.wanted(candidates.len());
        let mut feasible = Vec::with_capacity(wanted);
        let mut tried = 0;
        for index in candidates {
            if feasible.len() == wanted {
                break;
            }
            tried += 1;
            let node = cluster.node(index);
            match checks
                .iter()
                .find_map(|(name, check)| Some((*name, check.check(node).err()?)))
            {
                None => feasible.push(node),
                Some((plugin, rejections)) => error.node(plugin, &rejections),
            }
        }
        if let Some((_, plugin)) = among {
            let left = order.len() - tried;
            if feasible.is_empty() && left > 0 {
                let reason = format!("node(s) didn't satisfy plugin(s) [{plugin}]");
                error.reasons.insert(reason, left);
                error.unresolvable += left;
                error.plugins.insert(plugin);
            }
        } else {
            self.start = (self.start + tried) % order.len();
        }
        if feasible.is_empty() {
            Err(error)
        } else {
            Ok(feasible)
        }
    }

    /// How many fitting nodes are enough (numFeasibleNodesToFind).
    fn wanted(&self, nodes: usize) -> usize {
        if nodes < MIN_FEASIBLE {
            return nodes.max(1);
        }
        let percentage = match self.percentage {
            0 => 50_usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE),
            percentage => percentage.min(100),
        };
        (nodes * percentage / 100).max(MIN_FEASIBLE)
    }
}

impl FitError {
    fn node(&mut self, plugin: &'static str, rejections: &[Rejection]) {
        self.plugins.insert(plugin);
        for rejection in rejections {
            *self
                .reasons
                .entry(rejection.reason.to_string())
                .or_default() += 1;
        }
        if rejections.iter().all(|rejection| rejection.is_resolvable) {
            self.resolvable += 1;
        } else {
            self.unresolvable += 1;
        }
    }
}

struct Filters<'a> {
    checks: Vec<(&'static str, Box<dyn NodeFilter + 'a>)>,
    /// The only nodes that can be right, and the plugin that says so.
    among: Option<(Vec<String>, &'static str)>,
}

fn filters<'a>(
    pod: &'a Pod,
    cluster: &'a Cluster,
    error: &mut FitError,
) -> Result<Filters<'a>, FitError> {
    let mut filters = Filters {
        checks: Vec::new(),
        among: None,
    };
    for plugin in plugins::all() {
        let name = plugin.name();
        match plugin.filter(pod, cluster) {
            Filter::Skip => {}
            Filter::Check(check) => filters.checks.push((name, check)),
            Filter::Among(nodes, check) => {
                filters.among = Some((nodes, name));
                filters.checks.push((name, check));
            }
            Filter::Reject(rejection) => {
                error.plugins.insert(name);
                if rejection.is_resolvable {
                    error.resolvable = error.nodes;
                } else {
                    error.unresolvable = error.nodes;
                }
                error.of_all = Some(rejection.reason.into_owned());
                return Err(std::mem::take(error));
            }
        }
    }
    Ok(filters)
}

/// The weighted sums of all plugins' scores, with the nodes' indexes.
fn scores(pod: &Pod, cluster: &Cluster, nodes: &[&NodeInfo]) -> Vec<(i64, usize)> {
    let mut totals: Vec<(i64, usize)> = nodes.iter().map(|node| (0, node.index)).collect();
    for (plugin, weight) in PLUGINS {
        let Some(scorer) = plugin.score(pod, cluster, nodes) else {
            continue;
        };
        let mut scores: Vec<i64> = nodes.iter().map(|node| scorer.score(node)).collect();
        scorer.normalize(nodes, &mut scores);
        for (total, score) in totals.iter_mut().zip(scores) {
            total.0 += score * weight;
        }
    }
    totals
}

/// One of the highest, by chance.
fn best(totals: &[(i64, usize)]) -> usize {
    let highest = totals.iter().map(|(score, _)| *score).max();
    let best: Vec<usize> = totals
        .iter()
        .filter(|(score, _)| Some(*score) == highest)
        .map(|(_, index)| *index)
        .collect();
    best[rand::rng().random_range(0..best.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::testing::{cluster, mk_node, mk_pod, on},
        pod::pod,
    };
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn schedule(cluster: &mut Cluster, value: Value) -> Result<String, String> {
        let pod = pod(value);
        let index = Scheduler::default()
            .schedule(&pod, cluster)
            .map_err(|error| error.to_string())?;
        Ok(cluster.node(index).name.clone())
    }

    fn control_plane() -> Value {
        let mut node = mk_node("cp");
        node["spec"]["taints"] =
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
        node
    }

    #[test]
    fn a_pod_that_fits_nowhere_is_told_why_in_upstreams_words() {
        let mut cluster = cluster(
            &[control_plane(), mk_node("w1"), mk_node("w2")],
            &[on(mk_pod("x"), "w1")],
        );
        let mut big = mk_pod("big");
        big["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("64");
        assert_eq!(
            schedule(&mut cluster, big).unwrap_err(),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to \
             deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        );
        let mut full = mk_pod("full");
        full["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
        for (name, node) in [("f1", "w1"), ("f2", "w2")] {
            full["metadata"]["uid"] = json!(name);
            cluster.set_pod(Arc::new(pod(on(full.clone(), node))));
        }
        let mut more = mk_pod("more");
        more["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
        assert_eq!(
            schedule(&mut cluster, more).unwrap_err(),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to \
             deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No \
             preemption victims found for incoming pod."
        );
    }

    #[test]
    fn without_nodes_there_is_nothing_to_say_but_that() {
        let mut cluster = cluster(&[], &[]);
        assert_eq!(
            schedule(&mut cluster, mk_pod("a")).unwrap_err(),
            "no nodes available to schedule pods"
        );
    }

    #[test]
    fn pods_are_shared_evenly_among_equal_nodes() {
        let mut cluster = cluster(&[control_plane(), mk_node("w1"), mk_node("w2")], &[]);
        let mut scheduler = Scheduler::default();
        for number in 0..20 {
            let pod = Arc::new(pod(mk_pod(&number.to_string())));
            let index = scheduler.schedule(&pod, &mut cluster).unwrap();
            cluster.assume(pod, index);
        }
        for node in ["w1", "w2"] {
            assert_eq!(cluster.find_node(node).unwrap().pods.len(), 10);
        }
    }

    #[test]
    fn a_search_ends_when_enough_nodes_fit_and_the_next_begins_there() {
        let scheduler = Scheduler::default();
        for (nodes, wanted) in [
            (10, 10),
            (99, 99),
            (100, 100),
            (1000, 420),
            (5000, 500),
            (6000, 300),
        ] {
            assert_eq!(scheduler.wanted(nodes), wanted, "{nodes}");
        }
    }

    #[test]
    fn a_pod_for_one_node_looks_at_no_other() {
        let mut cluster = cluster(&[mk_node("w1"), mk_node("w2")], &[]);
        let mut value = mk_pod("ds");
        value["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["w2"]}]}],
        });
        assert_eq!(schedule(&mut cluster, value.clone()).unwrap(), "w2");
        value["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("1Ti");
        assert_eq!(
            schedule(&mut cluster, value).unwrap_err(),
            "0/2 nodes are available: 1 Insufficient memory, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. no \
             new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        );
    }
}
