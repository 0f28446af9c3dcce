//! Owns: what is left of a request's body when its answer is ready. A client that is still sending when the answer and
//! the end of its stream arrive may take both for a broken connection, so the rest is read first, within limits, as
//! Go's server does (`net/http` `maxPostHandlerReadBytes`).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use crate::body::{Body, read_off};

/// Bytes of a refused request that are read and dropped, and how long a client is waited for.
const REST_BYTES: usize = 256 << 10;
const REST_TIME: Duration = Duration::from_millis(500);

/// A body that is given back when its reader drops it before its end.
struct Lent {
    /// `None` once it is given back.
    incoming: Option<Incoming>,
    ended: bool,
    back: Option<oneshot::Sender<Incoming>>,
}

/// Where a body that was not read to its end comes back.
pub struct Unread(oneshot::Receiver<Incoming>);

/// The body for a request's handler, and what gives the rest of it. `None` when there is nothing to read, or when the
/// client sends nothing before it is told to.
pub fn lend(request: http::Request<Incoming>) -> (http::Request<Body>, Option<Unread>) {
    let is_empty = hyper::body::Body::is_end_stream(request.body());
    if is_empty || request.headers().contains_key(http::header::EXPECT) {
        return (request.map(Body::from), None);
    }
    let (back, unread) = oneshot::channel();
    let request = request.map(|incoming| {
        Body::boxed(Lent {
            incoming: Some(incoming),
            ended: false,
            back: Some(back),
        })
    });
    (request, Some(Unread(unread)))
}

impl Unread {
    /// Reads what the handler left. A body that is still being read, as by a proxy, is left to its reader.
    pub async fn read(mut self) {
        if let Ok(mut rest) = self.0.try_recv() {
            read_off(&mut rest, REST_BYTES, REST_TIME).await;
        }
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(incoming) = &mut this.incoming else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(incoming).poll_frame(cx);
        this.ended |= matches!(frame, Poll::Ready(None | Some(Err(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        let incoming = self.incoming.as_ref();
        incoming.is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let incoming = self.incoming.as_ref();
        incoming.map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.ended || http_body::Body::is_end_stream(self) {
            return;
        }
        if let (Some(incoming), Some(back)) = (self.incoming.take(), self.back.take()) {
            // Whoever lent it may be gone, with its client.
            let _ = back.send(incoming);
        }
    }
}
