//! etcd's v3 gRPC API in front of the embedded store, so that etcdctl, and even a real kube-apiserver, can use
//! it as they would use etcd.
//!
//! ```text
//!   TCP ──▶ listener (TLS, client certificate required) ──▶ tonic ──▶ kv, watch, lease, maintenance
//!                                                                      └──▶ convert ──▶ embedded::Embedded
//! ```
//!
//! It answers as a cluster of one etcd 3.5 member would: same status codes, same messages. What only makes
//! sense for several members or for etcd's own user management is unimplemented.

mod convert;
mod kv;
mod lease;
mod listener;
mod maintenance;
mod snapshot;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

pub use listener::TlsFiles;

use crate::embedded::Embedded;
use crate::generated::etcdserverpb as pb;
use crate::kv::Store;

/// The version the front answers as. kube-apiserver looks at it before it asks for watch progress.
const VERSION: &str = "3.5.21";
/// Fixed, since there is only ever one member; any number but 0 would do.
const CLUSTER_ID: u64 = 0x536b_6966_6643_6c75;
const MEMBER_ID: u64 = 0x536b_6966_664d_656d;
const RAFT_TERM: u64 = 2;

/// etcd's `--max-request-bytes`: what one write may hold.
const MAX_REQUEST_BYTES: usize = 1536 * 1024;
/// etcd's `grpcOverheadBytes`.
const OVERHEAD_BYTES: usize = 512 * 1024;
/// etcd's `--max-txn-ops`.
const MAX_TXN_OPS: usize = 128;
/// Requests and watch streams at once on one connection. etcd's default is unlimited; a kube-apiserver has
/// some hundreds of watch streams on one.
const MAX_STREAMS: u32 = 10_000;
/// A client that is silent for so long is asked whether it is still there.
const PROBE_INTERVAL: Duration = Duration::from_secs(120);
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the front ended other than by its shutdown.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Tls(#[from] listener::TlsError),
    #[error("serving etcd's API")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves `store` on `address` until `shutdown`. Without `tls` anyone who can connect may do anything.
pub async fn serve(
    store: Arc<Embedded>,
    address: SocketAddr,
    tls: Option<TlsFiles>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Listen { address, source })?;
    serve_on(store, listener, tls, shutdown).await
}

/// Like `serve`, on a socket that listens already.
pub async fn serve_on(
    store: Arc<Embedded>,
    listener: TcpListener,
    tls: Option<TlsFiles>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = listener
        .local_addr()
        .map(|address| format!("{scheme}://{address}"))
        .unwrap_or_default();
    let front = Front {
        store,
        url: url.into(),
        shutdown: shutdown.clone(),
    };
    let incoming = listener::Incoming::start(listener, tls, shutdown.clone())?;
    let received = MAX_REQUEST_BYTES + OVERHEAD_BYTES;
    let kv = pb::kv_server::KvServer::new(front.clone()).max_decoding_message_size(received);
    let watch = pb::watch_server::WatchServer::new(front.clone());
    let lease = pb::lease_server::LeaseServer::new(front.clone());
    let cluster = pb::cluster_server::ClusterServer::new(front.clone());
    let maintenance = pb::maintenance_server::MaintenanceServer::new(front.clone());
    let auth = pb::auth_server::AuthServer::new(front);
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(PROBE_INTERVAL))
        .http2_keepalive_timeout(Some(PROBE_TIMEOUT))
        .add_service(kv)
        .add_service(watch)
        .add_service(lease)
        .add_service(cluster)
        .add_service(maintenance)
        .add_service(auth)
        .serve_with_incoming_shutdown(incoming, shutdown.cancelled_owned())
        .await?;
    Ok(())
}

/// What every service has.
#[derive(Clone, Debug)]
struct Front {
    store: Arc<Embedded>,
    /// Where clients reach it.
    url: Arc<str>,
    /// Ends the streams that would otherwise keep a graceful shutdown waiting.
    shutdown: CancellationToken,
}

impl Front {
    /// The header of an answer at `revision`.
    #[allow(
        clippy::unnecessary_wraps,
        reason = "the messages' fields are optional"
    )]
    fn header_at(&self, revision: i64) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader {
            cluster_id: CLUSTER_ID,
            member_id: MEMBER_ID,
            revision,
            raft_term: RAFT_TERM,
        })
    }

    async fn header(&self) -> Result<Option<pb::ResponseHeader>, tonic::Status> {
        let revision = self.store.revision().await.map_err(convert::status)?;
        Ok(self.header_at(revision))
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod wire;
