//! What a cluster cannot be without is made again when somebody deletes it: the `kubernetes` service and where it
//! leads, the service range, the system's namespaces. Upstream looks every few seconds; this watches their keys.

use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::Status;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::select_all;
use store::kv::prefix_end;
use store::{EventKind, WatchRequest};
use tokio_stream::wrappers::ReceiverStream;

use super::{endpoints, objects, service};
use crate::registry::Registry;

const RETRY: Duration = Duration::from_secs(1);

/// Keeps them for as long as the registry lives.
pub async fn keep(registry: Weak<Registry>) {
    loop {
        match keep_once(&registry).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "what was deleted is made again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Ends with `Ok` when the registry is gone.
async fn keep_once(weak: &Weak<Registry>) -> Result<(), Status> {
    let Some(registry) = weak.upgrade() else {
        return Ok(());
    };
    let store = registry.options.store.clone();
    let mut watches = Vec::new();
    for (key, range_end) in watched(&registry) {
        let request = WatchRequest {
            key,
            range_end,
            ..WatchRequest::default()
        };
        let watch = store.watch(request).await.map_err(Status::internal)?;
        watches.push(ReceiverStream::new(watch.receiver));
    }
    // What was deleted while nobody watched.
    restore(&registry).await?;
    drop(registry);
    let mut batches = select_all(watches);
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(Status::internal)?;
        let deleted = |event: &store::Event| matches!(event.kind, EventKind::Delete);
        if !batch.events.iter().any(deleted) {
            continue;
        }
        let Some(registry) = weak.upgrade() else {
            return Ok(());
        };
        restore(&registry).await?;
    }
    Err(Status::internal("the watches of what must be there ended"))
}

async fn restore(registry: &Arc<Registry>) -> Result<(), Status> {
    objects::make_namespaces(registry).await?;
    service::make(registry).await?;
    endpoints::reconcile(registry).await
}

fn watched(registry: &Registry) -> Vec<(Bytes, Option<Bytes>)> {
    let one = |group: &str, plural: &str, namespace: &str| {
        let kind = registry.kind(group, plural)?;
        Some((kind.key(namespace, service::NAME), None))
    };
    let namespaces = registry.kind("", "namespaces").map(|kind| {
        let prefix = kind.key("", objects::SYSTEM_NAMESPACES);
        let end = prefix_end(&prefix);
        (prefix, Some(end))
    });
    let all = [
        one("", "services", service::NAMESPACE),
        one("", "endpoints", service::NAMESPACE),
        one("discovery.k8s.io", "endpointslices", service::NAMESPACE),
        one("networking.k8s.io", "servicecidrs", ""),
        namespaces,
    ];
    all.into_iter().flatten().collect()
}
