//! What the engine can be asked, which is all of etcd's KV service: the trait's requests plus what only
//! the gRPC front needs (guards over ranges, nested transactions, kept values, sorting and filters).

use bytes::Bytes;

use super::range::KeyRange;
use super::version::Version;
use crate::kv::{
    Compare, CompareOp, KeyValue, Op, OpResponse, RangeRequest, RangeResponse, StoreError, Txn,
    TxnResponse,
};

/// A guard, a branch to run when it holds and one to run when not.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub guards: Vec<Guard>,
    pub success: Vec<Action>,
    pub failure: Vec<Action>,
}

/// Holds when every key of the range (or its absence, for a single key) compares so.
#[derive(Clone, Debug)]
pub struct Guard {
    pub key: Bytes,
    pub range_end: Option<Bytes>,
    pub op: CompareOp,
    pub target: Target,
}

/// The field of a key that a guard looks at, and what it is compared with.
#[derive(Clone, Debug)]
pub enum Target {
    Version(i64),
    CreateRevision(i64),
    ModRevision(i64),
    Lease(i64),
    Value(Bytes),
}

#[derive(Clone, Debug)]
pub enum Action {
    Put {
        key: Bytes,
        /// `None` keeps the value the key has.
        value: Option<Bytes>,
        /// `None` keeps the lease the key has.
        lease: Option<i64>,
        prev_kv: bool,
    },
    Delete {
        key: Bytes,
        range_end: Option<Bytes>,
        prev_kv: bool,
    },
    Range(Query),
    Transaction(Transaction),
}

/// A range with etcd's filters and orders. The filters and the order apply before the limit.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub range: RangeRequest,
    pub min_mod_revision: i64,
    pub max_mod_revision: i64,
    pub min_create_revision: i64,
    pub max_create_revision: i64,
    /// `None` is the order of the keys.
    pub sort: Option<Sort>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub by: SortBy,
    pub descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    Key,
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

#[derive(Clone, Debug, Default)]
pub struct TransactionOutcome {
    pub revision: i64,
    pub succeeded: bool,
    pub outcomes: Vec<Outcome>,
}

#[derive(Clone, Debug)]
pub enum Outcome {
    Put {
        prev: Option<KeyValue>,
    },
    Delete {
        deleted: i64,
        prev_kvs: Vec<KeyValue>,
    },
    Range(RangeResponse),
    Transaction(TransactionOutcome),
}

impl Query {
    /// Whether every key of the range has to be looked at before the limit can apply.
    pub(crate) fn is_plain(&self) -> bool {
        self.sort.is_none()
            && self.min_mod_revision == 0
            && self.max_mod_revision == 0
            && self.min_create_revision == 0
            && self.max_create_revision == 0
    }

    pub(crate) fn keeps(&self, version: &Version) -> bool {
        let within = |value: i64, min: i64, max: i64| value >= min && (max == 0 || value <= max);
        within(
            version.mod_revision,
            self.min_mod_revision,
            self.max_mod_revision,
        ) && within(
            version.create_revision,
            self.min_create_revision,
            self.max_create_revision,
        )
    }
}

impl From<RangeRequest> for Query {
    fn from(range: RangeRequest) -> Self {
        Self {
            range,
            ..Self::default()
        }
    }
}

impl From<Compare> for Guard {
    fn from(compare: Compare) -> Self {
        let (key, op, target) = match compare {
            Compare::ModRevision(key, op, value) => (key, op, Target::ModRevision(value)),
            Compare::CreateRevision(key, op, value) => (key, op, Target::CreateRevision(value)),
            Compare::Version(key, op, value) => (key, op, Target::Version(value)),
            Compare::Lease(key, op, value) => (key, op, Target::Lease(value)),
            Compare::Value(key, op, value) => (key, op, Target::Value(value)),
        };
        Self {
            key,
            range_end: None,
            op,
            target,
        }
    }
}

impl From<Op> for Action {
    fn from(op: Op) -> Self {
        match op {
            Op::Put { key, value, lease } => Action::Put {
                key,
                value: Some(value),
                lease: Some(lease),
                prev_kv: false,
            },
            Op::Delete {
                key,
                range_end,
                prev_kv,
            } => Action::Delete {
                key,
                range_end,
                prev_kv,
            },
            Op::Range(range) => Action::Range(range.into()),
        }
    }
}

impl From<Txn> for Transaction {
    fn from(txn: Txn) -> Self {
        Self {
            guards: txn.compare.into_iter().map(Into::into).collect(),
            success: txn.success.into_iter().map(Into::into).collect(),
            failure: txn.failure.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<TransactionOutcome> for TxnResponse {
    fn from(outcome: TransactionOutcome) -> Self {
        let responses = outcome.outcomes.into_iter().filter_map(|outcome| {
            Some(match outcome {
                Outcome::Put { .. } => OpResponse::Put,
                Outcome::Delete { deleted, prev_kvs } => OpResponse::Delete { deleted, prev_kvs },
                Outcome::Range(range) => OpResponse::Range(range),
                // The trait's transactions do not nest.
                Outcome::Transaction(_) => return None,
            })
        });
        Self {
            revision: outcome.revision,
            succeeded: outcome.succeeded,
            responses: responses.collect(),
        }
    }
}

impl Transaction {
    /// Refuses what can be refused without looking at the store: missing keys, and a branch that touches
    /// one key twice (etcd's `checkTxnRequest`).
    pub fn check(&self) -> Result<(), StoreError> {
        self.check_keys()?;
        self.touches().map(|_| ())
    }

    fn check_keys(&self) -> Result<(), StoreError> {
        if self.guards.iter().any(|guard| guard.key.is_empty()) {
            return Err(StoreError::EmptyKey);
        }
        for action in self.success.iter().chain(&self.failure) {
            let key = match action {
                Action::Put { key, .. } | Action::Delete { key, .. } => key,
                Action::Range(query) => &query.range.key,
                Action::Transaction(inner) => {
                    inner.check_keys()?;
                    continue;
                }
            };
            if key.is_empty() {
                return Err(StoreError::EmptyKey);
            }
        }
        Ok(())
    }

    fn touches(&self) -> Result<Touches, StoreError> {
        let mut both = Touches::of(&self.success)?;
        let failure = Touches::of(&self.failure)?;
        // Only one branch runs, so the two may touch the same keys.
        both.puts.extend(failure.puts);
        both.deletes.extend(failure.deletes);
        Ok(both)
    }
}

/// The keys a branch writes.
#[derive(Default)]
struct Touches {
    puts: Vec<Bytes>,
    deletes: Vec<KeyRange>,
}

impl Touches {
    fn of(actions: &[Action]) -> Result<Self, StoreError> {
        let mut all = Self::default();
        for action in actions {
            let mut one = Self::default();
            match action {
                Action::Put { key, .. } => one.puts.push(key.clone()),
                Action::Delete { key, range_end, .. } => {
                    one.deletes.push(KeyRange::new(key, range_end.as_ref()));
                }
                Action::Transaction(inner) => one = inner.touches()?,
                Action::Range(_) => {}
            }
            all.absorb(one)?;
        }
        Ok(all)
    }

    fn absorb(&mut self, other: Self) -> Result<(), StoreError> {
        let clash = other.puts.iter().any(|key| {
            self.puts.contains(key) || self.deletes.iter().any(|range| range.contains(key))
        }) || other
            .deletes
            .iter()
            .any(|range| self.puts.iter().any(|key| range.contains(key)));
        if clash {
            return Err(StoreError::DuplicateKey);
        }
        self.puts.extend(other.puts);
        self.deletes.extend(other.deletes);
        Ok(())
    }
}
