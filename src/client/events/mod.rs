//! Records Events (core/v1): creates one, and counts up (PATCH) when the same thing happens again.
//!
//! `Recorder::event` never waits: it puts the event into a bounded queue that drops its oldest, and one task writes.
//! `Correlator` is client-go's EventCorrelator as a pure function of time and event: a token bucket per object stops
//! spam, more than ten similar events in ten minutes become one "(combined from similar events)".

mod correlator;

use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use api::r::EVENTS;
use apimachinery::{Value, meta, time::format as timestamp};
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::json;
use time::OffsetDateTime;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{Client, Patch, Result, WriteOptions};
use correlator::{Correlator, Verdict};

/// Events waiting to be written; client-go's broadcaster queues as many.
const QUEUE: usize = 1000;
/// Attempts to write one event, as client-go's maxTriesPerEvent.
const TRIES: usize = 12;
/// Pause between attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    Normal,
    Warning,
}

impl EventKind {
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        }
    }
}

/// What an event is about (`core/v1 ObjectReference`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// Such as `spec.containers{nginx}`.
    pub field_path: String,
}

impl ObjectReference {
    /// A reference to a whole object that has its `apiVersion` and `kind`.
    pub fn of(object: &Value) -> Self {
        ObjectReference {
            api_version: meta::api_version(object).into(),
            kind: meta::kind(object).into(),
            namespace: meta::namespace(object).into(),
            name: meta::name(object).into(),
            uid: meta::uid(object).into(),
            resource_version: meta::resource_version(object).into(),
            field_path: String::new(),
        }
    }

    /// A reference to a pod.
    pub fn pod(namespace: &str, name: &str, uid: &str, resource_version: &str) -> Self {
        ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
            resource_version: resource_version.into(),
            field_path: String::new(),
        }
    }

    /// The same with a field path.
    pub fn with_field_path(mut self, path: impl Into<String>) -> Self {
        self.field_path = path.into();
        self
    }
}

/// Who records: `source.component` (and `reportingComponent`), and `source.host` if not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub component: String,
    pub host: String,
}

/// One thing that happened.
#[derive(Clone, Debug)]
struct Event {
    object: ObjectReference,
    kind: EventKind,
    reason: String,
    message: String,
    annotations: Vec<(String, String)>,
    at: OffsetDateTime,
}

/// Records events; clones share the queue and its task, which ends with the last clone.
#[derive(Clone)]
pub struct Recorder(Arc<Handle>);

struct Handle {
    queue: Arc<Queue>,
    task: AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Queue {
    events: Mutex<VecDeque<Event>>,
    changed: Notify,
    /// Told when the writer has nothing left.
    idle: tokio::sync::watch::Sender<bool>,
}

impl Recorder {
    /// Starts the writer's task. Must be called in a tokio runtime.
    pub fn new(client: Client, source: Source) -> Self {
        let queue = Arc::new(Queue {
            events: Mutex::new(VecDeque::new()),
            changed: Notify::new(),
            idle: tokio::sync::watch::Sender::new(true),
        });
        let writer = Writer {
            client,
            correlator: Correlator::default(),
            source,
        };
        // It runs until aborted by the last handle: it has no way to end, and a panic is caught for each event.
        let task = tokio::spawn(writer.run(queue.clone())).abort_handle();
        Recorder(Arc::new(Handle { queue, task }))
    }

    /// Records that `reason` happened to `object`.
    pub fn event(
        &self,
        object: &ObjectReference,
        kind: EventKind,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.annotated_event(object, kind, reason, message, Vec::new());
    }

    /// The same with annotations on the event.
    pub fn annotated_event(
        &self,
        object: &ObjectReference,
        kind: EventKind,
        reason: &str,
        message: impl Into<String>,
        annotations: Vec<(String, String)>,
    ) {
        let event = Event {
            object: object.clone(),
            kind,
            reason: reason.into(),
            message: message.into(),
            annotations,
            at: OffsetDateTime::now_utc(),
        };
        let queue = &self.0.queue;
        let mut events = queue.events.lock();
        if events.len() == QUEUE {
            events.pop_front();
            tracing::warn!("the event queue is full, its oldest event is dropped");
        }
        events.push_back(event);
        queue.idle.send_replace(false);
        drop(events);
        queue.changed.notify_one();
    }

    /// Waits until all that was recorded so far is written, at most `limit`.
    pub async fn flush(&self, limit: Duration) {
        let mut idle = self.0.queue.idle.subscribe();
        let _ = tokio::time::timeout(limit, idle.wait_for(|idle| *idle)).await;
    }
}

/// Writes what the queue holds, one after the other.
struct Writer {
    client: Client,
    correlator: Correlator,
    source: Source,
}

impl Writer {
    async fn run(mut self, queue: Arc<Queue>) {
        loop {
            let changed = queue.changed.notified();
            let event = {
                let mut events = queue.events.lock();
                let event = events.pop_front();
                if event.is_none() {
                    queue.idle.send_replace(true);
                }
                event
            };
            let Some(event) = event else {
                changed.await;
                continue;
            };
            if AssertUnwindSafe(self.record(event))
                .catch_unwind()
                .await
                .is_err()
            {
                tracing::error!("recording an event panicked");
            }
        }
    }

    async fn record(&mut self, event: Event) {
        let verdict = self.correlator.correlate(&event, &self.source);
        let Some((key, verdict)) = verdict else {
            return;
        };
        for attempt in 1..=TRIES {
            match self.write(&key, &verdict).await {
                Ok(()) => return,
                Err(error) if error.is_transient() && attempt < TRIES => {
                    tracing::debug!(%error, "cannot write an event, will be retried");
                    // client-go: the first pause is random, so that components do not knock all at once.
                    let factor = if attempt == 1 {
                        rand::random::<f64>()
                    } else {
                        1.0
                    };
                    tokio::time::sleep(RETRY_PAUSE.mul_f64(factor)).await;
                }
                Err(error) => {
                    // A namespace under deletion takes no events; that is no news.
                    tracing::debug!(%error, reason = event.reason, "an event was rejected");
                    return;
                }
            }
        }
    }

    async fn write(&mut self, key: &correlator::Key, verdict: &Verdict) -> Result<()> {
        let options = WriteOptions::default();
        let stored: Value = match verdict {
            Verdict::Create(body) => {
                let namespace = meta::namespace(body);
                self.client
                    .create(&EVENTS, namespace, body, &options)
                    .await?
            }
            Verdict::Count {
                namespace,
                name,
                patch,
                otherwise,
            } => {
                let patch = Patch::Strategic(patch.clone());
                let patched = self
                    .client
                    .patch(&EVENTS, namespace, name, "", &patch, &options)
                    .await;
                match patched {
                    // It expired after an hour: record it as a new one, with its count.
                    Err(error) if error.is_not_found() => {
                        self.client
                            .create(&EVENTS, namespace, otherwise, &options)
                            .await?
                    }
                    other => other?,
                }
            }
        };
        self.correlator.written(key, meta::name(&stored));
        Ok(())
    }
}

/// The event as it is created.
fn body(event: &Event, source: &Source, count: i64, first: OffsetDateTime, message: &str) -> Value {
    let object = &event.object;
    let namespace = if object.namespace.is_empty() {
        "default"
    } else {
        &object.namespace
    };
    let mut involved = json!({});
    for (name, value) in [
        ("apiVersion", &object.api_version),
        ("kind", &object.kind),
        ("namespace", &object.namespace),
        ("name", &object.name),
        ("uid", &object.uid),
        ("resourceVersion", &object.resource_version),
        ("fieldPath", &object.field_path),
    ] {
        if !value.is_empty() {
            involved[name] = json!(value);
        }
    }
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(&object.name, event.at), "namespace": namespace},
        "involvedObject": involved,
        "reason": event.reason,
        "message": message,
        "source": {"component": source.component},
        "firstTimestamp": timestamp(first),
        "lastTimestamp": timestamp(event.at),
        "count": count,
        "type": event.kind.as_str(),
        "eventTime": null,
        "reportingComponent": source.component,
        "reportingInstance": source.host,
    });
    if !source.host.is_empty() {
        body["source"]["host"] = json!(source.host);
    }
    for (name, value) in &event.annotations {
        body["metadata"]["annotations"][name] = json!(value);
    }
    body
}

/// `<name>.<nanoseconds since 1970 in hex>`.
fn event_name(object: &str, at: OffsetDateTime) -> String {
    format!("{object}.{:x}", at.unix_timestamp_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_upstreams_name_and_fields() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_793_456_890_123_456_789).unwrap();
        let event = Event {
            object: ObjectReference::pod("default", "nginx-demo", "u1", "12"),
            kind: EventKind::Normal,
            reason: "Scheduled".into(),
            message: "ok".into(),
            annotations: Vec::new(),
            at,
        };
        let source = Source {
            component: "default-scheduler".into(),
            host: String::new(),
        };
        let body = body(&event, &source, 1, at, "ok");
        assert_eq!(body["metadata"]["name"], "nginx-demo.18e3a38a17c91115");
        assert_eq!(body["source"], json!({"component": "default-scheduler"}));
        assert_eq!(body["lastTimestamp"], "2026-10-31T14:28:10Z");
        assert_eq!(body["involvedObject"]["resourceVersion"], "12");
    }
}
