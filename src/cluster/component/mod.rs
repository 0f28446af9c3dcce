//! What the scheduler and the controller manager serve over HTTPS while they work: health, metrics, configuration.
//!
//! ```text
//!  listener ─ TLS (asks for a client certificate) ─ HTTP ─ identity: who calls, may he ─ routes
//! ```
//!
//! Authentication and authorization are delegated to the API server, as upstream's components do
//! (apiserver/pkg/server/options): client certificates are checked against the CA that the ConfigMap
//! `kube-system/extension-apiserver-authentication` names, a front proxy's against another that it names, tokens by a
//! TokenReview, and everything but a few paths by a SubjectAccessReview.
//!
//! **Invariant:** nothing is asked of the API server but when somebody calls, save for one watch of that ConfigMap.

mod front_proxy;
mod identity;
mod parts;
mod routes;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::Value;
use apimachinery::exposition::Text;
use apiserver::routes::Pages;
use client::Client;
use client::delegation::Delegation;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use front_proxy::FrontProxies;
use identity::Identity;

pub use parts::{controller_manager, scheduler};

/// Connections at a time: monitoring and probes are a handful.
const MAX_CONNECTIONS: usize = 64;
/// A handshake, and the head of a request, that take longer are given up.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEAD: Duration = Duration::from_secs(32);
/// Pause when the process has no descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);

/// Why a component cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    #[error("failed to create listener: failed to listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("unable to load server certificate: {0}")]
    Certificate(String),
    #[error("unable to load client CA file {path:?}: {reason}")]
    ClientCa { path: PathBuf, reason: String },
}

/// Writes series.
pub type Source = Box<dyn Fn(&mut Text) + Send + Sync>;
/// A check by its name; the error tells what is wrong.
pub type Check = (
    &'static str,
    Box<dyn Fn() -> Result<(), String> + Send + Sync>,
);

/// Where a component serves, and to whom.
pub struct Serving {
    pub bind: SocketAddr,
    /// PEM files of the certificate and its key; `None` makes one that nobody knows.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Names in a certificate that is made.
    pub host: String,
    /// Who asks the API server about tokens, and reads which CA signs client certificates. `None` knows nobody.
    pub authentication: Option<Client>,
    /// Who asks the API server what callers may. `None` allows the paths below and `system:masters` alone.
    pub authorization: Option<Client>,
    /// `--client-ca-file`: takes the place of the CA that the API server names.
    pub client_ca: Option<PathBuf>,
    /// `--authorization-always-allow-paths`, a `*` at the end stands for anything.
    pub always_allowed: Vec<String>,
    /// What `/flagz` shows.
    pub flags: Vec<(String, String)>,
}

/// What is served.
pub struct ComponentConfig {
    /// Upstream's name.
    pub name: &'static str,
    pub serving: Serving,
    /// `/healthz` and `/livez`; `ping` is always among them.
    pub health: Vec<Check>,
    /// `/readyz`, besides those.
    pub ready: Vec<Check>,
    pub metrics: Vec<Source>,
    /// `/configz`: a name with a configuration.
    pub configuration: (&'static str, Value),
}

/// Opens the listener, then serves on it until `shutdown`.
///
/// # Errors
///
/// The address cannot be listened on, or a file cannot be used.
pub async fn run(
    config: ComponentConfig,
    shutdown: CancellationToken,
) -> Result<(), ComponentError> {
    let ComponentConfig {
        name,
        serving,
        health,
        ready,
        metrics,
        configuration,
    } = config;
    let Serving {
        bind,
        certificate,
        host,
        authentication,
        authorization,
        client_ca,
        always_allowed,
        flags,
    } = serving;
    let authorities = tls::Authorities::default();
    if let Some(path) = &client_ca {
        let pem = std::fs::read_to_string(path).map_err(|error| error.to_string());
        pem.and_then(|pem| authorities.set(&pem))
            .map_err(|reason| ComponentError::ClientCa {
                path: path.clone(),
                reason,
            })?;
    }
    let acceptor = tls::acceptor(certificate.as_ref(), &host)?;
    let listener = TcpListener::bind(bind).await;
    let listener = listener.map_err(|source| ComponentError::Listen {
        address: bind,
        source,
    })?;
    let proxies = FrontProxies::default();
    let follow = identity::follow(
        authentication.clone(),
        client_ca.is_none().then(|| authorities.clone()),
        proxies.clone(),
        shutdown.clone(),
    );
    let delegation = Delegation::new(authentication, authorization, identity::HOLDS);
    let routes = routes::Routes {
        identity: Identity::new(authorities, proxies, delegation, always_allowed),
        pages: Pages::of(name, &routes::PATHS, flags.into_iter().collect()),
        health,
        ready,
        metrics,
        configuration,
    };
    tracing::info!(address = %bind, "Serving securely");
    tokio::join!(
        accept(listener, acceptor, Arc::new(routes), &shutdown),
        follow
    );
    Ok(())
}

async fn accept(
    listener: TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    routes: Arc<routes::Routes>,
    shutdown: &CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let next = async {
            // The semaphore is never closed.
            let slot = slots.clone().acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        let Some((slot, accepted)) = shutdown.run_until_cancelled(next).await else {
            break;
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let (acceptor, routes) = (acceptor.clone(), routes.clone());
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            let _slot = slot;
            let serve = connection(stream, acceptor, routes);
            shutdown.run_until_cancelled(serve).await;
        });
    }
    connections.close();
    connections.wait().await;
}

async fn connection(
    stream: TcpStream,
    acceptor: tokio_rustls::TlsAcceptor,
    routes: Arc<routes::Routes>,
) {
    let accepted = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = accepted else { return };
    let chain = stream.get_ref().1.peer_certificates();
    let chain = Arc::new(chain.map(<[_]>::to_vec).unwrap_or_default());
    let service = hyper::service::service_fn(move |request| {
        let (routes, chain) = (routes.clone(), chain.clone());
        async move { Ok::<_, std::convert::Infallible>(routes.answer(&chain, &request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD);
    let served = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(error, "A connection ended");
    }
}

#[cfg(test)]
mod tests;
