//! Accepts connections for the front: TLS with a required client certificate, bounded in number and in the
//! time a handshake may take.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

/// Connections at once, handshakes included; more wait in the kernel. One costs some 20 KB.
const MAX_CONNECTIONS: usize = 4096;
/// How long a client may take to shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long accepting rests after an error, such as no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// PEM files, as etcd's `--cert-file`, `--key-file` and `--trusted-ca-file`.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// A client needs a certificate that one of these signed.
    pub client_ca: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}")]
    Pem { path: PathBuf, source: pem::Error },
    #[error("the certificates do not make a TLS configuration")]
    Config(#[from] rustls::Error),
    #[error("the client CA cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |source| TlsError::Pem {
        path: path.to_owned(),
        source,
    };
    CertificateDer::pem_file_iter(path)
        .map_err(error)?
        .collect::<Result<_, _>>()
        .map_err(error)
}

impl TlsFiles {
    fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let Self {
            cert,
            key,
            client_ca,
        } = self;
        let chain = certificates(cert)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
            path: key.clone(),
            source,
        })?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(client_ca)? {
            roots.add(certificate)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The stream of connections that tonic serves. Dropping it ends the accepting.
pub(super) struct Incoming {
    ready: mpsc::Receiver<Connection>,
    _accepting: JoinSet<()>,
}

impl Incoming {
    pub fn start(
        listener: TcpListener,
        tls: Option<TlsFiles>,
        shutdown: CancellationToken,
    ) -> Result<Self, TlsError> {
        let acceptor = tls.map(|files| files.acceptor()).transpose()?;
        let (sender, ready) = mpsc::channel(1);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            tokio::select! {
                () = accept(listener, acceptor, sender) => {}
                () = shutdown.cancelled() => {}
            }
        });
        Ok(Self {
            ready,
            _accepting: accepting,
        })
    }
}

impl Stream for Incoming {
    type Item = Result<Connection, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx).map(|next| next.map(Ok))
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    ready: mpsc::Sender<Connection>,
) {
    let space = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut handshakes = JoinSet::new();
    loop {
        let Ok(permit) = space.clone().acquire_owned().await else {
            return;
        };
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = handshakes.join_next() => {}
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the etcd API");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        handshakes.spawn(async move {
            if let Some(io) = shake_hands(stream, acceptor).await {
                let connection = Connection {
                    io,
                    _permit: permit,
                };
                // The server ends; so does the connection.
                let _ = ready.send(connection).await;
            }
        });
    }
}

async fn shake_hands(stream: TcpStream, acceptor: Option<TlsAcceptor>) -> Option<Io> {
    // Only delays small answers if it fails.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else {
        return Some(Io::Plain(stream));
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Io::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "refused a connection to the etcd API");
            None
        }
        Err(_) => None,
    }
}

/// One client's connection.
pub(super) struct Connection {
    io: Io,
    _permit: OwnedSemaphorePermit,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
