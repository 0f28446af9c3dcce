//! What the scheduler counts, under upstream's names (pkg/scheduler/metrics).
//!
//! Counts outlive a term of leadership. What is a state (how many pods wait, how many nodes are known) is read from
//! the scheduler when somebody asks.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use apimachinery::exposition::{Histogram, Kind, Text};
use parking_lot::Mutex;

use crate::{cycle::Times, queue::Sizes, run::Shared};

/// Upstream's buckets of an attempt: doubling from a millisecond.
const ATTEMPTS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
/// Of the time from the first attempt to the binding: doubling from ten milliseconds to 87 minutes.
const SLI: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 655.36, 1310.72, 2621.44, 5242.88,
];
/// Of an extension point: doubling from a tenth of a millisecond.
const POINTS: &[f64] = &[
    0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048,
];
/// Of how often a pod was tried, and of how many victims a preemption takes.
const TRIES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];
const VICTIMS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// From this number on, attempts are not told apart.
const MANY_ATTEMPTS: usize = 15;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

const OUTCOMES: [&str; 3] = ["scheduled", "unschedulable", "error"];

/// The part of an attempt that a duration is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    PreBind,
    Bind,
}

const POINT_NAMES: [&str; 8] = [
    "PreFilter",
    "Filter",
    "PostFilter",
    "PreScore",
    "Score",
    "Reserve",
    "PreBind",
    "Bind",
];
const STATUSES: [&str; 3] = ["Success", "Unschedulable", "Error"];

/// Where the queue puts a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntoQueue {
    Active,
    Backoff,
    Unschedulable,
    Gated,
}

const QUEUES: [&str; 4] = ["active", "backoff", "unschedulable", "gated"];

/// Why the queue moves a pod: upstream's words for its own events, resource and action for those of the cluster.
pub const MOVES: [&str; 16] = [
    "UnschedulablePodAdd",
    "UnschedulablePodUpdate",
    "ScheduleAttemptFailure",
    "BackoffComplete",
    "PopFromBackoffQ",
    "UnschedulableTimeout",
    "ForceActivate",
    "NodeAdd",
    "NodeUpdate",
    "AssignedPodAdd",
    "AssignedPodUpdate",
    "AssignedPodDelete",
    "NominatedPodDelete",
    "StorageUpdate",
    "ResourceClaimUpdate",
    "NamespaceUpdate",
];

/// Counts pods that enter each place of the queue, by why.
#[derive(Default)]
pub struct Incoming([[AtomicU64; QUEUES.len()]; MOVES.len()]);

impl Incoming {
    /// `why` is one of `MOVES`; any other is not counted.
    pub fn count(&self, why: &str, into: IntoQueue) {
        if let Some(at) = MOVES.iter().position(|one| *one == why) {
            self.0[at][into as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The series of one profile.
pub struct ProfileSeries {
    attempts: [Histogram; OUTCOMES.len()],
    points: [[Histogram; STATUSES.len()]; POINT_NAMES.len()],
}

impl ProfileSeries {
    fn new() -> Self {
        let point = || std::array::from_fn(|_| Histogram::new(POINTS));
        ProfileSeries {
            attempts: std::array::from_fn(|_| Histogram::new(ATTEMPTS)),
            points: std::array::from_fn(|_| point()),
        }
    }

    /// An attempt ended.
    pub fn attempt(&self, outcome: Outcome, took: Duration) {
        self.attempts[outcome as usize].observe(took);
    }

    /// A part of an attempt ended.
    pub fn point(&self, point: Point, outcome: Outcome, took: Duration) {
        self.points[point as usize][outcome as usize].observe(took);
    }

    /// The parts of a decision.
    pub fn decision(&self, times: &Times, is_fit: bool, preempts: bool) {
        let Times {
            pre_filter,
            filter,
            post_filter,
            pre_score,
            score,
        } = times;
        let outcome = |is_good| match is_good {
            true => Outcome::Scheduled,
            false => Outcome::Unschedulable,
        };
        let parts = [
            (Point::PreFilter, pre_filter, is_fit || filter.is_some()),
            (Point::Filter, filter, is_fit),
            (Point::PostFilter, post_filter, preempts),
            (Point::PreScore, pre_score, true),
            (Point::Score, score, true),
        ];
        for (point, took, is_good) in parts {
            if let Some(took) = took {
                self.point(point, outcome(is_good), *took);
            }
        }
    }
}

/// All that a scheduler counts.
pub struct Metrics {
    profiles: Mutex<BTreeMap<String, Arc<ProfileSeries>>>,
    algorithm: Histogram,
    sli: [Histogram; MANY_ATTEMPTS],
    tries: Histogram,
    pub incoming: Arc<Incoming>,
    preemption_attempts: AtomicU64,
    preemption_victims: Histogram,
    /// The term of leadership, if there is one.
    shared: Mutex<Weak<Shared>>,
    /// Whether its caches are being filled.
    is_waiting: AtomicBool,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            profiles: Mutex::default(),
            algorithm: Histogram::new(ATTEMPTS),
            sli: std::array::from_fn(|_| Histogram::new(SLI)),
            tries: Histogram::new(TRIES),
            incoming: Arc::default(),
            preemption_attempts: AtomicU64::new(0),
            preemption_victims: Histogram::new(VICTIMS),
            shared: Mutex::default(),
            is_waiting: AtomicBool::new(false),
        }
    }
}

impl Metrics {
    /// The series of the profile `name`.
    pub(crate) fn profile(&self, name: &str) -> Arc<ProfileSeries> {
        let mut profiles = self.profiles.lock();
        let series = profiles
            .entry(name.to_string())
            .or_insert_with(|| Arc::new(ProfileSeries::new()));
        series.clone()
    }

    /// A term of leadership began.
    pub(crate) fn leads(&self, shared: &Arc<Shared>) {
        *self.shared.lock() = Arc::downgrade(shared);
        self.is_waiting.store(true, Ordering::Relaxed);
    }

    /// Its caches are filled.
    pub(crate) fn synced(&self) {
        self.is_waiting.store(false, Ordering::Relaxed);
    }

    /// Whether this scheduler leads and cannot work yet, since it does not know the cluster.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// A node was found, which took so long.
    pub(crate) fn decided(&self, took: Duration) {
        self.algorithm.observe(took);
    }

    /// A pod was bound so long after its first attempt.
    pub(crate) fn bound(&self, attempts: u32, since_first: Duration) {
        let attempts = usize::try_from(attempts).unwrap_or(usize::MAX).max(1);
        self.sli[attempts.min(MANY_ATTEMPTS) - 1].observe(since_first);
        self.tries.observe_number(attempts);
    }

    /// Pods were looked for that could go.
    pub(crate) fn preemption(&self) {
        self.preemption_attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// So many were found.
    pub(crate) fn victims(&self, count: usize) {
        self.preemption_victims.observe_number(count);
    }

    /// Writes all series.
    pub fn write(&self, text: &mut Text) {
        self.write_attempts(text);
        self.write_points(text);
        self.write_pods(text);
        const INCOMING: &str = "scheduler_queue_incoming_pods_total";
        text.family(
            INCOMING,
            Kind::Counter,
            "Number of pods added to scheduling queues by event and queue type.",
        );
        for (event, counts) in MOVES.iter().zip(&self.incoming.0) {
            for (queue, count) in QUEUES.iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    text.sample(INCOMING, &[("event", event), ("queue", queue)], count);
                }
            }
        }
        text.family(
            "scheduler_preemption_attempts_total",
            Kind::Counter,
            "Total preemption attempts in the cluster till now",
        );
        let attempts = self.preemption_attempts.load(Ordering::Relaxed);
        text.sample("scheduler_preemption_attempts_total", &[], attempts);
        text.family(
            "scheduler_preemption_victims",
            Kind::Histogram,
            "Number of selected preemption victims",
        );
        text.histogram(
            "scheduler_preemption_victims",
            &[],
            &self.preemption_victims,
        );
        let shared = self.shared.lock().upgrade();
        if let Some(shared) = shared {
            write_state(text, &shared);
        }
    }

    fn write_attempts(&self, text: &mut Text) {
        const TOTAL: &str = "scheduler_schedule_attempts_total";
        const DURATION: &str = "scheduler_scheduling_attempt_duration_seconds";
        let profiles = self.profiles.lock();
        let all = profiles.iter().flat_map(|(profile, series)| {
            let outcomes = OUTCOMES.iter().zip(&series.attempts);
            let outcomes = outcomes.filter(|(_, histogram)| !histogram.is_empty());
            outcomes.map(move |(result, histogram)| (profile.as_str(), *result, histogram))
        });
        let all: Vec<_> = all.collect();
        text.family(
            TOTAL,
            Kind::Counter,
            "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, \
             while 'error' means an internal scheduler problem.",
        );
        for (profile, result, histogram) in &all {
            let labels = [("profile", *profile), ("result", *result)];
            text.sample(TOTAL, &labels, histogram.count());
        }
        text.family(
            DURATION,
            Kind::Histogram,
            "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
        );
        for (profile, result, histogram) in &all {
            let labels = [("profile", *profile), ("result", *result)];
            text.histogram(DURATION, &labels, histogram);
        }
        const ALGORITHM: &str = "scheduler_scheduling_algorithm_duration_seconds";
        text.family(
            ALGORITHM,
            Kind::Histogram,
            "Scheduling algorithm latency in seconds",
        );
        text.histogram(ALGORITHM, &[], &self.algorithm);
    }

    fn write_points(&self, text: &mut Text) {
        const DURATION: &str = "scheduler_framework_extension_point_duration_seconds";
        text.family(
            DURATION,
            Kind::Histogram,
            "Latency for running all plugins of a specific extension point.",
        );
        for (profile, series) in self.profiles.lock().iter() {
            for (point, statuses) in POINT_NAMES.iter().zip(&series.points) {
                let used = STATUSES.iter().zip(statuses);
                for (status, histogram) in used.filter(|(_, histogram)| !histogram.is_empty()) {
                    let labels = [
                        ("extension_point", *point),
                        ("profile", profile),
                        ("status", *status),
                    ];
                    text.histogram(DURATION, &labels, histogram);
                }
            }
        }
    }

    fn write_pods(&self, text: &mut Text) {
        const SLI: &str = "scheduler_pod_scheduling_sli_duration_seconds";
        text.family(
            SLI,
            Kind::Histogram,
            "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might \
             involve multiple scheduling attempts.",
        );
        for (place, histogram) in self.sli.iter().enumerate() {
            if histogram.is_empty() {
                continue;
            }
            let attempts = match place + 1 {
                MANY_ATTEMPTS => format!("{MANY_ATTEMPTS}+"),
                attempts => attempts.to_string(),
            };
            text.histogram(SLI, &[("attempts", &attempts)], histogram);
        }
        const TRIES: &str = "scheduler_pod_scheduling_attempts";
        text.family(
            TRIES,
            Kind::Histogram,
            "Number of attempts to successfully schedule a pod.",
        );
        text.histogram(TRIES, &[], &self.tries);
    }
}

fn write_state(text: &mut Text, shared: &Shared) {
    let (sizes, stuck, [nodes, pods, assumed]) = shared.sizes();
    let Sizes {
        active,
        backoff,
        unschedulable,
        gated,
    } = sizes;
    const PENDING: &str = "scheduler_pending_pods";
    text.family(
        PENDING,
        Kind::Gauge,
        "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of \
         pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to \
         schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to \
         schedule because they are gated.",
    );
    for (queue, count) in QUEUES.iter().zip([active, backoff, unschedulable, gated]) {
        text.sample(PENDING, &[("queue", queue)], count);
    }
    const UNSCHEDULABLE: &str = "scheduler_unschedulable_pods";
    text.family(
        UNSCHEDULABLE,
        Kind::Gauge,
        "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins \
         that caused it to not schedule and so this metric have meaning only when broken down by plugin.",
    );
    for ((profile, plugin), count) in stuck {
        let labels = [("plugin", plugin), ("profile", &*profile)];
        text.sample(UNSCHEDULABLE, &labels, count);
    }
    const CACHE: &str = "scheduler_cache_size";
    text.family(
        CACHE,
        Kind::Gauge,
        "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
    );
    for (kind, count) in [("assumed_pods", assumed), ("nodes", nodes), ("pods", pods)] {
        text.sample(CACHE, &[("type", kind)], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_and_their_parts_are_told_by_profile_and_result() {
        let metrics = Metrics::default();
        let series = metrics.profile("p");
        series.attempt(Outcome::Scheduled, Duration::from_millis(3));
        metrics
            .profile("p")
            .attempt(Outcome::Scheduled, Duration::ZERO);
        series.decision(
            &Times {
                pre_filter: Some(Duration::ZERO),
                filter: Some(Duration::ZERO),
                post_filter: Some(Duration::ZERO),
                ..Times::default()
            },
            false,
            false,
        );
        metrics.bound(1, Duration::from_secs(1));
        metrics.bound(40, Duration::from_secs(1));
        metrics.incoming.count("NodeAdd", IntoQueue::Backoff);
        let mut text = Text::default();
        metrics.write(&mut text);
        let text = text.finish();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"p\",result=\"scheduled\"} 2",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"p\",result=\"scheduled\",le=\"0.002\"} 1",
            "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PreFilter\",profile=\"p\",status=\"Success\"} 1",
            "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PostFilter\",profile=\"p\",status=\"Unschedulable\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"1\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"15+\"} 1",
            "scheduler_queue_incoming_pods_total{event=\"NodeAdd\",queue=\"backoff\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(
            !text.contains("scheduler_pending_pods{"),
            "no term has begun"
        );
    }
}
