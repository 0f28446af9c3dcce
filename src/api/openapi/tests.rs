//! Checks the documents as their readers use them: kubectl explain, kubectl's query-parameter verifier, client-go's apply.

use std::collections::BTreeSet;

use apimachinery::Value;

use super::{v2, v3, v3_paths};
use crate::{RESOURCES, Resource};

fn served() -> Vec<&'static Resource> {
    RESOURCES
        .iter()
        .copied()
        .filter(|resource| resource.default_on)
        .collect()
}

/// Every `$ref` in a document, by the last part of its path.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                found.insert(reference.rsplit('/').next().unwrap_or_default().to_owned());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_of_every_document_is_defined() {
    let served = served();
    for path in v3_paths(&served) {
        let document = v3(&path, &served).expect("served");
        let mut wanted = BTreeSet::new();
        references(&document, &mut wanted);
        let schemas = document["components"]["schemas"]
            .as_object()
            .expect("schemas");
        for name in wanted {
            assert!(schemas.contains_key(&name), "{path} lacks {name}");
        }
    }
    let document = v2(&served);
    let mut wanted = BTreeSet::new();
    references(&document, &mut wanted);
    for name in wanted {
        assert!(
            document["definitions"].get(&name).is_some(),
            "v2 lacks {name}"
        );
    }
}

#[test]
fn explain_finds_the_kind_by_path_and_the_words_by_field() {
    let document = v3("api/v1", &served()).expect("served");
    let get = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["get"];
    assert_eq!(get["x-kubernetes-group-version-kind"]["kind"], "Pod");
    let pod = &document["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    assert_eq!(pod["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
    assert!(pod["properties"]["apiVersion"]["description"].is_string());
    let spec = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"];
    let containers = &spec["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-map-keys"][0], "name");
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert!(
        containers["description"]
            .as_str()
            .is_some_and(|words| words.contains("containers"))
    );
    assert_eq!(spec["required"][0], "containers");
}

#[test]
fn fields_of_few_words_list_them_and_declared_defaults_are_told() {
    let document = v3("api/v1", &served()).expect("served");
    let schemas = &document["components"]["schemas"];
    let pull = &schemas["io.k8s.api.core.v1.Container"]["properties"]["imagePullPolicy"];
    assert_eq!(
        pull["enum"],
        serde_json::json!(["Always", "IfNotPresent", "Never"])
    );
    let words = pull["description"].as_str().expect("words");
    assert!(
        words.ends_with(
            "\n\nPossible enum values:\n - `\"Always\"`\n - `\"IfNotPresent\"`\n - `\"Never\"`"
        ),
        "{words}"
    );
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"];
    assert_eq!(port["protocol"]["default"], "TCP");
    assert_eq!(port["containerPort"]["default"], 0);
    assert!(port["hostPort"].get("default").is_none());
    let claim = &schemas["io.k8s.api.core.v1.PersistentVolumeClaimSpec"]["properties"];
    assert_eq!(claim["accessModes"]["items"]["enum"][0], "ReadOnlyMany");
    assert!(claim["accessModes"].get("enum").is_none());
    let document = v2(&served());
    let status = &document["definitions"]["io.k8s.api.core.v1.PodStatus"]["properties"];
    assert_eq!(status["phase"]["enum"][0], "Failed");
    assert!(status["phase"].get("default").is_none());
}

#[test]
fn patches_tell_kubectl_what_they_accept() {
    let document = v3("apis/apps/v1", &served()).expect("served");
    let patch =
        &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"]["kind"],
        "Deployment"
    );
    let names: Vec<_> = patch["parameters"]
        .as_array()
        .expect("parameters")
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    assert_eq!(
        names,
        ["dryRun", "fieldManager", "fieldValidation", "force"]
    );
    assert!(v3("apis/nothing/v1", &served()).is_none());
}

#[test]
fn every_field_of_every_served_kind_has_words() {
    let document = v2(&served());
    let mut silent = Vec::new();
    for (name, definition) in document["definitions"].as_object().expect("definitions") {
        let properties = definition["properties"].as_object();
        for (field, property) in properties.into_iter().flatten() {
            if property.get("description").is_none() {
                silent.push(format!("{name}.{field}"));
            }
        }
    }
    // meta.v1.Status details and the like carry words too; a handful of types are not in the crate.
    assert!(
        silent.len() < 60,
        "{} fields without words: {silent:?}",
        silent.len()
    );
}
