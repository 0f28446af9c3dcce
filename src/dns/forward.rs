//! Asks the node's resolvers about names that are not the cluster's.
//!
//! Owns the upstream addresses, the time limits, and the bound on questions in flight. Each question has its own
//! socket, and with it its own random port and id, so that an answer cannot be guessed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, ResponseCode};
use parking_lot::Mutex;
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::cache::{Cache, Key};
use crate::wire::{Ask, Reply};

/// Questions in flight at once (CoreDNS' `max_concurrent 1000` of kubeadm's configuration).
const IN_FLIGHT: usize = 1000;
/// Resolvers read from the file; upstream's `forward` takes as many.
const RESOLVERS: usize = 15;
/// Resolvers asked for one question.
const ATTEMPTS: usize = 3;
/// One resolver has this long; three of them take less than the 5 s that a client's libc waits.
const ATTEMPT_TIME: Duration = Duration::from_millis(1500);
const DNS_PORT: u16 = 53;
const PAYLOAD: u16 = 1232;

/// The upstream resolvers.
pub struct Upstream {
    resolvers: Vec<SocketAddr>,
    slots: Semaphore,
    cache: Mutex<Cache>,
}

#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Encode(#[from] hickory_proto::ProtoError),
}

impl Upstream {
    /// Resolvers to ask; none answers everything with SERVFAIL.
    pub fn new(resolvers: Vec<SocketAddr>) -> Self {
        Self {
            resolvers,
            slots: Semaphore::new(IN_FLIGHT),
            cache: Mutex::default(),
        }
    }

    /// Reads the `nameserver` lines of a resolv.conf, leaving out `own` addresses: asking oneself never ends.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn from_resolv_conf(path: &Path, own: &[SocketAddr]) -> std::io::Result<Self> {
        Ok(Self::new(name_servers(
            &std::fs::read_to_string(path)?,
            own,
        )))
    }

    pub(crate) fn cached(&self, ask: &Ask) -> Option<Reply> {
        self.cache.lock().get(&key(ask), Instant::now())
    }

    pub(crate) async fn ask(&self, ask: &Ask) -> Reply {
        if let Some(reply) = self.cached(ask) {
            return reply;
        }
        let Ok(_slot) = self.slots.try_acquire() else {
            return Reply::bare(ResponseCode::ServFail);
        };
        let mut resolvers = self.resolvers.clone();
        resolvers.shuffle(&mut rand::rng());
        // With few resolvers the same one is asked again: a lost packet is the likeliest reason.
        for resolver in resolvers
            .iter()
            .cycle()
            .take(ATTEMPTS.min(resolvers.len() * 2))
        {
            match tokio::time::timeout(ATTEMPT_TIME, attempt(*resolver, ask)).await {
                Ok(Ok(message)) => {
                    let reply = Reply {
                        code: message.metadata.response_code,
                        authoritative: false,
                        answers: message.answers,
                        authorities: message.authorities,
                        additionals: message.additionals,
                    };
                    self.cache.lock().put(key(ask), &reply, Instant::now());
                    return reply;
                }
                Ok(Err(error)) => tracing::debug!(%resolver, %error, "asking upstream"),
                Err(_) => {
                    tracing::debug!(%resolver, error = %AttemptError::Timeout, "asking upstream")
                }
            }
        }
        Reply::bare(ResponseCode::ServFail)
    }
}

fn key(ask: &Ask) -> Key {
    Key {
        name: ask.query.name().to_lowercase(),
        kind: ask.query.query_type(),
        dnssec_ok: ask.dnssec_ok,
        checking_disabled: ask.checking_disabled,
    }
}

fn name_servers(text: &str, own: &[SocketAddr]) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            // A scope such as %eth0 is not kept: std parses none, and a cluster's resolver is no link-local one.
            (words.next()? == "nameserver").then(|| words.next()?.parse::<IpAddr>().ok())?
        })
        .map(|ip| SocketAddr::new(ip, DNS_PORT))
        .filter(|address| !own.contains(address))
        .take(RESOLVERS)
        .collect()
}

async fn attempt(resolver: SocketAddr, ask: &Ask) -> Result<Message, AttemptError> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.metadata.checking_disabled = ask.checking_disabled;
    question.add_query(ask.query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD).set_dnssec_ok(ask.dnssec_ok);
    question.set_edns(edns);
    let bytes = question.to_vec()?;
    let answer = over_udp(resolver, &question, &bytes).await?;
    if answer.metadata.truncation {
        over_tcp(resolver, &question, &bytes).await
    } else {
        Ok(answer)
    }
}

async fn over_udp(
    resolver: SocketAddr,
    question: &Message,
    bytes: &[u8],
) -> Result<Message, AttemptError> {
    let any: IpAddr = if resolver.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; usize::from(PAYLOAD)];
    loop {
        let count = socket.recv(&mut buffer).await?;
        // What does not fit the question is a late or a forged answer: wait on. The caller limits the time.
        if let Some(message) = matching(question, &buffer[..count]) {
            return Ok(message);
        }
    }
}

async fn over_tcp(
    resolver: SocketAddr,
    question: &Message,
    bytes: &[u8],
) -> Result<Message, AttemptError> {
    let mut stream = TcpStream::connect(resolver).await?;
    let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), bytes].concat())
        .await?;
    let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut buffer).await?;
    matching(question, &buffer)
        .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData).into())
}

fn matching(question: &Message, bytes: &[u8]) -> Option<Message> {
    let message = Message::from_vec(bytes).ok()?;
    let fits = message.metadata.id == question.metadata.id
        && message.metadata.message_type == MessageType::Response
        && message.queries == question.queries;
    fits.then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_and_the_server_itself_is_left_out() {
        let text = "# comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 # x\n\
                    nameserver 10.96.0.10\nnameserver nonsense\noptions ndots:5\n nameserver 192.0.2.3";
        let got: Vec<_> = name_servers(text, &["10.96.0.10:53".parse().unwrap()])
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(got, ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.3:53"]);
        assert_eq!(
            name_servers(&"nameserver 192.0.2.1\n".repeat(50), &[]).len(),
            RESOLVERS
        );
    }
}
