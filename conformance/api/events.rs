//! Events, in the core group's form and in their own group's.

use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, items, refused, text};
use crate::kinds::{EVENT, Kind, NEW_EVENT};
use crate::lifecycle::Lifecycle;

fn old_event(namespace: &str) -> Value {
    json!({
        "message": "This is a test event", "reason": "Test", "type": "Normal", "count": 1,
        "involvedObject": {"namespace": namespace, "kind": "Pod", "name": "involved"},
    })
}

fn new_event(namespace: &str) -> Value {
    json!({
        "eventTime": "2026-01-01T00:00:00.000000Z", "note": "This is a test event", "type": "Normal",
        "action": "Do", "reason": "Test", "reportingController": "test-controller",
        "reportingInstance": "test-node",
        "regarding": {"namespace": namespace, "kind": "Pod", "name": "involved"},
    })
}

fn named(mut event: Value, name: &str) -> Value {
    event["metadata"] = json!({"name": name, "labels": {"testevent-constant": "static"}});
    event
}

pub async fn an_event_lives(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let events = cluster.within(&namespace, EVENT);
    let event = named(old_event(&namespace), "event-test");
    let made = events.create(&event).await.expect("created");
    assert_contains(&made, &event);
    let all = cluster
        .all(EVENT)
        .labelled("testevent-constant=static")
        .await;
    assert_contains(
        &all.expect("a list"),
        &json!({"items": [{"metadata": {"name": "event-test", "namespace": namespace}}]}),
    );
    let patch = json!({"message": "This is a test event - patched"});
    events
        .strategic("event-test", &patch)
        .await
        .expect("patched");
    let got = events.get("event-test").await.expect("got");
    assert_contains(&got, &patch);
    let series =
        json!({"series": {"count": 100, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}});
    let updated = events.update("event-test", "", &series).await;
    assert_contains(&updated.expect("updated"), &series);
    // The same event in the other group.
    let other = cluster
        .within(&namespace, NEW_EVENT)
        .get("event-test")
        .await;
    let other = other.expect("the other form");
    assert_eq!(text(&other, "/note"), "This is a test event - patched");
    assert_eq!(other["regarding"], got["involvedObject"]);
    for (field, found) in [
        ("involvedObject.name=involved", 1),
        ("reason=Other", 0),
        ("type=Normal", 1),
    ] {
        let list = events.list(&ListParams::default().fields(field)).await;
        assert_eq!(items(&list.expect("a list")).len(), found, "{field}");
    }
    events.delete("event-test").await.expect("deleted");
    refused(events.get("event-test").await, 404, "NotFound");
    let left = events.labelled("testevent-constant=static").await;
    assert!(items(&left.expect("a list")).is_empty());
}

pub async fn an_event_of_the_new_group_lives(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let events = cluster.within(&namespace, NEW_EVENT);
    let event = named(new_event(&namespace), "event-test");
    let made = events.create(&event).await.expect("created");
    assert_contains(&made, &event);
    for endpoint in [&cluster.all(NEW_EVENT), &events] {
        let which = format!("metadata.namespace={namespace},reportingController=test-controller");
        let list = endpoint.list(&ListParams::default().fields(&which)).await;
        assert_eq!(items(&list.expect("a list")).len(), 1);
    }
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}});
    let patched = events.strategic("event-test", &series).await;
    assert_contains(&patched.expect("patched"), &series);
    let more = json!({"series": {"count": 100, "lastObservedTime": "2026-01-02T03:04:06.000006Z"}});
    let updated = events.update("event-test", "", &more).await;
    assert_contains(&updated.expect("updated"), &more);
    assert_contains(&events.get("event-test").await.expect("got"), &more);
    // What an event of this group must say cannot change.
    let changed = json!({"note": "another"});
    let message = refused(
        events.update("event-test", "", &changed).await,
        422,
        "Invalid",
    );
    assert!(message.contains("field is immutable"), "{message}");
    events.delete("event-test").await.expect("deleted");
    let left = events.labelled("").await.expect("a list");
    assert!(items(&left).is_empty());
}

async fn a_collection_is_deleted(cluster: &Cluster, kind: Kind, event: fn(&str) -> Value) {
    let namespace = cluster.namespace().await;
    let events = cluster.within(&namespace, kind);
    for number in 1..=3 {
        let event = named(event(&namespace), &format!("test-event-{number}"));
        events.create(&event).await.expect("created");
    }
    let mut other = event(&namespace);
    other["metadata"] = json!({"name": "other"});
    events.create(&other).await.expect("created");
    let found = events.labelled("testevent-constant=static").await;
    assert_eq!(items(&found.expect("a list")).len(), 3);
    events
        .delete_labelled("testevent-constant=static")
        .await
        .expect("the collection deleted");
    let left = events.labelled("").await.expect("a list");
    assert_eq!(items(&left).len(), 1, "the other stays");
}

pub async fn a_collection_of_events_is_deleted(cluster: &Cluster) {
    a_collection_is_deleted(cluster, EVENT, old_event).await;
    let namespace = cluster.namespace().await;
    Lifecycle::of(EVENT, old_event(&namespace))
        .changed_by(json!({"message": "another"}))
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn a_collection_of_new_events_is_deleted(cluster: &Cluster) {
    a_collection_is_deleted(cluster, NEW_EVENT, new_event).await;
    let namespace = cluster.namespace().await;
    Lifecycle::of(NEW_EVENT, new_event(&namespace))
        .changed_by(
            json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}}),
        )
        .live(cluster, Some(&namespace))
        .await;
}
