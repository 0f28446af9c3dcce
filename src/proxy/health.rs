//! The proxy's small HTTP servers: its own health, its metrics, and one per `healthCheckNodePort`.
//!
//! Owns the listeners. Load balancers ask the per-Service ports whether this node has local endpoints, and
//! `/healthz` whether the node is worth sending traffic to at all (KEP-3836); `/livez` leaves that out, so that
//! a node that is being drained does not get its proxy restarted.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apimachinery::time::{self, Time};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::plan::ServiceHealth;

/// Open connections per listener; a load balancer's checkers are a handful.
const CONNECTIONS: usize = 64;
/// A caller has this long for its request, and this long for one connection.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// A change that is not carried out for this long makes the proxy unhealthy (twice upstream's sync period).
const STALE_AFTER: Duration = Duration::from_secs(60);

/// What the servers report. Cheap to clone; written by the proxy's loop.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

struct State {
    oldest_pending: Option<Instant>,
    last_updated: Time,
    node_eligible: bool,
    services: BTreeMap<u16, ServiceHealth>,
    syncs: u64,
    failures: u64,
    sync_seconds: f64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            oldest_pending: None,
            last_updated: time::now(),
            node_eligible: true,
            services: BTreeMap::new(),
            syncs: 0,
            failures: 0,
            sync_seconds: 0.0,
        }
    }
}

impl Health {
    /// A change is waiting to be carried out.
    pub fn queued(&self) {
        self.0
            .lock()
            .oldest_pending
            .get_or_insert_with(Instant::now);
    }

    /// All that was queued has been carried out.
    pub fn updated(&self, took: Duration) {
        let mut state = self.0.lock();
        state.oldest_pending = None;
        state.last_updated = time::now();
        state.syncs += 1;
        state.sync_seconds += took.as_secs_f64();
    }

    /// Carrying out failed.
    pub fn failed(&self) {
        self.0.lock().failures += 1;
    }

    /// Whether load balancers should send traffic to this node.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.0.lock().node_eligible = eligible;
    }

    /// Replaces what the per-Service ports report.
    fn set_services(&self, services: BTreeMap<u16, ServiceHealth>) {
        self.0.lock().services = services;
    }

    /// Whether the rules follow the API.
    pub fn is_healthy(&self) -> bool {
        self.0
            .lock()
            .oldest_pending
            .is_none_or(|since| since.elapsed() < STALE_AFTER)
    }

    fn own_answer(&self, with_node: bool) -> Response<Full<Bytes>> {
        let healthy = self.is_healthy();
        let state = self.0.lock();
        let eligible = state.node_eligible;
        let last = if healthy {
            time::now()
        } else {
            state.last_updated
        };
        let mut body =
            serde_json::json!({"lastUpdated": time::format(last), "currentTime": time::now_text()});
        if with_node {
            body["nodeEligible"] = eligible.into();
        }
        drop(state);
        answer(
            status(healthy && (eligible || !with_node)),
            "application/json",
            body.to_string(),
        )
    }

    fn service_answer(&self, port: u16) -> Response<Full<Bytes>> {
        let healthy = self.is_healthy();
        let Some(service) = self.0.lock().services.get(&port).cloned() else {
            return answer(StatusCode::SERVICE_UNAVAILABLE, "text/plain", String::new());
        };
        let body = serde_json::json!({
            "service": {"namespace": service.namespace, "name": service.name},
            "localEndpoints": service.local_endpoints,
            "serviceProxyHealthy": healthy,
        });
        let mut response = answer(
            status(healthy && service.local_endpoints > 0),
            "application/json",
            format!("{body:#}"),
        );
        response.headers_mut().insert(
            "x-load-balancing-endpoint-weight",
            service.local_endpoints.into(),
        );
        response
    }

    fn metrics(&self) -> String {
        let state = self.0.lock();
        format!(
            "# TYPE kubeproxy_sync_proxy_rules_duration_seconds summary\n\
             kubeproxy_sync_proxy_rules_duration_seconds_sum {}\n\
             kubeproxy_sync_proxy_rules_duration_seconds_count {}\n\
             # TYPE kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter\n\
             kubeproxy_sync_proxy_rules_nftables_sync_failures_total {}\n",
            state.sync_seconds, state.syncs, state.failures,
        )
    }
}

/// Which questions a listener answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `/healthz` and `/livez` of the proxy.
    Health,
    /// `/metrics`, `/proxyMode` and `/healthz`.
    Metrics,
    /// The health check port of a Service, on any path.
    Service,
}

/// Answers on `listener` until `shutdown`.
pub async fn serve(listener: TcpListener, role: Role, health: Health, shutdown: CancellationToken) {
    let port = listener.local_addr().map_or(0, |a| a.port());
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Ok((stream, slot)) = accepted else {
            // Out of descriptors, most likely: wait instead of spinning.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let health = health.clone();
        connections.spawn(async move {
            let _slot = slot;
            let service = hyper::service::service_fn(move |request| {
                let response = respond(&request, role, port, &health);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(CONNECTION_TIME)
                .serve_connection(TokioIo::new(stream), service);
            // A caller that hangs up or sends rubbish is its own problem.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
        });
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = slots
        .clone()
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    Ok((listener.accept().await?.0, slot))
}

fn respond(
    request: &Request<Incoming>,
    role: Role,
    port: u16,
    health: &Health,
) -> Response<Full<Bytes>> {
    if role == Role::Service {
        return health.service_answer(port);
    }
    if request.method() != Method::GET {
        return answer(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "Method Not Allowed\n".into(),
        );
    }
    match (role, request.uri().path()) {
        (Role::Health, "/healthz") => health.own_answer(true),
        (Role::Health, "/livez") => health.own_answer(false),
        (Role::Metrics, "/healthz") => answer(StatusCode::OK, "text/plain", "ok".into()),
        (Role::Metrics, "/proxyMode") => answer(StatusCode::OK, "text/plain", "nftables".into()),
        (Role::Metrics, "/metrics") => answer(
            StatusCode::OK,
            "text/plain; version=0.0.4",
            health.metrics(),
        ),
        _ => answer(
            StatusCode::NOT_FOUND,
            "text/plain",
            "404 page not found\n".into(),
        ),
    }
}

fn status(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        "content-type",
        hyper::header::HeaderValue::from_static(content_type),
    );
    headers.insert(
        "x-content-type-options",
        hyper::header::HeaderValue::from_static("nosniff"),
    );
    response
}

/// The listeners of all `healthCheckNodePort`s. Dropping it closes them.
pub struct ServicePorts {
    health: Health,
    address: IpAddr,
    open: BTreeMap<u16, (JoinHandle<()>, CancellationToken)>,
}

impl ServicePorts {
    /// No listeners yet; they will be on `address`.
    pub fn new(health: Health, address: IpAddr) -> Self {
        Self {
            health,
            address,
            open: BTreeMap::new(),
        }
    }

    /// Opens and closes listeners so that there is one per entry of `wanted`. A port that cannot be opened is
    /// tried again with the next change.
    pub async fn update(&mut self, wanted: &BTreeMap<u16, ServiceHealth>) {
        self.health.set_services(wanted.clone());
        let gone: Vec<_> = self
            .open
            .keys()
            .filter(|p| !wanted.contains_key(p))
            .copied()
            .collect();
        for port in gone {
            if let Some((task, stop)) = self.open.remove(&port) {
                stop.cancel();
                // The task ends at once: it waits for nothing but the token.
                let _ = task.await;
            }
        }
        for port in wanted.keys() {
            if self.open.contains_key(port) {
                continue;
            }
            match TcpListener::bind(SocketAddr::new(self.address, *port)).await {
                Ok(listener) => {
                    let stop = CancellationToken::new();
                    let task = serve(listener, Role::Service, self.health.clone(), stop.clone());
                    self.open.insert(*port, (tokio::spawn(task), stop));
                }
                Err(error) => tracing::warn!(%error, port, "opening a health check node port"),
            }
        }
    }
}

impl Drop for ServicePorts {
    fn drop(&mut self) {
        for (_, stop) in self.open.values() {
            stop.cancel();
        }
    }
}
