//! Watchers: who wants which keys from which revision, and how they get them.
//!
//! ```text
//!             publish                       queue full
//! publisher ──────────▶ synced watcher ────────────────▶ catching up ──▶ (compacted: dropped)
//!                             ▲                               │
//!                             └───────────────────────────────┘ read everything from the history
//! ```
//!
//! A watcher that keeps up gets its events straight from the publisher. One that starts in the past or whose
//! queue is full is served by a task of its own out of the history, at its own pace, and never slows the
//! others; when the compaction floor overtakes it, it is dropped with `Compacted`.
//!
//! **Invariant:** a watcher's `next` is the first revision it was not given; only the publisher (synced) or its
//! task (catching up) moves it, under the registry's lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::feed::Feed;
use super::files::Files;
use super::range::KeyRange;
use super::view::{Record, records_after};
use crate::kv::{Event, EventKind, KeyValue, StoreError, WatchBatch, WatchRequest, WatchStream};

/// Batches a watcher may leave undrained before it has to catch up from the history. A batch is one commit
/// group of at most `writer::GROUP_BYTES` (4 MiB), so a stuck watcher holds on to 256 MiB at the very worst
/// and usually to a few hundred kilobytes, since most groups are one object.
pub(crate) const WATCH_QUEUE: usize = 64;
/// Events in one batch read from the history (whole transactions, so it may be exceeded by one).
const CATCH_UP_EVENTS: usize = 1000;
/// Value bytes in one batch read from the history, likewise.
const CATCH_UP_BYTES: usize = 256 * 1024;
/// Records looked at under the lock at a time: some 100 µs.
const CATCH_UP_SCAN: usize = 8192;
/// How long a watcher with `progress_notify` may be left behind the store's revision.
pub(crate) const PROGRESS_DELAY: Duration = Duration::from_secs(5);
/// Registrations after which watchers whose receiver is gone are looked for.
const SWEEP_EVERY: usize = 16;

pub(crate) type Sender = mpsc::Sender<Result<WatchBatch, StoreError>>;

/// All watchers of a store.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    by_id: HashMap<u64, Watcher>,
    last_id: u64,
    /// Registrations since the last sweep.
    registered: usize,
    /// Everything up to this revision has been handed to the synced watchers. Written by the publisher.
    delivered: i64,
    /// Someone asked for progress; it is sent with every delivery until this revision was delivered.
    progress_until: i64,
    /// Why there are no watchers any more, nor will be.
    ended: Option<StoreError>,
    /// When the watchers that were left behind get their progress batch. The publisher's alarm.
    progress_due: Option<Instant>,
}

#[derive(Debug)]
struct Watcher {
    range: KeyRange,
    prev_kv: bool,
    progress: bool,
    sender: Sender,
    next: i64,
    /// The last revision the receiver heard of, 0 before the first batch.
    told: i64,
    synced: bool,
    /// Which of its catch-up tasks, counted from 1, was started last.
    attempt: u64,
    runtime: Handle,
}

/// A task's share of a watcher that is catching up.
struct CatchUp {
    feed: Arc<Feed>,
    id: u64,
    range: KeyRange,
    prev_kv: bool,
    sender: Sender,
    next: i64,
}

impl Watchers {
    pub fn new(revision: i64) -> Self {
        Self {
            delivered: revision,
            ..Self::default()
        }
    }

    fn sweep(&mut self) {
        self.registered += 1;
        if self.registered >= SWEEP_EVERY {
            self.registered = 0;
            self.by_id.retain(|_, watcher| !watcher.sender.is_closed());
        }
    }
}

impl Feed {
    /// Registers a watcher. Must be called on a tokio runtime, which serves it should it fall behind.
    pub fn watch(self: &Arc<Self>, request: WatchRequest) -> Result<WatchStream, StoreError> {
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        self.attach(request, sender)?;
        Ok(WatchStream { receiver })
    }

    /// Registers a watcher that has a queue.
    pub fn attach(
        self: &Arc<Self>,
        request: WatchRequest,
        sender: Sender,
    ) -> Result<(), StoreError> {
        let mut watchers = self.watchers.lock();
        if let Some(error) = &watchers.ended {
            return Err(error.clone());
        }
        watchers.sweep();
        let (revision, floor) = {
            let published = self.published.read();
            (published.view.revision, published.view.compacted)
        };
        let next = match request.start_revision {
            0 => revision + 1,
            start => start,
        };
        if next < floor {
            return Err(self.overtaken(next, floor));
        }
        watchers.last_id += 1;
        let id = watchers.last_id;
        let synced = next > revision;
        let mut watcher = Watcher {
            range: KeyRange::new(&request.key, request.range_end.as_ref()),
            prev_kv: request.prev_kv,
            progress: request.progress_notify,
            sender,
            next,
            told: 0,
            synced,
            attempt: 0,
            runtime: Handle::current(),
        };
        if !synced {
            watcher.catch_up(self, id);
        }
        watchers.by_id.insert(id, watcher);
        Ok(())
    }

    /// Hands published changes to the synced watchers. Called by the publisher alone.
    pub fn deliver(self: &Arc<Self>, records: &[Record], revision: i64) {
        let mut watchers = self.watchers.lock();
        let asked = watchers.progress_until > watchers.delivered;
        watchers.delivered = revision;
        let mut behind = false;
        watchers.by_id.retain(|&id, watcher| {
            if !watcher.synced {
                return true;
            }
            let wanted = records.iter().filter(|record| {
                record.revision() >= watcher.next && watcher.range.contains(&record.now.key)
            });
            let events: Result<Vec<Event>, StoreError> = wanted
                .map(|record| event(record, watcher.prev_kv, &self.files))
                .collect();
            match events {
                Ok(events) if events.is_empty() => {
                    watcher.next = watcher.next.max(revision + 1);
                    if watcher.is_behind(revision) {
                        if asked {
                            return watcher.send_progress(self, id, revision);
                        }
                        behind = true;
                    }
                    true
                }
                Ok(events) => watcher.send(self, id, WatchBatch { revision, events }),
                Err(error) => {
                    tracing::error!(%error, "dropping a watcher: its event cannot be read");
                    false
                }
            }
        });
        if behind && watchers.progress_due.is_none() {
            watchers.progress_due = Some(Instant::now() + PROGRESS_DELAY);
        }
    }

    /// Tells every synced watcher with `progress_notify` how far the store is, now, and again whenever there is
    /// news until everything up to `until` was delivered.
    pub fn request_progress(self: &Arc<Self>, until: i64) {
        let mut watchers = self.watchers.lock();
        watchers.progress_until = watchers.progress_until.max(until);
        self.send_progress(&mut watchers);
    }

    /// When `progress_alarm` is to be called; set by `deliver`.
    pub fn progress_due(&self) -> Option<Instant> {
        self.watchers.lock().progress_due
    }

    /// Tells those watchers that were left behind for a while how far the store is.
    pub fn progress_alarm(self: &Arc<Self>, now: Instant) {
        let mut watchers = self.watchers.lock();
        if watchers.progress_due.is_some_and(|due| due <= now) {
            watchers.progress_due = None;
            self.send_progress(&mut watchers);
        }
    }

    /// Gives every watcher an error and ends it; takes no more.
    pub fn end_watches(&self, error: &StoreError) {
        let mut watchers = self.watchers.lock();
        watchers.ended.get_or_insert_with(|| error.clone());
        for (_, watcher) in watchers.by_id.drain() {
            // With a full queue the end of the stream has to say it all.
            let _ = watcher.sender.try_send(Err(error.clone()));
        }
    }

    /// Whether the watches were ended.
    pub fn has_ended(&self) -> bool {
        self.watchers.lock().ended.is_some()
    }

    fn send_progress(self: &Arc<Self>, watchers: &mut Watchers) {
        let revision = watchers.delivered;
        watchers.by_id.retain(|&id, watcher| {
            !(watcher.synced && watcher.is_behind(revision))
                || watcher.send_progress(self, id, revision)
        });
    }
}

impl Watcher {
    fn is_behind(&self, revision: i64) -> bool {
        self.progress && self.told < revision && self.next > revision
    }

    fn send_progress(&mut self, feed: &Arc<Feed>, id: u64, revision: i64) -> bool {
        let events = Vec::new();
        self.send(feed, id, WatchBatch { revision, events })
    }

    /// Says whether the watcher is still there.
    fn send(&mut self, feed: &Arc<Feed>, id: u64, batch: WatchBatch) -> bool {
        let revision = batch.revision;
        match self.sender.try_send(Ok(batch)) {
            Ok(()) => {
                self.next = self.next.max(revision + 1);
                self.told = revision;
                true
            }
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.synced = false;
                self.catch_up(feed, id);
                true
            }
        }
    }

    fn catch_up(&mut self, feed: &Arc<Feed>, id: u64) {
        self.attempt += 1;
        let attempt = self.attempt;
        let task = CatchUp {
            feed: feed.clone(),
            id,
            range: self.range.clone(),
            prev_kv: self.prev_kv,
            sender: self.sender.clone(),
            next: self.next,
        };
        let closed = feed.closed.clone();
        let future = async move {
            // Made here and not captured: a runtime that is shutting down drops the future at once, and the
            // guard takes the lock that is held now.
            let _guard = Guard {
                feed: task.feed.clone(),
                id,
                attempt,
            };
            tokio::select! {
                () = task.run() => {}
                () = closed.cancelled() => {}
            }
        };
        feed.catching_up.spawn_on(future, &self.runtime);
    }
}

/// Takes a watcher away that nobody serves any more.
struct Guard {
    feed: Arc<Feed>,
    id: u64,
    attempt: u64,
}

impl Drop for Guard {
    /// However the task ends, a watcher nobody serves any more must not look alive.
    fn drop(&mut self) {
        let mut watchers = self.feed.watchers.lock();
        // It may be synced again, or even have fallen behind again and have another task.
        let mine = |watcher: &Watcher| !watcher.synced && watcher.attempt == self.attempt;
        if watchers.by_id.get(&self.id).is_some_and(mine) {
            watchers.by_id.remove(&self.id);
        }
    }
}

impl CatchUp {
    async fn run(mut self) {
        let mut told = 0;
        loop {
            if self.finish(told).await {
                return;
            }
            let batch = match self.next_batch().await {
                Ok(batch) => batch,
                Err(error) => {
                    // The receiver may be gone; then there is nobody to tell.
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
            };
            let revision = batch.revision;
            if !batch.events.is_empty() {
                if self.sender.send(Ok(batch)).await.is_err() {
                    return;
                }
                told = revision;
            }
            self.next = revision + 1;
        }
    }

    /// Hands the watcher back to the publisher once there is nothing left to read.
    async fn finish(&mut self, told: i64) -> bool {
        // Space for a progress batch is got first, since it cannot be waited for under the lock.
        let Ok(permit) = self.sender.reserve().await else {
            return true;
        };
        let mut watchers = self.feed.watchers.lock();
        let revision = self.feed.published.read().view.revision;
        if self.next <= revision {
            return false;
        }
        let Some(watcher) = watchers.by_id.get_mut(&self.id) else {
            return true;
        };
        watcher.next = self.next;
        watcher.told = watcher.told.max(told);
        watcher.synced = true;
        if watcher.is_behind(revision) {
            watcher.told = revision;
            permit.send(Ok(WatchBatch {
                revision,
                events: Vec::new(),
            }));
        }
        true
    }

    async fn next_batch(&self) -> Result<WatchBatch, StoreError> {
        let (records, revision) = self.collect()?;
        let prev_kv = self.prev_kv;
        let hot = |record: &Record| {
            record.now.hot().is_some()
                && (!prev_kv || record.prev.as_ref().is_none_or(|prev| prev.hot().is_some()))
        };
        let events = if records.iter().all(hot) {
            events(&records, prev_kv, &self.feed.files)?
        } else {
            let files = self.feed.files.clone();
            tokio::task::spawn_blocking(move || events(&records, prev_kv, &files))
                .await
                .map_err(|error| StoreError::Broken(format!("reading the history: {error}")))??
        };
        Ok(WatchBatch { revision, events })
    }

    /// The next records of the range, whole transactions only, and the revision they reach to.
    fn collect(&self) -> Result<(Vec<Record>, i64), StoreError> {
        let published = self.feed.published.read();
        if self.next < published.view.compacted {
            return Err(self.feed.overtaken(self.next, published.view.compacted));
        }
        let from = records_after(&published.history, self.next - 1);
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut last = self.next - 1;
        for (scanned, record) in published.history.range(from..).enumerate() {
            let full = scanned >= CATCH_UP_SCAN
                || found.len() >= CATCH_UP_EVENTS
                || bytes >= CATCH_UP_BYTES;
            if full && record.revision() > last {
                return Ok((found, last));
            }
            last = record.revision();
            if self.range.contains(&record.now.key) {
                bytes += record.now.length();
                found.push(record.clone());
            }
        }
        Ok((found, published.view.revision))
    }
}

fn events(records: &[Record], prev_kv: bool, files: &Files) -> Result<Vec<Event>, StoreError> {
    records
        .iter()
        .map(|record| event(record, prev_kv, files))
        .collect()
}

pub(crate) fn event(record: &Record, prev_kv: bool, files: &Files) -> Result<Event, StoreError> {
    let now = &record.now;
    let (kind, kv) = if now.is_delete() {
        let kv = KeyValue {
            key: now.key.clone(),
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: now.mod_revision,
            version: 0,
            lease: 0,
        };
        (EventKind::Delete, kv)
    } else {
        (EventKind::Put, now.to_kv(files, false)?)
    };
    let prev = match &record.prev {
        Some(prev) if prev_kv => match prev.to_kv(files, false) {
            Ok(prev) => Some(prev),
            // What was replaced at the compaction floor is gone, as in etcd.
            Err(StoreError::Compacted { .. }) => None,
            Err(error) => return Err(error),
        },
        _ => None,
    };
    Ok(Event { kind, kv, prev })
}
