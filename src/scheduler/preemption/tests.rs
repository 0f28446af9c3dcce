//! Whom a pod evicts, as tables over small clusters.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::testing::{cluster, mk_node, mk_pod, on},
    cycle::{Failure, Scheduler},
    pod::pod,
};

fn asks(name: &str, priority: i32, cpu: &str) -> Value {
    let mut pod = mk_pod(name);
    pod["spec"]["priority"] = json!(priority);
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
    pod
}

fn started(mut pod: Value, at: &str) -> Value {
    pod["status"]["startTime"] = json!(at);
    pod
}

fn fail(cluster: &mut Cluster, value: Value) -> Failure {
    let pod = pod(value);
    *Scheduler::default()
        .schedule(&pod, &Profile::default(), cluster)
        .expect_err("it fits nowhere")
}

#[track_caller]
fn check(cluster: &mut Cluster, value: Value, node: &str, victims: &[&str]) {
    let Failure { error, nomination } = fail(cluster, value);
    let Nomination::Set { best, .. } = nomination else {
        panic!("nobody is evicted: {error}")
    };
    let (index, found) = (best.node, best.victims);
    let mut found: Vec<&str> = found.iter().map(|pod| pod.name.as_str()).collect();
    found.sort_unstable();
    assert_eq!(
        (cluster.node(index).name.as_str(), found.as_slice()),
        (node, victims)
    );
    assert!(!error.to_string().contains("preemption"), "{error}");
}

fn budget(name: &str, app: &str, allowed: i64) -> Arc<crate::budget::PodDisruptionBudget> {
    let value = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    });
    Arc::new(serde_json::from_value(value).expect("a test's budget is well-formed"))
}

#[test]
fn the_fewest_and_least_important_pods_go() {
    let nodes = [mk_node("a"), mk_node("b")];
    let pods = [
        on(asks("a1", 10, "2"), "a"),
        on(asks("a2", 5, "2"), "a"),
        on(asks("b1", 10, "1"), "b"),
        on(asks("b2", 10, "3"), "b"),
    ];
    check(
        &mut cluster(&nodes, &pods),
        asks("p", 100, "2"),
        "a",
        &["a2"],
    );
    // Each way one pod of the same importance goes; there are fewer of them on b.
    check(
        &mut cluster(&nodes, &pods),
        asks("p", 100, "3"),
        "b",
        &["b2"],
    );
}

#[test]
fn pods_of_the_same_or_a_higher_priority_stay() {
    let mut cluster = cluster(&[mk_node("a")], &[on(asks("x", 100, "3"), "a")]);
    let failure = fail(&mut cluster, asks("p", 100, "2"));
    assert!(matches!(failure.nomination, Nomination::Clear));
    assert_eq!(
        failure.error.to_string(),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims \
         found for incoming pod."
    );
}

#[test]
fn evicting_all_that_matters_less_may_still_not_be_enough() {
    let pods = [on(asks("x", 200, "3"), "a"), on(asks("y", 1, "500m"), "a")];
    let mut cluster = cluster(&[mk_node("a")], &pods);
    assert_eq!(
        fail(&mut cluster, asks("p", 100, "2")).error.to_string(),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Insufficient cpu."
    );
}

#[test]
fn a_pod_that_never_preempts_says_so() {
    let mut cluster = cluster(&[mk_node("a")], &[on(asks("x", 1, "3"), "a")]);
    let mut value = asks("p", 100, "2");
    value["spec"]["preemptionPolicy"] = json!("Never");
    assert_eq!(
        fail(&mut cluster, value).error.to_string(),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
    );
}

#[test]
fn a_node_whose_victims_break_no_budget_is_taken() {
    let nodes = [mk_node("a"), mk_node("b")];
    let mut protected = on(asks("a1", 1, "3"), "a");
    protected["metadata"]["labels"]["app"] = json!("kept");
    let pods = [protected, on(asks("b1", 50, "3"), "b")];
    let mut cluster = cluster(&nodes, &pods);
    cluster
        .budgets
        .insert("default/kept".into(), budget("kept", "kept", 0));
    check(&mut cluster, asks("p", 100, "2"), "b", &["b1"]);
    cluster
        .budgets
        .insert("default/kept".into(), budget("kept", "kept", 1));
    check(&mut cluster, asks("p", 100, "2"), "a", &["a1"]);
}

#[test]
fn on_one_node_what_a_budget_protects_is_spared_first() {
    let mut protected = on(asks("a1", 1, "2"), "a");
    protected["metadata"]["labels"]["app"] = json!("kept");
    let mut cluster = cluster(&[mk_node("a")], &[protected, on(asks("a2", 50, "2"), "a")]);
    cluster
        .budgets
        .insert("default/kept".into(), budget("kept", "kept", 0));
    check(&mut cluster, asks("p", 100, "2"), "a", &["a2"]);
}

#[test]
fn among_equals_the_one_that_runs_for_the_shortest_time_goes() {
    let nodes = [mk_node("a"), mk_node("b")];
    let pods = [
        on(started(asks("old", 1, "3"), "2026-01-01T00:00:00Z"), "a"),
        on(started(asks("young", 1, "3"), "2026-01-02T00:00:00Z"), "b"),
    ];
    check(
        &mut cluster(&nodes, &pods),
        asks("p", 100, "2"),
        "b",
        &["young"],
    );
    let one = [
        on(started(asks("old", 1, "2"), "2026-01-01T00:00:00Z"), "a"),
        on(started(asks("young", 1, "2"), "2026-01-02T00:00:00Z"), "a"),
    ];
    check(
        &mut cluster(&nodes[..1], &one),
        asks("p", 100, "2"),
        "a",
        &["young"],
    );
}

#[test]
fn while_its_victims_end_a_pod_evicts_no_more() {
    let mut dying = on(asks("x", 1, "3"), "a");
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    dying["status"]["conditions"] =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
    let mut cluster = cluster(
        &[mk_node("a"), mk_node("b")],
        &[dying, on(asks("y", 1, "3"), "b")],
    );
    let value = asks("p", 100, "2");
    cluster.nominate(Arc::new(pod(value.clone())), "a");
    let failure = fail(&mut cluster, value);
    assert!(matches!(failure.nomination, Nomination::Keep));
    let text = failure.error.to_string();
    assert!(
        text.ends_with("preemption: not eligible due to a terminating pod on the nominated node."),
        "{text}"
    );
}

#[test]
fn a_nominated_pod_holds_its_place_against_lesser_ones_and_not_against_greater() {
    let mut cluster = cluster(&[mk_node("a")], &[]);
    cluster.nominate(Arc::new(pod(asks("first", 100, "3"))), "a");
    let schedule = |cluster: &mut Cluster, priority| {
        let pod = pod(asks("p", priority, "2"));
        Scheduler::default()
            .schedule(&pod, &Profile::default(), cluster)
            .is_ok()
    };
    assert!(!schedule(&mut cluster, 1));
    assert!(schedule(&mut cluster, 200));
    assert!(!schedule(&mut cluster, 100));
    cluster.forget_nomination("first");
    assert!(schedule(&mut cluster, 1));
}

#[test]
fn a_victim_whose_anti_affinity_keeps_the_pod_away_can_go() {
    let mut shunning = on(asks("x", 1, "100m"), "a");
    shunning["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([
        {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"},
    ]);
    check(
        &mut cluster(&[mk_node("a")], &[shunning]),
        asks("p", 100, "1"),
        "a",
        &["x"],
    );
    let mut shy = asks("p", 100, "1");
    shy["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"},
    ]}});
    check(
        &mut cluster(&[mk_node("a")], &[on(asks("x", 1, "1"), "a")]),
        shy,
        "a",
        &["x"],
    );
}

#[test]
fn a_spread_constraint_may_be_met_by_evicting_from_the_fullest_domain() {
    let zoned = |name: &str, zone: &str| {
        let mut node = mk_node(name);
        node["metadata"]["labels"]["zone"] = json!(zone);
        node
    };
    let mut cordoned = zoned("b", "2");
    cordoned["spec"]["unschedulable"] = json!(true);
    let mut value = asks("p", 100, "1");
    value["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }]);
    let pods = [on(asks("x", 1, "100m"), "a")];
    check(
        &mut cluster(&[zoned("a", "1"), cordoned], &pods),
        value,
        "a",
        &["x"],
    );
}
