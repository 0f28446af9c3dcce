//! `skiff server`: API server, scheduler and controllers in one process, on a folder of their own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use apiserver::options::Pem;
use apiserver::{Options, Server};
use controllers::ControllersConfig;
use scheduler::SchedulerConfig;
use tokio_util::sync::CancellationToken;

use super::api::{self, ApiConfig, ApiError, key_pair};
use super::inprocess::InProcess;
use super::notify;
use super::parts::Parts;
use super::store::{EtcdFront, StoreConfig};
use crate::files::{self, FileError};
use crate::kubeconfig::{self, Entry};
use crate::pki::{self, Hosts, Pki, PkiError};

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
    #[error("{part} ended: {reason}")]
    Ended { part: &'static str, reason: String },
}

/// Where a server keeps its objects.
#[derive(Clone, Debug)]
pub enum ServerStore {
    /// In its folder, with etcd's API on these addresses.
    Embedded { etcd_listen: Vec<SocketAddr> },
    /// In real etcd.
    Etcd {
        servers: Vec<String>,
        authority: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    },
}

/// What `skiff server` is started with.
pub struct ServerConfig {
    /// Certificates, kubeconfig and objects.
    pub directory: PathBuf,
    /// Where the API server listens; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    pub advertise: Option<IpAddr>,
    /// More names or addresses of the machine, for the certificate.
    pub names: Vec<String>,
    pub store: ServerStore,
    /// `None` runs none.
    pub scheduler: Option<SchedulerConfig>,
    /// `None` runs none.
    pub controllers: Option<ControllersConfig>,
    pub adjust: Box<dyn FnOnce(&mut Options) + Send>,
}

/// Runs until `shutdown`, or until a part ends.
pub async fn run(config: ServerConfig, shutdown: CancellationToken) -> Result<(), ServerError> {
    let ServerConfig {
        directory,
        bind,
        advertise,
        names,
        store,
        scheduler,
        controllers,
        adjust,
    } = config;
    files::create_directory(&directory, 0o755)?;
    let pki = pki::ensure(&directory.join("pki"), &hosts(bind, advertise, names))?;
    let store = store_config(&directory, &pki, store);
    let parts = [
        ("controller-manager", controllers.is_some()),
        ("scheduler", scheduler.is_some()),
    ];
    let parts = parts.into_iter().filter(|(_, runs)| *runs);
    let in_process = parts.map(|(name, _)| name).collect();
    let adjust = adjust_options(&pki, in_process, adjust);
    let api = ApiConfig {
        store,
        bind,
        inherited: None,
        advertise,
        certificate: pki.certificate("apiserver"),
        key: pki.key("apiserver"),
        client_authority: Some(pki.certificate("ca")),
        adjust,
    };
    let running = api::start(api).await?;
    write_kubeconfig(&directory, &pki, running.address)?;

    // What is asked before the caches are filled and the roles exist is only refused.
    let ready = tokio::select! {
        () = running.wait_ready() => true,
        () = shutdown.cancelled() => false,
    };
    let parts_shutdown = CancellationToken::new();
    let mut parts = Parts::new().map_err(ServerError::Threads)?;
    if ready {
        start_parts(
            &running.server,
            &pki,
            scheduler,
            controllers,
            &parts_shutdown,
            &mut parts,
        );
        notify::ready();
        tracing::info!(address = %running.address, "The control plane is ready");
    }
    let stop = CancellationToken::new();
    let serving = running.run(stop.clone());
    tokio::pin!(serving);
    let outcome = tokio::select! {
        served = &mut serving => return Ok(served?),
        ended = parts.ended() => Err(ended),
        () = shutdown.cancelled() => Ok(()),
    };
    // Components first: the leases they hold are given back through the server.
    parts_shutdown.cancel();
    parts.join().await;
    stop.cancel();
    serving.await?;
    outcome
}

fn start_parts(
    server: &Arc<Server>,
    pki: &Pki,
    scheduler: Option<SchedulerConfig>,
    controllers: Option<ControllersConfig>,
    shutdown: &CancellationToken,
    parts: &mut Parts,
) {
    if let Some(config) = scheduler {
        let counted = config.metrics.clone();
        server.add_metrics(Box::new(move |text| counted.write(text)));
        let client = InProcess::client(server, "system:kube-scheduler", &[])
            .with_user_agent("kube-scheduler");
        let shutdown = shutdown.clone();
        parts.start("scheduler", scheduler::run(client, config, shutdown));
    }
    // The process's clients and work queues are these parts'.
    server.add_metrics(Box::new(client::metrics::write));
    if let Some(mut config) = controllers {
        config.root_ca = std::fs::read_to_string(pki.certificate("ca")).ok();
        let signing_key = std::fs::read_to_string(pki.key("ca")).ok();
        config.cluster_signing = config.root_ca.clone().zip(signing_key);
        let user = "system:kube-controller-manager";
        let client = InProcess::client(server, user, &["system:masters"])
            .with_user_agent("kube-controller-manager");
        let shutdown = shutdown.clone();
        parts.start("controllers", controllers::run(client, config, shutdown));
    }
}

fn hosts(bind: SocketAddr, advertise: Option<IpAddr>, names: Vec<String>) -> Hosts {
    let node = crate::process::host_name();
    let mut addresses = vec![advertise.unwrap_or_else(|| api::advertised(bind.ip()))];
    if !bind.ip().is_unspecified() {
        addresses.push(bind.ip());
    }
    Hosts {
        node: node.to_ascii_lowercase(),
        addresses,
        service_address: Some(crate::local::state::KUBERNETES_SERVICE.into()),
        extra: names,
    }
}

fn store_config(directory: &std::path::Path, pki: &Pki, store: ServerStore) -> StoreConfig {
    match store {
        ServerStore::Embedded { etcd_listen } => StoreConfig::Embedded {
            directory: directory.join("store"),
            front: (!etcd_listen.is_empty()).then(|| EtcdFront {
                listen: etcd_listen,
                certificate: pki.certificate("etcd/server"),
                key: pki.key("etcd/server"),
                client_authority: pki.certificate("etcd/ca"),
            }),
        },
        ServerStore::Etcd {
            servers,
            authority,
            certificate,
            key,
        } => StoreConfig::Etcd {
            servers,
            authority,
            certificate,
            key,
        },
    }
}

fn adjust_options(
    pki: &Pki,
    in_process: Vec<&'static str>,
    more: Box<dyn FnOnce(&mut Options) + Send>,
) -> Box<dyn FnOnce(&mut Options) + Send> {
    let pki = pki.clone();
    Box::new(move |options| {
        options.service_accounts.signing_key = Some(Pem::File(pki.service_account_key()));
        options.service_accounts.keys = vec![Pem::File(pki.service_account_public_key())];
        options.kubelet_client.identity = Some(key_pair(
            &pki.certificate("apiserver-kubelet-client"),
            &pki.key("apiserver-kubelet-client"),
        ));
        options.kubelet_client.ca = Some(Pem::File(pki.certificate("ca")));
        options.request_header.client_ca = Some(Pem::File(pki.certificate("front-proxy-ca")));
        options.request_header.allowed_names = vec!["front-proxy-client".into()];
        options.request_header.username_headers = vec!["X-Remote-User".into()];
        options.request_header.group_headers = vec!["X-Remote-Group".into()];
        options.request_header.extra_header_prefixes = vec!["X-Remote-Extra-".into()];
        options.in_process = in_process;
        // As kubeadm starts an API server. Switching it off is still heard.
        options.admission.enable.push("NodeRestriction".into());
        more(options);
    })
}

fn write_kubeconfig(
    directory: &std::path::Path,
    pki: &Pki,
    address: SocketAddr,
) -> Result<(), FileError> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|source| FileError::new("read", &path, source))
    };
    let host = if address.ip().is_unspecified() {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        address.ip()
    };
    let entry = Entry {
        name: "skiff".into(),
        server: format!("https://{}", SocketAddr::new(host, address.port())),
        authority: read(pki.certificate("ca"))?,
        certificate: read(pki.certificate("admin"))?,
        key: read(pki.key("admin"))?,
    };
    kubeconfig::write(&directory.join("admin.kubeconfig"), &entry)?;
    Ok(())
}
