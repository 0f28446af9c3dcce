//! NodeResourcesFit: the node has what the pod asks for; the emptier, the better (LeastAllocated).

use crate::{
    cluster::Cluster,
    framework::{Change, Filter, MAX_SCORE, NodeScore, Plugin, Rejection},
    node::{Node, NodeInfo},
    pod::Pod,
    resources::Resources,
};

pub struct NodeResourcesFit;

/// All that is lacking (fitsRequest).
fn lacking(pod: &Pod, info: &NodeInfo) -> Vec<Rejection> {
    let Some(node) = &info.node else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    let have = &node.allocatable;
    let used = &info.requested;
    let pods = i64::try_from(info.pods.len()).unwrap_or(i64::MAX);
    if pods >= have.pods {
        reasons.push(Rejection::resolvable("Too many pods"));
    }
    let ask = &pod.requests;
    if ask.is_zero() {
        return reasons;
    }
    let mut check = |name: &str, ask: i64, have: i64, used: i64| {
        if ask > 0 && ask > have - used {
            let reason = format!("Insufficient {name}");
            // More than the node has when empty: evicting pods cannot help.
            reasons.push(if ask > have {
                Rejection::unresolvable(reason)
            } else {
                Rejection::resolvable(reason)
            });
        }
    };
    check("cpu", ask.milli_cpu, have.milli_cpu, used.milli_cpu);
    check("memory", ask.memory, have.memory, used.memory);
    check(
        "ephemeral-storage",
        ask.ephemeral_storage,
        have.ephemeral_storage,
        used.ephemeral_storage,
    );
    for (name, amount) in &ask.scalars {
        check(name, *amount, have.scalar(name), used.scalar(name));
    }
    reasons
}

/// Whether the pod could be had by a node that is empty.
fn fits_empty(pod: &Pod, node: &Node) -> bool {
    let (ask, have) = (&pod.requests, &node.allocatable);
    have.pods > 0
        && ask.milli_cpu <= have.milli_cpu
        && ask.memory <= have.memory
        && ask.ephemeral_storage <= have.ephemeral_storage
        && ask
            .scalars
            .iter()
            .all(|(name, amount)| *amount <= have.scalar(name))
}

/// Whether `new` offers more of anything the pod asks for.
fn offers_more(ask: &Resources, old: &Resources, new: &Resources) -> bool {
    new.pods > old.pods
        || (ask.milli_cpu > 0 && new.milli_cpu > old.milli_cpu)
        || (ask.memory > 0 && new.memory > old.memory)
        || (ask.ephemeral_storage > 0 && new.ephemeral_storage > old.ephemeral_storage)
        || ask
            .scalars
            .keys()
            .any(|name| new.scalar(name) > old.scalar(name))
}

struct Score {
    cpu: i64,
    memory: i64,
}

/// The share of `have` that is free with `used` taken, of MAX_SCORE.
fn free_share(used: i64, have: i64) -> i64 {
    if have <= 0 || used > have {
        return 0;
    }
    let share = i128::from(have - used) * i128::from(MAX_SCORE) / i128::from(have);
    i64::try_from(share).unwrap_or(0)
}

impl NodeScore for Score {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let have = &node.allocatable;
        let cpu = free_share(info.scored_cpu + self.cpu, have.milli_cpu);
        let memory = free_share(info.scored_memory + self.memory, have.memory);
        // A resource the node has none of does not count.
        match (have.milli_cpu > 0, have.memory > 0) {
            (true, true) => (cpu + memory) / 2,
            (true, false) => cpu,
            (false, true) => memory,
            (false, false) => 0,
        }
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter<'a>(&self, pod: &'a Pod, _: &'a Cluster) -> Filter<'a> {
        Filter::check(move |info: &NodeInfo| {
            let reasons = lacking(pod, info);
            if reasons.is_empty() {
                Ok(())
            } else {
                Err(reasons)
            }
        })
    }

    fn score<'a>(
        &self,
        pod: &'a Pod,
        _: &'a Cluster,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        Some(Box::new(Score {
            cpu: pod.scored_cpu,
            memory: pod.scored_memory,
        }))
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(node) => fits_empty(pod, node),
            Change::NodeUpdated { old, new } => {
                fits_empty(pod, new)
                    && offers_more(&pod.requests, &old.allocatable, &new.allocatable)
            }
            Change::PodDeleted(_) => true,
            Change::PodUpdated { old, new } => {
                offers_more(&pod.requests, &new.requests, &old.requests)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::testing::*, pod::pod};
    use serde_json::json;

    #[test]
    fn everything_that_is_lacking_is_told() {
        let mut small = mk_node("a");
        small["status"]["allocatable"] = json!({"cpu": "1", "memory": "1Gi", "pods": "1"});
        let cluster = cluster(&[small], &[on(mk_pod("x"), "a")]);
        let mut value = mk_pod("p");
        value["spec"]["containers"][0]["resources"]["requests"] =
            json!({"cpu": "2", "memory": "512Mi", "example.com/gpu": "1"});
        let reasons = lacking(&pod(value), cluster.find_node("a").unwrap());
        let texts: Vec<_> = reasons
            .iter()
            .map(|one| (one.reason.as_ref(), one.is_resolvable))
            .collect();
        assert_eq!(
            texts,
            [
                ("Too many pods", true),
                ("Insufficient cpu", false),
                ("Insufficient example.com/gpu", false)
            ]
        );
    }

    #[test]
    fn the_score_is_the_mean_free_share_after_the_pod() {
        let cluster = cluster(&[mk_node("a")], &[]);
        let mut value = mk_pod("p");
        value["spec"]["containers"][0]["resources"]["requests"] =
            json!({"cpu": "1", "memory": "4Gi"});
        let pod = pod(value);
        let scorer = NodeResourcesFit.score(&pod, &cluster, &[]).unwrap();
        assert_eq!(scorer.score(cluster.find_node("a").unwrap()), (75 + 50) / 2);
    }
}
