//! The server over real sockets, with an upstream resolver of the test's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

use crate::forward::Upstream;
use crate::resolver::Resolver;
use crate::server::Listener;
use crate::zone::Zone;

struct Running {
    address: SocketAddr,
    upstream_questions: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// `big.*` is truncated over UDP, `mute.*` never answered, everything else is 192.0.2.7.
async fn upstream(questions: Arc<AtomicUsize>, tasks: &mut JoinSet<()>) -> SocketAddr {
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = udp.local_addr().unwrap();
    let tcp = TcpListener::bind(address).await.unwrap();
    let respond = |bytes: &[u8], over_udp: bool| {
        let mut message = Message::from_vec(bytes).unwrap();
        let name = message.queries[0].name().clone();
        message.metadata.message_type = MessageType::Response;
        message.edns = None;
        let first = name.to_ascii();
        if first.starts_with("mute.") {
            return None;
        }
        if first.starts_with("big.") && over_udp {
            message.metadata.truncation = true;
        } else {
            let record = Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::new(192, 0, 2, 7))));
            message.answers = vec![record];
        }
        Some(message.to_vec().unwrap())
    };
    tasks.spawn(async move {
        let mut buffer = [0; 1500];
        loop {
            let (count, from) = udp.recv_from(&mut buffer).await.unwrap();
            questions.fetch_add(1, Ordering::SeqCst);
            if let Some(bytes) = respond(&buffer[..count], true) {
                // First a forged one, whose id is wrong.
                let mut forged = bytes.clone();
                forged[0] ^= 0xff;
                udp.send_to(&forged, from).await.unwrap();
                udp.send_to(&bytes, from).await.unwrap();
            }
        }
    });
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let mut question = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut question).await.unwrap();
            let bytes = respond(&question, false).unwrap();
            stream.write_u16(bytes.len() as u16).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
        }
    });
    address
}

async fn start() -> Running {
    let mut tasks = JoinSet::new();
    let upstream_questions = Arc::new(AtomicUsize::new(0));
    let upstream = upstream(upstream_questions.clone(), &mut tasks).await;
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into())
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let zone = Zone::new("cluster.local", 5, 1).unwrap();
    let cluster = Arc::new(crate::zone_test::fixture());
    let resolver = Resolver::new(zone, cluster, Upstream::new(vec![upstream]));
    tasks.spawn(listener.serve(Arc::new(resolver)));
    Running {
        address,
        upstream_questions,
        _tasks: tasks,
    }
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(42, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

async fn udp(server: SocketAddr, bytes: &[u8]) -> Option<Message> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(bytes, server).await.unwrap();
    let mut buffer = [0; 4096];
    let received = tokio::time::timeout(Duration::from_secs(8), socket.recv(&mut buffer)).await;
    Some(Message::from_vec(&buffer[..received.ok()?.unwrap()]).unwrap())
}

async fn tcp(stream: &mut TcpStream, bytes: &[u8]) -> Message {
    stream.write_u16(bytes.len() as u16).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    Message::from_vec(&answer).unwrap()
}

fn data(message: &Message) -> Vec<String> {
    message.answers.iter().map(|r| r.data.to_string()).collect()
}

#[tokio::test]
async fn cluster_names_are_answered_with_authority_over_udp_and_tcp() {
    let server = start().await;
    let web = question("web.default.svc.cluster.local.", RecordType::A);
    let answer = udp(server.address, &web).await.unwrap();
    assert_eq!(data(&answer), ["10.96.0.7"]);
    assert!(answer.metadata.authoritative && answer.metadata.id == 42);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        assert_eq!(data(&tcp(&mut stream, &web).await), ["10.96.0.7"]);
    }
    assert_eq!(server.upstream_questions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_answer_too_long_for_udp_is_whole_over_tcp() {
    let server = start().await;
    let many = question("many.default.svc.cluster.local.", RecordType::A);
    let cut = udp(server.address, &many).await.unwrap();
    assert!(cut.metadata.truncation && !cut.answers.is_empty() && cut.answers.len() < 100);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(tcp(&mut stream, &many).await.answers.len(), 100);
}

#[tokio::test]
async fn other_names_are_forwarded_and_cached() {
    let server = start().await;
    let asked = || server.upstream_questions.load(Ordering::SeqCst);
    // A slow machine may need a second attempt for the first answer; the next come from the cache.
    let mut first = 0;
    for _ in 0..3 {
        let answer = udp(server.address, &question("www.example.org.", RecordType::A))
            .await
            .unwrap();
        assert_eq!(data(&answer), ["192.0.2.7"]);
        assert!(!answer.metadata.authoritative);
        first = if first == 0 { asked() } else { first };
    }
    assert_eq!(asked(), first);
    let big = udp(server.address, &question("big.example.org.", RecordType::A))
        .await
        .unwrap();
    assert_eq!(data(&big), ["192.0.2.7"]);
}

#[tokio::test]
async fn aliases_are_followed_inside_and_outside_but_not_for_ever() {
    let server = start().await;
    let ask = async |name: &str| {
        let name = format!("{name}.default.svc.cluster.local.");
        udp(server.address, &question(&name, RecordType::A))
            .await
            .unwrap()
    };
    assert_eq!(data(&ask("ext").await), ["example.org.", "192.0.2.7"]);
    assert_eq!(
        data(&ask("inner").await),
        ["web.default.svc.cluster.local.", "10.96.0.7"]
    );
    assert_eq!(
        ask("loop").await.metadata.response_code,
        ResponseCode::ServFail
    );
}

#[tokio::test]
async fn a_mute_resolver_is_given_up_and_holds_up_nobody() {
    let server = start().await;
    let mute = question("mute.example.org.", RecordType::A);
    let web = question("web.default.svc.cluster.local.", RecordType::A);
    let quick = async {
        let started = std::time::Instant::now();
        udp(server.address, &web).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1));
    };
    let (answer, ()) = tokio::join!(udp(server.address, &mute), quick);
    assert_eq!(
        answer.unwrap().metadata.response_code,
        ResponseCode::ServFail
    );
}

#[tokio::test]
async fn noise_is_survived() {
    let server = start().await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for noise in [
        &b""[..],
        b"x",
        &[0xff; 600],
        &[0; 12],
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        socket.send_to(noise, server.address).await.unwrap();
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(noise).await.unwrap();
    }
    let web = question("web.default.svc.cluster.local.", RecordType::A);
    assert_eq!(
        data(&udp(server.address, &web).await.unwrap()),
        ["10.96.0.7"]
    );
}
