//! Extenders over real sockets, and the scheduler with them against an API server in memory.

use std::sync::Arc;

use api::r::{EVENTS, NODES, PODS};
use client::fake::Server;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::{
    SchedulerConfig,
    cluster::testing::{mk_node, mk_pod, on},
};

type Answer = fn(&str, &Value) -> (u16, Value);

/// A program that answers POSTs, and what it was asked: paths and bodies.
struct Program {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Program {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ext", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let seen = seen.clone();
                tokio::spawn(async move {
                    let (path, body) = read(&mut stream).await;
                    let (code, answer) = answer(&path, &body);
                    seen.lock().push((path, body));
                    let text = answer.to_string();
                    let head = format!(
                        "HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n",
                        text.len()
                    );
                    stream.write_all((head + &text).as_bytes()).await.unwrap();
                });
            }
        });
        Program { url, asked }
    }

    fn asked(&self, verb: &str) -> Vec<Value> {
        let path = format!("/ext/{verb}");
        self.asked
            .lock()
            .iter()
            .filter(|(one, _)| *one == path)
            .map(|(_, body)| body.clone())
            .collect()
    }
}

/// The path and the body of one request.
async fn read(stream: &mut tokio::net::TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap();
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")?
                .parse::<usize>()
                .ok()
        });
        if body.len() >= length.unwrap_or(0) {
            let path = head.split(' ').nth(1).unwrap_or("").to_string();
            return (path, serde_json::from_str(body).unwrap_or_default());
        }
    }
}

fn run(server: &Server, extenders: Vec<ExtenderConfig>) -> DropGuard {
    let shutdown = CancellationToken::new();
    let config = SchedulerConfig {
        extenders,
        leader_elect: false,
        ..SchedulerConfig::default()
    };
    tokio::spawn(crate::run(server.client(), config, shutdown.clone()));
    shutdown.drop_guard()
}

/// Waits for something to be so, in real time.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} did not come about");
}

fn node_of(server: &Server, pod: &str) -> Option<String> {
    let pod = server.get(&PODS, &format!("default/{pod}"))?;
    Some(pod["spec"]["nodeName"].as_str()?.into())
}

fn said(server: &Server, part: &str) -> bool {
    server.list(&EVENTS).iter().any(|event| {
        event["message"]
            .as_str()
            .is_some_and(|text| text.contains(part))
    })
}

fn allows_all_but_a(path: &str, body: &Value) -> (u16, Value) {
    (
        200,
        match path {
            "/ext/filter" => {
                let names = body["NodeNames"].as_array().unwrap();
                let left: Vec<_> = names.iter().filter(|name| **name != "a").collect();
                json!({"NodeNames": left, "FailedNodes": {"a": "extender says no"}})
            }
            "/ext/prioritize" => json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 10}]),
            _ => json!({}),
        },
    )
}

#[tokio::test]
async fn nodes_are_filtered_and_scored_and_the_pod_bound_by_an_extender() {
    let program = Program::start(allows_all_but_a).await;
    let server = Server::default();
    for name in ["a", "b", "c"] {
        server.put(&NODES, mk_node(name));
    }
    let extender = ExtenderConfig {
        url_prefix: program.url.clone(),
        filter_verb: "filter".into(),
        prioritize_verb: "prioritize".into(),
        bind_verb: "bind".into(),
        weight: 100,
        node_cache_capable: true,
        ..ExtenderConfig::default()
    };
    let _guard = run(&server, vec![extender]);
    server.put(&PODS, mk_pod("p"));
    until("binding", || !program.asked("bind").is_empty()).await;
    let bound = json!({"PodName": "p", "PodNamespace": "default", "PodUID": "p", "Node": "c"});
    assert_eq!(program.asked("bind"), [bound]);
    assert_eq!(program.asked("filter")[0]["Pod"]["metadata"]["name"], "p");
    assert_eq!(program.asked("filter")[0]["Nodes"], Value::Null);
    let mut scored = program.asked("prioritize")[0]["NodeNames"]
        .as_array()
        .unwrap()
        .clone();
    scored.sort_by_key(|name| name.as_str().map(String::from));
    assert_eq!(scored, ["b", "c"]);
    assert!(server.requests_of("POST", "/binding").is_empty());
}

#[tokio::test]
async fn an_extender_without_a_cache_gets_whole_nodes_and_only_pods_of_its_resources() {
    let program = Program::start(|_, body| {
        let items = body["Nodes"]["items"].as_array().unwrap();
        let left: Vec<_> = items
            .iter()
            .filter(|node| node["metadata"]["name"] == "b")
            .collect();
        (
            200,
            json!({"nodes": {"items": left}, "failedNodes": {"a": "no device"}}),
        )
    })
    .await;
    let server = Server::default();
    let big = |name: &str| {
        let mut node = mk_node(name);
        node["status"]["allocatable"]["example.com/gpu"] = json!("4");
        node
    };
    for name in ["a", "b"] {
        server.put(&NODES, big(name));
    }
    let extender = ExtenderConfig {
        url_prefix: program.url.clone(),
        filter_verb: "filter".into(),
        managed_resources: vec![ManagedResource {
            name: "example.com/gpu".into(),
            ignored_by_scheduler: false,
        }],
        ..ExtenderConfig::default()
    };
    let _guard = run(&server, vec![extender]);
    server.put(&PODS, mk_pod("plain"));
    until("plain", || node_of(&server, "plain").is_some()).await;
    assert!(program.asked("filter").is_empty());
    let mut pod = mk_pod("gpu");
    pod["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
    server.put(&PODS, pod);
    until("gpu", || node_of(&server, "gpu").is_some()).await;
    assert_eq!(node_of(&server, "gpu").unwrap(), "b");
}

#[tokio::test]
async fn a_pod_no_extender_allows_is_told_in_its_words() {
    let program = Program::start(|_, _| {
        (
            200,
            json!({"NodeNames": [], "FailedNodes": {"a": "extender says no"}}),
        )
    })
    .await;
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    let extender = ExtenderConfig {
        url_prefix: program.url.clone(),
        filter_verb: "filter".into(),
        node_cache_capable: true,
        ..ExtenderConfig::default()
    };
    let _guard = run(&server, vec![extender]);
    server.put(&PODS, mk_pod("p"));
    until("event", || {
        said(&server, "0/1 nodes are available: 1 extender says no.")
    })
    .await;
    assert!(node_of(&server, "p").is_none());
}

#[tokio::test]
async fn an_extender_that_fails_stops_the_pod_unless_it_is_ignorable() {
    let program = Program::start(|_, _| (500, json!({}))).await;
    for is_ignorable in [true, false] {
        let server = Server::default();
        server.put(&NODES, mk_node("a"));
        let extender = ExtenderConfig {
            url_prefix: program.url.clone(),
            filter_verb: "filter".into(),
            node_cache_capable: true,
            ignorable: is_ignorable,
            ..ExtenderConfig::default()
        };
        let _guard = run(&server, vec![extender]);
        server.put(&PODS, mk_pod("p"));
        if is_ignorable {
            until("node", || node_of(&server, "p").is_some()).await;
        } else {
            until("event", || said(&server, "failed with code 500")).await;
            assert!(node_of(&server, "p").is_none());
        }
    }
}

#[tokio::test]
async fn an_extender_decides_from_which_node_pods_are_evicted() {
    let program = Program::start(|_, body| {
        let b = &body["NodeNameToMetaVictims"]["b"];
        assert_eq!(b["Pods"].as_array().unwrap().len(), 1);
        (200, json!({"NodeNameToMetaVictims": {"b": b}}))
    })
    .await;
    let server = Server::default();
    let big = |name: &str| {
        let mut pod = mk_pod(name);
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
        pod
    };
    for name in ["a", "b"] {
        server.put(&NODES, mk_node(name));
        server.put(&PODS, on(big(&format!("on-{name}")), name));
    }
    let extender = ExtenderConfig {
        url_prefix: program.url.clone(),
        preempt_verb: "preempt".into(),
        node_cache_capable: true,
        ..ExtenderConfig::default()
    };
    let _guard = run(&server, vec![extender]);
    let mut important = big("important");
    important["spec"]["priority"] = json!(1000);
    server.put(&PODS, important);
    until("eviction", || {
        let victim = server.get(&PODS, "default/on-b");
        victim.is_none_or(|victim| victim["metadata"]["deletionTimestamp"].is_string())
    })
    .await;
    let spared = server.get(&PODS, "default/on-a").unwrap();
    assert!(spared["metadata"]["deletionTimestamp"].is_null());
    let asked = program.asked("preempt");
    assert_eq!(
        asked[0]["NodeNameToMetaVictims"]["a"]["Pods"][0]["UID"],
        "on-a"
    );
}
