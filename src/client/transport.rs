//! What carries a request to an API server: the trait and its body type.
//!
//! Implementations: `http::Http` here; the API server gives an in-process one. Nothing here knows of Kubernetes.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::ClientError;

/// Any error a body may end in.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response's body, read frame by frame.
pub type BoxBody = UnsyncBoxBody<Bytes, BoxError>;

/// Carries one request and returns the head of its response as soon as that is known; the body streams.
///
/// Dropping the returned body (or the future) abandons the request. The request's URI has a path and a query only;
/// a transport adds scheme, authority and credentials. Status codes are not errors at this level.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends `request`. Errors are those of the way there and back, never the server's answer.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxBody>, ClientError>;

    /// Where requests go, as host and port; empty within a process.
    fn host(&self) -> &str {
        ""
    }
}

/// Boxes a body.
pub fn boxed<B>(body: B) -> BoxBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A body of one piece.
pub fn full(bytes: impl Into<Bytes>) -> BoxBody {
    boxed(Full::new(bytes.into()))
}
