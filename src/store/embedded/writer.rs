//! The one thread that changes the store: it drains the queue, applies a group of commands to its own view,
//! makes the group durable, publishes it, and only then answers and tells the watchers.
//!
//! ```text
//!   tasks ──▶ Queue ──▶ apply to Working ──▶ log: write, fdatasync ──▶ publish View + history
//!                                                                        ├──▶ watchers
//!                                                                        └──▶ answers
//! ```
//!
//! While a group is on its way to the disk the next one gathers in the queue, so groups are as large as the
//! load makes them. Lease expiry and progress batches are alarms of the same thread. Without an alarm it
//! sleeps until a command comes, so an idle store costs nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::apply::Working;
use super::lease::Deadlines;
use super::log::{AppendError, BaseError, FrameBuilder, Log, Written};
use super::queue::{Command, Queued, Reply};
use super::request::TransactionOutcome;
use super::version::Version;
use super::view::Record;
use crate::kv::{Lease, StoreError};

/// Bytes after which a group is committed although more commands wait. A group is larger than this by at
/// most one request.
pub(crate) const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Milliseconds until a lease's end is tried again that the disk had no room for.
const EXPIRE_AGAIN: i64 = 1000;
/// What a superseded version costs beside its value, in bytes.
const VERSION_BYTES: usize = 200;

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

    /// The group did not happen. What was refused anyway stays refused for its own reason.
    fn fail(self, error: &StoreError) -> Self {
        match self {
            Answer::Transact(reply, Ok(_)) => Answer::Transact(reply, Err(error.clone())),
            Answer::Lease(reply, Ok(_)) => Answer::Lease(reply, Err(error.clone())),
            Answer::Done(reply, Ok(())) => Answer::Done(reply, Err(error.clone())),
            refused => refused,
        }
    }
}

/// Commands applied but not committed.
#[derive(Default)]
struct Group {
    answers: Vec<Answer>,
    /// Given back with the answers, so that the queue's bound covers a command until then.
    permits: Vec<OwnedSemaphorePermit>,
    renewed: Vec<i64>,
    /// Records of `Working::pending` that are in the frame.
    encoded: usize,
    frame: FrameBuilder,
    /// The values in the frame and where.
    values: Vec<(Arc<Version>, usize)>,
}

/// The bounds a writer keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Records the history may hold before the oldest are compacted away unasked.
    pub history: usize,
    /// Bytes of superseded values that stay in memory for watchers that are a little late.
    pub superseded_bytes: usize,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    working: Working,
    deadlines: Deadlines,
    limits: Limits,
    /// `None`: the store is in memory only.
    log: Option<Log>,
    group: Group,
    superseded: Superseded,
    checkpoint: Option<JoinHandle<()>>,
}

/// Old versions whose values are still in memory, oldest first.
#[derive(Default)]
struct Superseded {
    versions: VecDeque<Arc<Version>>,
    bytes: usize,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue.abandon();
        if let Some(checkpoint) = self.checkpoint.take()
            && checkpoint.join().is_err()
        {
            tracing::error!("writing a checkpoint had panicked");
        }
    }
}

impl Writer {
    pub fn new(shared: Arc<Shared>, log: Option<Log>, limits: Limits) -> Self {
        let view = shared.feed.published.read().view.clone();
        let mut deadlines = Deadlines::default();
        for lease in view.leases.values() {
            deadlines.add(lease.deadline(), lease.id);
        }
        Self {
            shared,
            working: Working::new(view),
            deadlines,
            limits,
            log,
            group: Group::default(),
            superseded: Superseded::default(),
            checkpoint: None,
        }
    }

    /// Runs until the store is shut or the disk fails.
    pub fn run(mut self) {
        while let Some(commands) = self.shared.queue.take(self.alarm()) {
            if let Err(error) = self.round(commands) {
                tracing::error!(%error, "the store takes no more writes");
                self.shared.queue.refuse(error);
                return;
            }
            self.shared.feed.progress_alarm(Instant::now());
        }
    }

    fn alarm(&self) -> Option<Instant> {
        let lease = self
            .deadlines
            .next()
            .map(|at| self.shared.clock.instant(at));
        let progress = self.shared.feed.progress_due();
        [lease, progress].into_iter().flatten().min()
    }

    fn round(&mut self, commands: Vec<Queued>) -> Result<(), StoreError> {
        for Queued { command, permit } in commands {
            self.apply(command);
            self.group.permits.extend(permit);
            self.encode();
            if self.group.frame.len() >= GROUP_BYTES {
                self.commit()?;
            }
        }
        self.expire();
        self.limit_history();
        self.commit()
    }

    fn apply(&mut self, command: Command) {
        let answer = match command {
            Command::Transact(transaction, reply) => {
                let result = self.working.transact(&self.shared, &transaction);
                Answer::Transact(reply, result)
            }
            Command::Grant { id, ttl, reply } => Answer::Lease(reply, self.grant(id, ttl)),
            Command::Revoke(id, reply) => Answer::Done(reply, self.revoke(id)),
            Command::Renewed(id, reply) => Answer::Done(reply, self.renew(id)),
            Command::Compact(revision, reply) => Answer::Done(reply, self.compact(revision)),
            Command::Checkpointed(result) => return self.checkpointed(result),
        };
        self.group.answers.push(answer);
    }

    fn grant(&mut self, id: i64, ttl: i64) -> Result<Lease, StoreError> {
        let clock = self.shared.clock;
        let lease = self.working.grant(id, ttl, clock.now())?;
        let deadline = self.working.view.lease(lease.id)?.deadline();
        self.deadlines.add(deadline, lease.id);
        self.group
            .frame
            .lease(lease.id, lease.ttl, clock.to_unix(deadline), false);
        Ok(lease)
    }

    fn revoke(&mut self, id: i64) -> Result<(), StoreError> {
        self.working.revoke(id)?;
        self.group.frame.revoke(id);
        Ok(())
    }

    fn renew(&mut self, id: i64) -> Result<(), StoreError> {
        let lease = self.working.view.lease(id)?;
        let deadline = self.shared.clock.to_unix(lease.deadline());
        self.group.frame.lease(id, lease.ttl, deadline, true);
        self.group.renewed.push(id);
        Ok(())
    }

    fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        self.working.compact(revision)?;
        self.group.frame.compact(revision);
        Ok(())
    }

    fn expire(&mut self) {
        let now = self.shared.clock.now();
        for id in self.deadlines.take_expired(&self.working.view, now) {
            tracing::debug!(lease = id, "lease expired");
            // It was just found in the view.
            let _ = self.revoke(id);
            self.encode();
        }
    }

    /// Keeps the history bounded when nobody compacts.
    fn limit_history(&mut self) {
        let limit = self.limits.history;
        let published = self.shared.feed.published.read();
        let length = published.history.len();
        if length <= limit {
            return;
        }
        // A quarter goes at once, so that this is rare.
        let keep = limit - limit / 4;
        let floor = published.history[length - keep].revision();
        drop(published);
        if self.compact(floor).is_ok() {
            tracing::debug!(floor, "compacting, since the history is full");
        }
    }

    /// Puts the records that are new into the frame.
    fn encode(&mut self) {
        let group = &mut self.group;
        let mut revision = 0;
        for record in &self.working.pending[group.encoded..] {
            if self.log.is_none() {
                continue;
            }
            if record.revision() != revision {
                revision = record.revision();
                group.frame.transaction(revision);
            }
            let now = &record.now;
            if now.is_delete() {
                group.frame.delete(&now.key);
            } else {
                // A version gives up its value only once it is on the disk.
                let value = now.hot().unwrap_or_default();
                let offset = group.frame.put(&now.key, &value, now.lease);
                group.values.push((now.clone(), offset));
            }
        }
        group.encoded = self.working.pending.len();
    }

    /// Makes what was applied durable, shows it, and answers.
    fn commit(&mut self) -> Result<(), StoreError> {
        let appended = self.append();
        let mut answers = std::mem::take(&mut self.group.answers);
        let result = match appended {
            Ok(()) => {
                self.publish();
                Ok(())
            }
            Err(AppendError::NoSpace) => {
                tracing::warn!("no space left for the store; refusing writes");
                self.roll_back();
                answers = fail(answers, &StoreError::NoSpace);
                Ok(())
            }
            Err(AppendError::Io(error)) => {
                let error = StoreError::Broken(error.to_string());
                answers = fail(answers, &error);
                Err(error)
            }
        };
        self.group.renewed.clear();
        self.group.values.clear();
        self.group.encoded = 0;
        self.group.frame.clear();
        self.group.frame.shrink(GROUP_BYTES / 4);
        answers.into_iter().for_each(Answer::send);
        self.group.permits.clear();
        result
    }

    fn append(&mut self) -> Result<(), AppendError> {
        let group = &mut self.group;
        match &mut self.log {
            Some(log) if !group.frame.is_empty() => {
                log.append(&mut group.frame, &group.values, self.working.view.revision)
            }
            _ => Ok(()),
        }
    }

    /// Forgets what the disk had no room for.
    fn roll_back(&mut self) {
        self.working.pending.clear();
        self.working.view = self.shared.feed.published.read().view.clone();
        // A lease that had expired is still there, and is tried again a little later.
        let soon = self.shared.clock.now() + EXPIRE_AGAIN;
        for lease in self.working.view.leases.values() {
            self.deadlines.add(lease.deadline().max(soon), lease.id);
        }
    }

    /// Makes the working state the one that readers see, and tells the watchers.
    fn publish(&mut self) {
        for id in &self.group.renewed {
            if let Ok(lease) = self.working.view.lease(*id) {
                lease.set_renewed();
            }
        }
        let pending = std::mem::take(&mut self.working.pending);
        let view = self.working.view.clone();
        let floor = view.compacted;
        let old_floor = self.shared.feed.publish(view, &pending).compacted;
        self.cool(pending);
        if floor > old_floor {
            self.shared.feed.trim(floor);
            self.start_checkpoint(floor);
        }
    }

    /// Lets old values go from memory that can be read from the disk.
    fn cool(&mut self, records: Vec<Record>) {
        if self.log.is_none() {
            return;
        }
        for prev in records.into_iter().filter_map(|record| record.prev) {
            self.superseded.bytes += prev.length() + VERSION_BYTES;
            self.superseded.versions.push_back(prev);
        }
        while self.superseded.bytes > self.limits.superseded_bytes {
            let Some(version) = self.superseded.versions.pop_front() else {
                break;
            };
            self.superseded.bytes -= version.length() + VERSION_BYTES;
            version.cool();
        }
    }

    fn start_checkpoint(&mut self, floor: i64) {
        if self.checkpoint.is_some() {
            return;
        }
        let Some(job) = self.log.as_mut().and_then(|log| log.plan_base(floor)) else {
            return;
        };
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("store-checkpoint".into());
        let started = thread.spawn(move || {
            let result = job.run(&shared);
            shared.queue.tell(Command::Checkpointed(result));
        });
        match started {
            Ok(thread) => self.checkpoint = Some(thread),
            Err(error) => tracing::warn!(%error, "cannot start a thread for a checkpoint"),
        }
    }

    fn checkpointed(&mut self, result: Result<Written, BaseError>) {
        if let Some(thread) = self.checkpoint.take() {
            // It has nothing left to do.
            let _ = thread.join();
        }
        match (result, &mut self.log) {
            (Ok(written), Some(log)) => log.adopt_base(written),
            (Err(BaseError::Closed), _) | (Ok(_), None) => {}
            // The next compaction tries again.
            (Err(error), _) => tracing::warn!(%error, "no checkpoint was written"),
        }
    }
}

fn fail(answers: Vec<Answer>, error: &StoreError) -> Vec<Answer> {
    answers
        .into_iter()
        .map(|answer| answer.fail(error))
        .collect()
}
