//! Small network clients for probes and hooks: one HTTP request, one TCP
//! connection, one gRPC health check, each with a deadline. Certificates are
//! not checked, as upstream does not: probes look at the pod's own.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Redirects on the same host that are followed, as Go's client does.
const MAX_REDIRECTS: usize = 10;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// It pointed to another host and was not followed.
    pub redirected_away: bool,
}

/// GETs `uri`. Redirects are followed on the same host only.
pub async fn get(uri: &Uri, headers: &HeaderMap, timeout: Duration) -> Result<Answer, String> {
    let deadline = tokio::time::timeout(timeout, follow(uri.clone(), headers));
    deadline.await.unwrap_or_else(|_| {
        Err(format!(
            "Get {:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            uri.to_string()
        ))
    })
}

async fn follow(mut uri: Uri, headers: &HeaderMap) -> Result<Answer, String> {
    for _ in 0..MAX_REDIRECTS {
        let failed = |error: String| format!("Get {:?}: {error}", uri.to_string());
        let (answer, location) = get_once(&uri, headers).await.map_err(failed)?;
        let Some(next) = location.filter(|_| answer.status.is_redirection()) else {
            return Ok(answer);
        };
        let next = resolve(&uri, &next).ok_or_else(|| failed("bad redirect".to_owned()))?;
        if next.host() != uri.host() {
            return Ok(Answer {
                redirected_away: true,
                ..answer
            });
        }
        uri = next;
    }
    Err(format!(
        "Get {:?}: stopped after {MAX_REDIRECTS} redirects",
        uri.to_string()
    ))
}

fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let location: Uri = location.parse().ok()?;
    if location.host().is_some() {
        return Some(location);
    }
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(location.path_and_query()?.clone());
    Uri::from_parts(parts).ok()
}

async fn get_once(uri: &Uri, headers: &HeaderMap) -> Result<(Answer, Option<String>), String> {
    let host = uri.host().unwrap_or_default();
    let bare = host.trim_matches(['[', ']']);
    let https = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
    let stream = connect(bare, port).await?;
    if !https {
        return exchange(stream, uri, headers).await;
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(unverified());
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    exchange(stream, uri, headers).await
}

/// Connects, with errors as Go words them.
pub async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let bracketed = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    TcpStream::connect((host, port)).await.map_err(|error| {
        let cause = match error.kind() {
            std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
            std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
            std::io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
            _ => error.to_string(),
        };
        format!("dial tcp {bracketed}:{port}: {cause}")
    })
}

async fn exchange<S>(
    stream: S,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(Answer, Option<String>), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(stream);
    let handshake = hyper::client::conn::http1::handshake::<_, Empty<bytes::Bytes>>(io);
    let (mut sender, connection) = handshake.await.map_err(|error| error.to_string())?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder().method(Method::GET).uri(path);
    if let Some(own) = request.headers_mut() {
        own.extend(headers.clone());
    }
    if !headers.contains_key(http::header::HOST) {
        request = request.header(
            http::header::HOST,
            uri.authority().map_or("", |a| a.as_str()),
        );
    }
    let request = request
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    // The connection is driven beside the request and ends with it.
    let answer = async {
        let response = sender.send_request(request).await.map_err(describe)?;
        let status = response.status();
        let location = response.headers().get(http::header::LOCATION);
        let location = location
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        Ok((
            Answer {
                status,
                redirected_away: false,
            },
            location,
        ))
    };
    tokio::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

fn describe(error: hyper::Error) -> String {
    if error.is_incomplete_message() {
        "EOF".to_owned()
    } else {
        error.to_string()
    }
}

fn unverified() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider's own defaults are consistent")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Arc::new(config)
}

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
