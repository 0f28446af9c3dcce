//! Volumes: one file per kind and one line per kind in [`VOLUMES`]. A kind makes
//! a folder on the node that holds what the pod asked for, and does so again
//! whenever that may have changed: setting up is idempotent.
//!
//! **Invariant:** nothing here is kept in memory; what a pod's volumes are is
//! read off its spec and the disk, so a restarted kubelet goes on.

pub mod atomic;
mod claim;
mod config_map;
mod downward;
mod empty_dir;
mod host_path;
pub mod mounts;
pub mod ownership;
mod payload;
mod projected;
mod secret;
pub mod subpath;
pub mod tmpfs;
pub mod tokens;

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;

use crate::create::fields::{Addresses, FieldError};
use crate::k8s::{Node, Pod, Volume};
use crate::objects::{NotSynced, Objects};
use crate::paths::PodPaths;
use crate::pod::spec;
use crate::pod::view::Nanos;
use tokens::Tokens;

/// Every kind of volume there is.
pub static VOLUMES: &[&dyn VolumeKind] = &[
    &empty_dir::EmptyDir,
    &host_path::HostPath,
    &config_map::ConfigMapVolume,
    &secret::SecretVolume,
    &downward::DownwardApi,
    &projected::Projected,
    &claim::Claim,
];

/// What a volume is made with.
pub struct Context<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its folders.
    pub paths: &'a PodPaths,
    /// Its node.
    pub node: &'a Node,
    /// Addresses of node and pod.
    pub addresses: Addresses<'a>,
    /// ConfigMaps and Secrets.
    pub objects: &'a Objects,
    /// Service account tokens.
    pub tokens: &'a Tokens,
}

/// A kind of volume.
#[async_trait]
pub trait VolumeKind: Send + Sync {
    /// Upstream's plugin name without `kubernetes.io/`.
    fn plugin(&self) -> &'static str;

    /// Whether the volume is of this kind.
    fn handles(&self, volume: &Volume) -> bool;

    /// Makes the volume, or brings it up to date.
    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError>;
}

/// A volume that can be mounted into containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Where it is on the node.
    pub path: PathBuf,
    /// When it must be set up again, such as for a token that expires.
    pub refresh_at: Option<Nanos>,
    /// Its content is only the kubelet's to write.
    pub read_only: bool,
}

/// Why a volume cannot be made. The text follows `MountVolume.SetUp failed for
/// volume "x" : ` in an event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A ConfigMap or Secret that is not there.
    #[error("{kind} {name:?} not found")]
    Missing {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A key that the object does not have.
    #[error("references non-existent {kind} key: {key}")]
    Key {
        /// `config` or `secret`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// A path that would leave the volume.
    #[error("invalid path, must not contain '..' or be absolute: {0}")]
    Path(String),
    /// A claim that cannot be used.
    #[error("error processing PVC {name}: {problem}")]
    Claim {
        /// `namespace/name`.
        name: String,
        /// Why.
        problem: String,
    },
    /// An object could not be read in time.
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    /// A field of the pod.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The API server gave no token.
    #[error("failed to fetch token: {0}")]
    Token(#[from] client::ClientError),
    /// What a host path must be.
    #[error("hostPath type check failed: {path} {problem}")]
    HostPathType {
        /// The path.
        path: String,
        /// `is not a directory`.
        problem: &'static str,
    },
    /// The file system said no.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A kind, or a variety of one, that this kubelet does not have.
    #[error("no volume plugin matched: {0}")]
    Unsupported(String),
}

impl VolumeError {
    /// For `map_err` on file system calls.
    pub fn io<'a>(
        action: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::Io {
            action,
            path: path.display().to_string(),
            source,
        }
    }
}

/// Sets up every volume that a container of the pod mounts; answers them by
/// name, and the first failure with the name of its volume.
pub async fn set_up_all(
    cx: &Context<'_>,
) -> Result<BTreeMap<String, Ready>, (String, VolumeError)> {
    let spec = spec::spec(cx.pod);
    let mut ready = BTreeMap::new();
    for volume in spec.volumes.iter().flatten() {
        let failed = |error| (volume.name.clone(), error);
        let kind = kind_of(volume).ok_or_else(|| {
            failed(VolumeError::Unsupported(format!(
                "volume {:?} has no supported source",
                volume.name
            )))
        })?;
        ready.insert(
            volume.name.clone(),
            kind.set_up(cx, volume).await.map_err(failed)?,
        );
    }
    Ok(ready)
}

fn kind_of(volume: &Volume) -> Option<&'static dyn VolumeKind> {
    VOLUMES.iter().find(|kind| kind.handles(volume)).copied()
}

/// Unmounts and removes everything of a pod that is gone, mounts first.
pub fn tear_down(paths: &PodPaths) -> Result<(), VolumeError> {
    let root = paths.root();
    tmpfs::unmount_below(root)?;
    match std::fs::remove_dir_all(root) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(VolumeError::io("remove", root)(error))
        }
        _ => Ok(()),
    }
}

/// Unmounts and removes the volumes of a pod that has ended but still exists:
/// the rest of its folder, and what it wrote to disk, stays until it is deleted.
pub fn release(paths: &PodPaths) -> Result<(), VolumeError> {
    for folder in [paths.subpaths(), paths.volumes()] {
        tmpfs::unmount_below(&folder)?;
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(VolumeError::io("remove", &folder)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
