//! The one thread that changes the store: it drains the queue, applies a group of commands to its own view,
//! makes the group durable, publishes it, and only then answers and tells the watchers.
//!
//! ```text
//!   tasks ──▶ Queue ──▶ apply to Working ──▶ log: write, fdatasync ──▶ publish View + history
//!                                                                        ├──▶ watchers
//!                                                                        └──▶ answers
//! ```
//!
//! Lease expiry and progress batches are alarms of the same thread. Without an alarm it sleeps until a
//! command comes, so an idle store costs nothing.

use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use super::apply::Working;
use super::lease::Deadlines;
use super::queue::{Command, Queued, Reply};
use super::request::TransactionOutcome;
use super::view::{View, records_after};
use super::watch;
use crate::kv::{Lease, StoreError};

/// Records dropped from the history under the lock at a time: some 100 µs.
const TRIM_CHUNK: usize = 4096;

/// An answer that waits for the group to be durable.
enum Answer {
    Transact(
        Reply<TransactionOutcome>,
        Result<TransactionOutcome, StoreError>,
    ),
    Lease(Reply<Lease>, Result<Lease, StoreError>),
    Done(Reply<()>, Result<(), StoreError>),
}

impl Answer {
    fn send(self) {
        // Whoever asked may have gone away meanwhile.
        match self {
            Answer::Transact(reply, result) => drop(reply.send(result)),
            Answer::Lease(reply, result) => drop(reply.send(result)),
            Answer::Done(reply, result) => drop(reply.send(result)),
        }
    }
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    working: Working,
    deadlines: Deadlines,
    /// Records the history may hold before the oldest are compacted away unasked.
    history_limit: usize,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue.abandon();
    }
}

impl Writer {
    pub fn new(shared: Arc<Shared>, history_limit: usize) -> Self {
        let view = shared.published.read().view.clone();
        let mut deadlines = Deadlines::default();
        for lease in view.leases.values() {
            deadlines.add(lease.deadline(), lease.id);
        }
        Self {
            shared,
            working: Working::new(view),
            deadlines,
            history_limit,
        }
    }

    /// Runs until the store is shut.
    pub fn run(mut self) {
        while let Some(group) = self.shared.queue.take(self.alarm()) {
            self.commit(group);
            watch::progress_alarm(&self.shared, Instant::now());
        }
    }

    fn alarm(&self) -> Option<Instant> {
        let lease = self
            .deadlines
            .next()
            .map(|at| self.shared.clock.instant(at));
        let progress = self.shared.watchers.lock().progress_due;
        [lease, progress].into_iter().flatten().min()
    }

    fn commit(&mut self, group: Vec<Queued>) {
        let floor = self.working.view.compacted;
        let mut answers = Vec::with_capacity(group.len());
        let mut permits = Vec::with_capacity(group.len());
        for Queued { command, _permit } in group {
            answers.push(self.apply(command));
            permits.push(_permit);
        }
        self.expire();
        self.limit_history();
        self.publish();
        if self.working.view.compacted > floor {
            self.trim();
        }
        answers.into_iter().for_each(Answer::send);
    }

    fn apply(&mut self, command: Command) -> Answer {
        match command {
            Command::Transact(transaction, reply) => {
                let result = self.working.transact(&self.shared, &transaction);
                Answer::Transact(reply, result)
            }
            Command::Grant { id, ttl, reply } => {
                let now = self.shared.clock.now();
                let result = self.working.grant(id, ttl, now);
                if let Ok(lease) = &result
                    && let Ok(state) = self.working.view.lease(lease.id)
                {
                    self.deadlines.add(state.deadline(), lease.id);
                }
                Answer::Lease(reply, result)
            }
            Command::Revoke(id, reply) => Answer::Done(reply, self.working.revoke(id)),
            Command::Renewed(id, reply) => {
                let result = self.working.view.lease(id).map(|lease| lease.set_renewed());
                Answer::Done(reply, result)
            }
            Command::Compact(revision, reply) => {
                Answer::Done(reply, self.working.compact(revision))
            }
        }
    }

    fn expire(&mut self) {
        let now = self.shared.clock.now();
        for id in self.deadlines.take_expired(&self.working.view, now) {
            tracing::debug!(lease = id, "lease expired");
            // It was just found in the view.
            let _ = self.working.revoke(id);
        }
    }

    /// Keeps the history bounded when nobody compacts.
    fn limit_history(&mut self) {
        let published = self.shared.published.read();
        let length = published.history.len();
        if length <= self.history_limit {
            return;
        }
        // A quarter goes at once, so that this is rare.
        let keep = self.history_limit - self.history_limit / 4;
        let floor = published.history[length - keep].revision();
        drop(published);
        if floor > self.working.view.compacted {
            tracing::debug!(floor, "compacting, since the history is full");
            self.working.view.compacted = floor;
        }
    }

    /// Makes the working state the one that readers see, and tells the watchers.
    fn publish(&mut self) {
        let pending = std::mem::take(&mut self.working.pending);
        let view = self.working.view.clone();
        let revision = view.revision;
        let old: View = {
            let mut published = self.shared.published.write();
            published.history.extend(pending.iter().cloned());
            std::mem::replace(&mut published.view, view)
        };
        // Freed outside the lock.
        drop(old);
        if !pending.is_empty() {
            watch::deliver(&self.shared, &pending, revision);
        }
    }

    /// Forgets the records below the compaction floor.
    fn trim(&self) {
        let floor = self.working.view.compacted;
        loop {
            let mut published = self.shared.published.write();
            let end = records_after(&published.history, floor - 1).min(TRIM_CHUNK);
            let gone: Vec<_> = published.history.drain(..end).collect();
            drop(published);
            if gone.is_empty() {
                return;
            }
        }
    }
}
