//! Watches: order, resumption, selectors, bookmarks, expiry.

use serde_json::json;
use store::Store;

use super::harness::{Harness, config_map};

const MAPS: &str = "/api/v1/namespaces/test/configmaps";

#[tokio::test]
async fn a_watch_tells_what_happens_after_its_version() {
    let server = Harness::start().await;
    let a = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let version = a["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = server
        .watch(&format!("{MAPS}?watch=true&resourceVersion={version}"))
        .await;
    server
        .post(MAPS, &config_map("b", json!({})))
        .await
        .expect(201);
    let patch = json!({"data": {"k": "2"}});
    server
        .patch(&format!("{MAPS}/a"), "merge", &patch)
        .await
        .expect(200);
    server.delete(&format!("{MAPS}/b")).await.expect(200);
    assert_eq!(events.brief().await, "ADDED b");
    let (kind, object) = events.next().await.unwrap();
    assert_eq!(
        (kind.as_str(), &object["data"]["k"]),
        ("MODIFIED", &json!("2"))
    );
    assert_eq!(object["kind"], "ConfigMap");
    let (kind, gone) = events.next().await.unwrap();
    assert_eq!(kind, "DELETED");
    assert_eq!(gone["data"]["k"], "v");
    let last: i64 = gone["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(last, server.store.revision().await.unwrap());
}

#[tokio::test]
async fn a_watch_resumes_from_history_after_a_restart() {
    let server = Harness::start().await;
    let a = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    server
        .patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"k": "2"}}))
        .await
        .expect(200);
    server.delete(&format!("{MAPS}/a")).await.expect(200);
    // A second server on the same store has an empty window.
    let options = crate::Options::new(server.store.clone());
    let other = crate::Server::start(options).await.expect("starts");
    let other = Harness::around(other, server.store.clone());
    let version = a["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = other
        .watch(&format!("{MAPS}?watch=true&resourceVersion={version}"))
        .await;
    assert_eq!(events.brief().await, "MODIFIED a");
    assert_eq!(events.brief().await, "DELETED a");
    server
        .post(MAPS, &config_map("b", json!({})))
        .await
        .expect(201);
    assert_eq!(events.brief().await, "ADDED b");
}

#[tokio::test]
async fn a_compacted_version_is_gone() {
    let server = Harness::start().await;
    let a = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    for name in ["b", "c"] {
        server
            .post(MAPS, &config_map(name, json!({})))
            .await
            .expect(201);
    }
    let now = server.store.revision().await.unwrap();
    server.store.compact(now).await.unwrap();
    let options = crate::Options::new(server.store.clone());
    let other = crate::Server::start(options).await.expect("starts");
    let other = Harness::around(other, server.store.clone());
    let version = a["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = other
        .watch(&format!("{MAPS}?watch=true&resourceVersion={version}"))
        .await;
    let (kind, status) = events.next().await.unwrap();
    assert_eq!(kind, "ERROR");
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("too old resource version: ")
    );
    assert_eq!(events.brief().await, "END");
}

#[tokio::test]
async fn selector_transitions_are_additions_and_deletions() {
    let server = Harness::start().await;
    let mut events = server
        .watch(&format!("{MAPS}?watch=true&labelSelector=on%3Dyes"))
        .await;
    server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let path = format!("{MAPS}/a");
    let label = |value: &str| json!({"metadata": {"labels": {"on": value}}});
    server
        .patch(&path, "merge", &label("yes"))
        .await
        .expect(200);
    assert_eq!(events.brief().await, "ADDED a");
    let patched = server.patch(&path, "merge", &label("no")).await.expect(200);
    let (kind, object) = events.next().await.unwrap();
    assert_eq!(kind, "DELETED");
    assert_eq!(object["metadata"]["labels"]["on"], "yes");
    assert_eq!(
        object["metadata"]["resourceVersion"],
        patched["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn a_streaming_list_ends_its_initial_events_with_a_bookmark() {
    let server = Harness::start().await;
    server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    server
        .post(MAPS, &config_map("b", json!({})))
        .await
        .expect(201);
    let mut events = server
        .watch(&format!(
            "{MAPS}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
        ))
        .await;
    assert_eq!(events.brief().await, "ADDED a");
    assert_eq!(events.brief().await, "ADDED b");
    let (kind, object) = events.next().await.unwrap();
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(
        object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(object["kind"], "ConfigMap");
    server
        .post(MAPS, &config_map("c", json!({})))
        .await
        .expect(201);
    assert_eq!(events.brief().await, "ADDED c");
}

#[tokio::test]
async fn a_watch_ends_when_its_time_is_up() {
    let server = Harness::start().await;
    let mut events = server
        .watch(&format!("{MAPS}?watch=true&timeoutSeconds=1"))
        .await;
    assert_eq!(events.brief().await, "END");
}
