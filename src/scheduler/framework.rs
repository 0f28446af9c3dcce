//! The extension points: what a plugin may decide about a pod and a node, and the words it does so in.
//!
//! A plugin looks at the pod and the cluster once a cycle (upstream's PreFilter and PreScore) and returns a function
//! that is then asked about each node (Filter and Score). What it computed lives in that function.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    node::{Node, NodeInfo},
    pod::Pod,
};

/// The best score a plugin gives (MaxNodeScore).
pub const MAX_SCORE: i64 = 100;

/// Why a pod does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// As upstream words it, to be counted over nodes.
    pub reason: Cow<'static, str>,
    /// Whether evicting pods could help (Unschedulable as opposed to UnschedulableAndUnresolvable).
    pub is_resolvable: bool,
}

impl Rejection {
    /// Evicting pods might help.
    pub fn resolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Rejection {
            reason: reason.into(),
            is_resolvable: true,
        }
    }

    /// Evicting pods cannot help.
    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Rejection {
            reason: reason.into(),
            is_resolvable: false,
        }
    }
}

/// Decides whether a pod fits a node.
pub trait NodeFilter {
    /// All reasons why not.
    fn check(&self, node: &NodeInfo) -> Result<(), Vec<Rejection>>;
}

impl<F: Fn(&NodeInfo) -> Result<(), Vec<Rejection>>> NodeFilter for F {
    fn check(&self, node: &NodeInfo) -> Result<(), Vec<Rejection>> {
        self(node)
    }
}

/// What a plugin has to say about the nodes for one pod.
pub enum Filter<'a> {
    /// Nothing: every node is fine.
    Skip,
    /// No node can be right.
    Reject(Rejection),
    /// Only these nodes can be right; each is then checked.
    Among(Vec<String>, Box<dyn NodeFilter + 'a>),
    /// Each node is checked.
    Check(Box<dyn NodeFilter + 'a>),
}

impl<'a> Filter<'a> {
    pub fn check(filter: impl NodeFilter + 'a) -> Self {
        Filter::Check(Box::new(filter))
    }
}

/// Decides how good a node is for a pod.
pub trait NodeScore {
    fn score(&self, node: &NodeInfo) -> i64;

    /// Brings the scores of all nodes (in the same order) to 0..=MAX_SCORE.
    fn normalize(&self, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let _ = (nodes, scores);
    }
}

/// Something that happened and may make a pod schedulable.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    NodeAdded(&'a Node),
    NodeUpdated {
        old: &'a Node,
        new: &'a Node,
    },
    /// A pod with a node appeared, or changed.
    PodAdded(&'a Pod),
    PodUpdated {
        old: &'a Pod,
        new: &'a Pod,
    },
    /// A pod with a node is gone.
    PodDeleted(&'a Pod),
    /// A claim, a volume or a class.
    Storage,
    /// A namespace's labels.
    Namespace,
}

/// One plugin; each method is an extension point of upstream's framework and does nothing by default.
pub trait Plugin: Sync {
    /// Upstream's name.
    fn name(&self) -> &'static str;

    /// PreEnqueue: whether the pod may be tried at all.
    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Rejection> {
        let _ = pod;
        Ok(())
    }

    /// PreFilter and Filter.
    fn filter<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Filter<'a> {
        let _ = (pod, cluster);
        Filter::Skip
    }

    /// PreScore, Score and NormalizeScore, over the nodes that passed; `None` has no preference.
    fn score<'a>(
        &self,
        pod: &'a Pod,
        cluster: &'a Cluster,
        nodes: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let _ = (pod, cluster, nodes);
        None
    }

    /// EventsToRegister with its QueueingHint: whether a pod this plugin rejected might now pass.
    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        let _ = (pod, change);
        false
    }
}

/// Scales the scores so that the highest becomes MAX_SCORE, or the lowest if `reverse` (DefaultNormalizeScore).
pub fn normalize_to_max(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        if max == 0 {
            if reverse {
                *score = MAX_SCORE;
            }
            continue;
        }
        *score = MAX_SCORE * *score / max;
        if reverse {
            *score = MAX_SCORE - *score;
        }
    }
}
