//! Priority and fairness (KEP-1040): which flow a request belongs to, and when it may run.
//!
//! ```text
//! request ─ Config::classify ─▶ schema, level ─ Pool::enter ─┬─ seated ───────────────▶ runs, Seat
//!             ▲                                              ├─ queued ─ turn comes ──▶ runs, Seat
//!   FlowSchemas and levels, read anew when they change       └─ refused, waited too long ▶ 429
//! ```
//!
//! Read `Flow::enter` first. How many seats a request takes is in `estimate`.
//!
//! **Invariant:** a seat is given back when its `Seat` is dropped, whatever ended the request.

pub mod config;
mod estimate;
mod pool;
mod series;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::{Backend, Generation};
use crate::request::{RequestInfo, UserInfo};
use config::{Config, LevelKind};
use estimate::Work;
use pool::{Entry, Place, Pool, Refusal};
pub use series::Series;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// How long a request waits for its turn when it has no deadline: a quarter of upstream's default request timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// How often a request that waits looks whether seats that ended writes hold on to are free: the shortest hold is 5 ms.
const LOOK: Duration = Duration::from_millis(20);

/// Decides for all requests of a server.
pub struct Flow {
    /// Seats of all levels together.
    total: usize,
    backend: Arc<dyn Backend>,
    current: RwLock<Arc<Current>>,
    pool: Mutex<Pool<Waiter>>,
    hasher: RandomState,
    pub series: Series,
}

type Waiter = oneshot::Sender<Seat>;

struct Current {
    seen: (Generation, Generation),
    config: Config,
    /// The pool's slot of each level.
    slots: Vec<usize>,
    /// Most seats of one request of each level.
    widest: Vec<usize>,
    /// The counters of each schema.
    counters: Vec<Arc<series::Counters>>,
}

/// What the response says about the request's class.
#[derive(Clone, Debug, Default)]
pub struct Stamp {
    schema: Option<HeaderValue>,
    level: Option<HeaderValue>,
}

impl Stamp {
    pub fn put(&self, headers: &mut HeaderMap) {
        for (name, value) in [(SCHEMA_UID, &self.schema), (LEVEL_UID, &self.level)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
    }
}

/// A request that runs; dropping it lets the next one run.
pub struct Seat {
    flow: Arc<Flow>,
    place: Place,
    counters: Arc<series::Counters>,
    work: Work,
    since: Instant,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let ran = self.since.elapsed();
        self.counters.execution(ran);
        self.flow.leave(self.place, self.work, ran);
    }
}

/// Leaves the queue when the request goes away while it waits.
struct Waiting<'a> {
    flow: &'a Flow,
    place: Place,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // False when its turn has come: the seat is on its way, and given back by the channel's end.
        self.flow.pool.lock().give_up(self.place, self.id);
    }
}

impl Flow {
    /// `total`: as many requests as may run at once, of all levels but the exempt ones.
    pub fn new(total: usize, backend: Arc<dyn Backend>) -> Arc<Self> {
        let config = Config::of([].into_iter(), [].into_iter());
        let mut pool = Pool::default();
        let series = Series::default();
        let current = Current::new((0, 0), config, &mut pool, total, &series);
        Arc::new(Self {
            total,
            backend,
            current: RwLock::new(Arc::new(current)),
            pool: Mutex::new(pool),
            hasher: RandomState::new(),
            series,
        })
    }

    /// Waits until a request may run, at most a quarter of the time it has. The stamp is set as soon as its class is known.
    pub async fn enter(
        self: &Arc<Self>,
        user: &UserInfo,
        info: &RequestInfo,
        left: Option<Duration>,
        stamp: &std::sync::OnceLock<Stamp>,
    ) -> Result<Option<Seat>, Refusal> {
        let current = self.current();
        let Some((at, distinguisher)) = current.config.classify(user, info) else {
            // Nobody is in no group: a user made up by a test, or impersonated without groups.
            return Ok(None);
        };
        let schema = &current.config.schemas[at];
        let level = &current.config.levels[schema.level];
        let _ = stamp.set(Stamp {
            schema: schema.uid.clone(),
            level: level.uid.clone(),
        });
        let (slot, counters) = (current.slots[schema.level], &current.counters[at]);
        let hash = self.hasher.hash_one((&schema.name, distinguisher));
        let work = match level.kind {
            LevelKind::Exempt => Work::ONE,
            _ => estimate::of(&*self.backend, info, current.widest[schema.level]),
        };
        counters.estimated(work.width());
        self.expire();
        let mut turn = None;
        let entry = self.pool.lock().enter(slot, hash, work.width(), || {
            let (tell, told) = oneshot::channel();
            turn = Some(told);
            tell
        });
        let seat = match (entry, turn) {
            (Entry::Seated(place), _) => self.seat(place, work, counters),
            (Entry::Queued(place, id), Some(turn)) => {
                let wait = left.map_or(LONGEST_WAIT, |left| left / 4);
                let since = Instant::now();
                let outcome = self.wait(place, id, turn, wait).await;
                counters.waited(since.elapsed(), outcome.is_some());
                let Some(mut seat) = outcome else {
                    counters.refused(Refusal::TimeOut);
                    return Err(Refusal::TimeOut);
                };
                seat.counters.clone_from(counters);
                seat.work = work;
                seat.since = Instant::now();
                seat
            }
            (Entry::Queued(place, id), None) => {
                self.pool.lock().give_up(place, id);
                return Ok(None);
            }
            (Entry::Refused(why), _) => {
                counters.refused(why);
                return Err(why);
            }
        };
        counters.dispatched();
        Ok(Some(seat))
    }

    async fn wait(
        self: &Arc<Self>,
        place: Place,
        id: u64,
        mut turn: oneshot::Receiver<Seat>,
        wait: Duration,
    ) -> Option<Seat> {
        let _leaves = Waiting {
            flow: self,
            place,
            id,
        };
        let end = Instant::now() + wait;
        loop {
            let look = end.min(Instant::now() + LOOK);
            match tokio::time::timeout_at(look, &mut turn).await {
                Ok(seat) => return seat.ok(),
                Err(_) if Instant::now() >= end => return None,
                Err(_) => self.expire(),
            }
        }
    }

    fn seat(self: &Arc<Self>, place: Place, work: Work, counters: &Arc<series::Counters>) -> Seat {
        Seat {
            flow: self.clone(),
            place,
            work,
            counters: counters.clone(),
            since: Instant::now(),
        }
    }

    /// Frees the seats that are not held on to any more.
    fn expire(self: &Arc<Self>) {
        let turns = {
            let mut pool = self.pool.lock();
            if pool.expires().is_none() || !pool.expire(Instant::now()) {
                return;
            }
            turns(&mut pool)
        };
        self.tell(turns);
    }

    /// A request ended: whose turn it is now is told after the lock is free, since one that does not listen any more
    /// gives its seat back at once.
    fn leave(self: &Arc<Self>, place: Place, work: Work, ran: Duration) {
        let after = (work.seats_after > 0).then(|| (work.seats_after, Instant::now() + work.after));
        let turns = {
            let mut pool = self.pool.lock();
            pool.leave(place, ran.as_secs_f64(), after);
            turns(&mut pool)
        };
        self.tell(turns);
    }

    fn tell(self: &Arc<Self>, turns: Vec<(Place, Waiter)>) {
        for (place, waiter) in turns {
            // Whoever gets it knows its own work.
            let seat = self.seat(place, Work::ONE, &self.series.nobody);
            drop(waiter.send(seat));
        }
    }

    /// The configuration in force, read anew when a schema or a level has changed.
    fn current(self: &Arc<Self>) -> Arc<Current> {
        let generation = |plural| self.backend.generation(GROUP, plural);
        let now = (
            generation("flowschemas"),
            generation("prioritylevelconfigurations"),
        );
        {
            let current = self.current.read();
            if current.seen == now {
                return current.clone();
            }
        }
        let schemas = self.backend.cached_list(GROUP, "flowschemas");
        let levels = self
            .backend
            .cached_list(GROUP, "prioritylevelconfigurations");
        let config = Config::of(
            schemas.iter().map(AsRef::as_ref),
            levels.iter().map(AsRef::as_ref),
        );
        let (made, turns) = {
            let mut pool = self.pool.lock();
            let made = Current::new(now, config, &mut pool, self.total, &self.series);
            let made = Arc::new(made);
            *self.current.write() = made.clone();
            (made, turns(&mut pool))
        };
        // There may be more seats than before.
        self.tell(turns);
        made
    }
}

/// All whose turn it is.
fn turns(pool: &mut Pool<Waiter>) -> Vec<(Place, Waiter)> {
    std::iter::from_fn(|| pool.next()).collect()
}

impl Current {
    fn new(
        seen: (Generation, Generation),
        config: Config,
        pool: &mut Pool<Waiter>,
        total: usize,
        series: &Series,
    ) -> Self {
        let slots = pool.configure(&config, total);
        let counters = config.schemas.iter().map(|schema| {
            let level = &config.levels[schema.level].name;
            series.of(&schema.name, level)
        });
        Self {
            seen,
            counters: counters.collect(),
            widest: slots.iter().map(|slot| pool.widest(*slot)).collect(),
            slots,
            config,
        }
    }
}

/// One more.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
