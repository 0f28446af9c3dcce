//! Listeners and connections: TLS handshake, HTTP/1.1 or HTTP/2, idle and hostile peers, graceful end.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cork::gathering;
use super::tls::Tls;
use super::{Caller, Front, unread};
use crate::authn::Peer;
use crate::body::Body;

/// A connection without a request for this long is closed (upstream's `IdleTimeout`).
const IDLE: Duration = Duration::from_secs(90);

/// Streams one HTTP/2 connection may have open: many informers share one. Each buffers at most `STREAM_WINDOW`
/// of its request, all together at most `CONNECTION_WINDOW`.
const STREAMS: u32 = 250;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Response bytes buffered for a stream whose peer reads slowly.
const SEND_BUFFER: usize = 256 * 1024;

/// Streams that a peer opened and reset before they were accepted (CVE-2023-44487).
const PENDING_RESETS: usize = 20;

/// Streams that this side resets because of the peer's errors before the connection is given up (CVE-2025-8671).
const LOCAL_RESETS: usize = 200;

/// Bytes and number of a request's headers.
const HEADER_BYTES: usize = 64 * 1024;
const HEADERS: usize = 200;

/// After this pause a listener that had no file descriptor left tries again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A peer that answers no keep-alive probe is gone after about 30 + 9 × 15 seconds.
const KEEP_ALIVE_IDLE_SECONDS: u32 = 30;
const KEEP_ALIVE_INTERVAL_SECONDS: u32 = 15;

/// What all connections share.
#[derive(Clone)]
pub struct Acceptor {
    pub front: Arc<Front>,
    pub tls: Arc<Tls>,
    /// Bounds the open connections.
    pub connections: Arc<Semaphore>,
    /// Cancelled when what still runs has to be cut off.
    pub cut_off: CancellationToken,
    /// Every connection and stream is one of its tasks.
    pub tasks: TaskTracker,
}

impl Acceptor {
    /// Accepts until the server drains.
    pub async fn run(self, listener: TcpListener) -> io::Result<()> {
        let draining = self.front.draining.clone();
        loop {
            let permit = tokio::select! {
                permit = self.connections.clone().acquire_owned() => permit.map_err(io::Error::other)?,
                () = draining.cancelled() => return Ok(()),
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = draining.cancelled() => return Ok(()),
            };
            match accepted {
                Ok((stream, address)) => {
                    if let Err(error) = set_options(&stream) {
                        tracing::debug!(%error, "A connection ended before it was accepted");
                        continue;
                    }
                    let acceptor = self.clone();
                    let connection = acceptor.connection(stream, address.ip(), permit);
                    self.tasks.spawn(connection);
                }
                Err(error) if is_peers_fault(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "Cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Futures are boxed step by step, so that a connection holds no more memory than its state needs: a silent peer
    /// costs about a kilobyte besides its socket.
    async fn connection(self, stream: TcpStream, remote: IpAddr, _permit: OwnedSemaphorePermit) {
        let limit = self.front.limits.handshake_timeout;
        let handshake = async {
            stream.readable().await.ok()?;
            Box::pin(self.handshake(stream)).await
        };
        let result = tokio::select! {
            result = tokio::time::timeout(limit, handshake) => result.ok().flatten(),
            () = self.front.draining.cancelled() => return,
        };
        let Some(stream) = result else {
            self.front.metrics.handshake_failed();
            return;
        };
        let (_, session) = stream.get_ref();
        let chain = session
            .peer_certificates()
            .map(|chain| chain.iter().map(|der| der.clone().into_owned()).collect())
            .unwrap_or_default();
        let is_h2 = session.alpn_protocol() == Some(b"h2");
        let connection = Arc::new(Connection {
            front: self.front.clone(),
            peer: Peer::new(Some(remote), chain),
            activity: Activity::default(),
        });
        let ended = if is_h2 {
            Box::pin(self.serve_h2(stream, connection)).await
        } else {
            Box::pin(self.serve_h1(stream, connection)).await
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %remote, "A connection broke");
        }
    }

    async fn handshake(&self, mut stream: TcpStream) -> Option<Box<TlsStream<TcpStream>>> {
        let mut first = [0; 5];
        let peeked = stream.peek(&mut first).await.ok()?;
        if is_plain_http(&first[..peeked]) {
            // What was sent is read: a socket closed with unread data cuts off the answer.
            let _ = stream.read(&mut [0; PLAIN_READ]).await;
            let _ = stream.write_all(PLAIN_HTTP).await;
            return None;
        }
        let accept = TlsAcceptor::from(self.tls.config())
            .accept(stream)
            .into_fallible();
        match accept.await {
            Ok(stream) => Some(Box::new(stream)),
            Err((error, _)) => {
                tracing::debug!(%error, "A TLS handshake failed");
                None
            }
        }
    }

    async fn serve_h2(
        &self,
        stream: Box<TlsStream<TcpStream>>,
        connection: Arc<Connection>,
    ) -> Result<(), hyper::Error> {
        let mut builder = http2::Builder::new(Tracked(self.tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(LOCAL_RESETS)
            .max_header_list_size(HEADER_BYTES as u32);
        let service = {
            let connection = connection.clone();
            service_fn(move |request| connection.clone().call(request))
        };
        let is_busy = {
            let connection = connection.clone();
            move || connection.activity.open.load(Ordering::Relaxed) > 1
        };
        let mut serving = pin!(gathering(stream, is_busy, |cork| {
            builder.serve_connection(TokioIo::new(cork), service)
        }));
        let mut idle = pin!(tokio::time::sleep(IDLE));
        let mut ending = false;
        loop {
            tokio::select! {
                result = serving.as_mut() => return result,
                () = self.cut_off.cancelled() => return Ok(()),
                () = self.front.draining.cancelled(), if !ending => {
                    ending = true;
                    serving.as_mut().serving().graceful_shutdown();
                }
                () = idle.as_mut(), if !ending => match connection.activity.idle_until() {
                    Some(later) => idle.as_mut().reset(later),
                    None => {
                        ending = true;
                        serving.as_mut().serving().graceful_shutdown();
                    }
                },
            }
        }
    }

    /// hyper's header timeout also bounds the wait for the next request.
    async fn serve_h1(
        &self,
        stream: Box<TlsStream<TcpStream>>,
        connection: Arc<Connection>,
    ) -> Result<(), hyper::Error> {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_headers(HEADERS)
            .max_buf_size(HEADER_BYTES);
        let service = service_fn(move |request| connection.clone().call(request));
        let serving = builder.serve_connection(TokioIo::new(stream), service);
        let mut serving = pin!(serving.with_upgrades());
        let mut ending = false;
        loop {
            tokio::select! {
                result = serving.as_mut() => return result,
                () = self.cut_off.cancelled() => return Ok(()),
                () = self.front.draining.cancelled(), if !ending => {
                    ending = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Go's answer to a plain request on a TLS port.
const PLAIN_HTTP: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// Bytes of a plain request that are read before it is answered; a request without a body is rarely longer.
const PLAIN_READ: usize = 4096;

/// Whether a connection begins with one of the methods that Go's TLS server tells from a broken handshake.
fn is_plain_http(first: &[u8]) -> bool {
    [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"]
        .iter()
        .any(|method| first == *method)
}

fn is_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// On each connection: one that was made before the first `accept` would not inherit what the listener is told then.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::TcpNoDelay, &true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_IDLE_SECONDS)?;
    setsockopt(
        stream,
        sockopt::TcpKeepInterval,
        &KEEP_ALIVE_INTERVAL_SECONDS,
    )?;
    Ok(())
}

/// Runs HTTP/2 streams as tasks whose end the server's shutdown waits for.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// One accepted connection.
struct Connection {
    front: Arc<Front>,
    peer: Peer,
    activity: Activity,
}

type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Connection {
    /// Boxed, so that a stream that only sends its body any more (a watch) does not hold the memory of all the steps
    /// before.
    fn call(self: Arc<Self>, request: http::Request<hyper::body::Incoming>) -> Answering {
        Box::pin(async move {
            let active = Active::enter(&self);
            let (request, unread) = unread::lend(request);
            let caller = Caller::Remote(&self.peer);
            let response = self.front.handle(caller, request).await;
            if let Some(unread) = unread {
                unread.read().await;
            }
            if response.body().as_bytes().is_some() {
                return Ok(response);
            }
            Ok(response.map(|body| body.holding(active)))
        })
    }
}

/// Requests that a connection has open, and since when it has none.
struct Activity {
    open: AtomicUsize,
    idle_since: Mutex<Instant>,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            open: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
        }
    }
}

impl Activity {
    /// When to look again; `None` when the connection has been idle for long enough.
    fn idle_until(&self) -> Option<Instant> {
        if self.open.load(Ordering::Relaxed) > 0 {
            return Some(Instant::now() + IDLE);
        }
        let until = *self.idle_since.lock() + IDLE;
        (until > Instant::now()).then_some(until)
    }
}

struct Active(Arc<Connection>);

impl Active {
    fn enter(connection: &Arc<Connection>) -> Self {
        connection.activity.open.fetch_add(1, Ordering::Relaxed);
        Self(connection.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let activity = &self.0.activity;
        if activity.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            *activity.idle_since.lock() = Instant::now();
        }
    }
}
