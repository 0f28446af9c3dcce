//! The workload controllers killed at random moments while everything changes, against a server in memory that loses
//! answers, fails, breaks watches and is always late in telling of pods: what is left in the end must be exactly what is wanted.

use std::{collections::BTreeMap, time::Duration};

use api::r::{DAEMONSETS, DEPLOYMENTS, JOBS, NODES, PODS, REPLICASETS, STATEFULSETS};
use apimachinery::{Value, meta, status::Status};
use client::fake::Server;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Rounds; `SKIFF_CHAOS_ROUNDS` sets others.
const ROUNDS: u64 = 10;
/// Changes and faults in each round.
const STEPS: usize = 12;
/// The most replicas that are ever asked for, and how many pods of a Job may run at a time.
const MOST_REPLICAS: usize = 6;
const PARALLELISM: usize = 3;
const NODE_NAMES: [&str; 3] = ["n1", "n2", "n3"];

fn labels(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

fn template(name: &str, image: u32) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": image.to_string()}]}})
}

fn meta_of(name: &str) -> Value {
    json!({"name": name, "namespace": "default", "uid": name, "generation": 1})
}

fn set_up(server: &Server) {
    for name in NODE_NAMES {
        server.put(&NODES, json!({"metadata": {"name": name}}));
    }
    server.put(&DEPLOYMENTS, json!({"metadata": meta_of("web"), "spec": {
        "replicas": 3, "selector": labels("web"), "template": template("web", 0), "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}}}));
    server.put(
        &REPLICASETS,
        json!({"metadata": meta_of("solo"), "spec": {
        "replicas": 4, "selector": labels("solo"), "template": template("solo", 0)}}),
    );
    server.put(
        &STATEFULSETS,
        json!({"metadata": meta_of("db"), "spec": {
        "replicas": 2, "serviceName": "db", "selector": labels("db"), "template": template("db", 0),
        "updateStrategy": {"type": "RollingUpdate"}}}),
    );
    server.put(
        &DAEMONSETS,
        json!({"metadata": meta_of("ds"), "spec": {
        "selector": labels("ds"), "template": template("ds", 0),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}}),
    );
}

/// A Job of this round.
fn add_job(server: &Server, round: u64) {
    let name = format!("job{round}");
    let mode = if round % 2 == 0 {
        "Indexed"
    } else {
        "NonIndexed"
    };
    server.put(
        &JOBS,
        json!({"metadata": meta_of(&name), "spec": {
        "completions": 5, "parallelism": PARALLELISM, "completionMode": mode, "backoffLimit": 1000,
        "selector": labels(&name), "template": template(&name, 0)}}),
    );
}

/// What kubelets do: pods start, those of Jobs end well, deleted ones go.
fn kubelets(server: &Server) {
    for mut pod in server.list(&PODS) {
        if meta::is_deleting(&pod) {
            pod["status"]["phase"] = json!("Failed");
            let key = meta::key(&pod);
            if meta::finalizers(&pod).next().is_none() {
                server.remove(&PODS, &key);
            } else if pod != server.get(&PODS, &key).unwrap_or_default() {
                server.put(&PODS, pod);
            }
            continue;
        }
        if !pod["status"]["phase"].is_null() {
            continue;
        }
        if pod["spec"]["nodeName"].is_null() {
            let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            let named = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0].clone();
            pod["spec"]["nodeName"] = if named.is_null() { json!("n1") } else { named };
        }
        let of_job = meta::label(&pod, "app").is_some_and(|app| app.starts_with("job"));
        pod["status"] = if of_job {
            json!({"phase": "Succeeded"})
        } else {
            json!({"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        server.put(&PODS, pod);
    }
}

/// Runs the kubelets for some simulated time.
async fn let_run(server: &Server, time: Duration) {
    const TICK: Duration = Duration::from_millis(100);
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(TICK);
        tokio::time::sleep(step).await;
        kubelets(server);
        never_too_many(server);
        left -= step;
    }
}

/// At no moment are there more pods than were ever wanted, not even for a while.
fn never_too_many(server: &Server) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for pod in server.list(&PODS) {
        let ended = matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        if let Some(app) = meta::label(&pod, "app").filter(|_| !ended && !meta::is_deleting(&pod)) {
            *counts.entry(app.into()).or_default() += 1;
        }
    }
    for (app, count) in counts {
        let most = match app.as_str() {
            "solo" => MOST_REPLICAS,
            job if job.starts_with("job") => PARALLELISM,
            _ => continue,
        };
        assert!(
            count <= most,
            "{app} has {count} pods, {most} were wanted at most"
        );
    }
}

fn change(server: &Server, resource: &api::Resource, name: &str, change: impl FnOnce(&mut Value)) {
    let Some(mut object) = server.get(resource, &format!("default/{name}")) else {
        return;
    };
    change(&mut object);
    server.put(resource, object);
}

fn step(server: &Server, random: &mut StdRng) {
    let replicas = json!(random.random_range(0..=MOST_REPLICAS));
    let image = json!(random.random_range(1..9).to_string());
    let set_image = |object: &mut Value| {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = image.clone();
    };
    let set_replicas = |object: &mut Value| object["spec"]["replicas"] = replicas.clone();
    match random.random_range(0..11) {
        0 => change(server, &DEPLOYMENTS, "web", set_replicas),
        1 => change(server, &DEPLOYMENTS, "web", set_image),
        2 => change(server, &REPLICASETS, "solo", set_replicas),
        3 => change(server, &STATEFULSETS, "db", set_replicas),
        4 => change(server, &STATEFULSETS, "db", set_image),
        5 => change(server, &DAEMONSETS, "ds", set_image),
        6 => {
            let pods = server.list(&PODS);
            if !pods.is_empty() {
                let pod = &pods[random.random_range(0..pods.len())];
                if meta::finalizers(pod).next().is_none() {
                    server.remove(&PODS, &meta::key(pod));
                }
            }
        }
        7 => server.break_watches(),
        8 => server.lose_next(http::Method::POST, "/pods"),
        9 => server.fail_next(http::Method::PUT, "/status", Status::internal("a fault")),
        _ => server.fail_next(http::Method::PATCH, "/pods", Status::internal("a fault")),
    }
}

/// The pods with this label that run.
fn running(server: &Server, app: &str) -> Vec<Value> {
    let mut pods = server.list(&PODS);
    pods.retain(|pod| meta::label(pod, "app") == Some(app) && !meta::is_deleting(pod));
    pods
}

fn images(pods: &[Value]) -> Vec<&Value> {
    pods.iter()
        .map(|pod| &pod["spec"]["containers"][0]["image"])
        .collect()
}

fn check(server: &Server, round: u64) {
    let get = |resource: &api::Resource, name: &str| {
        server.get(resource, &format!("default/{name}")).unwrap()
    };
    let wanted =
        |object: &Value| usize::try_from(object["spec"]["replicas"].as_i64().unwrap()).unwrap();
    let image_of =
        |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    for (resource, name) in [
        (&DEPLOYMENTS, "web"),
        (&REPLICASETS, "solo"),
        (&STATEFULSETS, "db"),
    ] {
        let object = get(resource, name);
        let pods = running(server, name);
        assert_eq!(pods.len(), wanted(&object), "round {round}: {name}");
        if name != "solo" {
            let image = image_of(&object);
            assert!(
                images(&pods).iter().all(|one| **one == image),
                "round {round}: {name} has old pods"
            );
        }
    }
    let mut names: Vec<String> = running(server, "db")
        .iter()
        .map(|pod| meta::name(pod).to_string())
        .collect();
    names.sort();
    let expected: Vec<String> = (0..names.len())
        .map(|ordinal| format!("db-{ordinal}"))
        .collect();
    assert_eq!(names, expected, "round {round}");
    let daemons = running(server, "ds");
    let mut nodes: Vec<&str> = daemons
        .iter()
        .filter_map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    nodes.sort_unstable();
    assert_eq!(nodes, NODE_NAMES, "round {round}");
    let image = image_of(&get(&DAEMONSETS, "ds"));
    assert!(
        images(&daemons).iter().all(|one| **one == image),
        "round {round}: old daemons"
    );
    let job = get(&JOBS, &format!("job{round}"));
    assert_eq!(
        job["status"]["succeeded"], 5,
        "round {round}: {}",
        job["status"]
    );
    let conditions = job["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().any(|one| one["type"] == "Complete"),
        "round {round}"
    );
    let tracked = server
        .list(&PODS)
        .into_iter()
        .find(|pod| meta::finalizers(pod).next().is_some());
    assert!(tracked.is_none(), "round {round}: {tracked:?}");
}

#[tokio::test(start_paused = true)]
async fn killed_at_any_moment_the_controllers_leave_no_pod_too_many_and_none_missing() {
    let server = Server::default();
    // Pods are seen later than what owns them: every look at a set just written to is at old pods.
    server.set_lag(&PODS, Duration::from_millis(150));
    set_up(&server);
    let mut random = StdRng::seed_from_u64(4);
    let start = || {
        let config = crate::ControllersConfig {
            controllers: [
                "replicaset",
                "deployment",
                "statefulset",
                "daemonset",
                "job",
            ]
            .map(String::from)
            .into(),
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        tokio::spawn(crate::run(
            server.client(),
            config,
            CancellationToken::new(),
        ))
    };
    let rounds = std::env::var("SKIFF_CHAOS_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for round in 0..rounds.unwrap_or(ROUNDS) {
        add_job(&server, round);
        for _ in 0..STEPS {
            let work = start();
            let_run(&server, Duration::from_millis(random.random_range(0..400))).await;
            step(&server, &mut random);
            let_run(&server, Duration::from_millis(random.random_range(0..200))).await;
            // Not asked to end: killed.
            work.abort();
        }
        server.clear_faults();
        let work = start();
        let_run(&server, Duration::from_secs(30)).await;
        check(&server, round);
        work.abort();
        server.remove(&JOBS, &format!("default/job{round}"));
        for pod in server.list(&PODS) {
            if meta::label(&pod, "app").is_some_and(|app| app.starts_with("job")) {
                server.remove(&PODS, &meta::key(&pod));
            }
        }
        server.forget_requests();
        server.compact();
    }
}
