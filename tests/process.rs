//! Starts a `skiff server` in a folder of its own, reads its cost from `/proc`, and ends it.
//!
//! `Server` owns the process: dropping it ends the process and removes the folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::Method;

use crate::connection::{Connection, Target};

/// Makes the one crypto provider of the process; calling it again does nothing.
pub fn install_crypto() {
    // Another test of this process may have been first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Lets this process, and what it starts, hold as many files open as the machine allows; gives the limit.
pub fn raise_file_limit() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 0;
    };
    // Refused: the old limit stands, and is what the next line reads.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    getrlimit(Resource::RLIMIT_NOFILE)
        .map_or(0, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// A TCP port of the loopback address that nobody listened on a moment ago.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// `SKIFF_BIN`, or the release build.
pub fn binary() -> PathBuf {
    std::env::var_os("SKIFF_BIN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/skiff"),
        PathBuf::from,
    )
}

/// A server of our own; dropping it ends the process and removes its folder.
pub struct Server {
    process: Child,
    folder: tempfile::TempDir,
    port: u16,
    /// From exec to the first `ok` of `/readyz`.
    pub ready_after: Duration,
}

impl Server {
    /// Starts on an empty folder, with `extra` arguments, and waits until it is ready.
    pub async fn start(extra: &[String]) -> anyhow::Result<Self> {
        Self::start_in(tempfile::tempdir()?, extra).await
    }

    pub async fn start_in(folder: tempfile::TempDir, extra: &[String]) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let log = std::fs::File::create(folder.path().join("bench.log"))?;
        let started = Instant::now();
        let process = Command::new(binary())
            .arg("server")
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .arg("--secure-port")
            .arg(port.to_string())
            .args(["--etcd-listen", ""])
            .args(extra)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", binary().display()))?;
        let mut server = Self {
            process,
            folder,
            port,
            ready_after: Duration::ZERO,
        };
        while started.elapsed() < Duration::from_secs(20) {
            if server.is_ready().await {
                server.ready_after = started.elapsed();
                return Ok(server);
            }
            if let Some(status) = server.process.try_wait()? {
                let log = std::fs::read_to_string(server.folder.path().join("bench.log"))?;
                anyhow::bail!("the server ended with {status}: {log}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::bail!("not ready after 20 s")
    }

    async fn is_ready(&self) -> bool {
        let Ok(target) = self.target() else {
            return false;
        };
        let Ok(connection) = target.connect().await else {
            return false;
        };
        connection
            .call(Method::GET, "/readyz", &[], Bytes::new())
            .await
            .is_ok()
    }

    pub fn target(&self) -> anyhow::Result<Target> {
        Target::new(
            &self.data_dir().join("pki"),
            format!("127.0.0.1:{}", self.port),
        )
    }

    /// A connection as its administrator.
    pub async fn connect(&self) -> Connection {
        self.target()
            .expect("the server made its certificates")
            .connect()
            .await
            .expect("the server answers")
    }

    /// What `--data-dir` names.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.process.id())
    }

    /// Ends the process at once and hands its folder on.
    pub fn kill(mut self) -> anyhow::Result<tempfile::TempDir> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(std::mem::replace(&mut self.folder, tempfile::tempdir()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a process has cost so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// User and system time in seconds.
    pub cpu: f64,
    /// Resident memory in MiB: `VmRSS`.
    pub resident: f64,
    /// Bytes it caused to be written to disk.
    pub written: u64,
}

impl Usage {
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |index: usize| {
            fields
                .get(index)
                .and_then(|field| field.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        Ok(Self {
            // Fields 14 and 15 of proc(5), counted after the command's name; a tick is 10 ms.
            cpu: (ticks(11) + ticks(12)) / 100.0,
            resident: number_after(
                &std::fs::read_to_string(format!("/proc/{pid}/status"))?,
                "VmRSS:",
            ) as f64
                / 1024.0,
            written: number_after(
                &std::fs::read_to_string(format!("/proc/{pid}/io"))?,
                "write_bytes:",
            ),
        })
    }
}

fn number_after(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}
