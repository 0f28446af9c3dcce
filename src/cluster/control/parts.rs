//! What runs beside an API server in its process: the scheduler and the controllers, on threads of their own that yield
//! to those of the API server. When all of them start at once, a request from outside is still answered first.

use std::fmt::Display;
use std::future::Future;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::server::ServerError;
use crate::process;

/// Threads of all parts together. They wait far more than they compute.
const MAX_WORKERS: usize = 2;
/// By how much the threads' niceness exceeds the API server's: a busy core is shared about one to three.
const YIELDING: i32 = 5;

/// How a part ended.
type Ended = (&'static str, Result<(), String>);

/// See the module. Dropping it ends all parts at once.
pub struct Parts {
    /// `None` once it is being dropped.
    runtime: Option<Runtime>,
    tasks: JoinSet<Ended>,
}

impl Parts {
    /// No part yet.
    pub fn new() -> std::io::Result<Self> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers.min(MAX_WORKERS))
            .thread_name("parts")
            .on_thread_start(|| {
                if let Err(error) = process::yield_by(YIELDING) {
                    tracing::debug!(%error, "The parts' threads do not yield");
                }
            })
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            tasks: JoinSet::new(),
        })
    }

    /// Starts a part, which is to run until it is told otherwise.
    pub fn start<E: Display>(
        &mut self,
        name: &'static str,
        run: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let run = async move { (name, run.await.map_err(|error| error.to_string())) };
        if let Some(runtime) = &self.runtime {
            self.tasks.spawn_on(run, runtime.handle());
        }
    }

    /// The first part that ends. It was not asked to, so that is an error.
    pub async fn ended(&mut self) -> ServerError {
        match self.tasks.join_next().await {
            None => std::future::pending().await,
            Some(Ok((part, ended))) => {
                let reason = ended.err().unwrap_or_else(|| "it returned".into());
                ServerError::Ended { part, reason }
            }
            Some(Err(error)) => ServerError::Ended {
                part: "a part",
                reason: error.to_string(),
            },
        }
    }

    /// Waits for all, which have been told to end.
    pub async fn join(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // Waiting is not allowed here, and nothing is left that is worth it.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_run_on_threads_that_yield_and_their_end_is_told() {
        let mut parts = Parts::new().expect("threads");
        let own = process::nice().expect("Linux tells");
        let (sender, theirs) = tokio::sync::oneshot::channel();
        parts.start("one", async move {
            let _ = sender.send(process::nice());
            Err("it broke")
        });
        let ended = parts.ended().await.to_string();
        assert_eq!(ended, "one ended: it broke");
        let theirs = theirs.await.expect("told").expect("Linux tells");
        assert_eq!(theirs, (own + YIELDING).min(19));
        parts.join().await;
    }
}
