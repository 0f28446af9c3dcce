//! pods/exec and pods/attach: SPDY passed through, WebSocket translated to SPDY.
//!
//! ```text
//! client ─ message: channel byte, bytes ─┬─ upward ──── data frame of the channel's stream ─ kubelet
//!        ─ 255, channel (v5) ────────────┘              … with FIN
//! client ─ message: channel byte, bytes ─── downward ── data frame                        ─ kubelet
//!        ─ 3, Status as JSON, then close ┘              error stream ends, then stdout and stderr
//! ```
//! Both directions hold one piece of data at a time and wait for their receiver, so a slow end slows the other.

use std::io;

use apimachinery::status::Status;
use bytes::{Buf, Bytes};
use futures::{Sink, SinkExt, Stream, StreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio_tungstenite::tungstenite::{self, Message};

use super::backend::{Answer, ConnectError, Connection, Security};
use super::spdy::{self, CHUNK_BYTES, Frame, Reader};
use super::target::{container, find, kubelet_of_bound};
use super::{Streaming, upgrade, websocket};
use crate::backend::Backend;
use crate::body::Body;
use crate::query::Query;
use crate::request::RequestContext;

/// The WebSocket subprotocols that are translated; v5 adds the close signal.
const TRANSLATED: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/// The protocol of the SPDY streams.
const STREAM_PROTOCOL: &str = "v4.channel.k8s.io";
/// A Status from a kubelet or its refusal is no longer.
const STATUS_BYTES: usize = 64 * 1024;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Which streams a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Wanted {
    fn of(query: &Query) -> Self {
        let flag = |name| query.flag(name);
        Self {
            stdin: flag("stdin"),
            stdout: flag("stdout"),
            stderr: flag("stderr"),
            tty: flag("tty"),
        }
    }

    /// As kubelets read it (`api.ExecStdinParam` and its like).
    fn kubelet_query(self, query: &Query) -> String {
        let mut parts: Vec<String> = query
            .all("command")
            .map(|word| format!("command={}", upgrade::encode(word)))
            .collect();
        let flags = [
            ("error", self.stderr),
            ("input", self.stdin),
            ("output", self.stdout),
            ("tty", self.tty),
        ];
        parts.extend(
            flags
                .iter()
                .filter(|(_, on)| *on)
                .map(|(name, _)| format!("{name}=1")),
        );
        if parts.is_empty() {
            String::new()
        } else {
            format!("?{}", parts.join("&"))
        }
    }

    /// A channel's stream. A terminal has no stderr of its own.
    fn stream(self, channel: u8) -> Option<u32> {
        let present = match channel {
            STDIN => self.stdin,
            STDOUT => self.stdout,
            STDERR => self.stderr && !self.tty,
            ERROR => true,
            RESIZE => self.tty,
            _ => false,
        };
        present.then_some(2 * u32::from(channel) + 1)
    }

    fn channel(self, stream: u32) -> Option<u8> {
        [STDOUT, STDERR, ERROR]
            .into_iter()
            .find(|channel| self.stream(*channel) == Some(stream))
    }
}

impl Streaming {
    pub(super) async fn remote_command(
        &self,
        objects: &dyn Backend,
        context: &RequestContext,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let pod = find(objects, "pods", &info.namespace, &info.name).await?;
        let container = container(&pod, info.query.get("container").unwrap_or(""))?;
        let kubelet = kubelet_of_bound(objects, &pod, &self.address_types).await?;
        if !upgrade::is_wanted(request.headers()) {
            return Err(upgrade::required());
        }
        let wanted = Wanted::of(&info.query);
        let target = format!(
            "/{}/{}/{}/{container}{}",
            info.subresource,
            info.namespace,
            info.name,
            wanted.kubelet_query(&info.query)
        );
        let authority = format!("{}:{}", kubelet.host, kubelet.port);
        let connecting = self
            .connector
            .connect(&kubelet.host, kubelet.port, Security::Kubelet)
            .await;
        let protocol = websocket::is_wanted(request.headers())
            .then(|| websocket::choose(request.headers(), &TRANSLATED))
            .flatten();
        let Some(protocol) = protocol else {
            let connection = connecting.map_err(|error| upgrade::dial_failed(&error))?;
            return self
                .pass_through(context, request, connection, &target, &authority)
                .await;
        };
        let (response, client) = websocket::accept(&mut request, protocol)?;
        let backend = open_backend(connecting, &target, &authority).await;
        self.spawn(context, translate(client, backend, wanted));
        Ok(response)
    }
}

/// Asks the kubelet for SPDY. A refusal becomes the Status that the client reads on its error channel, for its
/// WebSocket is granted whatever the kubelet says (as upstream's translator does).
async fn open_backend(
    connection: Result<Connection, ConnectError>,
    target: &str,
    authority: &str,
) -> Result<OnUpgrade, Status> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(target)
        .header(header::HOST, authority)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .header("X-Stream-Protocol-Version", STREAM_PROTOCOL)
        .body(Body::empty())
        .map_err(|error| Status::internal(format!("error dialing backend: {error}")))?;
    let dial_failed =
        |error: ConnectError| Status::internal(format!("error dialing backend: {error}"));
    let mut answer = connection
        .map_err(dial_failed)?
        .send(request)
        .await
        .map_err(dial_failed)?;
    if answer.response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(answer).await);
    }
    Ok(hyper::upgrade::on(&mut answer.response))
}

async fn refusal(answer: Answer) -> Status {
    let body = Limited::new(answer.response.into_body(), STATUS_BYTES)
        .collect()
        .await;
    let bytes = body.map(|b| b.to_bytes()).unwrap_or_default();
    if let Ok(status) = serde_json::from_slice::<Status>(&bytes)
        && !status.message.is_empty()
    {
        return status;
    }
    let text = String::from_utf8_lossy(&bytes);
    Status::internal(format!("unable to upgrade connection: {}", text.trim()))
}

async fn translate(
    client: OnUpgrade,
    backend: Result<OnUpgrade, Status>,
    wanted: Wanted,
) -> io::Result<()> {
    let (mut to_client, from_client) = websocket::open(client).await?.split();
    let outcome = match backend {
        Err(status) => status_bytes(&status),
        Ok(backend) => {
            let backend = backend.await.map_err(io::Error::other)?;
            match converse(&mut to_client, from_client, backend, wanted).await? {
                Some(outcome) => outcome,
                None => return Ok(()),
            }
        }
    };
    websocket::send(&mut to_client, message(ERROR, &outcome)).await?;
    websocket::send(&mut to_client, websocket::normal_close()).await?;
    to_client.close().await.map_err(websocket::to_io)
}

/// Carries everything in both directions. Returns what the error stream said, or None if the client left.
async fn converse(
    to_client: &mut (impl Sink<Message, Error = tungstenite::Error> + Unpin),
    from_client: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    backend: Upgraded,
    wanted: Wanted,
) -> io::Result<Option<Bytes>> {
    let (from_backend, mut to_backend) = tokio::io::split(TokioIo::new(backend));
    if let Err(error) = open_streams(&mut to_backend, wanted).await {
        let status = Status::internal(format!("error creating streams: {error}"));
        return Ok(Some(status_bytes(&status)));
    }
    // Tells the client that it is connected before there is any output.
    let first = [STDOUT, STDERR, ERROR]
        .into_iter()
        .find(|c| wanted.stream(*c).is_some())
        .unwrap_or(ERROR);
    websocket::send(to_client, message(first, &[])).await?;

    let to_backend = Mutex::new(to_backend);
    tokio::select! {
        outcome = downward(Reader::new(from_backend), to_client, &to_backend, wanted) => outcome.map(Some),
        left = upward(from_client, &to_backend, wanted) => left.map(|()| None),
    }
}

/// Opens the streams that the command has, in the order of their numbers: SPDY's must rise, and containerd drops
/// the connection of a client whose do not.
async fn open_streams(
    to_backend: &mut (impl AsyncWrite + Unpin),
    wanted: Wanted,
) -> io::Result<()> {
    let mut frames = spdy::Writer::default();
    for (channel, kind) in [
        (STDIN, "stdin"),
        (STDOUT, "stdout"),
        (STDERR, "stderr"),
        (ERROR, "error"),
        (RESIZE, "resize"),
    ] {
        if let Some(stream) = wanted.stream(channel) {
            to_backend
                .write_all(&frames.open(stream, "streamtype", kind))
                .await?;
        }
    }
    to_backend.flush().await
}

/// Carries output to the client until the streams or the connection end. Returns the error stream's contents.
async fn downward(
    mut frames: Reader<impl AsyncRead + Unpin>,
    to_client: &mut (impl Sink<Message, Error = tungstenite::Error> + Unpin),
    to_backend: &Mutex<impl AsyncWrite + Unpin>,
    wanted: Wanted,
) -> io::Result<Bytes> {
    let mut outcome = Vec::new();
    let mut open: Vec<u8> = [STDOUT, STDERR, ERROR]
        .into_iter()
        .filter(|channel| wanted.stream(*channel).is_some())
        .collect();
    while !open.is_empty() {
        let frame = match frames.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            // A kubelet whose container ended may cut the connection; what the error stream said stands.
            Err(_) if !outcome.is_empty() => break,
            Err(error) => {
                return Ok(status_bytes(&Status::internal(format!(
                    "error reading from error stream: {error}"
                ))));
            }
        };
        let ended = match frame {
            Frame::Data { stream, fin, data } => {
                match wanted.channel(stream) {
                    Some(ERROR) if outcome.len() + data.len() <= STATUS_BYTES => {
                        outcome.extend_from_slice(&data)
                    }
                    Some(ERROR) | None => {}
                    Some(channel) if !data.is_empty() => {
                        websocket::send(to_client, message(channel, &data)).await?;
                    }
                    Some(_) => {}
                }
                fin.then_some(stream)
            }
            Frame::Accepted { stream, fin: true } | Frame::Headers { stream, fin: true } => {
                Some(stream)
            }
            Frame::Reset { stream, .. } => Some(stream),
            Frame::Ping { id } => {
                // Never waited for: the other direction may hold the lock until the kubelet reads on.
                // Whether it arrives is the next read's matter.
                if let Ok(mut writer) = to_backend.try_lock() {
                    let _ = writer.write_all(&spdy::pong(id)).await;
                    let _ = writer.flush().await;
                }
                None
            }
            _ => None,
        };
        if let Some(channel) = ended.and_then(|stream| wanted.channel(stream)) {
            open.retain(|have| *have != channel);
        }
    }
    Ok(if outcome.is_empty() {
        success_bytes()
    } else {
        outcome.into()
    })
}

/// Carries input and window sizes to the kubelet until the client leaves. A kubelet that takes no more has most likely
/// ended the command, and says so in the other direction; input is read past from then on.
async fn upward(
    mut from_client: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    to_backend: &Mutex<impl AsyncWrite + Unpin>,
    wanted: Wanted,
) -> io::Result<()> {
    let mut stdin_open = wanted.stdin;
    let mut backend_open = true;
    while let Some(received) = from_client.next().await {
        let mut bytes = match received.map_err(websocket::to_io)? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => return Ok(()),
            _ => continue,
        };
        if bytes.is_empty() || !backend_open {
            continue;
        }
        let written = match bytes.get_u8() {
            CLOSE if bytes.first() == Some(&STDIN) && stdin_open => {
                stdin_open = false;
                write(to_backend, wanted, STDIN, Bytes::new(), true).await
            }
            STDIN if stdin_open && !bytes.is_empty() => {
                write(to_backend, wanted, STDIN, bytes, false).await
            }
            RESIZE if !bytes.is_empty() => write(to_backend, wanted, RESIZE, bytes, false).await,
            _ => continue,
        };
        if let Err(error) = written {
            tracing::debug!(%error, "the kubelet takes no more input");
            backend_open = false;
        }
    }
    Ok(())
}

async fn write(
    to_backend: &Mutex<impl AsyncWrite + Unpin>,
    wanted: Wanted,
    channel: u8,
    mut bytes: Bytes,
    fin: bool,
) -> io::Result<()> {
    let Some(stream) = wanted.stream(channel) else {
        return Ok(());
    };
    let mut writer = to_backend.lock().await;
    loop {
        let piece = bytes.split_to(bytes.len().min(CHUNK_BYTES));
        let last = bytes.is_empty();
        writer
            .write_all(&spdy::data_header(stream, fin && last, piece.len()))
            .await?;
        writer.write_all(&piece).await?;
        if last {
            return writer.flush().await;
        }
    }
}

fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = Vec::with_capacity(1 + data.len());
    bytes.push(channel);
    bytes.extend_from_slice(data);
    Message::Binary(bytes.into())
}

fn status_bytes(status: &Status) -> Bytes {
    status.to_value().to_string().into()
}

/// What a kubelet says about a command that ended well.
fn success_bytes() -> Bytes {
    Bytes::from_static(br#"{"metadata":{},"status":"Success"}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_passed_on_word_by_word() {
        let query = Query::parse(
            "command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=true&stderr=1&container=c",
        );
        let wanted = Wanted::of(&query);
        assert_eq!(
            wanted.kubelet_query(&query),
            "?command=sh&command=-c&command=echo+a%26b&error=1&input=1&output=1"
        );
    }

    #[test]
    fn a_terminal_has_a_window_and_no_stderr() {
        let all = Wanted {
            stdin: true,
            stdout: true,
            stderr: true,
            tty: true,
        };
        assert_eq!((all.stream(STDERR), all.stream(RESIZE)), (None, Some(9)));
        let plain = Wanted { tty: false, ..all };
        assert_eq!(
            (plain.stream(STDERR), plain.stream(RESIZE)),
            (Some(5), None)
        );
        assert_eq!(
            (plain.channel(7), plain.channel(1), plain.channel(2)),
            (Some(ERROR), None, None)
        );
    }
}
