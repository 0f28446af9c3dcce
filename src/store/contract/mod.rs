//! What every backend must do, as cases that take a store: run over memory, over disk, and over a real etcd.
//!
//! A case uses keys under its own prefix and no absolute revisions, since a real etcd is shared by all of
//! them, one after the other.

mod cases;
mod model;

pub(crate) use model::Random;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::embedded::{Embedded, EmbeddedOptions};
use crate::etcd::{Etcd, EtcdOptions};
use crate::etcd_api;
use crate::kv::*;
use crate::testing::{EtcdProcess, found};

/// How long a case waits for something that has to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store and the part of its keys that a case may touch.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub store: Arc<dyn Store>,
    pub prefix: String,
}

pub(crate) type Case = fn(Fixture) -> BoxFuture<'static, ()>;

/// A row as the assertions compare it: key without the prefix, value, modification revision.
pub(crate) type Row = (String, String, i64);

pub(crate) fn row(key: &str, value: &str, revision: i64) -> Row {
    (key.into(), value.into(), revision)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Fixture {
    pub fn new(store: Arc<dyn Store>, name: &str) -> Self {
        let prefix = format!("/{name}/");
        Self { store, prefix }
    }

    pub fn key(&self, name: &str) -> Bytes {
        Bytes::from(format!("{}{name}", self.prefix))
    }

    pub fn end(&self) -> Bytes {
        prefix_end(self.prefix.as_bytes())
    }

    pub fn put_op(&self, key: &str, value: &str, lease: i64) -> Op {
        Op::Put {
            key: self.key(key),
            value: Bytes::copy_from_slice(value.as_bytes()),
            lease,
        }
    }

    pub fn delete_op(&self, key: &str) -> Op {
        Op::Delete {
            key: self.key(key),
            range_end: None,
            prev_kv: true,
        }
    }

    pub async fn run(&self, ops: Vec<Op>) -> TxnResponse {
        let txn = Txn {
            success: ops,
            ..Txn::default()
        };
        self.store.txn(txn).await.expect("the transaction runs")
    }

    /// Returns the write's revision.
    pub async fn put(&self, key: &str, value: &str) -> i64 {
        self.run(vec![self.put_op(key, value, 0)]).await.revision
    }

    pub async fn delete(&self, key: &str) -> i64 {
        self.run(vec![self.delete_op(key)]).await.revision
    }

    pub fn all(&self) -> RangeRequest {
        RangeRequest {
            key: self.key(""),
            range_end: Some(self.end()),
            ..RangeRequest::default()
        }
    }

    pub fn rows(&self, kvs: &[KeyValue]) -> Vec<Row> {
        kvs.iter()
            .map(|kv| {
                let key = text(&kv.key[self.prefix.len()..]);
                (key, text(&kv.value), kv.mod_revision)
            })
            .collect()
    }

    /// Everything under the prefix; `revision` 0 is now.
    pub async fn list(&self, revision: i64) -> Vec<Row> {
        let request = RangeRequest {
            revision,
            ..self.all()
        };
        let response = self.store.range(request).await.expect("the range is read");
        self.rows(&response.kvs)
    }

    pub async fn watch(&self, start_revision: i64) -> Watched {
        let request = WatchRequest {
            key: self.key(""),
            range_end: Some(self.end()),
            start_revision,
            prev_kv: true,
            progress_notify: true,
        };
        self.watch_with(request).await
    }

    pub async fn watch_with(&self, request: WatchRequest) -> Watched {
        Watched {
            stream: self.store.watch(request).await.expect("the watch starts"),
            revision: 0,
        }
    }
}

/// A watch with the checks that hold for every one of them.
pub(crate) struct Watched {
    stream: WatchStream,
    /// Of the last batch.
    pub revision: i64,
}

impl Watched {
    pub async fn batch(&mut self) -> Result<WatchBatch, StoreError> {
        let batch = tokio::time::timeout(PATIENCE, self.stream.receiver.recv())
            .await
            .expect("a batch comes in time")
            .expect("the watch goes on")?;
        for event in &batch.events {
            let revision = event.kv.mod_revision;
            assert!(revision > self.revision, "an event came twice or late");
            assert!(revision <= batch.revision, "an event of the future");
        }
        assert!(batch.revision >= self.revision, "the watch went back");
        self.revision = batch.revision;
        Ok(batch)
    }

    /// The next `count` events, however they are batched.
    pub async fn events(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(self.batch().await.expect("a batch").events);
        }
        assert_eq!(events.len(), count, "more events than expected");
        events
    }

    /// Drains until the store has said that everything up to `revision` was delivered.
    pub async fn until(&mut self, revision: i64) -> Vec<Event> {
        let mut events = Vec::new();
        while self.revision < revision {
            events.extend(self.batch().await.expect("a batch").events);
        }
        events
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_in_memory() {
    for (name, case) in cases::CASES {
        println!("{name}");
        case(Fixture::new(Embedded::in_memory(), name)).await;
    }
}

/// Small segments and no memory for old values, so that the rare paths are the usual ones.
pub(crate) fn small_options() -> EmbeddedOptions {
    EmbeddedOptions {
        segment_bytes: 4096,
        garbage_bytes: 8192,
        superseded_bytes: 0,
        ..EmbeddedOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_disk() {
    for (name, case) in cases::CASES {
        println!("{name}");
        let dir = tempfile::tempdir().expect("a folder");
        let store = Embedded::open(dir.path(), small_options()).expect("the store opens");
        case(Fixture::new(store, name)).await;
    }
}

/// The cases themselves are checked by this: a real etcd is what the others are compared with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_a_real_etcd() {
    for program in found("etcd") {
        let etcd = EtcdProcess::start(&program);
        for (name, case) in cases::CASES {
            println!("{} {name}", program.display());
            case(Fixture::new(etcd.connect().await, name)).await;
        }
        for seed in 1..=2 {
            model::agree(etcd.connect().await, seed).await;
        }
    }
}

/// The embedded store behind its own gRPC front is an etcd like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_the_front_of_the_embedded_store() {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let shutdown = CancellationToken::new();
    let front = etcd_api::serve_on(Embedded::in_memory(), listener, None, shutdown.clone());
    let front = tokio::spawn(front);
    let connect = || async {
        let options = EtcdOptions {
            endpoints: vec![address.to_string()],
            ..EtcdOptions::default()
        };
        Etcd::connect(options).await.expect("the options are good")
    };
    for (name, case) in cases::CASES {
        println!("{name}");
        case(Fixture::new(connect().await, name)).await;
    }
    model::agree(connect().await, 1).await;
    shutdown.cancel();
    front.await.expect("no panic").expect("no error");
}
