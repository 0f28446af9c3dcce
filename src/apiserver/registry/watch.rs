//! Watches: where one starts, its frames, and the response that streams them until it is time to stop.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use apimachinery::codec::media::{MediaType, Transform};
use apimachinery::codec::protobuf::encode as encode_protobuf;
use apimachinery::{Status, Value};
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use rand::Rng;
use serde_json::json;

use super::options::ListOptions;
use super::output::Format;
use super::protobuf;
use super::select::Selectors;
use super::{Registry, errors, table};
use crate::body::{Body, BodyError};
use crate::cache::{CacheError, Encoder, EncodingId, Entry, From, Kind as EventKind, Watch};

/// Bytes of frames that are ready sent in one piece.
const PIECE: usize = 64 * 1024;

const STREAMABLE: [&str; 2] = [
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];

/// Makes the frames of one format.
struct Frames(Format);

impl Encoder for Frames {
    fn id(&self) -> EncodingId {
        self.0.id()
    }

    fn event(&self, kind: EventKind, entry: &Entry, revision: i64, first: bool) -> Bytes {
        let format = &self.0;
        let object = if format.transform == Transform::Table {
            format
                .value(entry, revision)
                .and_then(|value| table::single(format, entry, &value, revision, first))
        } else {
            format.encode(entry, revision)
        };
        match object {
            Ok(object) => frame(format.media, name(kind), &object),
            Err(status) => error_frame(format.media, &status),
        }
    }

    fn bookmark(&self, kind: EventKind, revision: i64) -> Bytes {
        let format = &self.0;
        let object = bookmark(format, revision, kind == EventKind::InitialEventsEnd);
        frame(format.media, "BOOKMARK", &object)
    }

    fn first_differs(&self) -> bool {
        self.0.transform == Transform::Table
    }
}

fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Added => "ADDED",
        EventKind::Modified => "MODIFIED",
        EventKind::Deleted => "DELETED",
        EventKind::Bookmark | EventKind::InitialEventsEnd => "BOOKMARK",
    }
}

/// An object that says nothing but a revision.
fn bookmark(format: &Format, revision: i64, initial_end: bool) -> Vec<u8> {
    let mut metadata = json!({
        "resourceVersion": revision.to_string(),
        "creationTimestamp": null,
    });
    if initial_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let (version, kind) = match format.transform {
        Transform::None => (format.resource.api_version(), format.resource.kind),
        Transform::Table => return table::bookmark(format, &metadata),
        _ => (format.meta_version().to_owned(), "PartialObjectMetadata"),
    };
    let mut object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
    let schema = format.resource.schema;
    if format.media == MediaType::Protobuf {
        let raw = encode_protobuf(&object, schema);
        return protobuf::seal(&version, kind, &raw);
    }
    if format.transform == Transform::None {
        apimachinery::schema::complete(&mut object, schema);
    }
    super::codec::encode_object(&object, false).into()
}

/// One event on the wire: a line of JSON, or a length and a WatchEvent message.
fn frame(media: MediaType, kind: &str, object: &[u8]) -> Bytes {
    if media == MediaType::Protobuf {
        return protobuf::watch_frame(kind, object).into();
    }
    let mut out = BytesMut::with_capacity(object.len() + kind.len() + 24);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}

fn error_frame(media: MediaType, status: &Status) -> Bytes {
    let value: Value = status.to_value();
    if media == MediaType::Protobuf
        && let Some(message) = api::message_for("", "v1", "Status")
    {
        let raw = encode_protobuf(&value, message);
        return frame(media, "ERROR", &protobuf::seal("v1", "Status", &raw));
    }
    frame(media, "ERROR", &super::codec::encode_object(&value, false))
}

impl Registry {
    /// Starts a watch in `namespace` (`""`: all).
    pub(super) async fn watch(
        &self,
        format: Format,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<Response<Body>, Status> {
        if format.media == MediaType::Yaml {
            return Err(Status::not_acceptable(&STREAMABLE));
        }
        let kind = format.kind.clone();
        let selectors = Selectors::parse(
            format.resource,
            &options.label_selector,
            &options.field_selector,
        )?;
        let selection = selectors.selection(&kind, kind.scope(namespace), namespace);
        let cache = kind.cache(self);
        let revision = options.revision()?;
        let from = match (options.send_initial_events, revision) {
            (Some(true), Some(revision)) if revision > 0 => {
                cache.wait(revision).await.map_err(errors::cache)?;
                From::Snapshot { mark_end: true }
            }
            (Some(true), revision) => {
                if revision.is_none() {
                    cache.catch_up().await.map_err(errors::cache)?;
                }
                From::Snapshot { mark_end: true }
            }
            (Some(false), None | Some(0)) => {
                cache.filled().await.map_err(errors::cache)?;
                From::Revision(cache.revision())
            }
            (_, None | Some(0)) => From::Snapshot { mark_end: false },
            (_, Some(revision)) => From::Revision(revision),
        };
        let media = format.media;
        let encoder: Arc<dyn Encoder> = Arc::new(Frames(format));
        let opened = cache
            .watch(from, selection, Some(encoder), options.bookmarks)
            .await;
        let body = match opened {
            Ok(watch) => Body::stream(WatchBody {
                watch: Some(watch),
                media,
                timeout: Box::pin(tokio::time::sleep(self.watch_timeout(options))),
                told: None,
            }),
            Err(CacheError::TooOld { requested, oldest }) => {
                error_frame(media, &Status::too_old(requested, oldest)).into()
            }
            Err(error) => return Err(errors::cache(error)),
        };
        let mut response = Response::new(body);
        let media_type = match media {
            MediaType::Protobuf => STREAMABLE[1],
            _ => "application/json",
        };
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        Ok(response)
    }

    /// The client's timeout, or a random one, so that watches do not all end at once.
    fn watch_timeout(&self, options: &ListOptions) -> Duration {
        match options.timeout_seconds {
            Some(seconds) => Duration::from_secs(seconds),
            None => self
                .options
                .limits
                .min_request_timeout
                .mul_f64(rand::rng().random_range(1.0..2.0)),
        }
    }
}

/// The stream of a watch's frames.
struct WatchBody {
    /// `None` once an error was sent.
    watch: Option<Watch>,
    media: MediaType,
    timeout: Pin<Box<tokio::time::Sleep>>,
    /// Whom `timeout` wakes.
    told: Option<Waker>,
}

impl WatchBody {
    /// Whether the watch's time has come. The timer is only told whom to wake when that changed: events come far more
    /// often.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let is_told = |told: &Waker| told.will_wake(cx.waker());
        if self.told.as_ref().is_some_and(is_told) {
            return self.timeout.is_elapsed();
        }
        self.told = Some(cx.waker().clone());
        self.timeout.as_mut().poll(cx).is_ready()
    }
}

impl Stream for WatchBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(watch) = &mut this.watch else {
            return Poll::Ready(None);
        };
        let mut first: Option<Bytes> = None;
        let mut joined: Option<BytesMut> = None;
        loop {
            let size = joined.as_ref().map_or(0, BytesMut::len);
            if size >= PIECE {
                break;
            }
            let bytes = match watch.poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => {
                    this.watch = None;
                    break;
                }
                Poll::Ready(Some(Err(error))) => {
                    this.watch = None;
                    push(
                        &mut first,
                        &mut joined,
                        error_frame(this.media, &errors::cache(error)),
                    );
                    break;
                }
                Poll::Ready(Some(Ok(delivery))) => delivery.frame.unwrap_or_default(),
            };
            push(&mut first, &mut joined, bytes);
        }
        if let Some(bytes) = joined.map(BytesMut::freeze).or(first) {
            return Poll::Ready(Some(Ok(bytes)));
        }
        if this.watch.is_none() || this.is_over(cx) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }
}

/// Collects frames; a lone one is passed on as it is.
fn push(first: &mut Option<Bytes>, joined: &mut Option<BytesMut>, frame: Bytes) {
    if let Some(joined) = joined {
        joined.extend_from_slice(&frame);
    } else if let Some(lone) = first.take() {
        let mut both = BytesMut::with_capacity((lone.len() + frame.len()) * 4);
        both.extend_from_slice(&lone);
        both.extend_from_slice(&frame);
        *joined = Some(both);
    } else {
        *first = Some(frame);
    }
}
