//! The kubelet: registers its node and makes the containers of its pods run.

mod clock;
mod config;
pub mod cri;
mod k8s;
mod node;
mod patch;
pub mod pod;
pub mod resources;
mod text;

use std::sync::Arc;

use client::Client;
use client::events::{Recorder, Source};
use tokio_util::sync::CancellationToken;

pub use config::{KUBELET_VERSION, KubeletConfig, Taint};
use cri::Runtime;

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
}

/// Runs a kubelet until `shutdown`. Containers go on running after it ended.
pub async fn run(
    client: Client,
    config: KubeletConfig,
    shutdown: CancellationToken,
) -> Result<(), KubeletError> {
    let config = Arc::new(config);
    let client = client.with_user_agent("kubelet");
    std::fs::create_dir_all(&config.root_dir).map_err(|source| KubeletError::Folder {
        path: config.root_dir.display().to_string(),
        source,
    })?;
    let runtime = Runtime::new(&config.cri_socket);
    let source = Source {
        component: "kubelet".to_owned(),
        host: config.node_name.clone(),
    };
    let recorder = Recorder::new(client.clone(), source);
    let agent = node::NodeAgent::new(client, config, runtime, recorder);
    agent.run(shutdown).await;
    Ok(())
}
