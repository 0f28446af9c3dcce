//! Custom resources over the whole registry: served once established, held to their schema, gone with their definition.

use http::Method;
use serde_json::{Value, json};

use super::harness::Harness;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/test/widgets";

fn definition() -> Value {
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "required": ["color"], "properties": {
                    "size": {"type": "integer", "default": 1, "minimum": 0}, "color": {"type": "string", "enum": ["red", "blue"]}}},
                "status": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}]}})
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

async fn eventually(server: &Harness, path: &str, done: impl Fn(u16, &Value) -> bool) -> Value {
    for _ in 0..2000 {
        let answer = server.get(path).await;
        if done(answer.code, &answer.value) {
            return answer.value;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("{path} never came to be as expected");
}

async fn with_widgets() -> Harness {
    let server = Harness::start().await;
    server.post(DEFINITIONS, &definition()).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let made = eventually(&server, &path, |_, object| {
        object["status"]["conditions"]
            .as_array()
            .is_some_and(|list| {
                list.iter().any(|condition| {
                    condition["type"] == "Established" && condition["status"] == "True"
                })
            })
    })
    .await;
    assert_eq!(made["status"]["acceptedNames"]["listKind"], "WidgetList");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    server
}

#[tokio::test]
async fn custom_objects_are_defaulted_validated_and_shown_by_their_definition() {
    let server = with_widgets().await;
    let made = server
        .post(WIDGETS, &widget("a", json!({"color": "red", "odd": 1})))
        .await
        .expect(201);
    assert_eq!(made["spec"], json!({"color": "red", "size": 1}));
    assert_eq!(made["metadata"]["generation"], 1);
    assert!(made.get("status").is_none());
    let message = server
        .post(WIDGETS, &widget("b", json!({"size": "x"})))
        .await
        .message(422);
    assert_eq!(
        message,
        "Widget.example.com \"b\" is invalid: [spec.color: Required value, spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"]"
    );
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let message = server
        .post(&strict, &widget("b", json!({"color": "red", "odd": 1})))
        .await
        .message(400);
    assert!(
        message.contains("strict decoding error: unknown field \"spec.odd\""),
        "{message}"
    );
    let list = server.get(WIDGETS).await.expect(200);
    assert_eq!(list["kind"], "WidgetList");
    assert_eq!(list["items"][0]["kind"], "Widget");
    let table = server
        .ask(
            Method::GET,
            WIDGETS,
            &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
            "",
        )
        .await
        .expect(200);
    assert_eq!(table["columnDefinitions"][1]["name"], "Size");
    assert_eq!(table["rows"][0]["cells"], json!(["a", 1]));
}

#[tokio::test]
async fn stored_objects_are_read_as_their_definition_is_now() {
    let server = with_widgets().await;
    server
        .post(WIDGETS, &widget("a", json!({"color": "red"})))
        .await
        .expect(201);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([{"op": "add", "path": format!("{schema}/shape"), "value": {"type": "string", "default": "round"}},
        {"op": "remove", "path": format!("{schema}/size")}]);
    let headers = [("content-type", "application/json-patch+json")];
    let path = format!("{DEFINITIONS}/widgets.example.com");
    server
        .ask(Method::PATCH, &path, &headers, patch.to_string())
        .await
        .expect(200);
    let wanted = json!({"color": "red", "shape": "round"});
    let object = format!("{WIDGETS}/a");
    eventually(&server, &object, |_, read| read["spec"] == wanted).await;
    let list = server.get(WIDGETS).await.expect(200);
    assert_eq!(list["items"][0]["spec"], wanted);
    let (_, first) = server
        .watch(&format!("{WIDGETS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"))
        .await
        .next()
        .await
        .expect("an event");
    assert_eq!(first["spec"], wanted);
    // A patch begins with what is read: the default can be tested, and is stored from now on.
    let before = list["items"][0]["metadata"]["resourceVersion"].clone();
    let test = json!([{"op": "test", "path": "/spec/shape", "value": "round"}]);
    let made = server
        .ask(Method::PATCH, &object, &headers, test.to_string())
        .await
        .expect(200);
    assert_ne!(made["metadata"]["resourceVersion"], before);
    let again = server
        .ask(Method::PATCH, &object, &headers, test.to_string())
        .await
        .expect(200);
    assert_eq!(
        again["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn custom_objects_have_status_scale_and_discovery() {
    let server = with_widgets().await;
    let mut made = server
        .post(WIDGETS, &widget("a", json!({"color": "red"})))
        .await
        .expect(201);
    made["status"] = json!({"size": 5});
    made["spec"]["size"] = 9.into();
    let path = format!("{WIDGETS}/a");
    let status = server
        .put(&format!("{path}/status"), &made)
        .await
        .expect(200);
    assert_eq!(
        (&status["status"]["size"], &status["spec"]["size"]),
        (&json!(5), &json!(1))
    );
    let scale = server.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!(scale["spec"]["replicas"], 1);
    assert_eq!(scale["status"]["replicas"], 5);
    let mut scale = scale.clone();
    scale["spec"]["replicas"] = 3.into();
    server
        .put(&format!("{path}/scale"), &scale)
        .await
        .expect(200);
    let read = server.get(&path).await.expect(200);
    assert_eq!(read["spec"]["size"], 3);
    assert_eq!(read["metadata"]["generation"], 2);
    let merge = [("content-type", "application/merge-patch+json")];
    let patched = server
        .ask(Method::PATCH, &path, &merge, r#"{"spec":{"color":"blue"}}"#)
        .await
        .expect(200);
    assert_eq!(patched["spec"]["color"], "blue");
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let refused = server
        .ask(Method::PATCH, &path, &strategic, r#"{"spec":{}}"#)
        .await;
    assert_eq!(refused.code, 415);
    let found = server.get("/apis/example.com/v1").await.expect(200);
    let names: Vec<&str> = found["resources"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|resource| resource["name"].as_str())
        .collect();
    assert_eq!(names, ["widgets", "widgets/scale", "widgets/status"]);
    let document = server
        .get("/openapi/v3/apis/example.com/v1")
        .await
        .expect(200);
    let named = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}";
    let patch = &document["paths"][named]["patch"]["requestBody"]["content"];
    let taken: Vec<&String> = patch.as_object().expect("types").keys().collect();
    assert!(
        !taken.iter().any(|name| name.contains("strategic")) && taken.len() == 3,
        "{taken:?}"
    );
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(
        schema["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "version": "v1", "kind": "Widget"}])
    );
}

#[tokio::test]
async fn a_definition_goes_after_its_objects() {
    let server = with_widgets().await;
    let mut held = widget("held", json!({"color": "red"}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(WIDGETS, &held).await.expect(201);
    server
        .post(WIDGETS, &widget("free", json!({"color": "red"})))
        .await
        .expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    server.ask(Method::DELETE, &path, &[], "").await.expect(200);
    let free = format!("{WIDGETS}/free");
    eventually(&server, &free, |code, _| code == 404).await;
    let held_path = format!("{WIDGETS}/held");
    let marked = eventually(&server, &held_path, |_, object| {
        !object["metadata"]["deletionTimestamp"].is_null()
    })
    .await;
    let mut released = marked.clone();
    released["metadata"]["finalizers"] = json!([]);
    server.put(&held_path, &released).await.expect(200);
    eventually(&server, &path, |code, _| code == 404).await;
    eventually(&server, "/apis/example.com/v1", |code, _| code == 404).await;
}

#[tokio::test]
async fn two_definitions_cannot_have_one_name() {
    let server = with_widgets().await;
    let mut other = definition();
    other["metadata"]["name"] = "gadgets.example.com".into();
    other["spec"]["names"] = json!({"plural": "gadgets", "kind": "Widget"});
    server.post(DEFINITIONS, &other).await.expect(201);
    let path = format!("{DEFINITIONS}/gadgets.example.com");
    let refused = eventually(&server, &path, |_, object| {
        !object["status"]["conditions"][0].is_null()
    })
    .await;
    assert_eq!(refused["status"]["conditions"][0]["reason"], "NameConflict");
    let gadgets = "/apis/example.com/v1/namespaces/test/gadgets";
    assert_eq!(server.get(gadgets).await.code, 404);
}

#[tokio::test]
async fn a_custom_group_has_an_api_service_for_as_long_as_it_is_served() {
    const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
    let server = with_widgets().await;
    let path = format!("{SERVICES}/v1.example.com");
    let made = eventually(&server, &path, |code, _| code == 200).await;
    assert_eq!(
        made["metadata"]["labels"],
        json!({"kube-aggregator.kubernetes.io/automanaged": "true"})
    );
    assert_eq!(
        made["spec"],
        json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100})
    );
    assert_eq!(made["status"]["conditions"][0]["reason"], "Local");
    // Who changes or deletes it finds it as it was.
    let change = json!({"spec": {"versionPriority": 7}});
    server.patch(&path, "merge", &change).await.expect(200);
    eventually(&server, &path, |_, object| {
        object["spec"]["versionPriority"] == 100
    })
    .await;
    server.delete(&path).await.expect(200);
    let uid = &made["metadata"]["uid"];
    eventually(&server, &path, |code, object| {
        code == 200 && object["metadata"]["uid"] != *uid
    })
    .await;
    // One of the server's own that is deleted stays away until the next start.
    let own = format!("{SERVICES}/v1.batch");
    server.delete(&own).await.expect(200);
    let other = json!({"metadata": {"name": "v1.other.io"}, "spec": {"group": "other.io", "version": "v1",
        "groupPriorityMinimum": 1, "versionPriority": 1}});
    server.post(SERVICES, &other).await.expect(201);
    let other = format!("{SERVICES}/v1.other.io");
    eventually(&server, &other, |_, object| {
        object["status"]["conditions"][0]["status"] == "True"
    })
    .await;
    assert_eq!(server.get(&own).await.code, 404);
    let definition = format!("{DEFINITIONS}/widgets.example.com");
    server.delete(&definition).await.expect(200);
    eventually(&server, &path, |code, _| code == 404).await;
    assert_eq!(server.get(&other).await.code, 200);
}
