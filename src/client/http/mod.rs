//! HTTP/2 over TLS to one API server: connections that are made when needed, shared by all, and replaced when broken.
//!
//! All requests and watches share one connection as long as the server's stream limit allows; then another is added.
//! A broken connection fails what was on it; the next request makes a new one, and of many that wait for it only one
//! dials. A request that certainly was not sent is sent again. Pings find a peer that is gone without a word.

mod post;
#[cfg(test)]
mod tests;
mod tls;
mod token;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header, uri::Scheme};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{net::TcpStream, task::AbortHandle};

use crate::{
    BoxBody, Client, ClientError, Result, Transport, boxed,
    config::{ConfigError, RestConfig},
};
pub use post::{Endpoint, PostError};
use tls::Tls;
use token::TokenSource;

/// Time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which nothing arrived for this long is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A ping not answered for this long ends the connection.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams put on one connection: servers allow at least 100 (RFC 9113, 6.5.2; kube-apiserver as many).
const MAX_STREAMS: usize = 90;
/// Connections to the server: 1,440 streams are more watches than a component has, with room for requests.
const MAX_CONNECTIONS: usize = 16;
/// How often a request that was not sent is tried on another connection.
const MAX_RESENDS: usize = 3;
/// Bytes the server may send ahead on a stream and on a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The transport to a remote API server.
pub struct Http {
    scheme: Scheme,
    host: String,
    port: u16,
    authority: http::uri::Authority,
    /// Path of the server's address, without a slash at the end.
    prefix: String,
    tls: Option<Tls>,
    token: Option<TokenSource>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Held while dialing.
    dialing: tokio::sync::Mutex<()>,
    /// Number of finished dials, and the error of the last if it failed.
    dials: AtomicU64,
    last_failure: Mutex<Option<String>>,
}

type Sender = http2::SendRequest<Full<Bytes>>;

struct Connection {
    sender: Sender,
    /// Requests whose answer has not ended.
    streams: AtomicUsize,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Client {
    /// A client of the API server `config` tells of. No connection is made yet.
    pub fn connect(config: RestConfig) -> Result<Client, ConfigError> {
        Ok(Client::new(Arc::new(Http::new(config)?)))
    }
}

impl Http {
    /// Checks the address and loads the certificates; connects later.
    pub fn new(config: RestConfig) -> Result<Self, ConfigError> {
        let invalid = || ConfigError::Server(config.server.clone());
        let uri: Uri = config.server.parse().map_err(|_| invalid())?;
        let scheme = uri.scheme().cloned().ok_or_else(invalid)?;
        let authority = uri.authority().cloned().ok_or_else(invalid)?;
        let host = authority.host().trim_matches(['[', ']']).to_string();
        let secure = match scheme.as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(invalid()),
        };
        let port = authority
            .port_u16()
            .unwrap_or(if secure { 443 } else { 80 });
        let prefix = uri.path().trim_end_matches('/').to_string();
        let RestConfig {
            server: _,
            ca,
            server_name,
            insecure_skip_tls_verify,
            client_certificate,
            client_key,
            token,
        } = config;
        let tls = if secure {
            let name = server_name.as_deref().unwrap_or(&host);
            Some(Tls::new(
                name,
                ca,
                insecure_skip_tls_verify,
                client_certificate,
                client_key,
            )?)
        } else {
            None
        };
        Ok(Http {
            scheme,
            host,
            port,
            authority,
            prefix,
            tls,
            token: token.map(TokenSource::new),
            connections: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            dials: AtomicU64::new(0),
            last_failure: Mutex::default(),
        })
    }

    /// A connection with room for one more stream.
    async fn connection(&self) -> Result<Lease> {
        if let Some(lease) = self.reuse() {
            return Ok(lease);
        }
        let dials = self.dials.load(Ordering::Acquire);
        let _dialing = self.dialing.lock().await;
        if let Some(lease) = self.reuse() {
            return Ok(lease);
        }
        // Whoever waited while another one failed to connect shares that failure.
        if self.dials.load(Ordering::Acquire) != dials
            && let Some(message) = self.last_failure.lock().clone()
        {
            return Err(self.connect_error(message.into()));
        }
        let dialed = match tokio::time::timeout(CONNECT_TIMEOUT, self.dial()).await {
            Ok(dialed) => dialed,
            Err(_) => Err("timed out".into()),
        };
        *self.last_failure.lock() = dialed.as_ref().err().map(ToString::to_string);
        self.dials.fetch_add(1, Ordering::Release);
        match dialed {
            Ok(connection) => {
                let connection = Arc::new(connection);
                let lease = Lease::new(connection.clone());
                self.connections.lock().push(connection);
                Ok(lease)
            }
            Err(error) => Err(self.connect_error(error)),
        }
    }

    fn connect_error(&self, source: crate::BoxError) -> ClientError {
        ClientError::Connect {
            address: self.authority.to_string(),
            source,
        }
    }

    /// The first connection with room; forgets closed ones, and idle ones behind the first.
    fn reuse(&self) -> Option<Lease> {
        let mut connections = self.connections.lock();
        let mut idle = 0;
        connections.retain(|connection| {
            let unused = connection.streams.load(Ordering::Acquire) == 0;
            idle += usize::from(unused);
            !connection.sender.is_closed() && (!unused || idle <= 1)
        });
        let full = connections.len() >= MAX_CONNECTIONS;
        let roomy = connections
            .iter()
            .find(|connection| connection.streams.load(Ordering::Acquire) < MAX_STREAMS);
        // With all full, the request waits in HTTP/2 for a stream to end.
        let chosen = roomy.or_else(|| connections.first().filter(|_| full))?;
        Some(Lease::new(chosen.clone()))
    }

    async fn dial(&self) -> Result<Connection, crate::BoxError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let Some(tls) = &self.tls else {
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
            return Ok(Connection::drive(sender, connection));
        };
        let stream = tls.connect(stream).await?;
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        Ok(Connection::drive(sender, connection))
    }

    /// Completes the request with where it goes and who sends it.
    fn address(&self, request: Request<Bytes>) -> Result<Request<Full<Bytes>>> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.prefix))
            .build()
            .map_err(|error| ClientError::Request(error.to_string()))?;
        if let Some(token) = &self.token
            && !head.headers.contains_key(header::AUTHORIZATION)
        {
            head.headers.insert(header::AUTHORIZATION, token.header()?);
        }
        Ok(Request::from_parts(head, Full::new(body)))
    }
}

#[async_trait]
impl Transport for Http {
    fn host(&self) -> &str {
        self.authority.as_str()
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxBody>> {
        let mut request = self.address(request)?;
        let mut resends = 0;
        loop {
            let lease = self.connection().await?;
            let mut sender = lease.0.sender.clone();
            match sender.try_send_request(request).await {
                Ok(response) => {
                    if response.status() == StatusCode::UNAUTHORIZED
                        && let Some(token) = &self.token
                    {
                        token.expire();
                    }
                    return Ok(response.map(|body| {
                        boxed(LeasedBody {
                            body,
                            _lease: lease,
                        })
                    }));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if resends < MAX_RESENDS => {
                        request = unsent;
                        resends += 1;
                    }
                    _ => return Err(ClientError::Transport(error.into_error().into())),
                },
            }
        }
    }
}

impl Connection {
    fn drive<C>(sender: Sender, connection: C) -> Self
    where
        C: Future<Output = hyper::Result<()>> + Send + 'static,
    {
        // Its end shows as a closed sender, which is how the pool notices.
        let driver = tokio::spawn(async move {
            match connection.await {
                Ok(()) => tracing::debug!("the connection to the API server was closed"),
                Err(error) => tracing::debug!(%error, "the connection to the API server broke"),
            }
        });
        Connection {
            sender,
            streams: AtomicUsize::new(0),
            driver: driver.abort_handle(),
        }
    }
}

/// One stream of a connection; counted until dropped.
struct Lease(Arc<Connection>);

impl Lease {
    fn new(connection: Arc<Connection>) -> Self {
        connection.streams.fetch_add(1, Ordering::AcqRel);
        Lease(connection)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A body that keeps its connection.
struct LeasedBody {
    body: Incoming,
    _lease: Lease,
}

impl Body for LeasedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
