//! Hostile and careless clients: each gets its answer, and the server goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Harness;
use crate::Body;
use crate::options::Limits;

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn a_body_over_three_mebibytes_is_refused() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let path = format!("{PODS}/body");
    let answer = client.send("PUT", &path, &[], vec![b' '; 4 << 20]).await;
    answer.is_status(
        413,
        "RequestEntityTooLarge",
        "Request entity too large: limit is 3145728",
    );
    let answer = client.send("PUT", &path, &[], vec![b' '; 3 << 20]).await;
    assert_eq!((answer.code, answer.body.len()), (200, 3 << 20));
}

/// The status line of what is answered to a POST of nobody's, whose body of two bytes comes after `pause`.
async fn refused(
    stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    pause: Duration,
) -> String {
    let head = format!("POST {PODS} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    tokio::time::sleep(pause).await;
    stream.write_all(b"{}").await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"}\n") && !answer.ends_with(b"}") {
        let mut some = [0; 4096];
        match stream.read(&mut some).await.expect("an answer") {
            0 => break,
            count => answer.extend_from_slice(&some[..count]),
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_refused_request_is_read_to_its_end() {
    let harness = Harness::start().await;
    let mut stream = harness.connect(None, "http/1.1").await;
    for _ in 0..3 {
        let line = refused(&mut stream, Duration::from_millis(50)).await;
        assert!(line.starts_with("HTTP/1.1 40"), "{line}");
    }
    // A client that never sends what it announced is answered nonetheless.
    let head = format!("POST {PODS} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = [0; 11];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 40");
}

#[tokio::test]
async fn a_refused_http2_stream_is_answered_after_its_body() {
    let harness = Harness::start().await;
    let stream = TokioIo::new(harness.connect(None, "h2").await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
            .await
            .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let sent = Arc::new(AtomicBool::new(false));
    let flag = sent.clone();
    let body = Body::stream(futures::stream::once(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        flag.store(true, Ordering::SeqCst);
        Ok(Bytes::from_static(b"{}"))
    }));
    let request = Request::post(format!("https://localhost{PODS}")).body(body);
    let answer = sender.send_request(request.expect("a request")).await;
    assert!(answer.expect("an answer").status().is_client_error());
    assert!(sent.load(Ordering::SeqCst));
    connection.abort();
}

#[tokio::test]
async fn a_panic_ends_one_request_only() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    client.get(&format!("{PODS}/panic")).await.is_status(
        500,
        "InternalError",
        "This request caused apiserver to panic. Look in the logs for details.",
    );
    assert_eq!(client.get(&format!("{PODS}/x")).await.code, 200);
}

#[tokio::test]
async fn a_slow_request_times_out() {
    let limits = Limits {
        request_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let harness = Harness::start_with(limits).await;
    let client = harness.client(Some(&harness.admin())).await;
    let message = "Timeout: request did not complete within the allotted timeout";
    client
        .get(&format!("{PODS}/slow"))
        .await
        .is_status(504, "Timeout", message);
    client
        .get(&format!("{PODS}/slow?timeout=10ms"))
        .await
        .is_status(504, "Timeout", message);
    let answer = client.get(&format!("{PODS}/slow?timeout=soon")).await;
    answer.is_status(
        400,
        "BadRequest",
        "invalid timeout specified in the request URL",
    );
}

#[tokio::test]
async fn half_a_handshake_is_cut_off_and_others_are_served() {
    let limits = Limits {
        handshake_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let harness = Harness::start_with(limits).await;
    let mut half = TcpStream::connect(harness.address)
        .await
        .expect("a connection");
    half.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])
        .await
        .expect("sent");
    let client = harness.client(Some(&harness.admin())).await;
    assert_eq!(client.get("/livez").await.text(), "ok");
    let started = Instant::now();
    let mut rest = Vec::new();
    let _ = half.read_to_end(&mut rest).await;
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_plain_request_on_the_tls_port_is_told_so() {
    let harness = Harness::start().await;
    let mut stream = TcpStream::connect(harness.address)
        .await
        .expect("a connection");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("sent");
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(
        text,
        "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    );
}

#[tokio::test]
async fn many_idle_connections_are_held() {
    let harness = Harness::start().await;
    let admin = harness.admin();
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(harness.connect(Some(&admin), "h2").await);
    }
    let client = harness.client(Some(&admin)).await;
    assert_eq!(client.get("/livez").await.text(), "ok");
}

#[tokio::test]
async fn headers_have_a_limit() {
    let harness = Harness::start().await;
    let mut stream = harness.connect(Some(&harness.admin()), "http/1.1").await;
    let request = format!(
        "GET /livez HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n",
        "x".repeat(200_000)
    );
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = vec![0; 12];
    let _ = stream.read_exact(&mut answer).await;
    assert_eq!(answer, b"HTTP/1.1 431");
    let client = harness.client(Some(&harness.admin())).await;
    assert_eq!(client.get("/livez").await.code, 200);
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection_not_the_server() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let other = harness.client(Some(&harness.admin())).await;
    let path = format!("{PODS}/slow");
    for _ in 0..2000 {
        let open = client.try_open("GET", &path, &[], "");
        // Dropped while under way: a reset.
        if tokio::time::timeout(Duration::from_micros(50), open)
            .await
            .is_ok()
        {
            break;
        }
    }
    assert_eq!(other.get("/livez").await.code, 200);
}
