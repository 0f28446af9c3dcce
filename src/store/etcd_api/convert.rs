//! etcd's messages to the engine's requests and back, with etcd's checks and errors.

use bytes::Bytes;
use prost::Message;
use tonic::{Code, Status};

use super::{Front, MAX_REQUEST_BYTES, MAX_TXN_OPS};
use crate::embedded::{
    Action, Guard, Outcome, Query, Sort, SortBy, Target, Transaction, TransactionOutcome,
};
use crate::generated::{etcdserverpb as pb, mvccpb};
use crate::kv::{CompareOp, Event, EventKind, KeyValue, RangeRequest, RangeResponse, StoreError};

/// The status etcd answers with (`rpctypes`).
pub(super) fn status(error: StoreError) -> Status {
    match error {
        StoreError::Compacted { .. } => Status::new(
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        ),
        StoreError::FutureRevision { .. } => Status::new(
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        StoreError::LeaseNotFound(_) => {
            Status::new(Code::NotFound, "etcdserver: requested lease not found")
        }
        StoreError::LeaseExists(_) => {
            Status::new(Code::FailedPrecondition, "etcdserver: lease already exists")
        }
        StoreError::LeaseTtlTooLarge(_) => {
            Status::new(Code::OutOfRange, "etcdserver: too large lease TTL")
        }
        StoreError::TooLarge => invalid("etcdserver: request is too large"),
        StoreError::DuplicateKey => invalid("etcdserver: duplicate key given in txn request"),
        StoreError::EmptyKey => invalid("etcdserver: key is not provided"),
        StoreError::KeyNotFound => invalid("etcdserver: key not found"),
        StoreError::NoSpace => Status::new(
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
        ),
        StoreError::SlowWatcher => Status::new(Code::Cancelled, "etcdserver: watch canceled"),
        StoreError::Unavailable(_) => Status::new(Code::Unavailable, "etcdserver: server stopped"),
        StoreError::Broken(reason) => {
            tracing::error!(%reason, "the store is broken");
            Status::new(Code::Unavailable, "etcdserver: unhealthy cluster")
        }
    }
}

fn invalid(message: &'static str) -> Status {
    Status::new(Code::InvalidArgument, message)
}

/// Refuses a write that etcd would not take either.
pub(super) fn check_size(request: &impl Message) -> Result<(), Status> {
    if request.encoded_len() > MAX_REQUEST_BYTES {
        return Err(status(StoreError::TooLarge));
    }
    Ok(())
}

/// Copies what is to be kept: the received bytes are a slice of the connection's read buffer.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn range_end(bytes: Bytes) -> Option<Bytes> {
    (!bytes.is_empty()).then_some(bytes)
}

pub(super) fn query(request: pb::RangeRequest) -> Result<Query, Status> {
    use pb::range_request::{SortOrder, SortTarget};
    if request.key.is_empty() {
        return Err(status(StoreError::EmptyKey));
    }
    let bad_sort = |_| invalid("etcdserver: invalid sort option");
    let order = SortOrder::try_from(request.sort_order).map_err(bad_sort)?;
    let by = match SortTarget::try_from(request.sort_target).map_err(bad_sort)? {
        SortTarget::Key => SortBy::Key,
        SortTarget::Version => SortBy::Version,
        SortTarget::Create => SortBy::CreateRevision,
        SortTarget::Mod => SortBy::ModRevision,
        SortTarget::Value => SortBy::Value,
    };
    // Keys come in ascending order anyway; another target without an order means ascending.
    let sort = match (by, order) {
        (SortBy::Key, SortOrder::None | SortOrder::Ascend) => None,
        (by, order) => Some(Sort {
            by,
            descending: order == SortOrder::Descend,
        }),
    };
    Ok(Query {
        range: RangeRequest {
            key: request.key,
            range_end: range_end(request.range_end),
            limit: usize::try_from(request.limit).unwrap_or(0),
            revision: request.revision.max(0),
            keys_only: request.keys_only,
            count_only: request.count_only,
        },
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
        sort,
    })
}

pub(super) fn put(request: &pb::PutRequest) -> Result<Action, Status> {
    if request.key.is_empty() {
        return Err(status(StoreError::EmptyKey));
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(invalid("etcdserver: value is provided"));
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(invalid("etcdserver: lease is provided"));
    }
    Ok(Action::Put {
        key: own(&request.key),
        value: (!request.ignore_value).then(|| own(&request.value)),
        lease: (!request.ignore_lease).then_some(request.lease),
        prev_kv: request.prev_kv,
    })
}

pub(super) fn delete(request: pb::DeleteRangeRequest) -> Result<Action, Status> {
    if request.key.is_empty() {
        return Err(status(StoreError::EmptyKey));
    }
    Ok(Action::Delete {
        key: request.key,
        range_end: range_end(request.range_end),
        prev_kv: request.prev_kv,
    })
}

/// One write as a transaction.
pub(super) fn single(action: Action) -> Transaction {
    Transaction {
        success: vec![action],
        ..Transaction::default()
    }
}

pub(super) fn transaction(request: pb::TxnRequest) -> Result<Transaction, Status> {
    let ops = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    if ops > MAX_TXN_OPS {
        return Err(invalid("etcdserver: too many operations in txn request"));
    }
    let actions =
        |ops: Vec<pb::RequestOp>| ops.into_iter().map(action).collect::<Result<_, Status>>();
    Ok(Transaction {
        guards: request
            .compare
            .into_iter()
            .map(guard)
            .collect::<Result<_, _>>()?,
        success: actions(request.success)?,
        failure: actions(request.failure)?,
    })
}

fn guard(compare: pb::Compare) -> Result<Guard, Status> {
    use pb::compare::{CompareResult, CompareTarget, TargetUnion};
    if compare.key.is_empty() {
        return Err(status(StoreError::EmptyKey));
    }
    // etcd compares with an unknown operator as if it held; saying so is kinder.
    let unknown = |_| invalid("etcdserver: invalid compare");
    let op = match CompareResult::try_from(compare.result).map_err(unknown)? {
        CompareResult::Equal => CompareOp::Equal,
        CompareResult::NotEqual => CompareOp::NotEqual,
        CompareResult::Greater => CompareOp::Greater,
        CompareResult::Less => CompareOp::Less,
    };
    // The target decides; the value it is compared with is 0 or empty when the union holds another one.
    let union = compare.target_union;
    let target = match CompareTarget::try_from(compare.target).map_err(unknown)? {
        CompareTarget::Version => Target::Version(match union {
            Some(TargetUnion::Version(value)) => value,
            _ => 0,
        }),
        CompareTarget::Create => Target::CreateRevision(match union {
            Some(TargetUnion::CreateRevision(value)) => value,
            _ => 0,
        }),
        CompareTarget::Mod => Target::ModRevision(match union {
            Some(TargetUnion::ModRevision(value)) => value,
            _ => 0,
        }),
        CompareTarget::Lease => Target::Lease(match union {
            Some(TargetUnion::Lease(value)) => value,
            _ => 0,
        }),
        CompareTarget::Value => Target::Value(match union {
            Some(TargetUnion::Value(value)) => value,
            _ => Bytes::new(),
        }),
    };
    Ok(Guard {
        key: compare.key,
        range_end: range_end(compare.range_end),
        op,
        target,
    })
}

fn action(op: pb::RequestOp) -> Result<Action, Status> {
    use pb::request_op::Request;
    match op.request {
        Some(Request::RequestRange(request)) => query(request).map(Action::Range),
        Some(Request::RequestPut(request)) => put(&request),
        Some(Request::RequestDeleteRange(request)) => delete(request),
        Some(Request::RequestTxn(request)) => transaction(request).map(Action::Transaction),
        None => Err(status(StoreError::EmptyKey)),
    }
}

pub(super) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

pub(super) fn event(event: Event) -> mvccpb::Event {
    let kind = match event.kind {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(event.kv)),
        prev_kv: event.prev.map(key_value),
    }
}

impl Front {
    pub(super) fn range_response(&self, response: RangeResponse) -> pb::RangeResponse {
        pb::RangeResponse {
            header: self.header_at(response.revision),
            kvs: response.kvs.into_iter().map(key_value).collect(),
            more: response.more,
            count: response.count,
        }
    }

    pub(super) fn txn_response(&self, outcome: TransactionOutcome) -> pb::TxnResponse {
        let revision = outcome.revision;
        let responses = outcome.outcomes.into_iter();
        pb::TxnResponse {
            header: self.header_at(revision),
            succeeded: outcome.succeeded,
            responses: responses
                .map(|outcome| self.response_op(outcome, revision))
                .collect(),
        }
    }

    fn response_op(&self, outcome: Outcome, revision: i64) -> pb::ResponseOp {
        use pb::response_op::Response;
        let header = Some(pb::ResponseHeader {
            revision,
            ..pb::ResponseHeader::default()
        });
        let response = match outcome {
            Outcome::Put { prev } => Response::ResponsePut(pb::PutResponse {
                header,
                prev_kv: prev.map(key_value),
            }),
            Outcome::Delete { deleted, prev_kvs } => {
                Response::ResponseDeleteRange(pb::DeleteRangeResponse {
                    header,
                    deleted,
                    prev_kvs: prev_kvs.into_iter().map(key_value).collect(),
                })
            }
            Outcome::Range(range) => Response::ResponseRange(pb::RangeResponse {
                header,
                ..self.range_response(range)
            }),
            Outcome::Transaction(inner) => Response::ResponseTxn(self.txn_response(inner)),
        };
        pb::ResponseOp {
            response: Some(response),
        }
    }
}
