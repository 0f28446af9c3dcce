//! The revisioned key-value store the API server keeps its objects in: etcd's contract, two backends.
//!
//! `Store` is the only thing the API server knows. `embedded` (in-process, one durable log) and `etcd`
//! (a real etcd cluster over mTLS) implement it; `etcd_api` serves etcd's v3 gRPC API from the embedded one.
//!
//! **Invariant:** there is one global revision; it rises by one per transaction that changed something, and
//! a resourceVersion is that revision. **Invariant:** a write is acknowledged and published to watchers only
//! after it is durable.

pub mod embedded;
pub mod etcd;
pub mod etcd_api;
pub mod kv;

pub use kv::{
    Compare, CompareOp, Event, EventKind, KeyValue, Lease, Op, OpResponse, RangeRequest,
    RangeResponse, Store, StoreError, Txn, TxnResponse, WatchBatch, WatchRequest, WatchStream,
};

/// Client and server stubs of etcd's v3 API.
#[allow(
    dead_code,
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the whole API is there although not all of it is used"
)]
pub(crate) mod generated {
    pub mod etcdserverpb;
    pub mod mvccpb;
}

#[cfg(test)]
mod contract;
#[cfg(test)]
mod testing;
