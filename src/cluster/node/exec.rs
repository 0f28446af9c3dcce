//! Runs a command inside a node, with this process's terminal, pipes and exit code.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::mounts::BIN;
use crate::cgroup::{self, Cgroups};
use crate::process::Process;

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("cannot open the node's {name} namespace: {source}")]
    Open {
        name: &'static str,
        source: std::io::Error,
    },
    #[error("cannot enter the node's {name} namespace: {source}")]
    Enter {
        name: &'static str,
        source: nix::Error,
    },
    #[error(transparent)]
    Cgroup(#[from] cgroup::CgroupError),
    #[error("cannot {0}: {1}")]
    Step(&'static str, std::io::Error),
    #[error("no command was given")]
    NoCommand,
}

/// The mount namespace comes last: `/proc` is the machine's until then.
const NAMESPACES: [(&str, CloneFlags); 6] = [
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("net", CloneFlags::CLONE_NEWNET),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("mnt", CloneFlags::CLONE_NEWNS),
];

/// Runs `command` in the node and returns its exit code (128 + n when signal n killed it, 127 when there is no such
/// program). Call it before any thread is started: a process with threads may not change its mount namespace.
pub fn exec(
    cluster: &str,
    node: &str,
    first: &Process,
    command: &[String],
) -> Result<i32, ExecError> {
    let (program, arguments) = command.split_first().ok_or(ExecError::NoCommand)?;
    enter(cluster, node, first)?;
    let path = std::env::var("PATH")
        .unwrap_or_else(|_| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
    let mut child = Command::new(program);
    child
        .arg0(program)
        .args(arguments)
        .env("PATH", format!("{path}:{BIN}"))
        .current_dir("/");
    let forwarded = SigSet::from_iter([
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGCHLD,
    ]);
    let child = match child.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skiff: {program}: command not found on {node}");
            return Ok(127);
        }
        Err(error) => return Err(ExecError::Step("run the command", error)),
    };
    // Blocked only now, since a child inherits the mask.
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&forwarded), None)
        .map_err(|error| ExecError::Step("block signals", error.into()))?;
    wait(Pid::from_raw(child.id() as i32), &forwarded)
}

fn enter(cluster: &str, node: &str, first: &Process) -> Result<(), ExecError> {
    let folder = Path::new("/proc").join(first.pid.to_string()).join("ns");
    let mut opened = Vec::new();
    for (name, flag) in NAMESPACES {
        let file =
            File::open(folder.join(name)).map_err(|source| ExecError::Open { name, source })?;
        opened.push((name, flag, file));
    }
    // So that what is started here dies with the node.
    Cgroups::of_node(cluster, node)?.join_system()?;
    for (name, flag, file) in &opened {
        setns(file, *flag).map_err(|source| ExecError::Enter { name, source })?;
    }
    Ok(())
}

/// Waits for the child and passes signals on. Those of the terminal reach the child by themselves.
fn wait(child: Pid, signals: &SigSet) -> Result<i32, ExecError> {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(128 + signal as i32),
            Ok(_) => {}
            Err(error) => return Err(ExecError::Step("wait for the command", error.into())),
        }
        match signals.wait() {
            Ok(signal @ (Signal::SIGTERM | Signal::SIGHUP)) => drop(kill(child, signal)),
            Ok(_) | Err(_) => {}
        }
    }
}
