//! Objects, lists and other answers as bytes of the encoding a client takes.
//!
//! JSON of the stored version is the stored bytes with a resourceVersion spliced in; everything else is made once per entry
//! and kept with it.

use std::sync::Arc;

use api::Resource;
use apimachinery::codec::media::{self, MediaType, Negotiated, Transform};
use apimachinery::codec::protobuf::encode as encode_protobuf;
use apimachinery::codec::{json, yaml};
use apimachinery::schema::Message;
use apimachinery::status::Reason;
use apimachinery::{Status, Value, meta, time};
use bytes::Bytes;
use futures::stream;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::json;

use super::codec::{self, encode_object, entry_value};
use super::indent::{Indenter, indent};
use super::kind::Kind;
use super::list::Listing;
use super::{protobuf, table};
use crate::body::Body;
use crate::cache::{EncodingId, Entry};
use crate::front::negotiate::wants_pretty;
use crate::query::Query;

/// Bytes of a list put together before they are handed to the connection.
const PIECE: usize = 128 * 1024;

/// Which object a table's row carries (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

/// How a client wants objects of one kind, in one version.
#[derive(Clone)]
pub struct Format {
    pub kind: Arc<Kind>,
    pub resource: &'static Resource,
    pub media: MediaType,
    pub transform: Transform,
    pub v1beta1: bool,
    pub include: Include,
    pub pretty: bool,
}

/// What `Accept` asks for; 406 when nothing on offer is.
pub fn negotiate(headers: &HeaderMap) -> Result<Negotiated, Status> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    media::accept(accept).ok_or_else(|| Status::not_acceptable(media::ACCEPTED))
}

impl Format {
    pub fn new(
        kind: &Arc<Kind>,
        resource: &'static Resource,
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Self, Status> {
        let negotiated = negotiate(headers)?;
        let include = match query.get("includeObject").unwrap_or("") {
            "None" => Include::None,
            "Object" => Include::Object,
            "" | "Metadata" => Include::Metadata,
            other => {
                return Err(Status::bad_request(format!(
                    "unrecognized includeObject value: {other:?}"
                )));
            }
        };
        if negotiated.transform == Transform::Table && negotiated.media == MediaType::Protobuf {
            return Err(Status::not_acceptable(media::ACCEPTED));
        }
        // Custom objects have no protobuf; clients that like it best take JSON, too.
        let media = if crate::crd::is_custom(resource.schema)
            && negotiated.transform == Transform::None
            && negotiated.media == MediaType::Protobuf
        {
            MediaType::Json
        } else {
            negotiated.media
        };
        Ok(Self {
            kind: kind.clone(),
            resource,
            media,
            transform: negotiated.transform,
            v1beta1: negotiated.v1beta1,
            include,
            pretty: negotiated.media == MediaType::Json
                && (negotiated.pretty || wants_pretty(headers, query)),
        })
    }

    /// Tells encodings apart: equal ids, equal bytes.
    pub fn id(&self) -> EncodingId {
        let address = std::ptr::from_ref(self.resource) as usize as u64;
        address << 8
            | (self.media as u64) << 6
            | (self.transform as u64) << 4
            | u64::from(self.v1beta1) << 3
            | (self.include as u64) << 1
    }

    pub fn is_stored_version(&self) -> bool {
        std::ptr::eq(self.resource, self.kind.storage)
    }

    /// Group and version of what is told in place of the object.
    pub(super) fn meta_version(&self) -> &'static str {
        if self.v1beta1 {
            "meta.k8s.io/v1beta1"
        } else {
            "meta.k8s.io/v1"
        }
    }

    /// The object in the format's version. `revision` 0: without a resourceVersion.
    pub fn value(&self, entry: &Entry, revision: i64) -> Result<Value, Status> {
        let mut object = entry_value(entry)?;
        let version = match revision {
            0 => String::new(),
            revision => revision.to_string(),
        };
        meta::set_resource_version(&mut object, &version);
        self.kind
            .convert(&mut object, self.kind.storage, self.resource);
        Ok(object)
    }

    /// Appends one object as JSON. With `item`, as a list holds it: without its type.
    pub fn write_json(
        &self,
        out: &mut Vec<u8>,
        entry: &Entry,
        revision: i64,
        item: bool,
    ) -> Result<(), Status> {
        // Items of custom lists say what they are.
        let item = item && !crate::crd::is_custom(self.resource.schema);
        match self.transform {
            Transform::PartialObjectMetadata | Transform::PartialObjectMetadataList => {
                out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"");
                out.extend_from_slice(self.meta_version().as_bytes());
                out.extend_from_slice(b"\",\"metadata\":");
                entry.write_metadata(out, revision);
                out.push(b'}');
            }
            Transform::Table => {
                let value = self.value(entry, revision)?;
                let table = table::single(self, entry, &value, revision, true)?;
                out.extend_from_slice(&table);
            }
            Transform::None if self.is_stored_version() => {
                let skip = if item { self.kind.type_prefix() } else { b"" };
                entry.write_json(out, revision, skip);
            }
            Transform::None => {
                let bytes = self.converted_json(entry, revision)?;
                let skip = codec::type_prefix(self.resource);
                match bytes.strip_prefix(&skip[..]).filter(|_| item) {
                    Some(rest) => {
                        out.push(b'{');
                        out.extend_from_slice(rest);
                    }
                    None => out.extend_from_slice(&bytes),
                }
            }
        }
        Ok(())
    }

    fn converted_json(&self, entry: &Entry, revision: i64) -> Result<Bytes, Status> {
        let encode = |entry: &Entry| -> Result<Bytes, Status> {
            let value = self.value(entry, revision)?;
            Ok(encode_object(&value, false))
        };
        if revision != entry.revision() {
            return encode(entry);
        }
        entry.encoded(&self.kind.shape().encodings, self.id(), encode)
    }

    /// The object as a bare protobuf message.
    pub fn protobuf(&self, entry: &Entry, revision: i64) -> Result<Bytes, Status> {
        let encode = |entry: &Entry| -> Result<Bytes, Status> {
            let object = match self.transform {
                Transform::None => self.value(entry, revision)?,
                _ => self.partial(entry, revision)?,
            };
            // Copied, since a vector keeps its spare room.
            let bytes = encode_protobuf(&object, self.message()?);
            Ok(Bytes::copy_from_slice(&bytes))
        };
        if revision != entry.revision() {
            return encode(entry);
        }
        entry.encoded(&self.kind.shape().encodings, self.id(), encode)
    }

    /// The metadata alone, as an object of its own kind.
    pub fn partial(&self, entry: &Entry, revision: i64) -> Result<Value, Status> {
        let mut out = Vec::new();
        entry.write_metadata(&mut out, revision);
        let metadata = json::decode(&out).map_err(Status::internal)?.value;
        Ok(json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": self.meta_version(),
            "metadata": metadata,
        }))
    }

    fn message(&self) -> Result<&'static Message, Status> {
        match self.transform {
            Transform::None => Ok(self.resource.schema),
            _ => api::message("io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata")
                .ok_or_else(|| Status::internal("no schema of PartialObjectMetadata")),
        }
    }

    /// What the envelope says an object is.
    fn object_type(&self) -> (String, &'static str) {
        match self.transform {
            Transform::None => (self.resource.api_version(), self.resource.kind),
            _ => (self.meta_version().to_owned(), "PartialObjectMetadata"),
        }
    }

    fn list_type(&self) -> (String, String) {
        match self.transform {
            Transform::None => (self.resource.api_version(), self.resource.list_kind()),
            Transform::Table => (self.meta_version().to_owned(), "Table".to_owned()),
            _ => (
                self.meta_version().to_owned(),
                "PartialObjectMetadataList".to_owned(),
            ),
        }
    }

    /// A whole encoded object, as a response or a watch event holds it.
    pub fn encode(&self, entry: &Entry, revision: i64) -> Result<Vec<u8>, Status> {
        match self.media {
            MediaType::Json => {
                let mut out = Vec::with_capacity(entry.json_len() + 64);
                self.write_json(&mut out, entry, revision, false)?;
                Ok(out)
            }
            MediaType::Protobuf => {
                let (version, kind) = self.object_type();
                let raw = self.protobuf(entry, revision)?;
                Ok(protobuf::seal(&version, kind, &raw))
            }
            MediaType::Yaml => {
                let mut out = Vec::new();
                self.write_json(&mut out, entry, revision, false)?;
                let value = json::decode(&out).map_err(Status::internal)?.value;
                Ok(yaml::encode(&value))
            }
        }
    }

    /// The response that holds one object.
    pub fn object(
        &self,
        code: StatusCode,
        entry: &Entry,
        revision: i64,
    ) -> Result<Response<Body>, Status> {
        if self.transform == Transform::PartialObjectMetadataList {
            return Err(self.unsuited("PartialObjectMetadataList", "not a list", ""));
        }
        let bytes = self.encode(entry, revision)?;
        Ok(respond(
            code,
            self.media,
            finish(self.media, self.pretty, bytes),
        ))
    }

    /// The answer to a form that suits one object or many, but not what there is.
    fn unsuited(&self, asked: &str, is: &str, suffix: &str) -> Status {
        let package = codec::go_package(self.resource.group);
        let kind = self.resource.kind;
        Status::failure(
            406,
            Reason::NotAcceptable,
            format!(
                "you requested {asked}, but the requested object is {is} (*{package}.{kind}{suffix})"
            ),
        )
    }

    /// The response that holds a list.
    pub fn list(&self, listing: Listing) -> Result<Response<Body>, Status> {
        if self.transform == Transform::PartialObjectMetadata {
            return Err(self.unsuited("PartialObjectMetadata", "a list", "List"));
        }
        match (self.media, self.transform) {
            (MediaType::Json, _) => self.json_list(listing),
            (MediaType::Protobuf, _) => self.protobuf_list(listing),
            (MediaType::Yaml, _) => {
                let now = time::now();
                let mut bytes = self.list_head(&listing);
                for (at, entry) in listing.entries.iter().enumerate() {
                    if at > 0 {
                        bytes.push(b',');
                    }
                    self.write_item(&mut bytes, entry, now)?;
                }
                bytes.extend_from_slice(b"]}");
                let value = json::decode(&bytes).map_err(Status::internal)?.value;
                Ok(respond(
                    StatusCode::OK,
                    self.media,
                    yaml::encode(&value).into(),
                ))
            }
        }
    }

    fn list_head(&self, listing: &Listing) -> Vec<u8> {
        if self.transform == Transform::Table {
            return table::head(self, &list_meta(listing), true);
        }
        let (version, kind) = self.list_type();
        let mut head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":");
        head.push_str(&list_meta(listing).to_string());
        head.push_str(",\"items\":[");
        head.into_bytes()
    }

    /// Appends one object as a list holds it.
    fn write_item(&self, out: &mut Vec<u8>, entry: &Entry, now: time::Time) -> Result<(), Status> {
        let revision = entry.revision();
        if self.transform == Transform::Table {
            let object = self.value(entry, revision)?;
            return table::write_row(out, self, entry, &object, revision, now);
        }
        self.write_json(out, entry, revision, true)
    }

    fn json_list(&self, listing: Listing) -> Result<Response<Body>, Status> {
        let head = self.list_head(&listing);
        let mut state = ListState {
            format: self.clone(),
            entries: listing.entries,
            next: 0,
            now: time::now(),
            done: false,
            indenter: self.pretty.then(Indenter::default),
        };
        let first = state.piece(head)?;
        if state.done {
            return Ok(respond(StatusCode::OK, self.media, first.into()));
        }
        let rest = stream::unfold(Some(state), |state| async move {
            let mut state = state?;
            if state.done {
                return None;
            }
            match state.piece(Vec::with_capacity(PIECE + PIECE / 8)) {
                Ok(piece) => Some((Ok(Bytes::from(piece)), Some(state))),
                // The status line has gone out; a broken stream is all that is left to say.
                Err(status) => Some((Err(status.into()), None)),
            }
        });
        let body = stream::once(std::future::ready(Ok(Bytes::from(first))));
        let body = Body::stream(futures::StreamExt::chain(body, rest));
        Ok(respond(StatusCode::OK, self.media, body))
    }

    fn protobuf_list(&self, listing: Listing) -> Result<Response<Body>, Status> {
        let (version, kind) = self.list_type();
        let items = listing
            .entries
            .iter()
            .map(|entry| self.protobuf(entry, entry.revision()))
            .collect::<Result<Vec<Bytes>, Status>>()?;
        let metadata = protobuf::list_meta(
            &listing.revision.to_string(),
            &listing.next,
            listing.remaining,
        );
        drop(listing);
        let mut pieces = Gathered(protobuf::seal_list(&version, &kind, &metadata, items));
        let first = pieces.next().unwrap_or_default();
        let body = match pieces.next() {
            None => first.into(),
            Some(second) => {
                let all = [first, second].into_iter().chain(pieces);
                Body::stream(stream::iter(all.map(Ok)))
            }
        };
        Ok(respond(StatusCode::OK, self.media, body))
    }
}

/// Joins small pieces when they are asked for, so that a list is not sent item by item and not held twice.
struct Gathered<I>(I);

impl<I: Iterator<Item = Bytes>> Iterator for Gathered<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut joined: Vec<u8> = Vec::new();
        while joined.len() < PIECE {
            let Some(piece) = self.0.next() else { break };
            if joined.capacity() == 0 {
                joined.reserve(PIECE + PIECE / 8);
            }
            joined.extend_from_slice(&piece);
        }
        (!joined.is_empty()).then(|| joined.into())
    }
}

/// A list's metadata.
pub fn list_meta(listing: &Listing) -> Value {
    let mut metadata = json!({ "resourceVersion": listing.revision.to_string() });
    if !listing.next.is_empty() {
        metadata["continue"] = listing.next.as_str().into();
    }
    if let Some(remaining) = listing.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

/// A JSON list on its way out.
struct ListState {
    format: Format,
    entries: Vec<Arc<Entry>>,
    next: usize,
    /// When tables tell ages for.
    now: time::Time,
    done: bool,
    indenter: Option<Indenter>,
}

impl ListState {
    /// Fills `out` up with items.
    fn piece(&mut self, mut out: Vec<u8>) -> Result<Vec<u8>, Status> {
        while let Some(entry) = self.entries.get(self.next) {
            if self.next > 0 {
                out.push(b',');
            }
            self.format.write_item(&mut out, entry, self.now)?;
            self.next += 1;
            if out.len() >= PIECE {
                break;
            }
        }
        if self.next == self.entries.len() {
            out.extend_from_slice(b"]}");
            self.done = true;
        }
        if let Some(indenter) = &mut self.indenter {
            let mut indented = Vec::with_capacity(out.len() * 2);
            indenter.write(&out, &mut indented);
            return Ok(indented);
        }
        if self.done {
            out.push(b'\n');
        }
        Ok(out)
    }
}

/// Any object that is not an entry (Status, Scale, reviews) in the encoding a client takes.
pub fn value(
    code: StatusCode,
    object: &Value,
    message: Option<&'static Message>,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response<Body>, Status> {
    let negotiated = negotiate(headers)?;
    let pretty = wants_pretty(headers, query);
    let (media, bytes) = match (negotiated.media, message) {
        (MediaType::Protobuf, Some(message)) => {
            let raw = encode_protobuf(object, message);
            let sealed = protobuf::seal(meta::api_version(object), meta::kind(object), &raw);
            (MediaType::Protobuf, sealed)
        }
        (MediaType::Yaml, _) => (MediaType::Yaml, yaml::encode(object)),
        _ => (MediaType::Json, encode_object(object, false).into()),
    };
    Ok(respond(code, media, finish(media, pretty, bytes)))
}

/// Indents JSON, or ends it with Go's newline.
fn finish(media: MediaType, pretty: bool, mut bytes: Vec<u8>) -> Body {
    if media == MediaType::Json {
        if pretty {
            return indent(&bytes).into();
        }
        bytes.push(b'\n');
    }
    bytes.into()
}

fn respond(code: StatusCode, media: MediaType, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media.name()));
    response
}
