//! Turns what the store and the cache say into what a client is told.

use apimachinery::Status;
use store::StoreError;

use crate::cache::{CacheError, ReadError};

/// Seconds a client should wait before it tries again.
const RETRY_AFTER: i32 = 1;

/// A store error without a better story. The words stay general: the store's address is nobody's business.
pub fn store(error: StoreError) -> Status {
    match error {
        StoreError::Compacted {
            requested,
            compacted,
        } => Status::too_old(requested, compacted),
        StoreError::FutureRevision { requested, current } => {
            Status::too_large_resource_version(requested, current, RETRY_AFTER)
        }
        StoreError::TooLarge => {
            Status::request_entity_too_large("etcdserver: request is too large")
        }
        StoreError::Unavailable(_) => {
            tracing::warn!(%error, "store is unavailable");
            Status::service_unavailable("storage is unavailable")
        }
        error => {
            tracing::error!(%error, "store failed");
            Status::internal(error)
        }
    }
}

/// A cache that cannot answer.
pub fn cache(error: CacheError) -> Status {
    match error {
        CacheError::Store(error) => store(error),
        CacheError::Behind { current: 0, .. } => {
            Status::too_many_requests("storage is (re)initializing", RETRY_AFTER)
        }
        CacheError::Behind { requested, current } => {
            Status::too_large_resource_version(requested, current, RETRY_AFTER)
        }
        CacheError::TooOld { requested, oldest } => Status::too_old(requested, oldest),
    }
}

/// An object that cannot be read.
pub fn read(error: ReadError) -> Status {
    match error {
        ReadError::Store(error) => store(error),
        ReadError::Entry(error) => {
            tracing::error!(%error, "stored object cannot be decoded");
            Status::internal(error)
        }
    }
}
