//! Times the scheduler, and with it the whole control plane, on simulated nodes: pods bound a second, and from the first
//! POST to the last pod Ready. `bench schedule [NODES] [PODS]`.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::report;
use integration::connection::{Connection, Target};
use integration::process::{Server, Usage, binary};

const CLIENTS: usize = 16;
const PODS: &str = "/api/v1/namespaces/default/pods";
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends the simulator with the measurement.
struct Simulator(Child);

impl Drop for Simulator {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let number = |index: usize, default: usize| {
        arguments.get(index).map_or(Ok(default), |text| {
            text.parse().context("NODES and PODS are numbers")
        })
    };
    let (nodes, pods) = (number(0, 5_000)?, number(1, 10_000)?);
    let server = Server::start(&[]).await?;
    let target = server.target()?;
    let connection = target.connect().await?;
    let begin = Instant::now();
    let simulator = Simulator(
        Command::new(binary())
            .args(["simulate", "--zones=3", &format!("--nodes={nodes}")])
            .arg("--kubeconfig")
            .arg(server.data_dir().join("admin.kubeconfig"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    wait_for(&connection, "/api/v1/nodes", nodes).await?;
    report(
        &format!("{nodes} simulated nodes registered"),
        seconds(begin),
        "",
    );
    wait_for_service_account(&connection).await?;
    let before = (server.usage()?, Usage::of(simulator.0.id())?);
    let begin = Instant::now();
    let bound = tokio::spawn(count(
        target.connect().await?,
        "spec.nodeName!=",
        pods,
        |_| true,
    ));
    let ready = tokio::spawn(count(
        target.connect().await?,
        "status.phase=Running",
        pods,
        is_ready,
    ));
    create(&target, pods).await?;
    let created = begin.elapsed();
    let bound = bound.await??.duration_since(begin);
    let ready = ready.await??.duration_since(begin);
    let after = (server.usage()?, Usage::of(simulator.0.id())?);
    let rate = |time: Duration| format!("{:.0}/s", pods as f64 / time.as_secs_f64());
    let each = |before: Usage, after: Usage| {
        format!(
            "{:.0} µs CPU a pod",
            (after.cpu - before.cpu) / pods as f64 * 1e6
        )
    };
    report(&format!("{pods} pods created"), rate(created), "");
    report("pods bound", rate(bound), "2,000/s on 5,000 nodes");
    report("pods Ready", rate(ready), "");
    report("control plane", each(before.0, after.0), "");
    report(
        "control plane, memory",
        format!("{:.0} MB", after.0.resident),
        "",
    );
    report("simulator", each(before.1, after.1), "");
    report(
        "simulator, memory",
        format!("{:.0} MB", after.1.resident),
        "",
    );
    Ok(())
}

fn seconds(begin: Instant) -> String {
    format!("{:.1} s", begin.elapsed().as_secs_f64())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|one| one["type"] == "Ready" && one["status"] == "True")
}

async fn wait_for(connection: &Connection, path: &str, wanted: usize) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let (_, page) = connection
            .json(Method::GET, &format!("{path}?limit=1"), &Value::Null)
            .await?;
        let left = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        let there = page["items"].as_array().map_or(0, Vec::len) + usize::try_from(left)?;
        if there >= wanted {
            return Ok(());
        }
        anyhow::ensure!(begin.elapsed() < PATIENCE, "{there} of {wanted} {path}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn wait_for_service_account(connection: &Connection) -> anyhow::Result<()> {
    let path = "/api/v1/namespaces/default/serviceaccounts/default";
    let begin = Instant::now();
    while connection.json(Method::GET, path, &Value::Null).await?.0 != 200 {
        anyhow::ensure!(
            begin.elapsed() < PATIENCE,
            "the namespace has no service account"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Watches until so many pods are as wanted, and tells when.
async fn count(
    connection: Connection,
    fields: &str,
    wanted: usize,
    counts: fn(&Value) -> bool,
) -> anyhow::Result<Instant> {
    let fields = fields.replace("!=", "%21%3D");
    let path = format!("{PODS}?watch=1&fieldSelector={fields}&timeoutSeconds=600");
    let mut body = connection
        .open(Method::GET, &path, &[], Bytes::new())
        .await?
        .into_body();
    let mut seen = std::collections::HashSet::new();
    let mut left = Vec::new();
    while seen.len() < wanted {
        let frame = tokio::time::timeout(PATIENCE, body.frame())
            .await
            .with_context(|| format!("{} of {wanted}", seen.len()))?;
        let Ok(data) = frame.context("the watch ended")??.into_data() else {
            continue;
        };
        left.extend_from_slice(&data);
        while let Some(end) = left.iter().position(|byte| *byte == b'\n') {
            let event: Value = serde_json::from_slice(&left[..end])?;
            left.drain(..=end);
            if event["type"] != "DELETED" && counts(&event["object"]) {
                seen.insert(
                    event["object"]["metadata"]["name"]
                        .as_str()
                        .unwrap_or("")
                        .to_owned(),
                );
            }
        }
    }
    Ok(Instant::now())
}

async fn create(target: &Target, pods: usize) -> anyhow::Result<()> {
    let mut tasks = Vec::new();
    for client in 0..CLIENTS {
        let connection = target.connect().await?;
        tasks.push(tokio::spawn(async move {
            for number in (client..pods).step_by(CLIENTS) {
                let pod = json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("pod-{number}"), "labels": {"app": format!("app-{}", number % 10)}},
                    "spec": {"containers": [{"name": "c", "image": "nginx", "resources": {
                        "requests": {"cpu": "100m", "memory": "128Mi"}}}]},
                });
                let (status, answer) = connection.json(Method::POST, PODS, &pod).await?;
                anyhow::ensure!(status == 201, "{status}: {answer}");
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
