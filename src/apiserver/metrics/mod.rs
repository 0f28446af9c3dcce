//! `/metrics`: upstream's main series, kept in atomics and written out when asked for.

pub mod process;
pub mod requests;
pub mod store;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use apimachinery::exposition as text;
use http::{Response, StatusCode};
use parking_lot::Mutex;

use crate::authz::Decision;
use crate::body::Body;
use crate::front::Front;
use crate::front::inflight::{Class, InFlight};
use crate::front::respond;
use crate::routes::version;
use requests::Requests;
use text::{Histogram, Kind, Text};

/// Writes the series of another part of the server.
pub type Source = Box<dyn Fn(&mut Text) + Send + Sync>;

/// Upstream's buckets of how long a decision takes: doubling from a millisecond.
const DECISIONS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];

/// Upstream's buckets of how long a client's certificate lives yet: none, half an hour, … a year.
const LIVES: &[f64] = &[
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Resource and subresource of the core group's first version, of which no release is known to go without.
type Deprecated = (&'static str, String);
/// Most of them that are kept.
const DEPRECATED: usize = 16;

/// All that one server counts.
pub struct Metrics {
    pub requests: Requests,
    handshake_errors: AtomicU64,
    authentications: [Histogram; 2],
    authorizations: [Histogram; 3],
    certificate_lives: Histogram,
    deprecated: Mutex<BTreeSet<Deprecated>>,
    sources: Mutex<Vec<Source>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Requests::default(),
            handshake_errors: AtomicU64::new(0),
            authentications: std::array::from_fn(|_| Histogram::new(DECISIONS)),
            authorizations: std::array::from_fn(|_| Histogram::new(DECISIONS)),
            certificate_lives: Histogram::new(LIVES),
            deprecated: Mutex::default(),
            sources: Mutex::new(Vec::new()),
        }
    }
}

impl Metrics {
    /// Lets another part add its series to every scrape.
    pub fn add_source(&self, source: Source) {
        self.sources.lock().push(source);
    }

    pub fn handshake_failed(&self) {
        self.handshake_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody was believed or not, which took this long.
    pub fn authentication(&self, success: bool, took: Duration) {
        self.authentications[usize::from(success)].observe(took);
    }

    /// A request came with a certificate that lives for so long yet.
    pub fn certificate(&self, left: Duration) {
        self.certificate_lives.observe(left);
    }

    /// A deprecated resource was asked for. There are few of them, all known.
    pub fn deprecated(&self, resource: &'static str, subresource: &str) {
        let mut all = self.deprecated.lock();
        let known = all
            .iter()
            .any(|(of, under)| *of == resource && under == subresource);
        if !known && all.len() < DEPRECATED {
            all.insert((resource, subresource.to_owned()));
        }
    }

    pub fn authorization(&self, decision: Decision, took: Duration) {
        let at = match decision {
            Decision::Allow => 0,
            Decision::Deny => 1,
            Decision::NoOpinion => 2,
        };
        self.authorizations[at].observe(took);
    }

    /// The exposition in Prometheus' text format.
    pub fn answer(&self, front: &Front) -> Response<Body> {
        let mut text = Text::default();
        self.requests.write(&mut text);
        write_inflight(&mut text, &front.inflight);
        self.write_own(&mut text);
        for source in self.sources.lock().iter() {
            source(&mut text);
        }
        write_constants(&mut text);
        process::write(&mut text);
        respond::with_type(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            text.finish().into(),
        )
    }

    fn write_own(&self, text: &mut Text) {
        let name = "apiserver_requested_deprecated_apis";
        text.family(
            name,
            Kind::Gauge,
            "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
        );
        for (resource, subresource) in self.deprecated.lock().iter() {
            let labels = [
                ("group", ""),
                ("removed_release", ""),
                ("resource", *resource),
                ("subresource", subresource.as_str()),
                ("version", "v1"),
            ];
            text.sample(name, &labels, 1);
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        text.family(
            "apiserver_tls_handshake_errors_total",
            Kind::Counter,
            "Number of requests dropped with 'TLS handshake error from' error",
        );
        text.sample(
            "apiserver_tls_handshake_errors_total",
            &[],
            read(&self.handshake_errors),
        );
        text.family(
            "authentication_attempts",
            Kind::Counter,
            "Counter of authenticated attempts.",
        );
        for (result, counter) in ["failure", "success"]
            .into_iter()
            .zip(&self.authentications)
        {
            let labels = [("result", result)];
            text.sample("authentication_attempts", &labels, counter.count());
        }
        text.family(
            "authentication_duration_seconds",
            Kind::Histogram,
            "Authentication duration in seconds broken out by result.",
        );
        for (result, times) in ["failure", "success"]
            .into_iter()
            .zip(&self.authentications)
        {
            let labels = [("result", result)];
            text.histogram("authentication_duration_seconds", &labels, times);
        }
        text.family(
            "authenticated_user_requests",
            Kind::Counter,
            "Counter of authenticated requests broken out by username.",
        );
        text.sample(
            "authenticated_user_requests",
            &[("username", "other")],
            self.authentications[1].count(),
        );
        text.family(
            "authorization_attempts_total",
            Kind::Counter,
            "Counter of authorization attempts broken down by result.",
        );
        let results = ["allowed", "denied", "no-opinion"];
        for (result, times) in results.into_iter().zip(&self.authorizations) {
            let labels = [("result", result)];
            text.sample("authorization_attempts_total", &labels, times.count());
        }
        text.family(
            "authorization_duration_seconds",
            Kind::Histogram,
            "Authorization duration in seconds broken out by result.",
        );
        for (result, times) in results.into_iter().zip(&self.authorizations) {
            let labels = [("result", result)];
            text.histogram("authorization_duration_seconds", &labels, times);
        }
        text.family(
            "apiserver_client_certificate_expiration_seconds",
            Kind::Histogram,
            "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
        );
        text.histogram(
            "apiserver_client_certificate_expiration_seconds",
            &[],
            &self.certificate_lives,
        );
    }
}

fn write_inflight(text: &mut Text, inflight: &InFlight) {
    let kinds = [("mutating", Class::Writing), ("readOnly", Class::Reading)];
    text.family(
        "apiserver_current_inflight_requests",
        Kind::Gauge,
        "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
    );
    for (kind, class) in kinds {
        let count = inflight.count(class) as u64;
        text.sample(
            "apiserver_current_inflight_requests",
            &[("request_kind", kind)],
            count,
        );
    }
    text.family(
        "apiserver_current_inqueue_requests",
        Kind::Gauge,
        "Maximal number of queued requests in this apiserver per request kind in last second.",
    );
    for (kind, class) in kinds {
        let count = inflight.waiting(class) as u64;
        text.sample(
            "apiserver_current_inqueue_requests",
            &[("request_kind", kind)],
            count,
        );
    }
}

/// What does not change while a server runs: its version, and what it never does.
fn write_constants(text: &mut Text) {
    let name = "kubernetes_build_info";
    text.family(
        name,
        Kind::Gauge,
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
    );
    let version = version::document();
    let told = |field: &str| version[field].as_str().unwrap_or_default();
    let labels = [
        ("build_date", told("buildDate")),
        ("compiler", told("compiler")),
        ("git_commit", told("gitCommit")),
        ("git_tree_state", told("gitTreeState")),
        ("git_version", told("gitVersion")),
        ("go_version", told("goVersion")),
        ("major", told("major")),
        ("minor", told("minor")),
        ("platform", told("platform")),
    ];
    text.sample(name, &labels, 1);
    let name = "version_info";
    text.family(
        name,
        Kind::Gauge,
        "Provides the compatibility version info of the component.",
    );
    let labels = [
        ("binary", version::EMULATED),
        ("component", "kube"),
        ("emulation", version::EMULATED),
        ("min_compat", version::OLDEST_COMPATIBLE),
    ];
    text.sample(name, &labels, 1);
    for (name, help) in [
        (
            "apiserver_audit_event_total",
            "Counter of audit events generated and sent to the audit backend.",
        ),
        (
            "apiserver_audit_requests_rejected_total",
            "Counter of apiserver requests rejected due to an error in audit logging backend.",
        ),
    ] {
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], 0);
    }
}
