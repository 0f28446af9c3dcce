//! What every long-running command shares: its log, its threads, and how it is told to end.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cluster::client::{Client, RestConfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
    use_small_pages();
    if let Err(error) = cluster::process::use_short_slices() {
        tracing::debug!(%error, "The scheduler's slices stay as they are");
    }
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

/// Keeps the heap out of huge pages where the machine gives them to everyone: a component that touches a few kilobytes
/// here and there would hold 2 MB for each. (The allocator is built without them for machines that give them on request.)
fn use_small_pages() {
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::debug!(%error, "Huge pages stay as they are");
    }
}

/// Verbosity as upstream counts it: 0 to 3 is what an operator reads, 4 is debugging, 6 and more is tracing.
/// `RUST_LOG` (`info`, `client=debug,info`) overrides it.
pub fn log(verbosity: u8) {
    let level = match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(ansi);
    // Set once in a process; a test that runs two commands keeps the first.
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(targets(level)))
        .try_init();
}

/// For commands that a person watches: only what goes wrong.
pub fn log_warnings() {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .without_time();
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(targets(LevelFilter::WARN)))
        .try_init();
}

/// Levels by module. (`EnvFilter` can do more and compiles regular expressions for it: 8 MB in every process.)
fn targets(level: LevelFilter) -> Targets {
    let chosen = std::env::var("RUST_LOG")
        .ok()
        .and_then(|text| text.parse().ok());
    chosen.unwrap_or_else(|| Targets::new().with_default(level))
}
