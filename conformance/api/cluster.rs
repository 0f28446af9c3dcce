//! The one server that the tests of this target share, and the namespaces they work in.
//!
//! The server lives as long as a test uses it: the last one to finish ends it.

use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use integration::process::{self, Server};
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::endpoint::Endpoint;
use crate::kinds::{self, Kind};

/// How long anything that a controller or a watch brings may take.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// All tests run on it, so that they can share the client's connections.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
});

static SHARED: Mutex<Weak<Cluster>> = Mutex::const_new(Weak::new());

/// A control plane in one process, without nodes, and its administrator's client.
pub struct Cluster {
    /// Ends with the last who uses it.
    _server: Server,
    client: Client,
}

/// Runs one test against the shared server.
pub fn run(test: impl AsyncFnOnce(&Cluster)) {
    RUNTIME.block_on(async {
        let cluster = shared().await;
        test(&cluster).await;
    });
}

async fn shared() -> Arc<Cluster> {
    let mut shared = SHARED.lock().await;
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let cluster = Arc::new(Cluster::start(&[]).await);
    *shared = Arc::downgrade(&cluster);
    cluster
}

impl Cluster {
    /// A server of one's own, with `arguments` of `skiff server`.
    pub async fn start(arguments: &[&str]) -> Self {
        process::install_crypto();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let server = Server::start(&arguments).await.expect("a server");
        Self {
            client: conformance::administrator(&server).await,
            _server: server,
        }
    }

    /// The objects of `kind`, of all namespaces if it has such.
    pub fn all(&self, kind: Kind) -> Endpoint {
        Endpoint::new(self.client.clone(), kind, None)
    }

    /// The objects of `kind` in `namespace`.
    pub fn within(&self, namespace: &str, kind: Kind) -> Endpoint {
        Endpoint::new(self.client.clone(), kind, Some(namespace))
    }

    /// Sends a request that is none of an endpoint's verbs.
    pub async fn send(&self, request: http::Request<Vec<u8>>) -> kube::Result<Value> {
        self.client.request(request).await
    }

    /// GET of a path that is no object.
    pub async fn get(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(Vec::new()).expect("a path");
        match self.send(request).await {
            Ok(answer) => answer,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// A namespace for one test.
    pub async fn namespace(&self) -> String {
        let namespace = self
            .all(kinds::NAMESPACE)
            .create(&json!({"metadata": {"generateName": "checklist-"}}))
            .await
            .expect("a namespace");
        text(&namespace, "/metadata/name").to_owned()
    }

    /// A namespace that takes pods: its service account, which a controller makes, is there.
    pub async fn namespace_for_pods(&self) -> String {
        let namespace = self.namespace().await;
        let accounts = self.within(&namespace, kinds::SERVICE_ACCOUNT);
        eventually("the default service account", async || {
            accounts.get("default").await.is_ok()
        })
        .await;
        namespace
    }
}

/// Asks again and again until `holds` says yes; `what` is told when it never does.
pub async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < end, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The text at a JSON pointer.
#[track_caller]
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    match object.pointer(pointer).and_then(Value::as_str) {
        Some(text) => text,
        None => panic!("no text at {pointer}: {object}"),
    }
}

/// The items of a list.
#[track_caller]
pub fn items(list: &Value) -> &[Value] {
    match list["items"].as_array() {
        Some(items) => items,
        None => panic!("no list: {list}"),
    }
}

/// The message of an answer that refuses with `code` and `reason`.
#[track_caller]
pub fn refused(answer: kube::Result<Value>, code: u16, reason: &str) -> String {
    match answer {
        Err(kube::Error::Api(status)) => {
            assert_eq!(
                (status.code, status.reason.as_str()),
                (code, reason),
                "{}",
                status.message
            );
            status.message
        }
        Err(error) => panic!("no Status: {error}"),
        Ok(object) => panic!("{reason} was expected, not {object}"),
    }
}

/// Whether `object` has all of `part`: members of objects, and for each element of a list one that contains it.
pub fn contains(object: &Value, part: &Value) -> bool {
    match (object, part) {
        (Value::Object(object), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| object.get(name).is_some_and(|value| contains(value, part))),
        (Value::Array(values), Value::Array(parts)) => parts
            .iter()
            .all(|part| values.iter().any(|value| contains(value, part))),
        _ => object == part,
    }
}

#[track_caller]
pub fn assert_contains(object: &Value, part: &Value) {
    assert!(contains(object, part), "{part} is not in {object}");
}

/// Merges `patch` into `object` as RFC 7386 says.
pub fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            object.as_object_mut().map(|object| object.remove(name));
        } else {
            merge(&mut object[name.as_str()], value);
        }
    }
}

#[test]
fn what_is_contained_is_told_from_what_is_not() {
    let object = json!({"a": [{"b": 1, "c": 2}], "d": null});
    for (part, is) in [
        (json!({}), true),
        (json!({"a": [{"b": 1}]}), true),
        (json!({"a": [{"b": 2}]}), false),
        (json!({"e": null}), false),
    ] {
        assert_eq!(contains(&object, &part), is, "{part}");
    }
    let mut merged = object;
    merge(&mut merged, &json!({"a": null, "d": {"e": 1}}));
    assert_eq!(merged, json!({"d": {"e": 1}}));
}
