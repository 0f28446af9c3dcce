//! Runs requests on the writer's view: pure bookkeeping, no IO but for the rare read of an old value.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Shared;
use super::files::Files;
use super::lease::{self, LeaseState};
use super::range::KeyRange;
use super::request::{Action, Guard, Outcome, Query, Target, Transaction, TransactionOutcome};
use super::version::{Entry, Version};
use super::view::{Record, View, records_after, select, undo};
use crate::kv::{CompareOp, KeyValue, Lease, RangeResponse, StoreError};

/// The writer's state, ahead of what is published by the changes that are not durable yet.
pub(crate) struct Working {
    pub view: View,
    /// Changes since the last publication, in order.
    pub pending: Vec<Record>,
}

impl Working {
    pub fn new(view: View) -> Self {
        Self {
            view,
            pending: Vec::new(),
        }
    }

    /// Runs one transaction; it gets the next revision if it changes anything.
    ///
    /// On an error nothing has changed.
    pub fn transact(
        &mut self,
        shared: &Shared,
        transaction: &Transaction,
    ) -> Result<TransactionOutcome, StoreError> {
        let plan = self.plan(transaction, &shared.feed.files)?;
        // A lone action fails before it changes anything; only more need the way back (whose price is that
        // the maps' paths are copied once more).
        let saved = (plan.steps.len() > 1 || plan.nests()).then(|| self.view.clone());
        let first = self.pending.len();
        let mut run = Run {
            revision: self.view.revision + 1,
            working: self,
            shared,
        };
        let outcome = run.branch(&plan);
        let revision = run.revision;
        match outcome {
            Ok(mut outcome) => {
                if self.pending.len() > first {
                    self.view.revision = revision;
                }
                outcome.revision = self.view.revision;
                Ok(outcome)
            }
            Err(error) => {
                if let Some(saved) = saved {
                    self.view = saved;
                }
                self.pending.truncate(first);
                Err(error)
            }
        }
    }

    pub fn grant(&mut self, id: i64, ttl: i64, now: i64) -> Result<Lease, StoreError> {
        let ttl = lease::check_ttl(ttl)?;
        if id != 0 && self.view.leases.contains_key(&id) {
            return Err(StoreError::LeaseExists(id));
        }
        let id = match id {
            0 => lease::new_id(&self.view, self.view.revision),
            id => id,
        };
        let deadline = now.saturating_add(ttl.saturating_mul(1000));
        let lease = LeaseState::new(id, ttl, deadline, false);
        let report = lease.report(now);
        self.view.leases.insert(id, Arc::new(lease));
        Ok(report)
    }

    /// Deletes a lease and its keys, in one revision.
    pub fn revoke(&mut self, id: i64) -> Result<(), StoreError> {
        let lease = self
            .view
            .leases
            .remove(&id)
            .ok_or(StoreError::LeaseNotFound(id))?;
        let revision = self.view.revision + 1;
        for key in &lease.keys {
            if self.delete(key, revision).is_some() {
                self.view.revision = revision;
            }
        }
        Ok(())
    }

    /// Moves the compaction floor.
    pub fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        if revision > self.view.revision {
            return Err(StoreError::FutureRevision {
                requested: revision,
                current: self.view.revision,
            });
        }
        if revision <= self.view.compacted {
            return Err(StoreError::Compacted {
                requested: revision,
                compacted: self.view.compacted,
            });
        }
        self.view.compacted = revision;
        Ok(())
    }

    fn put(&mut self, key: Bytes, value: Bytes, lease: i64, revision: i64) -> Option<Arc<Version>> {
        let prev = self.view.get(&key).cloned();
        let (key, create, version, old_lease) = match &prev {
            // Sharing the key's bytes with the former version saves their memory.
            Some(prev) => (
                prev.key.clone(),
                prev.create_revision,
                prev.version + 1,
                prev.lease,
            ),
            None => (key, revision, 1, 0),
        };
        if old_lease != lease {
            self.view.detach(old_lease, &key);
            self.view.attach(lease, &key);
        }
        let now = Arc::new(Version::new(key, value, create, revision, version, lease));
        self.view.keys.insert(Entry(now.clone()));
        let prev_out = prev.clone();
        self.pending.push(Record { now, prev });
        prev_out
    }

    fn delete(&mut self, key: &[u8], revision: i64) -> Option<Arc<Version>> {
        let Entry(prev) = self.view.keys.remove(key)?;
        self.view.detach(prev.lease, &prev.key);
        self.pending.push(Record {
            now: Arc::new(Version::tombstone(prev.key.clone(), revision)),
            prev: Some(prev.clone()),
        });
        Some(prev)
    }

    /// Chooses the branches: every guard, nested ones too, looks at the state before the transaction.
    fn plan<'a>(
        &self,
        transaction: &'a Transaction,
        files: &Files,
    ) -> Result<Branch<'a>, StoreError> {
        let mut succeeded = true;
        for guard in &transaction.guards {
            if !self.holds(guard, files)? {
                succeeded = false;
                break;
            }
        }
        let actions = if succeeded {
            &transaction.success
        } else {
            &transaction.failure
        };
        let steps = actions.iter().map(|action| {
            Ok(match action {
                Action::Transaction(inner) => Step::Branch(self.plan(inner, files)?),
                action => Step::Action(action),
            })
        });
        Ok(Branch {
            succeeded,
            steps: steps.collect::<Result<_, StoreError>>()?,
        })
    }

    fn holds(&self, guard: &Guard, files: &Files) -> Result<bool, StoreError> {
        let range = KeyRange::new(&guard.key, guard.range_end.as_ref());
        let mut any = false;
        for version in self.view.range(&range) {
            any = true;
            if !compare(guard, version, files)? {
                return Ok(false);
            }
        }
        if any {
            return Ok(true);
        }
        // An absent key has zeroes for everything but its value, which compares with nothing.
        let absent = Version::tombstone(guard.key.clone(), 0);
        Ok(!matches!(guard.target, Target::Value(_)) && compare(guard, &absent, files)?)
    }

    fn read(&self, query: &Query, shared: &Shared) -> Result<RangeResponse, StoreError> {
        let range = KeyRange::new(&query.range.key, query.range.range_end.as_ref());
        let at = query.range.revision;
        self.view.check_revision(at)?;
        let before = if at == 0 {
            BTreeMap::new()
        } else {
            let published = shared.feed.published.read();
            let from = records_after(&published.history, at);
            let fresh = self.pending.iter().filter(|record| record.revision() > at);
            undo(&range, published.history.range(from..).chain(fresh))
        };
        select(&self.view, query, &range, before).materialize(query, &shared.feed.files)
    }
}

struct Branch<'a> {
    succeeded: bool,
    steps: Vec<Step<'a>>,
}

impl Branch<'_> {
    fn nests(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Step::Branch(_)))
    }
}

enum Step<'a> {
    Action(&'a Action),
    Branch(Branch<'a>),
}

struct Run<'a> {
    /// The transaction's own revision, should it change anything.
    revision: i64,
    working: &'a mut Working,
    shared: &'a Shared,
}

impl Run<'_> {
    fn branch(&mut self, branch: &Branch<'_>) -> Result<TransactionOutcome, StoreError> {
        let mut outcomes = Vec::with_capacity(branch.steps.len());
        for step in &branch.steps {
            outcomes.push(match step {
                Step::Branch(inner) => Outcome::Transaction(self.branch(inner)?),
                Step::Action(action) => self.action(action)?,
            });
        }
        Ok(TransactionOutcome {
            revision: self.working.view.revision,
            succeeded: branch.succeeded,
            outcomes,
        })
    }

    fn action(&mut self, action: &Action) -> Result<Outcome, StoreError> {
        match action {
            Action::Put {
                key,
                value,
                lease,
                prev_kv,
            } => self.put(key, value.as_ref(), *lease, *prev_kv),
            Action::Delete {
                key,
                range_end,
                prev_kv,
            } => self.delete(&KeyRange::new(key, range_end.as_ref()), *prev_kv),
            Action::Range(query) => {
                let mut response = self.working.read(query, self.shared)?;
                if self.wrote() {
                    response.revision = self.revision;
                }
                Ok(Outcome::Range(response))
            }
            // `plan` has replaced nested transactions by their branch.
            Action::Transaction(_) => Err(StoreError::Broken("unplanned transaction".into())),
        }
    }

    fn put(
        &mut self,
        key: &Bytes,
        value: Option<&Bytes>,
        lease: Option<i64>,
        prev_kv: bool,
    ) -> Result<Outcome, StoreError> {
        let files = &self.shared.feed.files;
        let old = self.working.view.get(key);
        let value = match (value, old) {
            (Some(value), _) => value.clone(),
            (None, Some(old)) => old.value(files)?,
            (None, None) => return Err(StoreError::KeyNotFound),
        };
        let lease = match (lease, old) {
            (Some(lease), _) => lease,
            (None, Some(old)) => old.lease,
            (None, None) => return Err(StoreError::KeyNotFound),
        };
        if lease != 0 {
            self.working.view.lease(lease)?;
        }
        let prev = self.working.put(key.clone(), value, lease, self.revision);
        Ok(Outcome::Put {
            prev: prev
                .filter(|_| prev_kv)
                .map(|prev| prev.to_kv(files, false))
                .transpose()?,
        })
    }

    fn delete(&mut self, range: &KeyRange, prev_kv: bool) -> Result<Outcome, StoreError> {
        let keys: Vec<Bytes> = match range.single() {
            Some(key) => vec![key.clone()],
            None => {
                let found = self.working.view.range(range);
                found.map(|version| version.key.clone()).collect()
            }
        };
        let mut deleted = 0;
        let mut prev_kvs: Vec<KeyValue> = Vec::new();
        for key in keys {
            if let Some(prev) = self.working.delete(&key, self.revision) {
                deleted += 1;
                if prev_kv {
                    prev_kvs.push(prev.to_kv(&self.shared.feed.files, false)?);
                }
            }
        }
        Ok(Outcome::Delete { deleted, prev_kvs })
    }

    fn wrote(&self) -> bool {
        self.working
            .pending
            .last()
            .is_some_and(|record| record.revision() == self.revision)
    }
}

fn compare(guard: &Guard, version: &Version, files: &Files) -> Result<bool, StoreError> {
    let order = match &guard.target {
        Target::Version(value) => version.version.cmp(value),
        Target::CreateRevision(value) => version.create_revision.cmp(value),
        Target::ModRevision(value) => version.mod_revision.cmp(value),
        Target::Lease(value) => version.lease.cmp(value),
        Target::Value(value) => version.value(files)?.cmp(value),
    };
    Ok(match guard.op {
        CompareOp::Equal => order.is_eq(),
        CompareOp::NotEqual => order.is_ne(),
        CompareOp::Greater => order.is_gt(),
        CompareOp::Less => order.is_lt(),
    })
}
