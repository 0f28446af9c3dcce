//! `/metrics`: upstream's main series, kept in atomics and written out when asked for.

mod process;
pub mod requests;
pub mod text;

use std::sync::atomic::{AtomicU64, Ordering};

use http::{Response, StatusCode};
use parking_lot::Mutex;

use crate::authz::Decision;
use crate::body::Body;
use crate::front::Front;
use crate::front::inflight::{Class, InFlight};
use crate::front::respond;
use requests::Requests;
use text::{Kind, Text};

/// Writes the series of another part of the server.
pub type Source = Box<dyn Fn(&mut Text) + Send + Sync>;

/// All that one server counts.
pub struct Metrics {
    pub requests: Requests,
    handshake_errors: AtomicU64,
    authentications: [AtomicU64; 2],
    authorizations: [AtomicU64; 3],
    sources: Mutex<Vec<Source>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Requests::default(),
            handshake_errors: AtomicU64::new(0),
            authentications: Default::default(),
            authorizations: Default::default(),
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

    pub fn authentication(&self, success: bool) {
        self.authentications[usize::from(success)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn authorization(&self, decision: Decision) {
        let at = match decision {
            Decision::Allow => 0,
            Decision::Deny => 1,
            Decision::NoOpinion => 2,
        };
        self.authorizations[at].fetch_add(1, Ordering::Relaxed);
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
        process::write(&mut text);
        respond::with_type(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            text.finish().into(),
        )
    }

    fn write_own(&self, text: &mut Text) {
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
            text.sample(
                "authentication_attempts",
                &[("result", result)],
                read(counter),
            );
        }
        text.family(
            "authorization_attempts_total",
            Kind::Counter,
            "Counter of authorization attempts broken down by result.",
        );
        let results = ["allowed", "denied", "no-opinion"];
        for (result, counter) in results.into_iter().zip(&self.authorizations) {
            text.sample(
                "authorization_attempts_total",
                &[("result", result)],
                read(counter),
            );
        }
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
