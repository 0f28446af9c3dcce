//! Requests counted by verb, resource and code: upstream's `apiserver_request_*` series.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use parking_lot::{Mutex, RwLock};

use super::text::{Histogram, Kind, Text};
use crate::request::{RequestInfo, Verb};
use crate::routes::Routes;

/// Combinations of verb and resource counted apart; about 1 KB each. 100 resources with 10 verbs make 1,000.
const SERIES: usize = 4000;

/// Upstream's buckets of `apiserver_request_duration_seconds`.
pub const DURATIONS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upstream's buckets of `apiserver_response_sizes` (bytes).
const SIZES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// The counters of all requests.
#[derive(Default)]
pub struct Requests {
    hasher: RandomState,
    series: RwLock<HashMap<u64, Arc<Series>>>,
}

struct Series {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    long_running: bool,
    running: AtomicI64,
    /// A handful of codes occur.
    codes: Mutex<Vec<(StatusCode, u64)>>,
    duration: Histogram,
    /// Of responses that were at hand as a whole.
    sizes: Histogram,
}

/// One request under way.
pub struct Observation {
    series: Arc<Series>,
    started: Instant,
}

/// Ends an observation when the response's body ends.
pub struct Ending(Option<Observation>, StatusCode);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(observation) = self.0.take() {
            observation.finish(self.1, None);
        }
    }
}

impl Observation {
    pub fn is_long_running(&self) -> bool {
        self.series.long_running
    }

    /// `size`: bytes of the response's body, where they are known.
    pub fn finish(self, code: StatusCode, size: Option<usize>) {
        let series = &self.series;
        if !series.long_running {
            series.duration.observe(self.started.elapsed());
        }
        if let Some(size) = size.filter(|_| !series.long_running) {
            series.sizes.observe_number(size);
        }
        let mut codes = series.codes.lock();
        match codes.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => codes.push((code, 1)),
        }
    }

    pub fn until_dropped(self, code: StatusCode) -> Ending {
        Ending(Some(self), code)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.series.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Requests {
    /// Begins to count a request.
    pub fn start(&self, info: &RequestInfo, routes: &Routes, headers: &HeaderMap) -> Observation {
        let verb = verb(info, headers);
        let series = self.series(info, verb, routes);
        series.running.fetch_add(1, Ordering::Relaxed);
        Observation {
            series,
            started: Instant::now(),
        }
    }

    fn series(&self, info: &RequestInfo, verb: &'static str, routes: &Routes) -> Arc<Series> {
        let key = self.key(info, verb);
        if let Some(series) = self.series.read().get(&key) {
            return series.clone();
        }
        // What clients make up is counted together.
        let known = info.is_resource && routes.knows(info);
        let subresource =
            match routes
                .discovery
                .served()
                .find(&info.group, &info.version, &info.resource)
            {
                Some(resource) if resource.subresource(&info.subresource).is_some() => {
                    info.subresource.clone()
                }
                _ => String::new(),
            };
        let text = |value: &str| {
            if known {
                value.to_owned()
            } else {
                String::new()
            }
        };
        let series = Series {
            verb,
            group: text(&info.group),
            version: text(&info.version),
            resource: text(&info.resource),
            subresource,
            scope: scope(info),
            long_running: info.is_long_running(),
            running: AtomicI64::new(0),
            codes: Mutex::new(Vec::new()),
            duration: Histogram::new(DURATIONS),
            sizes: Histogram::new(SIZES),
        };
        let mut all = self.series.write();
        let key = if known && all.len() < SERIES {
            key
        } else {
            self.hasher
                .hash_one((verb, info.is_resource, info.is_long_running()))
        };
        all.entry(key).or_insert_with(|| Arc::new(series)).clone()
    }

    fn key(&self, info: &RequestInfo, verb: &'static str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        verb.hash(&mut hasher);
        if info.is_resource {
            info.group.hash(&mut hasher);
            info.version.hash(&mut hasher);
            info.resource.hash(&mut hasher);
            info.subresource.hash(&mut hasher);
        }
        scope(info).hash(&mut hasher);
        hasher.finish()
    }

    /// Writes all series, in a stable order.
    pub fn write(&self, text: &mut Text) {
        let mut all: Vec<Arc<Series>> = self.series.read().values().cloned().collect();
        all.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        text.family(
            "apiserver_request_total",
            Kind::Counter,
            "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
        );
        for series in &all {
            for (code, count) in series.codes.lock().iter() {
                let mut labels = vec![("code", code.as_str())];
                labels.extend(series.labels());
                text.sample("apiserver_request_total", &labels, count);
            }
        }
        let timed = [
            (
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
            ),
            (
                "apiserver_request_sli_duration_seconds",
                "Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
            ),
        ];
        for (name, help) in timed {
            text.family(name, Kind::Histogram, help);
            for series in all.iter().filter(|series| !series.long_running) {
                text.histogram(name, &series.labels(), &series.duration);
            }
        }
        let name = "apiserver_response_sizes";
        text.family(
            name,
            Kind::Histogram,
            "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
        );
        for series in all.iter().filter(|series| !series.sizes.is_empty()) {
            let mut labels = series.labels();
            labels.retain(|(label, _)| *label != "dry_run");
            text.histogram(name, &labels, &series.sizes);
        }
        text.family(
            "apiserver_longrunning_requests",
            Kind::Gauge,
            "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
        );
        for series in all.iter().filter(|series| series.long_running) {
            let running = series.running.load(Ordering::Relaxed);
            text.sample("apiserver_longrunning_requests", &series.labels(), running);
        }
    }
}

impl Series {
    fn sort_key(&self) -> [&str; 6] {
        [
            &self.group,
            &self.version,
            &self.resource,
            &self.subresource,
            self.verb,
            self.scope,
        ]
    }

    fn labels(&self) -> Vec<(&str, &str)> {
        vec![
            ("component", "apiserver"),
            ("dry_run", ""),
            ("group", &self.group),
            ("resource", &self.resource),
            ("scope", self.scope),
            ("subresource", &self.subresource),
            ("verb", self.verb),
            ("version", &self.version),
        ]
    }
}

fn scope(info: &RequestInfo) -> &'static str {
    match info {
        _ if !info.is_resource => "",
        _ if !info.name.is_empty() || info.verb == Verb::Create => "resource",
        _ if !info.namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}

/// Upstream's canonical verbs.
fn verb(info: &RequestInfo, headers: &HeaderMap) -> &'static str {
    if matches!(
        info.subresource.as_str(),
        "exec" | "attach" | "portforward" | "proxy"
    ) {
        return "CONNECT";
    }
    match info.verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create | Verb::Post => "POST",
        Verb::Update | Verb::Put => "PUT",
        Verb::Patch => {
            let is_apply = headers
                .get(CONTENT_TYPE)
                .is_some_and(|value| value.as_bytes().starts_with(b"application/apply-patch"));
            if is_apply { "APPLY" } else { "PATCH" }
        }
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Head => "HEAD",
        Verb::Options => "OPTIONS",
        Verb::Other => "other",
    }
}
