//! One API server: what its flags say turned into `apiserver::Options`, its listeners, its life.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::store::etcd_api;
use apiserver::options::{KeyPair, Pem, TlsOptions};
use apiserver::server::{ServeError, StartError};
use apiserver::{Body, Options, Server, UserInfo};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::notify;
use super::store::{self, OpenStoreError, StoreConfig};

/// Connections the kernel completes before the server takes them.
const BACKLOG: u32 = 4096;
/// Between two looks at a server that is not ready yet.
const READY_AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    #[error("cannot start the API server: {0}")]
    Start(#[from] StartError),
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("the inherited listening socket cannot be used: {0}")]
    Inherited(std::io::Error),
    #[error("serving ended: {0}")]
    Serve(#[from] ServeError),
    #[error("serving etcd's API ended")]
    Etcd(#[from] etcd_api::ServeError),
    #[error("a listener's task failed: {0}")]
    Join(#[from] tokio::task::JoinError),
}

/// What an API server is started with. `adjust` is for everything that only `apiserver` knows the meaning of.
pub struct ApiConfig {
    pub store: StoreConfig,
    pub bind: SocketAddr,
    /// A socket that another process opened, served like the one on `bind`.
    pub inherited: Option<std::net::TcpListener>,
    /// `None`: the address other machines reach this one by.
    pub advertise: Option<IpAddr>,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_authority: Option<PathBuf>,
    pub adjust: Box<dyn FnOnce(&mut Options) + Send>,
}

/// A server that runs, and the tasks that serve it.
pub struct Running {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    serving: JoinSet<Result<(), ApiError>>,
    /// Ends etcd's API, last of all.
    etcd_shutdown: CancellationToken,
}

pub async fn start(config: ApiConfig) -> Result<Running, ApiError> {
    let ApiConfig {
        store,
        bind,
        inherited,
        advertise,
        certificate,
        key,
        client_authority,
        adjust,
    } = config;
    let listener = listen(bind)?;
    let address = listener.local_addr().map_err(ApiError::Inherited)?;
    let opened = store::open(store).await?;
    let mut options = Options::new(opened.store.clone());
    options.tls = Some(TlsOptions {
        serving: key_pair(&certificate, &key),
        client_ca: client_authority.map(Pem::File),
    });
    options.advertise_address = advertise.unwrap_or_else(|| advertised(bind.ip()));
    options.advertise_port = address.port();
    options.identity = identity();
    adjust(&mut options);
    let server = Server::start(options).await?;
    let mut listeners = vec![listener];
    if let Some(inherited) = inherited {
        inherited
            .set_nonblocking(true)
            .map_err(ApiError::Inherited)?;
        listeners.push(TcpListener::from_std(inherited).map_err(ApiError::Inherited)?);
    }
    let mut serving = JoinSet::new();
    let etcd_shutdown = CancellationToken::new();
    opened.serve_etcd(&mut serving, &etcd_shutdown);
    for listener in listeners {
        let server = Arc::clone(&server);
        serving.spawn(async move { Ok(server.serve(listener).await?) });
    }
    Ok(Running {
        server,
        address,
        serving,
        etcd_shutdown,
    })
}

impl Running {
    /// Waits until `/readyz` is well.
    pub async fn wait_ready(&self) {
        let user = Arc::new(UserInfo::new("system:skiff", [UserInfo::MASTERS]));
        loop {
            // Every failed check is logged, and until the caches are filled they all fail.
            if !self.server.backend().is_synced() {
                sleep(READY_AGAIN).await;
                continue;
            }
            let request = http::Request::new(Body::empty());
            let (mut parts, body) = request.into_parts();
            parts.uri = http::Uri::from_static("/readyz");
            let response = self
                .server
                .handle(&user, http::Request::from_parts(parts, body))
                .await;
            if response.status().is_success() {
                return;
            }
            sleep(READY_AGAIN).await;
        }
    }

    /// Serves until `shutdown`, then drains. An early end of a listener is an error.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), ApiError> {
        let ended = tokio::select! {
            ended = self.serving.join_next() => ended,
            () = shutdown.cancelled() => None,
        };
        self.server.shutdown().await;
        self.etcd_shutdown.cancel();
        match ended {
            Some(ended) => Ok(ended??),
            None => Ok(()),
        }
    }
}

/// Runs an API server alone, as `kube-apiserver` does.
pub async fn run(config: ApiConfig, shutdown: CancellationToken) -> Result<(), ApiError> {
    let running = start(config).await?;
    let ready = async {
        running.wait_ready().await;
        notify::ready();
        tracing::info!(address = %running.address, "The API server is ready");
    };
    tokio::select! {
        () = ready => {}
        () = shutdown.cancelled() => {}
    }
    running.run(shutdown).await
}

pub fn key_pair(certificate: &Path, key: &Path) -> KeyPair {
    KeyPair {
        certificate: Pem::File(certificate.into()),
        key: Pem::File(key.into()),
    }
}

/// The unspecified IPv4 address takes IPv6 connections too, as Go's listeners do.
fn listen(address: SocketAddr) -> Result<TcpListener, ApiError> {
    let failed = |source| ApiError::Listen { address, source };
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        && let Ok(listener) = listen_on(both)
    {
        return Ok(listener);
    }
    listen_on(address).map_err(failed)
}

fn listen_on(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The address that a server bound to `bind` is reached by from outside. Endpoints may not be on the loopback address.
pub fn advertised(bind: IpAddr) -> IpAddr {
    if !bind.is_unspecified() && !bind.is_loopback() {
        return bind;
    }
    // No packet is sent: connecting a datagram socket only chooses the route, and with it the source. The
    // destination is reserved for documentation (RFC 5737).
    let chosen = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    chosen.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

fn identity() -> String {
    let host = crate::process::host_name();
    format!("{host}-{}", std::process::id())
}
