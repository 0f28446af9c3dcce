//! Bad input gets upstream's status and message, and the server goes on.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use integration::connection::Connection;
use integration::process::{self, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
/// Connections that say nothing after their handshake.
const IDLE_CONNECTIONS: usize = 10_000;

/// A server with nothing but the API, and a connection to it.
async fn mk_server() -> (Server, Connection) {
    process::install_crypto();
    let server = Server::start(&[
        "--controllers=-*".to_owned(),
        "--disable-scheduler".to_owned(),
    ])
    .await
    .expect("a server");
    let connection = server.connect().await;
    (server, connection)
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// The answer must be a Status with this code and reason whose message contains `message`.
#[track_caller]
fn check(answer: (u16, Value), code: u16, reason: &str, message: &str) {
    let (status, body) = answer;
    assert_eq!(status, code, "{body}");
    assert_eq!(body["kind"], "Status", "{body}");
    assert_eq!(body["code"], code, "{body}");
    assert_eq!(body["reason"], reason, "{body}");
    let said = body["message"].as_str().unwrap_or_default();
    assert!(said.contains(message), "said {said:?}, wanted {message:?}");
}

async fn post(connection: &Connection, path: &str, body: impl Into<Bytes>) -> (u16, Value) {
    connection
        .bytes(Method::POST, path, JSON, body.into())
        .await
        .expect("an answer")
}

#[tokio::test]
async fn what_cannot_be_decoded_is_a_bad_request() {
    let (_server, connection) = mk_server().await;
    let answer = post(&connection, PODS, r#"{"kind":"#).await;
    check(
        answer,
        400,
        "BadRequest",
        "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error:",
    );
    let answer = post(
        &connection,
        PODS,
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}"#,
    )
    .await;
    check(
        answer,
        400,
        "BadRequest",
        r#"Service in version "v1" cannot be handled as a Pod"#,
    );
    let answer = post(
        &connection,
        PODS,
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":"none"}}"#,
    )
    .await;
    check(
        answer,
        400,
        "BadRequest",
        r#"Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field"#,
    );
    let deep = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"deep"}},"x":{}1{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let (status, body) = post(&connection, MAPS, deep).await;
    assert_eq!(
        (status, &body["reason"]),
        (400, &json!("BadRequest")),
        "{body}"
    );
    let mut bomb = String::from(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\ndata:\n  a: &a0 [x,x,x,x,x,x,x,x,x,x]\n",
    );
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(",");
        bomb.push_str(&format!("  b{level}: &a{level} [{aliases}]\n"));
    }
    let yaml = [("content-type", "application/yaml")];
    let (status, body) = connection
        .bytes(Method::POST, MAPS, &yaml, bomb.into())
        .await
        .expect("an answer");
    assert_eq!(
        (status, &body["reason"]),
        (400, &json!("BadRequest")),
        "{body}"
    );
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_by_its_size() {
    let (_server, connection) = mk_server().await;
    let mut big = map("big");
    big["data"]["a"] = json!("x".repeat(4 << 20));
    let answer = post(&connection, MAPS, big.to_string()).await;
    check(answer, 413, "RequestEntityTooLarge", "limit is 3145728");
    assert_eq!(
        post(&connection, MAPS, map("small").to_string()).await.0,
        201
    );
}

#[tokio::test]
async fn names_and_namespaces_are_checked() {
    let (_server, connection) = mk_server().await;
    for name in ["a/b", "..", "UPPER", "-a", &"x".repeat(254)] {
        let (status, body) = post(&connection, MAPS, map(name).to_string()).await;
        assert_eq!(
            (status, &body["reason"]),
            (422, &json!("Invalid")),
            "{name}: {body}"
        );
        assert_eq!(
            body["details"]["causes"][0]["field"], "metadata.name",
            "{body}"
        );
    }
    let mut elsewhere = map("a");
    elsewhere["metadata"]["namespace"] = json!("kube-system");
    let answer = post(&connection, MAPS, elsewhere.to_string()).await;
    check(
        answer,
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    );
    let answer = post(
        &connection,
        "/api/v1/namespaces/nowhere/configmaps",
        map("a").to_string(),
    )
    .await;
    check(answer, 404, "NotFound", r#"namespaces "nowhere" not found"#);
    for path in [
        "/api/v1/namespaces/default/pods/a%2Fb",
        "/api/v1/namespaces/default/pods/a/../b",
        "/api/v1/nothing",
    ] {
        let (status, body) = connection
            .json(Method::GET, path, &Value::Null)
            .await
            .expect("an answer");
        assert_eq!(status, 404, "{path}: {body}");
    }
}

#[tokio::test]
async fn unknown_fields_follow_field_validation() {
    let (_server, connection) = mk_server().await;
    let mut odd = map("odd");
    odd["spec"] = json!({"foo": 1});
    let answer = post(
        &connection,
        &format!("{MAPS}?fieldValidation=Strict"),
        odd.to_string(),
    )
    .await;
    check(
        answer,
        400,
        "BadRequest",
        r#"strict decoding error: unknown field "spec""#,
    );
    let twice = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"twice"},"data":{"a":"1"},"data":{"b":"2"}}"#;
    let answer = post(
        &connection,
        &format!("{MAPS}?fieldValidation=Strict"),
        twice,
    )
    .await;
    check(
        answer,
        400,
        "BadRequest",
        r#"strict decoding error: duplicate field "data""#,
    );
    let (status, body) = post(
        &connection,
        &format!("{MAPS}?fieldValidation=Ignore"),
        odd.to_string(),
    )
    .await;
    assert_eq!((status, body.get("spec")), (201, None), "{body}");
}

#[tokio::test]
async fn conflicts_have_upstreams_words() {
    let (_server, connection) = mk_server().await;
    let (status, first) = post(&connection, MAPS, map("a").to_string()).await;
    assert_eq!(status, 201, "{first}");
    let answer = post(&connection, MAPS, map("a").to_string()).await;
    check(
        answer,
        409,
        "AlreadyExists",
        r#"configmaps "a" already exists"#,
    );
    let mut second = first.clone();
    second["data"]["a"] = json!("2");
    let path = format!("{MAPS}/a");
    assert_eq!(
        connection
            .json(Method::PUT, &path, &second)
            .await
            .expect("an answer")
            .0,
        200
    );
    second["data"]["a"] = json!("3");
    let answer = connection
        .json(Method::PUT, &path, &second)
        .await
        .expect("an answer");
    check(
        answer,
        409,
        "Conflict",
        r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#,
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_and_half_handshakes_do_not_stop_others() {
    let (server, connection) = mk_server().await;
    let address = server.target().expect("certificates").address;
    let wanted = IDLE_CONNECTIONS.min(process::raise_file_limit().saturating_sub(500));
    let mut idle = Vec::with_capacity(wanted);
    for number in 0..wanted {
        let mut stream = tokio::net::TcpStream::connect(&address)
            .await
            .expect("a connection");
        if number % 10 == 0 {
            // The first bytes of a ClientHello, and never the rest.
            stream
                .write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])
                .await
                .expect("written");
        }
        idle.push(stream);
    }
    assert_eq!(
        post(&connection, MAPS, map("among-idle").to_string())
            .await
            .0,
        201
    );
    let fresh = server.connect().await;
    assert_eq!(post(&fresh, MAPS, map("fresh").to_string()).await.0, 201);
    println!(
        "{wanted} idle connections, server at {:.0} MB",
        server.usage().expect("usage").resident
    );
    drop(idle);
    assert_eq!(
        post(&connection, MAPS, map("after").to_string()).await.0,
        201
    );
}

#[tokio::test]
async fn plain_http_and_noise_are_turned_away() {
    let (server, connection) = mk_server().await;
    let address = server.target().expect("certificates").address;
    for noise in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0xff; 512]] {
        let mut stream = tokio::net::TcpStream::connect(&address)
            .await
            .expect("a connection");
        stream.write_all(noise).await.expect("written");
        let mut answer = Vec::new();
        let read =
            tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(
            read.is_ok(),
            "the server keeps a connection that speaks no TLS"
        );
    }
    assert_eq!(
        post(&connection, MAPS, map("after").to_string()).await.0,
        201
    );
}
