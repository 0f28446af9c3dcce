//! Fields that are unknown or given twice, and `fieldValidation=Strict`.

use http::Method;
use serde_json::{Value, json};

use super::cluster::{APPLY, Cluster, Defined, definition};

const STRICT: &str = "fieldManager=field_validation_mgr&fieldValidation=Strict";

/// A schema whose spec has the given extra words.
fn schema(spec: Value) -> Value {
    let ports = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
        "items": {"type": "object", "required": ["containerPort", "protocol"], "properties": {
            "containerPort": {"type": "integer", "format": "int32"}, "hostIP": {"type": "string"},
            "hostPort": {"type": "integer", "format": "int32"}, "name": {"type": "string"}, "protocol": {"type": "string"}}}});
    let mut whole = json!({"type": "object", "properties": {"foo": {"type": "string"}, "ports": ports,
        "cronSpec": {"type": "string", "pattern": "^(\\d+|\\*)(/\\d+)?(\\s+(\\d+|\\*)(/\\d+)?){4}$"}}});
    for (key, value) in spec.as_object().expect("a map") {
        if key == "properties" {
            for (name, property) in value.as_object().expect("properties") {
                whole["properties"][name] = property.clone();
            }
        } else {
            whole[key] = value.clone();
        }
    }
    json!({"type": "object", "properties": {"spec": whole}})
}

/// Applies an object written in YAML below its type and name.
async fn apply(cluster: &Cluster, defined: &Defined, rest: &str) -> (u16, Value) {
    let path = format!("{}/mytest?{STRICT}", defined.everywhere());
    let body = format!(
        "\napiVersion: {}/{}\nkind: {}\nmetadata:\n  name: mytest\n{rest}",
        defined.group, defined.version, defined.kind
    );
    let headers = [("content-type", APPLY)];
    cluster.send(Method::PATCH, &path, &headers, &body).await
}

const GOOD: &str = "  foo: foo1\n  cronSpec: \"* * * * */5\"\n  ports:\n  - name: x\n    containerPort: 80\n    protocol: TCP";

/// A deployment as text, with more in its metadata and its spec.
fn deployment(metadata: &str, spec: &str) -> String {
    format!(
        r#"{{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {{"name": "my-dep", {metadata}"labels": {{"app": "nginx"}}}},
        "spec": {{{spec}"selector": {{"matchLabels": {{"app": "nginx"}}}}, "template": {{"metadata": {{"labels": {{"app": "nginx"}}}},
        "spec": {{"containers": [{{"name": "nginx", "image": "nginx:latest"}}]}}}}}}}}"#
    )
}

async fn post_strictly(cluster: &Cluster, body: &str) -> String {
    let path = format!("/apis/apps/v1/namespaces/default/deployments?{STRICT}");
    let headers = [("content-type", "application/json")];
    let (code, status) = cluster.send(Method::POST, &path, &headers, body).await;
    assert_eq!(code, 400, "{status}");
    status["message"].as_str().expect("a message").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_and_duplicate_fields_of_built_in_kinds_are_refused() {
    let cluster = Cluster::join().await;
    let body = deployment(
        "",
        r#""unknownField": "foo", "replicas": 2, "replicas": 3, "#,
    );
    let message = post_strictly(&cluster, &body).await;
    assert!(
        message.contains(r#"strict decoding error: unknown field "spec.unknownField", duplicate field "spec.replicas""#),
        "{message}"
    );
    let path = "/apis/apps/v1/namespaces/default/deployments?dryRun=All&fieldValidation=Ignore";
    let headers = [("content-type", "application/json")];
    let (code, made) = cluster.send(Method::POST, path, &headers, &body).await;
    assert_eq!(
        (code, &made["spec"]["replicas"]),
        (201, &json!(3)),
        "{made}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_metadata_of_built_in_kinds_is_refused() {
    let cluster = Cluster::join().await;
    let message = post_strictly(&cluster, &deployment(r#""unknownMeta": "foo", "#, "")).await;
    assert!(
        message.contains(r#"strict decoding error: unknown field "metadata.unknownMeta""#),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fits_the_schema_is_applied() {
    let cluster = Cluster::join().await;
    let defined = cluster
        .define(&definition("Cluster", &schema(json!({}))))
        .await;
    let (code, made) = apply(&cluster, &defined, &format!("spec:\n{GOOD}")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"]["ports"][0]["containerPort"], 80);
    let wrong = GOOD.replace("* * * * */5", "soon");
    let (code, status) = apply(&cluster, &defined, &format!("spec:\n{wrong}")).await;
    assert_eq!(code, 422, "{status}");
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_schema_all_fields_are_taken() {
    let cluster = Cluster::join().await;
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let defined = cluster.define(&definition("Cluster", &open)).await;
    let (code, made) = apply(
        &cluster,
        &defined,
        &format!("spec:\n  unknown: uk1\n{GOOD}"),
    )
    .await;
    assert_eq!(
        (code, &made["spec"]["unknown"]),
        (201, &json!("uk1")),
        "{made}"
    );
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_the_schema_does_not_have_is_refused() {
    let cluster = Cluster::join().await;
    let defined = cluster
        .define(&definition("Cluster", &schema(json!({}))))
        .await;
    let (code, status) = apply(
        &cluster,
        &defined,
        &format!("unknownField: unknown\nspec:\n{GOOD}"),
    )
    .await;
    assert!(code >= 400, "{status}");
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.contains(".unknownField: field not declared in schema"),
        "{message}"
    );
    let mut object = defined.object("created");
    object["spec"] = json!({"foo": "x", "other": 1});
    let path = format!("{}?{STRICT}", defined.everywhere());
    let (code, status) = cluster.ask(Method::POST, &path, &object).await;
    let message = status["message"].as_str().expect("a message");
    assert_eq!(code, 400, "{message}");
    assert!(
        message.contains(r#"strict decoding error: unknown field "spec.other""#),
        "{message}"
    );
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_metadata_is_refused_at_the_root_and_within() {
    let cluster = Cluster::join().await;
    let template = json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}}, "spec": {"type": "object"}}});
    let schema = schema(
        json!({"x-kubernetes-preserve-unknown-fields": true, "properties": {"template": template}}),
    );
    let defined = cluster.define(&definition("Cluster", &schema)).await;
    let rest = format!(
        "  unknownMeta: unknown\nspec:\n  template:\n    apiversion: foo/v1\n    kind: Sub\n    metadata:\n      unknownSubMeta: unknown\n      name: subobject\n{GOOD}"
    );
    let (code, status) = apply(&cluster, &defined, &rest).await;
    assert!(code >= 400, "{status}");
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.contains(".spec.template.metadata.unknownSubMeta: field not declared in schema")
            || message.contains(".metadata.unknownMeta: field not declared in schema"),
        "{message}"
    );
    let mut object = defined.object("created");
    object["metadata"]["unknownMeta"] = "x".into();
    object["spec"] = json!({"template": {"apiVersion": "v1", "kind": "Sub", "metadata": {"name": "s", "unknownSubMeta": "x"}}});
    let path = format!("{}?{STRICT}", defined.everywhere());
    let (code, status) = cluster.ask(Method::POST, &path, &object).await;
    assert_eq!(code, 400, "{status}");
    let message = status["message"].as_str().expect("a message");
    for field in [
        "metadata.unknownMeta",
        "spec.template.metadata.unknownSubMeta",
    ] {
        assert!(
            message.contains(&format!("unknown field {field:?}")),
            "{message}"
        );
    }
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_given_twice_are_refused_even_where_unknown_ones_are_kept() {
    let cluster = Cluster::join().await;
    let schema = schema(json!({"x-kubernetes-preserve-unknown-fields": true}));
    let defined = cluster.define(&definition("Cluster", &schema)).await;
    let rest =
        format!("  finalizers:\n  - test-finalizer\nspec:\n  unknown: uk1\n  foo: foo0\n{GOOD}");
    let (code, status) = apply(&cluster, &defined, &rest).await;
    assert!(code >= 400, "{status}");
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.contains("line 11: key \"foo\" already set in map"),
        "{message}"
    );
    cluster.delete(&defined.path).await;
}
