//! A node's birth, in two steps of the same hidden command.
//!
//! ```text
//!  skiff up ──▶ `node-init SPEC`            cuts itself off, joins the cgroups, opens the listening socket, makes the
//!                   │                        network and the other namespaces
//!                   └─▶ `node-init --inside SPEC`   the node's first process: mounts, network, services
//! ```
//!
//! The outer one ends as soon as the inner one runs. Both tell what happens on their standard output (`spec::Event`).

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::spec::{Event, NodeSpec};
use super::supervisor::{EventPipe, Supervisor, SupervisorError};
use super::{forward, mounts, network};
use crate::cgroup::{self, Cgroups};
use crate::process;

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("cannot read {path}: {reason}")]
    Spec { path: String, reason: String },
    #[error(transparent)]
    Cgroup(#[from] cgroup::CgroupError),
    #[error(transparent)]
    Mount(#[from] mounts::MountError),
    #[error(transparent)]
    Network(#[from] network::NetworkError),
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    #[error("cannot listen on 127.0.0.1:{port}: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("the one who started this node is gone")]
    Abandoned,
    #[error("cannot create namespaces: {0}")]
    Namespaces(nix::Error),
    #[error("cannot {0}: {1}")]
    Step(&'static str, std::io::Error),
}

/// Pass this on the command line for the inner step.
pub const INSIDE: &str = "--inside";
/// The number of the descriptor by which the inner step inherits the machine's network namespace. (The listening
/// socket is its standard input.)
const MACHINE_NAMESPACE: &str = "SKIFF_MACHINE_NETNS";

fn step(what: &'static str) -> impl FnOnce(std::io::Error) -> InitError {
    move |error| InitError::Step(what, error)
}

fn read_spec(path: &Path) -> Result<NodeSpec, InitError> {
    let failed = |reason: String| InitError::Spec {
        path: path.display().to_string(),
        reason,
    };
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))
}

fn event_pipe() -> Result<EventPipe, InitError> {
    let pipe = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(step("duplicate the standard output"))?;
    Ok(EventPipe::new(File::from(pipe)))
}

/// The outer step. Call it before any thread is started.
pub fn outside(spec_path: &Path) -> Result<(), InitError> {
    // Before anything of our own is open.
    close_inherited();
    let mut events = event_pipe()?;
    let started = start_inside(spec_path, &mut events);
    if let Err(error) = &started {
        events.tell(&Event::Failed {
            reason: error.to_string(),
        });
    }
    started
}

fn start_inside(spec_path: &Path, events: &mut EventPipe) -> Result<(), InitError> {
    let spec = read_spec(spec_path)?;
    // A session of its own: the terminal's signals are not for the node. It fails for a leader, who has one.
    let _ = nix::unistd::setsid();
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let cgroups = Cgroups::of_node(&spec.cluster, &spec.name)?;
    cgroups.create()?;
    cgroups.join()?;
    // One who started this and was killed no longer holds the lock, and what removes the cluster may have looked into the
    // cgroups already. From here on it finds this process there.
    events.tell(&Event::Joined);
    if events.is_closed() {
        return Err(InitError::Abandoned);
    }
    let listener = spec.listen_port.map(listen).transpose()?;
    if let Some(listener) = &listener {
        let port = listener
            .local_addr()
            .map_err(step("read the listening address"))?
            .port();
        events.tell(&Event::Listening { port });
    }
    let machine = network::enter_new(&spec.network)?;
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWCGROUP
        | CloneFlags::CLONE_NEWPID;
    unshare(namespaces).map_err(InitError::Namespaces)?;
    // The cgroup namespace's root was the node's cgroup; only now may this move into the leaf.
    cgroups.join_system()?;

    let executable = std::env::current_exe().map_err(step("find this program's own file"))?;
    let mut command = Command::new(&executable);
    command
        .arg0("skiff")
        .args(["node-init", INSIDE])
        .arg(spec_path);
    command
        .stdin(listener.map_or_else(Stdio::null, |listener| Stdio::from(OwnedFd::from(listener))));
    nix::fcntl::fcntl(
        &machine,
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
    )
    .map_err(|error| InitError::Step("pass the network namespace on", error.into()))?;
    command.env(MACHINE_NAMESPACE, machine.as_raw_fd().to_string());
    let child = command
        .spawn()
        .map_err(step("start the node's first process"))?;
    events.tell(&Event::Started {
        pid: child.id() as i32,
    });
    Ok(())
}

/// Nothing that the starter's shell had open may stay open in a daemon (a lock's descriptor would hold the lock).
fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let numbers: Vec<i32> = open
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|&number| number > 2) {
        let _ = nix::unistd::close(number);
    }
}

fn listen(port: u16) -> Result<TcpListener, InitError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map_err(|source| InitError::Listen { port, source })
}

/// The inner step: the node's first process. Returns when the node has been told to stop; everything else in it dies with
/// this process.
pub fn inside(spec_path: &Path) -> Result<(), InitError> {
    let mut events = event_pipe()?;
    let ran = run_inside(spec_path, &mut events);
    if let Err(error) = &ran {
        events.tell(&Event::Failed {
            reason: error.to_string(),
        });
    }
    ran
}

fn run_inside(spec_path: &Path, events: &mut EventPipe) -> Result<(), InitError> {
    process::set_name("skiff-node");
    let spec = read_spec(spec_path)?;
    let machine = inherited_namespace()?;
    let listener = match spec.listen_port {
        Some(_) => Some(
            std::io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .map_err(step("duplicate the listening socket"))?,
        ),
        None => None,
    };
    let hierarchies = cgroup::hierarchies()?;
    let executable = mounts::open_executable()?;
    mounts::set_up(&spec, &executable, &hierarchies)?;
    drop(executable);
    nix::unistd::sethostname(&spec.name)
        .map_err(|error| InitError::Step("set the host name", error.into()))?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(step("start the event loop"))?;
    runtime.block_on(network::set_up(&spec.network))?;
    // Held until the end: the thread lives as long as the node.
    let _forwarding =
        forward::start(&spec.forwarded_ports, machine).map_err(step("start forwarding"))?;
    let events = std::mem::replace(events, EventPipe::closed());
    detach_output();
    runtime.block_on(Supervisor::new(spec.services, listener, events).run())?;
    Ok(())
}

fn inherited_namespace() -> Result<File, InitError> {
    let what = "take over the machine's network namespace";
    let number: Option<i32> = std::env::var(MACHINE_NAMESPACE)
        .ok()
        .and_then(|number| number.parse().ok());
    let number =
        number.ok_or_else(|| InitError::Step(what, std::io::ErrorKind::NotFound.into()))?;
    let file = File::open(format!("/proc/self/fd/{number}")).map_err(step(what))?;
    let _ = nix::unistd::close(number);
    Ok(file)
}

/// Services inherit neither the events' pipe nor the listening socket: only those that are given it hold it.
fn detach_output() {
    if let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = nix::unistd::dup2_stdin(&null);
        let _ = nix::unistd::dup2_stdout(&null);
    }
}
