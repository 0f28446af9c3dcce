//! The embedded store: etcd's MVCC model in memory, changed by one writer thread, kept by a log.
//!
//! Read `Embedded` first, then `writer` (how a change happens), `view` (what the state is), `watch`, and `log`
//! (what is on the disk, and why it is not a database).
//!
//! Values of current keys are in memory once, as the bytes the writer of the key handed in (a caller should
//! not hand in a small slice of a large buffer). Old values are read from the log when somebody asks.
//!
//! **Invariant:** readers see published state only, and what is published is durable.

mod apply;
mod dump;
mod feed;
mod files;
mod lease;
mod log;
mod queue;
mod range;
mod request;
mod version;
mod view;
mod watch;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;

pub(crate) use dump::{Dump, Dumped};
pub use log::OpenError;
pub use request::{
    Action, Guard, Outcome, Query, Sort, SortBy, Target, Transaction, TransactionOutcome,
};

use crate::kv::{
    Lease, RangeRequest, RangeResponse, Store, StoreError, Txn, TxnResponse, WatchRequest,
    WatchStream,
};
pub(crate) use feed::{Feed, Past, Published};
pub(crate) use files::Files;
use lease::Clock;
use log::{DiskUse, Log, Sizes};
use queue::{Command, Queue};
pub(crate) use range::KeyRange;
pub(crate) use version::Version;
pub(crate) use view::{Record, View};
use view::{records_after, select, undo};
pub(crate) use watch::{Sender, WATCH_QUEUE, event};
use writer::{Limits, Writer};

/// Records kept before the store compacts by itself: at up to some 250 bytes each (an old value's memory is
/// not counted), 250 MB. The API server compacts every five minutes, so this is reached only above 3,000
/// writes a second.
const HISTORY_LIMIT: usize = 1_000_000;
/// Bytes of a log segment.
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of segments below the compaction floor that are left alone. Since a checkpoint costs writing all live
/// data, the size of the last one is left too: so compaction at most doubles what is written.
const GARBAGE_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of superseded values kept in memory.
const SUPERSEDED_BYTES: usize = 4 * 1024 * 1024;

/// How a durable store is kept.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedOptions {
    /// Bytes of a log segment, whose space is allocated at once.
    pub segment_bytes: u64,
    /// Bytes of segments below the compaction floor that are not worth a checkpoint to free them.
    pub garbage_bytes: u64,
    /// Changes kept before the store compacts by itself, whatever its users do.
    pub history_limit: usize,
    /// Bytes of superseded values that stay in memory, for watchers that are a little late.
    pub superseded_bytes: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES,
            garbage_bytes: GARBAGE_BYTES,
            history_limit: HISTORY_LIMIT,
            superseded_bytes: SUPERSEDED_BYTES,
        }
    }
}

/// The in-process store. Dropping it ends its thread and its watches.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// What readers, watchers and the writer share.
#[derive(Debug)]
pub(crate) struct Shared {
    feed: Arc<Feed>,
    queue: Queue,
    disk: Arc<DiskUse>,
    clock: Clock,
}

impl Embedded {
    /// A store that lives and dies with this value.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    pub fn in_memory() -> Arc<Self> {
        let limits = Limits {
            history: HISTORY_LIMIT,
            superseded_bytes: SUPERSEDED_BYTES,
        };
        let state = Published {
            view: View::empty(),
            history: VecDeque::new(),
        };
        let shared = Shared::new(state, Arc::default(), Arc::default(), Clock::new());
        Self::start(shared, None, limits).expect("a thread can be started")
    }

    /// Opens the store in a folder, which is made if there is none. No other process can open it meanwhile.
    pub fn open(dir: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Arc<Self>, OpenError> {
        let EmbeddedOptions {
            segment_bytes,
            garbage_bytes,
            history_limit,
            superseded_bytes,
        } = options;
        let dir = dir.as_ref();
        let (files, disk, clock) = (Arc::default(), Arc::default(), Clock::new());
        let sizes = Sizes {
            segment: segment_bytes,
            garbage: garbage_bytes,
        };
        let opened = log::open(dir, sizes, &files, clock, &disk)?;
        let state = Published {
            view: opened.view,
            history: opened.history,
        };
        let limits = Limits {
            history: history_limit,
            superseded_bytes,
        };
        let shared = Shared::new(state, files, disk, clock);
        Self::start(shared, Some(opened.log), limits).map_err(|source| OpenError::Io {
            step: "start a thread for",
            path: dir.to_owned(),
            source,
        })
    }

    fn start(shared: Shared, log: Option<Log>, limits: Limits) -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(shared);
        let writer = Writer::new(shared.clone(), log, limits);
        let writer = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run())?;
        Ok(Arc::new(Self {
            shared,
            writer: Some(writer),
        }))
    }

    /// A transaction with everything etcd has: guards over ranges, nesting, previous values.
    pub async fn transact(
        &self,
        transaction: Transaction,
    ) -> Result<TransactionOutcome, StoreError> {
        transaction.check()?;
        self.shared
            .queue
            .ask(|reply| Command::Transact(transaction, reply))
            .await
    }

    /// A range with etcd's filters and orders.
    pub async fn query(&self, query: Query) -> Result<RangeResponse, StoreError> {
        if query.range.key.is_empty() {
            return Err(StoreError::EmptyKey);
        }
        let range = KeyRange::new(&query.range.key, query.range.range_end.as_ref());
        let at = query.range.revision;
        let (view, before) = {
            let published = self.shared.feed.published.read();
            published.view.check_revision(at)?;
            let before = if at == 0 {
                BTreeMap::new()
            } else {
                let from = records_after(&published.history, at);
                undo(&range, published.history.range(from..))
            };
            (published.view.clone(), before)
        };
        let selection = select(&view, &query, &range, before);
        drop(view);
        if selection.is_hot(&query) {
            return selection.materialize(&query, &self.shared.feed.files);
        }
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || selection.materialize(&query, &shared.feed.files))
            .await
            .map_err(|error| StoreError::Broken(format!("reading old values: {error}")))?
    }

    /// Every lease, in the order of their numbers.
    pub fn leases(&self) -> Vec<i64> {
        self.shared
            .feed
            .published
            .read()
            .view
            .leases
            .keys()
            .copied()
            .collect()
    }

    /// The keys attached to a lease, in order.
    pub fn lease_keys(&self, id: i64) -> Result<Vec<bytes::Bytes>, StoreError> {
        let view = self.shared.feed.published.read().view.clone();
        Ok(view.lease(id)?.keys.iter().cloned().collect())
    }

    /// Bytes on disk that hold something, unlike `db_size`, which counts the space allocated in advance too.
    pub fn db_size_in_use(&self) -> i64 {
        i64::try_from(self.shared.disk.used()).unwrap_or(i64::MAX)
    }

    /// The oldest revision that can still be read.
    pub fn compacted_revision(&self) -> i64 {
        self.shared.feed.published.read().view.compacted
    }
}

impl Shared {
    fn new(state: Published, files: Arc<Files>, disk: Arc<DiskUse>, clock: Clock) -> Self {
        Self {
            feed: Arc::new(Feed::new(state, files, Past::Compacted)),
            queue: Queue::new(),
            disk,
            clock,
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.queue.shut();
        self.shared.feed.closed.cancel();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer had panicked");
        }
        self.shared.feed.close();
    }
}

#[async_trait]
impl Store for Embedded {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.query(request.into()).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.transact(txn.into()).await.map(Into::into)
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, StoreError> {
        self.shared.feed.watch(request)
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        Ok(self.shared.feed.published.read().view.revision)
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        let feed = &self.shared.feed;
        // The writer may be between publishing and delivering.
        let until = feed.published.read().view.revision;
        feed.request_progress(until);
        Ok(())
    }

    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError> {
        self.shared
            .queue
            .ask(|reply| Command::Grant { id, ttl, reply })
            .await
    }

    async fn lease_revoke(&self, id: i64) -> Result<(), StoreError> {
        self.shared
            .queue
            .ask(|reply| Command::Revoke(id, reply))
            .await
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        let lease = self.shared.feed.published.read().view.lease(id)?.clone();
        let now = self.shared.clock.now();
        if lease.deadline() <= now {
            return Err(StoreError::LeaseNotFound(id));
        }
        if lease.keep_alive(now) {
            self.shared
                .queue
                .ask(|reply| Command::Renewed(id, reply))
                .await?;
        }
        Ok(lease.report(now))
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<Lease, StoreError> {
        let lease = self.shared.feed.published.read().view.lease(id)?.clone();
        Ok(lease.report(self.shared.clock.now()))
    }

    async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        self.shared
            .queue
            .ask(|reply| Command::Compact(revision, reply))
            .await
    }

    async fn db_size(&self) -> Result<i64, StoreError> {
        Ok(i64::try_from(self.shared.disk.allocated()).unwrap_or(i64::MAX))
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.shared.queue.check()
    }
}

#[cfg(test)]
mod crash;
