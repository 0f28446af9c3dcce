//! What the tests that run controllers against a fake server share.

use std::time::Duration;

use client::fake::Server;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{ControllersConfig, run};

/// Runs the controllers of these names until the guard is dropped.
pub fn start(server: &Server, controllers: &[&str]) -> DropGuard {
    let config = ControllersConfig {
        controllers: controllers.iter().map(ToString::to_string).collect(),
        leader_elect: false,
        ..ControllersConfig::default()
    };
    let shutdown = CancellationToken::new();
    tokio::spawn(run(server.client(), config, shutdown.clone()));
    shutdown.drop_guard()
}

/// Lets so much of the paused clock's time go by.
pub async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
