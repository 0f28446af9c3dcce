//! Paths that are no resources: discovery, OpenAPI, health, version, metrics, OIDC, and the index of them all.
//!
//! A hand-written match: there are a dozen paths, and each request passes here or goes to the backend.

pub mod health;
mod index;
mod oidc;
mod openapi;
mod pages;
pub mod version;

use std::sync::Arc;

use apimachinery::status::Status;
use http::{Method, Request, Response, StatusCode};

use crate::authn::token::Tokens;
use crate::body::Body;
use crate::discovery::Discovery;
use crate::front::Front;
use crate::front::negotiate::Accepted;
use crate::front::respond;
use crate::request::RequestInfo;
use health::Health;
pub use openapi::OpenApi;
pub use pages::Pages;

/// What answers paths that are no resources.
pub struct Routes {
    pub discovery: Discovery,
    pub openapi: OpenApi,
    pub health: Health,
    pub pages: Pages,
    pub tokens: Arc<Tokens>,
    /// Where `jwks_uri` points.
    pub jwks_uri: String,
}

impl Routes {
    /// Answers a path that is no resource, or upstream's plain 404.
    pub async fn document(
        &self,
        front: &Front,
        info: &RequestInfo,
        request: Request<Body>,
        accepted: Accepted,
    ) -> Result<Response<Body>, Status> {
        let path = info.path.as_str();
        if let Some(response) = self.health.answer(front, info).await {
            return Ok(response);
        }
        if let Some(answer) = self.pages.answer(path, request.headers()) {
            return answer;
        }
        let response = match path {
            "/" => Some(index::answer(self.discovery.served(), &self.health)),
            "/version" | "/version/" => Some(version::answer()),
            "/metrics" => Some(front.metrics.answer(front)),
            "/metrics/slis" => Some(self.health.indicators()),
            "/.well-known/openid-configuration" => {
                oidc::configuration(&self.tokens, &self.jwks_uri)
            }
            "/openid/v1/jwks" | "/openid/v1/jwks/" => oidc::keys(&self.tokens),
            _ if path.starts_with("/openapi/") => {
                self.openapi
                    .answer(path, request.headers(), &info.query)
                    .await
            }
            _ if path.starts_with("/api") => {
                self.discovery.answer(path, request.headers(), accepted)
            }
            _ => None,
        };
        let Some(response) = response else {
            return Ok(respond::not_found());
        };
        // Those of upstream's restful container are for GET, HEAD not among them; its mux takes any method.
        if is_restful(path) && *request.method() != Method::GET {
            return Err(Status::method_not_allowed());
        }
        Ok(response)
    }

    /// Whether a resource is served, so that metrics do not grow with what clients make up.
    pub fn knows(&self, info: &RequestInfo) -> bool {
        self.discovery
            .served()
            .find(&info.group, &info.version, &info.resource)
            .is_some()
    }
}

/// Whether a path is a route of upstream's restful container: versions' documents and a few others.
fn is_restful(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    match path {
        "/api" | "/version" | "/openid/v1/jwks" | "/.well-known/openid-configuration" => true,
        _ => {
            let mut segments = path.split('/').skip(1);
            match (segments.next(), segments.next(), segments.next()) {
                (Some("api"), Some(_), None) => true,
                (Some("apis"), Some(_), Some(_)) => true,
                _ => false,
            }
        }
    }
}

/// `ok` as health checks answer it.
fn ok_text() -> Response<Body> {
    respond::plain(StatusCode::OK, "ok")
}
