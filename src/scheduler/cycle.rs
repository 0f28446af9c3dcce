//! One decision: filter the nodes, score what is left, take the best; if none is left, see whom to evict.

use std::time::{Duration, Instant};

use rand::Rng;

use crate::{
    cluster::Cluster,
    fit_error::FitError,
    framework::{Ask, Filter, NodeFilter, Plugin, Rejection, Trial},
    node::NodeInfo,
    pod::Pod,
    preemption::{self, Nomination},
    profile::Profile,
};

/// So many fitting nodes are always looked for (minFeasibleNodesToFind).
const MIN_FEASIBLE: usize = 100;
/// And never fewer than this share of all, in percent (minFeasibleNodesPercentageToFind).
const MIN_PERCENTAGE: usize = 5;

/// A pod that fits nowhere.
#[derive(Debug)]
pub struct Failure {
    pub error: FitError,
    pub nomination: Nomination,
}

/// Picks nodes, beginning each search where the last one ended so that all nodes get their turn.
#[derive(Default)]
pub struct Scheduler {
    start: usize,
    scratch: Scratch,
    /// Of the last decision.
    pub times: Times,
}

/// How long the parts of a decision took; `None` for those it did without.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub pre_filter: Option<Duration>,
    pub filter: Option<Duration>,
    pub post_filter: Option<Duration>,
    pub pre_score: Option<Duration>,
    pub score: Option<Duration>,
}

/// Adds the time since `start`, and begins anew.
fn lap(part: &mut Option<Duration>, start: &mut Instant) {
    let now = Instant::now();
    *part.get_or_insert_default() += now - *start;
    *start = now;
}

/// Buffers that outlive a decision, so that it allocates nothing for each node.
#[derive(Default)]
struct Scratch {
    why: Vec<Rejection>,
    scores: Vec<i64>,
    totals: Vec<i64>,
}

/// What the plugins have to say about a pod.
pub struct Filters<'a> {
    checks: Vec<(&'static str, Box<dyn NodeFilter + 'a>)>,
    /// The only nodes that can be right, and the plugins that say so.
    among: Option<(Vec<String>, Vec<&'static str>)>,
}

impl Filters<'_> {
    /// The first plugin that rejects the node; its reasons are left in `why`.
    fn rejected(&self, node: &NodeInfo, why: &mut Vec<Rejection>) -> Option<&'static str> {
        why.clear();
        self.checks.iter().find_map(|(name, check)| {
            check.check(node, why);
            (!why.is_empty()).then_some(*name)
        })
    }

    /// The same for a node with other pods than it has.
    pub fn rejected_trial(&self, trial: &Trial, why: &mut Vec<Rejection>) -> Option<&'static str> {
        why.clear();
        self.checks.iter().find_map(|(name, check)| {
            check.check_trial(trial, why);
            (!why.is_empty()).then_some(*name)
        })
    }
}

/// The first plugin that rejects the node with or without the pods that are expected there and matter as much
/// (RunFilterPluginsWithNominatedPods): those may come, or may not.
fn rejected(
    ask: Ask<'_>,
    filters: &Filters<'_>,
    node: &NodeInfo,
    why: &mut Vec<Rejection>,
) -> Option<&'static str> {
    if ask.cluster.has_nominations() {
        let expected = preemption::expected(ask, &node.name);
        if !expected.is_empty() {
            let mut trial = Trial::of(node);
            expected.iter().for_each(|pod| trial.add(pod));
            if let Some(name) = filters.rejected_trial(&trial, why) {
                return Some(name);
            }
        }
    }
    filters.rejected(node, why)
}

impl Scheduler {
    /// The index of the best node for the pod.
    pub fn schedule(
        &mut self,
        pod: &Pod,
        profile: &Profile,
        cluster: &mut Cluster,
    ) -> Result<usize, Box<Failure>> {
        self.times = Times::default();
        let mut clock = Instant::now();
        cluster.order();
        let cluster = &*cluster;
        let ask = Ask {
            pod,
            cluster,
            args: &profile.args,
        };
        let mut error = FitError {
            nodes: cluster.ordered().len(),
            ..FitError::default()
        };
        if error.nodes == 0 {
            return Err(Box::new(Failure {
                error,
                nomination: Nomination::Keep,
            }));
        }
        let filters = filters(ask, profile, &mut error);
        lap(&mut self.times.pre_filter, &mut clock);
        let Some(filters) = filters else {
            let nomination = preemption::run(ask, profile, None, &mut error);
            lap(&mut self.times.post_filter, &mut clock);
            return Err(Box::new(Failure { error, nomination }));
        };
        // A pod that is expected somewhere goes there if it can.
        if let Some(node) = cluster
            .nomination(&pod.uid)
            .and_then(|name| cluster.find_node(name))
            && filters
                .among
                .as_ref()
                .is_none_or(|(names, _)| names.contains(&node.name))
            && rejected(ask, &filters, node, &mut self.scratch.why).is_none()
        {
            lap(&mut self.times.filter, &mut clock);
            return Ok(node.index);
        }
        let feasible = self.feasible(ask, profile, &filters, &mut error);
        lap(&mut self.times.filter, &mut clock);
        match feasible.as_slice() {
            [] => {
                let nomination = preemption::run(ask, profile, Some(&filters), &mut error);
                lap(&mut self.times.post_filter, &mut clock);
                Err(Box::new(Failure { error, nomination }))
            }
            [only] => Ok(only.index),
            _ => Ok(feasible[self.best(ask, profile, &feasible)].index),
        }
    }

    /// All nodes that fit, with their scores: for those who have more to say about them.
    pub fn survey(
        &mut self,
        pod: &Pod,
        profile: &Profile,
        cluster: &mut Cluster,
    ) -> Result<Vec<(usize, i64)>, Box<Failure>> {
        self.times = Times::default();
        let mut clock = Instant::now();
        cluster.order();
        let cluster = &*cluster;
        let ask = Ask {
            pod,
            cluster,
            args: &profile.args,
        };
        let mut error = FitError {
            nodes: cluster.ordered().len(),
            ..FitError::default()
        };
        if error.nodes == 0 {
            return Err(Box::new(Failure {
                error,
                nomination: Nomination::Keep,
            }));
        }
        let filters = filters(ask, profile, &mut error);
        lap(&mut self.times.pre_filter, &mut clock);
        let feasible = filters.as_ref().map(|filters| {
            let feasible = self.feasible(ask, profile, filters, &mut error);
            lap(&mut self.times.filter, &mut clock);
            feasible
        });
        match feasible.filter(|feasible| !feasible.is_empty()) {
            Some(feasible) => {
                self.score(ask, profile, &feasible);
                let totals = self.scratch.totals.iter();
                Ok(feasible
                    .iter()
                    .zip(totals)
                    .map(|(node, total)| (node.index, *total))
                    .collect())
            }
            None => {
                let nomination = preemption::run(ask, profile, filters.as_ref(), &mut error);
                lap(&mut self.times.post_filter, &mut clock);
                Err(Box::new(Failure { error, nomination }))
            }
        }
    }

    /// The index of a node, if the pod fits it as things are now.
    pub fn fits(
        &mut self,
        pod: &Pod,
        profile: &Profile,
        cluster: &Cluster,
        node: &str,
    ) -> Option<usize> {
        let ask = Ask {
            pod,
            cluster,
            args: &profile.args,
        };
        let filters = filters(ask, profile, &mut FitError::default())?;
        let node = cluster.find_node(node)?;
        let is_among = filters
            .among
            .as_ref()
            .is_none_or(|(names, _)| names.contains(&node.name));
        (is_among && rejected(ask, &filters, node, &mut self.scratch.why).is_none())
            .then_some(node.index)
    }

    /// Whom to evict from the nodes that `error` says may be helped.
    pub fn preempt(
        &mut self,
        pod: &Pod,
        profile: &Profile,
        cluster: &Cluster,
        error: &mut FitError,
    ) -> Nomination {
        let ask = Ask {
            pod,
            cluster,
            args: &profile.args,
        };
        let filters = filters(ask, profile, &mut FitError::default());
        preemption::run(ask, profile, filters.as_ref(), error)
    }

    fn feasible<'a>(
        &mut self,
        ask: Ask<'a>,
        profile: &Profile,
        filters: &Filters<'a>,
        error: &mut FitError,
    ) -> Vec<&'a NodeInfo> {
        let cluster = ask.cluster;
        let order = cluster.ordered();
        let why = &mut self.scratch.why;
        if let Some((names, plugins)) = &filters.among {
            let candidates: Vec<&NodeInfo> = names
                .iter()
                .filter_map(|name| cluster.find_node(name))
                .collect();
            let mut feasible = Vec::new();
            for node in &candidates {
                match rejected(ask, filters, node, why) {
                    None => feasible.push(*node),
                    Some(plugin) => error.reject(node.index, plugin, why),
                }
            }
            let left = order.len() - candidates.len();
            if feasible.is_empty() && left > 0 {
                error.plugins.extend(plugins);
                let names = plugins.join(" ");
                error
                    .reasons
                    .add(format!("node(s) didn't satisfy plugin(s) [{names}]"), left);
            }
            return feasible;
        }
        let wanted = profile.wanted_nodes(order.len());
        let mut feasible = Vec::with_capacity(wanted);
        let mut tried = 0;
        let start = self.start % order.len();
        for index in order[start..].iter().chain(&order[..start]) {
            tried += 1;
            let node = cluster.node(*index);
            match rejected(ask, filters, node, why) {
                None => feasible.push(node),
                Some(plugin) => error.reject(*index, plugin, why),
            }
            if feasible.len() == wanted {
                break;
            }
        }
        self.start = (start + tried) % order.len();
        feasible
    }

    /// The weighted sums of all plugins' scores, into `scratch.totals`.
    fn score(&mut self, ask: Ask<'_>, profile: &Profile, nodes: &[&NodeInfo]) {
        let Scratch { scores, totals, .. } = &mut self.scratch;
        let Times {
            pre_score, score, ..
        } = &mut self.times;
        let mut clock = Instant::now();
        totals.clear();
        totals.resize(nodes.len(), 0);
        for (plugin, weight) in &profile.scorers {
            let scorer = plugin.score(ask, nodes);
            lap(pre_score, &mut clock);
            let Some(scorer) = scorer else {
                continue;
            };
            scores.clear();
            scorer.score_all(nodes, scores);
            scorer.normalize(nodes, scores);
            for (total, score) in totals.iter_mut().zip(scores.iter()) {
                *total += score * weight;
            }
            lap(score, &mut clock);
        }
    }

    /// One with the highest score, by chance.
    fn best(&mut self, ask: Ask<'_>, profile: &Profile, nodes: &[&NodeInfo]) -> usize {
        self.score(ask, profile, nodes);
        let totals = &self.scratch.totals;
        let highest = totals.iter().copied().max().unwrap_or(0);
        let best = totals.iter().filter(|total| **total == highest).count();
        let chosen = rand::rng().random_range(0..best.max(1));
        let mut positions = totals
            .iter()
            .enumerate()
            .filter(|(_, total)| **total == highest);
        positions.nth(chosen).map_or(0, |(index, _)| index)
    }
}

/// What the plugins have to say, or `None` if one rejects all nodes.
fn filters<'a>(ask: Ask<'a>, profile: &Profile, error: &mut FitError) -> Option<Filters<'a>> {
    let mut filters = Filters {
        checks: Vec::with_capacity(profile.filters.len()),
        among: None,
    };
    for plugin in &profile.filters {
        let plugin: &dyn Plugin = *plugin;
        let name = plugin.name();
        match plugin.filter(ask) {
            Filter::Skip => {}
            Filter::Check(check) => filters.checks.push((name, check)),
            Filter::Among(nodes, check) => {
                filters.checks.push((name, check));
                let (names, plugins) = filters
                    .among
                    .get_or_insert_with(|| (nodes.clone(), Vec::new()));
                names.retain(|name| nodes.contains(name));
                plugins.push(name);
                if names.is_empty() {
                    let plugins = plugins.join(" ");
                    error.plugins.insert(name);
                    error.of_all = Some(format!(
                        "node(s) didn't satisfy plugin(s) [{plugins}] simultaneously"
                    ));
                    return None;
                }
            }
            Filter::Reject(rejection) => {
                error.plugins.insert(name);
                error.of_all = Some(rejection.reason.into_owned());
                return None;
            }
        }
    }
    Some(filters)
}

impl Profile {
    /// How many fitting nodes are enough (numFeasibleNodesToFind).
    fn wanted_nodes(&self, nodes: usize) -> usize {
        if nodes < MIN_FEASIBLE {
            return nodes.max(1);
        }
        let percentage = match self.percentage_of_nodes_to_score {
            0 => 50_usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE),
            percentage => percentage.min(100),
        };
        (nodes * percentage / 100).max(MIN_FEASIBLE)
    }
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
            .schedule(&pod, &Profile::default(), cluster)
            .map_err(|failure| failure.error.to_string())?;
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
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
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
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No \
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
            let index = scheduler
                .schedule(&pod, &Profile::default(), &mut cluster)
                .unwrap();
            cluster.assume(pod, index);
        }
        for node in ["w1", "w2"] {
            assert_eq!(cluster.find_node(node).unwrap().pods.len(), 10);
        }
    }

    #[test]
    fn a_search_ends_when_enough_nodes_fit_and_the_next_begins_there() {
        let profile = Profile::default();
        for (nodes, wanted) in [
            (10, 10),
            (99, 99),
            (100, 100),
            (1000, 420),
            (5000, 500),
            (6000, 300),
        ] {
            assert_eq!(profile.wanted_nodes(nodes), wanted, "{nodes}");
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
            "0/2 nodes are available: 1 Insufficient memory, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        );
    }
}
