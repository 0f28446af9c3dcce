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

#[tokio::test(start_paused = true)]
async fn an_owner_in_another_namespace_is_told_and_does_no_harm_to_others() {
    let server = Server::default();
    let of_group = |name: &str, resource: &str, kind: &str, scope: &str| {
        json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [
            {"resource": resource, "responseKind": {"kind": kind}, "scope": scope, "verbs": ["delete", "list", "watch"]}]}]})
    };
    let custom = [
        of_group("example.org", "widgets", "Widget", "Namespaced"),
        of_group(
            "rbac.authorization.k8s.io",
            "clusterroles",
            "ClusterRole",
            "Cluster",
        ),
    ];
    server.set_discovery("/api", json!({"items": [group("", "pods", "Pod")]}));
    server.set_discovery("/apis", json!({"items": custom}));
    server.put(
        widgets(),
        json!({"metadata": {"name": "w", "namespace": "other", "uid": "w1"}}),
    );
    let _guard = crate::testing::start(&server, &["garbage-collector-controller"]);
    seconds(5).await;
    server.put(&PODS, owned("crossed", "Widget", "w1"));
    seconds(5).await;
    assert!(server.get(&PODS, "n/crossed").is_none());
    let events = server.list(&api::r::EVENTS);
    let message = "ownerRef [example.org/v1/Widget, namespace: n, name: w, uid: w1] does not exist in namespace \"n\"";
    let told = |event: &Value| {
        event["reason"] == "OwnerRefInvalidNamespace" && event["message"] == message
    };
    assert!(events.iter().any(told), "{events:?}");
    // The same owner, found missing in that namespace, is there in its own; what has no namespace is kept.
    let mut role = owned("role", "Widget", "w1");
    role["metadata"]
        .as_object_mut()
        .map(|meta| meta.remove("namespace"));
    server.put(&api::r::CLUSTERROLES, role);
    let mut right = owned("right", "Widget", "w1");
    right["metadata"]["namespace"] = json!("other");
    server.put(&PODS, right);
    server.remove(widgets(), "other/w");
    seconds(5).await;
    assert!(server.get(&PODS, "other/right").is_none());
    assert!(server.get(&api::r::CLUSTERROLES, "role").is_some());
}
