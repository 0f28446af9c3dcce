//! The one body type, for requests and responses alike: bytes at hand, or a stream of them.
//!
//! Read `Body` first. An object's cached bytes travel through here without a copy.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use apimachinery::status::Status;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body::{Frame, SizeHint};

/// What a broken stream carries; hyper resets the HTTP/2 stream or closes the connection on it.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

type BoxedBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>;

/// A request's or response's payload.
pub struct Body {
    inner: Inner,
    /// Dropped after `inner`, when the body has been sent or given up.
    guards: Vec<Box<dyn Send>>,
}

enum Inner {
    Empty,
    Full(Bytes),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>),
    Incoming(hyper::body::Incoming),
    Boxed(BoxedBody),
}

/// How much of a body that is too large is read and dropped, and for how long.
const DISCARD_BYTES: usize = 32 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Why a request's body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// More than the limit (bytes).
    #[error("limit is {0}")]
    TooLarge(usize),
    #[error("read request body: {0}")]
    Broken(BodyError),
}

impl From<CollectError> for Status {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::TooLarge(limit) => {
                Self::request_entity_too_large(&format!("limit is {limit}"))
            }
            CollectError::Broken(error) => Self::bad_request(error.to_string()),
        }
    }
}

impl Body {
    pub fn empty() -> Self {
        Self::new(Inner::Empty)
    }

    fn new(inner: Inner) -> Self {
        Self {
            inner,
            guards: Vec::new(),
        }
    }

    /// Sends each item as it comes; the peer sees the end when the stream ends. This is how watches, lists and
    /// logs are sent. Dropping the body (the client went away) drops the stream.
    pub fn stream<S>(stream: S) -> Self
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
    {
        Self::new(Inner::Stream(Box::pin(stream)))
    }

    /// Wraps any other body, trailers included (proxies use this).
    pub fn boxed<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Self::new(Inner::Boxed(Box::pin(http_body_util::BodyExt::map_err(
            body,
            Into::into,
        ))))
    }

    /// Keeps `guard` alive until the body has been sent or given up.
    pub fn holding(mut self, guard: impl Send + 'static) -> Self {
        self.guards.push(Box::new(guard));
        self
    }

    /// The bytes, when they are at hand without waiting.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match &self.inner {
            Inner::Full(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Reads everything, up to `limit` bytes. Of what is too large some more is read and dropped.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, CollectError> {
        let hint = http_body::Body::size_hint(&self);
        if hint.lower() > limit as u64 {
            discard(&mut self).await;
            return Err(CollectError::TooLarge(limit));
        }
        match self.inner {
            Inner::Empty => Ok(Bytes::new()),
            Inner::Full(bytes) => Ok(bytes),
            _ => collect_frames(self, limit).await,
        }
    }

    /// The body as a stream of its data, without trailers.
    pub fn into_stream(self) -> Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>> {
        match self.inner {
            Inner::Stream(stream) if self.guards.is_empty() => stream,
            _ => Box::pin(
                http_body_util::BodyStream::new(self).filter_map(|frame| async move {
                    match frame {
                        Ok(frame) => frame.into_data().ok().map(Ok),
                        Err(error) => Some(Err(error)),
                    }
                }),
            ),
        }
    }
}

/// Reads on, so that a client that sends all before it reads anything gets its answer and not a broken connection.
async fn discard(body: &mut Body) {
    read_off(body, DISCARD_BYTES, DISCARD_TIME).await;
}

/// Reads and drops what comes of a body, until so many bytes came or so much time went by.
pub(crate) async fn read_off<B>(body: &mut B, bytes: usize, time: Duration)
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    use http_body_util::BodyExt;
    let all = async {
        let mut left = bytes;
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(size) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // A client that sends no more is not waited for.
    let _ = tokio::time::timeout(time, all).await;
}

async fn collect_frames(mut body: Body, limit: usize) -> Result<Bytes, CollectError> {
    use http_body_util::BodyExt;
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(CollectError::Broken)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let have = if rest.is_empty() {
            first.len()
        } else {
            rest.len()
        };
        if have + data.len() > limit {
            drop((first, rest));
            discard(&mut body).await;
            return Err(CollectError::TooLarge(limit));
        }
        if have == 0 {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() {
        first
    } else {
        Bytes::from(rest)
    })
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.inner {
            Inner::Empty => f.write_str("Body(empty)"),
            Inner::Full(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            _ => f.write_str("Body(stream)"),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(Inner::Full(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(Inner::Full(bytes.into()))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::new(Inner::Full(text.into()))
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self::new(Inner::Full(Bytes::from_static(text.as_bytes())))
    }
}

impl From<hyper::body::Incoming> for Body {
    fn from(incoming: hyper::body::Incoming) -> Self {
        Self::new(Inner::Incoming(incoming))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match &mut this.inner {
            Inner::Empty => Poll::Ready(None),
            Inner::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                this.inner = Inner::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Inner::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|item| item.map(|result| result.map(Frame::data))),
            Inner::Incoming(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map(|frame| frame.map(|result| result.map_err(Into::into))),
            Inner::Boxed(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Empty => true,
            Inner::Full(bytes) => bytes.is_empty(),
            Inner::Stream(_) => false,
            Inner::Incoming(incoming) => incoming.is_end_stream(),
            Inner::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Empty => SizeHint::with_exact(0),
            Inner::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Stream(_) => SizeHint::default(),
            Inner::Incoming(incoming) => incoming.size_hint(),
            Inner::Boxed(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_without_being_read_whole() {
        let chunks = std::iter::repeat_with(|| Ok(Bytes::from_static(&[0u8; 1024])));
        let endless = Body::stream(futures::stream::iter(chunks));
        let error = endless.collect(10_000).await.expect_err("over the limit");
        assert!(matches!(error, CollectError::TooLarge(10_000)));
    }

    #[tokio::test]
    async fn a_client_that_sends_too_much_before_it_reads_gets_to_the_end() {
        let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = sent.clone();
        let chunks = (0..64).map(move |_| {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(Bytes::from_static(&[0u8; 1024]))
        });
        let body = Body::stream(futures::stream::iter(chunks));
        body.collect(10_000).await.expect_err("over the limit");
        assert_eq!(sent.load(std::sync::atomic::Ordering::Relaxed), 64);
    }

    #[tokio::test]
    async fn chunks_are_joined_in_order() {
        let chunks = ["a", "", "bc", "d"].map(|text| Ok(Bytes::from_static(text.as_bytes())));
        let body = Body::stream(futures::stream::iter(chunks));
        assert_eq!(&body.collect(4).await.expect("fits")[..], b"abcd");
    }
}
