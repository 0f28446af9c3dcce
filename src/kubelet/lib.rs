//! The kubelet: registers its node and makes the containers of its pods run.
//!
//! ```text
//!   API ──pods of the node──▶ pods ──▶ one pod::worker per pod ──CRI──▶ runtime
//!    ▲                                  │ stage, plan, status          │
//!    ├──────────── status, events ──────┘                              │
//!    ├── node (status, lease)          ▲────── pleg: what changed ─────┘
//!    └── objects: ConfigMaps and Secrets that the pods refer to
//! ```
//!
//! Read `pod::stage`, then `pod::plan`, then `pod::worker`.
//!
//! **Invariant:** everything a kubelet needs to go on is in the API, in the
//! runtime and on disk; killing it at any moment loses nothing.

mod board;
mod cgroup;
mod clock;
mod config;
mod create;
pub mod cri;
#[cfg(test)]
mod cri_tests;
mod file_watch;
mod handlers;
mod housekeeping;
mod images;
mod k8s;
mod net;
mod node;
mod objects;
mod patch;
mod paths;
mod pleg;
mod pod;
mod pods;
mod probes;
mod resources;
mod server;
mod static_pods;
mod text;
mod volumes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use client::events::{Recorder, Source};
use client::informer::{Factory, InformerEnded, Selectors};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use config::{KUBELET_VERSION, KubeletConfig, Taint};
use cri::Runtime;
use k8s::{Pod, Service};
use pod::shared::Shared;

/// How soon a runtime that does not answer is asked again.
const RUNTIME_RETRY: Duration = Duration::from_millis(100);

/// Why a kubelet ended before its shutdown.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A folder it needs cannot be made.
    #[error("cannot create {path}: {source}")]
    Folder {
        /// Which one.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A watch of the API ended.
    #[error(transparent)]
    Informer(#[from] InformerEnded),
}

/// Runs a kubelet until `shutdown`. Containers go on running after it ended.
pub async fn run(
    client: Client,
    config: KubeletConfig,
    shutdown: CancellationToken,
) -> Result<(), KubeletError> {
    let config = Arc::new(config);
    let client = client.with_user_agent("kubelet");
    make_folders(&config)?;
    let runtime = Runtime::new(&config.cri_socket);
    let source = Source {
        component: "kubelet".to_owned(),
        host: config.node_name.clone(),
    };
    let recorder = Recorder::new(client.clone(), source);
    let agent = node::NodeAgent::new(
        client.clone(),
        config.clone(),
        runtime.clone(),
        recorder.clone(),
    );
    let node = agent.state();
    let factory = Factory::new(client.clone(), shutdown.clone());
    let board = board::Board::default();
    let woken = board.clone();
    let wake = move |uid: &str| {
        woken.post(uid, |inbox| inbox.objects = true);
    };
    let pods = async {
        let Some(runtime_name) = runtime_name(&runtime, &shutdown).await else {
            return;
        };
        let shared = Arc::new(Shared {
            images: images::Images::new(
                runtime.clone(),
                node.clone(),
                config.serialize_image_pulls,
            ),
            objects: objects::Objects::new(client.clone(), shutdown.clone(), wake),
            tokens: volumes::tokens::Tokens::new(client.clone()),
            services: factory.informer::<Service>(&api::r::SERVICES, "", Selectors::default()),
            cgroups: cgroup::Cgroups::new(&config.cgroup_root),
            admitted: pod::admission::Admitted::default(),
            runtime: runtime.clone(),
            config: config.clone(),
            client: client.clone(),
            runtime_name,
            node: node.clone(),
            recorder,
        });
        let selector = Selectors::fields(format!("spec.nodeName={}", config.node_name));
        let informer = factory.informer::<Pod>(&api::r::PODS, "", selector);
        let (orphans, adopted) = mpsc::channel(pods::ORPHAN_QUEUE);
        let (manifests, read) = mpsc::channel(1);
        let folder = config.static_pod_path.clone();
        let statics = async {
            // Without a folder the sender is dropped and nothing ever comes.
            if let Some(folder) = folder {
                static_pods::run(&folder, &config.node_name, manifests, shutdown.clone()).await;
            }
        };
        let pleg = pleg::Pleg::new(runtime.clone(), board.clone(), orphans);
        tokio::join!(
            pods::Pods::new(shared, board.clone(), informer).run(adopted, read, shutdown.clone()),
            statics,
            pleg.run(shutdown.clone()),
            housekeeping::run(&runtime, &config, shutdown.clone()),
        );
    };
    let backend = Arc::new(server::Backend {
        config: config.clone(),
        client: client.clone(),
        runtime: runtime.clone(),
        board: board.clone(),
        node: node.clone(),
    });
    let server = server::run(backend, shutdown.clone());
    tokio::select! {
        ((), (), ()) = async { tokio::join!(agent.run(shutdown.clone()), pods, server) } => Ok(()),
        result = factory.join() => Ok(result?),
        () = shutdown.cancelled() => Ok(()),
    }
}

fn make_folders(config: &KubeletConfig) -> Result<(), KubeletError> {
    for folder in [
        &config.root_dir,
        &paths::pods(&config.root_dir),
        &config.pod_logs_dir,
    ] {
        let folder: &Path = folder;
        std::fs::create_dir_all(folder).map_err(|source| KubeletError::Folder {
            path: folder.display().to_string(),
            source,
        })?;
    }
    Ok(())
}

/// The runtime's name, as soon as it answers; none after a shutdown.
async fn runtime_name(runtime: &Runtime, shutdown: &CancellationToken) -> Option<String> {
    loop {
        match runtime.version().await {
            Ok(version) => return Some(version.runtime_name),
            Err(error) => tracing::debug!(%error, "the container runtime does not answer yet"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(RUNTIME_RETRY) => {}
        }
    }
}
