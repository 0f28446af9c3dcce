//! Watches: order, resumption, selectors, bookmarks, expiry.

use apimachinery::Value;
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

/// What a watch in another form tells of a map that is made, changed and deleted, beginning with what is there.
async fn told_as(accept: &str) -> Vec<(String, Value)> {
    let server = Harness::start().await;
    server
        .post(MAPS, &config_map("a", json!({"x": "1"})))
        .await
        .expect(201);
    let query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let path = format!("{MAPS}?{query}&labelSelector=x");
    let mut events = server.watch_as(&path, accept).await;
    let mut told = Vec::new();
    for _ in 0..2 {
        told.push(events.next().await.expect("an initial event"));
    }
    let map = format!("{MAPS}/a");
    for change in [
        json!({"data": {"k": "2"}}),
        json!({"metadata": {"labels": {"x": null}}}),
        json!({"metadata": {"labels": {"x": "2"}}}),
    ] {
        server.patch(&map, "merge", &change).await.expect(200);
    }
    server.delete(&map).await.expect(200);
    for _ in 0..4 {
        told.push(events.next().await.expect("an event"));
    }
    told
}

fn kinds(told: &[(String, Value)]) -> Vec<&str> {
    told.iter().map(|(kind, _)| kind.as_str()).collect()
}

const ALL_KINDS: [&str; 6] = [
    "ADDED", "BOOKMARK", "MODIFIED", "DELETED", "ADDED", "DELETED",
];

#[tokio::test]
async fn a_watch_of_metadata_never_tells_whole_objects() {
    for form in ["PartialObjectMetadata", "PartialObjectMetadataList"] {
        for version in ["v1", "v1beta1"] {
            let accept = format!(
                "application/json;as={form};g=meta.k8s.io;v={version},application/json;q=0.5"
            );
            let told = told_as(&accept).await;
            assert_eq!(kinds(&told), ALL_KINDS, "{accept}");
            for (kind, object) in &told {
                assert_eq!(object["kind"], "PartialObjectMetadata", "{kind}: {accept}");
                assert_eq!(object["apiVersion"], format!("meta.k8s.io/{version}"));
                let mut fields: Vec<&String> =
                    object.as_object().expect("an object").keys().collect();
                fields.sort_unstable();
                assert_eq!(fields, ["apiVersion", "kind", "metadata"], "{kind}");
                let metadata = &object["metadata"];
                assert!(metadata["resourceVersion"].is_string());
                if kind == "BOOKMARK" {
                    assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true");
                } else {
                    assert_eq!(metadata["name"], "a");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_watch_of_a_table_names_its_columns_once_and_tells_metadata() {
    let told = told_as("application/json;as=Table;g=meta.k8s.io;v=v1").await;
    assert_eq!(kinds(&told), ALL_KINDS);
    for (at, (kind, table)) in told.iter().enumerate() {
        assert_eq!(table["kind"], "Table", "{kind}");
        assert_eq!(table["columnDefinitions"].is_null(), at > 0, "{kind}");
        let row = &table["rows"][0];
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata", "{kind}");
        assert!(row["object"]["data"].is_null(), "{kind}");
        if kind != "BOOKMARK" {
            assert_eq!(row["cells"][0], "a", "{kind}");
        }
    }
}
