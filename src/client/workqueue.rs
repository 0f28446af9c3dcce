//! A queue of keys for reconcilers: a key waits once however often it is added, is never given to two workers at
//! once, and comes back later with exponential back-off when its work failed.
//!
//! No task and no timer of its own: whoever waits in `get` also waits for the next due delay.
//! The bound is the number of distinct keys, which the caches behind them bound.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    fmt::Display,
    future::Future,
    hash::Hash,
    ops::Deref,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::metrics::{self, Depth, QueueSeries};

/// Back-off of a failing key: `base * 2^failures`, at most `max`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    pub base: Duration,
    pub max: Duration,
}

impl Default for RateLimit {
    /// Upstream's DefaultTypedControllerRateLimiter: 5 ms to 1000 s.
    fn default() -> Self {
        RateLimit {
            base: Duration::from_millis(5),
            max: Duration::from_secs(1000),
        }
    }
}

impl RateLimit {
    fn delay(&self, failures: u32) -> Duration {
        let factor = 2u32.checked_pow(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

/// The queue; clones share it.
pub struct Queue<K>(Arc<Shared<K>>);

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue(self.0.clone())
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    limit: RateLimit,
    /// Once it has a name.
    series: OnceLock<Arc<QueueSeries>>,
}

struct State<K> {
    /// Keys to hand out, in order; each is in `dirty` and not in `processing`.
    ready: VecDeque<K>,
    /// Keys that need work, with when they were added.
    dirty: HashMap<K, Instant>,
    /// Keys a worker has, with since when.
    processing: HashMap<K, Instant>,
    /// Keys that were added as long as the queue had no name.
    adds: u64,
    /// When each delayed key is due; the heap may hold outdated entries, this map decides.
    due: HashMap<K, Instant>,
    heap: BinaryHeap<Reverse<Due<K>>>,
    sequence: u64,
    failures: HashMap<K, u32>,
    closed: bool,
}

struct Due<K> {
    at: Instant,
    sequence: u64,
    key: K,
}

impl<K> PartialEq for Due<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}
impl<K> Eq for Due<K> {}
impl<K> PartialOrd for Due<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Due<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// A key being worked on. Dropping it says `done`: if the key was added meanwhile, it is handed out again.
pub struct Item<K: Eq + Hash + Clone> {
    queue: Queue<K>,
    key: K,
}

impl<K: Eq + Hash + Clone> Deref for Item<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.key
    }
}

impl<K: Eq + Hash + Clone> Drop for Item<K> {
    fn drop(&mut self) {
        self.queue.done(&self.key);
    }
}

impl<K: Eq + Hash + Clone> Default for Queue<K> {
    fn default() -> Self {
        Queue::new(RateLimit::default())
    }
}

impl<K: Eq + Hash + Clone> Queue<K> {
    pub fn new(limit: RateLimit) -> Self {
        Queue(Arc::new(Shared {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                dirty: HashMap::new(),
                processing: HashMap::new(),
                adds: 0,
                due: HashMap::new(),
                heap: BinaryHeap::new(),
                sequence: 0,
                failures: HashMap::new(),
                closed: false,
            }),
            changed: Notify::new(),
            limit,
            series: OnceLock::new(),
        }))
    }

    /// Counts the queue under `name` from now on, with what was added before.
    pub fn name(&self, name: &'static str)
    where
        K: Send + 'static,
    {
        let own: Arc<Shared<K>> = self.0.clone();
        let depth: Weak<dyn Depth> = Arc::<Shared<K>>::downgrade(&own);
        self.0.series.get_or_init(|| {
            let series = metrics::queue(name, depth);
            let adds = std::mem::take(&mut self.0.state.lock().adds);
            series.adds.fetch_add(adds, Ordering::Relaxed);
            series
        });
    }

    /// Adds `key` now. A delay it waits for stays as it is.
    pub fn add(&self, key: K) {
        let series = self.0.series.get();
        if self.0.state.lock().add(key, series) {
            self.0.changed.notify_one();
        }
    }

    /// Adds `key` once `delay` has passed; of several delays of a key, the earliest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay;
        let mut state = self.0.state.lock();
        if state.closed || state.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        state.due.insert(key.clone(), at);
        state.sequence += 1;
        let sequence = state.sequence;
        state.heap.push(Reverse(Due { at, sequence, key }));
        state.trim_heap();
        drop(state);
        self.0.changed.notify_one();
    }

    /// Adds `key` after its back-off, which grows until `forget`.
    pub fn add_rate_limited(&self, key: K) {
        if let Some(series) = self.0.series.get() {
            series.retries.fetch_add(1, Ordering::Relaxed);
        }
        let delay = {
            let mut state = self.0.state.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            let delay = self.0.limit.delay(*failures);
            *failures = failures.saturating_add(1);
            delay
        };
        self.add_after(key, delay);
    }

    /// Ends the key's back-off.
    pub fn forget(&self, key: &K) {
        self.0.state.lock().failures.remove(key);
    }

    /// How often the key was added rate-limited since the last `forget`.
    pub fn num_requeues(&self, key: &K) -> u32 {
        self.0.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Keys ready to be handed out.
    pub fn len(&self) -> usize {
        self.0.state.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the queue: nothing more is added, `get` returns `None` once what is ready is handed out.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        state.due.clear();
        state.heap.clear();
        drop(state);
        self.0.changed.notify_waiters();
        self.0.changed.notify_one();
    }

    /// The next key. `None` when the queue is closed and drained. Cancel-safe.
    pub async fn get(&self) -> Option<Item<K>> {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, so that no change in between is missed.
            changed.as_mut().enable();
            let next_due = {
                let mut state = self.0.state.lock();
                let now = Instant::now();
                let series = self.0.series.get();
                let next_due = state.promote(now, series);
                if let Some(key) = state.ready.pop_front() {
                    let added = state.dirty.remove(&key).unwrap_or(now);
                    state.processing.insert(key.clone(), now);
                    if let Some(series) = series {
                        series.waits.observe(now - added);
                    }
                    let more = !state.ready.is_empty() || next_due.is_some();
                    drop(state);
                    if more {
                        self.0.changed.notify_one();
                    }
                    return Some(Item {
                        queue: self.clone(),
                        key,
                    });
                }
                if state.closed {
                    drop(state);
                    self.0.changed.notify_one();
                    return None;
                }
                next_due
            };
            match next_due {
                None => changed.await,
                Some(at) => {
                    tokio::select! {
                        () = &mut changed => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
            }
        }
    }

    fn done(&self, key: &K) {
        let mut state = self.0.state.lock();
        let since = state.processing.remove(key);
        if let Some((series, since)) = self.0.series.get().zip(since) {
            series.works.observe(since.elapsed());
        }
        if state.dirty.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.0.changed.notify_one();
        } else if state.closed {
            drop(state);
            self.0.changed.notify_one();
        }
    }
}

impl<K: Send> Depth for Shared<K> {
    fn depth(&self) -> usize {
        self.state.lock().ready.len()
    }

    fn working(&self) -> Vec<Duration> {
        let state = self.state.lock();
        state.processing.values().map(Instant::elapsed).collect()
    }
}

impl<K: Eq + Hash + Clone> State<K> {
    /// Whether a worker may now have something to do.
    fn add(&mut self, key: K, series: Option<&Arc<QueueSeries>>) -> bool {
        if self.closed || self.dirty.contains_key(&key) {
            return false;
        }
        self.dirty.insert(key.clone(), Instant::now());
        match series {
            Some(series) => {
                series.adds.fetch_add(1, Ordering::Relaxed);
            }
            None => self.adds += 1,
        }
        if self.processing.contains_key(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    /// Moves due keys to `ready`; returns when the next one is due.
    fn promote(&mut self, now: Instant, series: Option<&Arc<QueueSeries>>) -> Option<Instant> {
        while let Some(Reverse(first)) = self.heap.peek() {
            let current = self.due.get(&first.key) == Some(&first.at);
            if current && first.at > now {
                return Some(first.at);
            }
            if let Some(Reverse(first)) = self.heap.pop()
                && current
            {
                self.due.remove(&first.key);
                self.add(first.key, series);
            }
        }
        None
    }

    /// Keeps outdated entries from outnumbering live ones.
    fn trim_heap(&mut self) {
        const SLACK: usize = 64;
        if self.heap.len() > 2 * self.due.len() + SLACK {
            let due = &self.due;
            self.heap
                .retain(|Reverse(entry)| due.get(&entry.key) == Some(&entry.at));
        }
    }
}

/// What a successful reconcile asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Nothing until the key is added again.
    No,
    /// Look again after this time.
    After(Duration),
}

/// Hands keys to `reconcile`, `workers` at a time, until `shutdown` or `close`. A failed or panicking key is logged and
/// comes back with back-off; a good one is forgotten. Returns when the reconciles under way have ended.
pub async fn run<K, F, Fut, E>(
    name: &'static str,
    queue: &Queue<K>,
    workers: usize,
    shutdown: &CancellationToken,
    reconcile: F,
) where
    K: Eq + Hash + Clone + std::fmt::Debug + Send + 'static,
    F: Fn(K) -> Fut,
    Fut: Future<Output = Result<Requeue, E>>,
    E: Display,
{
    queue.name(name);
    let worker = || async {
        loop {
            let item = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                item = queue.get() => item,
            };
            let Some(item) = item else { return };
            let key = item.deref().clone();
            let work = AssertUnwindSafe(async { reconcile(key.clone()).await }).catch_unwind();
            match work.await {
                Ok(Ok(requeue)) => {
                    queue.forget(&key);
                    if let Requeue::After(delay) = requeue {
                        queue.add_after(key, delay);
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(queue = name, ?key, %error, "reconcile failed, will be retried");
                    queue.add_rate_limited(key);
                }
                Err(_) => {
                    tracing::error!(queue = name, ?key, "reconcile panicked, will be retried");
                    queue.add_rate_limited(key);
                }
            }
            drop(item);
        }
    };
    futures::future::join_all((0..workers.max(1)).map(|_| worker())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_added_twice_is_handed_out_once() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(*queue.get().await.unwrap(), "a");
        assert_eq!(*queue.get().await.unwrap(), "b");
        assert!(queue.get().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_worked_on_comes_back_after_done() {
        let queue = Queue::default();
        queue.add("a");
        let item = queue.get().await.unwrap();
        queue.add("a");
        assert!(queue.get().now_or_never().is_none());
        drop(item);
        assert_eq!(*queue.get().await.unwrap(), "a");
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_doubles_until_forgotten_and_is_capped() {
        let limit = RateLimit::default();
        assert_eq!(limit.delay(0), Duration::from_millis(5));
        assert_eq!(limit.delay(3), Duration::from_millis(40));
        assert_eq!(limit.delay(200), Duration::from_secs(1000));
        let queue = Queue::default();
        for expected in [5, 10, 20] {
            let start = Instant::now();
            queue.add_rate_limited("a");
            drop(queue.get().await);
            assert_eq!(start.elapsed().as_millis(), expected);
        }
        assert_eq!(queue.num_requeues(&"a"), 3);
        queue.forget(&"a");
        assert_eq!(queue.num_requeues(&"a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_counts() {
        let queue = Queue::default();
        queue.add_after("a", Duration::from_secs(9));
        queue.add_after("a", Duration::from_secs(3));
        queue.add_after("a", Duration::from_secs(6));
        let start = Instant::now();
        drop(queue.get().await);
        assert_eq!(start.elapsed().as_secs(), 3);
        let again = tokio::time::timeout(Duration::from_secs(60), queue.get()).await;
        assert!(again.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn every_worker_gets_a_key_and_close_ends_all() {
        let queue = Queue::default();
        let shutdown = CancellationToken::new();
        let seen = Mutex::new(Vec::new());
        let work = run("test", &queue, 3, &shutdown, |key: u32| {
            let (seen, queue) = (&seen, &queue);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                seen.lock().push(key);
                if seen.lock().len() == 6 {
                    queue.close();
                }
                Ok::<_, std::convert::Infallible>(Requeue::No)
            }
        });
        (0..6).for_each(|key| queue.add(key));
        let start = Instant::now();
        work.await;
        assert_eq!(start.elapsed().as_secs(), 2);
        assert_eq!(seen.lock().len(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panicking_reconcile_is_retried() {
        let queue = Queue::default();
        let shutdown = CancellationToken::new();
        let tries = Mutex::new(0);
        queue.add("a");
        run("test", &queue, 1, &shutdown, |_| async {
            *tries.lock() += 1;
            if *tries.lock() == 1 {
                panic!("first");
            }
            queue.close();
            Ok::<_, std::convert::Infallible>(Requeue::No)
        })
        .await;
        assert_eq!(*tries.lock(), 2);
    }
}
