//! Keeps a node's services running: starts each when what it needs is ready, restarts it with back-off, reaps every
//! orphan, and ends them all together.
//!
//! Read `Supervisor::run` first. A service is `Waiting` for its conditions, `Running`, in `Backoff` after an end that was
//! not asked for, or `Done`. What happens comes as one of: a child ended (SIGCHLD), a service said it is ready
//! (`$NOTIFY_SOCKET`), an address answers, a back-off is over, or the node is told to stop (SIGTERM).
//!
//! **Invariant:** only this file waits for children: `waitpid(-1)` is what a first process owes to orphans, and it
//! would steal the exit of any child that something else waits for.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::log::{BoundedLog, pump, tail};
use super::mounts::BIN;
use super::spec::{Condition, Event, Readiness, Service};

/// The first pause before a restart, doubled at each further end up to the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_LONGEST: Duration = Duration::from_secs(10);
/// A service that ran this long starts over with the first pause.
const BACKOFF_RESET: Duration = Duration::from_secs(10);
/// How long services get to end by themselves when the node stops.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// How long a service waits for an address that does not answer before it is started all the same.
const REACH_PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to reach an address.
const REACH_AGAIN: Duration = Duration::from_millis(25);
/// How many lines of a log are told when its service ends.
const TAIL_LINES: usize = 1;
/// Where services say that they are ready.
const NOTIFY: &str = "/run/skiff/notify";
/// What each service does now, for `skiff status`.
pub const STATUS: &str = "/run/skiff/services.json";
const LOGS: &str = "/var/log/skiff";

#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error("cannot listen for signals: {0}")]
    Signal(std::io::Error),
    #[error("cannot listen on {path}: {source}")]
    Notify {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// What a service does, as `skiff status` reads it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServiceStatus {
    pub name: String,
    /// In the node's namespace; `None` while it does not run.
    pub pid: Option<i32>,
    pub ready: bool,
    pub restarts: u32,
    /// How it ended last.
    pub last_end: Option<String>,
}

#[derive(Debug)]
enum State {
    Waiting,
    Running { pid: Pid, since: Instant },
    Backoff { until: Instant },
    Done,
}

struct Supervised {
    service: Service,
    state: State,
    ready: bool,
    restarts: u32,
    backoff: Duration,
    last_end: Option<String>,
}

/// What a task of the supervisor found out.
enum Noticed {
    /// A service said that it is ready. The socket comes back to be listened on again.
    Notified {
        service: usize,
        socket: UnixDatagram,
    },
    Reached {
        condition: Condition,
    },
    LogEnded,
}

/// See the module.
pub struct Supervisor {
    services: Vec<Supervised>,
    by_pid: HashMap<Pid, usize>,
    reached: HashSet<String>,
    tasks: JoinSet<Noticed>,
    listener: Option<OwnedFd>,
    events: EventPipe,
}

/// The pipe to the one who started the node, until everything was ready once.
pub struct EventPipe(Option<std::fs::File>);

impl EventPipe {
    pub fn new(pipe: std::fs::File) -> Self {
        Self(Some(pipe))
    }

    pub fn closed() -> Self {
        Self(None)
    }

    /// Tells an event. One who has gone away is no error.
    pub fn tell(&mut self, event: &Event) {
        let Some(pipe) = &mut self.0 else { return };
        let line = serde_json::to_string(event).unwrap_or_default() + "\n";
        if pipe.write_all(line.as_bytes()).is_err() {
            self.0 = None;
        }
    }

    /// Whether nobody listens.
    pub fn is_closed(&self) -> bool {
        self.0.is_none()
    }

    fn close(&mut self) {
        self.0 = None;
    }
}

impl Supervisor {
    /// `listener` is what services with `Service::listener` get as their standard input.
    pub fn new(services: Vec<Service>, listener: Option<OwnedFd>, events: EventPipe) -> Self {
        let supervised = |service| Supervised {
            service,
            state: State::Waiting,
            ready: false,
            restarts: 0,
            backoff: BACKOFF_FIRST,
            last_end: None,
        };
        Self {
            services: services.into_iter().map(supervised).collect(),
            by_pid: HashMap::new(),
            reached: HashSet::new(),
            tasks: JoinSet::new(),
            listener,
            events,
        }
    }

    /// Runs until the node is told to stop.
    pub async fn run(mut self) -> Result<(), SupervisorError> {
        let on = |kind| signal(kind).map_err(SupervisorError::Signal);
        let mut child = on(SignalKind::child())?;
        let mut terminate = on(SignalKind::terminate())?;
        self.listen()?;
        self.watch_addresses();
        self.advance();
        loop {
            let next_start = self.next_start();
            tokio::select! {
                _ = child.recv() => self.reap(),
                _ = terminate.recv() => break,
                Some(noticed) = self.tasks.join_next() => if let Ok(noticed) = noticed { self.notice(noticed) },
                () = wait_until(next_start) => {}
            }
            self.advance();
        }
        self.stop(&mut child).await;
        Ok(())
    }

    fn listen(&mut self) -> Result<(), SupervisorError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| SupervisorError::Notify { path, source }
        };
        let folder = Path::new(NOTIFY);
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        for (index, supervised) in self.services.iter().enumerate() {
            if supervised.service.readiness == Readiness::Notified {
                let path = folder.join(&supervised.service.name);
                let socket = UnixDatagram::bind(&path).map_err(failed(&path))?;
                self.tasks.spawn(notified(index, socket));
            }
        }
        Ok(())
    }

    fn watch_addresses(&mut self) {
        let conditions = self
            .services
            .iter()
            .flat_map(|supervised| &supervised.service.after);
        let mut addresses: Vec<_> = conditions
            .filter_map(|condition| match condition {
                Condition::Reachable(address) => Some(*address),
                Condition::Ready(_) => None,
            })
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            self.tasks.spawn(async move {
                let connect = async {
                    while TcpStream::connect(address).await.is_err() {
                        sleep(REACH_AGAIN).await
                    }
                };
                // Past the patience the service is started all the same: it waits better than we do.
                let _ = timeout(REACH_PATIENCE, connect).await;
                Noticed::Reached {
                    condition: Condition::Reachable(address),
                }
            });
        }
    }

    fn notice(&mut self, noticed: Noticed) {
        match noticed {
            Noticed::Notified { service, socket } => {
                self.mark_ready(service);
                self.tasks.spawn(notified(service, socket));
            }
            Noticed::Reached { condition } => drop(self.reached.insert(condition_key(&condition))),
            Noticed::LogEnded => {}
        }
    }

    fn mark_ready(&mut self, index: usize) {
        let supervised = &mut self.services[index];
        let first_time = self.reached.insert(condition_key(&Condition::Ready(
            supervised.service.name.clone(),
        )));
        supervised.ready = true;
        if first_time {
            self.events.tell(&Event::Ready {
                service: supervised.service.name.clone(),
            });
        }
    }

    fn next_start(&self) -> Option<Instant> {
        let until = |supervised: &Supervised| match supervised.state {
            State::Backoff { until } => Some(until),
            _ => None,
        };
        self.services.iter().filter_map(until).min()
    }

    /// Starts whatever can be started now, and writes down how things are.
    fn advance(&mut self) {
        let now = Instant::now();
        loop {
            let startable = self
                .services
                .iter()
                .position(|supervised| match supervised.state {
                    State::Waiting => supervised
                        .service
                        .after
                        .iter()
                        .all(|condition| self.reached.contains(&condition_key(condition))),
                    State::Backoff { until } => until <= now,
                    State::Running { .. } | State::Done => false,
                });
            let Some(index) = startable else { break };
            self.start(index);
        }
        if self.services.iter().all(|supervised| {
            self.reached.contains(&condition_key(&Condition::Ready(
                supervised.service.name.clone(),
            )))
        }) {
            self.events.tell(&Event::Complete);
            self.events.close();
        }
        self.write_status();
    }

    fn start(&mut self, index: usize) {
        match self.spawn(index) {
            Ok(pid) => {
                self.by_pid.insert(pid, index);
                self.services[index].state = State::Running {
                    pid,
                    since: Instant::now(),
                };
                if self.services[index].service.readiness == Readiness::Started {
                    self.mark_ready(index);
                }
            }
            Err(error) => self.ended(index, format!("cannot be started: {error}"), Duration::ZERO),
        }
    }

    fn spawn(&mut self, index: usize) -> std::io::Result<Pid> {
        let service = &self.services[index].service;
        let (reader, writer) = std::io::pipe()?;
        let own = Path::new(BIN).join(&service.program);
        let program = if own.exists() {
            own
        } else {
            service.program.clone().into()
        };
        let mut command = Command::new(program);
        command
            .args(&service.arguments)
            .current_dir("/")
            .env_clear();
        for name in [
            "PATH",
            "LANG",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "NO_PROXY",
            "http_proxy",
            "https_proxy",
            "no_proxy",
        ] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("HOME", "/root")
            .envs(service.environment.iter().cloned());
        if service.readiness == Readiness::Notified {
            command.env("NOTIFY_SOCKET", Path::new(NOTIFY).join(&service.name));
        }
        let input = match self.listener.as_ref().filter(|_| service.listener) {
            Some(listener) => Stdio::from(listener.as_fd().try_clone_to_owned()?),
            None => Stdio::null(),
        };
        command
            .stdin(input)
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let log = BoundedLog::open(Path::new(LOGS).join(format!("{}.log", service.name)))?;
        let child = command.spawn()?;
        let name = service.name.clone();
        self.tasks.spawn(async move {
            if let Err(error) = pump(reader.into(), log).await {
                tracing::error!(service = name, %error, "Cannot read the service's output");
            }
            Noticed::LogEnded
        });
        tracing::info!(service = service.name, pid = child.id(), "Started");
        // The child is reaped by its number, with all others: see the invariant.
        Ok(Pid::from_raw(child.id() as i32))
    }

    fn reap(&mut self) {
        loop {
            let (pid, end) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, 0)) => (pid, None),
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(format!("exit code {code}"))),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    (pid, Some(format!("killed by {signal}")))
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(_) => continue,
            };
            // Most are orphans of containers.
            let Some(index) = self.by_pid.remove(&pid) else {
                continue;
            };
            let ran = match self.services[index].state {
                State::Running { since, .. } => since.elapsed(),
                _ => Duration::ZERO,
            };
            match end {
                None if self.services[index].service.readiness == Readiness::Ended => {
                    self.services[index].state = State::Done;
                    self.mark_ready(index);
                }
                end => self.ended(index, end.unwrap_or_else(|| "exit code 0".into()), ran),
            }
        }
    }

    /// A service ended and was not asked to.
    fn ended(&mut self, index: usize, reason: String, ran: Duration) {
        let supervised = &mut self.services[index];
        if ran >= BACKOFF_RESET {
            supervised.backoff = BACKOFF_FIRST;
        }
        supervised.state = State::Backoff {
            until: Instant::now() + supervised.backoff,
        };
        supervised.backoff = (supervised.backoff * 2).min(BACKOFF_LONGEST);
        supervised.ready = false;
        supervised.restarts += 1;
        supervised.last_end = Some(reason.clone());
        let service = supervised.service.name.clone();
        tracing::warn!(service, reason, "Ended");
        let log = tail(&Path::new(LOGS).join(format!("{service}.log")), TAIL_LINES).join("\n");
        let reason = if log.is_empty() {
            reason
        } else {
            format!("{reason}: {log}")
        };
        self.events.tell(&Event::Restarting { service, reason });
    }

    fn write_status(&self) {
        let status = |supervised: &Supervised| ServiceStatus {
            name: supervised.service.name.clone(),
            pid: match supervised.state {
                State::Running { pid, .. } => Some(pid.as_raw()),
                _ => None,
            },
            ready: supervised.ready,
            restarts: supervised.restarts,
            last_end: supervised.last_end.clone(),
        };
        let all: Vec<ServiceStatus> = self.services.iter().map(status).collect();
        if let Ok(text) = serde_json::to_vec(&all) {
            // Only `skiff status` reads it.
            let _ = crate::files::write_if_changed(Path::new(STATUS), &text, 0o644);
        }
    }

    async fn stop(&mut self, child: &mut SignalStream) {
        for pid in self.by_pid.keys() {
            let _ = kill(*pid, Signal::SIGTERM);
        }
        let all_ended = async {
            while !self.by_pid.is_empty() {
                child.recv().await;
                while let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) =
                    waitpid(None, Some(WaitPidFlag::WNOHANG))
                {
                    self.by_pid.remove(&pid);
                }
            }
        };
        let _ = timeout(STOP_PATIENCE, all_ended).await;
    }
}

fn condition_key(condition: &Condition) -> String {
    match condition {
        Condition::Ready(service) => service.clone(),
        Condition::Reachable(address) => address.to_string(),
    }
}

async fn wait_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Waits for `READY=1`, as sd_notify(3) describes it.
async fn notified(service: usize, socket: UnixDatagram) -> Noticed {
    let mut buffer = [0; 4096];
    loop {
        let Ok(length) = socket.recv(&mut buffer).await else {
            return std::future::pending().await;
        };
        if buffer[..length]
            .split(|&byte| byte == b'\n')
            .any(|line| line == b"READY=1")
        {
            return Noticed::Notified { service, socket };
        }
    }
}
