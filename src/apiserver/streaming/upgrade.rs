//! Passes an upgraded connection through as bytes, whatever protocol it speaks; and what all of these requests share.

use std::future::Future;
use std::io;

use apimachinery::status::{Reason, Status};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::Streaming;
use super::backend::{ConnectError, Connection};
use crate::body::Body;
use crate::request::RequestContext;

/// Bytes on their way in each direction of a connection that is passed through.
const COPY_BYTES: usize = 32 * 1024;

/// Headers that concern one hop only (RFC 9110, and Go's `httputil.ReverseProxy`).
const HOP_HEADERS: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Whether the client asks for another protocol.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        let tokens = value.to_str().unwrap_or("").split(',');
        tokens
            .into_iter()
            .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
    })
}

/// A request's headers without those of its own hop and those that say who asks.
pub(super) fn forwardable(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    remove_hop_headers(&mut kept);
    kept.remove(header::AUTHORIZATION);
    let impersonation: Vec<_> = kept
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in impersonation {
        kept.remove(name);
    }
    kept
}

/// Removes what concerns one hop only, and what `Connection` says does.
pub(super) fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect();
    for name in HOP_HEADERS.iter().chain(&named) {
        headers.remove(name);
    }
}

/// Writes a query value as Go's `url.QueryEscape` does.
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte))
            }
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The answer when the other end cannot be reached for an upgrade.
pub(super) fn dial_failed(error: &ConnectError) -> Status {
    Status::failure(
        500,
        Reason::Unknown,
        format!("error dialing backend: {error}"),
    )
}

/// The answer to a request that had to ask for an upgrade.
pub(super) fn required() -> Status {
    Status::bad_request("Upgrade request required")
}

impl Streaming {
    /// Sends the client's upgrade request on as it is, to `target` (path and query), and connects both ends if it is
    /// granted. A refusal is passed on, too.
    pub(super) async fn pass_through(
        &self,
        context: &RequestContext,
        mut request: Request<Body>,
        connection: Connection,
        target: &str,
        authority: &str,
    ) -> Result<Response<Body>, Status> {
        let client = hyper::upgrade::on(&mut request);
        let mut onward = Request::new(Body::empty());
        *onward.method_mut() = request.method().clone();
        *onward.uri_mut() = target
            .parse()
            .map_err(|_| Status::bad_request(format!("invalid path {target:?}")))?;
        let headers = onward.headers_mut();
        *headers = forwardable(request.headers());
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(protocol) = request.headers().get(header::UPGRADE) {
            headers.insert(header::UPGRADE, protocol.clone());
        }
        if let Ok(host) = HeaderValue::from_str(authority) {
            headers.insert(header::HOST, host);
        }
        let mut answer = connection
            .send(onward)
            .await
            .map_err(|error| dial_failed(&error))?;
        if answer.response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let mut response = answer.into_response();
            remove_hop_headers(response.headers_mut());
            return Ok(response);
        }
        let backend = hyper::upgrade::on(&mut answer.response);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = std::mem::take(answer.response.headers_mut());
        self.spawn(context, copy(client, backend));
        Ok(response)
    }

    /// Runs an upgraded connection until it ends or the server drains.
    pub(super) fn spawn(
        &self,
        context: &RequestContext,
        work: impl Future<Output = io::Result<()>> + Send + 'static,
    ) {
        let shutdown = context.shutdown.clone();
        let what = context.info.path.clone();
        self.tasks.spawn(async move {
            if let Some(Err(error)) = shutdown.run_until_cancelled(work).await {
                // Mostly one end that hung up, which is how these connections end.
                tracing::debug!(%error, path = what, "a streaming connection ended");
            }
        });
    }
}

async fn copy(client: OnUpgrade, backend: OnUpgrade) -> io::Result<()> {
    let (client, backend) = tokio::try_join!(client, backend).map_err(io::Error::other)?;
    let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut backend, COPY_BYTES, COPY_BYTES)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_hop_headers_nor_credentials_are_sent_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Private"),
            ("x-private", "1"),
            ("authorization", "Bearer secret"),
            ("impersonate-user", "root"),
            ("te", "trailers"),
            ("accept", "text/plain"),
        ] {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let kept = forwardable(&headers);
        assert_eq!(
            kept.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["accept"]
        );
    }

    #[test]
    fn query_values_are_escaped_as_go_does() {
        assert_eq!(encode("a b&c=d/é~"), "a+b%26c%3Dd%2F%C3%A9~");
    }
}
