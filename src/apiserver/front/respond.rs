//! Turns outcomes into responses: objects and Status in the client's encoding, plain text where upstream has no Status.

use apimachinery::codec::media::MediaType;
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
    let mut response = value(code, &status.to_value(), accepted);
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
    let body = match accepted.media {
        MediaType::Yaml => apimachinery::codec::yaml::encode(value).into(),
        _ => json(value, accepted.pretty).into(),
    };
    let name = match accepted.media {
        MediaType::Yaml => MediaType::Yaml.name(),
        _ => MediaType::Json.name(),
    };
    with_type(code, name, body)
}

/// A document that is always JSON.
pub fn raw_json(code: StatusCode, value: &Value, pretty: bool) -> Response<Body> {
    with_type(code, MediaType::Json.name(), json(value, pretty).into())
}

/// Upstream ends compact JSON with a newline, and indented JSON without one.
fn json(value: &Value, pretty: bool) -> Vec<u8> {
    let encoded = if pretty {
        serde_json::to_vec_pretty(value)
    } else {
        serde_json::to_vec(value)
    };
    let mut bytes = encoded.expect("a Value has string keys only");
    if !pretty {
        bytes.push(b'\n');
    }
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
