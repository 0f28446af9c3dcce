//! The life of nodes against an API server in memory, with taint eviction beside it.

use crate::testing::seconds;
use std::time::Duration;

use api::r::{LEASES, NODES, PODS};
use client::fake::Server;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

fn start(server: &Server) -> DropGuard {
    crate::testing::start(
        server,
        &["node-lifecycle-controller", "taint-eviction-controller"],
    )
}

fn add_node(server: &Server, name: &str) {
    let conditions: Vec<Value> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        .iter()
        .map(
            |kind| json!({"type": kind, "status": if *kind == "Ready" { "True" } else { "False" }}),
        )
        .collect();
    server.put(
        &NODES,
        json!({"metadata": {"name": name}, "status": {"conditions": conditions}}),
    );
}

fn add_pod(server: &Server, name: &str, node: &str) {
    let toleration = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    server.put(&PODS, json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "tolerations": [
            toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable"),
        ]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }));
}

/// Renews a node's lease every ten seconds until the guard is dropped.
fn beat(server: &Server, name: &str) -> DropGuard {
    let stop = CancellationToken::new();
    let (server, name, stopped) = (server.clone(), name.to_string(), stop.clone());
    tokio::spawn(async move {
        for beat in 0.. {
            server.put(
                &LEASES,
                json!({
                    "metadata": {"name": name, "namespace": "kube-node-lease"},
                    "spec": {"renewTime": format!("beat {beat}")},
                }),
            );
            if tokio::time::timeout(Duration::from_secs(10), stopped.cancelled())
                .await
                .is_ok()
            {
                return;
            }
        }
    });
    stop.drop_guard()
}

fn ready(server: &Server, node: &str) -> Value {
    let node = server.get(&NODES, node).unwrap();
    let all = node["status"]["conditions"].as_array().unwrap().clone();
    all.into_iter().find(|one| one["type"] == "Ready").unwrap()
}

fn taints(server: &Server, node: &str) -> Vec<String> {
    let node = server.get(&NODES, node).unwrap();
    let all = node["spec"]["taints"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |taint: &Value| {
        format!(
            "{}:{}",
            taint["key"].as_str().unwrap(),
            taint["effect"].as_str().unwrap()
        )
    };
    all.iter().map(text).collect()
}

fn is_deleting(server: &Server, pod: &str) -> bool {
    let pod = server.get(&PODS, &format!("default/{pod}")).unwrap();
    pod["metadata"]["deletionTimestamp"].is_string()
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_turns_unknown_is_tainted_and_its_pods_are_marked_for_deletion_after_their_toleration()
 {
    let server = Server::default();
    for name in ["w1", "w2"] {
        add_node(&server, name);
        add_pod(&server, &format!("on-{name}"), name);
    }
    let _guard = start(&server);
    let _w2 = beat(&server, "w2");
    let w1 = beat(&server, "w1");
    seconds(55).await;
    assert_eq!(ready(&server, "w1")["status"], "True");
    drop(w1);
    seconds(30).await;
    assert_eq!(ready(&server, "w1")["status"], "True");
    seconds(10).await;
    let condition = ready(&server, "w1");
    assert_eq!(condition["status"], "Unknown");
    assert_eq!(condition["reason"], "NodeStatusUnknown");
    assert_eq!(condition["message"], "Kubelet stopped posting node status.");
    let unreachable = [
        "node.kubernetes.io/unreachable:NoSchedule",
        "node.kubernetes.io/unreachable:NoExecute",
    ];
    assert_eq!(taints(&server, "w1"), unreachable);
    let pod = server.get(&PODS, "default/on-w1").unwrap();
    assert_eq!(pod["status"]["conditions"][0]["status"], "False");
    assert!(!is_deleting(&server, "on-w1"));
    assert_eq!(ready(&server, "w2")["status"], "True");
    assert!(taints(&server, "w2").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_back_loses_its_taints() {
    let server = Server::default();
    add_node(&server, "w1");
    add_node(&server, "w2");
    let _guard = start(&server);
    let _w2 = beat(&server, "w2");
    drop(beat(&server, "w1"));
    seconds(60).await;
    assert_eq!(taints(&server, "w1").len(), 2);
    add_node(&server, "w1");
    let _w1 = beat(&server, "w1");
    seconds(1).await;
    assert!(taints(&server, "w1").is_empty());
    seconds(100).await;
    assert_eq!(ready(&server, "w1")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn when_all_nodes_fall_silent_nobody_is_evicted() {
    let server = Server::default();
    for name in ["w1", "w2", "w3"] {
        add_node(&server, name);
    }
    let _guard = start(&server);
    let beats: Vec<DropGuard> = ["w1", "w2", "w3"]
        .iter()
        .map(|name| beat(&server, name))
        .collect();
    seconds(30).await;
    drop(beats);
    seconds(300).await;
    for name in ["w1", "w2", "w3"] {
        assert_eq!(ready(&server, name)["status"], "Unknown");
        assert_eq!(
            taints(&server, name),
            ["node.kubernetes.io/unreachable:NoSchedule"],
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn silence_while_the_server_was_away_is_not_held_against_the_nodes() {
    let server = Server::default();
    add_node(&server, "w1");
    let _guard = start(&server);
    let beat_on = beat(&server, "w1");
    seconds(30).await;
    drop(beat_on);
    server.set_down(true);
    seconds(300).await;
    server.set_down(false);
    seconds(15).await;
    let _w1 = beat(&server, "w1");
    seconds(60).await;
    assert_eq!(ready(&server, "w1")["status"], "True");
}
