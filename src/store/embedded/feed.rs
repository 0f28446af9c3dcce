//! What is published: the newest view, the changes that led to it, and the watchers who are told of them.
//!
//! The embedded store publishes what its log has made durable; the etcd backend publishes what an etcd tells it,
//! with an empty view, so that one watch on the etcd serves all watchers.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::files::Files;
use super::view::{Record, View, records_after};
use super::watch::Watchers;
use crate::kv::StoreError;

/// Records dropped from the history under the lock at a time: some 100 µs.
const TRIM_CHUNK: usize = 4096;

/// Shared by the publisher, the readers and the watchers.
#[derive(Debug)]
pub(crate) struct Feed {
    /// Written by the publisher alone.
    pub published: RwLock<Published>,
    /// Locked before `published` where both are needed.
    pub watchers: Mutex<Watchers>,
    pub files: Arc<Files>,
    pub closed: CancellationToken,
    /// The tasks of watchers that are catching up; `closed` ends them.
    pub catching_up: TaskTracker,
    past: Past,
}

#[derive(Debug)]
pub(crate) struct Published {
    pub view: View,
    /// Every change at or after the view's compaction floor, oldest first.
    pub history: VecDeque<Record>,
}

/// What a history that does not go back far enough means to a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// The store has compacted it.
    Compacted,
    /// It is only a window: the watcher was too slow for it.
    Window,
}

impl Feed {
    pub fn new(published: Published, files: Arc<Files>, past: Past) -> Self {
        Self {
            watchers: Mutex::new(Watchers::new(published.view.revision)),
            published: RwLock::new(published),
            files,
            closed: CancellationToken::new(),
            catching_up: TaskTracker::new(),
            past,
        }
    }

    /// Shows readers a new view and the watchers its changes. Returns the old view, to be freed by the caller.
    pub fn publish(self: &Arc<Self>, view: View, records: &[Record]) -> View {
        let revision = view.revision;
        let old = {
            let mut published = self.published.write();
            published.history.extend(records.iter().cloned());
            std::mem::replace(&mut published.view, view)
        };
        if !records.is_empty() {
            self.deliver(records, revision);
        }
        old
    }

    /// Forgets the records below the floor.
    pub fn trim(&self, floor: i64) {
        loop {
            let mut published = self.published.write();
            let end = records_after(&published.history, floor - 1).min(TRIM_CHUNK);
            let gone: Vec<_> = published.history.drain(..end).collect();
            if gone.is_empty() {
                // What a burst needed is given back.
                let length = published.history.len();
                published.history.shrink_to(2 * length + TRIM_CHUNK);
                return;
            }
            drop(published);
            drop(gone);
        }
    }

    /// Ends every watch.
    pub fn close(&self) {
        self.closed.cancel();
        self.end_watches(&StoreError::Unavailable("the store is closed".into()));
    }

    pub fn overtaken(&self, requested: i64, floor: i64) -> StoreError {
        match self.past {
            Past::Compacted => StoreError::Compacted {
                requested,
                compacted: floor,
            },
            Past::Window => StoreError::SlowWatcher,
        }
    }
}
