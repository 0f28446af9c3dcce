//! A server's life: start, serve on listeners, answer in process, drain, end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authn::Authenticators;
use crate::authn::token::{TokenError, Tokens};
use crate::authz::Authorizers;
use crate::backend::Backend;
use crate::body::Body;
use crate::discovery::Discovery;
use crate::front::connection::Acceptor;
use crate::front::flow::Flow;
use crate::front::inflight::InFlight;
use crate::front::tls::{Tls, TlsError};
use crate::front::{Caller, Front};
use crate::metrics::Metrics;
use crate::metrics::store::Measured;
use crate::options::Options;
use crate::request::UserInfo;
use crate::routes::health::Health;
use crate::routes::{OpenApi, Pages, Routes};
use crate::served::Served;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("service accounts: {0}")]
    Tokens(#[from] TokenError),
}

/// Why a listener's accept loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("no TLS certificate is configured")]
    NoTls,
    #[error("accept connections: {0}")]
    Accept(#[from] io::Error),
}

/// What the inner half of the server is made from.
pub struct Parts {
    pub options: Arc<Options>,
    pub served: Arc<Served>,
    /// Signs tokens for the TokenRequest subresource.
    pub tokens: Arc<Tokens>,
    pub metrics: Arc<Metrics>,
    /// Cancelled when the server begins to drain.
    pub draining: CancellationToken,
}

/// A running API server. Dropping it does not end it: call `shutdown`.
pub struct Server {
    front: Arc<Front>,
    tls: Option<Arc<Tls>>,
    connections: Arc<Semaphore>,
    cut_off: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Starts a server: its caches begin to fill, and it can be served at once.
    pub async fn start(options: Options) -> Result<Arc<Self>, StartError> {
        Self::with_backend(options, |parts| crate::registry::Registry::start(parts))
    }

    /// Starts a server on what `make_backend` builds out of the server's parts.
    pub fn with_backend(
        options: Options,
        make_backend: impl FnOnce(Parts) -> Arc<dyn Backend>,
    ) -> Result<Arc<Self>, StartError> {
        let mut options = options;
        let (store, store_series) = Measured::new(options.store.clone(), &options.storage.prefix);
        options.store = store;
        let options = Arc::new(options);
        let tls = match &options.tls {
            Some(tls) => Some(Arc::new(Tls::new(tls.clone())?)),
            None => None,
        };
        let tokens = Arc::new(Tokens::new(&options)?);
        let served = Arc::new(Served::new(&options.runtime_config));
        let metrics = Arc::new(Metrics::default());
        metrics.add_source(Box::new(move |text| store_series.write(text)));
        let draining = CancellationToken::new();
        let backend = make_backend(Parts {
            options: options.clone(),
            served: served.clone(),
            tokens: tokens.clone(),
            metrics: metrics.clone(),
            draining: draining.clone(),
        });
        let clients = tls.as_ref().map(|tls| tls.clients().clone());
        let authenticators = Authenticators::new(
            clients,
            tokens.clone(),
            backend.clone(),
            options.anonymous_auth,
        );
        let address =
            SocketAddr::new(options.advertise_address, options.advertise_port).to_string();
        let jwks_uri = options
            .service_accounts
            .jwks_uri
            .clone()
            .unwrap_or_else(|| format!("https://{address}/openid/v1/jwks"));
        let limits = options.limits.clone();
        let inflight = InFlight::new(
            limits.requests_in_flight,
            limits.mutating_requests_in_flight,
        );
        let total = limits.requests_in_flight + limits.mutating_requests_in_flight;
        let flow =
            (limits.priority_and_fairness && total > 0).then(|| Flow::new(total, backend.clone()));
        if let Some(flow) = &flow {
            let flow = flow.clone();
            metrics.add_source(Box::new(move |text| flow.write(text)));
        }
        let front = Front {
            limits,
            authenticators,
            authorizers: Arc::new(Authorizers::configured(&options, &backend)),
            backend,
            routes: Routes {
                openapi: OpenApi::new(served.clone()),
                discovery: Discovery::new(served, address),
                health: Health::new(options.store.clone()),
                pages: Pages::new(&options),
                tokens,
                jwks_uri,
            },
            metrics,
            inflight: Arc::new(inflight),
            flow,
            unready: CancellationToken::new(),
            draining,
        };
        Ok(Arc::new(Self {
            connections: Arc::new(Semaphore::new(front.limits.connections)),
            front: Arc::new(front),
            tls,
            cut_off: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Serves TLS on `listener` until `shutdown`; call it once for each listener.
    pub async fn serve(&self, listener: TcpListener) -> Result<(), ServeError> {
        let acceptor = Acceptor {
            front: self.front.clone(),
            tls: self.tls.clone().ok_or(ServeError::NoTls)?,
            connections: self.connections.clone(),
            cut_off: self.cut_off.clone(),
            tasks: self.tasks.clone(),
        };
        Ok(acceptor.run(listener).await?)
    }

    /// Adds the series of what runs beside the server in its process to its `/metrics`.
    pub fn add_metrics(&self, source: crate::metrics::Source) {
        self.front.metrics.add_source(source);
    }

    /// Answers a request of this process, asked by `user`, who is believed. The body may be a stream: a watch's is.
    pub async fn handle(&self, user: &Arc<UserInfo>, request: Request<Body>) -> Response<Body> {
        self.front
            .handle(Caller::Local(user.clone()), request)
            .await
    }

    /// Says for the delay that it is not ready and serves on; then ends watches, lets requests finish for at most the grace
    /// period, and cuts off what is left.
    pub async fn shutdown(&self) {
        self.front.unready.cancel();
        let delay = self.front.limits.shutdown_delay;
        if !delay.is_zero() {
            tracing::info!(?delay, "Not ready any more, serving on");
            tokio::time::sleep(delay).await;
        }
        self.front.draining.cancel();
        self.tasks.close();
        let grace = self.front.limits.shutdown_grace;
        if tokio::time::timeout(grace, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                tasks = self.tasks.len(),
                "Cutting off connections that did not end"
            );
        }
        self.cut_off.cancel();
    }

    /// Cancelled when the server begins to drain.
    pub fn draining(&self) -> &CancellationToken {
        &self.front.draining
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.front.backend
    }
}
