//! The garbage collector against an API server in memory, with a custom kind that comes late.

use crate::testing::seconds;

use api::r::{CUSTOMRESOURCEDEFINITIONS, PODS};
use client::fake::Server;
use serde_json::{Value, json};

use crate::{discovery::Served, dynamic};

fn widgets() -> &'static api::Resource {
    dynamic::resource(&Served {
        group: "example.org".into(),
        version: "v1".into(),
        resource: "widgets".into(),
        kind: "Widget".into(),
        is_namespaced: true,
        verbs: ["delete", "list", "watch"].map(String::from).into(),
    })
    .unwrap()
}

fn group(name: &str, resource: &str, kind: &str) -> Value {
    json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [
        {"resource": resource, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["delete", "list", "watch"]}]}]})
}

fn owned(name: &str, kind: &str, uid: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": [
        {"apiVersion": "example.org/v1", "kind": kind, "name": "w", "uid": uid}]}})
}

#[tokio::test(start_paused = true)]
async fn dependents_of_a_custom_kind_go_with_their_owner_and_not_before_it_is_known() {
    let server = Server::default();
    server.set_discovery("/api", json!({"items": [group("", "pods", "Pod")]}));
    let _guard = crate::testing::start(&server, &["garbage-collector-controller"]);
    server.put(&PODS, owned("kept", "Widget", "w1"));
    server.put(&PODS, owned("orphan", "Widget", "gone"));
    seconds(10).await;
    assert_eq!(
        server.list(&PODS).len(),
        2,
        "whoever is of an unknown kind may be there"
    );

    server.set_discovery(
        "/apis",
        json!({"items": [group("example.org", "widgets", "Widget")]}),
    );
    server.put(
        widgets(),
        json!({"metadata": {"name": "w", "namespace": "n", "uid": "w1"}}),
    );
    server.put(
        &CUSTOMRESOURCEDEFINITIONS,
        json!({"metadata": {"name": "widgets.example.org"}}),
    );
    seconds(10).await;
    assert!(server.get(&PODS, "n/orphan").is_none());
    assert!(server.get(&PODS, "n/kept").is_some());

    server.remove(widgets(), "n/w");
    seconds(10).await;
    assert!(server.list(&PODS).is_empty());

    // The kind itself goes; nothing that is left is touched.
    server.put(&PODS, owned("later", "Widget", "w2"));
    server.put(
        widgets(),
        json!({"metadata": {"name": "w", "namespace": "n", "uid": "w2"}}),
    );
    seconds(10).await;
    server.set_discovery("/apis", json!({"items": []}));
    server.remove(&CUSTOMRESOURCEDEFINITIONS, "widgets.example.org");
    seconds(10).await;
    assert!(server.get(&PODS, "n/later").is_some());
}
