//! The scheduler against an API server in memory.

use std::time::Duration;

use api::r::{EVENTS, LEASES, NODES, PODS};
use apimachinery::status::Status;
use client::fake::Server;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    SchedulerConfig,
    cluster::testing::{mk_node, mk_pod, on},
};

fn start(server: &Server) -> CancellationToken {
    let shutdown = CancellationToken::new();
    let config = SchedulerConfig::default();
    tokio::spawn(super::run(server.client(), config, shutdown.clone()));
    shutdown
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn node_of(server: &Server, pod: &str) -> String {
    let pod = server.get(&PODS, &format!("default/{pod}")).unwrap();
    pod["spec"]["nodeName"].as_str().unwrap_or("").into()
}

fn events(server: &Server, reason: &str) -> Vec<Value> {
    server
        .list(&EVENTS)
        .into_iter()
        .filter(|event| event["reason"] == reason)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_and_told_in_an_event() {
    let server = Server::default();
    server.put(&NODES, mk_node("lab-worker"));
    let shutdown = start(&server);
    seconds(1).await;
    server.put(&PODS, mk_pod("nginx-demo"));
    seconds(1).await;
    assert_eq!(node_of(&server, "nginx-demo"), "lab-worker");
    let bindings = server.requests_of("POST", "/binding");
    assert_eq!(bindings.len(), 1);
    assert_eq!(bindings[0].body["metadata"]["uid"], "nginx-demo");
    let event = events(&server, "Scheduled").remove(0);
    assert_eq!(
        event["message"],
        "Successfully assigned default/nginx-demo to lab-worker"
    );
    assert_eq!(event["source"], json!({"component": "default-scheduler"}));
    assert_eq!(event["type"], "Normal");
    shutdown.cancel();
    seconds(1).await;
    let lease = server.get(&LEASES, "kube-system/kube-scheduler").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_waits_for_a_node_without_being_tried_again() {
    let server = Server::default();
    let mut cordoned = mk_node("a");
    cordoned["spec"]["unschedulable"] = json!(true);
    server.put(&NODES, cordoned);
    let _shutdown = start(&server).drop_guard();
    seconds(1).await;
    server.put(&PODS, mk_pod("p"));
    seconds(60).await;
    assert_eq!(node_of(&server, "p"), "");
    let failed = events(&server, "FailedScheduling");
    assert_eq!((failed.len(), &failed[0]["count"]), (1, &json!(1)));
    let pod = server.get(&PODS, "default/p").unwrap();
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(condition["reason"], "Unschedulable");
    assert_eq!(condition["message"], failed[0]["message"]);
    server.put(&NODES, mk_node("b"));
    seconds(2).await;
    assert_eq!(node_of(&server, "p"), "b");
}

#[tokio::test(start_paused = true)]
async fn pods_with_a_node_of_another_scheduler_or_being_deleted_are_left_alone() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    let _shutdown = start(&server).drop_guard();
    let mut other = mk_pod("other");
    other["spec"]["schedulerName"] = json!("mine");
    let mut dying = mk_pod("dying");
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for pod in [on(mk_pod("placed"), "gone"), other, dying] {
        server.put(&PODS, pod);
    }
    seconds(30).await;
    assert_eq!(node_of(&server, "placed"), "gone");
    assert!(server.requests_of("POST", "/binding").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failed_binding_is_taken_back_and_tried_again() {
    let server = Server::default();
    let mut small = mk_node("a");
    small["status"]["allocatable"]["pods"] = json!("1");
    server.put(&NODES, small);
    server.fail_next(
        http::Method::POST,
        "/binding",
        Status::internal("etcd is away"),
    );
    let _shutdown = start(&server).drop_guard();
    server.put(&PODS, mk_pod("p"));
    seconds(10).await;
    assert_eq!(node_of(&server, "p"), "a");
    assert_eq!(server.requests_of("POST", "/binding").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_away_changes_nothing_about_the_end() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    server.put(&NODES, mk_node("b"));
    let _shutdown = start(&server).drop_guard();
    seconds(1).await;
    server.set_down(true);
    for number in 0..10 {
        server.put(&PODS, mk_pod(&format!("p{number}")));
    }
    seconds(5).await;
    server.set_down(false);
    seconds(20).await;
    let on_a = (0..10)
        .filter(|number| node_of(&server, &format!("p{number}")) == "a")
        .count();
    assert_eq!(on_a, 5);
}
