//! Certificates, a backend made for tests, a running server and clients of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::Value;
use apimachinery::status::Status;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use store::embedded::Embedded;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::TaskTracker;

use crate::backend::Generation;
use crate::options::{KeyPair as PemPair, Limits, Options, Pem, TlsOptions};
use crate::{Backend, Body, RequestContext, Server, Verb};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A client certificate and its key in PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "kubernetes");
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    pub fn client(&self, name: &str, group: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn server(&self) -> Identity {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Answers by the requested name: `panic`, `slow`, `big`, `upgrade`, `warn`, `body`; watches run until the server drains.
pub struct Scripted;

#[async_trait::async_trait]
impl Backend for Scripted {
    async fn handle(
        &self,
        context: RequestContext,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        if context.info.verb == Verb::Watch {
            return Ok(Response::new(until_drained(context)));
        }
        match context.info.name.as_str() {
            "panic" => panic!("asked for"),
            "slow" => tokio::time::sleep(Duration::from_secs(3600)).await,
            "big" => return Ok(Response::new(vec![b'x'; 1_000_000].into())),
            "warn" => context.warnings.add("careful"),
            "upgrade" => return Ok(upgrade(request)),
            "body" => {
                let body = request.into_body().collect(3 * 1024 * 1024).await?;
                return Ok(Response::new(body.into()));
            }
            _ => {}
        }
        Ok(Response::new(context.user.name.clone().into()))
    }

    async fn find(
        &self,
        _group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Status> {
        let uid = format!("uid-of-{name}");
        let known = matches!(
            (plural, namespace, name),
            ("serviceaccounts", "default", "sa") | ("pods", "default", "p")
        );
        Ok(known.then(|| Arc::new(json!({"metadata": {"name": name, "uid": uid}}))))
    }

    fn cached_list(&self, _group: &str, _plural: &str) -> Vec<Arc<Value>> {
        Vec::new()
    }

    fn generation(&self, _group: &str, _plural: &str) -> Generation {
        0
    }

    fn is_synced(&self) -> bool {
        true
    }
}

fn until_drained(context: RequestContext) -> Body {
    let first = futures::stream::iter([Ok(Bytes::from_static(b"first"))]);
    let end = futures::FutureExt::into_stream(async move {
        context.shutdown.cancelled().await;
        Ok(Bytes::from_static(b"last"))
    });
    Body::stream(futures::StreamExt::chain(first, end))
}

/// Echoes on the upgraded connection.
fn upgrade(mut request: Request<Body>) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut request);
    let echo = TaskTracker::new();
    echo.spawn(async move {
        let stream = upgraded.await.expect("an upgrade");
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
        tokio::io::copy(&mut reader, &mut writer).await
    });
    Response::builder()
        .status(101)
        .header("connection", "upgrade")
        .header("upgrade", "echo")
        .body(Body::empty())
        .expect("a response")
}

/// A running server.
pub struct Harness {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    pub authority: Authority,
    pub tokens: Arc<crate::authn::token::Tokens>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Harness {
    pub async fn start() -> Self {
        Self::start_with(Limits::default()).await
    }

    pub async fn start_with(limits: Limits) -> Self {
        let authority = Authority::new();
        let mut options = options(&authority);
        options.limits = limits;
        let mut tokens = None;
        let server = Server::with_backend(options, |parts| {
            tokens = Some(parts.tokens);
            Arc::new(Scripted)
        })
        .expect("a server");
        Self::serve(authority, server, tokens.expect("made with the server")).await
    }

    /// A server with its real registry, ready, on a store in memory.
    pub async fn real() -> Self {
        let authority = Authority::new();
        let mut options = options(&authority);
        options.admission.enable.push("NodeRestriction".to_owned());
        let tokens = crate::authn::token::Tokens::new(&options).expect("keys");
        let server = Server::start(options).await.expect("a server");
        while !server.backend().is_synced() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self::serve(authority, server, Arc::new(tokens)).await
    }

    async fn serve(
        authority: Authority,
        server: Arc<Server>,
        tokens: Arc<crate::authn::token::Tokens>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = {
            let server = server.clone();
            tokio::spawn(async move { server.serve(listener).await.expect("to serve") })
        };
        Self {
            server,
            address,
            authority,
            tokens,
            serving,
        }
    }

    pub fn admin(&self) -> Identity {
        self.authority.client("admin", "system:masters")
    }

    /// A TLS connection speaking `protocol` (`h2` or `http/1.1`).
    pub async fn connect(
        &self,
        identity: Option<&Identity>,
        protocol: &str,
    ) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        let ca =
            CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).expect("a certificate");
        roots.add(ca).expect("a CA");
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
                    .collect::<Result<Vec<_>, _>>()
                    .expect("certificates");
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
                builder
                    .with_client_auth_cert(chain, key)
                    .expect("an identity")
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .expect("a handshake")
    }

    /// An HTTP/2 client.
    pub async fn client(&self, identity: Option<&Identity>) -> Client {
        let stream = self.connect(identity, "h2").await;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("HTTP/2");
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Client {
            sender,
            _connection: Abort(connection),
        }
    }
}

fn options(authority: &Authority) -> Options {
    let serving = authority.server();
    let mut options = Options::new(Embedded::in_memory());
    options.tls = Some(TlsOptions {
        serving: PemPair {
            certificate: Pem::Bytes(serving.certificate.into_bytes()),
            key: Pem::Bytes(serving.key.into_bytes()),
        },
        client_ca: Some(Pem::Bytes(authority.pem().into_bytes())),
    });
    let key = crate::authn::keys::tests::ec_pem();
    options.service_accounts.signing_key = Some(Pem::Bytes(key.into_bytes()));
    options
}

struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An HTTP/2 connection to the server.
pub struct Client {
    sender: hyper::client::conn::http2::SendRequest<Outgoing>,
    _connection: Abort,
}

/// A request's body.
pub type Outgoing = Full<Bytes>;

/// An answer read whole.
pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("text"))
    }

    /// Code, reason and message of a Status.
    #[track_caller]
    pub fn is_status(&self, code: u16, reason: &str, message: &str) {
        let status = self.json();
        let got = (
            self.code,
            status["reason"].as_str(),
            status["message"].as_str(),
        );
        assert_eq!(got, (code, Some(reason), Some(message)));
        assert_eq!(status["code"], code);
    }
}

impl Client {
    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Bytes::new()).await
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let response = self.open(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        Answer {
            code: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.expect("a body").to_bytes(),
        }
    }

    pub async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<hyper::body::Incoming> {
        self.try_open(method, path, headers, body)
            .await
            .expect("a response")
    }

    pub async fn try_open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<hyper::body::Incoming>, hyper::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        self.sender.clone().send_request(request).await
    }
}
