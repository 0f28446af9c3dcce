//! What every long-running command shares: its log, its threads, and how it is told to end.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cluster::client::{Client, RestConfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Threads that run tasks. A component waits far more than it computes.
const MAX_WORKERS: usize = 4;

/// Flags of every component.
#[derive(clap::Args, Debug)]
pub struct Common {
    /// Number for the log level verbosity.
    #[arg(short = 'v', long = "v", default_value_t = 0)]
    pub verbosity: u8,
}

/// Flags of every component that is a client.
#[derive(clap::Args, Debug)]
pub struct ClientFlags {
    /// Path to a kubeconfig file. Without it the component is a pod and uses its service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The address of the Kubernetes API server (overrides any value in kubeconfig).
    #[arg(long)]
    pub master: Option<String>,
}

impl ClientFlags {
    pub fn client(&self, name: &str) -> anyhow::Result<Client> {
        let mut config =
            RestConfig::load(self.kubeconfig.as_deref()).context("cannot find the API server")?;
        if let Some(master) = &self.master {
            config.server.clone_from(master);
        }
        Ok(Client::connect(config)?.with_user_agent(name))
    }
}

/// Runs `work` until it ends or SIGTERM or SIGINT cancels its token; a second signal ends the process at once.
pub fn run<F, W>(common: &Common, work: W) -> anyhow::Result<ExitCode>
where
    W: FnOnce(CancellationToken) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    log(common.verbosity);
    let workers = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_WORKERS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = CancellationToken::new();
        let work = work(shutdown.clone());
        tokio::pin!(work);
        let mut asked = 0;
        loop {
            tokio::select! {
                ended = &mut work => return ended.map(|()| ExitCode::SUCCESS),
                _ = terminate.recv() => asked += 1,
                _ = interrupt.recv() => asked += 1,
            }
            if asked > 1 {
                return Ok(ExitCode::FAILURE);
            }
            tracing::info!("Ending");
            shutdown.cancel();
        }
    })
}

/// Verbosity as upstream counts it: 0 to 3 is what an operator reads, 4 is debugging, 6 and more is tracing.
/// `RUST_LOG` overrides it.
pub fn log(verbosity: u8) {
    let level = match verbosity {
        0..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // Set once in a process; a test that runs two commands keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .try_init();
}

/// For commands that a person watches: only what goes wrong.
pub fn log_warnings() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}
