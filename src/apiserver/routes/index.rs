//! `/`: the paths a person may look at.

use http::{Response, StatusCode};
use serde_json::json;

use super::health::Health;
use crate::body::Body;
use crate::front::respond;
use crate::served::Served;

const DOCUMENTS: &[&str] = &[
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/",
    "/flagz",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/openid/v1/jwks",
    "/statusz",
    "/version",
];

/// Sorted, as upstream's index handler lists its mux.
pub fn answer(served: &Served, health: &Health) -> Response<Body> {
    let mut paths: Vec<String> = DOCUMENTS.iter().map(|path| (*path).to_owned()).collect();
    for group in served
        .groups()
        .into_iter()
        .filter(|group| !group.is_empty())
    {
        paths.push(format!("/apis/{group}"));
        let versions = served.versions(group);
        paths.extend(
            versions
                .iter()
                .map(|version| format!("/apis/{group}/{version}")),
        );
    }
    paths.extend(health.paths());
    paths.sort_unstable();
    respond::raw_json(StatusCode::OK, &json!({"paths": paths}), true)
}
