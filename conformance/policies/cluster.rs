//! The server all tests of this target share, and short ways to ask it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt;
use integration::connection::Connection;
use integration::process::{self, Server};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// How long what happens by itself may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server lives as long as a test uses it.
static SERVER: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Headers of a patch.
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// A test's share of the server.
pub struct Cluster {
    pub client: Client,
    pub server: Arc<Server>,
    connection: Connection,
}

/// A word no other test uses.
pub fn unique(word: &str) -> String {
    format!("{word}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Cluster {
    pub async fn join() -> Self {
        process::install_crypto();
        let mut shared = SERVER.lock().await;
        let server = match shared.upgrade() {
            Some(server) => server,
            None => {
                let server = Arc::new(Server::start(&[]).await.expect("a server"));
                *shared = Arc::downgrade(&server);
                server
            }
        };
        drop(shared);
        Self {
            client: conformance::administrator(&server).await,
            connection: server.connect().await,
            server,
        }
    }

    /// A namespace of the test's own, labelled with its name.
    pub async fn namespace(&self) -> String {
        let name = unique("ns");
        let object = json!({"metadata": {"name": name, "labels": {"own": name}}});
        self.create("/api/v1/namespaces", &object).await;
        name
    }

    pub async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.connection.json(method, path, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The same with the body and headers as given.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, Value) {
        let body = body.to_owned().into();
        let answer = self.connection.bytes(method, path, headers, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> impl Future<Output = Value> {
        self.good(Method::GET, path, Value::Null)
    }

    #[track_caller]
    pub fn create(&self, path: &str, object: &Value) -> impl Future<Output = Value> {
        self.good(Method::POST, path, object.clone())
    }

    #[track_caller]
    pub fn update(&self, path: &str, object: &Value) -> impl Future<Output = Value> {
        self.good(Method::PUT, path, object.clone())
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> impl Future<Output = Value> {
        self.good(Method::DELETE, path, Value::Null)
    }

    /// An answer that is no failure.
    #[track_caller]
    fn good(&self, method: Method, path: &str, body: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        let path = path.to_owned();
        async move {
            let (code, value) = self.ask(method.clone(), &path, &body).await;
            assert!(code < 300, "{caller}: {method} {path}: {code} {value}");
            value
        }
    }

    /// A patch that is taken.
    #[track_caller]
    pub fn patch(&self, path: &str, kind: &str, patch: &Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        let (path, kind, patch) = (path.to_owned(), kind.to_owned(), patch.to_string());
        async move {
            let headers = [("content-type", kind.as_str())];
            let (code, value) = self.send(Method::PATCH, &path, &headers, &patch).await;
            assert!(code < 300, "{caller}: {path}: {code} {value}");
            value
        }
    }

    /// A document as it is written.
    pub async fn text(&self, path: &str) -> String {
        let answer = self
            .connection
            .open(Method::GET, path, &[], Default::default())
            .await;
        let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        let bytes = answer.into_body().collect().await.expect("a whole body");
        String::from_utf8(bytes.to_bytes().to_vec()).expect("a text")
    }

    /// What is at `path` once it is `good`, which is soon.
    pub async fn eventually(&self, path: &str, good: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let (code, value) = self.ask(Method::GET, path, &Value::Null).await;
            if code == 200 && good(&value) {
                return value;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{path} does not come to be as expected: {code} {}",
                value.to_string().chars().take(2000).collect::<String>()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until nothing is at `path`.
    pub async fn gone(&self, path: &str) {
        let begun = Instant::now();
        while self.ask(Method::GET, path, &Value::Null).await.0 != 404 {
            assert!(begun.elapsed() < PATIENCE, "{path} does not go");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Opens a watch; its events come out of `Events::next`.
    pub async fn watch(&self, path: &str) -> Events {
        let answer = self
            .connection
            .open(Method::GET, path, &[], Default::default())
            .await;
        let answer = answer.expect("a watch");
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        Events {
            body: answer.into_body(),
            buffer: Vec::new(),
        }
    }

    /// Makes a definition and waits until its objects are served.
    pub async fn define(&self, definition: &Value) -> Defined {
        let made = self.create(DEFINITIONS, definition).await;
        let name = made["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        let path = format!("{DEFINITIONS}/{name}");
        self.eventually(&path, |definition| is(definition, "Established"))
            .await;
        let spec = &made["spec"];
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let defined = Defined {
            path,
            group: text(&spec["group"]),
            version: text(&spec["versions"][0]["name"]),
            kind: text(&spec["names"]["kind"]),
            plural: text(&spec["names"]["plural"]),
        };
        self.eventually(&defined.everywhere(), |_| true).await;
        defined
    }
}

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Whether a condition holds.
pub fn is(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|have| have["type"] == condition && have["status"] == "True")
    })
}

/// A definition that serves one version, `v1`, with a schema of its own.
pub fn definition(scope: &str, schema: &Value) -> Value {
    named_definition(
        &format!("{}.example.com", unique("group")),
        scope,
        &[("v1", schema)],
    )
}

/// A definition in a group, with versions, of which the first is stored.
pub fn named_definition(group: &str, scope: &str, versions: &[(&str, &Value)]) -> Value {
    let word = unique("thing").replace('-', "");
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(index, (name, schema))| {
            json!({"name": name, "served": true, "storage": index == 0, "schema": {"openAPIV3Schema": schema}})
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{word}s.{group}")},
        "spec": {"group": group, "scope": scope, "versions": versions,
            "names": {"plural": format!("{word}s"), "singular": word, "kind": format!("T{word}"), "listKind": format!("T{word}List")}}})
}

/// A definition that is served.
pub struct Defined {
    pub path: String,
    pub group: String,
    /// The stored one.
    pub version: String,
    pub kind: String,
    pub plural: String,
}

impl Defined {
    /// Where its objects are, of a cluster-wide kind or of all namespaces.
    pub fn everywhere(&self) -> String {
        format!("/apis/{}/{}/{}", self.group, self.version, self.plural)
    }

    /// An object of it.
    pub fn object(&self, name: &str) -> Value {
        json!({"apiVersion": format!("{}/{}", self.group, self.version), "kind": self.kind, "metadata": {"name": name}})
    }
}

/// A watch's events.
pub struct Events {
    body: hyper::body::Incoming,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event's type and object.
    pub async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).expect("a line of JSON");
                let kind = event["type"].as_str().expect("a type").to_owned();
                return (kind, event["object"].take());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            let frame = frame.expect("an event in time").expect("more of the watch");
            if let Ok(data) = frame.expect("a frame").into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
