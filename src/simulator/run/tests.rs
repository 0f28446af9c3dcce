//! Simulated nodes against an API server in memory.

use api::r::LEASES;
use client::fake::Server;
use serde_json::json;

use super::*;

fn start(server: &Server, text: &str) -> CancellationToken {
    let shutdown = CancellationToken::new();
    let config = Config::read(text).expect("a configuration");
    let run = run(server.client(), config, shutdown.clone());
    tokio::spawn(async move { run.await.expect("it runs") });
    shutdown
}

async fn seconds(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

fn put(server: &Server, name: &str, node: &str, change: impl FnOnce(&mut Value)) {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "nginx"}], "restartPolicy": "Always"},
        "status": {"phase": "Pending"},
    });
    change(&mut pod);
    server.put(&PODS, pod);
}

fn status(server: &Server, name: &str) -> Value {
    server
        .get(&PODS, &format!("default/{name}"))
        .map_or(Value::Null, |pod| pod["status"].clone())
}

#[tokio::test(start_paused = true)]
async fn nodes_are_ready_and_their_leases_renewed() {
    let server = Server::default();
    let _shutdown = start(&server, "nodes: [{prefix: sim, count: 30, zones: 3}]").drop_guard();
    seconds(1.0).await;
    let node = server.get(&NODES, "sim-29").unwrap();
    assert_eq!(node["status"]["conditions"][3]["status"], "True");
    assert_eq!(node["status"]["allocatable"]["pods"], "110");
    assert!(node["metadata"]["labels"]["topology.kubernetes.io/zone"].is_string());
    assert_eq!(server.list(&LEASES).len(), 30);
    let lease = server.get(&LEASES, "kube-node-lease/sim-7").unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(lease["metadata"]["ownerReferences"][0]["name"], "sim-7");
    let renewals = || server.requests_of("PATCH", "/leases/").len();
    let before = renewals();
    seconds(100.0).await;
    let rounds = (renewals() - before) / 30;
    assert!((9..=11).contains(&rounds), "{rounds}");
    // Someone who missed them says otherwise.
    let mut silent = server.get(&NODES, "sim-3").unwrap();
    silent["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    server.put(&NODES, silent);
    seconds(1.0).await;
    let node = server.get(&NODES, "sim-3").unwrap();
    assert!(
        node["status"]["conditions"]
            .to_string()
            .contains("KubeletReady")
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_through_its_stages_in_time() {
    let server = Server::default();
    let rules = "
nodes: [{prefix: sim, count: 1}]
rules: [{start: {after: 2s}, ready: {after: 3s}, delete: {after: 4s}}]
";
    let _shutdown = start(&server, rules).drop_guard();
    put(&server, "p", "sim-0", |_| {});
    put(&server, "other", "real-node", |_| {});
    seconds(1.9).await;
    assert_eq!(status(&server, "p")["phase"], "Pending");
    seconds(1.0).await;
    assert_eq!(status(&server, "p")["phase"], "Running");
    assert_eq!(status(&server, "p")["containerStatuses"][0]["ready"], false);
    seconds(3.0).await;
    let present = status(&server, "p");
    assert_eq!(present["containerStatuses"][0]["ready"], true);
    assert!(present["podIP"].as_str().unwrap().starts_with("100.64."));
    let mut pod = server.get(&PODS, "default/p").unwrap();
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    server.put(&PODS, pod);
    seconds(3.0).await;
    assert!(!status(&server, "p").is_null());
    seconds(2.0).await;
    assert!(status(&server, "p").is_null());
    assert_eq!(
        status(&server, "other")["phase"],
        "Pending",
        "it is on no node of ours"
    );
    assert_eq!(
        server.requests_of("PATCH", "/pods/").len(),
        2,
        "each step is written once"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_jobs_end_well_or_badly_and_are_seen_to_end_before_they_go() {
    let server = Server::default();
    let rules = "
nodes: [{prefix: sim, count: 1}]
rules: [{match: {labels: fate=bad}, finish: {after: 1s, failures: 1, exitCode: 3}}]
";
    let _shutdown = start(&server, rules).drop_guard();
    let job = |pod: &mut Value| {
        pod["metadata"]["ownerReferences"] =
            json!([{"kind": "Job", "name": "j", "controller": true}]);
        pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        pod["spec"]["restartPolicy"] = json!("Never");
    };
    put(&server, "good", "sim-0", job);
    put(&server, "bad", "sim-0", |pod| {
        job(pod);
        pod["metadata"]["labels"] = json!({"fate": "bad"});
    });
    put(&server, "again", "sim-0", |pod| {
        job(pod);
        pod["metadata"]["labels"] = json!({"fate": "bad"});
        pod["spec"]["restartPolicy"] = json!("OnFailure");
    });
    seconds(5.5).await;
    assert_eq!(status(&server, "good")["phase"], "Succeeded");
    assert_eq!(status(&server, "bad")["phase"], "Failed");
    assert_eq!(
        status(&server, "bad")["containerStatuses"][0]["state"]["terminated"]["exitCode"],
        3
    );
    let again = status(&server, "again");
    assert_eq!(again["phase"], "Running");
    assert!(
        again["containerStatuses"][0]["restartCount"]
            .as_u64()
            .unwrap()
            >= 3
    );
}
