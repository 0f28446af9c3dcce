//! The trait's requests as etcd's messages, and etcd's answers and errors back.
//!
//! Bytes that are kept are copied out of the received message, which is one large buffer.

use std::sync::Arc;

use bytes::Bytes;
use tonic::{Code, Status};

use crate::embedded::{Record, Version};
use crate::generated::{etcdserverpb as pb, mvccpb};
use crate::kv::{
    Compare, CompareOp, KeyValue, Op, OpResponse, RangeRequest, RangeResponse, StoreError, Txn,
    TxnResponse,
};

/// What an etcd's error means. `requested` is the revision the request was about.
pub(super) fn error(status: &Status, requested: i64) -> StoreError {
    // etcd's clients tell errors apart by their texts too (`rpctypes`).
    match status.message() {
        "etcdserver: mvcc: required revision has been compacted" => StoreError::Compacted {
            requested,
            // The answer does not tell; it is this at least.
            compacted: requested + 1,
        },
        "etcdserver: mvcc: required revision is a future revision" => StoreError::FutureRevision {
            requested,
            current: requested - 1,
        },
        "etcdserver: requested lease not found" => StoreError::LeaseNotFound(0),
        "etcdserver: lease already exists" => StoreError::LeaseExists(0),
        "etcdserver: too large lease TTL" => StoreError::LeaseTtlTooLarge(0),
        "etcdserver: duplicate key given in txn request" => StoreError::DuplicateKey,
        "etcdserver: key is not provided" => StoreError::EmptyKey,
        "etcdserver: key not found" => StoreError::KeyNotFound,
        "etcdserver: request is too large" | "etcdserver: too many operations in txn request" => {
            StoreError::TooLarge
        }
        "etcdserver: mvcc: database space exceeded" => StoreError::NoSpace,
        message
            if status.code() == Code::ResourceExhausted && message.contains("larger than max") =>
        {
            StoreError::TooLarge
        }
        message => StoreError::Unavailable(format!("etcd: {message}")),
    }
}

pub(super) fn lease_error(status: &Status, id: i64, ttl: i64) -> StoreError {
    match error(status, 0) {
        StoreError::LeaseNotFound(_) => StoreError::LeaseNotFound(id),
        StoreError::LeaseExists(_) => StoreError::LeaseExists(id),
        StoreError::LeaseTtlTooLarge(_) => StoreError::LeaseTtlTooLarge(ttl),
        other => other,
    }
}

pub(super) fn range_request(request: RangeRequest) -> pb::RangeRequest {
    pb::RangeRequest {
        key: request.key,
        range_end: request.range_end.unwrap_or_default(),
        limit: i64::try_from(request.limit).unwrap_or(i64::MAX),
        revision: request.revision,
        keys_only: request.keys_only,
        count_only: request.count_only,
        ..pb::RangeRequest::default()
    }
}

fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

pub(super) fn range_response(response: pb::RangeResponse) -> RangeResponse {
    RangeResponse {
        revision: revision(response.header),
        kvs: response.kvs.into_iter().map(key_value).collect(),
        more: response.more,
        count: response.count,
    }
}

pub(super) fn txn_request(txn: Txn) -> pb::TxnRequest {
    pb::TxnRequest {
        compare: txn.compare.into_iter().map(compare).collect(),
        success: txn.success.into_iter().map(request_op).collect(),
        failure: txn.failure.into_iter().map(request_op).collect(),
    }
}

fn compare(compare: Compare) -> pb::Compare {
    use pb::compare::{CompareResult, CompareTarget, TargetUnion};
    let (key, op, target, union) = match compare {
        Compare::ModRevision(key, op, value) => {
            (key, op, CompareTarget::Mod, TargetUnion::ModRevision(value))
        }
        Compare::CreateRevision(key, op, value) => (
            key,
            op,
            CompareTarget::Create,
            TargetUnion::CreateRevision(value),
        ),
        Compare::Version(key, op, value) => {
            (key, op, CompareTarget::Version, TargetUnion::Version(value))
        }
        Compare::Lease(key, op, value) => {
            (key, op, CompareTarget::Lease, TargetUnion::Lease(value))
        }
        Compare::Value(key, op, value) => {
            (key, op, CompareTarget::Value, TargetUnion::Value(value))
        }
    };
    let result = match op {
        CompareOp::Equal => CompareResult::Equal,
        CompareOp::NotEqual => CompareResult::NotEqual,
        CompareOp::Greater => CompareResult::Greater,
        CompareOp::Less => CompareResult::Less,
    };
    pb::Compare {
        result: result.into(),
        target: target.into(),
        key,
        range_end: Bytes::new(),
        target_union: Some(union),
    }
}

fn request_op(op: Op) -> pb::RequestOp {
    use pb::request_op::Request;
    let request = match op {
        Op::Put { key, value, lease } => Request::RequestPut(pb::PutRequest {
            key,
            value,
            lease,
            ..pb::PutRequest::default()
        }),
        Op::Delete {
            key,
            range_end,
            prev_kv,
        } => Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key,
            range_end: range_end.unwrap_or_default(),
            prev_kv,
        }),
        Op::Range(request) => Request::RequestRange(range_request(request)),
    };
    pb::RequestOp {
        request: Some(request),
    }
}

pub(super) fn txn_response(response: pb::TxnResponse) -> TxnResponse {
    use pb::response_op::Response;
    let revision = revision(response.header);
    let responses = response.responses.into_iter().filter_map(|op| {
        Some(match op.response? {
            Response::ResponsePut(_) => OpResponse::Put,
            Response::ResponseDeleteRange(response) => OpResponse::Delete {
                deleted: response.deleted,
                prev_kvs: response.prev_kvs.into_iter().map(key_value).collect(),
            },
            Response::ResponseRange(response) => OpResponse::Range(RangeResponse {
                revision,
                ..range_response(response)
            }),
            // The trait's transactions do not nest.
            Response::ResponseTxn(_) => return None,
        })
    });
    TxnResponse {
        revision,
        succeeded: response.succeeded,
        responses: responses.collect(),
    }
}

fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn key_value(kv: mvccpb::KeyValue) -> KeyValue {
    KeyValue {
        key: own(&kv.key),
        value: own(&kv.value),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    }
}

fn version(kv: &mvccpb::KeyValue) -> Version {
    Version::new(
        own(&kv.key),
        own(&kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version,
        kv.lease,
    )
}

/// A watch's event; `None` for one without a key, which etcd does not send.
pub(super) fn record(event: &mvccpb::Event) -> Option<Record> {
    let kv = event.kv.as_ref()?;
    let now = if event.r#type == i32::from(mvccpb::event::EventType::Delete) {
        Version::tombstone(own(&kv.key), kv.mod_revision)
    } else {
        version(kv)
    };
    Some(Record {
        now: Arc::new(now),
        prev: event.prev_kv.as_ref().map(|prev| Arc::new(version(prev))),
    })
}
