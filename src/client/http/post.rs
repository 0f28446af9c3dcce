//! One JSON document for another over HTTP/1.1: what callbacks of others' programs speak, such as scheduler extenders.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::tls::Tls;
use crate::{
    BoxError,
    config::{ConfigError, RestConfig},
};

/// Longest answer that is read (bytes): the names of some ten thousand nodes with a reason each.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// A server that is POSTed to, with a connection for each request.
pub struct Endpoint {
    host: String,
    port: u16,
    authority: String,
    prefix: String,
    tls: Option<Tls>,
}

/// Why there is no answer: the variant is the step that failed.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: BoxError },
    #[error("send the request: {0}")]
    Exchange(BoxError),
    #[error("failed with code {0}")]
    Code(u16),
    #[error("decode the answer: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("context deadline exceeded")]
    Timeout,
}

impl Endpoint {
    /// Checks the address and loads the certificates; connects later.
    ///
    /// # Errors
    /// An address that is none, certificates that cannot be read.
    pub fn new(config: RestConfig) -> Result<Self, ConfigError> {
        let invalid = || ConfigError::Server(config.server.clone());
        let uri: Uri = config.server.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?.clone();
        let host = authority.host().trim_matches(['[', ']']).to_string();
        let is_secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid()),
        };
        let tls = if is_secure {
            let name = config.server_name.as_deref().unwrap_or(&host);
            let insecure = config.insecure_skip_tls_verify;
            Some(Tls::new(
                name,
                config.ca,
                insecure,
                config.client_certificate,
                config.client_key,
            )?)
        } else {
            None
        };
        Ok(Endpoint {
            port: authority
                .port_u16()
                .unwrap_or(if is_secure { 443 } else { 80 }),
            authority: authority.to_string(),
            prefix: uri.path().trim_end_matches('/').to_string(),
            host,
            tls,
        })
    }

    /// POSTs to a path below the address and gives the answer.
    ///
    /// # Errors
    /// No answer in time, one that is not of success, or is no JSON.
    pub async fn post(
        &self,
        path: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<Value, PostError> {
        let exchange = self.exchange(path, body);
        tokio::time::timeout(timeout, exchange)
            .await
            .unwrap_or(Err(PostError::Timeout))
    }

    async fn exchange(&self, path: &str, body: &Value) -> Result<Value, PostError> {
        let failed = |source: BoxError| PostError::Connect {
            address: self.authority.clone(),
            source,
        };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| failed(error.into()))?;
        match &self.tls {
            None => self.over(stream, path, body).await,
            Some(tls) => {
                let stream = tls.connect_http1(stream).await.map_err(failed)?;
                self.over(stream, path, body).await
            }
        }
    }

    async fn over<S>(&self, stream: S, path: &str, body: &Value) -> Result<Value, PostError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = |error: BoxError| PostError::Exchange(error);
        let request = Request::post(format!("{}/{}", self.prefix, path.trim_start_matches('/')))
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| broken(error.into()))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(error.into()))?;
        let exchange = async {
            let answer = sender
                .send_request(request)
                .await
                .map_err(|error| broken(error.into()))?;
            if answer.status() != StatusCode::OK {
                return Err(PostError::Code(answer.status().as_u16()));
            }
            let bytes = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            Ok(serde_json::from_slice(&bytes.map_err(broken)?.to_bytes())?)
        };
        // The connection makes progress only while it is polled; it ends with the exchange.
        tokio::pin!(connection);
        tokio::pin!(exchange);
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = &mut connection => match ended {
                // The answer may be complete already.
                Ok(()) => exchange.await,
                Err(error) => Err(broken(error.into())),
            },
        }
    }
}
