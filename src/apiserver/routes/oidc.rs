//! OIDC discovery of the service-account issuer (KEP-1393): other systems verify pods' tokens with it.

use http::header::CACHE_CONTROL;
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::authn::token::Tokens;
use crate::body::Body;
use crate::front::respond;

/// `/.well-known/openid-configuration`; `None` (404) when no key is known.
pub fn configuration(tokens: &Tokens, jwks_uri: &str) -> Option<Response<Body>> {
    let mut algorithms: Vec<&str> = tokens
        .keys()
        .iter()
        .map(|key| key.algorithm.as_str())
        .collect();
    algorithms.sort_unstable();
    algorithms.dedup();
    if algorithms.is_empty() {
        return None;
    }
    let document = json!({
        "issuer": tokens.issuer(),
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    });
    Some(cacheable("application/json", &document))
}

/// `/openid/v1/jwks`.
pub fn keys(tokens: &Tokens) -> Option<Response<Body>> {
    if tokens.keys().is_empty() {
        return None;
    }
    let keys: Vec<Value> = tokens.keys().iter().map(|key| key.jwk()).collect();
    Some(cacheable(
        "application/jwk-set+json",
        &json!({"keys": keys}),
    ))
}

fn cacheable(media_type: &'static str, document: &Value) -> Response<Body> {
    let mut response = respond::with_type(StatusCode::OK, media_type, document.to_string().into());
    response.headers_mut().insert(
        CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=3600"),
    );
    response
}
