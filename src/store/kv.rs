//! The store's vocabulary: keys with revisions, ranges, transactions, watches and leases, as in etcd v3.
//!
//! Read `Store` first. Nothing here knows about Kubernetes objects, and nothing here does IO.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

/// One key at one revision. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// Revision of the transaction that created the key (it starts anew after a delete).
    pub create_revision: i64,
    /// Revision of the transaction that last changed the key.
    pub mod_revision: i64,
    /// Number of changes since creation, from 1.
    pub version: i64,
    /// The lease the key is attached to, or 0.
    pub lease: i64,
}

/// Reads keys in `[key, range_end)`.
#[derive(Clone, Debug, Default)]
pub struct RangeRequest {
    pub key: Bytes,
    /// `None`: `key` alone. `Some("\0")`: every key from `key` on. Otherwise exclusive.
    pub range_end: Option<Bytes>,
    /// Most keys to return; 0 is no limit.
    pub limit: usize,
    /// Read as of this revision; 0 is the newest.
    pub revision: i64,
    pub keys_only: bool,
    pub count_only: bool,
}

#[derive(Clone, Debug, Default)]
pub struct RangeResponse {
    /// The store's revision when it answered (never less than any write acknowledged before the call).
    pub revision: i64,
    /// In key order.
    pub kvs: Vec<KeyValue>,
    /// Whether `limit` left keys out.
    pub more: bool,
    /// All keys in the range, whatever `limit` says.
    pub count: i64,
}

/// What of a key a transaction's guard looks at.
#[derive(Clone, Debug)]
pub enum Compare {
    /// 0 stands for an absent key.
    ModRevision(Bytes, CompareOp, i64),
    CreateRevision(Bytes, CompareOp, i64),
    Version(Bytes, CompareOp, i64),
    Lease(Bytes, CompareOp, i64),
    Value(Bytes, CompareOp, Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    Equal,
    NotEqual,
    Greater,
    Less,
}

#[derive(Clone, Debug)]
pub enum Op {
    Put {
        key: Bytes,
        value: Bytes,
        lease: i64,
    },
    /// Deletes `[key, range_end)`, or `key` alone.
    Delete {
        key: Bytes,
        range_end: Option<Bytes>,
        prev_kv: bool,
    },
    Range(RangeRequest),
}

/// All-or-nothing: when every compare holds `success` runs, else `failure`.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

#[derive(Clone, Debug)]
pub enum OpResponse {
    Put,
    Delete {
        deleted: i64,
        prev_kvs: Vec<KeyValue>,
    },
    Range(RangeResponse),
}

#[derive(Clone, Debug, Default)]
pub struct TxnResponse {
    /// The store's revision after the transaction; its own, when it wrote.
    pub revision: i64,
    pub succeeded: bool,
    pub responses: Vec<OpResponse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub kind: EventKind,
    /// For a delete: the key, an empty value, and the delete's revision in `mod_revision`.
    pub kv: KeyValue,
    /// The key's state before this event, when the watch asked for it and it existed.
    pub prev: Option<KeyValue>,
}

/// What a watch delivers: whole transactions only, in revision order.
#[derive(Clone, Debug)]
pub struct WatchBatch {
    /// Every event up to and including this revision has been delivered. A batch without events is a
    /// progress notification.
    pub revision: i64,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, Default)]
pub struct WatchRequest {
    pub key: Bytes,
    pub range_end: Option<Bytes>,
    /// First revision to deliver; 0 is from now on.
    pub start_revision: i64,
    pub prev_kv: bool,
    /// Send an empty batch when the store's revision moved without an event for this watch
    /// (at the latest after a bounded delay), so that a cache can tell that it has caught up.
    pub progress_notify: bool,
}

/// Ends (with an error first, when there was one) if the store drops the watcher: too slow, compacted, or gone.
pub struct WatchStream {
    pub receiver: mpsc::Receiver<Result<WatchBatch, StoreError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    /// Granted time to live in seconds.
    pub ttl: i64,
    /// Seconds left.
    pub remaining: i64,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("required revision {requested} has been compacted (oldest is {compacted})")]
    Compacted { requested: i64, compacted: i64 },
    #[error("required revision {requested} is a future revision (current is {current})")]
    FutureRevision { requested: i64, current: i64 },
    #[error("lease {0} not found")]
    LeaseNotFound(i64),
    #[error("lease {0} already exists")]
    LeaseExists(i64),
    #[error("request is too large")]
    TooLarge,
    #[error("lease time to live {0} is too large")]
    LeaseTtlTooLarge(i64),
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    #[error("key is not provided")]
    EmptyKey,
    /// A put that keeps the value or the lease of a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// The disk is full; nothing of the request happened, and it may be tried again once there is space.
    #[error("no space left for the store")]
    NoSpace,
    /// The watcher did not drain its queue in time and was dropped.
    #[error("watcher is too slow")]
    SlowWatcher,
    /// The backend cannot be reached; whether a write happened is unknown.
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// The disk refused; the store stops taking writes.
    #[error("store is broken: {0}")]
    Broken(String),
}

/// etcd's contract. Every method may be called from many tasks at once.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError>;
    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError>;
    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, StoreError>;
    /// The newest revision: a read after this sees every write acknowledged before it.
    async fn revision(&self) -> Result<i64, StoreError>;
    /// Asks every watch opened with `progress_notify` for a progress batch soon.
    async fn request_progress(&self) -> Result<(), StoreError>;
    /// `ttl` in seconds; `id` 0 lets the store choose.
    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError>;
    /// Deletes the lease and every key attached to it.
    async fn lease_revoke(&self, id: i64) -> Result<(), StoreError>;
    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError>;
    async fn lease_time_to_live(&self, id: i64) -> Result<Lease, StoreError>;
    /// Forgets every revision below `revision` that is not the newest of its key.
    async fn compact(&self, revision: i64) -> Result<(), StoreError>;
    /// Bytes in use on disk.
    async fn db_size(&self) -> Result<i64, StoreError>;
    /// Errs while the store cannot serve a linearizable read.
    async fn health(&self) -> Result<(), StoreError>;
}

/// The end of the range of all keys that start with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Bytes::from(end);
        }
    }
    Bytes::from_static(b"\0")
}
