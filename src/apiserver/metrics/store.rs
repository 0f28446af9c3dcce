//! What the store is asked, how long it takes and how often it fails: upstream's `etcd_request*` series, whichever store
//! it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use store::{
    Compare, CompareOp, Lease, Op, RangeRequest, RangeResponse, Store, StoreError, Txn,
    TxnResponse, WatchRequest, WatchStream,
};

use super::requests::DURATIONS;
use super::text::{Histogram, Kind, Text};

/// What is done, in the words of upstream's `operation` label.
const OPERATIONS: [&str; 5] = ["get", "list", "create", "update", "delete"];
const GET: usize = 0;
const LIST: usize = 1;
const CREATE: usize = 2;
const UPDATE: usize = 3;
const DELETE: usize = 4;

/// A store whose requests are counted by resource. Made once for each server.
pub struct Measured {
    inner: Arc<dyn Store>,
    series: Arc<StoreSeries>,
}

/// The counters. A resource's are made when it is first asked for: about 250 bytes an operation.
pub struct StoreSeries {
    /// Without the trailing slash.
    prefix: String,
    /// Of keys below the prefix (`pods`, `apiregistration.k8s.io/apiservices`), their resource in `counters`.
    known: HashMap<&'static str, usize>,
    /// By group and plural; the last one is for all keys of no built-in resource.
    counters: Vec<(&'static str, &'static str, [OnceLock<Counter>; 5])>,
}

struct Counter {
    duration: Histogram,
    errors: AtomicU64,
}

impl Measured {
    /// `prefix`: of all keys (`--etcd-prefix`).
    pub fn new(inner: Arc<dyn Store>, prefix: &str) -> (Arc<Self>, Arc<StoreSeries>) {
        let mut known = HashMap::new();
        let mut counters = Vec::new();
        for resource in api::RESOURCES {
            let Some(path) = resource.etcd_prefix.strip_prefix("/registry/") else {
                continue;
            };
            known.entry(path).or_insert_with(|| {
                let storage = resource.storage();
                counters.push((storage.group, storage.plural, Default::default()));
                counters.len() - 1
            });
        }
        counters.push(("", "other", Default::default()));
        let series = Arc::new(StoreSeries {
            prefix: prefix.trim_end_matches('/').to_owned(),
            known,
            counters,
        });
        let measured = Arc::new(Self {
            inner,
            series: series.clone(),
        });
        (measured, series)
    }
}

impl StoreSeries {
    fn resource(&self, key: &[u8]) -> usize {
        let other = self.counters.len() - 1;
        let Some(path) = std::str::from_utf8(key)
            .ok()
            .and_then(|key| key.strip_prefix(&*self.prefix))
            .and_then(|path| path.strip_prefix('/'))
        else {
            return other;
        };
        let mut ends = path.match_indices('/').map(|(at, _)| at);
        let first = ends.next().unwrap_or(path.len());
        let second = ends.next().unwrap_or(path.len());
        let of = |end: usize| self.known.get(path.get(..end)?).copied();
        of(second).or_else(|| of(first)).unwrap_or(other)
    }

    fn observe(&self, resource: usize, operation: usize, since: Instant, is_error: bool) {
        let Some((.., counters)) = self.counters.get(resource) else {
            return;
        };
        let counter = counters[operation].get_or_init(|| Counter {
            duration: Histogram::new(DURATIONS),
            errors: AtomicU64::new(0),
        });
        counter.duration.observe(since.elapsed());
        if is_error {
            counter.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes all series that have been used.
    pub fn write(&self, text: &mut Text) {
        let used: Vec<(Vec<(&str, &str)>, &Counter)> = self
            .counters
            .iter()
            .flat_map(|(group, plural, counters)| {
                OPERATIONS
                    .into_iter()
                    .zip(counters)
                    .filter_map(move |(operation, counter)| {
                        let labels = vec![
                            ("group", *group),
                            ("operation", operation),
                            ("resource", *plural),
                        ];
                        Some((labels, counter.get()?))
                    })
            })
            .collect();
        let name = "etcd_request_duration_seconds";
        text.family(
            name,
            Kind::Histogram,
            "Etcd request latency in seconds for each operation and object type.",
        );
        for (labels, counter) in &used {
            text.histogram(name, labels, &counter.duration);
        }
        let name = "etcd_requests_total";
        text.family(
            name,
            Kind::Counter,
            "Etcd request counts for each operation and object type.",
        );
        for (labels, counter) in &used {
            text.sample(name, labels, counter.duration.count());
        }
        let name = "etcd_request_errors_total";
        text.family(
            name,
            Kind::Counter,
            "Etcd failed request counts for each operation and object type.",
        );
        for (labels, counter) in &used {
            let errors = counter.errors.load(Ordering::Relaxed);
            if errors > 0 {
                text.sample(name, labels, errors);
            }
        }
    }
}

/// The key a transaction is about, and what it does there.
fn subject(txn: &Txn) -> Option<(&[u8], usize)> {
    txn.success.iter().find_map(|op| match op {
        Op::Put { key, .. } => {
            let is_new = txn.compare.iter().any(|compare| {
                matches!(compare, Compare::ModRevision(of, CompareOp::Equal, 0) if of == key)
            });
            Some((&key[..], if is_new { CREATE } else { UPDATE }))
        }
        Op::Delete { key, .. } => Some((&key[..], DELETE)),
        Op::Range(_) => None,
    })
}

#[async_trait]
impl Store for Measured {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let resource = self.series.resource(&request.key);
        let operation = if request.range_end.is_none() {
            GET
        } else {
            LIST
        };
        let since = Instant::now();
        let outcome = self.inner.range(request).await;
        self.series
            .observe(resource, operation, since, outcome.is_err());
        outcome
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        let subject = subject(&txn).map(|(key, operation)| (self.series.resource(key), operation));
        let since = Instant::now();
        let outcome = self.inner.txn(txn).await;
        if let Some((resource, operation)) = subject {
            self.series
                .observe(resource, operation, since, outcome.is_err());
        }
        outcome
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, StoreError> {
        self.inner.watch(request).await
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        self.inner.revision().await
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.inner.request_progress().await
    }

    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError> {
        self.inner.lease_grant(id, ttl).await
    }

    async fn lease_revoke(&self, id: i64) -> Result<(), StoreError> {
        self.inner.lease_revoke(id).await
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        self.inner.lease_keep_alive(id).await
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<Lease, StoreError> {
        self.inner.lease_time_to_live(id).await
    }

    async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn db_size(&self) -> Result<i64, StoreError> {
        self.inner.db_size().await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.inner.health().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_the_resource_of_their_key() {
        let inner: Arc<dyn Store> = store::embedded::Embedded::in_memory();
        let (store, series) = Measured::new(inner, "/registry");
        let put = |key: &'static str, revision: i64| Txn {
            compare: vec![Compare::ModRevision(key.into(), CompareOp::Equal, revision)],
            success: vec![Op::Put {
                key: key.into(),
                value: "v".into(),
                lease: 0,
            }],
            failure: Vec::new(),
        };
        for (key, revision) in [
            ("/registry/pods/a/b", 0),
            ("/registry/pods/a/b", 7),
            ("/registry/apiregistration.k8s.io/apiservices/v1.", 0),
            ("/registry/example.com/things/a/b", 0),
            ("elsewhere", 0),
        ] {
            store.txn(put(key, revision)).await.expect("an answer");
        }
        let request = RangeRequest {
            key: "/registry/pods/a/b".into(),
            ..RangeRequest::default()
        };
        store.range(request).await.expect("an answer");
        let mut text = Text::default();
        series.write(&mut text);
        let text = text.finish();
        for line in [
            r#"etcd_requests_total{group="",operation="create",resource="pods"} 1"#,
            r#"etcd_requests_total{group="",operation="update",resource="pods"} 1"#,
            r#"etcd_requests_total{group="",operation="get",resource="pods"} 1"#,
            r#"etcd_requests_total{group="apiregistration.k8s.io",operation="create",resource="apiservices"} 1"#,
            r#"etcd_requests_total{group="",operation="create",resource="other"} 2"#,
            r#"etcd_request_duration_seconds_count{group="",operation="get",resource="pods"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
