//! The streaming subresources over real sockets: a client, the server, and a kubelet of the test's own.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apimachinery::Value;
use apimachinery::status::Status;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

use super::Streaming;
use super::spdy::{self, Frame, Reader};
use crate::authz::Authorizers;
use crate::backend::{Backend, Generation};
use crate::body::Body;
use crate::options::KubeletClientOptions;
use crate::request::{RequestContext, RequestInfo, UserInfo, Warnings};

const LIMIT: Duration = Duration::from_secs(10);

struct Objects(Vec<Value>);

#[async_trait::async_trait]
impl Backend for Objects {
    async fn handle(&self, _: RequestContext, _: Request<Body>) -> Result<Response<Body>, Status> {
        Err(Status::path_not_found())
    }

    async fn find(
        &self,
        _: &str,
        plural: &str,
        _: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Status> {
        let found = self
            .0
            .iter()
            .find(|o| o["plural"] == plural && o["metadata"]["name"] == name);
        Ok(found.cloned().map(Arc::new))
    }

    fn cached_list(&self, _: &str, plural: &str) -> Vec<Arc<Value>> {
        self.0
            .iter()
            .filter(|o| o["plural"] == plural)
            .cloned()
            .map(Arc::new)
            .collect()
    }

    fn generation(&self, _: &str, _: &str) -> Generation {
        0
    }

    fn is_synced(&self) -> bool {
        true
    }
}

struct World {
    server: SocketAddr,
    release: Arc<Notify>,
    drain: CancellationToken,
    _tasks: JoinSet<()>,
}

async fn world() -> World {
    let mut tasks = JoinSet::new();
    let release = Arc::new(Notify::new());
    let kubelet = start_kubelet(release.clone(), &mut tasks).await;
    let web = start_web(&mut tasks).await;
    let node = |name: &str, port: u16| {
        json!({"plural": "nodes", "metadata": {"name": name}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}})
    };
    let pod = |name: &str, node: Value| {
        json!({"plural": "pods", "metadata": {"name": name}, "status": {"podIP": "127.0.0.1"},
               "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"containerPort": web.port()}]}]}})
    };
    let service = json!({"plural": "services", "metadata": {"name": "web"},
        "spec": {"ports": [{"name": "http", "port": 80}, {"name": "idle", "port": 81}]}});
    let slice = json!({"plural": "endpointslices",
        "metadata": {"namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": web.port()}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}},
                      {"addresses": ["192.0.2.1"], "conditions": {"ready": false}}]});
    let objects = Objects(vec![
        node("n1", kubelet.port()),
        node("dead", 1),
        pod("p", json!("n1")),
        pod("lost", json!("dead")),
        pod("pending", Value::Null),
        service,
        slice,
    ]);
    let mut streaming = Streaming::new(&KubeletClientOptions::default());
    streaming.allow_loopback = true;
    let drain = CancellationToken::new();
    let server = start_server(streaming, objects, drain.clone(), &mut tasks).await;
    World {
        server,
        release,
        drain,
        _tasks: tasks,
    }
}

async fn start_server(
    streaming: Streaming,
    objects: Objects,
    drain: CancellationToken,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::new((streaming, objects));
    tasks.spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let (shared, drain) = (shared.clone(), drain.clone());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let (shared, drain) = (shared.clone(), drain.clone());
                    async move {
                        let request = request.map(Body::from);
                        let context = RequestContext {
                            info: RequestInfo::parse(request.method(), request.uri()),
                            user: Arc::new(UserInfo::anonymous()),
                            impersonator: None,
                            audit_id: "test".into(),
                            received: Instant::now(),
                            deadline: None,
                            remote: Some(peer.ip()),
                            warnings: Warnings::default(),
                            authorizers: Arc::new(Authorizers::new(Vec::new())),
                            shutdown: drain,
                        };
                        assert!(Streaming::handles(&context.info));
                        let answer = shared.0.handle(&shared.1, &context, request).await;
                        Ok::<_, Infallible>(answer.unwrap_or_else(|status| {
                            let mut response = Response::new(Body::from(status.message));
                            *response.status_mut() = StatusCode::from_u16(status.code).unwrap();
                            response
                        }))
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                let _ = connection.await;
            });
        }
    });
    address
}

/// A kubelet whose `/exec` runs scripts instead of commands.
async fn start_kubelet(release: Arc<Notify>, tasks: &mut JoinSet<()>) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(["kubelet".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![made.cert.der().clone()], key)
    .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, release) = (acceptor.clone(), release.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper::service::service_fn(move |request| {
                    let release = release.clone();
                    async move { Ok::<_, Infallible>(kubelet(request, release)) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                let _ = connection.await;
            });
        }
    });
    address
}

fn kubelet(mut request: Request<Incoming>, release: Arc<Notify>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or("").to_owned();
    let refuse = |code: u16, text: &str| {
        let mut response = Response::new(Body::from(text.to_owned()));
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    };
    match path.as_str() {
        "/containerLogs/default/p/c" if query == "tailLines=7" => {
            return refuse(
                400,
                "container \"c\" in pod \"p\" is waiting to start: ContainerCreating",
            );
        }
        "/containerLogs/default/p/c" => {
            let first = futures::stream::iter([Ok(Bytes::from_static(b"first\n"))]);
            let then = futures::stream::once(async move {
                release.notified().await;
                Ok(Bytes::from_static(b"second\n"))
            });
            return Response::new(Body::stream(first.chain(then)));
        }
        "/logs/" => return Response::new(Body::from("kubelet.log")),
        "/exec/default/p/c" | "/portForward/default/p" => {}
        _ => return refuse(404, "404 page not found"),
    }
    if query.contains("command=missing") {
        return refuse(500, "container not found (\"c\")");
    }
    assert_eq!(request.headers()[header::UPGRADE], "SPDY/3.1");
    assert!(!request.headers().contains_key(header::AUTHORIZATION));
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        if path.starts_with("/exec") {
            let _ = run_script(&query, stream).await;
        } else {
            let (mut read, mut write) = tokio::io::split(&mut stream);
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        }
    });
    let mut response = refuse(101, "");
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, "Upgrade".parse().unwrap());
    headers.insert(header::UPGRADE, "SPDY/3.1".parse().unwrap());
    headers.insert(
        "x-stream-protocol-version",
        request.headers()["x-stream-protocol-version"].clone(),
    );
    response
}

async fn run_script(
    query: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let (read, mut write) = tokio::io::split(stream);
    let mut frames = Reader::new(read);
    write
        .write_all(&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2])
        .await?; // a ping to be answered
    let mut send = async |stream: u32, fin: bool, data: &[u8]| {
        write
            .write_all(&spdy::data_header(stream, fin, data.len()))
            .await?;
        write.write_all(data).await?;
        write.flush().await
    };
    let outcome = if query.contains("command=cat") {
        loop {
            match frames.next().await? {
                Some(Frame::Data {
                    stream: 1,
                    fin,
                    data,
                }) => {
                    send(3, false, &data).await?;
                    if fin {
                        break;
                    }
                }
                Some(Frame::Data {
                    stream: 9, data, ..
                }) => send(3, false, &data).await?,
                Some(_) => {}
                None => return Ok(()),
            }
        }
        r#"{"metadata":{},"status":"Success"}"#
    } else if query.contains("command=flood") {
        for _ in 0..4096 {
            send(3, false, &[b'x'; 4096]).await?;
        }
        r#"{"metadata":{},"status":"Success"}"#
    } else {
        send(5, false, b"oops").await?;
        r#"{"metadata":{},"status":"Failure","message":"command terminated with exit code 3"}"#
    };
    send(7, false, outcome.as_bytes()).await?;
    for stream in [3, 5, 7] {
        send(stream, true, &[]).await?;
    }
    // What is left unread when a socket is closed resets the connection.
    while frames.next().await?.is_some() {}
    Ok(())
}

/// A pod's web server: says what it was asked.
async fn start_web(tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                    let header = |name: &str| {
                        request
                            .headers()
                            .get(name)
                            .map_or("-", |v| v.to_str().unwrap())
                            .to_owned()
                    };
                    let seen = [
                        header("x-forwarded-uri"),
                        header("x-forwarded-for"),
                        header("authorization"),
                    ]
                    .join(" ");
                    let line = format!("{} {} {seen}", request.method(), request.uri());
                    let redirect = request.uri().path() == "/old";
                    let mut response = Response::new(Body::from(line));
                    if redirect {
                        *response.status_mut() = StatusCode::FOUND;
                        response
                            .headers_mut()
                            .insert(header::LOCATION, "/new".parse().unwrap());
                    }
                    Ok::<_, Infallible>(response)
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                let _ = connection.await;
            });
        }
    });
    address
}

/// Sends a request with these headers; returns the connection after the head, the status line and the headers.
async fn send(world: &World, request: &str, headers: &str) -> (BufReader<TcpStream>, String) {
    let stream = TcpStream::connect(world.server).await.unwrap();
    let mut stream = BufReader::new(stream);
    let text =
        format!("{request} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer secret\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let count = tokio::time::timeout(LIMIT, stream.read_line(&mut head))
            .await
            .unwrap()
            .unwrap();
        assert!(count > 0, "the server hung up after {head:?}");
    }
    (stream, head)
}

async fn get(world: &World, request: &str) -> (String, String) {
    let (mut stream, head) = send(world, request, "Connection: close\r\n").await;
    let mut body = String::new();
    stream.read_to_string(&mut body).await.unwrap();
    (head, body)
}

async fn websocket(
    world: &World,
    path: &str,
    protocol: &str,
) -> WebSocketStream<BufReader<TcpStream>> {
    let headers = format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n"
    );
    let (stream, head) = send(world, &format!("GET {path}"), &headers).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        "{head}"
    );
    WebSocketStream::from_raw_socket(stream, Role::Client, None).await
}

fn exec(command: &str, flags: &str) -> String {
    format!("/api/v1/namespaces/default/pods/p/exec?command={command}&{flags}")
}

/// Everything the server says on each channel until it closes.
async fn listen(socket: &mut WebSocketStream<BufReader<TcpStream>>) -> [Vec<u8>; 4] {
    let mut channels = [const { Vec::new() }; 4];
    while let Some(message) = tokio::time::timeout(LIMIT, socket.next()).await.unwrap() {
        if let Message::Binary(bytes) = message.unwrap() {
            channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
        }
    }
    channels
}

fn binary(channel: u8, data: &[u8]) -> Message {
    Message::Binary([&[channel], data].concat().into())
}

#[tokio::test]
async fn input_ends_with_v5s_close_signal_and_output_comes_back_whole() {
    let world = world().await;
    let mut socket = websocket(
        &world,
        &exec("cat", "stdin=1&stdout=1"),
        "v5.channel.k8s.io",
    )
    .await;
    let large = vec![b'y'; 300_000];
    socket.send(binary(0, b"hello ")).await.unwrap();
    socket.send(binary(0, &large)).await.unwrap();
    socket.send(Message::Ping(Bytes::new())).await.unwrap();
    socket.send(binary(255, &[0])).await.unwrap();
    socket.send(binary(0, b"too late")).await.unwrap();
    let [_, stdout, _, status] = listen(&mut socket).await;
    assert_eq!(stdout.len(), 6 + large.len());
    assert_eq!(status, br#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test]
async fn window_sizes_reach_a_terminal() {
    let world = world().await;
    let flags = "stdin=1&stdout=1&stderr=1&tty=1";
    let mut socket = websocket(&world, &exec("cat", flags), "v5.channel.k8s.io").await;
    socket
        .send(binary(4, br#"{"Width":80,"Height":24}"#))
        .await
        .unwrap();
    socket.send(binary(255, &[0])).await.unwrap();
    assert_eq!(listen(&mut socket).await[1], br#"{"Width":80,"Height":24}"#);
}

#[tokio::test]
async fn a_failed_command_says_how_on_the_error_channel() {
    let world = world().await;
    let mut socket = websocket(
        &world,
        &exec("false", "stdout=1&stderr=1"),
        "v4.channel.k8s.io",
    )
    .await;
    let [_, _, stderr, status] = listen(&mut socket).await;
    assert_eq!(stderr, b"oops");
    assert!(String::from_utf8(status).unwrap().contains("exit code 3"));
}

#[tokio::test]
async fn a_refusing_or_absent_kubelet_is_told_on_the_error_channel() {
    let world = world().await;
    let mut socket = websocket(&world, &exec("missing", "stdout=1"), "v5.channel.k8s.io").await;
    let status: Value = serde_json::from_slice(&listen(&mut socket).await[3]).unwrap();
    assert_eq!(
        status["message"],
        "Internal error occurred: unable to upgrade connection: container not found (\"c\")"
    );
    let path = "/api/v1/namespaces/default/pods/lost/exec?command=x&stdout=1";
    let mut socket = websocket(&world, path, "v5.channel.k8s.io").await;
    let status: Value = serde_json::from_slice(&listen(&mut socket).await[3]).unwrap();
    assert_eq!(
        status["message"],
        "Internal error occurred: error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused"
    );
}

#[tokio::test]
async fn a_slow_reader_holds_back_the_command_and_loses_nothing() {
    let world = world().await;
    let mut socket = websocket(&world, &exec("flood", "stdout=1"), "v5.channel.k8s.io").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(listen(&mut socket).await[1].len(), 4096 * 4096);
}

#[tokio::test]
async fn spdy_clients_speak_with_the_kubelet_itself() {
    let world = world().await;
    let headers = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";
    let (stream, head) = send(
        &world,
        &format!("POST {}", exec("cat", "stdin=1&stdout=1")),
        headers,
    )
    .await;
    assert!(
        head.starts_with("HTTP/1.1 101 ")
            && head.contains("x-stream-protocol-version: v4.channel.k8s.io"),
        "{head}"
    );
    let (read, mut write) = tokio::io::split(stream);
    write
        .write_all(&spdy::data_header(1, true, 2))
        .await
        .unwrap();
    write.write_all(b"hi").await.unwrap();
    let mut frames = Reader::new(read);
    assert_eq!(frames.next().await.unwrap(), Some(Frame::Ping { id: 2 }));
    let echoed = Frame::Data {
        stream: 3,
        fin: false,
        data: "hi".into(),
    };
    assert_eq!(frames.next().await.unwrap(), Some(echoed));
}

#[tokio::test]
async fn ports_are_forwarded_as_bytes_and_within_websocket_messages() {
    let world = world().await;
    let path = "/api/v1/namespaces/default/pods/p/portforward";
    let headers = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n";
    let (mut stream, head) = send(&world, &format!("POST {path}"), headers).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(b"ping").await.unwrap();
    let mut echoed = [0; 4];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"ping");

    let socket = websocket(&world, path, "SPDY/3.1+portforward.k8s.io").await;
    let (mut up, mut down) = socket.split();
    let sending = async {
        for _ in 0..100 {
            up.send(Message::Binary(vec![7; 50_000].into()))
                .await
                .unwrap();
        }
    };
    let receiving = async {
        let mut total = 0;
        while total < 5_000_000 {
            total += tokio::time::timeout(LIMIT, down.next())
                .await
                .unwrap()
                .unwrap()
                .unwrap()
                .len();
        }
        total
    };
    assert_eq!(tokio::join!(sending, receiving).1, 5_000_000);
}

#[tokio::test]
async fn log_lines_come_as_they_are_written() {
    let world = world().await;
    let path = "GET /api/v1/namespaces/default/pods/p/log?follow=true";
    let (mut stream, head) = send(&world, path, "Connection: close\r\n").await;
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: text/plain"),
        "{head}"
    );
    let mut lines = String::new();
    while !lines.contains("first") {
        tokio::time::timeout(LIMIT, stream.read_line(&mut lines))
            .await
            .unwrap()
            .unwrap();
    }
    world.release.notify_one();
    stream.read_to_string(&mut lines).await.unwrap();
    assert!(lines.contains("second"));
}

#[tokio::test]
async fn what_cannot_be_connected_is_refused_in_upstreams_words() {
    let world = world().await;
    let pods = "/api/v1/namespaces/default/pods";
    for (request, code, message) in [
        (
            format!("GET {pods}/p/log?container=x"),
            400,
            "container x is not valid for pod p",
        ),
        (
            format!("GET {pods}/none/log"),
            404,
            "pods \"none\" not found",
        ),
        (format!("GET {pods}/pending/log"), 204, ""),
        (
            format!("GET {pods}/pending/exec?command=x"),
            400,
            "pod pending does not have a host assigned",
        ),
        (
            format!("GET {pods}/p/exec?command=x"),
            400,
            "Upgrade request required",
        ),
        (
            format!("GET {pods}/p/log?tailLines=7"),
            400,
            "container \"c\" in pod \"p\" is waiting to start: ContainerCreating",
        ),
        (
            format!("GET {pods}/lost/log"),
            500,
            "Get \"https://127.0.0.1:1/containerLogs/default/lost/c\": dial tcp 127.0.0.1:1: connect: connection refused",
        ),
        (
            format!("GET {pods}/p:1/proxy/"),
            503,
            "error trying to reach service: dial tcp 127.0.0.1:1: connect: connection refused",
        ),
        (
            format!("GET {pods}/a:b:c:d/proxy/"),
            400,
            "invalid pod request \"a:b:c:d\"",
        ),
        (
            "GET /api/v1/namespaces/default/services/web:82/proxy/".into(),
            503,
            "no service port 82 found for service \"web\"",
        ),
        (
            "GET /api/v1/namespaces/default/services/web:idle/proxy/".into(),
            503,
            "no endpoints available for service \"web\"",
        ),
    ] {
        let (head, body) = get(&world, &request).await;
        assert_eq!(
            (&head[9..12], body.as_str()),
            (code.to_string().as_str(), message),
            "{request}"
        );
    }
}

#[tokio::test]
async fn proxies_reach_pods_services_and_kubelets_without_the_callers_credentials() {
    let world = world().await;
    let pod = "/api/v1/namespaces/default/pods/p/proxy";
    let (head, body) = get(&world, &format!("DELETE {pod}/a%2Fb/?c=d")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(body, format!("DELETE /a%2Fb/?c=d {pod}/a%2Fb/ 127.0.0.1 -"));
    for name in ["web:http", "web:80", "http:web:http"] {
        let path = format!("/api/v1/namespaces/default/services/{name}/proxy/x");
        assert_eq!(
            get(&world, &format!("GET {path}")).await.1,
            format!("GET /x {path} 127.0.0.1 -")
        );
    }
    assert_eq!(
        get(&world, "GET /api/v1/nodes/n1/proxy/logs/").await.1,
        "kubelet.log"
    );
    let (head, _) = get(&world, &format!("GET {pod}")).await;
    assert!(
        head.starts_with("HTTP/1.1 301 ") && head.contains(&format!("location: {pod}/\r\n")),
        "{head}"
    );
    let (head, _) = get(&world, &format!("GET {pod}/old")).await;
    assert!(
        head.starts_with("HTTP/1.1 302 ") && head.contains(&format!("location: {pod}/new\r\n")),
        "{head}"
    );
}

#[tokio::test]
async fn a_draining_server_ends_its_streams() {
    let world = world().await;
    let mut socket = websocket(
        &world,
        &exec("cat", "stdin=1&stdout=1"),
        "v5.channel.k8s.io",
    )
    .await;
    let path = "GET /api/v1/namespaces/default/pods/p/log?follow=true";
    let (mut stream, _) = send(&world, path, "").await;
    world.drain.cancel();
    while let Some(Ok(_)) = tokio::time::timeout(LIMIT, socket.next()).await.unwrap() {}
    // Without the chunk that would say that this is all.
    let mut lines = String::new();
    let ended = tokio::time::timeout(LIMIT, stream.read_to_string(&mut lines))
        .await
        .unwrap();
    assert!(ended.is_err() || !lines.ends_with("0\r\n\r\n"), "{lines:?}");
}
