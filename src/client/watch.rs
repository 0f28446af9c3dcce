//! A watch as a stream of typed events: frames of JSON cut out of a body that never ends.
//!
//! The server writes one compact JSON object per line. `Frames` does the cutting and is bounded; `WatchStream` decodes.

use std::{
    borrow::Cow,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use apimachinery::status::Status;
use bytes::{Buf, Bytes, BytesMut};
use futures::Stream;
use http_body::Body;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{BoxBody, ClientError, Result};

/// Most bytes of one event: an object of at most 3 MiB, with room for its envelope and escapes.
const MAX_FRAME: usize = 16 << 20;

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum WatchEvent<T> {
    Added(T),
    Modified(T),
    /// The object's last state, with the resourceVersion of its deletion.
    Deleted(T),
    /// All changes up to this version have been sent.
    Bookmark {
        resource_version: String,
        /// The synthetic events of `sendInitialEvents` are all sent.
        initial_events_end: bool,
    },
}

/// Events in order, until the server ends the stream (`None`) or it fails (one `Err`, then `None`).
/// An ERROR event of the server is `Err(ClientError::Api)`; 410 says that the version is too old to resume from.
pub struct WatchStream<T> {
    frames: Frames,
    ended: bool,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> WatchStream<T> {
    pub(crate) fn new(body: BoxBody) -> Self {
        WatchStream {
            frames: Frames::new(body),
            ended: false,
            of: PhantomData,
        }
    }
}

impl<T: DeserializeOwned> Stream for WatchStream<T> {
    type Item = Result<WatchEvent<T>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match ready!(self.frames.poll_frame(cx)) {
            None => None,
            Some(Err(error)) => Some(Err(error)),
            Some(Ok(frame)) => Some(decode(&frame)),
        };
        self.ended = !matches!(event, Some(Ok(_)));
        Poll::Ready(event)
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct BookmarkObject<'a> {
    #[serde(borrow)]
    metadata: BookmarkMeta<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(default)]
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<WatchEvent<T>> {
    let envelope: Envelope = serde_json::from_slice(frame).map_err(ClientError::Decode)?;
    let object = || serde_json::from_str(envelope.object.get()).map_err(ClientError::Decode);
    match envelope.kind.as_ref() {
        "ADDED" => Ok(WatchEvent::Added(object()?)),
        "MODIFIED" => Ok(WatchEvent::Modified(object()?)),
        "DELETED" => Ok(WatchEvent::Deleted(object()?)),
        "BOOKMARK" => {
            let bookmark: BookmarkObject =
                serde_json::from_str(envelope.object.get()).map_err(ClientError::Decode)?;
            Ok(WatchEvent::Bookmark {
                resource_version: bookmark.metadata.resource_version.into_owned(),
                initial_events_end: bookmark.metadata.annotations.is_some_and(|annotations| {
                    annotations
                        .get("k8s.io/initial-events-end")
                        .is_some_and(|value| value == "true")
                }),
            })
        }
        "ERROR" => {
            let status: Status =
                serde_json::from_str(envelope.object.get()).map_err(ClientError::Decode)?;
            Err(status.into())
        }
        other => {
            let message = format!("unknown watch event type {other:?}");
            Err(ClientError::Decode(serde::de::Error::custom(message)))
        }
    }
}

/// Lines cut out of a body, none longer than `MAX_FRAME`.
struct Frames {
    body: BoxBody,
    buffer: BytesMut,
    /// How much of `buffer` holds no line end.
    searched: usize,
    finished: bool,
}

impl Frames {
    fn new(body: BoxBody) -> Self {
        Frames {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            finished: false,
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        loop {
            if let Some(frame) = self.cut() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.buffer.len() > MAX_FRAME {
                return Poll::Ready(Some(Err(ClientError::TooLarge(MAX_FRAME))));
            }
            if self.finished {
                // A frame without its line end was cut off; what it says is not trusted.
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => self.finished = true,
                Some(Err(error)) => {
                    self.finished = true;
                    return Poll::Ready(Some(Err(ClientError::Transport(error))));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    fn cut(&mut self) -> Option<Bytes> {
        loop {
            let found = self.buffer[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            let Some(position) = found else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + position).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use http_body_util::StreamBody;
    use serde_json::Value;

    fn body(chunks: Vec<&'static str>) -> BoxBody {
        let frames = chunks.into_iter().map(|chunk| {
            Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(chunk.as_bytes())))
        });
        crate::boxed(StreamBody::new(futures::stream::iter(frames)))
    }

    #[tokio::test]
    async fn frames_may_be_cut_anywhere() {
        let mut stream = WatchStream::<Value>::new(body(vec![
            "{\"type\":\"ADDED\",\"obj",
            "ect\":{\"a\":1}}\n{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\",",
            "\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n\n",
            "{\"type\":\"DELETED\",\"object\":{\"a\":2}}\n{\"type\":\"ADD",
        ]));
        assert!(matches!(stream.next().await, Some(Ok(WatchEvent::Added(v))) if v["a"] == 1));
        assert!(matches!(
            stream.next().await,
            Some(Ok(WatchEvent::Bookmark { resource_version, initial_events_end: true })) if resource_version == "7"
        ));
        assert!(matches!(stream.next().await, Some(Ok(WatchEvent::Deleted(v))) if v["a"] == 2));
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn an_error_event_is_the_servers_status_and_ends_the_stream() {
        let mut stream = WatchStream::<Value>::new(body(vec![
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"too old\",\"reason\":\"Expired\",\"code\":410}}\n",
        ]));
        let error = stream.next().await.and_then(Result::err);
        assert!(error.is_some_and(|error| error.is_gone()));
        assert!(stream.next().await.is_none());
    }
}
