//! What a scheduler or a controller manager serves besides its work: its health, over TLS with a certificate that it makes
//! for itself, as upstream's do without one (`--secure-port`).
//!
//! Anybody may ask how it is; whatever else is asked is refused, since nobody is authenticated here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections at a time; more wait in the kernel.
const CONNECTIONS: usize = 64;
/// A connection is over after this long, whatever comes of it.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The paths upstream lets everybody ask (`--authorization-always-allow-paths`).
const HEALTH: [&str; 3] = ["/healthz", "/livez", "/readyz"];

#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
}

/// A listening socket and its certificate.
pub struct ComponentServer {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl ComponentServer {
    /// Listens on `address` as `host`.
    ///
    /// # Errors
    /// When the address is taken, or no certificate can be made.
    pub async fn bind(address: SocketAddr, host: &str) -> Result<Self, ComponentError> {
        let names = vec![
            host.to_owned(),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
        ];
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| ComponentError::Listen { address, source })?;
        Ok(Self {
            listener,
            tls: TlsAcceptor::from(Arc::new(config)),
        })
    }

    /// Answers until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = async {
                    let slot = slots.clone().acquire_owned().await.ok()?;
                    Some((self.listener.accept().await.ok()?.0, slot))
                } => accepted,
            };
            let Some((stream, slot)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let tls = self.tls.clone();
            connections.spawn(async move {
                let _slot = slot;
                // A caller that hangs up or sends rubbish is its own problem.
                let _ = tokio::time::timeout(CONNECTION_TIME, connection(tls, stream)).await;
            });
        }
    }
}

async fn connection(tls: TlsAcceptor, stream: TcpStream) {
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(answer(request.uri().path()))
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIME)
        .serve_connection(TokioIo::new(stream), service);
    let _ = served.await;
}

fn answer(path: &str) -> Response<Full<Bytes>> {
    let (code, text) = match HEALTH.contains(&path) {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::UNAUTHORIZED, "Unauthorized\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = code;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anybody_may_ask_for_health_and_nothing_else() {
        assert_eq!(answer("/healthz").status(), 200);
        assert_eq!(answer("/metrics").status(), 401);
    }
}
