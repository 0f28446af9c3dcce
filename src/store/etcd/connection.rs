//! Channels to the members of an etcd cluster: which one to use, how long to wait, when to try again.

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Response, Status};

use super::EtcdOptions;
use crate::generated::etcdserverpb as pb;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one request may take. A list of 45 MB takes an etcd about half a second.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// While there is a watch, a silent connection is probed; etcd allows it every five seconds.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Flow control: how much a member may send before it is read.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Why there is nothing to connect to.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no etcd endpoint is given")]
    NoEndpoint,
    #[error("{endpoint} is not an etcd endpoint")]
    Endpoint {
        endpoint: String,
        source: tonic::transport::Error,
    },
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("a client certificate needs its key, and a key its certificate")]
    Identity,
}

/// When a request that failed may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Doing it twice is doing it once.
    Always,
    /// Only when it never left this machine.
    Unsent,
}

#[derive(Debug)]
pub(super) struct Connection {
    members: Vec<Member>,
    /// The member in use: the last one that answered.
    current: AtomicUsize,
    /// The newest revision any answer told of.
    seen: AtomicI64,
}

/// The services of one member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    channel: Channel,
    name: String,
}

impl Member {
    pub fn kv(&self) -> pb::kv_client::KvClient<Channel> {
        pb::kv_client::KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub fn watch(&self) -> pb::watch_client::WatchClient<Channel> {
        pb::watch_client::WatchClient::new(self.channel.clone())
            .max_decoding_message_size(usize::MAX)
    }

    pub fn lease(&self) -> pb::lease_client::LeaseClient<Channel> {
        pb::lease_client::LeaseClient::new(self.channel.clone())
    }

    pub fn maintenance(&self) -> pb::maintenance_client::MaintenanceClient<Channel> {
        pb::maintenance_client::MaintenanceClient::new(self.channel.clone())
    }
}

impl Connection {
    pub async fn new(options: EtcdOptions) -> Result<Self, ConnectError> {
        let EtcdOptions {
            endpoints,
            ca,
            cert,
            key,
        } = options;
        let tls = tls(ca, cert, key).await?;
        let members = endpoints
            .into_iter()
            .map(|name| {
                let channel =
                    channel(&name, tls.as_ref()).map_err(|source| ConnectError::Endpoint {
                        endpoint: name.clone(),
                        source,
                    })?;
                Ok(Member { channel, name })
            })
            .collect::<Result<Vec<_>, ConnectError>>()?;
        if members.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        Ok(Self {
            members,
            current: AtomicUsize::new(0),
            seen: AtomicI64::new(0),
        })
    }

    /// The member to use, and its number for `avoid`.
    pub fn member(&self) -> (usize, &Member) {
        let number = self.current.load(Ordering::Relaxed) % self.members.len();
        (number, &self.members[number])
    }

    /// Uses another member from now on, unless somebody else has switched already.
    pub fn avoid(&self, number: usize) {
        let next = (number + 1) % self.members.len();
        let switched =
            self.current
                .compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
        if switched.is_ok() && next != number {
            let (from, to) = (&self.members[number].name, &self.members[next].name);
            tracing::info!(from, to, "using another etcd member");
        }
    }

    pub fn saw(&self, header: Option<&pb::ResponseHeader>) {
        if let Some(header) = header {
            self.seen.fetch_max(header.revision, Ordering::Relaxed);
        }
    }

    pub fn seen(&self) -> i64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Makes a request, on another member if one cannot be reached and the request may be repeated.
    pub async fn call<T, F>(&self, retry: Retry, request: impl Fn(Member) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        // A lone member is tried twice too: its connection may have been a stale one.
        let mut left = self.members.len().max(2);
        let deadline = tokio::time::Instant::now() + REQUEST_TIMEOUT;
        loop {
            left -= 1;
            let (number, member) = self.member();
            let answer = tokio::time::timeout_at(deadline, request(member.clone()));
            let status = match answer.await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => {
                    self.avoid(number);
                    return Err(Status::unavailable("etcd did not answer in time"));
                }
            };
            let unsent = is_unsent(&status);
            if !unsent && !is_lost(&status) {
                return Err(status);
            }
            self.avoid(number);
            if left == 0 || retry == Retry::Unsent && !unsent {
                return Err(status);
            }
        }
    }
}

/// The connection could not be made, so the member has seen nothing.
fn is_unsent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The answer is not the member's, or says that the member cannot serve.
pub(super) fn is_lost(status: &Status) -> bool {
    status.source().is_some() || status.code() == tonic::Code::Unavailable
}

async fn tls(
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<ClientTlsConfig>, ConnectError> {
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity::from_pem(read(&cert).await?, read(&key).await?)),
        (None, None) => None,
        _ => return Err(ConnectError::Identity),
    };
    let Some(ca) = ca else {
        return Ok(None);
    };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&ca).await?));
    Ok(Some(match identity {
        Some(identity) => tls.identity(identity),
        None => tls,
    }))
}

async fn read(path: &Path) -> Result<Vec<u8>, ConnectError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| ConnectError::Read {
            path: path.to_owned(),
            source,
        })
}

fn channel(name: &str, tls: Option<&ClientTlsConfig>) -> Result<Channel, tonic::transport::Error> {
    let url = match (name.contains("://"), tls) {
        (true, _) => name.to_owned(),
        (false, Some(_)) => format!("https://{name}"),
        (false, None) => format!("http://{name}"),
    };
    let is_tls = url.starts_with("https:");
    let endpoint = Endpoint::from_shared(url)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PROBE_INTERVAL)
        .keep_alive_timeout(PROBE_TIMEOUT)
        .keep_alive_while_idle(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let endpoint = match tls.filter(|_| is_tls) {
        Some(tls) => endpoint.tls_config(tls.clone())?,
        None => endpoint,
    };
    Ok(endpoint.connect_lazy())
}
