//! What a component answers: `/healthz`, `/livez`, `/readyz`, `/metrics`, `/configz`, `/flagz`, `/statusz`.

use std::fmt::Write;

use apimachinery::exposition::Text;
use apimachinery::{Status, Value};
use apiserver::metrics::process;
use apiserver::routes::Pages;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use rustls::pki_types::CertificateDer;

use super::identity::Identity;
use super::{Check, Source};

/// Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What `/statusz` tells of.
pub const PATHS: [&str; 7] = [
    "/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz",
];
/// A page is never longer, in bytes: some hundred flags.
const MAX_PAGE: usize = 1 << 20;

/// See the module.
pub struct Routes {
    pub identity: Identity,
    pub pages: Pages,
    pub health: Vec<Check>,
    pub ready: Vec<Check>,
    pub metrics: Vec<Source>,
    pub configuration: (&'static str, Value),
}

impl Routes {
    /// Answers one request of a client with these certificates.
    pub async fn answer<B>(
        &self,
        chain: &[CertificateDer<'static>],
        request: &Request<B>,
    ) -> Response<Full<Bytes>> {
        let (method, path) = (request.method(), request.uri().path());
        let verb = match *method {
            Method::POST => "post",
            Method::PUT => "put",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            Method::HEAD => "head",
            Method::OPTIONS => "options",
            _ => "get",
        };
        let allowed = self.identity.check(chain, request.headers(), verb, path);
        if let Err(refused) = allowed.await {
            return refusal(&refused);
        }
        match self.pages.answer(path, request.headers()) {
            Some(Ok(page)) => whole(page).await,
            Some(Err(refused)) => refusal(&refused),
            None => self.route(path, request.uri().query().unwrap_or_default()),
        }
    }

    fn route(&self, path: &str, query: &str) -> Response<Full<Bytes>> {
        let (root, name) = match path.trim_start_matches('/').split_once('/') {
            Some((root, name)) => (root, Some(name)),
            None => (path.trim_start_matches('/'), None),
        };
        match (root, name) {
            ("healthz" | "livez", _) => checks(root, &self.health, &[], name, query),
            ("readyz", _) => checks(root, &self.health, &self.ready, name, query),
            ("metrics", None) => {
                let mut text = Text::default();
                self.metrics.iter().for_each(|source| source(&mut text));
                process::write(&mut text);
                answer(StatusCode::OK, EXPOSITION, text.finish())
            }
            ("configz", None) => {
                let (name, value) = &self.configuration;
                let body = serde_json::json!({ *name: value });
                answer(StatusCode::OK, JSON, body.to_string())
            }
            _ => answer(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
        }
    }
}

/// A page as one piece.
async fn whole(page: Response<apiserver::Body>) -> Response<Full<Bytes>> {
    let (head, body) = page.into_parts();
    match body.collect(MAX_PAGE).await {
        Ok(body) => Response::from_parts(head, Full::new(body)),
        Err(_) => refusal(&Status::internal("the page is too long")),
    }
}

/// Runs all checks, or the one that is named, and tells of them as upstream's healthz package does.
fn checks(
    root: &str,
    health: &[Check],
    more: &[Check],
    name: Option<&str>,
    query: &str,
) -> Response<Full<Bytes>> {
    let ping: Check = ("ping", Box::new(|| Ok(())));
    let all = [&ping].into_iter().chain(health).chain(more);
    let all: Vec<&Check> = match name {
        None => all.collect(),
        Some(name) => all.filter(|(one, _)| *one == name).collect(),
    };
    if all.is_empty() {
        return answer(StatusCode::NOT_FOUND, TEXT, "404 page not found\n");
    }
    let pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let is_verbose = pairs.clone().any(|(key, _)| key == "verbose");
    let mut told = String::new();
    let mut has_failed = false;
    for (check, run) in all {
        let is_left_out = pairs
            .clone()
            .any(|(key, value)| key == "exclude" && value == *check);
        let _ = match run() {
            _ if is_left_out => writeln!(told, "[+]{check} excluded: ok"),
            Ok(()) => writeln!(told, "[+]{check} ok"),
            Err(error) => {
                tracing::info!(check, error, "A check failed");
                has_failed = true;
                writeln!(told, "[-]{check} failed: reason withheld")
            }
        };
    }
    if has_failed {
        let _ = writeln!(told, "{root} check failed");
        return answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, told);
    }
    if !is_verbose || name.is_some() {
        return answer(StatusCode::OK, TEXT, "ok");
    }
    let _ = writeln!(told, "{root} check passed");
    answer(StatusCode::OK, TEXT, told)
}

fn refusal(status: &Status) -> Response<Full<Bytes>> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::FORBIDDEN);
    answer(code, JSON, status.to_json(false))
}

fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache, private"),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    response
}
