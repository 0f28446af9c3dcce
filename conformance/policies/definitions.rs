//! Definitions of kinds, and the objects of those kinds.

use http::Method;
use serde_json::{Value, json};

use super::cluster::{Cluster, DEFINITIONS, JSON_PATCH, definition, is, unique};

fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_is_established_and_goes() {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Cluster", &open())).await;
    let made = cluster.get(&defined.path).await;
    assert!(
        is(&made, "NamesAccepted") && is(&made, "Established"),
        "{made}"
    );
    assert_eq!(made["status"]["acceptedNames"], made["spec"]["names"]);
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    let object = format!("{}/one", defined.everywhere());
    cluster
        .create(&defined.everywhere(), &defined.object("one"))
        .await;
    cluster.delete(&defined.path).await;
    cluster.gone(&defined.path).await;
    cluster.gone(&object).await;
    let again = cluster
        .ask(Method::DELETE, &defined.path, &Value::Null)
        .await;
    assert_eq!(again.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_listed_and_deleted_by_label() {
    let cluster = Cluster::join().await;
    let label = unique("listed");
    for _ in 0..10 {
        let mut made = definition("Cluster", &open());
        made["metadata"]["labels"] = json!({"list": label});
        cluster.create(DEFINITIONS, &made).await;
    }
    let other = cluster.define(&definition("Cluster", &open())).await;
    let selected = format!("{DEFINITIONS}?labelSelector=list%3D{label}");
    let list = cluster.get(&selected).await;
    let items = list["items"].as_array().expect("items");
    assert_eq!(items.len(), 10);
    assert!(
        items
            .iter()
            .all(|item| item["spec"]["conversion"]["strategy"] == "None")
    );
    cluster.delete(&selected).await;
    cluster
        .eventually(&selected, |list| list["items"] == json!([]))
        .await;
    cluster.get(&other.path).await;
    cluster.delete(&other.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_definition_is_read_updated_and_patched() {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Cluster", &open())).await;
    let path = format!("{}/status", defined.path);
    let spec = cluster.get(&defined.path).await["spec"].clone();
    let has = |object: &Value, message: &str| {
        let conditions = object["status"]["conditions"].as_array();
        conditions.is_some_and(|list| list.iter().any(|have| have["message"] == message))
    };
    let mut updated = Value::Null;
    for _ in 0..10 {
        let mut object = cluster.get(&path).await;
        assert_eq!(object["spec"], spec);
        let conditions = object["status"]["conditions"].as_array_mut();
        conditions
            .expect("conditions")
            .push(json!({"type": "", "status": "", "message": "updated"}));
        object["spec"]["scope"] = "Namespaced".into();
        let (code, answer) = cluster.ask(Method::PUT, &path, &object).await;
        if code != 409 {
            assert_eq!(code, 200, "{answer}");
            updated = answer;
            break;
        }
    }
    assert!(has(&updated, "updated"), "{updated}");
    assert_eq!(updated["spec"], spec, "a status is all that is taken");
    let patch =
        json!([{"op": "add", "path": "/status/conditions", "value": [{"message": "patched"}]}]);
    let patched = cluster.patch(&path, JSON_PATCH, &patch).await;
    assert!(has(&patched, "patched"), "{patched}");
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_apply_to_requests_and_to_what_is_stored() {
    let cluster = Cluster::join().await;
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
    let defined = cluster.define(&definition("Cluster", &schema)).await;
    let path = defined.everywhere();
    let made = cluster.create(&path, &defined.object("one")).await;
    assert_eq!(made.get("a"), None);
    let properties = "/spec/versions/0/schema/openAPIV3Schema/properties";
    let patch = json!([{"op": "add", "path": format!("{properties}/a/default"), "value": "A"}]);
    cluster.patch(&defined.path, JSON_PATCH, &patch).await;
    cluster
        .eventually(&format!("{path}/one"), |object| object["a"] == "A")
        .await;
    let made = cluster.create(&path, &defined.object("two")).await;
    assert_eq!(made["a"], "A");
    let patch = json!([{"op": "remove", "path": format!("{properties}/a/default")},
        {"op": "add", "path": format!("{properties}/b/default"), "value": "B"}]);
    cluster.patch(&defined.path, JSON_PATCH, &patch).await;
    let two = cluster
        .eventually(&format!("{path}/two"), |object| object["b"] == "B")
        .await;
    assert_eq!(two["a"], "A", "what was stored stays");
    let one = cluster.get(&format!("{path}/one")).await;
    assert_eq!(one.get("a"), None, "what was only read does not");
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_objects_are_watched_by_name() {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Cluster", &open())).await;
    let path = defined.everywhere();
    let mut first = cluster
        .watch(&format!(
            "{path}?watch=true&fieldSelector=metadata.name%3Done"
        ))
        .await;
    let mut second = cluster
        .watch(&format!(
            "{path}?watch=true&fieldSelector=metadata.name%3Dtwo"
        ))
        .await;
    let patch = json!([{"op": "add", "path": "/dummy", "value": "test"}]);
    for (name, events) in [("one", &mut first), ("two", &mut second)] {
        let one = format!("{path}/{name}");
        cluster.create(&path, &defined.object(name)).await;
        cluster.patch(&one, JSON_PATCH, &patch).await;
        cluster.delete(&one).await;
        for kind in ["ADDED", "MODIFIED", "DELETED"] {
            let (seen, object) = events.next().await;
            assert_eq!(
                (seen.as_str(), &object["metadata"]["name"]),
                (kind, &json!(name))
            );
            assert_eq!(object["dummy"] == "test", kind != "ADDED");
            assert_eq!(object["kind"], defined.kind.as_str());
        }
    }
    cluster.delete(&defined.path).await;
}
