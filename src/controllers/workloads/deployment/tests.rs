//! Deployments with ReplicaSets against an API server in memory.

use crate::testing::seconds;
use std::time::Duration;

use client::fake::Server;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use api::r::{DEPLOYMENTS, PODS, REPLICASETS};

fn deployment(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "uid": "d", "generation": 1},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "progressDeadlineSeconds": 600,
                 "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                 "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"image": image}]}}},
    })
}

/// Makes every pod ready, as a kubelet would, until the guard is dropped.
fn kubelet(server: &Server) -> tokio_util::sync::DropGuard {
    let stop = CancellationToken::new();
    let (server, stopped) = (server.clone(), stop.clone());
    tokio::spawn(async move {
        while !stopped.is_cancelled() {
            for mut pod in server.list(&PODS) {
                if pod["status"]["phase"] != "Running" {
                    pod["status"] = json!({"phase": "Running", "conditions": [
                        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
                    server.put(&PODS, pod);
                }
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    stop.drop_guard()
}

fn images(server: &Server) -> Vec<String> {
    let pods = server.list(&PODS);
    let mut images: Vec<String> = pods
        .iter()
        .map(|pod| {
            pod["spec"]["containers"][0]["image"]
                .as_str()
                .unwrap()
                .to_string()
        })
        .collect();
    images.sort();
    images
}

#[tokio::test(start_paused = true)]
async fn a_deployment_rolls_out_updates_and_tells_how_it_goes() {
    let server = Server::default();
    let _guard =
        crate::testing::start(&server, &["replicaset-controller", "deployment-controller"]);
    let _kubelet = kubelet(&server);
    server.put(&DEPLOYMENTS, deployment("nginx:1"));
    seconds(10).await;
    assert_eq!(images(&server), ["nginx:1"; 3]);
    let stored = server.get(&DEPLOYMENTS, "default/web").unwrap();
    assert_eq!(stored["status"]["availableReplicas"], 3);
    assert_eq!(
        stored["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    let progressing = conditions
        .iter()
        .find(|one| one["type"] == "Progressing")
        .unwrap();
    assert_eq!(progressing["reason"], "NewReplicaSetAvailable");

    let mut updated = stored;
    updated["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:2");
    updated["metadata"]["generation"] = json!(2);
    server.put(&DEPLOYMENTS, updated);
    seconds(30).await;
    assert_eq!(images(&server), ["nginx:2"; 3]);
    let sets = server.list(&REPLICASETS);
    let mut sizes: Vec<i64> = sets
        .iter()
        .map(|set| set["spec"]["replicas"].as_i64().unwrap())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [0, 3]);
    let stored = server.get(&DEPLOYMENTS, "default/web").unwrap();
    assert_eq!(
        stored["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "2"
    );

    let mut back = stored;
    back["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:1");
    back["spec"]["replicas"] = json!(1);
    server.put(&DEPLOYMENTS, back);
    seconds(30).await;
    assert_eq!(images(&server), ["nginx:1"]);
    assert_eq!(server.list(&REPLICASETS).len(), 2);
    let stored = server.get(&DEPLOYMENTS, "default/web").unwrap();
    assert_eq!(
        stored["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "3"
    );
}
