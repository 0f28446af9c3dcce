//! Reviews and OpenAPI over the wire.

use serde_json::json;

use super::Harness;
use crate::authn::token::{Grant, Ref};

const AUTHORIZATION: &str = "/apis/authorization.k8s.io/v1";
const AUTHENTICATION: &str = "/apis/authentication.k8s.io/v1";

#[tokio::test]
async fn one_can_ask_who_one_is() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let answer = client
        .send(
            "POST",
            &format!("{AUTHENTICATION}/selfsubjectreviews"),
            &[],
            "{}",
        )
        .await;
    let user = &answer.json()["status"]["userInfo"];
    assert_eq!(
        (answer.code, user["username"].as_str()),
        (201, Some("admin"))
    );
    assert_eq!(
        user["groups"],
        json!(["system:masters", "system:authenticated"])
    );
    assert_eq!(
        client
            .get(&format!("{AUTHENTICATION}/selfsubjectreviews"))
            .await
            .code,
        405
    );
}

#[tokio::test]
async fn one_can_ask_what_one_and_others_may_do() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let ask = json!({"spec": {"resourceAttributes": {"verb": "delete", "resource": "pods", "namespace": "default"}}});
    let answer = client
        .send(
            "POST",
            &format!("{AUTHORIZATION}/selfsubjectaccessreviews"),
            &[],
            ask.to_string(),
        )
        .await;
    assert_eq!(answer.json()["status"], json!({"allowed": true}));
    let mut other = ask.clone();
    other["spec"]["user"] = "jane".into();
    let answer = client
        .send(
            "POST",
            &format!("{AUTHORIZATION}/subjectaccessreviews"),
            &[],
            other.to_string(),
        )
        .await;
    assert_eq!(
        (answer.code, answer.json()["status"].clone()),
        (201, json!({"allowed": false}))
    );
    let path = format!("{AUTHORIZATION}/namespaces/kube-system/localsubjectaccessreviews");
    let answer = client.send("POST", &path, &[], other.to_string()).await;
    answer.is_status(
        400,
        "BadRequest",
        "spec.resourceAttributes.namespace must match namespace: kube-system",
    );
    let answer = client
        .send(
            "POST",
            &format!("{AUTHORIZATION}/subjectaccessreviews"),
            &[],
            ask.to_string(),
        )
        .await;
    answer.is_status(
        422,
        "Invalid",
        "SubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of user or group must be specified",
    );
}

#[tokio::test]
async fn a_token_is_reviewed_for_its_audience() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let grant = Grant {
        namespace: "default".to_owned(),
        service_account: Ref {
            name: "sa".to_owned(),
            uid: "uid-of-sa".to_owned(),
        },
        audiences: vec!["vault".to_owned()],
        expiration_seconds: 600,
        pod: None,
        node: None,
        secret: None,
    };
    let token = harness
        .tokens
        .issue(grant, apimachinery::time::now().unix_timestamp())
        .expect("a token")
        .token;
    let path = format!("{AUTHENTICATION}/tokenreviews");
    let ask = json!({"spec": {"token": token, "audiences": ["vault", "other"]}});
    let status = client
        .send("POST", &path, &[], ask.to_string())
        .await
        .json()["status"]
        .clone();
    assert_eq!(status["authenticated"], true);
    assert_eq!(status["audiences"], json!(["vault"]));
    assert_eq!(
        status["user"]["username"],
        "system:serviceaccount:default:sa"
    );
    let ask = json!({"spec": {"token": token}});
    let status = client
        .send("POST", &path, &[], ask.to_string())
        .await
        .json()["status"]
        .clone();
    assert!(status["authenticated"].is_null());
    assert!(
        status["error"]
            .as_str()
            .is_some_and(|error| error.starts_with("token audiences"))
    );
}

#[tokio::test]
async fn answers_are_encoded_as_the_client_likes() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let path = format!("{AUTHENTICATION}/selfsubjectreviews");
    let answer = client
        .send(
            "POST",
            &path,
            &[
                ("accept", "application/yaml"),
                ("content-type", "application/yaml"),
            ],
            "spec: {}",
        )
        .await;
    assert_eq!(answer.header("content-type"), "application/yaml");
    assert!(
        answer.text().contains("username: admin"),
        "{}",
        answer.text()
    );
    let protobuf = "application/vnd.kubernetes.protobuf";
    let answer = client
        .send("GET", "/apis/apps/v1", &[("accept", protobuf)], "")
        .await;
    assert_eq!(answer.header("content-type"), protobuf);
    assert!(answer.body.starts_with(b"k8s\0"));
    let answer = client
        .send("POST", "/api/v1", &[("accept", protobuf)], "")
        .await;
    assert!((answer.code, answer.body.starts_with(b"k8s\0")) == (405, true));
}

#[tokio::test]
async fn openapi_documents_are_found_by_the_index_and_kept_by_hash() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let index = client.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/coordination.k8s.io/v1"]["serverRelativeURL"]
        .as_str()
        .expect("a URL")
        .to_owned();
    let answer = client.get(&url).await;
    assert_eq!(answer.json()["openapi"], "3.0.0");
    assert_eq!(answer.header("cache-control"), "public, immutable");
    let again = client
        .send("GET", &url, &[("if-none-match", answer.header("etag"))], "")
        .await;
    assert_eq!(again.code, 304);
    let old = client
        .get("/openapi/v3/apis/coordination.k8s.io/v1?hash=OLD")
        .await;
    assert_eq!((old.code, old.header("location")), (301, url.as_str()));
    assert_eq!(client.get("/openapi/v3/apis/nope/v1").await.code, 404);
    let accept = [(
        "accept",
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    )];
    let v2 = client.send("GET", "/openapi/v2", &accept, "").await;
    assert_eq!(
        v2.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    assert!(v2.body.starts_with(b"\x0a\x032.0"));
    assert_eq!(client.get("/openapi/v2").await.json()["swagger"], "2.0");
    assert_eq!(
        client.send("GET", "/openapi/v3", &accept, "").await.code,
        200
    );
    assert_eq!(client.send("GET", &url, &accept, "").await.code, 406);
    let accept = [(
        "accept",
        "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
    )];
    let v3 = client.send("GET", &url, &accept, "").await;
    assert_eq!(
        (v3.code, v3.header("content-type")),
        (
            200,
            "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
        )
    );
    assert_eq!(v3.header("etag"), answer.header("etag"));
    assert!(v3.body.starts_with(b"\x0a\x053.0.0"));
}
