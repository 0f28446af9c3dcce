//! What belongs to no kind: the version, and forms that an answer cannot take.

use serde_json::json;

use crate::cluster::{Cluster, refused, text};

pub async fn the_server_tells_its_version(cluster: &Cluster) {
    let version = cluster.get("/version").await;
    assert_eq!(text(&version, "/major"), "1");
    assert_eq!(text(&version, "/minor").trim_end_matches('+'), "37");
    assert!(text(&version, "/gitVersion").starts_with("v1.37."));
    for field in [
        "buildDate",
        "compiler",
        "gitCommit",
        "gitTreeState",
        "goVersion",
        "platform",
    ] {
        assert!(version[field].is_string(), "{field}: {version}");
    }
}

/// A review is answered, not stored: there is no table of it.
pub async fn what_has_no_metadata_is_no_table(cluster: &Cluster) {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}},
    });
    let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .expect("a request");
    let message = refused(cluster.send(request).await, 406, "NotAcceptable");
    assert!(
        message.starts_with("only the following media types are accepted:"),
        "{message}"
    );
}
