//! Opens the store that an API server keeps its objects in, and puts etcd's API in front of an embedded one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use store::Store;
use store::embedded::{Embedded, EmbeddedOptions, OpenError};
use store::etcd::{ConnectError, Etcd, EtcdOptions};
use store::etcd_api::{self, TlsFiles};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::api::ApiError;

#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    #[error("cannot open the store in {path}")]
    Embedded { path: PathBuf, source: OpenError },
    #[error(transparent)]
    Etcd(#[from] ConnectError),
}

/// Which store.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    Embedded {
        /// Its files.
        directory: PathBuf,
        /// Where etcd's API is served.
        front: Option<EtcdFront>,
    },
    Etcd {
        servers: Vec<String>,
        authority: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    },
}

/// etcd's API in front of the embedded store. Only clients with a certificate of `client_authority` get in.
#[derive(Clone, Debug)]
pub struct EtcdFront {
    pub listen: Vec<SocketAddr>,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_authority: PathBuf,
}

/// A store that is open.
pub struct Opened {
    pub store: Arc<dyn Store>,
    /// What etcd's API is to be served from, and how.
    front: Option<(Arc<Embedded>, EtcdFront)>,
}

pub async fn open(config: StoreConfig) -> Result<Opened, OpenStoreError> {
    match config {
        StoreConfig::Embedded { directory, front } => {
            let store =
                Embedded::open(&directory, EmbeddedOptions::default()).map_err(|source| {
                    OpenStoreError::Embedded {
                        path: directory,
                        source,
                    }
                })?;
            Ok(Opened {
                store: store.clone(),
                front: front.map(|front| (store, front)),
            })
        }
        StoreConfig::Etcd {
            servers,
            authority,
            certificate,
            key,
        } => {
            let options = EtcdOptions {
                endpoints: servers,
                ca: authority,
                cert: certificate,
                key,
            };
            let store = Etcd::connect(options).await?;
            Ok(Opened { store, front: None })
        }
    }
}

impl Opened {
    /// Starts serving etcd's API on each address in `tasks`, until `shutdown`.
    pub fn serve_etcd(
        &self,
        tasks: &mut JoinSet<Result<(), ApiError>>,
        shutdown: &CancellationToken,
    ) {
        let Some((store, front)) = &self.front else {
            return;
        };
        let EtcdFront {
            listen,
            certificate,
            key,
            client_authority,
        } = front;
        for &address in listen {
            let tls = TlsFiles {
                cert: certificate.clone(),
                key: key.clone(),
                client_ca: client_authority.clone(),
            };
            let (store, shutdown) = (Arc::clone(store), shutdown.clone());
            tasks.spawn(
                async move { Ok(etcd_api::serve(store, address, Some(tls), shutdown).await?) },
            );
        }
    }
}
