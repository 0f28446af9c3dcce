//! Config maps and secrets: keys, lives and immutability.

use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, contains, items, refused, text};
use crate::endpoint::{Endpoint, version};
use crate::kinds::{CONFIG_MAP, Kind, SECRET};
use crate::lifecycle::Lifecycle;

async fn an_empty_key_is_refused(cluster: &Cluster, kind: Kind, value: &str) {
    let objects = cluster.within(&cluster.namespace().await, kind);
    let object = json!({"metadata": {"name": "empty-key"}, "data": {"": value}});
    let message = refused(objects.create(&object).await, 422, "Invalid");
    assert!(
        message.contains("data[]: Invalid value: \"\"")
            && message.contains("a valid config key must consist of alphanumeric characters"),
        "{message}"
    );
}

pub async fn a_config_map_has_no_empty_key(cluster: &Cluster) {
    an_empty_key_is_refused(cluster, CONFIG_MAP, "value-1").await;
}

pub async fn a_secret_has_no_empty_key(cluster: &Cluster) {
    an_empty_key_is_refused(cluster, SECRET, "dmFsdWUtMQ==").await;
}

/// Made, patched, found in all namespaces and deleted as one of a collection, while a watch looks on.
async fn is_patched_found_and_deleted(cluster: &Cluster, kind: Kind, old: &str, new: &str) {
    let namespace = cluster.namespace().await;
    let objects = cluster.within(&namespace, kind);
    let selector = format!("test-{}=static,in={namespace}", kind.resource);
    let mut watcher = objects.watch(&selector, "").await;
    let labels = json!({format!("test-{}", kind.resource): "static", "in": namespace});
    let object = json!({"metadata": {"name": "object", "labels": labels}, "data": {"key": old}});
    let made = objects.create(&object).await.expect("created");
    assert_eq!(watcher.expect("ADDED").await, made);
    let patch = json!({"data": {"key": new}, "metadata": {"labels": {"test": "patched"}}});
    let patched = objects.strategic("object", &patch).await.expect("patched");
    assert_contains(&patched, &patch);
    assert_eq!(watcher.expect("MODIFIED").await, patched);
    assert_eq!(objects.get("object").await.expect("got"), patched);
    let found = cluster.all(kind).labelled(&selector).await;
    let found = found.expect("a list");
    assert_eq!(items(&found).len(), 1);
    assert!(contains(&found, &json!({"items": [patch]})));
    objects.delete_labelled(&selector).await.expect("deleted");
    let gone = watcher.expect("DELETED").await;
    assert!(version(&gone) > version(&patched));
    assert_contains(&gone, &patch);
    let left = cluster.all(kind).labelled(&selector).await.expect("a list");
    assert!(items(&left).is_empty());
}

pub async fn config_maps_live(cluster: &Cluster) {
    is_patched_found_and_deleted(cluster, CONFIG_MAP, "value", "changed").await;
    let namespace = cluster.namespace().await;
    Lifecycle::of(
        CONFIG_MAP,
        json!({"data": {"a": "1"}, "binaryData": {"b": "AAE="}}),
    )
    .changed_by(json!({"data": {"a": "2"}}))
    .live(cluster, Some(&namespace))
    .await;
}

pub async fn a_secret_is_patched(cluster: &Cluster) {
    is_patched_found_and_deleted(cluster, SECRET, "dmFsdWU=", "dmFsdWUx").await;
    let namespace = cluster.namespace().await;
    Lifecycle::of(SECRET, json!({"type": "Opaque", "data": {"a": "MQ=="}}))
        .changed_by(json!({"data": {"a": "Mg=="}}))
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn a_config_map_is_updated(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    let map = json!({"metadata": {"name": "map"}, "data": {"data-1": "value-1"}});
    let made = maps.create(&map).await.expect("created");
    let mut changed = made.clone();
    changed["data"] = json!({"data-1": "value-2", "data-2": "more"});
    let updated = maps.replace("map", &changed).await.expect("updated");
    assert_eq!(updated["data"], changed["data"]);
    assert_eq!(updated["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(maps.get("map").await.expect("got"), updated);
}

async fn an_immutable_one_stays(objects: &Endpoint, old: &str, new: &str) {
    let object = |value: &str| json!({"metadata": {"name": "object"}, "data": {"key": value}});
    objects.create(&object(old)).await.expect("created");
    let change = json!({"data": {"key": new}});
    objects
        .update("object", "", &change)
        .await
        .expect("mutable still");
    let seal = json!({"immutable": true});
    objects.update("object", "", &seal).await.expect("sealed");
    for (change, why) in [
        (
            json!({"data": {"key": old}}),
            "data: Forbidden: field is immutable when `immutable` is set",
        ),
        (
            json!({"immutable": false}),
            "immutable: Forbidden: field is immutable when `immutable` is set",
        ),
        (
            json!({"immutable": null, "data": {"more": old}}),
            "immutable: Forbidden: field is immutable when `immutable` is set",
        ),
    ] {
        let message = refused(objects.update("object", "", &change).await, 422, "Invalid");
        assert!(message.contains(why), "{message}");
    }
    let label: Value = json!({"metadata": {"labels": {"still": "mine"}}});
    let labelled = objects.update("object", "", &label).await;
    let labelled = labelled.expect("metadata is not sealed");
    assert_contains(&labelled, &label);
    assert_eq!(text(&labelled, "/data/key"), new);
    objects.delete("object").await.expect("deleted");
    let again = objects.create(&object(old)).await.expect("made anew");
    assert_eq!(again.get("immutable"), None);
}

pub async fn an_immutable_config_map_stays(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    an_immutable_one_stays(&maps, "value-1", "value-2").await;
}

pub async fn an_immutable_secret_stays(cluster: &Cluster) {
    let secrets = cluster.within(&cluster.namespace().await, SECRET);
    an_immutable_one_stays(&secrets, "MQ==", "Mg==").await;
}
