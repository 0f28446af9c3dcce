//! Connections to kubelets, pods and services: TCP, TLS with the right identity, and HTTP/1.1 on top.
//!
//! A connection serves one request: most of these requests take it over for good, and a handshake costs a
//! millisecond. Its driver task ends with the response that came over it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::body::Body;
use crate::options::{KubeletClientOptions, Pem};

/// Certificates are read from their files again when a connection is made after this long.
const RELOAD: Duration = Duration::from_secs(60);

/// How the other end is to be known, and shown who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Security {
    /// A kubelet, whose certificate is verified if there is a CA.
    Kubelet,
    /// A kubelet whose certificate is not looked at (`insecureSkipTLSVerifyBackend`).
    UnverifiedKubelet,
    /// A pod's or service's own TLS, whose certificate nobody here could judge; no identity is shown.
    Anybody,
    /// No TLS.
    Plain,
}

/// Why there is no connection. Displayed as Go's net package would, for that is what users search for.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// `host:port` and what the kernel said.
    Dial(String, io::Error),
    /// `host:port`.
    Timeout(String),
    Tls(io::Error),
    Credentials(String),
    Http(hyper::Error),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(address, error) => {
                let why = match error.kind() {
                    io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
                    io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
                    io::ErrorKind::NetworkUnreachable => {
                        "connect: network is unreachable".to_owned()
                    }
                    io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
                    _ => error.to_string(),
                };
                write!(f, "dial tcp {address}: {why}")
            }
            Self::Timeout(address) => write!(f, "dial tcp {address}: i/o timeout"),
            Self::Tls(error) => write!(f, "tls: {error}"),
            Self::Credentials(why) => f.write_str(why),
            Self::Http(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Makes connections.
pub(super) struct Connector {
    options: KubeletClientOptions,
    provider: Arc<CryptoProvider>,
    /// The three TLS configurations and when they were made.
    configs: Mutex<Option<(Instant, Configs)>>,
}

#[derive(Clone)]
struct Configs {
    kubelet: Arc<ClientConfig>,
    unverified: Arc<ClientConfig>,
    anybody: Arc<ClientConfig>,
}

/// An HTTP/1.1 connection that has not been used yet.
pub(super) struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Body>,
    driver: AbortOnDropHandle<()>,
}

/// A response with what keeps its connection going.
pub(super) struct Answer {
    pub response: Response<Incoming>,
    pub driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// Sends the one request of this connection.
    pub(super) async fn send(mut self, request: Request<Body>) -> Result<Answer, ConnectError> {
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(ConnectError::Http)?;
        Ok(Answer {
            response,
            driver: self.driver,
        })
    }
}

impl Answer {
    /// The response with a body that keeps the connection going until it is read or dropped.
    pub(super) fn into_response(self) -> Response<Body> {
        let driver = self.driver;
        self.response.map(|body| Body::from(body).holding(driver))
    }
}

impl Connector {
    pub(super) fn new(options: KubeletClientOptions) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Self {
            options,
            provider,
            configs: Mutex::new(None),
        }
    }

    /// Connects to `host` (a name or an address).
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        security: Security,
    ) -> Result<Connection, ConnectError> {
        let address = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let connecting = self.connect_untimed(host, port, &address, security);
        match tokio::time::timeout(self.options.timeout, connecting).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Timeout(address)),
        }
    }

    async fn connect_untimed(
        &self,
        host: &str,
        port: u16,
        address: &str,
        security: Security,
    ) -> Result<Connection, ConnectError> {
        let dial = |error| ConnectError::Dial(address.to_owned(), error);
        let stream = TcpStream::connect((host, port)).await.map_err(dial)?;
        // Keystrokes are small and must not wait for each other's acknowledgement.
        stream.set_nodelay(true).map_err(dial)?;
        let configs = self.configs();
        let config = match security {
            Security::Plain => return handshake(stream).await,
            Security::Kubelet => configs?.kubelet,
            Security::UnverifiedKubelet => configs?.unverified,
            Security::Anybody => configs?.anybody,
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| ConnectError::Credentials(error.to_string()))?;
        let stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(ConnectError::Tls)?;
        handshake(stream).await
    }

    fn configs(&self) -> Result<Configs, ConnectError> {
        let mut kept = self.configs.lock();
        if let Some((made, configs)) = &*kept
            && made.elapsed() < RELOAD
        {
            return Ok(configs.clone());
        }
        let configs = self.make_configs().map_err(|why| {
            ConnectError::Credentials(format!("kubelet client credentials: {why}"))
        })?;
        *kept = Some((Instant::now(), configs.clone()));
        Ok(configs)
    }

    fn make_configs(&self) -> Result<Configs, String> {
        let unverified = || Arc::new(AcceptAny(self.provider.clone()));
        let builder = || {
            ClientConfig::builder_with_provider(self.provider.clone())
                .with_safe_default_protocol_versions()
                .map_err(|e| e.to_string())
        };
        let finish =
            |builder: rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>| {
                let mut config = match &self.options.identity {
                    None => builder.with_no_client_auth(),
                    Some(identity) => {
                        let key = identity.key.read().map_err(|e| e.to_string())?;
                        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| e.to_string())?;
                        let chain = certificates(&identity.certificate)?;
                        builder
                            .with_client_auth_cert(chain, key)
                            .map_err(|e| e.to_string())?
                    }
                };
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                Ok::<_, String>(Arc::new(config))
            };
        let anything = || {
            Ok::<_, String>(
                builder()?
                    .dangerous()
                    .with_custom_certificate_verifier(unverified()),
            )
        };
        let kubelet = match &self.options.ca {
            None => anything()?,
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(ca)? {
                    roots.add(certificate).map_err(|e| e.to_string())?;
                }
                builder()?.with_root_certificates(roots)
            }
        };
        let mut anybody = anything()?.with_no_client_auth();
        anybody.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Configs {
            kubelet: finish(kubelet)?,
            unverified: finish(anything()?)?,
            anybody: Arc::new(anybody),
        })
    }
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = pem.read().map_err(|e| e.to_string())?;
    CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())
}

async fn handshake<S>(stream: S) -> Result<Connection, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(ConnectError::Http)?;
    let driver = tokio::spawn(async move {
        // Whoever waits for the response or its body is told the same.
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a backend connection ended");
        }
    });
    Ok(Connection {
        sender,
        driver: AbortOnDropHandle::new(driver),
    })
}

/// Takes any certificate, but still has the peer prove that it has its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
