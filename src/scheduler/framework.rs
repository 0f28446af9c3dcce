//! The extension points: what a plugin may decide about a pod and a node, and the words it does so in.
//!
//! A plugin looks at the pod and the cluster once a cycle (upstream's PreFilter and PreScore) and returns a function
//! that is then asked about each node (Filter and Score). What it computed lives in that function.

use std::{borrow::Cow, sync::Arc};

use crate::{
    args::PluginArgs,
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

/// What a plugin is asked about: the pod, what is known, and how the profile configures the plugins.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub pod: &'a Pod,
    pub cluster: &'a Cluster,
    pub args: &'a PluginArgs,
}

/// A node as it would be with some pods gone and others there: what preemption and nominated pods are tried on.
#[derive(Debug)]
pub struct Trial {
    /// The node with its sums so changed.
    pub node: NodeInfo,
    pub removed: Vec<Arc<Pod>>,
    pub added: Vec<Arc<Pod>>,
}

impl Trial {
    pub fn of(node: &NodeInfo) -> Self {
        Trial {
            node: node.clone(),
            removed: Vec::new(),
            added: Vec::new(),
        }
    }

    pub fn remove(&mut self, pod: &Arc<Pod>) {
        self.node.remove(&pod.uid);
        let added = self.added.iter().position(|other| other.uid == pod.uid);
        match added {
            Some(index) => drop(self.added.swap_remove(index)),
            None => self.removed.push(pod.clone()),
        }
    }

    pub fn add(&mut self, pod: &Arc<Pod>) {
        self.node.add(pod.clone());
        let removed = self.removed.iter().position(|other| other.uid == pod.uid);
        match removed {
            Some(index) => drop(self.removed.swap_remove(index)),
            None => self.added.push(pod.clone()),
        }
    }

    /// The pods that are more here than in the cluster, with 1, and those that are fewer, with -1.
    pub fn changes(&self) -> impl Iterator<Item = (i64, &Arc<Pod>)> {
        let removed = self.removed.iter().map(|pod| (-1, pod));
        removed.chain(self.added.iter().map(|pod| (1, pod)))
    }
}

/// Decides whether a pod fits a node.
pub trait NodeFilter {
    /// Pushes all reasons why it does not.
    fn check(&self, node: &NodeInfo, why: &mut Vec<Rejection>);

    /// The same for a node with other pods than it has. Whoever looks at pods beyond the node's sums overrides this
    /// (PreFilterExtensions).
    fn check_trial(&self, trial: &Trial, why: &mut Vec<Rejection>) {
        self.check(&trial.node, why);
    }
}

impl<F: Fn(&NodeInfo, &mut Vec<Rejection>)> NodeFilter for F {
    fn check(&self, node: &NodeInfo, why: &mut Vec<Rejection>) {
        self(node, why);
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

    /// Pushes the scores of all nodes.
    fn score_all(&self, nodes: &[&NodeInfo], scores: &mut Vec<i64>) {
        scores.extend(nodes.iter().map(|node| self.score(node)));
    }

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
    /// A pod with a node is gone, or its decision was taken back.
    PodDeleted(&'a Pod),
    /// A pod without a node is no longer expected on the one it was nominated to.
    NominationGone,
    /// A claim, a volume or a class.
    Storage,
    /// A resource claim or a slice of devices.
    Devices,
    /// A class of devices.
    DeviceClass,
    /// A namespace's labels.
    Namespace,
}

/// A change without its objects: what a plugin registers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    NodeAdded,
    NodeUpdated,
    PodAdded,
    PodUpdated,
    PodDeleted,
    NominationGone,
    Storage,
    Devices,
    DeviceClass,
    Namespace,
}

impl Event {
    /// What moves of pods that it caused are counted as (`metrics::MOVES`).
    pub fn move_name(self) -> &'static str {
        match self {
            Event::NodeAdded => "NodeAdd",
            Event::NodeUpdated => "NodeUpdate",
            Event::PodAdded => "AssignedPodAdd",
            Event::PodUpdated => "AssignedPodUpdate",
            Event::PodDeleted => "AssignedPodDelete",
            Event::NominationGone => "NominatedPodDelete",
            Event::Storage => "StorageUpdate",
            Event::Devices => "ResourceClaimUpdate",
            Event::DeviceClass => "DeviceClassUpdate",
            Event::Namespace => "NamespaceUpdate",
        }
    }
}

impl Change<'_> {
    pub fn event(&self) -> Event {
        match self {
            Change::NodeAdded(_) => Event::NodeAdded,
            Change::NodeUpdated { .. } => Event::NodeUpdated,
            Change::PodAdded(_) => Event::PodAdded,
            Change::PodUpdated { .. } => Event::PodUpdated,
            Change::PodDeleted(_) => Event::PodDeleted,
            Change::NominationGone => Event::NominationGone,
            Change::Storage => Event::Storage,
            Change::Devices => Event::Devices,
            Change::DeviceClass => Event::DeviceClass,
            Change::Namespace => Event::Namespace,
        }
    }
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
    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let _ = ask;
        Filter::Skip
    }

    /// PreScore, Score and NormalizeScore, over the nodes that passed; `None` has no preference.
    fn score<'a>(&self, ask: Ask<'a>, nodes: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let _ = (ask, nodes);
        None
    }

    /// EventsToRegister: the changes `may_help` is asked about; no other ever helps.
    fn events(&self) -> &'static [Event] {
        &[]
    }

    /// The QueueingHint: whether a pod this plugin rejected might now pass.
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
