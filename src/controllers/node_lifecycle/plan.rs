//! What to do about a node, from what is seen of it. Pure.

use std::time::Duration;

use api::view::Taint;

use crate::objects::{Condition, Node, condition};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Conditions a silent kubelet no longer vouches for.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// Conditions that make a NoSchedule taint, in the status that does.
const TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// What is seen of a node.
pub struct Observed<'a> {
    pub node: &'a Node,
    /// For how long nothing has come from its kubelet though it could have.
    pub silent: Duration,
    /// How long it may be silent (longer before its first status).
    pub grace: Duration,
    /// Whether the node may get a NoExecute taint now.
    pub eviction: Eviction,
    /// The present time as the API writes it.
    pub now: String,
}

/// The zone's say about NoExecute taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    Now,
    /// Not yet: others of the zone come first, or too many of it are unhealthy.
    Later,
    /// No node answers: the fault is rather ours, so nobody is evicted, and taints are taken back.
    Stopped,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Conditions to be changed; each is merged by type.
    SetConditions(Vec<Condition>),
    /// All taints the node should have.
    SetTaints(Vec<Taint>),
    /// Its pods are no longer ready, as nobody vouches for them.
    MarkPodsNotReady,
}

/// The actions for a node. Conditions come first: the rest is planned again once they are seen.
pub fn plan(observed: &Observed<'_>) -> Vec<Action> {
    let node = observed.node;
    if observed.silent > observed.grace {
        let changed = unknown_conditions(node, &observed.now);
        if !changed.is_empty() {
            return vec![Action::SetConditions(changed)];
        }
    }
    let mut actions = Vec::new();
    let taints = taints(node, observed.eviction, &observed.now);
    if taints != node.spec.taints {
        actions.push(Action::SetTaints(taints));
    }
    if ready(node) == "Unknown" {
        actions.push(Action::MarkPodsNotReady);
    }
    actions
}

/// Status of the Ready condition; empty if the kubelet never posted one.
pub fn ready(node: &Node) -> &str {
    condition(&node.status.conditions, "Ready").map_or("", |ready| ready.status.as_str())
}

/// Whether the node lacks the NoExecute taint it should have.
pub fn wants_eviction(node: &Node) -> bool {
    let tainted = |key: &str| {
        node.spec
            .taints
            .iter()
            .any(|taint| taint.key == key && taint.effect == "NoExecute")
    };
    matches!(ready(node), "False" | "Unknown") && !tainted(NOT_READY) && !tainted(UNREACHABLE)
}

fn unknown_conditions(node: &Node, now: &str) -> Vec<Condition> {
    let unknown = |kind: &&str| match condition(&node.status.conditions, kind) {
        Some(present) if present.status == "Unknown" => None,
        Some(_) => Some(Condition {
            kind: kind.to_string(),
            status: "Unknown".into(),
            reason: "NodeStatusUnknown".into(),
            message: "Kubelet stopped posting node status.".into(),
            last_heartbeat_time: None,
            last_transition_time: Some(now.into()),
        }),
        None => Some(Condition {
            kind: kind.to_string(),
            status: "Unknown".into(),
            reason: "NodeStatusNeverUpdated".into(),
            message: "Kubelet never posted node status.".into(),
            last_heartbeat_time: node.metadata.creation_timestamp.clone(),
            last_transition_time: Some(now.into()),
        }),
    };
    CONDITIONS.iter().filter_map(unknown).collect()
}

/// The node's taints with those of this controller as they should be. One that is there already keeps its time.
fn taints(node: &Node, eviction: Eviction, now: &str) -> Vec<Taint> {
    let conditions = &node.status.conditions;
    let holds = |kind: &str, status: &str| {
        condition(conditions, kind).is_some_and(|one| one.status == status)
    };
    let own: Vec<&str> = TAINTS
        .iter()
        .map(|(_, _, key)| *key)
        .chain([UNSCHEDULABLE])
        .collect();
    let mut wanted: Vec<Taint> = TAINTS
        .iter()
        .filter(|(kind, status, _)| holds(kind, status))
        .map(|(_, _, key)| Taint::new(key, "NoSchedule"))
        .collect();
    if node.spec.unschedulable {
        wanted.push(Taint::new(UNSCHEDULABLE, "NoSchedule"));
    }
    let evicting = |key: &str| match eviction {
        Eviction::Now => true,
        // Already evicting for whichever reason, it only changes the reason.
        Eviction::Later => !wants_eviction(node),
        Eviction::Stopped => false,
    } && holds("Ready", if key == NOT_READY { "False" } else { "Unknown" });
    let executing = [NOT_READY, UNREACHABLE]
        .into_iter()
        .filter(|key| evicting(key));
    wanted.extend(executing.map(|key| Taint::new(key, "NoExecute")));

    let is_own = |taint: &Taint| match taint.effect.as_str() {
        "NoSchedule" => own.contains(&taint.key.as_str()),
        "NoExecute" => [NOT_READY, UNREACHABLE].contains(&taint.key.as_str()),
        _ => false,
    };
    let present = &node.spec.taints;
    let mut taints: Vec<Taint> = present
        .iter()
        .filter(|taint| !is_own(taint) || wanted.iter().any(|wanted| wanted.same(taint)))
        .cloned()
        .collect();
    for mut taint in wanted {
        if !taints.iter().any(|present| present.same(&taint)) {
            taint.time_added = Some(now.into());
            taints.push(taint);
        }
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: &str, taints: &[(&str, &str)]) -> Node {
        let taints: Vec<_> = taints
            .iter()
            .map(|(key, effect)| json!({"key": key, "effect": effect}))
            .collect();
        let kinds = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
        let conditions: Vec<_> = kinds
            .iter()
            .map(|kind| {
                let healthy = if *kind == "Ready" { ready } else { "False" };
                json!({"type": kind, "status": if ready == "Unknown" { "Unknown" } else { healthy }})
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"taints": taints}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn actions(node: &Node, silent: u64, eviction: Eviction) -> Vec<Action> {
        plan(&Observed {
            node,
            silent: Duration::from_secs(silent),
            grace: Duration::from_secs(40),
            eviction,
            now: "now".into(),
        })
    }

    fn texts(actions: &[Action]) -> Vec<String> {
        let text = |action: &Action| match action {
            Action::SetConditions(all) => format!("{} {}", all.len(), all[0].reason),
            Action::SetTaints(all) => {
                let one = |taint: &Taint| {
                    format!("{}:{}", taint.key.rsplit('/').next().unwrap(), taint.effect)
                };
                all.iter().map(one).collect::<Vec<_>>().join(" ")
            }
            Action::MarkPodsNotReady => "pods".into(),
        };
        actions.iter().map(text).collect()
    }

    #[track_caller]
    fn check(node: &Node, silent: u64, eviction: Eviction, expected: &[&str]) {
        assert_eq!(texts(&actions(node, silent, eviction)), expected);
    }

    #[test]
    fn a_healthy_node_is_left_alone() {
        check(&node("True", &[]), 10, Eviction::Now, &[]);
        check(
            &node("True", &[("mine", "NoExecute")]),
            40,
            Eviction::Now,
            &[],
        );
    }

    #[test]
    fn silence_beyond_the_grace_period_makes_the_conditions_unknown() {
        check(
            &node("True", &[]),
            41,
            Eviction::Now,
            &["4 NodeStatusUnknown"],
        );
        let fresh = Node::default();
        check(&fresh, 41, Eviction::Now, &["4 NodeStatusNeverUpdated"]);
    }

    #[test]
    fn a_silent_node_is_tainted_and_its_pods_are_not_ready() {
        let both = "unreachable:NoSchedule unreachable:NoExecute";
        check(&node("Unknown", &[]), 50, Eviction::Now, &[both, "pods"]);
        check(
            &node("Unknown", &[]),
            50,
            Eviction::Later,
            &["unreachable:NoSchedule", "pods"],
        );
        let tainted = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")];
        check(&node("Unknown", &tainted), 50, Eviction::Later, &["pods"]);
    }

    #[test]
    fn a_node_that_says_it_is_not_ready_is_tainted_so() {
        check(
            &node("False", &[]),
            1,
            Eviction::Now,
            &["not-ready:NoSchedule not-ready:NoExecute"],
        );
        let unreachable = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")];
        let swapped = "not-ready:NoSchedule not-ready:NoExecute";
        check(&node("False", &unreachable), 1, Eviction::Later, &[swapped]);
    }

    #[test]
    fn a_node_that_is_back_loses_the_taints_but_those_of_others() {
        let taints = [
            ("mine", "NoSchedule"),
            (UNREACHABLE, "NoSchedule"),
            (UNREACHABLE, "NoExecute"),
        ];
        check(
            &node("True", &taints),
            1,
            Eviction::Now,
            &["mine:NoSchedule"],
        );
    }

    #[test]
    fn when_no_node_answers_nobody_is_evicted() {
        let taints = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")];
        check(
            &node("Unknown", &taints),
            99,
            Eviction::Stopped,
            &["unreachable:NoSchedule", "pods"],
        );
    }

    #[test]
    fn a_cordoned_node_is_tainted() {
        let mut cordoned = node("True", &[]);
        cordoned.spec.unschedulable = true;
        check(&cordoned, 1, Eviction::Now, &["unschedulable:NoSchedule"]);
    }
}
