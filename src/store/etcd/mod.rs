//! The store in a real etcd cluster, over gRPC with mutual TLS. Any number of API servers may share one.
//!
//! ```text
//!   range, txn, lease ──▶ connection (endpoints, timeouts, retries) ──▶ etcd
//!   watch ──▶ feed ◀── hub: one watch of all keys ◀────────────────────┘
//!               ▲
//!               └── replay: for a watch that starts before what the feed remembers
//! ```
//!
//! There is one watch on the etcd, over every key, and the watchers here are served from it. Every revision of
//! an etcd has an event, so the last event's revision says exactly how far all watchers are: progress needs no
//! asking (whose answers are wrong before etcd 3.4.25 and 3.5.8), and after a broken connection one watch is
//! resumed behind the last event instead of hundreds.

mod connection;
mod convert;
mod hub;
mod replay;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::generated::etcdserverpb as pb;
use crate::kv::{
    Lease, RangeRequest, RangeResponse, Store, StoreError, Txn, TxnResponse, WatchRequest,
    WatchStream,
};
pub use connection::ConnectError;
use connection::{Connection, Retry};
use hub::Hub;

/// Replays at once; more wait. Each is one more watch of all keys on the etcd.
const REPLAYS: usize = 8;

/// Where the etcd cluster is and how to be let in.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// `https://host:port`, one for each member.
    pub endpoints: Vec<String>,
    /// PEM file with the CAs that sign the members' certificates. `None` is plain text.
    pub ca: Option<PathBuf>,
    /// PEM files of the client's certificate and key.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// A client of an etcd cluster. Dropping it ends its watches.
#[derive(Debug)]
pub struct Etcd {
    connection: Arc<Connection>,
    /// `None` until somebody watches.
    hub: Mutex<Option<Hub>>,
    replays: Arc<Semaphore>,
    replaying: TaskTracker,
    closed: CancellationToken,
}

impl Etcd {
    /// Prepares connections; they are made when they are needed, and again when they broke. So this does not
    /// fail when the etcd is not there yet: `health` tells.
    pub async fn connect(options: EtcdOptions) -> Result<Arc<Self>, ConnectError> {
        let connection = Connection::new(options).await?;
        Ok(Arc::new(Self {
            connection: Arc::new(connection),
            hub: Mutex::new(None),
            replays: Arc::new(Semaphore::new(REPLAYS)),
            replaying: TaskTracker::new(),
            closed: CancellationToken::new(),
        }))
    }

    /// The running feed; one that is started now goes back to `start`.
    async fn hub(&self, start: i64) -> Result<Arc<crate::embedded::Feed>, StoreError> {
        let mut hub = self.hub.lock().await;
        if let Some(running) = hub.as_ref().map(Hub::feed).filter(|feed| !feed.has_ended()) {
            return Ok(running);
        }
        let now = self.revision().await?;
        // Later watches start later, as a rule.
        let started = Hub::start(self.connection.clone(), start.min(now + 1));
        let feed = started.feed();
        *hub = Some(started);
        Ok(feed)
    }

    fn lease_of(response: &pb::LeaseTimeToLiveResponse) -> Result<Lease, StoreError> {
        if response.ttl < 0 {
            return Err(StoreError::LeaseNotFound(response.id));
        }
        Ok(Lease {
            id: response.id,
            ttl: response.granted_ttl,
            remaining: response.ttl,
        })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[async_trait]
impl Store for Etcd {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let revision = request.revision;
        let message = convert::range_request(request);
        let response = self
            .connection
            .call(Retry::Always, |channel| {
                let message = message.clone();
                async move { channel.kv().range(message).await }
            })
            .await
            .map_err(|status| convert::error(&status, revision))?;
        self.connection.saw(response.header.as_ref());
        Ok(convert::range_response(response))
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        let message = convert::txn_request(txn);
        let response = self
            .connection
            .call(Retry::Unsent, |channel| {
                let message = message.clone();
                async move { channel.kv().txn(message).await }
            })
            .await
            .map_err(|status| convert::error(&status, 0))?;
        self.connection.saw(response.header.as_ref());
        Ok(convert::txn_response(response))
    }

    async fn watch(&self, mut request: WatchRequest) -> Result<WatchStream, StoreError> {
        if request.start_revision == 0 {
            // The feed may be a little behind what this caller has already seen.
            request.start_revision = self.revision().await? + 1;
        }
        loop {
            let feed = self.hub(request.start_revision).await?;
            match feed.watch(request.clone()) {
                Err(StoreError::SlowWatcher) => return Ok(replay::start(self, feed, request)),
                // It ended just now, for a reason of its own.
                Err(_) if feed.has_ended() => {}
                result => return result,
            }
        }
    }

    async fn revision(&self) -> Result<i64, StoreError> {
        let request = RangeRequest {
            key: Bytes::from_static(b"\0"),
            count_only: true,
            ..RangeRequest::default()
        };
        Ok(self.range(request).await?.revision)
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        let hub = self.hub.lock().await;
        if let Some(hub) = hub.as_ref() {
            hub.feed().request_progress(self.connection.seen());
        }
        Ok(())
    }

    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError> {
        let response = self
            .connection
            .call(Retry::Unsent, |channel| async move {
                channel
                    .lease()
                    .lease_grant(pb::LeaseGrantRequest { ttl, id })
                    .await
            })
            .await
            .map_err(|status| convert::lease_error(&status, id, ttl))?;
        self.connection.saw(response.header.as_ref());
        Ok(Lease {
            id: response.id,
            ttl: response.ttl,
            remaining: response.ttl,
        })
    }

    async fn lease_revoke(&self, id: i64) -> Result<(), StoreError> {
        let response = self
            .connection
            .call(Retry::Unsent, |channel| async move {
                channel
                    .lease()
                    .lease_revoke(pb::LeaseRevokeRequest { id })
                    .await
            })
            .await
            .map_err(|status| convert::lease_error(&status, id, 0))?;
        self.connection.saw(response.header.as_ref());
        Ok(())
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        let response = self
            .connection
            .call(Retry::Always, |channel| async move {
                let request = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
                let response = channel.lease().lease_keep_alive(request).await?;
                let (metadata, mut stream, extensions) = response.into_parts();
                let message = stream.message().await?;
                let message = message.unwrap_or_default();
                Ok(tonic::Response::from_parts(metadata, message, extensions))
            })
            .await
            .map_err(|status| convert::lease_error(&status, id, 0))?;
        if response.ttl <= 0 {
            return Err(StoreError::LeaseNotFound(id));
        }
        Ok(Lease {
            id,
            ttl: response.ttl,
            remaining: response.ttl,
        })
    }

    async fn lease_time_to_live(&self, id: i64) -> Result<Lease, StoreError> {
        let response = self
            .connection
            .call(Retry::Always, |channel| async move {
                let request = pb::LeaseTimeToLiveRequest { id, keys: false };
                channel.lease().lease_time_to_live(request).await
            })
            .await
            .map_err(|status| convert::lease_error(&status, id, 0))?;
        Self::lease_of(&response)
    }

    async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        self.connection
            .call(Retry::Unsent, |channel| async move {
                let request = pb::CompactionRequest {
                    revision,
                    physical: false,
                };
                channel.kv().compact(request).await
            })
            .await
            .map_err(|status| convert::error(&status, revision))?;
        Ok(())
    }

    async fn db_size(&self) -> Result<i64, StoreError> {
        let status = self
            .connection
            .call(Retry::Always, |channel| async move {
                channel.maintenance().status(pb::StatusRequest {}).await
            })
            .await
            .map_err(|status| convert::error(&status, 0))?;
        Ok(status.db_size)
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.revision().await.map(|_| ())
    }
}

#[cfg(test)]
mod tests;
