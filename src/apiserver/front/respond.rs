//! Turns outcomes into responses: objects and Status in the client's encoding, plain text where upstream has no Status.

use apimachinery::codec::json;
use apimachinery::codec::media::MediaType;
use apimachinery::codec::protobuf::{self, Envelope};
use apimachinery::status::Status;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::Value;

use super::negotiate::Accepted;
use crate::body::Body;

const NO_SNIFF: HeaderName = http::header::X_CONTENT_TYPE_OPTIONS;

/// A failure (or success) as a `metav1.Status`.
pub fn status(status: &Status, accepted: Accepted) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = match accepted.media {
        MediaType::Json => with_type(
            code,
            MediaType::Json.name(),
            status.to_json(accepted.pretty).into(),
        ),
        _ => value(code, &status.to_value(), accepted),
    };
    let retry = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(retry));
    }
    if code == StatusCode::FORBIDDEN {
        response
            .headers_mut()
            .insert(NO_SNIFF, HeaderValue::from_static("nosniff"));
    }
    response
}

/// An API object in the accepted encoding.
pub fn value(code: StatusCode, value: &Value, accepted: Accepted) -> Response<Body> {
    match accepted.media {
        MediaType::Json => raw_json(code, value, accepted.pretty),
        MediaType::Yaml => with_type(
            code,
            MediaType::Yaml.name(),
            apimachinery::codec::yaml::encode(value).into(),
        ),
        MediaType::Protobuf => match encode_protobuf(value) {
            Some(bytes) => with_type(code, MediaType::Protobuf.name(), bytes.into()),
            None => raw_json(code, value, accepted.pretty),
        },
    }
}

/// `None` for an object without a protobuf form. The legacy discovery documents say no apiVersion; they are `v1`.
fn encode_protobuf(value: &Value) -> Option<Vec<u8>> {
    let api_version = value["apiVersion"].as_str().unwrap_or("v1");
    let kind = value["kind"].as_str()?;
    let (group, version) = apimachinery::meta::group_version(api_version);
    let message = api::message_for(group, version, kind)?;
    if message.wire.is_empty() {
        return None;
    }
    let envelope = Envelope {
        api_version,
        kind,
        raw: &protobuf::encode(value, message),
    };
    Some(envelope.close())
}

/// A document that is always JSON.
pub fn raw_json(code: StatusCode, value: &Value, pretty: bool) -> Response<Body> {
    with_type(code, MediaType::Json.name(), to_json(value, pretty).into())
}

/// Upstream ends compact JSON with a newline, and indented JSON without one.
fn to_json(value: &Value, pretty: bool) -> Vec<u8> {
    if pretty {
        return json::encode_pretty(value);
    }
    let mut bytes = json::encode(value);
    bytes.push(b'\n');
    bytes
}

/// Plain text as Go's `http.Error` writes it; `text` gets a newline.
pub fn plain_error(code: StatusCode, text: &str) -> Response<Body> {
    let mut response = plain(code, format!("{text}\n"));
    response
        .headers_mut()
        .insert(NO_SNIFF, HeaderValue::from_static("nosniff"));
    response
}

pub fn plain(code: StatusCode, text: impl Into<Body>) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", text.into())
}

/// What Go answers for a path nobody serves.
pub fn not_found() -> Response<Body> {
    plain_error(StatusCode::NOT_FOUND, "404 page not found")
}

/// `media_type` goes into Content-Type.
pub fn with_type(code: StatusCode, media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
