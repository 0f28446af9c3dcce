//! The watch cache: one resource's objects in memory, filled from one store watch, read by every GET, LIST and WATCH.
//!
//! ```text
//!  Store ── range, then watch ──► feed ──► entries (persistent set) ──► snapshots: lists
//!                                   │──► window (recent events) ─────► watches that resume
//!                                   └──► watchers (bounded queues) ──► live watches
//! ```
//!
//! Read `Cache` first. A cache starts when it is first asked for and then follows the store. It knows how far it
//! has come (`revision`), so a reader can wait until it has caught up with the store; that wait is free when nothing was written.
//!
//! **Invariant:** watchers get events gaplessly, in revision order; a slow watcher is dropped alone.
//! **Invariant:** nothing here knows a kind or an encoding.

mod encodings;
mod entry;
mod feed;
mod scan;
mod watch;
mod watchers;
mod window;

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imbl::OrdSet;
use parking_lot::{Mutex, RwLock};
use store::kv::prefix_end;
use store::{RangeRequest, Store, StoreError};
use tokio::sync::watch as signal;
use tokio_util::sync::CancellationToken;

pub use encodings::Encodings;
pub use entry::{ByKey, EncodingId, Entry, EntryError, Normalize, Shape};
pub use scan::Path;
pub use watch::{From, Watch};
pub use watchers::{Delivery, Encoder, Kind, Selection, Traffic};
pub use window::{Change, Event};

use watchers::Watchers;
use window::Window;

/// How long a reader waits for the cache to reach the revision it needs, as upstream's `blockTimeout`.
const CATCH_UP: Duration = Duration::from_secs(3);
/// How often a waiting reader asks the store for progress again.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Why a cache cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cache did not reach `requested` in time. It stands at `current`; 0 if it was never filled.
    #[error("cache is at revision {current}, not yet at {requested}")]
    Behind { requested: i64, current: i64 },
    /// Events between `requested` and `oldest` are gone.
    #[error("too old resource version: {requested} ({oldest})")]
    TooOld { requested: i64, oldest: i64 },
}

/// A resource's objects at one revision. Taking and keeping one costs nothing but the objects it keeps alive.
#[derive(Clone)]
pub struct Snapshot {
    pub entries: OrdSet<ByKey>,
    /// Every change up to here is in.
    pub revision: i64,
    /// The newest change that is in: the snapshot is the state at any revision from this to `revision`.
    pub changed: i64,
}

impl Snapshot {
    pub fn get(&self, key: &[u8]) -> Option<&Arc<Entry>> {
        self.entries.get(key).map(|found| &found.0)
    }

    /// Entries whose keys start with `prefix`, from `start` on (inclusive; empty: from the first).
    pub fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        start: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
        let from = if start > prefix { start } else { prefix };
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        self.entries
            .range::<_, [u8]>(bounds)
            .map(|found| &found.0)
            .take_while(move |entry| entry.key().starts_with(prefix))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().map(|found| &found.0)
    }
}

struct State {
    entries: OrdSet<ByKey>,
    /// Of all entries' JSON.
    bytes: usize,
    revision: i64,
    changed: i64,
    window: Window,
}

/// One resource's cache. Shared; every method may be called from many tasks.
pub struct Cache {
    store: Arc<dyn Store>,
    shape: Arc<Shape>,
    /// Written by `feed` alone.
    state: RwLock<State>,
    /// Locked before `state`: who registers sees either all or nothing of an event.
    watchers: Mutex<Watchers>,
    /// `State::revision`, to wait on; 0 until filled.
    revision: signal::Sender<i64>,
    stop: CancellationToken,
    /// Cancelled when watches shall end.
    draining: CancellationToken,
}

impl Cache {
    /// A cache that is filled by `run`, which ends its watches when `draining` and itself when `stop` is cancelled.
    pub fn new(
        store: Arc<dyn Store>,
        shape: Arc<Shape>,
        stop: CancellationToken,
        draining: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            shape,
            state: RwLock::new(State {
                entries: OrdSet::new(),
                bytes: 0,
                revision: 0,
                changed: 0,
                window: Window::default(),
            }),
            watchers: Mutex::default(),
            revision: signal::Sender::new(0),
            stop,
            draining,
        })
    }

    /// What has gone through to the watches.
    pub fn traffic(&self) -> Traffic {
        self.watchers.lock().traffic()
    }

    /// Most events kept for watches that begin in the past.
    pub fn capacity(&self) -> usize {
        window::MAX_EVENTS
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The revision the cache has reached; 0 while it is not filled.
    pub fn revision(&self) -> i64 {
        *self.revision.borrow()
    }

    /// Announces every new revision.
    pub fn subscribe(&self) -> signal::Receiver<i64> {
        self.revision.subscribe()
    }

    /// The revision of the newest change of this resource: moves whenever the objects do.
    pub fn changed(&self) -> i64 {
        self.state.read().changed
    }

    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.read();
        Snapshot {
            entries: state.entries.clone(),
            revision: state.revision,
            changed: state.changed,
        }
    }

    /// How many objects there are and how large they are together; `None` while the cache is not filled.
    pub fn size(&self) -> Option<(usize, usize)> {
        let state = self.state.read();
        (state.revision > 0).then(|| (state.entries.len(), state.bytes))
    }

    /// How many watches an event of one key of a namespace (`scope`) would go to, selectors aside.
    pub fn interested(&self, scope: &[u8], key: &[u8]) -> usize {
        let all = &self.shape.prefix;
        self.watchers.lock().interested(all, scope, key)
    }

    /// The entry of a key as the cache has it now.
    pub fn get(&self, key: &[u8]) -> Option<Arc<Entry>> {
        let state = self.state.read();
        state.entries.get(key).map(|found| found.0.clone())
    }

    /// Reads one key from the store, consistently. The cache's entry is reused when it is the same state, so that
    /// what was encoded once is not encoded again.
    pub async fn read(&self, key: &Bytes) -> Result<(Option<Arc<Entry>>, i64), ReadError> {
        let response = self
            .store
            .range(RangeRequest {
                key: key.clone(),
                ..RangeRequest::default()
            })
            .await?;
        let Some(kv) = response.kvs.first() else {
            return Ok((None, response.revision));
        };
        if let Some(entry) = self.get(key)
            && entry.revision() == kv.mod_revision
        {
            return Ok((Some(entry), response.revision));
        }
        let entry = Entry::new(&self.shape, kv)?;
        Ok((Some(Arc::new(entry)), response.revision))
    }

    /// Reads the objects under `prefix` as they were at `revision` (0: now) from the store's history. `limit` 0 is all.
    pub async fn read_range(
        &self,
        prefix: &Bytes,
        start: &Bytes,
        revision: i64,
        limit: usize,
    ) -> Result<(Vec<Arc<Entry>>, store::RangeResponse), StoreError> {
        let mut response = self
            .store
            .range(RangeRequest {
                key: if start > prefix {
                    start.clone()
                } else {
                    prefix.clone()
                },
                range_end: Some(prefix_end(prefix)),
                limit,
                revision,
                ..RangeRequest::default()
            })
            .await?;
        let entries = std::mem::take(&mut response.kvs)
            .iter()
            .filter_map(|kv| self.make_entry(kv))
            .collect();
        Ok((entries, response))
    }

    /// Waits until the cache has every write the store acknowledged before the call.
    pub async fn catch_up(&self) -> Result<(), CacheError> {
        let revision = self.store.revision().await?;
        self.wait(revision).await
    }

    /// Waits until the cache has reached `revision`.
    pub async fn wait(&self, revision: i64) -> Result<(), CacheError> {
        let revision = revision.max(1);
        if self.revision() >= revision {
            return Ok(());
        }
        let mut signal = self.revision.subscribe();
        let deadline = tokio::time::Instant::now() + CATCH_UP;
        loop {
            // Events of other resources move the store's revision without telling this cache: ask for a sign.
            if self.revision() > 0 {
                self.store.request_progress().await?;
            }
            let until = deadline.min(tokio::time::Instant::now() + PROGRESS_EVERY);
            let reached = signal.wait_for(|current| *current >= revision);
            match tokio::time::timeout_at(until, reached).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => break,
                Err(_) if tokio::time::Instant::now() >= deadline => break,
                Err(_) => {}
            }
        }
        Err(CacheError::Behind {
            requested: revision,
            current: self.revision(),
        })
    }

    /// Waits until the cache is filled.
    pub async fn filled(&self) -> Result<(), CacheError> {
        self.wait(1).await
    }

    /// Sends bookmarks to the watchers that want them and have not heard of the cache's revision.
    pub fn send_bookmarks(&self) {
        let mut watchers = self.watchers.lock();
        if !watchers.is_empty() {
            watchers.bookmark(self.revision());
        }
    }

    /// Whether anybody would get a bookmark.
    pub fn wants_bookmarks(&self) -> bool {
        self.watchers.lock().wants_bookmarks()
    }

    pub fn watcher_count(&self) -> usize {
        self.watchers.lock().len()
    }

    /// Drops what was encoded of objects and not used lately; `Encodings::begin_sweep` comes first.
    pub fn sweep_encodings(&self) {
        self.snapshot()
            .iter()
            .for_each(|entry| entry.let_go_unused());
    }

    fn make_entry(&self, kv: &store::KeyValue) -> Option<Arc<Entry>> {
        match Entry::new(&self.shape, kv) {
            Ok(entry) => Some(Arc::new(entry)),
            Err(error) => {
                let key = String::from_utf8_lossy(&kv.key);
                tracing::error!(%error, %key, revision = kv.mod_revision, "stored object is left out");
                None
            }
        }
    }
}

/// Why one object cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Entry(#[from] EntryError),
}

#[cfg(test)]
mod tests;
