//! Upstream's `apiserver_flowcontrol_*` series: counters of each schema, and each level's seats as they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::pool::{Reading, Refusal};
use super::{Flow, count};
use crate::metrics::text::{Histogram, Kind, Text};

/// Schemas counted apart; past them, which are made and deleted again and again, all are counted as one.
const SCHEMAS: usize = 1_000;

/// Upstream's buckets of the time waited and run.
const SECONDS: &[f64] = &[
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];

/// Upstream's buckets of the seats a request is taken for.
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 10.0, 20.0, 50.0, 100.0];

type Names = (String, String);

/// The counters of all schemas.
pub struct Series {
    by_schema: Mutex<BTreeMap<Names, Arc<Counters>>>,
    /// Of requests whose schema is not known yet.
    pub(super) nobody: Arc<Counters>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            by_schema: Mutex::default(),
            nobody: Arc::new(Counters::new()),
        }
    }
}

/// What happened to the requests of one schema.
pub struct Counters {
    dispatched: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    waited: Histogram,
    given_up: Histogram,
    execution: Histogram,
    seats: Histogram,
}

impl Counters {
    fn new() -> Self {
        Self {
            dispatched: AtomicU64::new(0),
            refused: Default::default(),
            waited: Histogram::new(SECONDS),
            given_up: Histogram::new(SECONDS),
            execution: Histogram::new(SECONDS),
            seats: Histogram::new(SEATS),
        }
    }

    pub(super) fn estimated(&self, seats: usize) {
        self.seats.observe_number(seats);
    }

    pub(super) fn dispatched(&self) {
        count(&self.dispatched);
    }

    pub(super) fn refused(&self, why: Refusal) {
        if let Some(at) = Refusal::ALL.iter().position(|known| *known == why) {
            count(&self.refused[at]);
        }
    }

    pub(super) fn waited(&self, wait: Duration, runs: bool) {
        let histogram = if runs { &self.waited } else { &self.given_up };
        histogram.observe(wait);
    }

    pub(super) fn execution(&self, ran: Duration) {
        self.execution.observe(ran);
    }
}

impl Series {
    pub(super) fn of(&self, schema: &str, level: &str) -> Arc<Counters> {
        let mut all = self.by_schema.lock();
        let names = (schema.to_owned(), level.to_owned());
        if all.len() >= SCHEMAS && !all.contains_key(&names) {
            return self.nobody.clone();
        }
        let made = || Arc::new(Counters::new());
        all.entry(names).or_insert_with(made).clone()
    }
}

/// A gauge of levels: name, help, value.
type Gauge = (&'static str, &'static str, fn(&Reading) -> usize);

const GAUGES: &[Gauge] = &[
    (
        "apiserver_flowcontrol_current_executing_requests",
        "Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
        |level| level.requests,
    ),
    (
        "apiserver_flowcontrol_current_executing_seats",
        "Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
        |level| level.running,
    ),
    (
        "apiserver_flowcontrol_request_concurrency_in_use",
        "Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
        |level| level.running,
    ),
    (
        "apiserver_flowcontrol_request_concurrency_limit",
        "Nominal number of execution seats configured for each priority level",
        |level| level.nominal,
    ),
    (
        "apiserver_flowcontrol_current_inqueue_requests",
        "Number of requests currently pending in queues of the API Priority and Fairness subsystem",
        |level| level.waiting,
    ),
    (
        "apiserver_flowcontrol_current_inqueue_seats",
        "Number of seats currently pending in queues of the API Priority and Fairness subsystem",
        |level| level.wanted,
    ),
    (
        "apiserver_flowcontrol_nominal_limit_seats",
        "Nominal number of execution seats configured for each priority level",
        |level| level.nominal,
    ),
    (
        "apiserver_flowcontrol_lower_limit_seats",
        "Configured lower bound on number of execution seats available to each priority level",
        |level| level.kept,
    ),
    (
        "apiserver_flowcontrol_upper_limit_seats",
        "Configured upper bound on number of execution seats available to each priority level",
        |level| level.most,
    ),
];

impl Flow {
    /// Writes all series.
    pub fn write(&self, text: &mut Text) {
        let mut levels: Vec<Reading> = self.pool.lock().readings().collect();
        levels.sort_by(|a, b| a.name.cmp(&b.name));
        for (name, help, value) in GAUGES {
            text.family(name, Kind::Gauge, help);
            for level in &levels {
                text.sample(name, &[("priority_level", &level.name)], value(level));
            }
        }
        let all: Vec<(Names, Arc<Counters>)> = {
            let all = self.series.by_schema.lock();
            let cloned = all.iter().map(|(names, c)| (names.clone(), c.clone()));
            cloned.collect()
        };
        let name = "apiserver_flowcontrol_dispatched_requests_total";
        text.family(
            name,
            Kind::Counter,
            "Number of requests executed by API Priority and Fairness subsystem",
        );
        for ((schema, level), counters) in &all {
            let labels = [
                ("flow_schema", schema.as_str()),
                ("priority_level", level.as_str()),
            ];
            text.sample(name, &labels, counters.dispatched.load(Ordering::Relaxed));
        }
        let name = "apiserver_flowcontrol_rejected_requests_total";
        text.family(
            name,
            Kind::Counter,
            "Number of requests rejected by API Priority and Fairness subsystem",
        );
        for ((schema, level), counters) in &all {
            for (why, counter) in Refusal::ALL.iter().zip(&counters.refused) {
                let refused = counter.load(Ordering::Relaxed);
                let labels = [
                    ("flow_schema", schema.as_str()),
                    ("priority_level", level.as_str()),
                    ("reason", why.as_str()),
                ];
                if refused > 0 {
                    text.sample(name, &labels, refused);
                }
            }
        }
        write_times(text, &all);
    }
}

fn write_times(text: &mut Text, all: &[(Names, Arc<Counters>)]) {
    let name = "apiserver_flowcontrol_request_wait_duration_seconds";
    text.family(
        name,
        Kind::Histogram,
        "Length of time a request spent waiting in its queue",
    );
    for ((schema, level), counters) in all {
        for (execute, histogram) in [("false", &counters.given_up), ("true", &counters.waited)] {
            let labels = [
                ("execute", execute),
                ("flow_schema", schema.as_str()),
                ("priority_level", level.as_str()),
            ];
            if !histogram.is_empty() {
                text.histogram(name, &labels, histogram);
            }
        }
    }
    let name = "apiserver_flowcontrol_request_execution_seconds";
    text.family(
        name,
        Kind::Histogram,
        "Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
    );
    for ((schema, level), counters) in all {
        let labels = [
            ("flow_schema", schema.as_str()),
            ("priority_level", level.as_str()),
        ];
        if !counters.execution.is_empty() {
            text.histogram(name, &labels, &counters.execution);
        }
    }
    let name = "apiserver_flowcontrol_work_estimated_seats";
    text.family(
        name,
        Kind::Histogram,
        "Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
    );
    for ((schema, level), counters) in all {
        let labels = [
            ("flow_schema", schema.as_str()),
            ("priority_level", level.as_str()),
        ];
        if !counters.seats.is_empty() {
            text.histogram(name, &labels, &counters.seats);
        }
    }
}
