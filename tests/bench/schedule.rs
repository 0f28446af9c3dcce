//! Times the scheduler on simulated nodes: what it binds a second of pods that wait for it, as a process of its own, and
//! then the whole control plane, from the first POST to the last pod Ready. `bench schedule [NODES] [PODS]`.

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

/// A process that ends with the measurement.
pub struct Simulator(Child);

impl Simulator {
    /// Starts `nodes` simulated nodes of the server.
    pub fn start(server: &Server, nodes: usize) -> anyhow::Result<Self> {
        let arguments = ["--zones=3", &format!("--nodes={nodes}")];
        Ok(Self(part(server, "simulate", &arguments)?))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts another command of the binary as the server's administrator.
fn part(server: &Server, command: &str, arguments: &[&str]) -> anyhow::Result<Child> {
    Ok(Command::new(binary())
        .arg(command)
        .args(arguments)
        .arg("--kubeconfig")
        .arg(server.data_dir().join("admin.kubeconfig"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?)
}

pub async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let number = |index: usize, default: usize| {
        arguments.get(index).map_or(Ok(default), |text| {
            text.parse().context("NODES and PODS are numbers")
        })
    };
    let (nodes, pods) = (number(0, 5_000)?, number(1, 10_000)?);
    backlog(nodes, pods).await?;
    stream(nodes, pods).await
}

fn each(before: Usage, after: Usage, pods: usize) -> String {
    format!(
        "{:.0} µs CPU a pod",
        (after.cpu - before.cpu) / pods as f64 * 1e6
    )
}

fn rate(pods: usize, time: Duration) -> String {
    format!("{:.0}/s", pods as f64 / time.as_secs_f64())
}

/// All pods are there before the scheduler is; their nodes, once registered, do nothing with them.
async fn backlog(nodes: usize, pods: usize) -> anyhow::Result<()> {
    let server = Server::start(&["--disable-scheduler".to_owned()]).await?;
    let target = server.target()?;
    let connection = target.connect().await?;
    let simulator = Simulator::start(&server, nodes)?;
    wait_for(&connection, "/api/v1/nodes", nodes).await?;
    wait_for_service_account(&connection).await?;
    wait_for_untainted(&connection, nodes).await?;
    // Within their leases' 40 s these nodes stay ready without it.
    drop(simulator);
    create(&target, pods).await?;
    let bound = tokio::spawn(count(
        target.connect().await?,
        "spec.nodeName!=",
        pods,
        |_| true,
    ));
    let before = server.usage()?;
    let scheduler = Simulator(part(&server, "scheduler", &["--leader-elect=false"])?);
    let (first, last) = bound.await??;
    let (server, scheduler) = (server.usage()?, Usage::of(scheduler.id())?);
    report(
        &format!("{pods} waiting pods bound to {nodes} nodes"),
        rate(pods, last.duration_since(first)),
        "2,000/s on 5,000 nodes",
    );
    let start = Usage {
        cpu: 0.0,
        ..scheduler
    };
    report("scheduler", each(start, scheduler, pods), "");
    report(
        "scheduler, memory",
        format!("{:.0} MB", scheduler.resident),
        "",
    );
    report(
        "API server, bindings and events",
        each(before, server, pods),
        "",
    );
    Ok(())
}

/// Pods come while everything runs.
async fn stream(nodes: usize, pods: usize) -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let target = server.target()?;
    let connection = target.connect().await?;
    let begin = Instant::now();
    let simulator = Simulator::start(&server, nodes)?;
    wait_for(&connection, "/api/v1/nodes", nodes).await?;
    report(
        &format!("{nodes} simulated nodes registered"),
        seconds(begin),
        "",
    );
    wait_for_service_account(&connection).await?;
    wait_for_untainted(&connection, nodes).await?;
    let before = (server.usage()?, Usage::of(simulator.id())?);
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
    let bound = bound.await??.1.duration_since(begin);
    let ready = ready.await??.1.duration_since(begin);
    let after = (server.usage()?, Usage::of(simulator.id())?);
    report(&format!("{pods} pods created"), rate(pods, created), "");
    report("pods bound meanwhile", rate(pods, bound), "");
    report("pods Ready", rate(pods, ready), "");
    report("control plane", each(before.0, after.0, pods), "");
    report(
        "control plane, memory",
        format!("{:.0} MB", after.0.resident),
        "",
    );
    report("simulator", each(before.1, after.1, pods), "");
    report(
        "simulator, memory",
        format!("{:.0} MB", after.1.resident),
        "",
    );
    Ok(())
}

pub fn seconds(begin: Instant) -> String {
    format!("{:.1} s", begin.elapsed().as_secs_f64())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|one| one["type"] == "Ready" && one["status"] == "True")
}

pub async fn wait_for(connection: &Connection, path: &str, wanted: usize) -> anyhow::Result<()> {
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

/// Waits until the node lifecycle controller has taken the taint from every node that a new one is given.
async fn wait_for_untainted(connection: &Connection, nodes: usize) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let (_, list) = connection
            .json(Method::GET, "/api/v1/nodes", &Value::Null)
            .await?;
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let free = items.iter().filter(|node| node["spec"]["taints"].is_null());
        let free = free.count();
        if free >= nodes {
            return Ok(());
        }
        anyhow::ensure!(begin.elapsed() < PATIENCE, "{free} of {nodes} nodes");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub async fn wait_for_service_account(connection: &Connection) -> anyhow::Result<()> {
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

/// Watches until so many pods are as wanted, and tells when the first was and when the last.
async fn count(
    connection: Connection,
    fields: &str,
    wanted: usize,
    counts: fn(&Value) -> bool,
) -> anyhow::Result<(Instant, Instant)> {
    let fields = fields.replace("!=", "%21%3D");
    let path = format!("{PODS}?watch=1&fieldSelector={fields}&timeoutSeconds=600");
    let mut body = connection
        .open(Method::GET, &path, &[], Bytes::new())
        .await?
        .into_body();
    let mut seen = std::collections::HashSet::new();
    let mut left = Vec::new();
    let mut first = None;
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
                first.get_or_insert_with(Instant::now);
                seen.insert(
                    event["object"]["metadata"]["name"]
                        .as_str()
                        .unwrap_or("")
                        .to_owned(),
                );
            }
        }
    }
    let last = Instant::now();
    Ok((first.unwrap_or(last), last))
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
