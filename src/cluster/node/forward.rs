//! Carries TCP connections from a node's 127.0.0.1 to the machine's, so that a registry there answers at the same
//! address inside.
//!
//! A socket belongs to the namespace of the thread that made it. The listening ones are made in the node; the thread
//! that serves them moves to the machine's namespace, so the connections it opens start there.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections carried at once per node: a pull opens a handful per image.
const MAX_CONNECTIONS: usize = 256;

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
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut tasks = JoinSet::new();
        for (port, listener) in listeners {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            tasks.spawn(serve(listener, port, Arc::clone(&permits)));
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    })
}

async fn serve(listener: TcpListener, port: u16, permits: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        // Waiting for a permit before accepting leaves the rest in the kernel's queue.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((near, _)) => {
                    connections.spawn(async move {
                        if let Err(error) = carry(near, port).await {
                            tracing::debug!(port, %error, "A forwarded connection ended");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of descriptors: what frees one is an ended connection.
                    tracing::warn!(port, %error, "Cannot accept");
                    drop(permit);
                    if connections.join_next().await.is_none() {
                        return;
                    }
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(mut near: TcpStream, port: u16) -> std::io::Result<()> {
    let mut far = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    tokio::io::copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}
