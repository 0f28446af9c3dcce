//! What this process's clients, work queues and leader elections count, under upstream's names.
//!
//! The counts are the process's, as upstream's registry is: of several clients or queues of one name the series is
//! the sum. What changes with every request is kept in one short map; everything else is computed when asked for.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use apimachinery::exposition::{Histogram, Kind, Text};
use http::{Method, Response};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{BoxBody, Result};

/// Upstream's buckets of a request's duration.
const REQUESTS: &[f64] = &[
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];
/// Upstream's buckets of a work queue's times: ten nanoseconds, tenfold each.
const QUEUES: &[f64] = &[
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0,
];
/// Hosts and answers told apart; more are counted together under an empty host.
const MAX_SERIES: usize = 512;

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);

#[derive(Default)]
struct Registry {
    /// Answers by method, status (0 for none) and host.
    answers: Mutex<BTreeMap<(&'static str, u16, String), u64>>,
    times: Mutex<BTreeMap<(&'static str, String), Arc<Histogram>>>,
    queues: Mutex<BTreeMap<&'static str, Named>>,
    leases: Mutex<BTreeMap<String, Lease>>,
}

/// The queues of one name, of which all but the last have usually ended.
struct Named {
    series: Arc<QueueSeries>,
    queues: Vec<Weak<dyn Depth>>,
}

/// What a queue counts.
pub(crate) struct QueueSeries {
    pub adds: AtomicU64,
    pub retries: AtomicU64,
    pub waits: Histogram,
    pub works: Histogram,
}

/// How full a queue is.
pub(crate) trait Depth: Send + Sync {
    /// Keys that wait to be handed out.
    fn depth(&self) -> usize;

    /// How long each key that a worker has was worked on.
    fn working(&self) -> Vec<Duration>;
}

/// A candidate's view of its lease.
struct Lease {
    is_leader: bool,
    renewed: Instant,
    duration: Duration,
}

/// Notes how a request ended and how long that took.
pub(crate) fn request(
    method: &Method,
    host: &str,
    took: Duration,
    answer: &Result<Response<BoxBody>>,
) {
    let method = verb(method);
    let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
    let mut answers = REGISTRY.answers.lock();
    let is_full = answers.len() >= MAX_SERIES;
    let mut key = (method, code, host.to_string());
    if is_full && !answers.contains_key(&key) {
        key.2.clear();
    }
    *answers.entry(key).or_default() += 1;
    drop(answers);
    let mut times = REGISTRY.times.lock();
    let mut key = (method, host.to_string());
    if times.len() >= MAX_SERIES && !times.contains_key(&key) {
        key.1.clear();
    }
    let histogram = times
        .entry(key)
        .or_insert_with(|| Arc::new(Histogram::new(REQUESTS)))
        .clone();
    drop(times);
    histogram.observe(took);
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}

/// Enters a queue under `name`; what it returns is where its counts belong.
pub(crate) fn queue(name: &'static str, queue: Weak<dyn Depth>) -> Arc<QueueSeries> {
    let mut queues = REGISTRY.queues.lock();
    let named = queues.entry(name).or_insert_with(|| Named {
        series: Arc::new(QueueSeries {
            adds: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            waits: Histogram::new(QUEUES),
            works: Histogram::new(QUEUES),
        }),
        queues: Vec::new(),
    });
    named.queues.retain(|queue| queue.strong_count() > 0);
    named.queues.push(queue);
    named.series.clone()
}

/// Notes that the lease `name` is held, or is not any more.
pub(crate) fn lease(name: &str, is_leader: bool, duration: Duration) {
    let renewed = Instant::now();
    let lease = Lease {
        is_leader,
        renewed,
        duration,
    };
    REGISTRY.leases.lock().insert(name.to_string(), lease);
}

/// By how long the holder of the lease `name` in this process is late with renewing it: so long after the lease's
/// duration it should no longer believe to hold it (client-go's leaderelection.HealthzAdaptor).
pub fn lease_overdue(name: &str) -> Duration {
    let leases = REGISTRY.leases.lock();
    let late = leases.get(name).filter(|lease| lease.is_leader);
    late.map_or(Duration::ZERO, |lease| {
        lease.renewed.elapsed().saturating_sub(lease.duration)
    })
}

/// Whether this process holds the lease `name`, as far as it knows.
pub fn is_leader(name: &str) -> bool {
    let leases = REGISTRY.leases.lock();
    leases.get(name).is_some_and(|lease| lease.is_leader)
}

/// Writes all series.
pub fn write(text: &mut Text) {
    write_requests(text);
    write_queues(text);
    let leases = REGISTRY.leases.lock();
    if leases.is_empty() {
        return;
    }
    const STATUS: &str = "leader_election_master_status";
    text.family(
        STATUS,
        Kind::Gauge,
        "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
         'name' is the string used to identify the lease.",
    );
    for (name, lease) in leases.iter() {
        text.sample(STATUS, &[("name", name)], u8::from(lease.is_leader));
    }
}

fn write_requests(text: &mut Text) {
    const ANSWERS: &str = "rest_client_requests_total";
    const TIMES: &str = "rest_client_request_duration_seconds";
    text.family(
        ANSWERS,
        Kind::Counter,
        "Number of HTTP requests, partitioned by status code, method, and host.",
    );
    for ((method, code, host), count) in REGISTRY.answers.lock().iter() {
        let code = match code {
            0 => "<error>".to_string(),
            code => code.to_string(),
        };
        let labels = [("code", &*code), ("host", host), ("method", method)];
        text.sample(ANSWERS, &labels, count);
    }
    text.family(
        TIMES,
        Kind::Histogram,
        "Request latency in seconds. Broken down by verb, and host.",
    );
    for ((method, host), histogram) in REGISTRY.times.lock().iter() {
        text.histogram(TIMES, &[("host", host), ("verb", method)], histogram);
    }
}

fn write_queues(text: &mut Text) {
    let queues = REGISTRY.queues.lock();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let sums: Vec<(&str, &QueueSeries, usize, Vec<Duration>)> = queues
        .iter()
        .map(|(name, named)| {
            let live: Vec<_> = named.queues.iter().filter_map(Weak::upgrade).collect();
            let depth = live.iter().map(|queue| queue.depth()).sum();
            let working = live.iter().flat_map(|queue| queue.working()).collect();
            (*name, &*named.series, depth, working)
        })
        .collect();
    let longest = |all: &[Duration]| all.iter().max().map_or(0.0, Duration::as_secs_f64);
    type Value<'a> = &'a dyn Fn(&(&str, &QueueSeries, usize, Vec<Duration>)) -> f64;
    let families: [(&str, Kind, &str, Value<'_>); 5] = [
        (
            "workqueue_adds_total",
            Kind::Counter,
            "Total number of adds handled by workqueue",
            &|(_, series, _, _)| read(&series.adds),
        ),
        (
            "workqueue_depth",
            Kind::Gauge,
            "Current depth of workqueue",
            &|(_, _, depth, _)| *depth as f64,
        ),
        (
            "workqueue_retries_total",
            Kind::Counter,
            "Total number of retries handled by workqueue",
            &|(_, series, _, _)| read(&series.retries),
        ),
        (
            "workqueue_unfinished_work_seconds",
            Kind::Gauge,
            "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large \
             values indicate stuck threads.",
            &|(_, _, _, working)| working.iter().sum::<Duration>().as_secs_f64(),
        ),
        (
            "workqueue_longest_running_processor_seconds",
            Kind::Gauge,
            "How many seconds has the longest running processor for workqueue been running.",
            &|(_, _, _, working)| longest(working),
        ),
    ];
    for (family, kind, help, value) in families {
        text.family(family, kind, help);
        for sum in &sums {
            text.sample(family, &[("name", sum.0)], value(sum));
        }
    }
    const WAITS: &str = "workqueue_queue_duration_seconds";
    const WORKS: &str = "workqueue_work_duration_seconds";
    text.family(
        WAITS,
        Kind::Histogram,
        "How long in seconds an item stays in workqueue before being requested.",
    );
    for (name, series, ..) in &sums {
        text.histogram(WAITS, &[("name", name)], &series.waits);
    }
    text.family(
        WORKS,
        Kind::Histogram,
        "How long in seconds processing an item from workqueue takes.",
    );
    for (name, series, ..) in &sums {
        text.histogram(WORKS, &[("name", name)], &series.works);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workqueue::Queue;

    fn line(start: &str) -> String {
        let mut text = Text::default();
        write(&mut text);
        let text = text.finish();
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap_or("none").to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_counts_its_adds_its_retries_and_how_long_keys_wait_and_are_worked_on() {
        let queue = Queue::default();
        queue.add("a");
        queue.name("metrics-test");
        queue.add("b");
        queue.add("b");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let item = queue.get().await.expect("a key");
        tokio::time::sleep(Duration::from_secs(3)).await;
        for (start, value) in [
            ("workqueue_adds_total{name=\"metrics-test\"}", "2"),
            ("workqueue_depth{name=\"metrics-test\"}", "1"),
            (
                "workqueue_longest_running_processor_seconds{name=\"metrics-test\"}",
                "3",
            ),
            (
                "workqueue_queue_duration_seconds_sum{name=\"metrics-test\"}",
                "2",
            ),
        ] {
            assert_eq!(line(start), format!("{start} {value}"));
        }
        drop(item);
        queue.add_rate_limited("a");
        for (start, value) in [
            (
                "workqueue_work_duration_seconds_sum{name=\"metrics-test\"}",
                "3",
            ),
            ("workqueue_retries_total{name=\"metrics-test\"}", "1"),
        ] {
            assert_eq!(line(start), format!("{start} {value}"));
        }
        drop(queue);
        let depth = "workqueue_depth{name=\"metrics-test\"}";
        assert_eq!(line(depth), format!("{depth} 0"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_does_not_renew_its_lease_is_overdue() {
        lease("metrics-test", true, Duration::from_secs(15));
        assert!(is_leader("metrics-test"));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(lease_overdue("metrics-test"), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(lease_overdue("metrics-test"), Duration::from_secs(5));
        lease("metrics-test", false, Duration::from_secs(15));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(lease_overdue("metrics-test"), Duration::ZERO);
        let status = "leader_election_master_status{name=\"metrics-test\"}";
        assert_eq!(line(status), format!("{status} 0"));
    }
}
