//! Clients that mean harm on the level of HTTP: floods of resets, header pieces, pings and settings, heads and bodies that
//! do not end. The server bounds each and serves the others.

use std::time::{Duration, Instant};

use http::Method;
use integration::connection::Connection;
use integration::process::{self, Server};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Frames of one flood.
const FRAMES: usize = 50_000;
/// Memory that a flood may cost the server (MiB); unbounded, each would take many times that.
const MEMORY: f64 = 64.0;
/// How long the others wait at most while a flood is on, on a busy machine.
const SERVED_WITHIN: Duration = Duration::from_secs(20);

async fn mk_server(extra: &[&str]) -> (Server, Connection) {
    process::install_crypto();
    let mut flags = vec!["--controllers=-*", "--disable-scheduler"];
    flags.extend(extra);
    let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
    let server = Server::start(&flags).await.expect("a server");
    let connection = server.connect().await;
    (server, connection)
}

/// An HTTP/2 frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `GET /livez` in HPACK: two indexed fields, the path and the authority as literals.
fn request_head() -> Vec<u8> {
    let mut head = vec![0x82, 0x87, 0x04, 6];
    head.extend_from_slice(b"/livez");
    head.extend_from_slice(&[0x01, 9]);
    head.extend_from_slice(b"localhost");
    head
}

/// Sends `pieces` on a connection of its own while others are served; says whether the server ended it.
async fn flood(pieces: impl Iterator<Item = Vec<u8>> + Send + 'static) -> bool {
    let (server, other) = mk_server(&[]).await;
    let before = server.usage().expect("usage").resident;
    let stream = server
        .target()
        .expect("certificates")
        .tls(b"h2")
        .await
        .expect("a connection");
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = tokio::spawn(async move {
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        out.extend(frame(SETTINGS, 0, 0, &[]));
        for piece in pieces {
            out.extend(piece);
            if out.len() > 16 << 10 {
                // An error: the server does not listen any more.
                if write.write_all(&out).await.is_err() {
                    return true;
                }
                out.clear();
            }
        }
        write.write_all(&out).await.is_err()
    });
    let ended = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(1..) = read.read(&mut buffer).await {}
    });
    let started = Instant::now();
    for _ in 0..20 {
        let answer = other.json(Method::GET, "/livez", &Value::Null).await;
        assert_eq!(answer.expect("an answer").0, 200);
    }
    assert!(started.elapsed() < SERVED_WITHIN, "{:?}", started.elapsed());
    let sent = tokio::time::timeout(Duration::from_secs(60), sending).await;
    let broken = matches!(sent, Ok(Ok(true)));
    let over = tokio::time::timeout(Duration::from_secs(2), ended).await;
    let grown = server.usage().expect("usage").resident - before;
    assert!(grown < MEMORY, "{grown:.0} MB more");
    let answer = other.json(Method::GET, "/livez", &Value::Null).await;
    assert_eq!(answer.expect("an answer").0, 200);
    broken || over.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_resets_cost_little() {
    let pieces = (0..FRAMES as u32).map(|number| {
        let stream = number * 2 + 1;
        let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, &request_head());
        [head, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    flood(pieces).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_in_endless_pieces_ends_the_connection() {
    let first = frame(HEADERS, END_STREAM, 1, &request_head());
    // A field named x without a value, not indexed.
    let more = frame(CONTINUATION, 0, 1, &[0x00, 1, b'x', 0]);
    let pieces = std::iter::once(first).chain(std::iter::repeat_n(more, FRAMES));
    assert!(flood(pieces).await, "the connection is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_pings_and_settings_cost_little() {
    flood(std::iter::repeat_n(frame(PING, 0, 0, &[7; 8]), FRAMES)).await;
    // SETTINGS_INITIAL_WINDOW_SIZE, which touches every stream.
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]);
    flood(std::iter::repeat_n(settings, FRAMES)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_do_not_end_keep_nobody_from_being_served() {
    let (server, other) = mk_server(&[]).await;
    let target = server.target().expect("certificates");
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut stream = target.tls(b"http/1.1").await.expect("a connection");
        let part = b"GET /api HTTP/1.1\r\nHost: localhost\r\nX-Slow: a";
        stream.write_all(part).await.expect("written");
        slow.push(stream);
    }
    let answer = other.json(Method::GET, "/livez", &Value::Null).await;
    assert_eq!(answer.expect("an answer").0, 200);
}

/// The head of a request to create a map, and the first byte of its body.
async fn begin_post(stream: &mut (impl AsyncWrite + Unpin)) {
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
}

async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut buffer = vec![0; 4096];
    let mut text = String::new();
    let read = async {
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            text.push_str(&String::from_utf8_lossy(&buffer[..length]));
            if text.contains("\r\n\r\n") {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(30), read).await;
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_end_is_answered_when_its_time_is_over() {
    let (server, _other) = mk_server(&["--request-timeout=2s"]).await;
    let target = server.target().expect("certificates");
    let mut stream = target.tls(b"http/1.1").await.expect("a connection");
    let started = Instant::now();
    begin_post(&mut stream).await;
    let text = answer(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 504 "), "{text}");
    let took = started.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < SERVED_WITHIN,
        "{took:?}"
    );
}
