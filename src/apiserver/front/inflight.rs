//! Bounds on the requests in flight: readers and writers apart, a short queue before a 429.
//!
//! Long-running requests are not counted, and members of `system:masters` always get through, as with upstream's
//! `WithMaxInFlightLimit`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A queued request waits at most a quarter of the default request timeout, as under upstream's priority and fairness.
const QUEUE_WAIT: Duration = Duration::from_secs(15);

/// Requests that may queue for each one that may run. 400 + 200 running make 19,200 waiting; a waiting request holds
/// its headers only (its body is not read), about 4 KB: under 80 MB at worst.
const QUEUE_PER_SEAT: usize = 32;

/// Two pools of seats.
pub struct InFlight {
    reading: Pool,
    writing: Pool,
    long_running: Arc<AtomicUsize>,
}

struct Pool {
    seats: Arc<Semaphore>,
    size: usize,
    waiting: Arc<AtomicUsize>,
    exempt: Arc<AtomicUsize>,
}

/// Counts as in flight until dropped.
pub struct Seat {
    _permit: Option<OwnedSemaphorePermit>,
    counted: Option<Arc<AtomicUsize>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(counter) = &self.counted {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Which bound a request falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Reading,
    Writing,
    LongRunning,
}

impl InFlight {
    pub fn new(reading: usize, writing: usize) -> Self {
        Self {
            reading: Pool::new(reading),
            writing: Pool::new(writing),
            long_running: Arc::default(),
        }
    }

    /// `None` when the request has to be refused. `exempt` requests never are.
    pub async fn enter(&self, class: Class, exempt: bool) -> Option<Seat> {
        match class {
            Class::Reading => self.reading.enter(exempt).await,
            Class::Writing => self.writing.enter(exempt).await,
            Class::LongRunning => Some(Seat::counted(&self.long_running)),
        }
    }

    /// Requests in flight now.
    pub fn count(&self, class: Class) -> usize {
        match class {
            Class::Reading => self.reading.running(),
            Class::Writing => self.writing.running(),
            Class::LongRunning => self.long_running.load(Ordering::Relaxed),
        }
    }

    /// Requests in the queue now.
    pub fn waiting(&self, class: Class) -> usize {
        match class {
            Class::Reading => self.reading.waiting.load(Ordering::Relaxed),
            Class::Writing => self.writing.waiting.load(Ordering::Relaxed),
            Class::LongRunning => 0,
        }
    }
}

impl Seat {
    fn counted(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self {
            _permit: None,
            counted: Some(counter.clone()),
        }
    }

    fn permitted(permit: OwnedSemaphorePermit) -> Self {
        Self {
            _permit: Some(permit),
            counted: None,
        }
    }
}

impl Pool {
    fn new(size: usize) -> Self {
        Self {
            seats: Arc::new(Semaphore::new(size)),
            size,
            waiting: Arc::default(),
            exempt: Arc::default(),
        }
    }

    fn running(&self) -> usize {
        self.size.saturating_sub(self.seats.available_permits())
            + self.exempt.load(Ordering::Relaxed)
    }

    async fn enter(&self, exempt: bool) -> Option<Seat> {
        if let Ok(permit) = self.seats.clone().try_acquire_owned() {
            return Some(Seat::permitted(permit));
        }
        if exempt {
            return Some(Seat::counted(&self.exempt));
        }
        if self.waiting.load(Ordering::Relaxed) >= self.size * QUEUE_PER_SEAT {
            return None;
        }
        let _waiting = Seat::counted(&self.waiting);
        match tokio::time::timeout(QUEUE_WAIT, self.seats.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Some(Seat::permitted(permit)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_pool_makes_requests_wait_and_then_refuses_them() {
        let inflight = InFlight::new(1, 1);
        let seat = inflight
            .enter(Class::Reading, false)
            .await
            .expect("a free seat");
        assert_eq!(inflight.count(Class::Reading), 1);
        assert!(inflight.enter(Class::Reading, false).await.is_none());
        assert!(inflight.enter(Class::Writing, false).await.is_some());
        drop(seat);
        assert!(inflight.enter(Class::Reading, false).await.is_some());
        assert_eq!(inflight.count(Class::Reading), 0);
    }

    #[tokio::test]
    async fn exempt_and_long_running_requests_always_get_in() {
        let inflight = InFlight::new(0, 0);
        let exempt = inflight.enter(Class::Writing, true).await;
        let watch = inflight.enter(Class::LongRunning, false).await;
        assert!(exempt.is_some() && watch.is_some());
        assert_eq!(inflight.count(Class::Writing), 1);
        assert_eq!(inflight.count(Class::LongRunning), 1);
    }
}
