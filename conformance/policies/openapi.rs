//! What is published of custom kinds in OpenAPI, and what stock kubectl makes of it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::cluster::{Cluster, Defined, JSON_PATCH, definition, named_definition, unique};

fn foo() -> Value {
    json!({"description": "Foo CRD for Testing", "type": "object", "properties": {
        "spec": {"type": "object", "description": "Specification of Foo", "properties": {
            "bars": {"description": "List of Bars and their specs.", "type": "array", "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"description": "Name of Bar.", "type": "string"}, "age": {"description": "Age of Bar.", "type": "string"},
                "feeling": {"description": "Whether Bar is feeling great.", "type": "string", "enum": ["Great", "Down"]},
                "bazs": {"description": "List of Bazs.", "type": "array", "items": {"type": "string"}}}}}}},
        "status": {"description": "Status of Foo", "type": "object", "properties": {"bars": {"type": "array", "items": {"type": "string"}}}}}})
}

fn waldo() -> Value {
    json!({"description": "Waldo CRD for Testing", "type": "object", "properties": {
        "spec": {"description": "Specification of Waldo", "type": "object", "properties": {"dummy": {"description": "Dummy property.", "type": "object"}}},
        "status": {"description": "Status of Waldo", "type": "object", "properties": {"bars": {"type": "array", "items": {"type": "string"}}}}}})
}

/// The name of a kind's schema: its group turned round.
fn schema_name(defined: &Defined, version: &str) -> String {
    let mut parts: Vec<&str> = defined.group.split('.').collect();
    parts.reverse();
    format!("{}.{version}.{}", parts.join("."), defined.kind)
}

/// The published schema without what every object has; nothing where there is none.
async fn published(cluster: &Cluster, name: &str) -> Option<Value> {
    // The document is long; only the part asked for is read.
    let document = cluster.text("/openapi/v2").await;
    let key = format!("\"{name}\":");
    let at = document.find(&format!("{key}{{"))?;
    let mut values = serde_json::Deserializer::from_str(&document[at + key.len()..]).into_iter();
    let mut schema: Value = values.next()?.expect("a schema");
    let map = schema.as_object_mut().expect("an object");
    map.remove("x-kubernetes-group-version-kind");
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        for field in ["apiVersion", "kind", "metadata"] {
            assert!(properties.remove(field).is_some(), "{name} has no {field}");
        }
    }
    Some(schema)
}

/// Waits until a schema is published as wanted, or no more.
async fn until(cluster: &Cluster, name: &str, wanted: Option<&Value>) {
    let mut seen = None;
    for _ in 0..200 {
        seen = published(cluster, name).await;
        if seen.as_ref() == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{name} is {seen:?}, not {wanted:?}");
}

/// Stock kubectl, where there is one.
fn kubectl() -> Option<PathBuf> {
    let tools = std::env::var_os("SKIFF_TOOLS").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools"),
        PathBuf::from,
    );
    let path = tools.join("kubectl-1.37");
    if path.exists() {
        return Some(path);
    }
    eprintln!("kubectl's part is skipped: there is no {}", path.display());
    None
}

/// Whether a command of kubectl went well, and all it said.
fn run(cluster: &Cluster, arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut child = Command::new(kubectl()?)
        .arg("--kubeconfig")
        .arg(cluster.server.data_dir().join("admin.kubeconfig"))
        .arg("--cache-dir")
        .arg(cluster.server.data_dir().join("kubectl"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let mut stdin = child.stdin.take().expect("is piped");
    stdin.write_all(input.as_bytes()).expect("is read");
    drop(stdin);
    let output = child.wait_with_output().expect("kubectl ends");
    let said = [output.stdout, output.stderr].concat();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    ))
}

#[track_caller]
fn check(cluster: &Cluster, arguments: &[&str], input: &str, good: bool, words: &[&str]) {
    let Some((went_well, said)) = run(cluster, arguments, input) else {
        return;
    };
    assert_eq!(went_well, good, "{arguments:?}: {said}");
    for word in words {
        assert!(
            said.contains(word),
            "{arguments:?} says nothing of {word:?}: {said}"
        );
    }
}

/// kubectl takes an object by create and by apply.
fn check_taken(cluster: &Cluster, defined: &Defined, object: &Value) {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let of = format!("{}.{}", defined.plural, defined.group);
    for verb in ["create", "apply"] {
        check(cluster, &[verb, "-f", "-"], &object.to_string(), true, &[]);
        check(cluster, &["delete", &of, name], "", true, &[]);
    }
}

async fn end(cluster: &Cluster, defined: &Defined, versions: &[&str]) {
    cluster.delete(&defined.path).await;
    for version in versions {
        until(cluster, &schema_name(defined, version), None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_schema_is_published_held_to_and_explained() {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Namespaced", &foo())).await;
    until(&cluster, &schema_name(&defined, "v1"), Some(&foo())).await;
    let (_, v3) = cluster
        .ask(
            Method::GET,
            &format!("/openapi/v3/apis/{}/v1", defined.group),
            &Value::Null,
        )
        .await;
    let schema = &v3["components"]["schemas"][schema_name(&defined, "v1")];
    assert_eq!(schema["properties"]["spec"], foo()["properties"]["spec"]);

    let mut object = defined.object("test-foo");
    object["spec"] = json!({"bars": [{"name": "test-bar"}]});
    check_taken(&cluster, &defined, &object);
    for (spec, words) in [
        (
            json!({"bars": [{"name": "b", "feeling": "Odd"}]}),
            "Unsupported value: \"Odd\"",
        ),
        (json!({"foo": true}), "unknown field \"spec.foo\""),
        (
            json!({"bars": [{"age": "10"}]}),
            "spec.bars[0].name: Required value",
        ),
    ] {
        object["spec"] = spec;
        for verb in ["create", "apply"] {
            check(
                &cluster,
                &[verb, "-f", "-"],
                &object.to_string(),
                false,
                &[words],
            );
        }
    }
    let explained = |path: &str, words: &[&str]| {
        let of = format!("{}{path}", defined.plural);
        check(&cluster, &["explain", &of], "", true, words);
    };
    explained(
        "",
        &[
            "Foo CRD for Testing",
            "apiVersion\t<string>",
            "<Object>",
            "Specification of Foo",
        ],
    );
    explained(
        ".metadata",
        &["creationTimestamp\t<string>", "labels\t<map[string]string>"],
    );
    explained(
        ".spec",
        &[
            "Specification of Foo",
            "<[]Object>",
            "List of Bars and their specs",
        ],
    );
    explained(".spec.bars", &["List of Bazs", "<[]string>", "Name of Bar"]);
    let none = format!("{}.spec.bars2", defined.plural);
    check(
        &cluster,
        &["explain", &none],
        "",
        false,
        &["field \"bars2\" does not exist"],
    );
    end(&cluster, &defined, &["v1"]).await;
}

/// A kind of which only is published that it is an object takes any field, and `explain` prints its kind and `told`.
async fn takes_any_field(schema: &Value, told: &[&str]) {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Namespaced", schema)).await;
    let plain = json!({"type": "object"});
    until(&cluster, &schema_name(&defined, "v1"), Some(&plain)).await;
    let mut object = defined.object("test-cr");
    object["a"] = json!({"b": [{"c": "d"}]});
    check_taken(&cluster, &defined, &object);
    let told = [&["KIND:", &defined.kind], told].concat();
    check(&cluster, &["explain", &defined.plural], "", true, &told);
    end(&cluster, &defined, &["v1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_definition_that_says_nothing_takes_all() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    takes_any_field(&open, &["DESCRIPTION:", "<empty>"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_root_that_keeps_unknown_fields_says_nothing_of_its_fields() {
    let mut schema = waldo();
    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    takes_any_field(&schema, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_field_that_keeps_unknown_fields_says_nothing_of_its_own() {
    let cluster = Cluster::join().await;
    let keeping = json!({"description": "Specification of Waldo", "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"dummy": {"description": "Dummy property.", "type": "object"}}});
    let schema = json!({"description": "preserve-unknown-properties in nested field for Testing", "type": "object", "properties": {"spec": keeping}});
    let defined = cluster.define(&definition("Namespaced", &schema)).await;
    let expect = json!({"description": "preserve-unknown-properties in nested field for Testing", "type": "object",
        "properties": {"spec": {"description": "Specification of Waldo", "x-kubernetes-preserve-unknown-fields": true}}});
    until(&cluster, &schema_name(&defined, "v1"), Some(&expect)).await;
    let mut object = defined.object("test-cr");
    object["spec"] = json!({"b": [{"c": "d"}]});
    check_taken(&cluster, &defined, &object);
    check(
        &cluster,
        &["explain", &defined.plural],
        "",
        true,
        &["preserve-unknown-properties in nested field for Testing"],
    );
    end(&cluster, &defined, &["v1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_published_side_by_side() {
    let cluster = Cluster::join().await;
    let one = cluster.define(&definition("Namespaced", &foo())).await;
    let group = format!("{}.example.com", unique("waldo"));
    let other = named_definition(&group, "Namespaced", &[("v1beta1", &waldo())]);
    let other = cluster.define(&other).await;
    until(&cluster, &schema_name(&other, "v1beta1"), Some(&waldo())).await;
    until(&cluster, &schema_name(&one, "v1"), Some(&foo())).await;
    end(&cluster, &one, &["v1"]).await;
    end(&cluster, &other, &["v1beta1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_a_group_are_published_side_by_side() {
    let cluster = Cluster::join().await;
    let group = format!("{}.example.com", unique("common"));
    let two = named_definition(&group, "Namespaced", &[("v2", &foo()), ("v3", &foo())]);
    let two = cluster.define(&two).await;
    for version in ["v2", "v3"] {
        until(&cluster, &schema_name(&two, version), Some(&foo())).await;
    }
    let four = cluster
        .define(&named_definition(&group, "Namespaced", &[("v4", &foo())]))
        .await;
    let five = cluster
        .define(&named_definition(&group, "Namespaced", &[("v5", &waldo())]))
        .await;
    until(&cluster, &schema_name(&five, "v5"), Some(&waldo())).await;
    until(&cluster, &schema_name(&four, "v4"), Some(&foo())).await;
    end(&cluster, &two, &["v2", "v3"]).await;
    end(&cluster, &four, &["v4"]).await;
    end(&cluster, &five, &["v5"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_of_a_version_are_published_side_by_side() {
    let cluster = Cluster::join().await;
    let group = format!("{}.example.com", unique("common"));
    let one = cluster
        .define(&named_definition(&group, "Namespaced", &[("v6", &foo())]))
        .await;
    let other = cluster
        .define(&named_definition(&group, "Namespaced", &[("v6", &waldo())]))
        .await;
    until(&cluster, &schema_name(&other, "v6"), Some(&waldo())).await;
    until(&cluster, &schema_name(&one, "v6"), Some(&foo())).await;
    end(&cluster, &one, &["v6"]).await;
    end(&cluster, &other, &["v6"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_version_is_published_under_its_new_name() {
    let cluster = Cluster::join().await;
    let group = format!("{}.example.com", unique("multi"));
    let made = named_definition(&group, "Namespaced", &[("v2", &foo()), ("v3", &foo())]);
    let defined = cluster.define(&made).await;
    until(&cluster, &schema_name(&defined, "v3"), Some(&foo())).await;
    let patch = json!([{"op": "test", "path": "/spec/versions/1/name", "value": "v3"}, {"op": "replace", "path": "/spec/versions/1/name", "value": "v4"}]);
    cluster.patch(&defined.path, JSON_PATCH, &patch).await;
    until(&cluster, &schema_name(&defined, "v4"), Some(&foo())).await;
    until(&cluster, &schema_name(&defined, "v3"), None).await;
    until(&cluster, &schema_name(&defined, "v2"), Some(&foo())).await;
    end(&cluster, &defined, &["v2", "v4"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_no_longer_served_is_no_longer_published() {
    let cluster = Cluster::join().await;
    let group = format!("{}.example.com", unique("multi"));
    let made = named_definition(
        &group,
        "Namespaced",
        &[("v5", &foo()), ("v6alpha1", &foo())],
    );
    let defined = cluster.define(&made).await;
    until(&cluster, &schema_name(&defined, "v6alpha1"), Some(&foo())).await;
    let mut object = cluster.get(&defined.path).await;
    object["spec"]["versions"][1]["served"] = false.into();
    cluster.update(&defined.path, &object).await;
    until(&cluster, &schema_name(&defined, "v6alpha1"), None).await;
    until(&cluster, &schema_name(&defined, "v5"), Some(&foo())).await;
    end(&cluster, &defined, &["v5"]).await;
}
