//! DefaultPreemption (PostFilter): finds the node where evicting the fewest and least important pods lets a pod in.
//!
//! Nothing is evicted here: the outcome is a nomination with its victims. Evictions never take a pod of the same or a
//! higher priority; budgets are broken only where no other node will do.

use std::{cmp::Reverse, sync::Arc};

use rand::Rng;

use crate::{
    cluster::Cluster,
    cycle::Filters,
    fit_error::{FitError, Reasons},
    framework::{Ask, Plugin, Rejection, Trial},
    node::NodeInfo,
    plugins::dynamic_resources,
    pod::Pod,
    profile::Profile,
};

/// What becomes of the node a pod is expected on.
#[derive(Debug)]
pub enum Nomination {
    /// It stays as it is.
    Keep,
    /// The pod is expected nowhere.
    Clear,
    /// The pod is expected on this node, once its victims are gone; others would do, too.
    Set {
        best: Candidate,
        others: Vec<Candidate>,
    },
}

/// A node with the pods that must go.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub node: usize,
    /// The most important first.
    pub victims: Vec<Arc<Pod>>,
    /// How many of them break a budget.
    pub violations: usize,
}

impl Nomination {
    /// All candidates, the best first, and the nomination again.
    pub fn into_candidates(self) -> (Self, Vec<Candidate>) {
        let candidates = match &self {
            Nomination::Set { best, others } => [best].into_iter().chain(others).cloned().collect(),
            _ => Vec::new(),
        };
        (self, candidates)
    }
}

/// The best of the candidates.
pub fn choose(mut candidates: Vec<Candidate>) -> Option<Nomination> {
    let places = (0..candidates.len()).min_by(|a, b| compare(&candidates[*a], &candidates[*b]));
    let best = candidates.swap_remove(places?);
    Some(Nomination::Set {
        best,
        others: candidates,
    })
}

/// Pods expected on a node that matter at least as much as the one asked about.
pub fn expected(ask: Ask<'_>, node: &str) -> Vec<Arc<Pod>> {
    let others = ask.cluster.nominated_on(node).iter();
    let others =
        others.filter(|other| other.priority >= ask.pod.priority && other.uid != ask.pod.uid);
    others.cloned().collect()
}

/// Looks for victims, and says in `error` if there are none. `filters` is `None` if a plugin rejects all nodes.
pub fn run(
    ask: Ask<'_>,
    profile: &Profile,
    filters: Option<&Filters<'_>>,
    error: &mut FitError,
) -> Nomination {
    if !profile.preempts {
        return Nomination::Keep;
    }
    let is_asked = |plugin: &&dyn Plugin| plugin.name() == dynamic_resources::NAME;
    if profile.filters.iter().any(is_asked) {
        error.claims = "no new claims to deallocate";
    }
    if let Some(why) = ineligible(ask, &error.resolvable) {
        error.preemption = format!("not eligible due to {why}.");
        return Nomination::Keep;
    }
    let mut reasons = Reasons::default();
    let mut candidates = Vec::new();
    if let Some(filters) = filters {
        candidates = find_candidates(ask, filters, &error.resolvable, &mut reasons);
    }
    if let Some(nomination) = choose(candidates) {
        return nomination;
    }
    let helpless = error.nodes - filters.map_or(0, |_| error.resolvable.len());
    reasons.add("Preemption is not helpful for scheduling", helpless);
    error.preemption = format!("0/{} nodes are available:{reasons}", error.nodes);
    Nomination::Clear
}

/// Why the pod may not evict others now (PodEligibleToPreemptOthers).
fn ineligible(ask: Ask<'_>, resolvable: &[usize]) -> Option<&'static str> {
    if ask.pod.never_preempts {
        return Some("preemptionPolicy=Never");
    }
    let nominated = ask
        .cluster
        .nomination(&ask.pod.uid)
        .unwrap_or(&ask.pod.nominated_node);
    let node = ask.cluster.find_node(nominated)?;
    if !resolvable.contains(&node.index) {
        return None;
    }
    let waits = node
        .pods
        .iter()
        .any(|other| other.priority < ask.pod.priority && other.is_deleting && other.is_preempted);
    waits.then_some("a terminating pod on the nominated node")
}

/// Tries the nodes from a random one on until there are enough candidates, one of which breaks no budget
/// (DryRunPreemption).
fn find_candidates(
    ask: Ask<'_>,
    filters: &Filters<'_>,
    nodes: &[usize],
    reasons: &mut Reasons,
) -> Vec<Candidate> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let args = ask.args.preemption;
    let share = nodes.len() * args.min_candidate_nodes_percentage / 100;
    let enough = share
        .max(args.min_candidate_nodes_absolute)
        .min(nodes.len());
    let start = rand::rng().random_range(0..nodes.len());
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut is_kind = false;
    let mut helpless = 0;
    for index in nodes[start..].iter().chain(&nodes[..start]) {
        let info = ask.cluster.node(*index);
        if info
            .lowest_priority
            .is_none_or(|lowest| lowest >= ask.pod.priority)
        {
            helpless += 1;
            continue;
        }
        match victims_on(ask, filters, info) {
            Ok(candidate) => {
                is_kind |= candidate.violations == 0;
                candidates.push(candidate);
            }
            Err(why) => why.iter().for_each(|one| reasons.count(one)),
        }
        if candidates.len() >= enough && is_kind {
            break;
        }
    }
    reasons.add("No preemption victims found for incoming pod", helpless);
    candidates
}

/// The fewest and least important pods of a node that must go (SelectVictimsOnNode): all that matter less are taken
/// away, then as many as possible put back, beginning with those that a budget protects and the most important.
fn victims_on(
    ask: Ask<'_>,
    filters: &Filters<'_>,
    info: &NodeInfo,
) -> Result<Candidate, Vec<Rejection>> {
    let lower = info
        .pods
        .iter()
        .filter(|other| other.priority < ask.pod.priority);
    let mut possible: Vec<Arc<Pod>> = lower.cloned().collect();
    let expected = expected(ask, &info.name);
    let mut why = Vec::new();
    let mut fits = |trial: &mut Trial| {
        if !expected.is_empty() {
            expected.iter().for_each(|pod| trial.add(pod));
            let rejected = filters.rejected_trial(trial, &mut why).is_some();
            expected.iter().for_each(|pod| trial.remove(pod));
            if rejected {
                return Err(std::mem::take(&mut why));
            }
        }
        match filters.rejected_trial(trial, &mut why) {
            Some(_) => Err(std::mem::take(&mut why)),
            None => Ok(()),
        }
    };
    let mut trial = Trial::of(info);
    possible.iter().for_each(|pod| trial.remove(pod));
    fits(&mut trial)?;
    possible.sort_by(|a, b| importance(a).cmp(&importance(b)));
    let (protected, others) = by_budgets(ask.cluster, possible);
    let protected_count = protected.len();
    let mut victims = Vec::new();
    let mut violations = 0;
    for (index, pod) in protected.into_iter().chain(others).enumerate() {
        trial.add(&pod);
        if fits(&mut trial).is_err() {
            trial.remove(&pod);
            violations += usize::from(index < protected_count);
            victims.push(pod);
        }
    }
    victims.sort_by(|a, b| importance(a).cmp(&importance(b)));
    Ok(Candidate {
        node: info.index,
        victims,
        violations,
    })
}

/// Orders the most important pod first: higher priority, then longer running (MoreImportantPod).
fn importance(pod: &Pod) -> (Reverse<i32>, bool, &str) {
    (
        Reverse(pod.priority),
        pod.start_time.is_empty(),
        &pod.start_time,
    )
}

/// Parts the pods whose eviction would break a budget from the others, each in order (filterPodsWithPDBViolation).
fn by_budgets(cluster: &Cluster, pods: Vec<Arc<Pod>>) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let mut budgets: Vec<_> = cluster
        .budgets
        .values()
        .map(|one| (one, one.disruptions_allowed))
        .collect();
    pods.into_iter().partition(|pod| {
        let mut breaks = false;
        for (budget, allowed) in budgets.iter_mut().filter(|(budget, _)| budget.counts(pod)) {
            let _ = budget;
            *allowed -= 1;
            breaks |= *allowed < 0;
        }
        breaks
    })
}

/// The better candidate is less (pickOneNodeForPreemption): fewer broken budgets, then a less important first victim,
/// a smaller sum of priorities, fewer victims, and a first victim that started later.
fn compare(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    let highest = |one: &Candidate| one.victims.first().map_or(i32::MIN, |pod| pod.priority);
    // Shifted so that more victims are never a smaller sum.
    let sum = |one: &Candidate| -> i64 {
        one.victims
            .iter()
            .map(|pod| i64::from(pod.priority) + i64::from(i32::MAX) + 1)
            .sum()
    };
    let key = |one: &Candidate| (one.violations, highest(one), sum(one), one.victims.len());
    key(a)
        .cmp(&key(b))
        .then_with(|| earliest_start(b).cmp(&earliest_start(a)))
}

/// When the first of the most important victims started; one that has not is the latest.
fn earliest_start(candidate: &Candidate) -> (bool, &str) {
    let Some(first) = candidate.victims.first() else {
        return (true, "");
    };
    let peers = candidate
        .victims
        .iter()
        .filter(|pod| pod.priority == first.priority);
    let start = peers
        .map(|pod| (pod.start_time.is_empty(), pod.start_time.as_str()))
        .min();
    start.unwrap_or((true, ""))
}

#[cfg(test)]
mod tests;
