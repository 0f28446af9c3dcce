//! Drives one API server with 10,000 pods of about 4.5 KB and prints what each operation costs the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;

use crate::{percentile, report};
use integration::connection::{Connection, Target};
use integration::process::Server;

const PODS: usize = 10_000;
/// How long a server is left alone before its memory is read for the last time.
const SETTLE: Duration = Duration::from_secs(15);
const PATH: &str = "/api/v1/namespaces/default/pods";
const JSON: (&str, &str) = ("content-type", "application/json");

/// Arguments are handed to `skiff server` (`--etcd-servers …`).
pub async fn measure(extra: &[String]) -> anyhow::Result<()> {
    // Pods must stay as they are: no scheduler, no controller.
    let mut arguments = vec![
        "--controllers=-*".to_owned(),
        "--disable-scheduler".to_owned(),
    ];
    arguments.extend_from_slice(extra);
    let server = Server::start(&arguments).await?;
    let target = server.target()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    wait_for_service_account(&target).await?;

    let create = |index: usize| {
        (
            Method::POST,
            PATH.to_owned(),
            vec![JSON],
            Bytes::from(pod(index)),
        )
    };
    load(
        &server,
        &target,
        "create, 1 client",
        "200 µs",
        1,
        0..1_000,
        create,
    )
    .await?;
    load(
        &server,
        &target,
        "create, 32 clients",
        "200 µs",
        32,
        1_000..PODS,
        create,
    )
    .await?;
    memory(&server, "memory with 10,000 pods, created")?;
    let get = |index: usize| {
        (
            Method::GET,
            format!("{PATH}/pod-{}", index % PODS),
            vec![],
            Bytes::new(),
        )
    };
    load(&server, &target, "get, 1 client", "60 µs", 1, 0..5_000, get).await?;
    load(
        &server,
        &target,
        "get, 32 clients",
        "60 µs",
        32,
        0..30_000,
        get,
    )
    .await?;
    let patch = |index: usize| {
        let body = format!(r#"{{"metadata":{{"labels":{{"round":"{index}"}}}}}}"#);
        let headers = vec![("content-type", "application/merge-patch+json")];
        (
            Method::PATCH,
            format!("{PATH}/pod-{index}"),
            headers,
            Bytes::from(body),
        )
    };
    load(
        &server,
        &target,
        "merge patch, 32 clients",
        "300 µs",
        32,
        0..5_000,
        patch,
    )
    .await?;
    memory(&server, "memory with 10,000 pods, changed")?;
    lists(&server, &target).await?;
    memory(&server, "memory with 10,000 pods, listed")?;
    watches(&server, &target, 200, 100).await?;
    watches(&server, &target, 1_000, 50).await?;
    memory(&server, "memory with 10,000 pods, after all of it")?;
    tokio::time::sleep(SETTLE).await;
    memory(&server, "memory with 10,000 pods, left alone")?;
    let delete = |index: usize| {
        (
            Method::DELETE,
            format!("{PATH}/pod-{index}"),
            vec![],
            Bytes::new(),
        )
    };
    load(
        &server,
        &target,
        "delete, 32 clients",
        "",
        32,
        0..PODS,
        delete,
    )
    .await?;
    Ok(())
}

fn memory(server: &Server, what: &str) -> anyhow::Result<()> {
    let resident = server.usage()?.resident;
    report(what, format!("{resident:.0} MB"), "140 MB");
    Ok(())
}

type Call = (Method, String, Vec<(&'static str, &'static str)>, Bytes);

/// Pods need their namespace's service account, which a controller makes; here nobody does.
async fn wait_for_service_account(target: &Target) -> anyhow::Result<()> {
    let connection = target.connect().await?;
    let body = r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}"#;
    let made = connection
        .call(
            Method::POST,
            "/api/v1/namespaces/default/serviceaccounts",
            &[JSON],
            body.into(),
        )
        .await;
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.to_string().contains("AlreadyExists") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Runs `call` for each index, spread over `clients` connections, and reports rate, latency and server CPU.
async fn load(
    server: &Server,
    target: &Target,
    what: &str,
    budget: &str,
    clients: usize,
    range: std::ops::Range<usize>,
    call: impl Fn(usize) -> Call + Copy + Send + 'static,
) -> anyhow::Result<()> {
    let total = range.len();
    let next = Arc::new(AtomicUsize::new(range.start));
    let end = range.end;
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(target.connect().await?);
    }
    let before = server.usage()?;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for connection in connections {
        let next = next.clone();
        tasks.push(tokio::spawn(async move {
            let mut samples = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= end {
                    return Ok::<_, anyhow::Error>(samples);
                }
                let (method, path, headers, body) = call(index);
                let begun = Instant::now();
                connection.call(method, &path, &headers, body).await?;
                samples.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }));
    }
    let mut samples = Vec::new();
    for task in tasks {
        samples.extend(task.await??);
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu = (server.usage()?.cpu - before.cpu) / total as f64 * 1e6;
    let figure = format!("{cpu:.0} µs CPU, {:.0}/s", total as f64 / seconds);
    report(what, figure, budget);
    println!(
        "{:<44} p50 {:.0} µs, p99 {:.0} µs",
        "",
        percentile(&mut samples, 0.5),
        percentile(&mut samples, 0.99)
    );
    Ok(())
}

/// Lists of everything, in each form.
async fn lists(server: &Server, target: &Target) -> anyhow::Result<()> {
    let connection = target.connect().await?;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let protobuf = "application/vnd.kubernetes.protobuf";
    let forms: [(&str, &str, &[(&str, &str)]); 5] = [
        ("list JSON, cached", "?resourceVersion=0", &[]),
        ("list JSON, consistent", "", &[]),
        ("list protobuf", "", &[("accept", protobuf)]),
        ("list Table", "", &[("accept", table)]),
        ("list JSON, gzip", "", &[("accept-encoding", "gzip")]),
    ];
    for (what, query, headers) in forms {
        let rounds = 5;
        let mut samples = Vec::new();
        let mut length = 0;
        let before = server.usage()?;
        for _ in 0..rounds {
            let begun = Instant::now();
            length = connection
                .call(
                    Method::GET,
                    &format!("{PATH}{query}"),
                    headers,
                    Bytes::new(),
                )
                .await?;
            samples.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        let cpu = (server.usage()?.cpu - before.cpu) / f64::from(rounds) * 1e3;
        let budget = if what.contains("JSON,") && !what.contains("gzip") {
            "60 ms for 45 MB"
        } else {
            ""
        };
        let size = length as f64 / 1e6;
        let wall = percentile(&mut samples, 0.5);
        report(
            what,
            format!("{cpu:.0} ms CPU, {wall:.0} ms, {size:.1} MB"),
            budget,
        );
    }
    Ok(())
}

/// `watchers` watches of everything, each seeing `changes` patches; the patches' own cost is measured first.
async fn watches(
    server: &Server,
    target: &Target,
    watchers: usize,
    changes: usize,
) -> anyhow::Result<()> {
    let writer = target.connect().await?;
    let before = server.usage()?;
    patch_all(&writer, changes).await?;
    let alone = server.usage()?.cpu - before.cpu;

    let seen = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    let mut connection = target.connect().await?;
    for index in 0..watchers {
        if index % 100 == 0 {
            connection = target.connect().await?;
        }
        tasks.push(tokio::spawn(one_watch(connection.clone(), seen.clone())));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = server.usage()?;
    let started = Instant::now();
    patch_all(&writer, changes).await?;
    while seen.load(Ordering::Relaxed) < watchers * changes
        && started.elapsed() < Duration::from_secs(60)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let cpu = (server.usage()?.cpu - before.cpu - alone) / (watchers * changes) as f64 * 1e6;
    let delivered = seen.load(Ordering::Relaxed);
    let rate = delivered as f64 / started.elapsed().as_secs_f64();
    report(
        &format!("delivery to {watchers} watchers"),
        format!("{cpu:.1} µs CPU, {rate:.0}/s"),
        "4 µs",
    );
    for task in tasks {
        task.abort();
    }
    anyhow::ensure!(
        delivered == watchers * changes,
        "{delivered} of {} events were delivered",
        watchers * changes
    );
    Ok(())
}

async fn patch_all(connection: &Connection, changes: usize) -> anyhow::Result<()> {
    let headers = [("content-type", "application/merge-patch+json")];
    for index in 0..changes {
        let stamp = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_nanos();
        let body = format!(r#"{{"metadata":{{"labels":{{"stamp":"{stamp}"}}}}}}"#);
        connection
            .call(
                Method::PATCH,
                &format!("{PATH}/pod-{index}"),
                &headers,
                body.into(),
            )
            .await?;
    }
    Ok(())
}

/// Counts the events of one watch; each ends with a newline.
async fn one_watch(connection: Connection, seen: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let path = format!(
        "{PATH}?watch=1&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut body = connection
        .open(Method::GET, &path, &[], Bytes::new())
        .await?
        .into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let events = data.iter().filter(|byte| **byte == b'\n').count();
            seen.fetch_add(events, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// A pod as a busy cluster has them, about 4.5 KB once stored.
fn pod(index: usize) -> String {
    let environment: Vec<String> = (0..12)
        .map(|n| format!(r#"{{"name":"SETTING_{n}","value":"a value that is as long as values tend to be, number {n}"}}"#))
        .collect();
    let container = |name: &str| {
        format!(
            r#"{{"name":"{name}","image":"registry.example/team/application:1.2.3","args":["--verbose","--listen=:8080"],"env":[{}],"ports":[{{"containerPort":8080,"name":"http"}}],"resources":{{"requests":{{"cpu":"10m","memory":"16Mi"}},"limits":{{"memory":"64Mi"}}}},"readinessProbe":{{"httpGet":{{"path":"/ready","port":8080}}}}}}"#,
            environment.join(",")
        )
    };
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"pod-{index}","labels":{{"app":"bench","shard":"{}"}},"annotations":{{"example.com/checksum":"{index:064}"}}}},"spec":{{"containers":[{}]}}}}"#,
        index % 16,
        container("main")
    )
}
