//! Jobs against an API server in memory.

use crate::testing::seconds;

use client::fake::Server;

use super::*;

fn start(server: &Server) -> tokio_util::sync::DropGuard {
    crate::testing::start(server, &["job-controller"])
}

fn job(spec: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "work", "namespace": "default", "uid": "j"},
        "spec": {"selector": {"matchLabels": {"job": "work"}}, "template": {
            "metadata": {"labels": {"job": "work"}}, "spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}}},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

/// Ends all pods that have not ended.
fn end(server: &Server, phase: &str) {
    for mut pod in server.list(&PODS) {
        if pod["status"]["phase"].is_null() {
            pod["status"] = json!({"phase": phase});
            server.put(&PODS, pod);
        }
    }
}

fn status(server: &Server) -> Value {
    server.get(&JOBS, "default/work").unwrap()["status"].clone()
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_runs_every_index_and_keeps_no_finalizer() {
    let server = Server::default();
    let _guard = start(&server);
    server.put(
        &JOBS,
        job(json!({"completions": 5, "parallelism": 2, "completionMode": "Indexed"})),
    );
    seconds(2).await;
    let pods = server.list(&PODS);
    assert_eq!(pods.len(), 2);
    assert_eq!(pods[0]["metadata"]["finalizers"], json!([TRACKING]));
    assert_eq!(pods[0]["metadata"]["labels"][INDEX], "0");
    assert_eq!(pods[1]["spec"]["hostname"], "work-1");
    assert_eq!(
        pods[0]["spec"]["containers"][0]["env"][0]["name"],
        "JOB_COMPLETION_INDEX"
    );
    for _ in 0..3 {
        end(&server, "Succeeded");
        seconds(2).await;
    }
    let status = status(&server);
    assert_eq!(status["completedIndexes"], "0-4");
    assert_eq!(status["conditions"][1]["type"], "Complete");
    let pods = server.list(&PODS);
    assert_eq!(pods.len(), 5);
    assert!(
        pods.iter()
            .all(|pod| pod["metadata"]["finalizers"] == json!([]))
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_tries_again_and_gives_up() {
    let server = Server::default();
    let _guard = start(&server);
    server.put(&JOBS, job(json!({"completions": 1, "backoffLimit": 1})));
    seconds(2).await;
    end(&server, "Failed");
    seconds(2).await;
    assert_eq!(server.list(&PODS).len(), 1, "it pauses");
    let mut pod = server.list(&PODS).remove(0);
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(&PODS, pod);
    seconds(2).await;
    assert_eq!(server.list(&PODS).len(), 2);
    end(&server, "Failed");
    seconds(2).await;
    let status = status(&server);
    assert_eq!(status["failed"], 2);
    assert_eq!(status["conditions"][1]["type"], "Failed");
    assert_eq!(status["conditions"][1]["reason"], "BackoffLimitExceeded");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_job_that_is_gone_lose_their_finalizer() {
    let server = Server::default();
    let _guard = start(&server);
    server.put(&JOBS, job(json!({"completions": 1})));
    seconds(2).await;
    server.remove(&JOBS, "default/work");
    seconds(2).await;
    assert_eq!(server.list(&PODS)[0]["metadata"]["finalizers"], json!([]));
}
