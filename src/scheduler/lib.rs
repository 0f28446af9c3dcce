//! The scheduler of kube-scheduler: gives every pod without a node the node it fits best.

mod config;

use client::Client;
use tokio_util::sync::CancellationToken;

pub use config::SchedulerConfig;

/// Why the scheduler cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Config(String),
}

/// Schedules until `shutdown`.
pub async fn run(
    client: Client,
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let _ = (client, config);
    shutdown.cancelled().await;
    Ok(())
}
