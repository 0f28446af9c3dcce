//! A server in this process and short ways to ask it.

use std::sync::Arc;

use apimachinery::Value;
use http::{Method, Request, Response};
use serde_json::json;
use store::embedded::Embedded;

use crate::body::Body;
use crate::{Options, Server, UserInfo};

pub struct Harness {
    pub server: Arc<Server>,
    pub store: Arc<Embedded>,
    user: Arc<UserInfo>,
}

/// A response, read whole.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub bytes: bytes::Bytes,
    pub value: Value,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.bytes));
        self.value
    }

    /// The message of a failure.
    #[track_caller]
    pub fn message(self, code: u16) -> String {
        let value = self.expect(code);
        assert_eq!(value["kind"], "Status");
        assert_eq!(value["code"], code);
        value["message"].as_str().expect("has a message").to_owned()
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers
            .get_all("warning")
            .iter()
            .map(|value| value.to_str().expect("text").to_owned())
            .collect()
    }
}

impl Harness {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A server whose options were changed by `change`, ready.
    pub async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let store = Embedded::in_memory();
        let mut options = Options::new(store.clone());
        change(&mut options);
        let server = Server::start(options).await.expect("starts");
        while !server.backend().is_synced() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let harness = Self {
            server,
            store,
            user: Arc::new(UserInfo::new("admin", [UserInfo::MASTERS])),
        };
        let namespace = json!({"metadata": {"name": "test"}});
        harness
            .post("/api/v1/namespaces", &namespace)
            .await
            .expect(201);
        let account = json!({"metadata": {"name": "default"}});
        harness
            .post("/api/v1/namespaces/test/serviceaccounts", &account)
            .await
            .expect(201);
        harness
    }

    /// The object at `path` once it is there and `good`, which is soon.
    pub async fn eventually(&self, path: &str, good: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1000 {
            let answer = self.get(path).await;
            if answer.code == 200 && good(&answer.value) {
                return answer.value;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("{path} does not come to be as expected");
    }

    /// A server started elsewhere.
    pub fn around(server: Arc<Server>, store: Arc<Embedded>) -> Self {
        Self {
            server,
            store,
            user: Arc::new(UserInfo::new("admin", [UserInfo::MASTERS])),
        }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a request");
        self.server.handle(&self.user, request).await
    }

    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let response = self.send(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect(usize::MAX).await.expect("a whole body");
        Answer {
            code: parts.status.as_u16(),
            headers: parts.headers,
            value: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            bytes,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], Body::empty()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Answer {
        self.ask(Method::POST, path, &[], object.to_string()).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.ask(Method::PUT, path, &[], object.to_string()).await
    }

    /// `kind` is `json`, `merge`, `strategic` or `apply`.
    pub async fn patch(&self, path: &str, kind: &str, patch: &Value) -> Answer {
        let content_type = match kind {
            "json" => "application/json-patch+json",
            "merge" => "application/merge-patch+json",
            "apply" => "application/apply-patch+yaml",
            _ => "application/strategic-merge-patch+json",
        };
        let headers = [("content-type", content_type)];
        self.ask(Method::PATCH, path, &headers, patch.to_string())
            .await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, &[], Body::empty()).await
    }

    pub async fn delete_with(&self, path: &str, options: &Value) -> Answer {
        self.ask(Method::DELETE, path, &[], options.to_string())
            .await
    }

    /// Opens a watch; its events come out of `Events::next`.
    pub async fn watch(&self, path: &str) -> Events {
        self.watch_as(path, "application/json").await
    }

    /// As `watch`, in the form that `accept` asks for.
    pub async fn watch_as(&self, path: &str, accept: &str) -> Events {
        let headers = [("accept", accept)];
        let response = self.send(Method::GET, path, &headers, Body::empty()).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Events {
            stream: response.into_body().into_stream(),
            buffer: Vec::new(),
        }
    }
}

/// A watch's events.
pub struct Events {
    stream: std::pin::Pin<
        Box<dyn futures::Stream<Item = Result<bytes::Bytes, crate::body::BodyError>> + Send>,
    >,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event's type and object; `None` at the end.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        use futures::StreamExt;
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("a line of JSON");
                let kind = event["type"].as_str().expect("a type").to_owned();
                return Some((kind, event["object"].clone()));
            }
            let wait = std::time::Duration::from_secs(5);
            let piece = tokio::time::timeout(wait, self.stream.next())
                .await
                .expect("an event within five seconds")?;
            self.buffer.extend_from_slice(&piece.expect("no error"));
        }
    }

    /// The next event as `TYPE name`.
    pub async fn brief(&mut self) -> String {
        match self.next().await {
            Some((kind, object)) => {
                let name = object["metadata"]["name"].as_str().unwrap_or("");
                format!("{kind} {name}").trim_end().to_owned()
            }
            None => "END".to_owned(),
        }
    }
}

/// A config map.
pub fn config_map(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"k": "v"}})
}

/// A pod of one container.
pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]}})
}
