//! The DNS server as a process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use client::Client;
use client::informer::{Factory, InformerEnded};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::Watched;
use crate::config::DnsConfig;
use crate::forward::Upstream;
use crate::resolver::Resolver;
use crate::server::Listener;
use crate::zone::{BadDomain, Zone};

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The configured domain is no name.
    #[error(transparent)]
    Domain(#[from] BadDomain),
    /// The file with the upstream resolvers cannot be read.
    #[error("reading {path}: {source}")]
    ResolvConf {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// An address cannot be served on.
    #[error("listening on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The API's changes are no longer followed.
    #[error(transparent)]
    Informer(#[from] InformerEnded),
    /// A loop ended, which none does.
    #[error("serving ended")]
    Ended,
}

/// Serves until `shutdown`. Questions about the cluster get SERVFAIL until its state is known.
///
/// # Errors
/// A configuration that cannot be served, or a part that ended.
pub async fn run(
    client: Client,
    config: DnsConfig,
    shutdown: CancellationToken,
) -> Result<(), DnsError> {
    let DnsConfig {
        listen,
        domain,
        upstream_resolv_conf,
        ttl,
    } = config;
    // A serial that grows from one start to the next; nobody transfers this zone.
    let serial = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |d| d.as_secs() as u32);
    let zone = Zone::new(&domain, ttl, serial)?;
    let upstream = match &upstream_resolv_conf {
        None => Upstream::new(Vec::new()),
        Some(path) => {
            Upstream::from_resolv_conf(path, &listen).map_err(|source| DnsError::ResolvConf {
                path: path.display().to_string(),
                source,
            })?
        }
    };
    let mut listeners = Vec::new();
    for address in listen {
        listeners.push(
            Listener::bind(address)
                .await
                .map_err(|source| DnsError::Listen { address, source })?,
        );
    }
    let factory = Factory::new(client, shutdown.clone());
    let resolver = Arc::new(Resolver::new(
        zone,
        Arc::new(Watched::start(&factory)),
        upstream,
    ));
    let mut loops = JoinSet::new();
    for listener in listeners {
        loops.spawn(listener.serve(resolver.clone()));
    }
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = factory.join() => Ok(ended?),
        Some(_) = loops.join_next() => Err(DnsError::Ended),
    }
}
