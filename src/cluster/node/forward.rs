//! Carries TCP connections from a node's 127.0.0.1 to the machine's, so that a registry there answers at the same
//! address inside.
//!
//! A socket belongs to the namespace of the thread that made it. The listening ones are made in the node; the thread
//! that serves them moves to the machine's namespace, so the connections it opens start there.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};

use nix::sched::{CloneFlags, setns};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::gateway;

/// Starts the carrying thread; it lives as long as the process. A port that cannot be listened on is reported and left out.
pub fn start(ports: &[u16], machine: File) -> std::io::Result<Option<std::thread::JoinHandle<()>>> {
    let listeners: Vec<(u16, StdListener)> = ports
        .iter()
        .filter_map(
            |&port| match StdListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(listener) => Some((port, listener)),
                Err(error) => {
                    tracing::error!(port, %error, "Cannot forward the port");
                    None
                }
            },
        )
        .collect();
    if listeners.is_empty() {
        return Ok(None);
    }
    let thread = std::thread::Builder::new()
        .name("forward".into())
        .spawn(move || {
            if let Err(error) = run(listeners, &machine) {
                tracing::error!(%error, "Forwarding to the machine's ports has ended");
            }
        })?;
    Ok(Some(thread))
}

fn run(listeners: Vec<(u16, StdListener)>, machine: &File) -> std::io::Result<()> {
    setns(machine, CloneFlags::CLONE_NEWNET)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut carried = Vec::new();
        for (port, listener) in listeners {
            listener.set_nonblocking(true)?;
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            carried.push((TcpListener::from_std(listener)?, target));
        }
        gateway::run(carried, CancellationToken::new()).await;
        Ok(())
    })
}
