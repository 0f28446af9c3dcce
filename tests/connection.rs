//! One HTTP/2 connection over TLS with a client certificate: the least a client can be.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// How to reach a server: its address and the certificates of its administrator.
#[derive(Clone)]
pub struct Target {
    pub address: String,
    tls: Arc<rustls::ClientConfig>,
}

impl Target {
    /// Reads `ca.crt`, `admin.crt` and `admin.key` in `pki`.
    pub fn new(pki: &Path, address: String) -> anyhow::Result<Self> {
        let read = |name: &str| std::fs::read(pki.join(name));
        let (certificate, key) = (read("admin.crt")?, read("admin.key")?);
        Self::with(pki, Some((&certificate, &key)), address)
    }

    /// With a certificate and its key in PEM, or without, for tokens; `ca.crt` in `pki` is whom it trusts.
    pub fn with(
        pki: &Path,
        identity: Option<(&[u8], &[u8])>,
        address: String,
    ) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(pki.join("ca.crt"))? {
            roots.add(certificate?)?;
        }
        let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
        let tls = match identity {
            Some((certificate, key)) => {
                let chain: Vec<_> =
                    CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Self {
            address,
            tls: Arc::new(tls),
        })
    }

    /// A connection without HTTP on it, for those who speak it in their own way.
    pub async fn tls(&self, protocol: &[u8]) -> anyhow::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(&self.address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").context("a server name")?;
        let mut config = (*self.tls).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await?)
    }

    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let tls = self.tls(b"h2").await?;
        let (sender, driver) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20)
            .handshake(TokioIo::new(tls))
            .await?;
        tokio::spawn(driver);
        Ok(Connection { sender })
    }
}

/// Clones share the connection.
#[derive(Clone)]
pub struct Connection {
    sender: Sender,
}

impl Connection {
    /// Sends one request and gives the response's head, its body still to be read.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = self.sender.clone();
        sender.ready().await?;
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// Sends one request, reads all of the answer and gives its length; anything but a 2xx is an error.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<usize> {
        let response = self.open(method, path, headers, body).await?;
        let status = response.status();
        let mut stream = response.into_body();
        let mut length = 0;
        let mut head = Vec::new();
        while let Some(frame) = stream.frame().await {
            if let Ok(data) = frame?.into_data() {
                length += data.len();
                if head.len() < 500 {
                    head.extend_from_slice(&data[..data.len().min(500)]);
                }
            }
        }
        anyhow::ensure!(
            status.is_success(),
            "{path}: {status}: {}",
            String::from_utf8_lossy(&head)
        );
        Ok(length)
    }

    /// Sends one request with a JSON body (none when `Null`) and gives the status code and the parsed answer; a body
    /// that is not JSON comes as a string.
    pub async fn json(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<(u16, Value)> {
        let bytes = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(body.to_string())
        };
        self.bytes(method, path, &[("content-type", "application/json")], bytes)
            .await
    }

    /// The same with the body and headers as given.
    pub async fn bytes(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<(u16, Value)> {
        let response = self.open(method, path, headers, body).await?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        Ok((
            status,
            serde_json::from_slice(&bytes).unwrap_or_else(|_| text()),
        ))
    }
}
