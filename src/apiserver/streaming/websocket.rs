//! The server's end of a WebSocket connection (RFC 6455).

use std::io;

use apimachinery::status::Status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{Sink, SinkExt};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use crate::body::Body;

/// Longest message taken; kubectl sends 32 KiB at a time, other clients whole files at most.
const MESSAGE_BYTES: usize = 4 << 20;
/// Read buffer per connection.
const BUFFER_BYTES: usize = 32 * 1024;
/// What RFC 6455 has a server append to a client's key.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The end of a conversation that went well. Clients take a close without a code (1005) for a failure.
pub(super) fn normal_close() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    }))
}

/// Whether the client asks for a WebSocket.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    super::upgrade::is_wanted(headers)
        && headers
            .get(header::UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// The first of the client's subprotocols that is among `known`.
pub(super) fn choose(headers: &HeaderMap, known: &[&'static str]) -> Option<&'static str> {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .find_map(|offered| {
            known
                .iter()
                .find(|known| **known == offered.trim())
                .copied()
        })
}

/// The response that grants the WebSocket, and what becomes it once that is sent.
pub(super) fn accept(
    request: &mut Request<Body>,
    protocol: &'static str,
) -> Result<(Response<Body>, OnUpgrade), Status> {
    let headers = request.headers();
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version.as_bytes() != b"13")
    {
        return Err(Status::bad_request("missing or bad WebSocket Version"));
    }
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .filter(|key| key.len() == 24);
    let key = key.ok_or_else(|| Status::bad_request("mismatch challenge/response"))?;
    let accept = accept_key(key.as_bytes());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(
        header::SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(protocol),
    );
    Ok((response, hyper::upgrade::on(request)))
}

fn accept_key(key: &[u8]) -> HeaderValue {
    // SHA-1 proves here that the peer is a WebSocket server, nothing more.
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(KEY_SUFFIX);
    let text = STANDARD.encode(context.finish());
    HeaderValue::from_str(&text).expect("base64 is visible ASCII")
}

/// Waits for the upgrade.
pub(super) async fn open(upgrade: OnUpgrade) -> io::Result<Socket> {
    let upgraded = upgrade.await.map_err(io::Error::other)?;
    // Nothing is buffered but what a full socket leaves over: a sender waits for each of its messages.
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await)
}

/// Sends a message and waits until the socket has taken it.
pub(super) async fn send(
    sink: &mut (impl Sink<Message, Error = tungstenite::Error> + Unpin),
    message: Message,
) -> io::Result<()> {
    sink.send(message).await.map_err(to_io)
}

pub(super) fn to_io(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_rfc_6455_is_answered_as_there() {
        assert_eq!(
            accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn the_clients_order_decides_among_known_protocols() {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static("v9, v4.channel.k8s.io , v5.channel.k8s.io"),
        );
        assert_eq!(
            choose(&headers, &["v5.channel.k8s.io", "v4.channel.k8s.io"]),
            Some("v4.channel.k8s.io")
        );
        assert_eq!(choose(&headers, &["v1"]), None);
    }
}
