//! The writer's inbox: many tasks put commands in, one thread takes all of them out at once.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::log::{BaseError, Written};
use super::request::{Transaction, TransactionOutcome};
use crate::kv::{Lease, StoreError};

/// Commands waiting or being committed. With the etcd front's request limit of 1.5 MiB this is 1.5 GiB at
/// worst, and a few megabytes in practice; it is far above the number of clients that wait at one time.
const QUEUE: usize = 1024;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What only the writer may do.
pub(crate) enum Command {
    Transact(Transaction, Reply<TransactionOutcome>),
    Grant {
        id: i64,
        ttl: i64,
        reply: Reply<Lease>,
    },
    Revoke(i64, Reply<()>),
    /// Records durably that a lease is being kept alive.
    Renewed(i64, Reply<()>),
    Compact(i64, Reply<()>),
    /// The checkpoint thread has ended.
    Checkpointed(Result<Written, BaseError>),
}

/// A command and its place in the queue, which is free again once the command was answered.
pub(crate) struct Queued {
    pub command: Command,
    pub permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    inbox: Mutex<Inbox>,
    ready: Condvar,
    space: Arc<Semaphore>,
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Queued>,
    /// The store was dropped or broke; nothing is taken any more.
    closed: Option<StoreError>,
    shut: bool,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox")
            .field("commands", &self.commands.len())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl Queue {
    pub fn new() -> Self {
        Self {
            inbox: Mutex::default(),
            ready: Condvar::new(),
            space: Arc::new(Semaphore::new(QUEUE)),
        }
    }

    /// Puts a command in, waiting for space, and waits for its answer.
    pub async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let permit = self
            .space
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        let (reply, answer) = oneshot::channel();
        {
            let mut inbox = self.inbox.lock();
            if let Some(error) = &inbox.closed {
                return Err(error.clone());
            }
            inbox.commands.push(Queued {
                command: command(reply),
                permit: Some(permit),
            });
        }
        self.ready.notify_one();
        answer
            .await
            .map_err(|_| StoreError::Unavailable("the store is closed".into()))?
    }

    /// Puts a command of the store's own in.
    pub fn tell(&self, command: Command) {
        self.inbox.lock().commands.push(Queued {
            command,
            permit: None,
        });
        self.ready.notify_one();
    }

    /// Everything that waits, or nothing once `deadline` passed; `None` when the store is shut.
    pub fn take(&self, deadline: Option<Instant>) -> Option<Vec<Queued>> {
        let mut inbox = self.inbox.lock();
        loop {
            if !inbox.commands.is_empty() {
                return Some(std::mem::take(&mut inbox.commands));
            }
            if inbox.shut {
                return None;
            }
            match deadline {
                None => self.ready.wait(&mut inbox),
                Some(deadline) => {
                    if self.ready.wait_until(&mut inbox, deadline).timed_out() {
                        return Some(std::mem::take(&mut inbox.commands));
                    }
                }
            }
        }
    }

    /// Errs once commands are refused.
    pub fn check(&self) -> Result<(), StoreError> {
        match &self.inbox.lock().closed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Takes no more commands; whoever asks gets `error`.
    pub fn refuse(&self, error: StoreError) {
        self.inbox.lock().closed.get_or_insert(error);
    }

    /// The writer is gone: what waits is dropped, which tells its askers.
    pub fn abandon(&self) {
        self.refuse(StoreError::Broken("the store's writer ended".into()));
        self.inbox.lock().commands.clear();
    }

    /// Lets the writer finish what waits and end.
    pub fn shut(&self) {
        self.refuse(StoreError::Unavailable("the store is closed".into()));
        self.inbox.lock().shut = true;
        self.ready.notify_one();
    }
}
