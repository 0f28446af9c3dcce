//! PodDisruptionBudgets against an API server in memory.

use std::time::Duration;

use api::r::{DEPLOYMENTS, PODDISRUPTIONBUDGETS, PODS, REPLICASETS};
use client::fake::Server;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

#[tokio::test(start_paused = true)]
async fn a_budget_follows_the_replicas_of_the_deployment_behind_its_pods() {
    let server = Server::default();
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true}]);
    server.put(
        &DEPLOYMENTS,
        json!({"metadata": {"name": "d", "namespace": "n", "uid": "d"}, "spec": {"replicas": 4}}),
    );
    server.put(
        &REPLICASETS,
        json!({"metadata": {"name": "rs", "namespace": "n", "uid": "rs", "ownerReferences": owner("Deployment", "d")}, "spec": {"replicas": 3}}),
    );
    for index in 0..3 {
        server.put(&PODS, json!({
            "metadata": {"name": format!("p{index}"), "namespace": "n", "labels": {"a": "b"}, "ownerReferences": owner("ReplicaSet", "rs")},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }));
    }
    server.put(
        &PODDISRUPTIONBUDGETS,
        json!({"metadata": {"name": "b", "namespace": "n"}, "spec": {"maxUnavailable": "50%", "selector": {"matchLabels": {"a": "b"}}}}),
    );
    let config = crate::ControllersConfig {
        controllers: vec!["disruption-controller".into()],
        leader_elect: false,
        ..crate::ControllersConfig::default()
    };
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    tokio::spawn(crate::run(server.client(), config, shutdown));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = server.get(&PODDISRUPTIONBUDGETS, "n/b").unwrap()["status"].clone();
    assert_eq!(status["expectedPods"], 4);
    assert_eq!(status["desiredHealthy"], 2);
    assert_eq!(status["disruptionsAllowed"], 1);
    server.remove(&PODS, "n/p0");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = server.get(&PODDISRUPTIONBUDGETS, "n/b").unwrap()["status"].clone();
    assert_eq!(status["disruptionsAllowed"], 0);
}

#[tokio::test(start_paused = true)]
async fn pods_without_a_controller_or_of_an_unknown_one_are_told_of() {
    let server = Server::default();
    server.set_discovery("/api", json!({"items": []}));
    server.set_discovery("/apis", json!({"items": []}));
    let pod = |name: &str, owners: Value| json!({"metadata": {"name": name, "namespace": "n", "labels": {"a": name}, "ownerReferences": owners}});
    server.put(&PODS, pod("alone", json!([])));
    let owner = json!([{"apiVersion": "example.com/v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]);
    server.put(&PODS, pod("foreign", owner));
    for name in ["alone", "foreign"] {
        let selector = json!({"matchLabels": {"a": name}, "matchExpressions": [{"key": "a", "operator": "In", "values": [name, "b"]}]});
        let spec = json!({"maxUnavailable": 1, "selector": selector});
        server.put(
            &PODDISRUPTIONBUDGETS,
            json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec}),
        );
    }
    let _guard = crate::testing::start(&server, &["disruption-controller"]);
    crate::testing::seconds(5).await;
    let events = server.list(&api::r::EVENTS);
    let said = |reason: &str, text: &str| {
        events.iter().any(|event| {
            event["reason"] == reason
                && event["message"]
                    .as_str()
                    .is_some_and(|message| message.contains(text))
        })
    };
    assert!(
        said(
            "UnmanagedPods",
            "(selector: &LabelSelector{MatchLabels:map[string]string{a: alone,},MatchExpressions:[]\
             LabelSelectorRequirement{LabelSelectorRequirement{Key:a,Operator:In,Values:[alone b],},},}) were found \
             to be unmanaged."
        ),
        "{events:?}"
    );
    let reason = "CalculateExpectedPodCountFailed";
    assert!(
        said(reason, "Failed to calculate the number of expected pods: "),
        "{events:?}"
    );
}
