//! An API server in memory, as a transport, for tests: get, list, watch with resumption, writes with
//! resourceVersions, merge patches, bindings and faults on demand. It validates nothing and knows no kind.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use apimachinery::{Value, meta, status::Status};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use parking_lot::Mutex;
use serde_json::{Map, json};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep_until},
};

use crate::{BoxBody, BoxError, Client, ClientError, Result, Transport, boxed, full};

/// The server; clones share it.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    /// By `/api/v1/pods` and then key.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    /// Every change of a collection: version, type, object.
    log: Vec<(String, u64, &'static str, Value)>,
    /// Watches from versions before this one are answered 410.
    compacted: u64,
    watchers: Vec<Watcher>,
    requests: Vec<Call>,
    faults: VecDeque<Fault>,
    refuse_watch_list: bool,
    down: bool,
    /// How late watches tell of changes, by collection.
    lags: BTreeMap<String, Duration>,
    /// Aggregated discovery documents by path.
    discovery: BTreeMap<String, Value>,
}

struct Watcher {
    collection: String,
    selector: Selector,
    frames: mpsc::UnboundedSender<(Instant, String)>,
}

/// One request as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub method: String,
    /// Path with its query.
    pub path: String,
    pub body: Value,
}

struct Fault {
    method: Method,
    contains: String,
    /// Do what is asked all the same, and only answer like this.
    is_done: bool,
    status: Status,
}

impl Server {
    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    /// Puts an object as it is (its `apiVersion` and `kind` are not needed) into a resource.
    pub fn put(&self, r: &api::Resource, object: Value) -> Value {
        let mut state = self.0.lock();
        let key = meta::key(&object);
        state.store(&r.path(""), key, object)
    }

    pub fn get(&self, r: &api::Resource, key: &str) -> Option<Value> {
        self.0.lock().objects.get(&r.path(""))?.get(key).cloned()
    }

    pub fn list(&self, r: &api::Resource) -> Vec<Value> {
        let state = self.0.lock();
        let objects = state.objects.get(&r.path(""));
        objects.map_or(Vec::new(), |objects| objects.values().cloned().collect())
    }

    /// Removes an object whatever its finalizers say.
    pub fn remove(&self, r: &api::Resource, key: &str) {
        self.0.lock().remove(&r.path(""), key);
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Call> {
        self.0.lock().requests.clone()
    }

    /// The requests with this method whose path contains `part`.
    pub fn requests_of(&self, method: &str, part: &str) -> Vec<Call> {
        let fits = |call: &Call| call.method == method && call.path.contains(part);
        self.requests().into_iter().filter(fits).collect()
    }

    /// Answers the next request with this method whose path contains `part` with `status`.
    pub fn fail_next(&self, method: Method, part: &str, status: Status) {
        self.0.lock().faults.push_back(Fault {
            method,
            contains: part.into(),
            is_done: false,
            status,
        });
    }

    /// Does what the next request with this method whose path contains `part` asks, but answers that it took too long.
    pub fn lose_next(&self, method: Method, part: &str) {
        self.0.lock().faults.push_back(Fault {
            method,
            contains: part.into(),
            is_done: true,
            status: Status::timeout("the answer was lost", 0),
        });
    }

    /// Takes back all faults that were not met.
    pub fn clear_faults(&self) {
        self.0.lock().faults.clear();
    }

    /// Forgets the requests so far, so that a long test holds few.
    pub fn forget_requests(&self) {
        self.0.lock().requests.clear();
    }

    /// Lets watches of one resource tell of changes so much later, as a busy server's may: its caches are behind the
    /// others all the time.
    pub fn set_lag(&self, r: &api::Resource, lag: Duration) {
        self.0.lock().lags.insert(r.path(""), lag);
    }

    /// Ends all watches without a word, as a broken connection does.
    pub fn break_watches(&self) {
        self.0.lock().watchers.clear();
    }

    /// Refuses all connections until called with `false`.
    pub fn set_down(&self, down: bool) {
        let mut state = self.0.lock();
        state.down = down;
        if down {
            state.watchers.clear();
        }
    }

    /// Forgets the past: watches from before now are answered 410.
    pub fn compact(&self) {
        let mut state = self.0.lock();
        state.compacted = state.version;
        state.log.clear();
    }

    /// The aggregated discovery document at `/api` or `/apis`.
    pub fn set_discovery(&self, path: &str, document: Value) {
        self.0.lock().discovery.insert(path.into(), document);
    }

    /// Answers `sendInitialEvents` with 422, as servers before 1.32.
    pub fn refuse_watch_list(&self) {
        self.0.lock().refuse_watch_list = true;
    }
}

#[async_trait]
impl Transport for Server {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxBody>> {
        let mut state = self.0.lock();
        if state.down {
            return Err(ClientError::Connect {
                address: "fake".into(),
                source: "connection refused".into(),
            });
        }
        match state.handle(&request) {
            Ok(answer) => Ok(answer),
            Err(status) => respond(status.code, &status.to_value()),
        }
    }
}

/// A path taken apart.
struct Target {
    /// `/api/v1/pods`
    collection: String,
    plural: String,
    namespace: String,
    name: String,
    subresource: String,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (root, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => (format!("/api/{version}"), rest),
            ["apis", group, version, rest @ ..] => (format!("/apis/{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !is_namespace_part(rest) =>
            {
                (namespace.to_string(), rest)
            }
            rest => (String::new(), rest),
        };
        let part = |index: usize| rest.get(index).map_or(String::new(), ToString::to_string);
        Some(Target {
            collection: format!("{root}/{}", rest.first()?),
            plural: part(0),
            namespace,
            name: part(1),
            subresource: part(2),
        })
    }

    fn key(&self) -> String {
        meta::join_key(&self.namespace, &self.name)
    }
}

/// `/namespaces/x/status` and `/namespaces/x/finalize` are of the namespace itself.
fn is_namespace_part(rest: &[&str]) -> bool {
    matches!(rest, ["status"] | ["finalize"])
}

impl State {
    fn handle(&mut self, request: &Request<Bytes>) -> Result<Response<BoxBody>, Status> {
        let path = request.uri().path();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let full_path = request
            .uri()
            .path_and_query()
            .map_or(String::new(), ToString::to_string);
        self.requests.push(Call {
            method: request.method().to_string(),
            path: full_path.clone(),
            body: body.clone(),
        });
        let fault = self.faults.iter().position(|fault| {
            fault.method == *request.method() && full_path.contains(&fault.contains)
        });
        match fault.and_then(|index| self.faults.remove(index)) {
            Some(fault) if fault.is_done => {
                self.requests.pop();
                self.handle(request)?;
                return Err(fault.status);
            }
            Some(fault) => return Err(fault.status),
            None => {}
        }
        if request.method() == Method::GET && (path == "/api" || path == "/apis") {
            let discovery = self
                .discovery
                .get(path)
                .cloned()
                .unwrap_or_else(|| json!({"items": []}));
            return respond(200, &discovery).map_err(Status::internal);
        }
        let mut target = Target::parse(path).ok_or_else(Status::path_not_found)?;
        if is_namespace_part(&[target.plural.as_str()]) {
            target = Target::parse(&path.replace("/status", "").replace("/finalize", ""))
                .ok_or_else(Status::path_not_found)?;
            target.subresource = if path.ends_with("finalize") {
                "finalize".into()
            } else {
                "status".into()
            };
        }
        let query: BTreeMap<String, String> = query_of(request.uri().query().unwrap_or(""));
        let object = match (request.method().as_str(), target.name.is_empty()) {
            ("GET", true) if query.contains_key("watch") => return self.watch(&target, &query),
            ("GET", true) => return self.list(&target, &query),
            ("GET", false) => self.current(&target)?,
            ("POST", true) => self.create(&target, body)?,
            ("POST", false) => self.subresource(&target, &body)?,
            ("PUT", _) => self.update(&target, body)?,
            ("PATCH", _) => self.patch(&target, &body)?,
            ("DELETE", false) => self.delete(&target, &body)?,
            ("DELETE", true) => self.delete_collection(&target, &query)?,
            _ => return Err(Status::method_not_allowed()),
        };
        let code = if request.method() == Method::POST {
            201
        } else {
            200
        };
        respond(code, &object).map_err(Status::internal)
    }

    fn current(&self, target: &Target) -> Result<Value, Status> {
        let object = self
            .objects
            .get(&target.collection)
            .and_then(|all| all.get(&target.key()));
        object
            .cloned()
            .ok_or_else(|| Status::not_found("", &target.plural, &target.name))
    }

    fn store(&mut self, collection: &str, key: String, mut object: Value) -> Value {
        self.version += 1;
        meta::set_resource_version(&mut object, &self.version.to_string());
        if meta::uid(&object).is_empty() {
            meta::set_uid(&mut object, &format!("uid-{}", self.version));
        }
        let all = self.objects.entry(collection.into()).or_default();
        let kind = match all.insert(key, object.clone()) {
            None => "ADDED",
            Some(_) => "MODIFIED",
        };
        self.tell(collection, kind, object.clone());
        object
    }

    fn remove(&mut self, collection: &str, key: &str) {
        let removed = self
            .objects
            .get_mut(collection)
            .and_then(|all| all.remove(key));
        if let Some(mut object) = removed {
            self.version += 1;
            meta::set_resource_version(&mut object, &self.version.to_string());
            self.tell(collection, "DELETED", object);
        }
    }

    fn tell(&mut self, collection: &str, kind: &'static str, object: Value) {
        let line = frame(kind, &object);
        let lag = self.lags.get(collection).copied().unwrap_or_default();
        let at = Instant::now() + lag;
        self.watchers.retain(|watcher| {
            watcher.collection != collection
                || !watcher.selector.matches(&object)
                || watcher.frames.send((at, line.clone())).is_ok()
        });
        self.log
            .push((collection.into(), self.version, kind, object));
    }

    fn create(&mut self, target: &Target, mut object: Value) -> Result<Value, Status> {
        if meta::name(&object).is_empty() {
            let name = format!("{}{:05}", meta::generate_name(&object), self.version);
            meta::set_name(&mut object, &name);
        }
        if !target.namespace.is_empty() {
            meta::set_namespace(&mut object, &target.namespace);
        }
        let key = meta::key(&object);
        if self
            .objects
            .get(&target.collection)
            .is_some_and(|all| all.contains_key(&key))
        {
            return Err(Status::already_exists(
                "",
                &target.plural,
                meta::name(&object),
            ));
        }
        if meta::creation_timestamp(&object).is_empty() {
            meta::set_creation_timestamp(&mut object, &apimachinery::time::now_text());
        }
        Ok(self.store(&target.collection, key, object))
    }

    fn subresource(&mut self, target: &Target, body: &Value) -> Result<Value, Status> {
        if target.subresource == "binding" {
            let mut pod = self.current(target)?;
            if pod["spec"]["nodeName"]
                .as_str()
                .is_some_and(|node| !node.is_empty())
            {
                return Err(Status::conflict(
                    "",
                    "pods",
                    &target.name,
                    "pod is already assigned to node",
                ));
            }
            pod["spec"]["nodeName"] = body["target"]["name"].clone();
            self.store(&target.collection, target.key(), pod);
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn update(&mut self, target: &Target, object: Value) -> Result<Value, Status> {
        let old = self.current(target)?;
        let version = meta::resource_version(&object);
        if !version.is_empty() && version != meta::resource_version(&old) {
            return Err(Status::modified("", &target.plural, &target.name));
        }
        if target.subresource == "status" {
            let mut whole = old;
            whole["metadata"] = object["metadata"].clone();
            whole["status"] = object["status"].clone();
            return self.write(target, whole);
        }
        self.write(target, object)
    }

    fn patch(&mut self, target: &Target, patch: &Value) -> Result<Value, Status> {
        let mut object = self.current(target)?;
        let uid = meta::uid(patch);
        if !uid.is_empty() && uid != meta::uid(&object) {
            return Err(Status::conflict(
                "",
                &target.plural,
                &target.name,
                "the uid differs",
            ));
        }
        merge(&mut object, patch);
        self.write(target, object)
    }

    /// Stores, or removes what is being deleted and has lost its last finalizer.
    fn write(&mut self, target: &Target, object: Value) -> Result<Value, Status> {
        let deleting = meta::is_deleting(&object)
            && meta::deletion_grace_period_seconds(&object).unwrap_or(0) == 0;
        let held = meta::finalizers(&object).next().is_some()
            || object["spec"]["finalizers"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
        let stored = self.store(&target.collection, target.key(), object);
        if deleting && !held {
            self.remove(&target.collection, &target.key());
        }
        Ok(stored)
    }

    /// Pods on a node, and what has finalizers, are only marked.
    fn delete(&mut self, target: &Target, options: &Value) -> Result<Value, Status> {
        let mut object = self.current(target)?;
        let conditions = &options["preconditions"];
        for (wanted, present) in [
            (&conditions["uid"], meta::uid(&object)),
            (
                &conditions["resourceVersion"],
                meta::resource_version(&object),
            ),
        ] {
            if wanted.as_str().is_some_and(|wanted| wanted != present) {
                return Err(Status::conflict(
                    "",
                    &target.plural,
                    &target.name,
                    "Precondition failed",
                ));
            }
        }
        let is_pod = target.plural == "pods" && object["spec"]["nodeName"].is_string();
        let grace = options["gracePeriodSeconds"]
            .as_i64()
            .unwrap_or(if is_pod { 30 } else { 0 });
        let held = meta::finalizers(&object).next().is_some()
            || object["spec"]["finalizers"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
        if grace > 0 || held {
            meta::set_deletion_timestamp(&mut object, Some(&apimachinery::time::now_text()));
            meta::set_deletion_grace_period_seconds(&mut object, Some(grace));
            return Ok(self.store(&target.collection, target.key(), object));
        }
        self.remove(&target.collection, &target.key());
        Ok(object)
    }

    fn delete_collection(
        &mut self,
        target: &Target,
        query: &BTreeMap<String, String>,
    ) -> Result<Value, Status> {
        for object in self.selected(target, query) {
            let one = Target {
                collection: target.collection.clone(),
                plural: target.plural.clone(),
                namespace: meta::namespace(&object).into(),
                name: meta::name(&object).into(),
                subresource: String::new(),
            };
            self.delete(&one, &Value::Null)?;
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn selected(&self, target: &Target, query: &BTreeMap<String, String>) -> Vec<Value> {
        let selector = Selector::new(target, query);
        let all = self
            .objects
            .get(&target.collection)
            .into_iter()
            .flat_map(BTreeMap::values);
        all.filter(|object| selector.matches(object))
            .cloned()
            .collect()
    }

    fn list(
        &self,
        target: &Target,
        query: &BTreeMap<String, String>,
    ) -> Result<Response<BoxBody>, Status> {
        let items = self.selected(target, query);
        let list =
            json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items});
        respond(200, &list).map_err(Status::internal)
    }

    fn watch(
        &mut self,
        target: &Target,
        query: &BTreeMap<String, String>,
    ) -> Result<Response<BoxBody>, Status> {
        let initial = query.contains_key("sendInitialEvents");
        if initial && self.refuse_watch_list {
            return Err(Status::failure(
                422,
                "Invalid".into(),
                "sendInitialEvents is forbidden",
            ));
        }
        let selector = Selector::new(target, query);
        let (frames, receiver) = mpsc::unbounded_channel();
        let from = query
            .get("resourceVersion")
            .and_then(|text| text.parse::<u64>().ok());
        let mut backlog = Vec::new();
        match from {
            Some(from) if from > 0 => {
                if from < self.compacted {
                    return Err(Status::expired("too old resource version"));
                }
                for (collection, version, kind, object) in &self.log {
                    if *collection == target.collection
                        && *version > from
                        && selector.matches(object)
                    {
                        backlog.push(frame(kind, object));
                    }
                }
            }
            _ => {
                let present = self.selected(target, query);
                backlog.extend(present.iter().map(|object| frame("ADDED", object)));
            }
        }
        if initial {
            let bookmark = json!({"metadata": {
                "resourceVersion": self.version.to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"},
            }});
            backlog.push(frame("BOOKMARK", &bookmark));
        }
        for line in backlog {
            frames
                .send((Instant::now(), line))
                .map_err(|_| Status::internal("the watcher is gone"))?;
        }
        self.watchers.push(Watcher {
            collection: target.collection.clone(),
            selector,
            frames,
        });
        Ok(Response::new(boxed(Lines {
            receiver,
            waiting: None,
        })))
    }
}

/// Namespace, `a.b=c` or `a.b!=c` fields and equality of labels.
struct Selector {
    namespace: String,
    fields: Vec<(String, bool, String)>,
    labels: Vec<(String, bool, String)>,
}

impl Selector {
    fn new(target: &Target, query: &BTreeMap<String, String>) -> Self {
        let terms = |name: &str| {
            let text = query.get(name).cloned().unwrap_or_default();
            let terms = text.split(',').filter_map(|term| {
                let (path, equal, value) = match term.split_once("!=") {
                    Some((path, value)) => (path, false, value),
                    None => term
                        .split_once('=')
                        .map(|(path, value)| (path, true, value))?,
                };
                Some((
                    path.to_string(),
                    equal,
                    value.trim_start_matches('=').to_string(),
                ))
            });
            terms.collect()
        };
        Selector {
            namespace: target.namespace.clone(),
            fields: terms("fieldSelector"),
            labels: terms("labelSelector"),
        }
    }

    fn matches(&self, object: &Value) -> bool {
        let field = |path: &str| {
            let value = path.split('.').fold(object, |value, name| &value[name]);
            value.as_str().unwrap_or("").to_string()
        };
        (self.namespace.is_empty() || meta::namespace(object) == self.namespace)
            && self
                .fields
                .iter()
                .all(|(path, equal, value)| (field(path) == *value) == *equal)
            && self.labels.iter().all(|(name, equal, value)| {
                (meta::label(object, name) == Some(value.as_str())) == *equal
            })
    }
}

fn frame(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// A merge patch, whose lists of objects are merged by `type` as the conditions' are.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        if let (Value::Array(old), Value::Array(new)) = (&mut *target, patch)
            && !new.is_empty()
            && new.iter().all(|item| item["type"].is_string())
        {
            for item in new {
                match old
                    .iter_mut()
                    .find(|present| present["type"] == item["type"])
                {
                    Some(present) => merge(present, item),
                    None => old.push(item.clone()),
                }
            }
            return;
        }
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in fields {
        if value.is_null() {
            if let Some(fields) = target.as_object_mut() {
                fields.remove(name);
            }
        } else {
            merge(&mut target[name.as_str()], value);
        }
    }
}

fn query_of(text: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| {
        let mut out = Vec::new();
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            let digits = (byte == b'%').then(|| [bytes.next(), bytes.next()]);
            let hex = |digit: Option<u8>| digit.and_then(|digit| (digit as char).to_digit(16));
            out.push(match digits {
                Some([high, low]) => {
                    let value = hex(high).unwrap_or(0) * 16 + hex(low).unwrap_or(0);
                    u8::try_from(value).unwrap_or(b'?')
                }
                None => byte,
            });
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

fn respond(code: u16, body: &Value) -> Result<Response<BoxBody>> {
    Response::builder()
        .status(code)
        .body(full(body.to_string()))
        .map_err(|error| ClientError::Request(error.to_string()))
}

/// The lines of a watch, each not before its time.
struct Lines {
    receiver: mpsc::UnboundedReceiver<(Instant, String)>,
    waiting: Option<(Pin<Box<Sleep>>, String)>,
}

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some((sleep, _)) = &mut self.waiting {
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let line = self
                    .waiting
                    .take()
                    .map(|(_, line)| line)
                    .unwrap_or_default();
                return Poll::Ready(Some(Ok(Frame::data(line.into()))));
            }
            match self.receiver.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some((at, line))) if at <= Instant::now() => {
                    return Poll::Ready(Some(Ok(Frame::data(line.into()))));
                }
                Poll::Ready(Some((at, line))) => {
                    self.waiting = Some((Box::pin(sleep_until(at)), line));
                }
            }
        }
    }
}
