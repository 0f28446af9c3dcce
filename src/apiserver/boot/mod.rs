//! What a server makes at its start, and the work it does for itself while it runs.
//!
//! ```text
//! start ─► objects (namespaces, roles, …), service CIDR, the `kubernetes` service, endpoints, identity ─► booted
//!      └─► housekeeping: bookmarks, encodings, compaction, endpoint lease, what was deleted, allocation repair
//! ```
//!
//! Every step looks before it writes, so that a restart writes nothing; each is repeated until the store takes it.

mod api_services;
mod compaction;
mod dangling;
mod endpoints;
mod identity;
mod keeping;
mod objects;
mod roles;
mod service;

use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::Status;

use crate::kinds::core::services::repair;
use crate::registry::Registry;

/// Pause before a failed boot step is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How often watchers that want bookmarks get them.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// How often encodings that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(5);
/// How often allocations are compared with the services, when either changed.
const REPAIR: Duration = Duration::from_secs(180);

/// Starts everything; returns at once.
pub fn start(registry: &Arc<Registry>) {
    let weak = Arc::downgrade(registry);
    let stop = registry.stopped().clone();
    registry.spawn("boot", {
        let (weak, stop) = (weak.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(boot(weak)).await;
        }
    });
    registry.spawn("bookmarks", {
        let (weak, stop) = (weak.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(bookmarks(weak)).await;
        }
    });
    registry.spawn("encodings", {
        let (weak, stop) = (weak.clone(), stop.clone());
        async move {
            stop.run_until_cancelled(sweep_encodings(weak)).await;
        }
    });
    if let Some(every) = registry.options.storage.compaction_interval {
        let store = registry.options.store.clone();
        registry.spawn("compaction", async move {
            stop.run_until_cancelled(compaction::run(store, every))
                .await;
        });
    }
}

async fn boot(registry: Weak<Registry>) {
    loop {
        let Some(registry) = registry.upgrade() else {
            return;
        };
        match boot_once(&registry).await {
            Ok(()) => {
                registry.set_booted();
                break;
            }
            Err(error) => tracing::warn!(%error, "boot objects cannot be made yet"),
        }
        drop(registry);
        tokio::time::sleep(RETRY).await;
    }
    // What follows keeps no one from being served.
    let lease = endpoints::hold(registry.clone());
    let identity = identity::hold(registry.clone());
    let definitions = crate::crd::run(registry.clone());
    let fair = registry
        .upgrade()
        .is_some_and(|registry| registry.options.limits.priority_and_fairness);
    let dangling = async {
        if fair {
            dangling::run(registry.clone()).await;
        }
    };
    let keeping = keeping::keep(registry.clone());
    let repair = repair_allocations(registry.clone());
    let services = api_services::run(registry.clone());
    tokio::join!(
        lease,
        identity,
        definitions,
        dangling,
        keeping,
        repair,
        services
    );
}

async fn boot_once(registry: &Arc<Registry>) -> Result<(), Status> {
    registry.start_boot_caches();
    objects::make(registry).await?;
    service::make(registry).await?;
    registry.boot_caches_filled().await?;
    crate::crd::sync(registry).await?;
    Ok(())
}

async fn bookmarks(registry: Weak<Registry>) {
    loop {
        tokio::time::sleep(BOOKMARKS).await;
        let Some(registry) = registry.upgrade() else {
            return;
        };
        registry.send_bookmarks().await;
    }
}

/// Sleeps while nothing is kept.
async fn sweep_encodings(registry: Weak<Registry>) {
    let Some(encodings) = registry
        .upgrade()
        .map(|registry| registry.encodings().clone())
    else {
        return;
    };
    loop {
        encodings.any().await;
        tokio::time::sleep(SWEEP).await;
        let Some(registry) = registry.upgrade() else {
            return;
        };
        registry.sweep_encodings();
    }
}

async fn repair_allocations(registry: Weak<Registry>) {
    let mut seen = None;
    loop {
        {
            let Some(registry) = registry.upgrade() else {
                return;
            };
            let now = registry.allocations_changed();
            if seen != Some(now) {
                match repair::run(&registry).await {
                    Ok(()) => seen = Some(now),
                    Err(error) => tracing::warn!(%error, "allocations cannot be repaired yet"),
                }
            }
        }
        tokio::time::sleep(REPAIR).await;
    }
}
