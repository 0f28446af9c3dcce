//! Leases: a time to live, and the keys that go with it.
//!
//! A keep-alive only moves a clock in memory. The first one of a lease is also recorded durably, once: after
//! a restart a lease that was ever kept alive gets its full time again (its holder could not reach the store
//! meanwhile), and one that never was keeps the deadline it was granted with. So no lease expires early,
//! and the keys of events, whose leases nobody renews, live exactly as long as they should.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use imbl::OrdSet;

use super::view::View;
use crate::kv::{Lease, StoreError};

/// etcd's `MaxLeaseTTL`, in seconds.
const MAX_TTL: i64 = 9_000_000_000;

/// One lease. The clock is shared by all states of the lease, whatever view they are in.
#[derive(Clone, Debug)]
pub(crate) struct LeaseState {
    pub id: i64,
    /// Seconds.
    pub ttl: i64,
    pub clock: Arc<LeaseClock>,
    pub keys: OrdSet<Bytes>,
}

#[derive(Debug)]
pub(crate) struct LeaseClock {
    /// Milliseconds on the store's `Clock`. Written by a keep-alive, and only ever raised.
    deadline: AtomicI64,
    /// Whether a keep-alive was recorded durably.
    renewed: AtomicBool,
}

/// Milliseconds since the store was opened, which wall-clock jumps do not move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub fn now(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    pub fn instant(&self, at: i64) -> Instant {
        self.start + Duration::from_millis(u64::try_from(at).unwrap_or(0))
    }

    /// The time of day, in milliseconds since 1970, that `at` stands for.
    pub fn to_unix(self, at: i64) -> i64 {
        unix_now().saturating_add(at.saturating_sub(self.now()))
    }

    pub fn at_unix(self, unix: i64) -> i64 {
        self.now().saturating_add(unix.saturating_sub(unix_now()))
    }
}

fn unix_now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

impl LeaseState {
    pub fn new(id: i64, ttl: i64, deadline: i64, renewed: bool) -> Self {
        Self {
            id,
            ttl,
            clock: Arc::new(LeaseClock {
                deadline: AtomicI64::new(deadline),
                renewed: AtomicBool::new(renewed),
            }),
            keys: OrdSet::new(),
        }
    }

    pub fn deadline(&self) -> i64 {
        self.clock.deadline.load(Ordering::Acquire)
    }

    /// Starts the time to live anew. Says whether this is the first time, which has to be recorded.
    pub fn keep_alive(&self, now: i64) -> bool {
        let deadline = now.saturating_add(self.ttl.saturating_mul(1000));
        self.clock.deadline.fetch_max(deadline, Ordering::AcqRel);
        !self.is_renewed()
    }

    pub fn is_renewed(&self) -> bool {
        self.clock.renewed.load(Ordering::Acquire)
    }

    pub fn set_renewed(&self) {
        self.clock.renewed.store(true, Ordering::Release);
    }

    pub fn report(&self, now: i64) -> Lease {
        let left = self.deadline().saturating_sub(now).max(0);
        Lease {
            id: self.id,
            ttl: self.ttl,
            // Rounded up, so that a lease just granted reports its whole time.
            remaining: left.saturating_add(999) / 1000,
        }
    }
}

/// Checks and rounds a requested time to live.
pub(crate) fn check_ttl(ttl: i64) -> Result<i64, StoreError> {
    if ttl > MAX_TTL {
        return Err(StoreError::LeaseTtlTooLarge(ttl));
    }
    Ok(ttl.max(1))
}

impl View {
    pub fn lease(&self, id: i64) -> Result<&Arc<LeaseState>, StoreError> {
        self.leases.get(&id).ok_or(StoreError::LeaseNotFound(id))
    }

    /// Ties a key to a lease that exists; 0 is no lease.
    pub fn attach(&mut self, id: i64, key: &Bytes) {
        self.change_lease(id, |keys| {
            keys.insert(key.clone());
        });
    }

    pub fn detach(&mut self, id: i64, key: &Bytes) {
        self.change_lease(id, |keys| {
            keys.remove(key);
        });
    }

    fn change_lease(&mut self, id: i64, change: impl FnOnce(&mut OrdSet<Bytes>)) {
        if id == 0 {
            return;
        }
        if let Some(lease) = self.leases.get_mut(&id) {
            change(&mut Arc::make_mut(lease).keys);
        }
    }
}

/// When leases end, earliest first. A lease that was kept alive is found too early and put back.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    queue: BTreeSet<(i64, i64)>,
}

impl Deadlines {
    pub fn add(&mut self, deadline: i64, id: i64) {
        self.queue.insert((deadline, id));
    }

    pub fn next(&self) -> Option<i64> {
        self.queue.first().map(|(deadline, _)| *deadline)
    }

    /// The leases of `view` whose time has run out.
    pub fn take_expired(&mut self, view: &View, now: i64) -> Vec<i64> {
        let mut expired = Vec::new();
        while let Some(&(deadline, id)) = self.queue.first() {
            if deadline > now {
                break;
            }
            self.queue.pop_first();
            match view.leases.get(&id) {
                None => {}
                Some(lease) if lease.deadline() > now => self.add(lease.deadline(), id),
                Some(_) => expired.push(id),
            }
        }
        expired
    }
}

/// A lease number nobody has: positive, and hard to meet by chance.
pub(crate) fn new_id(view: &View, seed: i64) -> i64 {
    let mut state = seed as u64 ^ unix_now() as u64;
    loop {
        // splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let id = ((mixed ^ (mixed >> 31)) & i64::MAX as u64) as i64;
        if id != 0 && !view.leases.contains_key(&id) {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_kept_alive_is_not_expired_at_its_first_deadline() {
        let mut view = View::empty();
        let mut deadlines = Deadlines::default();
        for id in [1, 2] {
            view.leases
                .insert(id, Arc::new(LeaseState::new(id, 10, 10_000, false)));
            deadlines.add(10_000, id);
        }
        assert!(view.leases[&2].keep_alive(5_000));
        assert_eq!(deadlines.take_expired(&view, 9_999), Vec::<i64>::new());
        assert_eq!(deadlines.take_expired(&view, 10_000), vec![1]);
        assert_eq!(deadlines.next(), Some(15_000));
        assert_eq!(deadlines.take_expired(&view, 15_000), vec![2]);
    }

    #[test]
    fn a_lease_reports_whole_seconds_rounded_up() {
        let lease = LeaseState::new(1, 10, 10_000, false);
        assert_eq!(lease.report(0).remaining, 10);
        assert_eq!(lease.report(1).remaining, 10);
        assert_eq!(lease.report(9_001).remaining, 1);
        assert_eq!(lease.report(20_000).remaining, 0);
    }
}
