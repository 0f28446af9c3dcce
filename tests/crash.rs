//! `kill -9` of the server under writes: nothing acknowledged is lost, and a watch over it all has no gap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use integration::connection::Target;
use integration::process::{self, Server};
use serde_json::{Value, json};

const ROUNDS: usize = 20;
const WRITERS: usize = 4;
const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// Writes until told to stop or the server is gone; gives name → resourceVersion of what was acknowledged.
async fn write(
    target: Target,
    round: usize,
    writer: usize,
    stop: Arc<AtomicBool>,
) -> BTreeMap<String, u64> {
    let mut acknowledged = BTreeMap::new();
    let Ok(connection) = target.connect().await else {
        return acknowledged;
    };
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("r{round}-w{writer}-{number}");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": name}});
        match connection.json(Method::POST, PATH, &body).await {
            Ok((201, object)) => acknowledged.insert(name, version(&object)),
            Ok((status, answer)) => panic!("{status}: {answer}"),
            Err(_) => break,
        };
        number += 1;
    }
    acknowledged
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a resourceVersion")
}

/// Every ADDED after `from`, in order, until one is at or past `until`.
async fn watch(target: &Target, from: u64, until: u64) -> anyhow::Result<Vec<(String, u64)>> {
    let connection = target.connect().await?;
    let path = format!("{PATH}?watch=1&resourceVersion={from}&timeoutSeconds=30");
    let mut body = connection
        .open(Method::GET, &path, &[], Bytes::new())
        .await?
        .into_body();
    let mut pending = Vec::new();
    let mut seen = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        pending.extend_from_slice(&data);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line)?;
            anyhow::ensure!(event["type"] == "ADDED", "unexpected {event}");
            let name = event["object"]["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            seen.push((name, version(&event["object"])));
            if seen.last().is_some_and(|(_, version)| *version >= until) {
                return Ok(seen);
            }
        }
    }
    anyhow::bail!(
        "the watch from {from} ended before {until}; it saw {} events",
        seen.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_and_no_watch_has_a_gap_over_twenty_kills() {
    process::install_crypto();
    let quiet = [
        "--controllers=-*".to_owned(),
        "--disable-scheduler".to_owned(),
    ];
    let mut server = Server::start(&quiet).await.expect("a server");
    let (status, list) = server
        .connect()
        .await
        .json(Method::GET, PATH, &Value::Null)
        .await
        .expect("a list");
    assert_eq!(status, 200, "{list}");
    let mut from = version(&list);
    let mut everything = BTreeMap::new();

    for round in 0..ROUNDS {
        let stop = Arc::new(AtomicBool::new(false));
        let target = server.target().expect("certificates");
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write(target.clone(), round, writer, stop.clone())))
            .collect();
        tokio::time::sleep(Duration::from_millis(40 + (round as u64 * 37) % 160)).await;
        let folder = server.kill().expect("a dead server");
        stop.store(true, Ordering::Relaxed);
        let mut acknowledged = BTreeMap::new();
        for writer in writers {
            acknowledged.extend(writer.await.expect("a writer"));
        }
        assert!(!acknowledged.is_empty(), "round {round} wrote nothing");

        server = Server::start_in(folder, &quiet)
            .await
            .expect("a server again");
        let last = acknowledged.values().copied().max().unwrap_or(from);
        let seen = watch(&server.target().expect("certificates"), from, last)
            .await
            .expect("a watch");
        assert!(
            seen.windows(2).all(|pair| pair[0].1 < pair[1].1),
            "round {round} was out of order"
        );
        let seen: BTreeMap<String, u64> = seen.into_iter().collect();
        for (name, version) in &acknowledged {
            assert_eq!(
                seen.get(name),
                Some(version),
                "round {round}: {name} was acknowledged, the watch differs"
            );
        }
        everything.extend(acknowledged);
        // What was on its way when the server died may have been written too: go on from what there is now.
        let (_, list) = server
            .connect()
            .await
            .json(Method::GET, PATH, &Value::Null)
            .await
            .expect("a list");
        from = version(&list);
        let stored: BTreeMap<String, u64> = list["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| {
                (
                    item["metadata"]["name"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    version(item),
                )
            })
            .collect();
        for (name, version) in &everything {
            assert_eq!(
                stored.get(name),
                Some(version),
                "round {round}: {name} is lost"
            );
        }
    }
    println!("{} acknowledged writes, {ROUNDS} kills", everything.len());
}
