//! What the tests of components ask with: requests as client-go makes them, which panic where nothing is answered.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::process::{self, Server};
use crate::wire::{self, Frames};

const STRATEGIC: &[(&str, &str)] = &[("content-type", "application/strategic-merge-patch+json")];
/// How an informer begins (KEP-3157).
pub const LIST_BY_WATCH: &str =
    "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
const PATIENCE: Duration = Duration::from_secs(10);

/// A server with nothing but the API; `None`, with the reason printed, where it is not built.
pub async fn mk_server() -> Option<Server> {
    if !process::binary().exists() {
        println!("skipped: {} is not built", process::binary().display());
        return None;
    }
    process::install_crypto();
    let quiet = ["--controllers=-*", "--disable-scheduler"].map(str::to_owned);
    Some(Server::start(&quiet).await.expect("a server"))
}

/// One request with an object, or none when `Null`, as protobuf.
pub async fn ask(
    connection: &Connection,
    method: Method,
    path: &str,
    object: Value,
) -> wire::Answer {
    let object = (!object.is_null()).then_some(&object);
    wire::ask(connection, method, path, &[], object)
        .await
        .expect("an answer")
}

/// A strategic merge patch.
pub async fn patch(connection: &Connection, path: &str, patch: Value) -> wire::Answer {
    wire::send(
        connection,
        Method::PATCH,
        path,
        STRATEGIC,
        Bytes::from(patch.to_string()),
    )
    .await
    .expect("an answer")
}

/// A watch in protobuf.
pub async fn watch(connection: &Connection, path: &str) -> Frames {
    Frames::open(connection, path, &[]).await.expect("a watch")
}

/// The next event, which must come in time.
pub async fn next(frames: &mut Frames) -> (String, Value) {
    tokio::time::timeout(PATIENCE, frames.next())
        .await
        .expect("an event in time")
        .expect("a frame")
        .expect("more than the end")
}

/// The objects an informer begins with, and the version it goes on from.
pub async fn initial(frames: &mut Frames) -> (Vec<Value>, String) {
    tokio::time::timeout(PATIENCE, frames.initial())
        .await
        .expect("a bookmark in time")
        .expect("initial events")
}

/// A config map of namespace `default`.
pub fn map(name: &str, value: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}, "data": {"a": value}})
}

/// Where those are.
pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
