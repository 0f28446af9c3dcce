//! The verbs on one collection, with objects as plain JSON: what the tests say to the server.

use std::pin::Pin;

use futures::{Stream, StreamExt};
use kube::Client;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::Request;
use serde_json::{Value, json};

use crate::cluster::{PATIENCE, merge, text};
use crate::kinds::Kind;

/// One collection; clones share the connection.
#[derive(Clone)]
pub struct Endpoint {
    client: Client,
    kind: Kind,
    path: String,
    /// Sent with every request.
    user: Option<String>,
}

impl Endpoint {
    /// The objects of `kind` in `namespace`, or all.
    pub fn new(client: Client, kind: Kind, namespace: Option<&str>) -> Self {
        let path = match namespace {
            Some(namespace) => {
                format!("{}/namespaces/{namespace}/{}", kind.root(), kind.resource)
            }
            None => format!("{}/{}", kind.root(), kind.resource),
        };
        Self {
            client,
            kind,
            path,
            user: None,
        }
    }

    /// The same collection as `user` sees it, by impersonation.
    pub fn seen_by(&self, user: &str) -> Self {
        Self {
            user: Some(user.to_owned()),
            ..self.clone()
        }
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> kube::Result<Value> {
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        if let Some(user) = &self.user {
            let user = user.parse().expect("a user's name");
            request.headers_mut().insert("impersonate-user", user);
        }
        self.client.request(request).await
    }

    fn request(&self) -> Request {
        Request::new(self.path.clone())
    }

    /// Fills in `apiVersion` and `kind`.
    fn whole(&self, object: &Value) -> Value {
        let mut whole = json!({"apiVersion": self.kind.api_version, "kind": self.kind.kind});
        merge(&mut whole, object);
        whole
    }

    fn bytes(&self, object: &Value) -> Vec<u8> {
        self.whole(object).to_string().into_bytes()
    }

    /// Creates, with `apiVersion` and `kind` filled in.
    pub async fn create(&self, object: &Value) -> kube::Result<Value> {
        self.create_with(object, &PostParams::default()).await
    }

    /// What creating would give, without doing it.
    pub async fn try_create(&self, object: &Value) -> kube::Result<Value> {
        let options = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.create_with(object, &options).await
    }

    async fn create_with(&self, object: &Value, options: &PostParams) -> kube::Result<Value> {
        self.send(self.request().create(options, self.bytes(object)))
            .await
    }

    /// Creates a subresource of `name`.
    pub async fn create_sub(&self, name: &str, sub: &str, body: &Value) -> kube::Result<Value> {
        let body = body.to_string().into_bytes();
        let options = PostParams::default();
        self.send(self.request().create_subresource(sub, name, &options, body))
            .await
    }

    pub async fn get(&self, name: &str) -> kube::Result<Value> {
        self.send(self.request().get(name, &Default::default()))
            .await
    }

    pub async fn get_sub(&self, name: &str, sub: &str) -> kube::Result<Value> {
        self.send(self.request().get_subresource(sub, name)).await
    }

    pub async fn list(&self, options: &ListParams) -> kube::Result<Value> {
        self.send(self.request().list(options)).await
    }

    /// Lists what has the labels.
    pub async fn labelled(&self, selector: &str) -> kube::Result<Value> {
        self.list(&ListParams::default().labels(selector)).await
    }

    pub async fn replace(&self, name: &str, object: &Value) -> kube::Result<Value> {
        let options = PostParams::default();
        self.send(self.request().replace(name, &options, self.bytes(object)))
            .await
    }

    pub async fn replace_sub(&self, name: &str, sub: &str, object: &Value) -> kube::Result<Value> {
        let (options, body) = (PostParams::default(), self.bytes(object));
        self.send(
            self.request()
                .replace_subresource(sub, name, &options, body),
        )
        .await
    }

    /// Reads, merges `change` in and replaces, again as long as others are faster. `sub` is empty for the object itself.
    pub async fn update(&self, name: &str, sub: &str, change: &Value) -> kube::Result<Value> {
        loop {
            let mut object = self.get(name).await?;
            merge(&mut object, change);
            let answer = match sub {
                "" => self.replace(name, &object).await,
                sub => self.replace_sub(name, sub, &object).await,
            };
            match answer {
                Err(kube::Error::Api(status)) if status.reason == "Conflict" => {}
                answer => return answer,
            }
        }
    }

    /// A merge patch, of a subresource unless `sub` is empty.
    pub async fn merge(&self, name: &str, sub: &str, patch: &Value) -> kube::Result<Value> {
        self.patch(name, sub, &Patch::Merge(patch)).await
    }

    pub async fn strategic(&self, name: &str, patch: &Value) -> kube::Result<Value> {
        self.patch(name, "", &Patch::Strategic(patch)).await
    }

    /// A JSON patch (RFC 6902).
    pub async fn json_patch(&self, name: &str, operations: &Value) -> kube::Result<Value> {
        let request = http::Request::patch(format!("{}/{name}", self.path))
            .header("content-type", "application/json-patch+json")
            .body(operations.to_string().into_bytes())
            .map_err(kube::core::request::Error::BuildRequest);
        self.send(request).await
    }

    /// Applies as `manager`, with `apiVersion` and `kind` filled in.
    pub async fn apply(&self, name: &str, manager: &str, object: &Value) -> kube::Result<Value> {
        let patch = Patch::Apply(self.whole(object));
        let options = PatchParams::apply(manager);
        self.send(self.request().patch(name, &options, &patch))
            .await
    }

    async fn patch(&self, name: &str, sub: &str, patch: &Patch<&Value>) -> kube::Result<Value> {
        let options = PatchParams::default();
        self.send(match sub {
            "" => self.request().patch(name, &options, patch),
            sub => self.request().patch_subresource(sub, name, &options, patch),
        })
        .await
    }

    pub async fn delete(&self, name: &str) -> kube::Result<Value> {
        self.send(self.request().delete(name, &DeleteParams::default()))
            .await
    }

    /// Deletes at once, whatever grace the object asks for.
    pub async fn delete_now(&self, name: &str) -> kube::Result<Value> {
        let options = DeleteParams::default().grace_period(0);
        self.send(self.request().delete(name, &options)).await
    }

    /// Deletes what has the labels.
    pub async fn delete_labelled(&self, selector: &str) -> kube::Result<Value> {
        let which = ListParams::default().labels(selector);
        self.send(
            self.request()
                .delete_collection(&DeleteParams::default(), &which),
        )
        .await
    }

    /// Watches what has the labels, from behind `version`.
    pub async fn watch(&self, selector: &str, version: &str) -> Watcher {
        let options = WatchParams::default().labels(selector);
        let request = self.request().watch(&options, version).expect("a watch");
        let events = self
            .client
            .request_events::<Value>(request)
            .await
            .expect("a watch");
        Watcher {
            events: events.boxed(),
        }
    }
}

/// A watch under way.
pub struct Watcher {
    events: Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<Value>>> + Send>>,
}

impl Watcher {
    /// The type and the object of the next event that is no bookmark.
    pub async fn next(&mut self) -> (&'static str, Value) {
        loop {
            let event = tokio::time::timeout(PATIENCE, self.events.next())
                .await
                .expect("an event in time")
                .expect("the watch goes on")
                .expect("an event");
            return match event {
                WatchEvent::Added(object) => ("ADDED", object),
                WatchEvent::Modified(object) => ("MODIFIED", object),
                WatchEvent::Deleted(object) => ("DELETED", object),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => panic!("the watch failed: {status:?}"),
            };
        }
    }

    /// The next event, which is of `kind`.
    pub async fn expect(&mut self, kind: &str) -> Value {
        let (seen, object) = self.next().await;
        assert_eq!(seen, kind, "{object}");
        object
    }

    /// The first object that comes with an event of `kind` and for which `holds`; others, of controllers, are let pass.
    pub async fn until(&mut self, kind: &str, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (seen, object) = self.next().await;
            if seen == kind && holds(&object) {
                return object;
            }
        }
    }
}

/// `metadata.resourceVersion` as a number, of an object or of a list.
#[track_caller]
pub fn version(object: &Value) -> u64 {
    let version = text(object, "/metadata/resourceVersion");
    version
        .parse()
        .unwrap_or_else(|_| panic!("no version: {version}"))
}
