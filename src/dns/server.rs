//! The UDP and TCP loops.
//!
//! Answers about the cluster are given in the loop itself, for they need no waiting; only forwarded questions
//! become tasks, of which there is a bounded number.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use crate::datagram::{Datagram, Ends};
use crate::resolver::Resolver;
use crate::wire::{self, Carrier, Reply, Request};

/// Questions of one UDP socket that wait for an upstream resolver.
const UDP_WAITING: usize = 1000;
/// Open TCP connections per listener.
const TCP_CONNECTIONS: usize = 256;
/// A TCP client that asks nothing for this long is let go (RFC 7766 recommends seconds).
const TCP_IDLE: Duration = Duration::from_secs(10);
/// No question is longer: a name has 255 bytes and EDNS options are few.
const QUESTION_BYTES: usize = 4096;
/// Wait after an error of the socket itself, which is then out of memory or descriptors.
const BACK_OFF: Duration = Duration::from_millis(50);

/// One address's sockets.
pub struct Listener {
    udp: Datagram,
    tcp: TcpListener,
}

impl Listener {
    /// Opens both sockets of an address. With port 0 both get the same free port.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let udp = Datagram::bind(address).await?;
        let tcp = TcpListener::bind(udp.local_addr()?).await?;
        Ok(Self { udp, tcp })
    }

    /// The address served.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Serves until dropped.
    pub async fn serve(self, resolver: Arc<Resolver>) {
        tokio::join!(
            serve_udp(Arc::new(self.udp), resolver.clone()),
            serve_tcp(self.tcp, resolver)
        );
    }
}

async fn serve_udp(socket: Arc<Datagram>, resolver: Arc<Resolver>) {
    let mut waiting = JoinSet::new();
    let mut buffer = vec![0; QUESTION_BYTES];
    loop {
        let received = tokio::select! {
            Some(ended) = waiting.join_next(), if !waiting.is_empty() => {
                report(ended);
                continue;
            }
            received = socket.receive(&mut buffer) => received,
        };
        let Ok((count, ends)) = received else {
            tokio::time::sleep(BACK_OFF).await;
            continue;
        };
        let bytes = match wire::read(&buffer[..count]) {
            Request::Drop => continue,
            Request::Reject(bytes) => bytes,
            Request::Ask(ask) => match resolver.local(&ask) {
                Some(reply) => wire::write(&ask, reply, Carrier::Udp),
                None if waiting.len() >= UDP_WAITING => {
                    wire::write(&ask, Reply::bare(ResponseCode::ServFail), Carrier::Udp)
                }
                None => {
                    let (socket, resolver) = (socket.clone(), resolver.clone());
                    waiting.spawn(async move {
                        let reply = resolver.resolve(&ask).await;
                        send(&socket, &wire::write(&ask, reply, Carrier::Udp), ends).await;
                    });
                    continue;
                }
            },
        };
        send(&socket, &bytes, ends).await;
    }
}

async fn send(socket: &Datagram, bytes: &[u8], ends: Ends) {
    if let Err(error) = socket.send(bytes, ends).await {
        tracing::debug!(%error, to = %ends.peer, "sending an answer");
    }
}

async fn serve_tcp(listener: TcpListener, resolver: Arc<Resolver>) {
    let slots = Arc::new(Semaphore::new(TCP_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                report(ended);
                continue;
            }
            accepted = accept(&listener, &slots) => accepted,
        };
        let Ok((stream, slot)) = accepted else {
            tokio::time::sleep(BACK_OFF).await;
            continue;
        };
        let resolver = resolver.clone();
        connections.spawn(async move {
            let _slot = slot;
            if let Err(error) = converse(stream, &resolver).await {
                tracing::debug!(%error, "a TCP client went away");
            }
        });
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = slots
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    Ok((listener.accept().await?.0, slot))
}

async fn converse(mut stream: TcpStream, resolver: &Resolver) -> io::Result<()> {
    loop {
        let question = tokio::time::timeout(TCP_IDLE, read_question(&mut stream)).await??;
        let bytes = match wire::read(&question) {
            // There is no telling what comes next on such a stream.
            Request::Drop => return Ok(()),
            Request::Reject(bytes) => bytes,
            Request::Ask(ask) => {
                let reply = match resolver.local(&ask) {
                    Some(reply) => reply,
                    None => resolver.resolve(&ask).await,
                };
                wire::write(&ask, reply, Carrier::Tcp)
            }
        };
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes(), bytes.as_slice()].concat();
        tokio::time::timeout(TCP_IDLE, stream.write_all(&framed)).await??;
    }
}

async fn read_question(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > QUESTION_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut question = vec![0; length];
    stream.read_exact(&mut question).await?;
    Ok(question)
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "answering a question");
    }
}
