//! The way of every request: parse, authenticate, impersonate, take a seat, authorize, dispatch, finish the response.
//!
//! ```text
//! Request ─ RequestInfo ─ who (authn) ─ as whom ─ its turn (flow) ─ may it (authz) ─┬─ routes: documents and reviews
//!                                                                                 └─ Backend: resources
//!         Response ◄─ Audit-Id, Cache-Control, Warning, gzip, metrics ◄────────────┘
//! ```
//!
//! The order is upstream's `DefaultBuildHandlerChain`. Read `Front::handle` first.
//!
//! **Invariant:** a panic while a request is handled ends that request only.

pub mod connection;
mod cork;
mod errors;
pub mod flow;
pub mod gzip;
pub mod inflight;
pub mod negotiate;
pub mod respond;
#[cfg(test)]
mod tests;
pub mod tls;
mod unread;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::status::Status;
use futures::FutureExt;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::authn::impersonation::impersonate;
use crate::authn::{Authenticators, Peer};
use crate::authz::{Attributes, Authorizers};
use crate::backend::Backend;
use crate::body::Body;
use crate::metrics::Metrics;
use crate::metrics::requests::Observation;
use crate::options::Limits;
use crate::query::go_duration;
use crate::request::{RequestContext, RequestInfo, UserInfo, Verb, Warnings};
use crate::reviews::Review;
use crate::routes::Routes;
use crate::streaming::Streaming;
use flow::{Flow, Stamp};
use inflight::{Class, InFlight, Seat};
use negotiate::Accepted;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Longest audit id taken from a client (bytes).
const AUDIT_ID_BYTES: usize = 64;

/// Bytes of all warnings of a response; past it each is cut to `WARNING_BYTES` (upstream's `truncateAtTotalRunes`).
const WARNINGS_BYTES: usize = 4096;
const WARNING_BYTES: usize = 256;

/// How long a refusal waits for the server's start, and how often it looks.
const SYNC_WAIT: Duration = Duration::from_secs(10);
const SYNC_POLL: Duration = Duration::from_millis(5);

/// Everything that requests go through. Shared by all connections and the in-process client.
pub struct Front {
    pub limits: Limits,
    pub authenticators: Authenticators,
    pub authorizers: Arc<Authorizers>,
    pub backend: Arc<dyn Backend>,
    pub routes: Routes,
    pub metrics: Arc<Metrics>,
    pub inflight: Arc<InFlight>,
    /// Without it the requests in flight are bounded by their number alone.
    pub flow: Option<Arc<Flow>>,
    /// Cancelled when the server is told to end: load balancers shall look elsewhere.
    pub unready: CancellationToken,
    /// Cancelled when the server begins to drain.
    pub draining: CancellationToken,
}

/// Who is known to ask, before the request was looked at.
pub enum Caller<'a> {
    /// Over a connection; its credentials decide.
    Remote(&'a Peer),
    /// In process; trusted.
    Local(Arc<UserInfo>),
}

/// What the request still needs after its headers have gone to the handler.
struct Head {
    accepted: Accepted,
    gzip: bool,
    audit_id: Arc<str>,
    audit_header: HeaderValue,
}

impl Front {
    /// Answers one request; never fails.
    pub async fn handle(&self, caller: Caller<'_>, request: Request<Body>) -> Response<Body> {
        let info = RequestInfo::parse(request.method(), request.uri());
        let head = Head::of(&request, &info);
        let is_head = *request.method() == http::Method::HEAD;
        let trace = Trace::of(&request);
        let warnings = Warnings::default();
        let observation = self
            .metrics
            .requests
            .start(&info, &self.routes, request.headers());
        let answer = self.answer(caller, info, request, &head, warnings.clone());
        let mut response = match AssertUnwindSafe(answer).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                tracing::error!(audit_id = %head.audit_id, "A request's handler panicked");
                respond::status(&errors::panicked(), head.accepted)
            }
        };
        if is_head {
            response = without_body(response);
        } else if head.gzip {
            response = gzip::compress(response).await;
        }
        trace.end(&response, &head.audit_id);
        finish(&mut response, head, &warnings);
        observe(observation, response)
    }

    async fn answer(
        &self,
        caller: Caller<'_>,
        info: RequestInfo,
        mut request: Request<Body>,
        head: &Head,
        warnings: Warnings,
    ) -> Response<Body> {
        let long_running = info.is_long_running();
        let deadline = match self.deadline(&info, long_running) {
            Ok(deadline) => deadline,
            Err(status) => return respond::status(&status, head.accepted),
        };
        let remote = match &caller {
            Caller::Remote(peer) => peer.remote,
            Caller::Local(_) => None,
        };
        let stamp = OnceLock::new();
        let work = async {
            let (user, impersonator) =
                match self.identify(caller, &info, request.headers_mut()).await {
                    Ok(users) => users,
                    Err(status) => return Err(status),
                };
            let class = class_of(&info, long_running);
            let Some((seat, turn)) = self.turn(class, &user, &info, deadline, &stamp).await else {
                return Ok(errors::too_many_requests());
            };
            self.authorize(&user, &info).await?;
            let context = RequestContext {
                info,
                user,
                impersonator,
                audit_id: head.audit_id.clone(),
                received: std::time::Instant::now(),
                deadline: deadline.map(Instant::into_std),
                remote,
                warnings,
                authorizers: self.authorizers.clone(),
                shutdown: self.draining.clone(),
            };
            let response = self.dispatch(context, request, head.accepted).await?;
            drop(turn);
            Ok(keep_seat(response, seat, long_running))
        };
        let result = match deadline {
            None => work.await,
            Some(deadline) => tokio::time::timeout_at(deadline, work)
                .await
                .unwrap_or_else(|_| Err(errors::timed_out())),
        };
        let mut response = result.unwrap_or_else(|status| respond::status(&status, head.accepted));
        if let Some(stamp) = stamp.get() {
            stamp.put(response.headers_mut());
        }
        response
    }

    /// Waits until the request may run; `None` when it has to be refused. What runs long is not made to wait, but a watch
    /// is until it has begun, as upstream does.
    async fn turn(
        &self,
        class: Class,
        user: &UserInfo,
        info: &RequestInfo,
        deadline: Option<Instant>,
        stamp: &OnceLock<Stamp>,
    ) -> Option<(Seat, Option<flow::Seat>)> {
        let Some(flow) = &self.flow else {
            let exempt = user.is_in(UserInfo::MASTERS);
            return Some((self.inflight.enter(class, exempt).await?, None));
        };
        let mut turn = None;
        if class != Class::LongRunning || info.verb == Verb::Watch {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            turn = flow.enter(user, info, left, stamp).await.ok()?;
        }
        Some((self.inflight.enter(class, true).await?, turn))
    }

    /// `None` for long-running requests; otherwise the client's `timeout`, at most the server's.
    fn deadline(&self, info: &RequestInfo, long_running: bool) -> Result<Option<Instant>, Status> {
        if long_running {
            return Ok(None);
        }
        let most = self.limits.request_timeout;
        let wanted = match info.query.get("timeout").filter(|text| !text.is_empty()) {
            None => most,
            Some(text) => match go_duration(text) {
                Some(Duration::ZERO) => most,
                Some(wanted) => wanted.min(most),
                None => {
                    return Err(Status::bad_request(
                        "invalid timeout specified in the request URL",
                    ));
                }
            },
        };
        Ok(Some(Instant::now() + wanted))
    }

    /// The user to act as, and the one who really asks when that is somebody else.
    async fn identify(
        &self,
        caller: Caller<'_>,
        info: &RequestInfo,
        headers: &mut HeaderMap,
    ) -> Result<(Arc<UserInfo>, Option<Arc<UserInfo>>), Status> {
        let user = match caller {
            Caller::Local(user) => user,
            Caller::Remote(peer) => {
                let since = Instant::now();
                let verdict = self.authenticators.authenticate(peer, headers).await;
                self.metrics
                    .authentication(verdict.is_ok(), since.elapsed());
                if let Some(left) = peer.certificate_life() {
                    self.metrics.certificate(left);
                }
                verdict.map_err(|_| Status::unauthorized())?
            }
        };
        match impersonate(headers, &user, &self.authorizers).await {
            Ok(None) => Ok((user, None)),
            Ok(Some(acting)) => Ok((acting, Some(user))),
            Err(error) => Err(errors::impersonation(error, &user, info)),
        }
    }

    async fn authorize(&self, user: &UserInfo, info: &RequestInfo) -> Result<(), Status> {
        let attributes = Attributes::of(user, info);
        let since = Instant::now();
        let mut verdict = self.authorizers.authorize(&attributes).await;
        if !verdict.is_allowed() && !self.backend.is_synced() {
            // Roles are not there yet: a component that starts with the server is not told no.
            self.synced().await;
            verdict = self.authorizers.authorize(&attributes).await;
        }
        self.metrics
            .authorization(verdict.decision, since.elapsed());
        if verdict.is_allowed() {
            return Ok(());
        }
        Err(errors::forbidden(&attributes, &verdict.reason))
    }

    /// Waits for the backend's start, for at most `SYNC_WAIT`.
    async fn synced(&self) {
        let until = Instant::now() + SYNC_WAIT;
        while !self.backend.is_synced() && Instant::now() < until {
            tokio::time::sleep(SYNC_POLL).await;
        }
    }

    async fn dispatch(
        &self,
        context: RequestContext,
        request: Request<Body>,
        accepted: Accepted,
    ) -> Result<Response<Body>, Status> {
        if !context.info.is_resource {
            return self
                .routes
                .document(self, &context.info, request, accepted)
                .await;
        }
        if !self
            .routes
            .discovery
            .serves(&context.info.group, &context.info.version)
        {
            return Ok(respond::not_found());
        }
        // A proxy passes any method on that upstream has a route for.
        let is_passed_on =
            *request.method() == http::Method::OPTIONS && Streaming::handles(&context.info);
        if context.info.verb == Verb::Other && !is_passed_on {
            return Err(Status::method_not_allowed());
        }
        if let Some(review) = Review::of(&context.info) {
            return review.answer(self, &context, request, accepted).await;
        }
        if let Some((resource, text)) = deprecation(&context.info) {
            self.metrics.deprecated(resource, &context.info.subresource);
            context.warnings.add(text);
        }
        self.backend.handle(context, request).await
    }
}

impl Head {
    fn of(request: &Request<Body>, info: &RequestInfo) -> Self {
        let headers = request.headers();
        let given = headers
            .get(AUDIT_ID)
            .and_then(|value| value.to_str().ok())
            .filter(|id| !id.is_empty() && id.len() <= AUDIT_ID_BYTES);
        let audit_id: Arc<str> = match given {
            Some(id) => Arc::from(id),
            None => {
                let mut buffer = uuid::Uuid::encode_buffer();
                let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
                Arc::from(&*id.hyphenated().encode_lower(&mut buffer))
            }
        };
        Self {
            accepted: Accepted::of(headers, &info.query),
            gzip: !info.is_long_running() && gzip::is_accepted(headers),
            audit_header: HeaderValue::from_str(&audit_id)
                .expect("a UUID or the text of a header value"),
            audit_id,
        }
    }
}

/// What clients of deprecated APIs are told, by resource of the core group (upstream's `APILifecycleDeprecated`).
const DEPRECATIONS: [(&str, &str); 2] = [
    (
        "endpoints",
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    (
        "componentstatuses",
        "v1 ComponentStatus is deprecated in v1.19+",
    ),
];

fn deprecation(info: &RequestInfo) -> Option<(&'static str, &'static str)> {
    let is_core = info.group.is_empty() && info.version == "v1";
    let known = DEPRECATIONS
        .into_iter()
        .find(|(resource, _)| *resource == info.resource);
    known.filter(|_| is_core)
}

/// A line in the log for each request, when the log is that verbose.
struct Trace(Option<(http::Method, http::Uri, Option<HeaderValue>, Instant)>);

impl Trace {
    fn of(request: &Request<Body>) -> Self {
        Self(tracing::enabled!(tracing::Level::DEBUG).then(|| {
            (
                request.method().clone(),
                request.uri().clone(),
                request.headers().get(USER_AGENT).cloned(),
                Instant::now(),
            )
        }))
    }

    fn end(self, response: &Response<Body>, audit_id: &str) {
        if let Some((method, uri, agent, started)) = self.0 {
            tracing::debug!(
                %method,
                %uri,
                ?agent,
                audit_id,
                code = response.status().as_u16(),
                latency = ?started.elapsed(),
                "HTTP"
            );
        }
    }
}

fn class_of(info: &RequestInfo, long_running: bool) -> Class {
    match (long_running, info.verb.is_read()) {
        (true, _) => Class::LongRunning,
        (false, true) => Class::Reading,
        (false, false) => Class::Writing,
    }
}

/// A long-running request is in flight until its body ends; others only until they have an answer.
fn keep_seat(response: Response<Body>, seat: Seat, long_running: bool) -> Response<Body> {
    if long_running && response.body().as_bytes().is_none() {
        return response.map(|body| body.holding(seat));
    }
    response
}

/// The answer to HEAD: how long it would have been, and nothing of it. Over HTTP/2 nobody else leaves it out.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if let Some(bytes) = body.as_bytes().filter(|bytes| !bytes.is_empty()) {
        let length = HeaderValue::from(bytes.len());
        parts.headers.entry(CONTENT_LENGTH).or_insert(length);
    }
    Response::from_parts(parts, Body::empty())
}

fn finish(response: &mut Response<Body>, head: Head, warnings: &Warnings) {
    let warnings = warnings.take();
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, head.audit_header);
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    let total: usize = warnings.iter().map(String::len).sum();
    for text in &warnings {
        let limit = if total > WARNINGS_BYTES {
            WARNING_BYTES
        } else {
            usize::MAX
        };
        if let Some(value) = warning(text, limit) {
            headers.append(http::header::WARNING, value);
        }
    }
}

/// `299 - "text"`, as RFC 7234 quotes it.
fn warning(text: &str, limit: usize) -> Option<HeaderValue> {
    let mut value = String::with_capacity(text.len() + 10);
    value.push_str("299 - \"");
    for c in text.chars().take(limit) {
        match c {
            '"' | '\\' => {
                value.push('\\');
                value.push(c);
            }
            c if c.is_control() => {}
            c => value.push(c),
        }
    }
    value.push('"');
    HeaderValue::try_from(value).ok()
}

fn observe(observation: Observation, response: Response<Body>) -> Response<Body> {
    let code = response.status();
    if observation.is_long_running()
        && code == StatusCode::OK
        && response.body().as_bytes().is_none()
    {
        return response.map(|body| body.holding(observation.until_dropped(code)));
    }
    let size = response.body().as_bytes().map(bytes::Bytes::len);
    observation.finish(code, size);
    response
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_warning_is_quoted() {
        let value = warning("unknown field \"a\\b\"", usize::MAX).expect("a value");
        assert_eq!(value, r#"299 - "unknown field \"a\\b\"""#);
    }
}
