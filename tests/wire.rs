//! What upstream's components put on the wire: protobuf bodies, answers and watch frames, with their `Accept` headers.

use anyhow::Context;
use api::message_for;
use apimachinery::codec::protobuf::{decode_object, encode_object};
use apimachinery::meta;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::connection::Connection;

pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What client-go's typed clients take.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
/// What its metadata clients take of an object or a watch.
pub const ACCEPT_METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// What its metadata clients take of a list.
pub const ACCEPT_METADATA_LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// The annotation of the bookmark that ends the initial events (KEP-3157).
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An answer, decoded from whichever encoding it came in.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    /// Its `Content-Type`.
    pub media: String,
    /// `Null` when it is none that can be decoded.
    pub object: Value,
}

impl Answer {
    /// The object of an answer with this code.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.object);
        self.object
    }
}

/// An object in its envelope.
///
/// # Errors
/// A kind that no table has.
pub fn encode(object: &Value) -> anyhow::Result<Bytes> {
    let (group, version) = meta::group_version(meta::api_version(object));
    let kind = meta::kind(object);
    let message = message_for(group, version, kind).with_context(|| format!("no kind {kind}"))?;
    Ok(encode_object(object, message).into())
}

/// The object of an envelope.
///
/// # Errors
/// Bytes that are none, or of a kind that no table has.
pub fn decode(bytes: &[u8]) -> anyhow::Result<Value> {
    decode_object(bytes, |api_version, kind| {
        let (group, version) = meta::group_version(api_version);
        message_for(group, version, kind)
    })
    .map_err(|error| anyhow::anyhow!("{error}"))
}

/// One request as client-go makes it: with these headers, which replace its own, and an object as protobuf.
pub async fn ask(
    connection: &Connection,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    object: Option<&Value>,
) -> anyhow::Result<Answer> {
    let body = object.map(encode).transpose()?.unwrap_or_default();
    send(connection, method, path, headers, body).await
}

/// The same with a body as it is; its type is among the headers.
pub async fn send(
    connection: &Connection,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> anyhow::Result<Answer> {
    let mut all = headers.to_vec();
    for (name, value) in [("accept", ACCEPT), ("content-type", PROTOBUF)] {
        if !headers.iter().any(|(given, _)| *given == name) {
            all.push((name, value));
        }
    }
    let response = connection.open(method, path, &all, body).await?;
    let code = response.status().as_u16();
    let media = response
        .headers()
        .get("content-type")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let bytes = response.into_body().collect().await?.to_bytes();
    let object = match media.as_str() {
        PROTOBUF => decode(&bytes)?,
        _ => serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()),
    };
    Ok(Answer {
        code,
        media,
        object,
    })
}

/// A watch of protobuf frames: a length of four bytes, and a `WatchEvent` of so many.
pub struct Frames {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Frames {
    /// Opens a watch.
    ///
    /// # Errors
    /// An answer that is no watch in protobuf.
    pub async fn open(
        connection: &Connection,
        path: &str,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let mut all = headers.to_vec();
        if !headers.iter().any(|(name, _)| *name == "accept") {
            all.push(("accept", ACCEPT));
        }
        let response = connection
            .open(Method::GET, path, &all, Bytes::new())
            .await?;
        let media = response.headers().get("content-type").cloned();
        anyhow::ensure!(
            response.status() == 200
                && media
                    .as_ref()
                    .is_some_and(|media| *media == format!("{PROTOBUF};stream=watch")),
            "{path}: {} in {media:?}",
            response.status()
        );
        Ok(Self {
            body: response.into_body(),
            buffer: Vec::new(),
        })
    }

    /// The next event's type and object; `None` at the end.
    ///
    /// # Errors
    /// A connection that breaks, and frames that cannot be read.
    pub async fn next(&mut self) -> anyhow::Result<Option<(String, Value)>> {
        loop {
            if let Some(head) = self.buffer.first_chunk::<4>() {
                let end = 4 + u32::from_be_bytes(*head) as usize;
                if self.buffer.len() >= end {
                    let frame: Vec<u8> = self.buffer.drain(..end).skip(4).collect();
                    return event(&frame).map(Some);
                }
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            if let Ok(data) = frame?.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// The objects up to the bookmark that ends the initial events, and that bookmark's version.
    ///
    /// # Errors
    /// As `next`; a stream that ends before, and events of another type than ADDED.
    pub async fn initial(&mut self) -> anyhow::Result<(Vec<Value>, String)> {
        let mut objects = Vec::new();
        while let Some((kind, object)) = self.next().await? {
            match kind.as_str() {
                "ADDED" => objects.push(object),
                "BOOKMARK" => {
                    let metadata = &object["metadata"];
                    if metadata["annotations"][INITIAL_EVENTS_END] == "true" {
                        let version = metadata["resourceVersion"].as_str().unwrap_or_default();
                        return Ok((objects, version.to_owned()));
                    }
                }
                other => anyhow::bail!("{other}: {object}"),
            }
        }
        anyhow::bail!("it ended before its bookmark, after {}", objects.len())
    }
}

/// `WatchEvent { 1: type, 2: RawExtension { 1: object } }`.
fn event(frame: &[u8]) -> anyhow::Result<(String, Value)> {
    let kind = field(frame, 1).context("no type")?;
    let object = field(frame, 2)
        .and_then(|extension| field(extension, 1))
        .context("no object")?;
    Ok((String::from_utf8(kind.to_vec())?, decode(object)?))
}

/// The bytes of a message's field; all fields must be of bytes.
fn field(mut message: &[u8], wanted: u64) -> Option<&[u8]> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let length = usize::try_from(varint(&mut message)?).ok()?;
        let value = message.get(..length)?;
        if tag == wanted << 3 | 2 {
            return Some(value);
        }
        message = &message[length..];
    }
    None
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
