//! Carries TCP connections from listeners to one address each, as they are: what is inside is no concern of it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections that one gateway carries at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;

/// Carries what the listeners accept, each to its address, until `shutdown`.
pub async fn run(listeners: Vec<(TcpListener, SocketAddr)>, shutdown: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut tasks = JoinSet::new();
    for (listener, target) in listeners {
        tasks.spawn(serve(listener, target, Arc::clone(&permits)));
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        () = shutdown.cancelled() => {}
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, permits: Arc<Semaphore>) {
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
                        if let Err(error) = carry(near, target).await {
                            tracing::debug!(%target, %error, "A carried connection ended");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of descriptors: what frees one is an ended connection.
                    tracing::warn!(%target, %error, "Cannot accept");
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

async fn carry(mut near: TcpStream, target: SocketAddr) -> std::io::Result<()> {
    let mut far = TcpStream::connect(target).await?;
    tokio::io::copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    #[tokio::test]
    async fn both_directions_are_carried_and_an_end_is_passed_on() {
        let (far, target) = listener().await;
        let (near, address) = listener().await;
        let shutdown = CancellationToken::new();
        let gateway = tokio::spawn(run(vec![(near, target)], shutdown.clone()));
        let mut client = TcpStream::connect(address).await.expect("accepted");
        let (mut server, _) = far.accept().await.expect("carried");
        client.write_all(b"question").await.expect("sent");
        client.shutdown().await.expect("ended");
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.expect("heard");
        assert_eq!(heard, b"question");
        server.write_all(b"answer").await.expect("sent");
        drop(server);
        heard.clear();
        client.read_to_end(&mut heard).await.expect("heard");
        assert_eq!(heard, b"answer");
        shutdown.cancel();
        gateway.await.expect("ended");
    }

    #[tokio::test]
    async fn a_target_that_is_away_ends_the_connection_and_no_other() {
        let (gone, target) = listener().await;
        drop(gone);
        let (near, address) = listener().await;
        let shutdown = CancellationToken::new();
        let gateway = tokio::spawn(run(vec![(near, target)], shutdown.clone()));
        for _ in 0..2 {
            let mut client = TcpStream::connect(address).await.expect("accepted");
            let mut heard = Vec::new();
            let end = client.read_to_end(&mut heard).await;
            assert!(end.is_err() || heard.is_empty());
        }
        shutdown.cancel();
        gateway.await.expect("ended");
    }
}
