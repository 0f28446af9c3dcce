//! What an operation costs in CPU, without sockets: `cargo test --release -p apiserver -- --ignored --nocapture bench`.
//! Read with the budgets of the design: create 200 µs, GET 60 µs, patch 300 µs, LIST of 45 MB 60 ms, delivery 4 µs.

use std::time::Instant;

use apimachinery::Value;
use futures::StreamExt;
use http::Method;
use serde_json::json;

use super::harness::Harness;
use crate::body::Body;

const PODS: usize = 10_000;
const PATH: &str = "/api/v1/namespaces/test/pods";

/// CPU time of the whole process in microseconds: user and system ticks of 10 ms.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a stat file");
    let rest = stat.rsplit(')').next().expect("fields");
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: f64 = [11, 12]
        .iter()
        .map(|at| fields[*at].parse::<f64>().expect("ticks"))
        .sum();
    ticks * 10_000.0
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status file");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .expect("a line");
    line.to_owned()
}

/// A pod of about 4.5 KB as stored.
fn pod(number: usize) -> Value {
    let environment: Vec<Value> = (0..20)
        .map(
            |at| json!({"name": format!("VARIABLE_{at}"), "value": format!("value-{number}-{at}")}),
        )
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number:05}"),
            "labels": {"app": format!("app-{}", number % 100), "tier": "backend", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"example.com/description": "x".repeat(300)},
        },
        "spec": {"containers": [{
            "name": "main", "image": "registry.example.com/team/image:1.2.3", "env": environment,
            "ports": [{"containerPort": 8080, "name": "http"}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
        }]},
    })
}

struct Measured {
    what: &'static str,
    cpu: f64,
    wall: Instant,
}

impl Measured {
    fn start(what: &'static str) -> Self {
        Self {
            what,
            cpu: cpu(),
            wall: Instant::now(),
        }
    }

    fn end(self, count: usize) {
        let cpu = (cpu() - self.cpu) / count as f64;
        let wall = self.wall.elapsed().as_secs_f64() * 1e6 / count as f64;
        println!(
            "{:<28} {cpu:>10.1} µs CPU {wall:>10.1} µs wall  {}",
            self.what,
            memory()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test"]
async fn bench() {
    let started = Instant::now();
    let before = cpu();
    let server = Harness::start().await;
    println!(
        "start {:?}, {} µs CPU, {}",
        started.elapsed(),
        cpu() - before,
        memory()
    );
    let bodies: Vec<String> = (0..PODS).map(|number| pod(number).to_string()).collect();
    let measured = Measured::start("create");
    for body in &bodies {
        let answer = server
            .ask(
                Method::POST,
                PATH,
                &[("user-agent", "bench/1")],
                body.clone(),
            )
            .await;
        assert_eq!(answer.code, 201);
    }
    measured.end(PODS);
    drop(bodies);
    let one = server.get(&format!("{PATH}/pod-00042")).await;
    println!("a pod is {} bytes", one.bytes.len());
    let measured = Measured::start("get");
    for number in 0..PODS {
        let path = format!("{PATH}/pod-{number:05}");
        let response = server.send(Method::GET, &path, &[], Body::empty()).await;
        assert_eq!(response.status(), 200);
    }
    measured.end(PODS);
    server.get(&format!("{PATH}?limit=1")).await.expect(200);
    for (what, query, accept) in [
        ("list json", "", "application/json"),
        ("list json again", "", "application/json"),
        ("list rv=0", "?resourceVersion=0", "application/json"),
        ("list protobuf", "", "application/vnd.kubernetes.protobuf"),
        (
            "list protobuf again",
            "",
            "application/vnd.kubernetes.protobuf",
        ),
        (
            "list table",
            "",
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        ),
        (
            "list metadata",
            "",
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        ),
        (
            "list by label",
            "?labelSelector=app%3Dapp-7",
            "application/json",
        ),
    ] {
        let measured = Measured::start(what);
        let response = server
            .send(
                Method::GET,
                &format!("{PATH}{query}"),
                &[("accept", accept)],
                Body::empty(),
            )
            .await;
        let mut stream = response.into_body().into_stream();
        let mut bytes = 0;
        while let Some(piece) = stream.next().await {
            bytes += piece.expect("no error").len();
        }
        measured.end(1);
        println!("  {bytes} bytes");
    }
    let measured = Measured::start("merge patch of status");
    for number in 0..PODS {
        let path = format!("{PATH}/pod-{number:05}/status");
        let patch = json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}});
        let headers = [
            ("content-type", "application/merge-patch+json"),
            ("user-agent", "kubelet/1"),
        ];
        let answer = server
            .ask(Method::PATCH, &path, &headers, patch.to_string())
            .await;
        assert_eq!(answer.code, 200);
    }
    measured.end(PODS);
    const WATCHERS: usize = 200;
    const CHANGES: usize = 500;
    let mut tasks = Vec::new();
    for _ in 0..WATCHERS {
        let path = format!("{PATH}?watch=true&resourceVersion={}", {
            let list = server.get(&format!("{PATH}?limit=1")).await.expect(200);
            list["metadata"]["resourceVersion"]
                .as_str()
                .expect("a version")
                .to_owned()
        });
        let response = server.send(Method::GET, &path, &[], Body::empty()).await;
        let mut stream = response.into_body().into_stream();
        tasks.push(tokio::spawn(async move {
            let mut lines = 0;
            while lines < CHANGES {
                let piece = stream.next().await.expect("not ended").expect("no error");
                lines += piece.iter().filter(|byte| **byte == b'\n').count();
            }
        }));
    }
    let measured = Measured::start("patch with 200 watchers");
    for number in 0..CHANGES {
        let path = format!("{PATH}/pod-{number:05}");
        let patch = json!({"metadata": {"annotations": {"n": number.to_string()}}});
        server.patch(&path, "merge", &patch).await.expect(200);
    }
    for task in tasks {
        task.await.expect("a watcher");
    }
    measured.end(CHANGES * WATCHERS);
    let measured = Measured::start("delete");
    for number in 0..PODS {
        server
            .delete(&format!("{PATH}/pod-{number:05}"))
            .await
            .expect(200);
    }
    measured.end(PODS);
}
