//! pods/log: the kubelet's text, streamed through as it comes.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::status::{Cause, Details, Reason, Status};
use futures::StreamExt;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio_util::sync::CancellationToken;

use super::Streaming;
use super::backend::{Answer, Security};
use super::target::{container, find, kubelet_of};
use crate::backend::Backend;
use crate::body::{Body, BodyError};
use crate::query::Query;
use crate::request::RequestContext;

/// As much of a kubelet's complaint as is passed on (`GenericHttpResponseChecker`).
const COMPLAINT_BYTES: usize = 2 * 1024;

impl Streaming {
    pub(super) async fn log(
        &self,
        objects: &dyn Backend,
        context: &RequestContext,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let query = kubelet_query(&info.query, &info.name)?;
        let pod = find(objects, "pods", &info.namespace, &info.name).await?;
        let container = container(&pod, info.query.get("container").unwrap_or(""))?;
        let Some(kubelet) = kubelet_of(objects, &pod, &self.address_types).await? else {
            // Upstream has nothing to stream from, and says so by saying nothing.
            let mut nothing = Response::new(Body::empty());
            *nothing.status_mut() = StatusCode::NO_CONTENT;
            return Ok(nothing);
        };
        let security = if info.query.flag("insecureSkipTLSVerifyBackend") {
            Security::UnverifiedKubelet
        } else {
            Security::Kubelet
        };
        let path = format!(
            "/containerLogs/{}/{}/{container}{query}",
            info.namespace, info.name
        );
        let authority = format!("{}:{}", kubelet.host, kubelet.port);
        let failed = |error: &dyn std::fmt::Display| {
            Status::failure(
                500,
                Reason::Unknown,
                format!("Get \"https://{authority}{path}\": {error}"),
            )
        };
        let request = Request::get(&path)
            .header(HOST, &authority)
            .body(Body::empty())
            .map_err(|error| failed(&error))?;
        let connection = self
            .connector
            .connect(&kubelet.host, kubelet.port, security)
            .await
            .map_err(|e| failed(&e))?;
        let answer = connection
            .send(request)
            .await
            .map_err(|error| failed(&error))?;
        if !answer.response.status().is_success() {
            return Err(complaint(answer, &info.name).await);
        }
        let body = answer.into_response().into_body();
        let mut response = Response::new(until_drained(body, context.shutdown.clone()));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(response)
    }
}

/// Breaks off when the server drains, with an error: a reader must not take it for the container's end.
fn until_drained(body: Body, shutdown: CancellationToken) -> Body {
    let lines = body
        .into_stream()
        .take_until(shutdown.clone().cancelled_owned());
    let broken_off = futures::stream::once(async move {
        let error = || BodyError::from("the server is shutting down");
        shutdown.is_cancelled().then(|| Err(error()))
    });
    Body::stream(lines.chain(broken_off.filter_map(std::future::ready)))
}

/// What a kubelet's refusal means for the client.
async fn complaint(answer: Answer, pod: &str) -> Status {
    let code = answer.response.status();
    let body = Limited::new(answer.response.into_body(), COMPLAINT_BYTES)
        .collect()
        .await;
    let text = body
        .map(|b| String::from_utf8_lossy(&b.to_bytes()).trim().to_owned())
        .unwrap_or_default();
    match code {
        StatusCode::INTERNAL_SERVER_ERROR => Status::internal(text),
        StatusCode::BAD_REQUEST => Status::bad_request(text),
        _ => unexpected(code, pod, text),
    }
}

fn unexpected(code: StatusCode, pod: &str, text: String) -> Status {
    let (reason, what) = match code {
        StatusCode::NOT_FOUND => (
            Reason::NotFound,
            "the server could not find the requested resource",
        ),
        StatusCode::UNAUTHORIZED => (
            Reason::Unauthorized,
            "the server has asked for the client to provide credentials",
        ),
        StatusCode::FORBIDDEN => (
            Reason::Forbidden,
            "the server does not allow access to the requested resource",
        ),
        StatusCode::METHOD_NOT_ALLOWED => (
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (
            Reason::ServiceUnavailable,
            "the server is currently unable to handle the request",
        ),
        StatusCode::TOO_MANY_REQUESTS => (
            Reason::TooManyRequests,
            "the server has received too many requests and has asked us to try again later",
        ),
        _ => (
            Reason::Unknown,
            "the server responded with an unexpected status",
        ),
    };
    // The two blanks are upstream's: there is a verb between them in other cases.
    let message = format!("{what} ( pods/log {pod})");
    let cause = Cause {
        reason: "UnexpectedServerResponse".into(),
        message: text,
        field: String::new(),
    };
    let details = Details {
        name: pod.into(),
        kind: "pods/log".into(),
        causes: vec![cause],
        ..Details::default()
    };
    Status::failure(code.as_u16(), reason, message).with_details(details)
}

/// Checks `v1.PodLogOptions` and writes them as a kubelet reads them, in the order of Go's `url.Values.Encode`.
fn kubelet_query(query: &Query, pod: &str) -> Result<String, Status> {
    let integer = |name: &str| query.integer(name).map_err(Status::bad_request);
    let (tail, limit, since) = (
        integer("tailLines")?,
        integer("limitBytes")?,
        integer("sinceSeconds")?,
    );
    let since_time = query.get("sinceTime").filter(|t| !t.is_empty());
    let stream = query.get("stream").filter(|s| !s.is_empty());
    let mut errors = ErrorList::new();
    let path = |name: &str| Path::new(name);
    if let Some(tail) = tail.filter(|n| *n < 0) {
        errors.push(Error::invalid(
            &path("tailLines"),
            tail,
            "must be greater than or equal to 0",
        ));
    }
    if let Some(limit) = limit.filter(|n| *n < 1) {
        errors.push(Error::invalid(
            &path("limitBytes"),
            limit,
            "must be greater than 0",
        ));
    }
    match (since, since_time) {
        (Some(_), Some(_)) => {
            errors.push(Error::forbidden(
                &path(""),
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ));
        }
        (Some(since), None) if since < 1 => {
            errors.push(Error::invalid(
                &path("sinceSeconds"),
                since,
                "must be greater than 0",
            ));
        }
        _ => {}
    }
    match stream {
        None | Some("All") => {}
        Some("Stdout" | "Stderr") if tail.is_none() => {}
        Some(one @ ("Stdout" | "Stderr")) => errors.push(Error::forbidden(
            &path(""),
            format!("`tailLines` and specific `stream` are mutually exclusive for now, got: {one}"),
        )),
        Some(other) => {
            errors.push(Error::not_supported(
                &path("stream"),
                other,
                &["All", "Stdout", "Stderr"],
            ));
        }
    }
    if let Some(text) = since_time
        && apimachinery::time::parse(text).is_none()
    {
        return Err(Status::bad_request(format!(
            "parsing time {text:?} as RFC 3339"
        )));
    }
    if !errors.is_empty() {
        return Err(Status::invalid("", "PodLogOptions", pod, errors));
    }
    let flag = |name| query.flag(name).then(|| "true".to_owned());
    let number = |n: Option<i64>| n.map(|n| n.to_string());
    let pairs = [
        ("follow", flag("follow")),
        ("limitBytes", number(limit)),
        ("previous", flag("previous")),
        ("sinceSeconds", number(since)),
        ("sinceTime", since_time.map(super::upgrade::encode)),
        ("stream", stream.map(str::to_owned)),
        ("tailLines", number(tail)),
        ("timestamps", flag("timestamps")),
    ];
    let mut text = String::new();
    for (name, value) in pairs {
        if let Some(value) = value {
            text.push(if text.is_empty() { '?' } else { '&' });
            text.push_str(&format!("{name}={value}"));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_passed_on_as_the_kubelet_reads_them() {
        let query = Query::parse(
            "container=a&tailLines=10&follow=1&timestamps=true&sinceTime=2026-01-02T03:04:05%2B01:00",
        );
        assert_eq!(
            kubelet_query(&query, "web").unwrap(),
            "?follow=true&sinceTime=2026-01-02T03%3A04%3A05%2B01%3A00&tailLines=10&timestamps=true"
        );
        assert_eq!(
            kubelet_query(&Query::parse("follow=false"), "web").unwrap(),
            ""
        );
    }

    #[test]
    fn impossible_options_are_refused_in_upstreams_words() {
        for (query, want) in [
            (
                "tailLines=-1",
                "tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "limitBytes=0",
                "limitBytes: Invalid value: 0: must be greater than 0",
            ),
            (
                "sinceSeconds=0",
                "sinceSeconds: Invalid value: 0: must be greater than 0",
            ),
        ] {
            let status = kubelet_query(&Query::parse(query), "web").unwrap_err();
            assert_eq!(
                status.message,
                format!("PodLogOptions \"web\" is invalid: {want}")
            );
        }
        assert_eq!(
            kubelet_query(&Query::parse("tailLines=x"), "web")
                .unwrap_err()
                .code,
            400
        );
    }
}
