//! Store leases for objects that expire (Events): one lease serves many objects, so that ten thousand events do not cost
//! ten thousand leases (`storage/etcd3/lease_manager.go`).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store::{Store, StoreError};
use tokio::time::Instant;

/// Longest time a lease takes in new objects.
const REUSE: Duration = Duration::from_secs(60);
/// Most objects on one lease.
const MAX_OBJECTS: usize = 1000;

struct Current {
    id: i64,
    life: Duration,
    until: Instant,
    objects: usize,
}

/// Hands out leases.
pub struct Leases {
    store: Arc<dyn Store>,
    current: Mutex<Option<Current>>,
    granting: tokio::sync::Mutex<()>,
}

impl Leases {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            current: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
        }
    }

    /// A lease that lives at least `life` from now, and at most 5 % or a minute longer.
    pub async fn get(&self, life: Duration) -> Result<i64, StoreError> {
        if let Some(id) = self.reuse(life) {
            return Ok(id);
        }
        let _one_at_a_time = self.granting.lock().await;
        if let Some(id) = self.reuse(life) {
            return Ok(id);
        }
        let reuse = REUSE.min(life / 20);
        let seconds = (life + reuse).as_secs().max(1);
        let lease = self.store.lease_grant(0, seconds as i64).await?;
        *self.current.lock() = Some(Current {
            id: lease.id,
            life,
            until: Instant::now() + reuse,
            objects: 1,
        });
        Ok(lease.id)
    }

    fn reuse(&self, life: Duration) -> Option<i64> {
        let mut current = self.current.lock();
        let lease = current.as_mut()?;
        let usable =
            lease.life == life && lease.objects < MAX_OBJECTS && Instant::now() < lease.until;
        if !usable {
            return None;
        }
        lease.objects += 1;
        Some(lease.id)
    }
}
