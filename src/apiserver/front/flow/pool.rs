//! The seats of all priority levels, and the queues before them. Not a lock and not a clock in it: `Flow` has both.
//!
//! ```text
//! a level's seats  =  those it keeps (nominal − lendable)  +  what it gets of the lendable ones of all levels
//! ```
//!
//! Upstream moves lent seats every ten seconds by what was asked for; here a seat is lent when nobody else wants it, and
//! one that comes back goes to the level that has the least of what is its own. Within a level the next request comes from
//! the queue that has been served least (start-time fair queuing), and a flow's requests share a few queues out of many
//! (shuffle sharding), so that a busy flow leaves the others theirs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tokio::time::Instant;

use super::config::{Config, Level, LevelKind};

/// Seconds a request is taken to run for until it has ended.
const ESTIMATE: f64 = 0.003;
/// Part of a level's seats that one request may take at most.
const WIDEST: f64 = 0.15;

/// All levels' seats; `W` is what is told when its turn comes.
pub struct Pool<W> {
    slots: Vec<Slot<W>>,
    /// Lendable seats of all levels.
    shared: usize,
    next_id: u64,
    /// Until when seats are held for what ended requests still cause, by slot. Each entry holds a seat at least, so
    /// there are no more of them than seats.
    lingering: BinaryHeap<Reverse<(Instant, usize, usize)>>,
}

struct Slot<W> {
    /// Empty when the level is gone and nothing of it runs any more.
    name: String,
    kind: LevelKind,
    nominal: usize,
    kept: usize,
    most: usize,
    /// Seats in use.
    running: usize,
    /// Requests that use them.
    requests: usize,
    waiting: usize,
    /// Seats that those who wait want.
    wanted: usize,
    queues: Vec<Queue<W>>,
    /// How far the fairest queue has been served (seconds).
    served: f64,
}

struct Queue<W> {
    /// Number and seats of each.
    waiting: VecDeque<(u64, usize, W)>,
    running: usize,
    /// How much this queue has been served (seconds).
    served: f64,
}

/// A place in the pool: what to give back when the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub slot: usize,
    pub queue: Option<usize>,
    /// Seats.
    pub width: usize,
}

/// What happens to a request that comes.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    Seated(Place),
    /// Waits under this number.
    Queued(Place, u64),
    Refused(Refusal),
}

/// Why not, in the words of upstream's `reason` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    QueueFull,
    ConcurrencyLimit,
    TimeOut,
}

impl Refusal {
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::ConcurrencyLimit, Self::TimeOut];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::TimeOut => "time-out",
        }
    }
}

/// A level's numbers now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub name: String,
    pub nominal: usize,
    pub kept: usize,
    pub most: usize,
    /// Seats, and requests in them.
    pub running: usize,
    pub requests: usize,
    pub waiting: usize,
    /// Seats that those who wait want.
    pub wanted: usize,
}

impl<W> Default for Pool<W> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            shared: 0,
            next_id: 0,
            lingering: BinaryHeap::new(),
        }
    }
}

impl<W> Pool<W> {
    /// Takes over a configuration; says in which slot each of its levels is now.
    pub fn configure(&mut self, config: &Config, total: usize) -> Vec<usize> {
        for slot in &mut self.slots {
            // What still runs of a level that is gone has no seats of its own.
            (slot.nominal, slot.kept, slot.most) = (0, 0, 0);
            if !config.levels.iter().any(|level| level.name == slot.name) && slot.is_idle() {
                slot.name.clear();
            }
        }
        self.shared = 0;
        let levels = config.levels.iter().zip(config.nominal(total));
        levels
            .map(|(level, nominal)| self.set(level, nominal, total))
            .collect()
    }

    fn set(&mut self, level: &Level, nominal: usize, total: usize) -> usize {
        let known = self.slots.iter().position(|slot| slot.name == level.name);
        let free = || self.slots.iter().position(|slot| slot.name.is_empty());
        let at = known.or_else(free).unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(Slot::empty());
        }
        let percent = |percent: i64| (nominal as f64 * percent as f64 / 100.0).round() as usize;
        let lendable = percent(level.lendable_percent).min(nominal);
        let slot = &mut self.slots[at];
        slot.name.clone_from(&level.name);
        slot.kind = level.kind;
        slot.nominal = nominal;
        slot.kept = nominal - lendable;
        slot.most = match level.borrowing_percent {
            Some(limit) => nominal + percent(limit),
            None => nominal.max(total),
        };
        if let LevelKind::Queue { queues, .. } = level.kind {
            // Requests wait on in queues that are not dealt any more.
            while slot.queues.len() < queues {
                slot.queues.push(Queue {
                    waiting: VecDeque::new(),
                    running: 0,
                    served: slot.served,
                });
            }
        }
        self.shared += lendable;
        at
    }

    /// Most seats that one request of a level may take. They are the level's own, so that it gets them some time, however
    /// much others borrow.
    pub fn widest(&self, slot: usize) -> usize {
        let Some(level) = self.slots.get(slot) else {
            return 1;
        };
        let part = (level.nominal as f64 * WIDEST).ceil() as usize;
        part.min(level.kept).max(1)
    }

    /// A request of a level comes, for `width` seats; `hash` tells its flow from others.
    pub fn enter(
        &mut self,
        slot: usize,
        hash: u64,
        width: usize,
        waiter: impl FnOnce() -> W,
    ) -> Entry {
        let may_run = self.may_run(slot, width);
        let Some(level) = self.slots.get_mut(slot) else {
            return Entry::Refused(Refusal::ConcurrencyLimit);
        };
        let seat = |queue| Place { slot, queue, width };
        let (queues, hand, length) = match level.kind {
            LevelKind::Reject if !may_run => return Entry::Refused(Refusal::ConcurrencyLimit),
            LevelKind::Exempt | LevelKind::Reject => {
                level.running += width;
                level.requests += 1;
                return Entry::Seated(seat(None));
            }
            LevelKind::Queue {
                queues,
                hand,
                length,
            } => (queues, hand, length),
        };
        let queue = level.shortest(deal(hash, queues, hand));
        if may_run && level.waiting == 0 {
            level.start(queue, width);
            return Entry::Seated(seat(Some(queue)));
        }
        if level.queues[queue].waiting.len() >= length {
            return Entry::Refused(Refusal::QueueFull);
        }
        self.next_id += 1;
        level.waiting += 1;
        level.wanted += width;
        let floor = level.served;
        let own = &mut level.queues[queue];
        if own.waiting.is_empty() && own.running == 0 {
            // It does not save up for the time in which it asked for nothing.
            own.served = own.served.max(floor);
        }
        own.waiting.push_back((self.next_id, width, waiter()));
        Entry::Queued(seat(Some(queue)), self.next_id)
    }

    /// A request has ended after this many seconds; `after`: seats it holds on to, and until when.
    pub fn leave(&mut self, place: Place, seconds: f64, after: Option<(usize, Instant)>) {
        let Some(slot) = self.slots.get_mut(place.slot) else {
            return;
        };
        slot.running = slot.running.saturating_sub(place.width);
        slot.requests = slot.requests.saturating_sub(1);
        if let Some(queue) = place.queue.and_then(|at| slot.queues.get_mut(at)) {
            queue.running = queue.running.saturating_sub(1);
            queue.served += (seconds - ESTIMATE) * place.width as f64;
        }
        if let Some((seats, until)) = after.filter(|_| slot.kind != LevelKind::Exempt) {
            slot.running += seats;
            self.lingering.push(Reverse((until, place.slot, seats)));
        }
    }

    /// Gives back what was held on to until now; whether that was anything.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.lingering.len();
        while let Some(Reverse((until, at, seats))) = self.lingering.peek().copied() {
            if until > now {
                break;
            }
            self.lingering.pop();
            if let Some(slot) = self.slots.get_mut(at) {
                slot.running = slot.running.saturating_sub(seats);
            }
        }
        before != self.lingering.len()
    }

    /// When `expire` has something to do.
    pub fn expires(&self) -> Option<Instant> {
        self.lingering.peek().map(|Reverse((until, ..))| *until)
    }

    /// A request does not wait any longer. False when its turn has come already.
    pub fn give_up(&mut self, place: Place, id: u64) -> bool {
        let Some(slot) = self.slots.get_mut(place.slot) else {
            return false;
        };
        let Some(queue) = place.queue.and_then(|at| slot.queues.get_mut(at)) else {
            return false;
        };
        let Some(at) = queue.waiting.iter().position(|(other, ..)| *other == id) else {
            return false;
        };
        queue.waiting.remove(at);
        slot.waiting -= 1;
        slot.wanted -= place.width;
        true
    }

    /// The next request whose turn has come; it is seated. One that is wider than what is free keeps those of its level
    /// that come after it waiting.
    pub fn next(&mut self) -> Option<(Place, W)> {
        let ready = (0..self.slots.len())
            .filter_map(|at| Some((at, self.slots[at].first()?)))
            .filter(|(at, (_, width))| self.may_run(*at, *width))
            .min_by(|(a, _), (b, _)| {
                self.slots[*a]
                    .fullness()
                    .total_cmp(&self.slots[*b].fullness())
            });
        let (at, (queue, _)) = ready?;
        let slot = &mut self.slots[at];
        let (_, width, waiter) = slot.queues[queue].waiting.pop_front()?;
        slot.waiting -= 1;
        slot.wanted -= width;
        slot.served = slot.served.max(slot.queues[queue].served);
        slot.start(queue, width);
        let place = Place {
            slot: at,
            queue: Some(queue),
            width,
        };
        Some((place, waiter))
    }

    pub fn readings(&self) -> impl Iterator<Item = Reading> + '_ {
        let named = self.slots.iter().filter(|slot| !slot.name.is_empty());
        named.map(|slot| Reading {
            name: slot.name.clone(),
            nominal: slot.nominal,
            kept: slot.kept,
            most: slot.most,
            running: slot.running,
            requests: slot.requests,
            waiting: slot.waiting,
            wanted: slot.wanted,
        })
    }

    fn may_run(&self, slot: usize, width: usize) -> bool {
        let Some(level) = self.slots.get(slot) else {
            return false;
        };
        let own = level.kept.saturating_sub(level.running);
        if width <= own {
            return true;
        }
        let lent: usize = self.slots.iter().map(Slot::borrowed).sum();
        level.running + width <= level.most && lent + (width - own) <= self.shared
    }
}

impl<W> Slot<W> {
    fn empty() -> Self {
        Self {
            name: String::new(),
            kind: LevelKind::Reject,
            nominal: 0,
            kept: 0,
            most: 0,
            running: 0,
            requests: 0,
            waiting: 0,
            wanted: 0,
            queues: Vec::new(),
            served: 0.0,
        }
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }

    /// Seats it holds of those that are lent.
    fn borrowed(&self) -> usize {
        match self.kind {
            LevelKind::Exempt => 0,
            _ => self.running.saturating_sub(self.kept),
        }
    }

    fn fullness(&self) -> f64 {
        self.running as f64 / self.nominal.max(1) as f64
    }

    /// The queue that was served least of those in which somebody waits, and the width of its first.
    fn first(&self) -> Option<(usize, usize)> {
        if self.waiting == 0 {
            return None;
        }
        let waiting = self.queues.iter().enumerate();
        let waiting = waiting.filter_map(|(at, queue)| Some((at, queue, queue.waiting.front()?.1)));
        let (at, _, width) =
            waiting.min_by(|(_, a, _), (_, b, _)| a.served.total_cmp(&b.served))?;
        Some((at, width))
    }

    fn start(&mut self, queue: usize, width: usize) {
        self.running += width;
        self.requests += 1;
        self.queues[queue].running += 1;
        self.queues[queue].served += ESTIMATE * width as f64;
    }

    /// Of a hand of queues the one with the least in it.
    fn shortest(&self, hand: Vec<usize>) -> usize {
        let load = |at: &usize| {
            let queue = &self.queues[*at];
            (queue.waiting.len(), queue.running)
        };
        hand.into_iter().min_by_key(load).unwrap_or(0)
    }
}

/// Deals `hand` of `queues` cards, all different, by a hash (shufflesharding.Dealer).
fn deal(mut hash: u64, queues: usize, hand: usize) -> Vec<usize> {
    let mut dealt: Vec<usize> = Vec::with_capacity(hand);
    for taken in 0..hand.min(queues) {
        let left = (queues - taken) as u64;
        let mut card = (hash % left) as usize;
        hash /= left;
        // The card is one of those that are left: count past the smaller ones that are taken.
        let mut sorted = dealt.clone();
        sorted.sort_unstable();
        for other in sorted {
            card += usize::from(card >= other);
        }
        dealt.push(card);
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn level(name: &str, shares: i64, lendable_percent: i64, kind: LevelKind) -> Level {
        Level {
            name: name.to_owned(),
            uid: None,
            kind,
            shares,
            lendable_percent,
            borrowing_percent: None,
        }
    }

    fn queuing(queues: usize, hand: usize, length: usize) -> LevelKind {
        LevelKind::Queue {
            queues,
            hand,
            length,
        }
    }

    fn mk_pool(levels: Vec<Level>, total: usize) -> Pool<&'static str> {
        let config = Config {
            schemas: Vec::new(),
            levels,
        };
        let mut pool = Pool::default();
        let slots = pool.configure(&config, total);
        assert_eq!(slots, (0..config.levels.len()).collect::<Vec<_>>());
        pool
    }

    #[track_caller]
    fn seated(entry: Entry) -> Place {
        match entry {
            Entry::Seated(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_level_that_rejects_does_so_at_its_limit() {
        let mut pool = mk_pool(vec![level("a", 1, 0, LevelKind::Reject)], 2);
        let first = seated(pool.enter(0, 0, 1, || ""));
        seated(pool.enter(0, 0, 1, || ""));
        assert_eq!(
            pool.enter(0, 0, 1, || ""),
            Entry::Refused(Refusal::ConcurrencyLimit)
        );
        pool.leave(first, 0.1, None);
        seated(pool.enter(0, 0, 1, || ""));
    }

    #[test]
    fn an_exempt_level_has_no_limit_and_takes_no_seats() {
        let kinds = [LevelKind::Exempt, LevelKind::Reject];
        let levels = vec![level("a", 0, 0, kinds[0]), level("b", 1, 0, kinds[1])];
        let mut pool = mk_pool(levels, 1);
        for _ in 0..100 {
            seated(pool.enter(0, 0, 1, || ""));
        }
        seated(pool.enter(1, 0, 1, || ""));
    }

    #[test]
    fn a_queue_takes_its_length_and_no_more_and_serves_in_order() {
        let mut pool = mk_pool(vec![level("a", 1, 0, queuing(1, 1, 2))], 1);
        let first = seated(pool.enter(0, 7, 1, || ""));
        assert!(matches!(pool.enter(0, 7, 1, || "b"), Entry::Queued(..)));
        let Entry::Queued(place, id) = pool.enter(0, 7, 1, || "c") else {
            panic!("it waits");
        };
        assert_eq!(
            pool.enter(0, 7, 1, || "d"),
            Entry::Refused(Refusal::QueueFull)
        );
        assert_eq!(pool.next(), None);
        assert!(pool.give_up(place, id) && !pool.give_up(place, id));
        assert!(matches!(pool.enter(0, 7, 1, || "e"), Entry::Queued(..)));
        pool.leave(first, 0.1, None);
        let (second, waiter) = pool.next().expect("a turn");
        assert_eq!((waiter, pool.next()), ("b", None));
        pool.leave(second, 0.1, None);
        assert_eq!(pool.next().map(|(_, waiter)| waiter), Some("e"));
    }

    #[test]
    fn a_busy_flow_does_not_keep_another_waiting() {
        let mut pool = mk_pool(vec![level("a", 1, 0, queuing(64, 1, 50))], 1);
        let running = seated(pool.enter(0, 1, 1, || ""));
        for _ in 0..40 {
            assert!(matches!(pool.enter(0, 1, 1, || "busy"), Entry::Queued(..)));
        }
        assert!(matches!(pool.enter(0, 2, 1, || "other"), Entry::Queued(..)));
        pool.leave(running, 1.0, None);
        let (_, waiter) = pool.next().expect("a turn");
        assert_eq!(waiter, "other", "what was served least is next");
    }

    #[test]
    fn seats_are_lent_and_come_back_to_whose_they_are() {
        let levels = vec![
            level("a", 1, 50, queuing(1, 1, 50)),
            level("b", 1, 50, queuing(1, 1, 50)),
        ];
        let mut pool = mk_pool(levels, 8);
        // Its own two, and all four that are lendable.
        let of_a: Vec<Place> = (0..6).map(|_| seated(pool.enter(0, 0, 1, || ""))).collect();
        assert!(matches!(pool.enter(0, 0, 1, || "a"), Entry::Queued(..)));
        // What is not lent stays the other's.
        seated(pool.enter(1, 0, 1, || ""));
        seated(pool.enter(1, 0, 1, || ""));
        assert!(matches!(pool.enter(1, 0, 1, || "b"), Entry::Queued(..)));
        assert_eq!(pool.next(), None);
        pool.leave(of_a[0], 0.1, None);
        assert_eq!(pool.next().map(|(_, waiter)| waiter), Some("b"));
    }

    #[test]
    fn levels_that_go_leave_their_slot_when_nothing_runs() {
        let mut pool = mk_pool(vec![level("a", 1, 0, LevelKind::Reject)], 2);
        let running = seated(pool.enter(0, 0, 1, || ""));
        let other = Config {
            schemas: Vec::new(),
            levels: vec![level("b", 1, 0, LevelKind::Reject)],
        };
        assert_eq!(pool.configure(&other, 2), [1]);
        pool.leave(running, 0.1, None);
        assert_eq!(pool.configure(&other, 2), [1]);
        let third = Config {
            schemas: Vec::new(),
            levels: vec![
                level("b", 1, 0, LevelKind::Reject),
                level("c", 1, 0, LevelKind::Reject),
            ],
        };
        assert_eq!(pool.configure(&third, 2), [1, 0]);
    }

    #[test]
    fn hands_are_of_different_queues_and_differ_between_flows() {
        let mut hands = HashSet::new();
        for flow in 0..1000_u64 {
            let hand = deal(flow.wrapping_mul(0x9e37_79b9_7f4a_7c15), 128, 6);
            let different: HashSet<_> = hand.iter().collect();
            assert_eq!(different.len(), 6);
            assert!(hand.iter().all(|queue| *queue < 128));
            hands.insert(hand);
        }
        assert!(hands.len() > 990);
        assert_eq!(deal(5, 1, 1), [0]);
    }

    #[test]
    fn a_wide_request_takes_its_seats_and_waits_until_there_are_as_many() {
        let mut pool = mk_pool(vec![level("a", 1, 0, queuing(1, 1, 9))], 20);
        assert_eq!(pool.widest(0), 3, "fifteen hundredths");
        let wide: Vec<Place> = (0..6).map(|_| seated(pool.enter(0, 0, 3, || ""))).collect();
        assert!(matches!(pool.enter(0, 0, 3, || "wide"), Entry::Queued(..)));
        assert!(matches!(
            pool.enter(0, 0, 1, || "narrow"),
            Entry::Queued(..)
        ));
        assert_eq!(pool.next(), None, "two are free, and the first wants three");
        pool.leave(wide[0], 0.1, None);
        assert_eq!(
            pool.next().map(|(place, waiter)| (place.width, waiter)),
            Some((3, "wide"))
        );
        assert_eq!(pool.next().map(|(_, waiter)| waiter), Some("narrow"));
        let reading = pool.readings().next().expect("a level");
        assert_eq!((reading.running, reading.requests), (19, 7));
        assert_eq!((reading.waiting, reading.wanted), (0, 0));
    }

    #[test]
    fn seats_are_held_for_what_a_write_causes() {
        let mut pool = mk_pool(vec![level("a", 1, 0, queuing(1, 1, 9))], 2);
        let now = Instant::now();
        let later = now + std::time::Duration::from_millis(5);
        let write = seated(pool.enter(0, 0, 2, || ""));
        assert!(matches!(pool.enter(0, 0, 1, || "next"), Entry::Queued(..)));
        pool.leave(write, 0.1, Some((2, later)));
        assert_eq!((pool.next(), pool.expire(now)), (None, false));
        assert_eq!(pool.expires(), Some(later));
        assert!(pool.expire(later));
        assert_eq!(pool.next().map(|(_, waiter)| waiter), Some("next"));
        assert_eq!(pool.expires(), None);
    }
}
