//! Times what the controllers keep on simulated nodes: a large Deployment and its rolling update, a namespace that goes
//! with everything in it, and what the control plane holds and does when 100,000 pods run.
//! `bench workloads [NODES] [REPLICAS] [PODS]`.

use std::time::{Duration, Instant};

use anyhow::Context;
use http::Method;
use serde_json::{Value, json};

use crate::report;
use crate::schedule::{Simulator, seconds, wait_for, wait_for_service_account};
use integration::connection::{Connection, Target};
use integration::process::{Server, Usage};

const CLIENTS: usize = 16;
/// Objects in the namespace that is deleted.
const OBJECTS: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(600);
/// How long the idle control plane's CPU is read, after what follows the last pod has calmed down.
const IDLE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(60));

pub async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let number = |index: usize, default: usize| {
        arguments.get(index).map_or(Ok(default), |text| {
            text.parse().context("NODES, REPLICAS and PODS are numbers")
        })
    };
    let (nodes, replicas, pods) = (number(0, 5_000)?, number(1, 5_000)?, number(2, 100_000)?);
    let server = Server::start(&[]).await?;
    let target = server.target()?;
    let connection = target.connect().await?;
    let simulator = Simulator::start(&server, nodes)?;
    wait_for(&connection, "/api/v1/nodes", nodes).await?;
    wait_for_service_account(&connection).await?;

    let begin = Instant::now();
    deploy(&connection, "first", replicas).await?;
    complete(&connection, "first", replicas).await?;
    report(
        &format!("Deployment of {replicas} all Ready, {nodes} nodes"),
        seconds(begin),
        "10 s",
    );
    let begin = Instant::now();
    update(&connection, "first").await?;
    complete(&connection, "first", replicas).await?;
    report("rolling update of it", seconds(begin), "");

    fill(&target, "crowded").await?;
    let begin = Instant::now();
    empty(&connection, "crowded").await?;
    report(
        &format!("namespace with {OBJECTS} objects gone"),
        seconds(begin),
        "",
    );

    let begin = Instant::now();
    let more = pods.saturating_sub(replicas) / replicas;
    for number in 0..more {
        deploy(&connection, &format!("more-{number}"), replicas).await?;
    }
    for number in 0..more {
        complete(&connection, &format!("more-{number}"), replicas).await?;
    }
    let all = (more + 1) * replicas;
    report(&format!("{all} pods Ready"), seconds(begin), "");
    let usage = server.usage()?;
    report(
        "control plane, memory",
        format!("{:.0} MB", usage.resident),
        "",
    );
    let usage = Usage::of(simulator.id())?;
    report("simulator, memory", format!("{:.0} MB", usage.resident), "");
    tokio::time::sleep(IDLE.0).await;
    let before = (server.usage()?, Usage::of(simulator.id())?);
    tokio::time::sleep(IDLE.1).await;
    let after = (server.usage()?, Usage::of(simulator.id())?);
    let share = |before: Usage, after: Usage| {
        let cores = (after.cpu - before.cpu) / IDLE.1.as_secs_f64();
        format!("{:.2} % of a core", cores * 100.0)
    };
    report(
        &format!("control plane, idle, {nodes} leases"),
        share(before.0, after.0),
        "",
    );
    report("simulator, idle", share(before.1, after.1), "");
    report(
        "control plane, memory, left alone",
        format!("{:.0} MB", after.0.resident),
        "",
    );
    Ok(())
}

fn path(name: &str) -> String {
    format!("/apis/apps/v1/namespaces/default/deployments/{name}")
}

async fn deploy(connection: &Connection, name: &str, replicas: usize) -> anyhow::Result<()> {
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{
                "name": "c", "image": "nginx:1.26",
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]}}},
    });
    let (status, answer) = connection
        .json(
            Method::POST,
            "/apis/apps/v1/namespaces/default/deployments",
            &body,
        )
        .await?;
    anyhow::ensure!(status == 201, "{status}: {answer}");
    Ok(())
}

/// Gives the Deployment another image, as `kubectl set image` does.
async fn update(connection: &Connection, name: &str) -> anyhow::Result<()> {
    let (_, mut deployment) = connection
        .json(Method::GET, &path(name), &Value::Null)
        .await?;
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:1.27");
    // Its controller writes the status meanwhile; without a version the last writer wins.
    deployment["metadata"]
        .as_object_mut()
        .context("no metadata")?
        .remove("resourceVersion");
    let (status, answer) = connection
        .json(Method::PUT, &path(name), &deployment)
        .await?;
    anyhow::ensure!(status == 200, "{status}: {answer}");
    Ok(())
}

/// Waits until the Deployment's status says what `kubectl rollout status` waits for, and that all are available.
async fn complete(connection: &Connection, name: &str, replicas: usize) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let (_, deployment) = connection
            .json(Method::GET, &path(name), &Value::Null)
            .await?;
        let status = &deployment["status"];
        let all = ["replicas", "updatedReplicas", "availableReplicas"]
            .iter()
            .all(|field| status[field].as_u64() == Some(replicas as u64));
        if all && status["observedGeneration"] == deployment["metadata"]["generation"] {
            return Ok(());
        }
        anyhow::ensure!(begin.elapsed() < PATIENCE, "{name}: {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Makes the namespace with its objects.
async fn fill(target: &Target, namespace: &'static str) -> anyhow::Result<()> {
    let connection = target.connect().await?;
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let (status, answer) = connection
        .json(Method::POST, "/api/v1/namespaces", &body)
        .await?;
    anyhow::ensure!(status == 201, "{status}: {answer}");
    let mut tasks = Vec::new();
    for client in 0..CLIENTS {
        let connection = target.connect().await?;
        tasks.push(tokio::spawn(async move {
            for number in (client..OBJECTS).step_by(CLIENTS) {
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": format!("map-{number}")}, "data": {"key": "value"}});
                let path = format!("/api/v1/namespaces/{namespace}/configmaps");
                let (status, answer) = connection.json(Method::POST, &path, &body).await?;
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

/// Deletes the namespace and waits until it is gone.
async fn empty(connection: &Connection, namespace: &str) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}");
    connection.json(Method::DELETE, &path, &Value::Null).await?;
    let begin = Instant::now();
    while connection.json(Method::GET, &path, &Value::Null).await?.0 != 404 {
        anyhow::ensure!(begin.elapsed() < PATIENCE, "{namespace} stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
