//! Fills a cache from the store and keeps it current: one range, then one watch, for as long as the server lives.
//!
//! A watch that breaks is resumed behind the last revision seen. Only when that has been compacted are the objects
//! read anew; then the watchers are ended, since the cache cannot tell them what happened in between.

use std::sync::Arc;
use std::time::Duration;

use store::kv::prefix_end;
use store::{Event as StoreEvent, EventKind, RangeRequest, StoreError, WatchRequest};

use super::entry::{ByKey, Entry};
use super::window::{Change, Event, Window};
use super::{Cache, State};

/// Objects read in one range while filling: at 4.5 KB each, half of gRPC's 4 MiB message limit.
const PAGE: usize = 500;
const BACKOFF: [Duration; 6] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

impl Cache {
    /// Follows the store until the cache is stopped. Store errors are retried for ever, with back-off. Watches end
    /// when the server drains.
    pub async fn run(self: Arc<Self>) {
        let (stop, draining) = (self.stop.clone(), self.draining.clone());
        let drain = async {
            draining.cancelled().await;
            self.watchers.lock().close();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.follow() => {}
            () = drain => {}
            () = stop.cancelled() => {}
        }
        self.watchers.lock().close();
    }

    async fn follow(&self) {
        let mut failures = 0;
        loop {
            let before = self.revision();
            let error = match self.follow_once().await {
                Ok(()) => StoreError::Unavailable("watch ended".to_owned()),
                Err(error) => error,
            };
            if let StoreError::Compacted { .. } = error {
                self.reset();
            }
            if self.revision() > before {
                failures = 0;
            }
            let prefix = String::from_utf8_lossy(&self.shape.prefix);
            tracing::warn!(%error, %prefix, "cache lost its watch and resumes");
            tokio::time::sleep(BACKOFF[failures.min(BACKOFF.len() - 1)]).await;
            failures += 1;
        }
    }

    async fn follow_once(&self) -> Result<(), StoreError> {
        if self.revision() == 0 {
            self.fill().await?;
        }
        let mut stream = self
            .store
            .watch(WatchRequest {
                key: self.shape.prefix.clone(),
                range_end: Some(prefix_end(&self.shape.prefix)),
                start_revision: self.revision() + 1,
                prev_kv: false,
                progress_notify: true,
            })
            .await?;
        while let Some(batch) = stream.receiver.recv().await {
            let batch = batch?;
            self.apply(batch.revision, &batch.events);
        }
        Ok(())
    }

    async fn fill(&self) -> Result<(), StoreError> {
        let end = prefix_end(&self.shape.prefix);
        let mut entries = Vec::new();
        let mut key = self.shape.prefix.clone();
        let mut revision = 0;
        loop {
            let page = self
                .store
                .range(RangeRequest {
                    key: key.clone(),
                    range_end: Some(end.clone()),
                    limit: PAGE,
                    revision,
                    ..RangeRequest::default()
                })
                .await?;
            if revision == 0 {
                revision = page.revision;
            }
            entries.extend(page.kvs.iter().filter_map(|kv| self.make_entry(kv)));
            match page.kvs.last() {
                Some(last) if page.more => key = after(&last.key),
                _ => break,
            }
        }
        {
            let _watchers = self.watchers.lock();
            let mut state = self.state.write();
            *state = State {
                bytes: entries.iter().map(|entry| entry.json_len()).sum(),
                entries: entries.into_iter().map(ByKey).collect(),
                revision,
                // Deletions leave no trace in the objects: the state may be as new as the revision.
                changed: revision,
                window: Window::starting_at(revision),
            };
        }
        self.revision.send_replace(revision);
        Ok(())
    }

    fn reset(&self) {
        let mut watchers = self.watchers.lock();
        watchers.clear();
        self.state.write().revision = 0;
        self.revision.send_replace(0);
    }

    /// Takes in one transaction's events (or a sign of progress) and tells the watchers.
    fn apply(&self, revision: i64, changes: &[StoreEvent]) {
        let made: Vec<Option<Arc<Entry>>> = changes
            .iter()
            .map(|change| match change.kind {
                EventKind::Put => self.make_entry(&change.kv),
                EventKind::Delete => None,
            })
            .collect();
        let mut watchers = self.watchers.lock();
        let mut events = Vec::with_capacity(changes.len());
        {
            let mut state = self.state.write();
            for (change, entry) in changes.iter().zip(made) {
                if let Some(event) = state.apply(change, entry) {
                    let event = Arc::new(event);
                    state.window.push(event.clone());
                    events.push(event);
                }
            }
            state.revision = state.revision.max(revision);
            if let Some(last) = changes.last() {
                state.changed = last.kv.mod_revision;
            }
        }
        self.revision.send_if_modified(|current| {
            let moved = *current < revision;
            *current = revision.max(*current);
            moved
        });
        watchers.dispatch(&events);
    }
}

impl State {
    fn apply(&mut self, change: &StoreEvent, entry: Option<Arc<Entry>>) -> Option<Event> {
        let revision = change.kv.mod_revision;
        match entry {
            Some(entry) => {
                let previous = self.entries.insert(ByKey(entry.clone())).map(|old| old.0);
                self.bytes += entry.json_len();
                if let Some(previous) = &previous {
                    self.bytes -= previous.json_len();
                    previous.let_go();
                }
                Some(Event {
                    change: if previous.is_some() {
                        Change::Modified
                    } else {
                        Change::Added
                    },
                    revision,
                    entry,
                    previous,
                })
            }
            // Deleted, or replaced by bytes that are no object: either way the object is gone.
            None => {
                let last = self.entries.remove(&change.kv.key[..])?.0;
                self.bytes -= last.json_len();
                last.let_go();
                Some(Event {
                    change: Change::Deleted,
                    revision,
                    entry: last,
                    previous: None,
                })
            }
        }
    }
}

/// The first key after `key`.
pub(super) fn after(key: &bytes::Bytes) -> bytes::Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}
