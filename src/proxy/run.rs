//! The proxy as a process: watches, decides when to sync, and serves its health.

use std::sync::Arc;
use std::time::Duration;

use client::Client;
use client::informer::{Factory, Informer, InformerEnded, Selectors};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::ProxyConfig;
use crate::endpoints::NodeInfo;
use crate::health::{Health, Role, ServicePorts, serve};
use crate::model::{EndpointSlice, LABEL_ZONE, Node, Service};
use crate::nft::{self, NftError};
use crate::proxier::Proxier;
use crate::ruleset::Options;

/// Services that another proxy serves (`apis.LabelServiceProxyName`) and headless ones are not even watched.
const NOT_FOR_US: &str =
    "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
/// Taint of a node that the cluster autoscaler is about to remove.
const TAINT_DELETION_CANDIDATE: &str = "ToBeDeletedByClusterAutoscaler";
/// Waits after a failed sync: doubled each time, from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Everything is written anew this often, in case someone else changed the table
/// (upstream's full sync of the nftables proxier).
const FULL_SYNC: Duration = Duration::from_secs(3600);

/// Why the proxy ended.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The API's changes are no longer followed.
    #[error(transparent)]
    Informer(#[from] InformerEnded),
    /// One of the HTTP servers ended.
    #[error("the health server ended")]
    HealthServer,
}

/// Follows the API and keeps the node's rules, until `shutdown`. The rules stay behind, so that connections
/// live on while the proxy is replaced; [`cleanup`] removes them.
///
/// # Errors
/// Only what makes going on pointless; refused rules are tried again.
pub async fn run(
    client: Client,
    config: ProxyConfig,
    shutdown: CancellationToken,
) -> Result<(), ProxyError> {
    let ProxyConfig {
        node_name,
        cluster_cidrs,
        masquerade_all,
        nodeport_addresses: nodeport_cidrs,
        healthz,
        metrics,
        health_check_address,
        min_sync_period,
    } = config;
    let health = Health::default();
    let mut servers = JoinSet::new();
    for (address, role) in [(healthz, Role::Health), (metrics, Role::Metrics)] {
        let Some(address) = address else { continue };
        match TcpListener::bind(address).await {
            Ok(listener) => {
                drop(servers.spawn(serve(listener, role, health.clone(), shutdown.clone())))
            }
            // As upstream without --bind-address-hard-fail: Services matter more than their health server.
            Err(error) => tracing::error!(%error, %address, "opening a health server"),
        }
    }
    let factory = Factory::new(client, shutdown.clone());
    let sources = Sources::watch(&factory, &node_name);
    let options = Options {
        cluster_cidrs,
        masquerade_all,
        nodeport_cidrs,
    };
    let service_ports = ServicePorts::new(health.clone(), health_check_address);
    let proxier = Proxier::new(options, health.clone(), service_ports);
    let looping = sync_loop(sources, proxier, health, node_name, min_sync_period);
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = factory.join() => Ok(ended?),
        Some(_) = servers.join_next(), if !servers.is_empty() => {
            if shutdown.is_cancelled() { Ok(()) } else { Err(ProxyError::HealthServer) }
        }
        never = looping => match never {},
    }
}

/// Removes every rule of the proxy (`kube-proxy --cleanup`).
///
/// # Errors
/// What nft said.
pub async fn cleanup() -> Result<(), NftError> {
    nft::remove_tables().await
}

struct Sources {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    changed: Arc<Notify>,
}

impl Sources {
    fn watch(factory: &Factory, node_name: &str) -> Self {
        let sources = Self {
            services: factory.informer(&api::r::SERVICES, "", Selectors::labels(NOT_FOR_US)),
            slices: factory.informer(&api::r::ENDPOINTSLICES, "", Selectors::labels(NOT_FOR_US)),
            nodes: factory.informer(
                &api::r::NODES,
                "",
                Selectors::fields(format!("metadata.name={node_name}")),
            ),
            changed: Arc::new(Notify::new()),
        };
        let changed = || {
            let changed = sources.changed.clone();
            move || changed.notify_one()
        };
        let (service, slice, node) = (changed(), changed(), changed());
        sources.services.add_handler(move |_| service());
        sources.slices.add_handler(move |_| slice());
        // The kubelet's heartbeat changes the Node every few minutes and sometimes seconds, what is read of it hardly ever.
        sources.nodes.add_handler(move |delta| {
            if delta.old.as_deref() != delta.new.as_deref() {
                node();
            }
        });
        sources
    }

    async fn wait_synced(&self) {
        tokio::join!(
            self.services.wait_synced(),
            self.slices.wait_synced(),
            self.nodes.wait_synced()
        );
    }
}

async fn sync_loop(
    sources: Sources,
    mut proxier: Proxier,
    health: Health,
    node_name: String,
    min_sync_period: Duration,
) -> std::convert::Infallible {
    sources.wait_synced().await;
    let mut retry = RETRY.0;
    let mut next_full = Instant::now() + FULL_SYNC;
    loop {
        let started = Instant::now();
        health.queued();
        let node = sources.nodes.get(&node_name);
        health.set_node_eligible(node.as_deref().is_none_or(is_eligible));
        let zone = node.and_then(|n| n.metadata.labels.get(LABEL_ZONE).cloned());
        let info = NodeInfo {
            name: node_name.clone(),
            zone,
        };
        let (services, slices) = (sources.services.list(), sources.slices.list());
        let synced = proxier
            .sync(
                services.iter().map(|s| &**s),
                slices.iter().map(|s| &**s),
                &info,
            )
            .await;
        drop((services, slices));
        if let Err(error) = synced {
            tracing::error!(%error, "syncing proxy rules");
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(RETRY.1);
            continue;
        }
        retry = RETRY.0;
        // A sync of many Services takes long; leave the node as much time for its own work.
        let pause = min_sync_period.max(started.elapsed());
        tokio::time::sleep_until(started + pause).await;
        tokio::select! {
            () = sources.changed.notified() => {}
            () = tokio::time::sleep_until(next_full) => {
                proxier.resync();
                next_full = Instant::now() + FULL_SYNC;
            }
        }
    }
}

fn is_eligible(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none()
        && !node
            .spec
            .taints
            .iter()
            .any(|t| t.key == TAINT_DELETION_CANDIDATE)
}
