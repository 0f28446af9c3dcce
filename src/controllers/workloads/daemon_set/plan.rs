//! Which pods of a DaemonSet are missing, and which must go. Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::view::{NodeSelector, OwnerReference, Toleration, untolerated};
use apimachinery::{Value, time::Time};
use serde_json::{Map, json};

use super::{DaemonSet, DaemonSetStatus};
use crate::{
    objects::{Node, Pod},
    workloads::{pods::from_template, revisions::HASH},
};

/// Taints every daemon pod tolerates: key and effect (AddOrUpdateDaemonPodTolerations).
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// One more for pods of the host's network.
const TOLERATED_ON_HOST: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

pub struct Observed<'a> {
    pub set: &'a DaemonSet,
    /// Of the present template.
    pub hash: &'a str,
    pub nodes: &'a [Arc<Node>],
    pub pods: &'a [Arc<Pod>],
    /// How long failed pods of a node are still to wait for their successor.
    pub pause: &'a dyn Fn(&str) -> Option<Duration>,
    pub now: Time,
}

#[derive(Default)]
pub struct Plan {
    /// Nodes to make a pod for.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Those of `delete` that ended by themselves, with how.
    pub failed: Vec<(Arc<Pod>, &'static str)>,
    pub status: DaemonSetStatus,
    /// When to plan again though nothing changes.
    pub again: Option<Duration>,
}

/// What the pods of a set tolerate and where they may run.
struct Placement {
    tolerations: Vec<Toleration>,
    node_selector: HashMap<String, String>,
    required: Option<NodeSelector>,
    node_name: String,
}

impl Placement {
    fn new(set: &DaemonSet) -> Self {
        let spec = &set.spec.template["spec"];
        let affinity =
            &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        Placement {
            tolerations: serde_json::from_value(tolerations(spec)).unwrap_or_default(),
            node_selector: serde_json::from_value(spec["nodeSelector"].clone()).unwrap_or_default(),
            required: serde_json::from_value(affinity.clone()).unwrap_or_default(),
            node_name: spec["nodeName"].as_str().unwrap_or("").into(),
        }
    }

    /// Whether a pod should be on the node, and whether one that is there may stay (NodeShouldRunDaemonPod).
    fn on(&self, node: &Node) -> (bool, bool) {
        let (name, labels) = (&node.metadata.name, &node.metadata.labels);
        let fits = (self.node_name.is_empty() || self.node_name == *name)
            && self
                .node_selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .required
                .as_ref()
                .is_none_or(|required| required.matches(name, labels));
        let tolerates =
            |effects: &[&str]| untolerated(&node.spec.taints, &self.tolerations, effects).is_none();
        (
            fits && tolerates(&["NoSchedule", "NoExecute"]),
            fits && tolerates(&["NoExecute"]),
        )
    }
}

/// The template's tolerations with those every daemon pod has.
fn tolerations(spec: &Value) -> Value {
    let mut all = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let on_host = (spec["hostNetwork"] == true).then_some(TOLERATED_ON_HOST);
    for (key, effect) in TOLERATED.into_iter().chain(on_host) {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        let present = |one: &Value| one["key"] == key && one["effect"] == effect;
        match all.iter().position(present) {
            Some(index) => all[index] = toleration,
            None => all.push(toleration),
        }
    }
    Value::Array(all)
}

/// The pod of a set for one node.
pub fn pod_for(set: &DaemonSet, hash: &str, owner: &OwnerReference, node: &str) -> Value {
    let mut pod = from_template(&set.spec.template, &set.metadata, owner);
    if !pod["metadata"]["labels"].is_object() {
        pod["metadata"]["labels"] = Value::Object(Map::new());
    }
    pod["metadata"]["labels"][HASH] = json!(hash);
    pod["metadata"]["labels"]["pod-template-generation"] = json!(set.template_generation());
    pod["spec"]["tolerations"] = tolerations(&pod["spec"]);
    // Fields are joined by "and": every term is narrowed to the node.
    let by_name = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let required = &mut pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    match required["nodeSelectorTerms"]
        .as_array_mut()
        .filter(|terms| !terms.is_empty())
    {
        Some(terms) => {
            for term in terms {
                term["matchFields"] = by_name.clone();
            }
        }
        None => *required = json!({"nodeSelectorTerms": [{"matchFields": by_name}]}),
    }
    pod
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let set = observed.set;
    let placement = Placement::new(set);
    let mut on_node: HashMap<&str, Vec<&Arc<Pod>>> = HashMap::new();
    for pod in observed.pods {
        on_node
            .entry(pod.target_node().unwrap_or(""))
            .or_default()
            .push(pod);
    }
    let mut plan = Plan::default();
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        collision_count: set.status.collision_count,
        conditions: set.status.conditions.clone(),
        ..DaemonSetStatus::default()
    };
    let mut rolling = Rolling::default();
    let known: HashSet<&str> = observed
        .nodes
        .iter()
        .map(|node| node.metadata.name.as_str())
        .collect();
    for node in observed.nodes {
        let pods = on_node
            .get(node.metadata.name.as_str())
            .map(Vec::as_slice)
            .unwrap_or_default();
        let (should_run, may_stay) = placement.on(node);
        count(observed, should_run, pods, &mut status, &mut plan.again);
        if pods.is_empty() {
            if should_run {
                plan.create.push(node.metadata.name.clone());
                rolling.unavailable += 1;
            }
            continue;
        }
        if !may_stay {
            plan.delete.extend(
                pods.iter()
                    .filter(|pod| !pod.metadata.is_deleting())
                    .map(|pod| Arc::clone(pod)),
            );
            continue;
        }
        let running = keep(observed, pods, &mut plan);
        if should_run {
            rolling.node(observed, &node.metadata.name, running);
        }
    }
    status.number_unavailable = (status.desired_number_scheduled - status.number_available).max(0);
    // Pods that wait for a node that is gone will wait for ever.
    let lost = observed.pods.iter().filter(|pod| {
        pod.spec.node_name.is_empty()
            && !pod.metadata.is_deleting()
            && !known.contains(pod.target_node().unwrap_or(""))
    });
    plan.delete.extend(lost.cloned());
    if set.spec.update_strategy.kind != "OnDelete" {
        rolling.roll(observed, status.desired_number_scheduled, &mut plan);
    }
    plan.status = status;
    plan
}

/// Adds a node to the counts.
fn count(
    observed: &Observed<'_>,
    should_run: bool,
    pods: &[&Arc<Pod>],
    status: &mut DaemonSetStatus,
    again: &mut Option<Duration>,
) {
    if !should_run {
        status.number_misscheduled += i64::from(!pods.is_empty());
        return;
    }
    status.desired_number_scheduled += 1;
    let mut pods: Vec<_> = pods.iter().filter(|pod| pod.is_active()).collect();
    pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let Some(newest) = pods.last() else {
        return;
    };
    status.current_number_scheduled += 1;
    let min_ready = observed.set.spec.min_ready_seconds;
    status.number_ready += i64::from(pods.iter().any(|pod| pod.is_ready()));
    let available = |pod: &&&Arc<Pod>| {
        pod.available_at(min_ready)
            .is_some_and(|at| at <= observed.now)
    };
    if pods.iter().any(|pod| available(&pod)) {
        status.number_available += 1;
    } else if let Some(at) = pods
        .iter()
        .filter_map(|pod| pod.available_at(min_ready))
        .min()
    {
        let left = Duration::try_from(at - observed.now).unwrap_or_default();
        *again = Some(again.map_or(left, |again| again.min(left)));
    }
    status.updated_number_scheduled += i64::from(is_of(newest, observed.hash));
}

fn is_of(pod: &Pod, hash: &str) -> bool {
    pod.metadata
        .labels
        .get(HASH)
        .is_some_and(|label| label == hash)
}

/// The pods of a node that stay, after finished ones and surplus ones were put aside.
fn keep<'a>(observed: &Observed<'_>, pods: &[&'a Arc<Pod>], plan: &mut Plan) -> Vec<&'a Arc<Pod>> {
    let mut running = Vec::new();
    for pod in pods {
        if pod.metadata.is_deleting() {
            continue;
        }
        let ended = match pod.status.phase.as_str() {
            "Failed" => "failed",
            "Succeeded" => "succeeded",
            _ => {
                running.push(*pod);
                continue;
            }
        };
        match (observed.pause)(pod.target_node().unwrap_or("")) {
            Some(left) => plan.again = Some(plan.again.map_or(left, |again| again.min(left))),
            None => {
                plan.delete.push(Arc::clone(pod));
                plan.failed.push((Arc::clone(pod), ended));
            }
        }
    }
    // One pod a node; while surging, one of the old template beside one of the new.
    running.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let mut seen = HashSet::new();
    let surging = surge(observed.set, 1) > 0;
    running.retain(|pod| {
        let keep = seen.insert(surging && is_of(pod, observed.hash));
        if !keep {
            plan.delete.push(Arc::clone(pod));
        }
        keep
    });
    running
}

/// Nodes in the course of a rolling update.
#[derive(Default)]
struct Rolling<'a> {
    /// Nodes where no pod is available, though one should be.
    unavailable: i64,
    /// Old pods that do not serve anyway, and those that do.
    broken: Vec<&'a Arc<Pod>>,
    serving: Vec<(String, &'a Arc<Pod>)>,
    /// Nodes with a new pod that is not available yet beside the old one.
    surging: i64,
    /// Old pods whose successor is available.
    replaced: Vec<&'a Arc<Pod>>,
}

impl<'a> Rolling<'a> {
    fn node(&mut self, observed: &Observed<'_>, node: &str, pods: Vec<&'a Arc<Pod>>) {
        let min_ready = observed.set.spec.min_ready_seconds;
        let available = |pod: &Pod| {
            pod.available_at(min_ready)
                .is_some_and(|at| at <= observed.now)
        };
        let new = pods.iter().find(|pod| is_of(pod, observed.hash));
        let old = pods.iter().find(|pod| !is_of(pod, observed.hash));
        if !pods.iter().any(|pod| available(pod)) {
            self.unavailable += 1;
        }
        match (old, new) {
            (Some(old), Some(new)) if available(new) || !available(old) => self.replaced.push(old),
            (Some(_), Some(_)) => self.surging += 1,
            (Some(old), None) if available(old) => self.serving.push((node.into(), old)),
            (Some(old), None) => self.broken.push(old),
            _ => {}
        }
    }

    fn roll(self, observed: &Observed<'_>, desired: i64, plan: &mut Plan) {
        let surge = surge(observed.set, desired);
        let take = |count: i64| usize::try_from(count).unwrap_or(0);
        if surge > 0 {
            plan.delete
                .extend(self.replaced.into_iter().map(Arc::clone));
            let old = self
                .broken
                .iter()
                .filter_map(|pod| pod.target_node())
                .map(ToString::to_string);
            let nodes = old.chain(self.serving.into_iter().map(|(node, _)| node));
            plan.create.extend(nodes.take(take(surge - self.surging)));
            return;
        }
        let update = &observed.set.spec.update_strategy.rolling_update;
        let allowed = portion(&update.max_unavailable, desired, 1);
        plan.delete.extend(self.broken.into_iter().map(Arc::clone));
        let serving = self.serving.into_iter().map(|(_, pod)| Arc::clone(pod));
        plan.delete
            .extend(serving.take(take(allowed - self.unavailable)));
    }
}

fn surge(set: &DaemonSet, desired: i64) -> i64 {
    portion(
        &set.spec.update_strategy.rolling_update.max_surge,
        desired,
        0,
    )
}

/// A number, or a percentage of `of` rounded up.
fn portion(value: &Value, of: i64, default: i64) -> i64 {
    if let Some(number) = value.as_i64() {
        return number;
    }
    let percent = value
        .as_str()
        .and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
    percent.map_or(default, |percent| (of * percent + 99) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::view::Taint;
    use apimachinery::time::now;

    fn set(update: Value) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"name": "ds", "namespace": "default", "uid": "d", "generation": 3},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {}},
                     "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": update}},
        }))
        .unwrap()
    }

    fn node(name: &str, taints: &[Taint]) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.name = name.into();
        node.spec.taints = taints.to_vec();
        Arc::new(node)
    }

    fn pod(name: &str, node: &str, hash: &str, phase: &str, ready: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": name, "labels": {HASH: hash}, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn shape(
        set: &DaemonSet,
        nodes: &[Arc<Node>],
        pods: &[Arc<Pod>],
    ) -> (Vec<String>, Vec<String>, DaemonSetStatus) {
        let plan = plan(&Observed {
            set,
            hash: "new",
            nodes,
            pods,
            pause: &|_| None,
            now: now(),
        });
        let deleted = plan
            .delete
            .iter()
            .map(|pod| pod.metadata.name.clone())
            .collect();
        (plan.create, deleted, plan.status)
    }

    #[test]
    fn every_node_that_takes_it_gets_a_pod() {
        let control_plane = [Taint::new(
            "node-role.kubernetes.io/control-plane",
            "NoSchedule",
        )];
        let silent = [
            Taint::new("node.kubernetes.io/unreachable", "NoExecute"),
            Taint::new("node.kubernetes.io/unschedulable", "NoSchedule"),
        ];
        let nodes = [
            node("cp", &control_plane),
            node("w1", &[]),
            node("w2", &silent),
        ];
        let (create, delete, status) = shape(
            &set(json!({})),
            &nodes,
            &[pod("old", "cp", "new", "Running", "True")],
        );
        assert_eq!(create, ["w1", "w2"]);
        assert!(delete.is_empty(), "NoSchedule does not drive a pod away");
        assert_eq!(
            (status.desired_number_scheduled, status.number_misscheduled),
            (2, 1)
        );
    }

    #[test]
    fn finished_surplus_and_lost_pods_go() {
        let nodes = [node("w1", &[]), node("w2", &[Taint::new("x", "NoExecute")])];
        let pods = [
            pod("failed", "w1", "new", "Failed", "False"),
            pod("first", "w1", "new", "Running", "True"),
            pod("second", "w1", "new", "Running", "True"),
            pod("unwanted", "w2", "new", "Running", "True"),
        ];
        let (create, delete, _) = shape(&set(json!({})), &nodes, &pods);
        assert!(create.is_empty());
        assert_eq!(delete, ["failed", "second", "unwanted"]);
    }

    #[test]
    fn a_rolling_update_replaces_as_many_as_may_be_missing() {
        let nodes = [node("w1", &[]), node("w2", &[]), node("w3", &[])];
        let old = |name: &str, node: &str, ready: &str| pod(name, node, "old", "Running", ready);
        let pods = [
            old("a", "w1", "True"),
            old("b", "w2", "True"),
            old("c", "w3", "True"),
        ];
        assert_eq!(
            shape(&set(json!({"maxUnavailable": 1})), &nodes, &pods).1,
            ["a"]
        );
        assert_eq!(
            shape(&set(json!({"maxUnavailable": "50%"})), &nodes, &pods).1,
            ["a", "b"]
        );
        let broken = [
            old("a", "w1", "True"),
            old("b", "w2", "False"),
            old("c", "w3", "True"),
        ];
        assert_eq!(
            shape(&set(json!({"maxUnavailable": 1})), &nodes, &broken).1,
            ["b"]
        );
        let mut on_delete = set(json!({}));
        on_delete.spec.update_strategy.kind = "OnDelete".into();
        assert!(shape(&on_delete, &nodes, &pods).1.is_empty());
    }

    #[test]
    fn a_surge_makes_the_new_pod_first() {
        let nodes = [node("w1", &[]), node("w2", &[])];
        let surging = set(json!({"maxSurge": 1, "maxUnavailable": 0}));
        let old = [
            pod("a", "w1", "old", "Running", "True"),
            pod("b", "w2", "old", "Running", "True"),
        ];
        assert_eq!(shape(&surging, &nodes, &old).0, ["w1"]);
        let starting = [
            old[0].clone(),
            old[1].clone(),
            pod("a2", "w1", "new", "Running", "False"),
        ];
        let (create, delete, _) = shape(&surging, &nodes, &starting);
        assert!(create.is_empty() && delete.is_empty());
        let ready = [
            old[0].clone(),
            old[1].clone(),
            pod("a2", "w1", "new", "Running", "True"),
        ];
        let (create, delete, _) = shape(&surging, &nodes, &ready);
        assert_eq!(
            (create, delete),
            (vec!["w2".to_string()], vec!["a".to_string()])
        );
    }

    #[test]
    fn a_pod_names_its_node_and_tolerates_what_nodes_suffer() {
        let mut host = set(json!({}));
        host.spec.template["spec"] = json!({"hostNetwork": true, "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}}}});
        let made = pod_for(&host, "h", &OwnerReference::default(), "w1");
        assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 7);
        assert_eq!(
            made["metadata"]["labels"],
            json!({"a": "b", HASH: "h", "pod-template-generation": "3"})
        );
        let parsed: Pod = serde_json::from_value(made).unwrap();
        assert_eq!(parsed.target_node(), Some("w1"));
        let required = parsed
            .spec
            .affinity
            .node_affinity
            .unwrap()
            .required
            .unwrap();
        assert_eq!(
            required.node_selector_terms[0].match_expressions[0].key,
            "disk"
        );
    }
}
