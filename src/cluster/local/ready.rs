//! Waits, by watching, until the API server answers and every node is Ready.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use apimachinery::Value;
use bytes::Bytes;
use client::config::Source;
use client::options::{DeleteOptions, ListOptions};
use client::{Client, ClientError, ConfigError, RestConfig, WatchEvent, WatchOptions};
use futures::StreamExt;
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::addons;
use super::state::{Cluster, NodeState};
use crate::kubeconfig::Entry;

/// Between two attempts while nothing can be watched yet.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the API server is not ready after {after:?}: {last}")]
    ApiServer { after: Duration, last: String },
    #[error("cannot write the DNS service: {0}")]
    Dns(ClientError),
    #[error("cannot remove nodes that are no more: {0}")]
    Forget(ClientError),
    #[error("{left} not Ready after {after:?}: {last}")]
    Nodes {
        left: String,
        after: Duration,
        last: String,
    },
}

/// A client for the administrator.
pub fn client(entry: &Entry) -> Result<Client, ReadyError> {
    let source = |text: &str| Some(Source::Data(text.as_bytes().to_vec()));
    let config = RestConfig {
        server: entry.server.clone(),
        ca: source(&entry.authority),
        client_certificate: source(&entry.certificate),
        client_key: source(&entry.key),
        ..RestConfig::default()
    };
    Ok(Client::connect(config)?.with_user_agent("skiff"))
}

/// Waits for `/readyz`. Connections are taken by the node's listening socket from the start, so the first one waits for
/// the server itself.
pub async fn api_server(client: &Client, patience: Duration) -> Result<(), ReadyError> {
    let deadline = Instant::now() + patience;
    loop {
        let last = match timeout_at(deadline, readyz(client)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => reason,
            Err(_) => "no answer".into(),
        };
        if Instant::now() >= deadline {
            return Err(ReadyError::ApiServer {
                after: patience,
                last,
            });
        }
        sleep(AGAIN).await;
    }
}

async fn readyz(client: &Client) -> Result<(), String> {
    let request = http::Request::get("/readyz")
        .body(Bytes::new())
        .map_err(|error| error.to_string())?;
    let response = client
        .raw(request)
        .await
        .map_err(|error| error.to_string())?;
    if response.status().is_success() {
        return Ok(());
    }
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    Err(format!(
        "{status}: {}",
        String::from_utf8_lossy(&body).trim()
    ))
}

/// Writes the objects of the DNS service and the storage class, retried while the server settles.
pub async fn dns(client: &Client, address: Option<Ipv4Addr>) -> Result<(), ReadyError> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let Some(address) = address else {
        return Ok(());
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let written = async {
            addons::dns(client, address).await?;
            addons::storage(client).await
        };
        match written.await {
            Ok(()) => return Ok(()),
            // Its namespace may be a moment late, and so may the rights to write there.
            Err(error) if settles(&error) && Instant::now() < deadline => sleep(AGAIN).await,
            Err(error) => return Err(ReadyError::Dns(error)),
        }
    }
}

/// Takes workers that the cluster has no more out of the API; what is left on them is collected then.
pub async fn forget_lost(client: &Client, cluster: &Cluster) -> Result<(), ReadyError> {
    let options = ListOptions::default();
    let found = client.list_all::<Value>(&api::r::NODES, "", &options);
    for node in found.await.map_err(ReadyError::Forget)?.items {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        if !cluster.lost_worker(name) {
            continue;
        }
        let options = DeleteOptions::default();
        match client.delete(&api::r::NODES, "", name, &options).await {
            Err(error) if !error.is_not_found() => return Err(ReadyError::Forget(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a server that has just started may answer otherwise soon.
fn settles(error: &ClientError) -> bool {
    error.is_transient() || error.is_not_found() || error.is_forbidden()
}

/// Watches the nodes until each of `nodes` is Ready, and gives each its role and range as soon as it appears.
/// `waiting` hears who is still missing.
pub async fn nodes(
    client: &Client,
    nodes: &[NodeState],
    patience: Duration,
    waiting: &dyn Fn(&[String]),
) -> Result<(), ReadyError> {
    let mut left: BTreeMap<String, String> = nodes
        .iter()
        .map(|node| (node.name.clone(), "it has not registered".into()))
        .collect();
    let watched = timeout(patience, async {
        while !left.is_empty() {
            if let Err(error) = watch(client, nodes, &mut left, waiting).await {
                tracing::debug!(%error, "The watch of the nodes ended");
                sleep(AGAIN).await;
            }
        }
    });
    if watched.await.is_ok() {
        return Ok(());
    }
    let names: Vec<&str> = left.keys().map(String::as_str).collect();
    let last = left
        .iter()
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect::<Vec<_>>()
        .join("; ");
    Err(ReadyError::Nodes {
        left: names.join(", "),
        after: patience,
        last,
    })
}

async fn watch(
    client: &Client,
    nodes: &[NodeState],
    left: &mut BTreeMap<String, String>,
    waiting: &dyn Fn(&[String]),
) -> Result<(), ClientError> {
    let mut events = client
        .watch::<Value>(&api::r::NODES, "", &WatchOptions::default())
        .await?;
    while !left.is_empty() {
        let Some(event) = events.next().await else {
            return Ok(());
        };
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event? else {
            continue;
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let Some(node) = nodes.iter().find(|node| node.name == name) else {
            continue;
        };
        addons::node(client, node, &object).await?;
        match not_ready(&object) {
            None => drop(left.remove(name)),
            Some(reason) => {
                if let Some(last) = left.get_mut(name) {
                    *last = reason;
                }
            }
        }
        waiting(&left.keys().cloned().collect::<Vec<_>>());
    }
    Ok(())
}

/// Why a node is not Ready, or `None`. One that still carries the taint of a new node takes no pods.
fn not_ready(node: &Value) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.and_then(|conditions| {
        conditions
            .iter()
            .find(|condition| condition["type"] == "Ready")
    });
    match ready {
        Some(condition) if condition["status"] == "True" => None,
        Some(condition) => Some(
            condition["message"]
                .as_str()
                .unwrap_or("its Ready condition is not True")
                .to_string(),
        ),
        None => Some("it has no Ready condition".into()),
    }
}
