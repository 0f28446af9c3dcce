//! The kubelet's HTTPS server on port 10250: what the API server asks it for on
//! behalf of `kubectl logs`, `exec`, `attach`, `port-forward`, and what
//! monitoring reads.
//!
//! Data flow: TLS with an optional client certificate → `auth` → `routes`.
//! **Invariant:** no request is answered before `auth` allowed it.

pub mod auth;
pub mod logs;
mod metrics;
mod routes;
mod stats;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use client::Client;
use client::delegation::Caller;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::board::Board;
use crate::config::KubeletConfig;
use crate::cri::Runtime;
use crate::node::NodeState;

/// Connections at a time; each may be a stream that lasts for hours.
const MAX_CONNECTIONS: usize = 1024;
/// A handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon a port that is taken, or a certificate that is not there yet, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Why the server cannot serve yet.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A PEM file.
    #[error("cannot read {path}: {reason}")]
    Pem {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key do not fit.
    #[error("TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    /// Client certificates cannot be checked against the CA file.
    #[error("client CA: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The port cannot be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
}

/// What the server answers from.
pub struct Backend {
    /// Settings.
    pub config: Arc<KubeletConfig>,
    /// For reviews of tokens and of what callers may.
    pub client: Client,
    /// The runtime.
    pub runtime: Runtime,
    /// The pods.
    pub board: Board,
    /// The node.
    pub node: NodeState,
}

/// Serves until the shutdown, trying again while it cannot.
pub async fn run(backend: Arc<Backend>, shutdown: CancellationToken) {
    let mut told = false;
    loop {
        let opened = open(&backend.config).await;
        match opened {
            Ok((listener, acceptor)) => {
                return serve(backend, listener, acceptor, shutdown).await;
            }
            Err(error) if !told => {
                tracing::warn!(%error, "cannot serve yet, will be retried");
                told = true;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn open(config: &KubeletConfig) -> Result<(TcpListener, TlsAcceptor), ServerError> {
    let acceptor = acceptor(config)?;
    let address = SocketAddr::from((config.address, config.port));
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| ServerError::Listen { address, source })?;
    Ok((listener, acceptor))
}

fn acceptor(config: &KubeletConfig) -> Result<TlsAcceptor, ServerError> {
    let pem = |path: &Path, reason: String| ServerError::Pem {
        path: path.display().to_string(),
        reason,
    };
    let certificates = |path: &Path| {
        let all =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        all.map_err(|error| pem(path, error.to_string()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&config.client_ca_file)? {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()?;
    let chain = certificates(&config.tls_cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&config.tls_private_key_file)
        .map_err(|error| pem(&config.tls_private_key_file, error.to_string()))?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

async fn serve(
    backend: Arc<Backend>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    shutdown: CancellationToken,
) {
    let tracker = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let authorizer = Arc::new(auth::Authorizer::new(
        backend.client.clone(),
        backend.config.node_name.clone(),
    ));
    loop {
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = slots.clone().acquire_owned() => permit,
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors; some connection will end.
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let connection = connection(
            backend.clone(),
            authorizer.clone(),
            stream,
            acceptor.clone(),
        );
        let shutdown = shutdown.clone();
        tracker.spawn(async move {
            let _permit = permit;
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = connection => {}
            }
        });
    }
    tracker.close();
    tracker.wait().await;
}

async fn connection(
    backend: Arc<Backend>,
    authorizer: Arc<auth::Authorizer>,
    stream: TcpStream,
    acceptor: TlsAcceptor,
) {
    let _ = stream.set_nodelay(true);
    let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = accepted else { return };
    let certificates = stream.get_ref().1.peer_certificates();
    let caller = certificates.and_then(|chain| Caller::of_certificate(chain.first()?));
    let caller = caller.map(Arc::new);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (backend, authorizer, caller) = (backend.clone(), authorizer.clone(), caller.clone());
        async move {
            Ok::<_, std::convert::Infallible>(answer(&backend, &authorizer, caller, request).await)
        }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let served = builder
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(error, "a connection to the kubelet ended");
    }
}

async fn answer(
    backend: &Arc<Backend>,
    authorizer: &auth::Authorizer,
    caller: Option<Arc<Caller>>,
    request: Request<Incoming>,
) -> Response<Body> {
    match authorizer.check(caller, &request).await {
        Ok(()) => routes::route(backend, request).await,
        Err(refusal) => refusal.into_response(),
    }
}
