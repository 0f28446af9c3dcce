//! Tests that objects come out of the tables as a Go server writes them.

use crate::golden::{difference, folder, objects, read};
use crate::r;
use apimachinery::Value;
use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{Write, update};
use apimachinery::meta;
use apimachinery::schema::{complete, conform};
use serde_json::json;

#[test]
fn a_zero_object_has_what_go_always_writes() {
    let mut pod = json!({});
    complete(&mut pod, r::PODS.schema);
    assert_eq!(
        pod,
        json!({"metadata": {}, "spec": {"containers": null}, "status": {}})
    );
    let mut deployment = json!({});
    complete(&mut deployment, r::DEPLOYMENTS.schema);
    assert_eq!(
        deployment,
        json!({"metadata": {}, "spec": {"selector": null, "strategy": {}, "template": {"metadata": {}, "spec": {"containers": null}}},
            "status": {}})
    );
}

#[test]
fn zero_values_are_left_out_unless_they_are_pointers() {
    let mut pod = json!({"metadata": {"name": "x", "creationTimestamp": null, "labels": {}},
        "spec": {"hostNetwork": false, "automountServiceAccountToken": false, "nodeName": "", "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "tty": false, "ports": [], "securityContext": {}, "livenessProbe": {"periodSeconds": 0}}]}});
    conform(&mut pod, r::PODS.schema).expect("fits");
    assert_eq!(
        pod,
        json!({"metadata": {"name": "x"},
            "spec": {"automountServiceAccountToken": false, "restartPolicy": "Always", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i", "resources": {}, "securityContext": {}, "livenessProbe": {}}]},
            "status": {}})
    );
}

/// What kubectl run sends, with a kube-apiserver's defaults: who owns what is known from a real cluster.
#[test]
fn the_owner_of_a_new_pod_is_recorded_as_upstream_does() {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "nginx-demo", "namespace": "default", "labels": {"run": "nginx-demo"}},
        "spec": {"containers": [{"name": "nginx-demo", "image": "nginx", "imagePullPolicy": "Always",
                "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {}, "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File"}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "terminationGracePeriodSeconds": 30}});
    conform(&mut pod, r::PODS.schema).expect("fits");
    let reset = FieldSet::of_paths(&["status"]);
    let write = Write {
        manager: "kubectl-run",
        api_version: "v1",
        subresource: "",
        now: "2026-10-31T14:28:09Z",
        message: r::PODS.schema,
        reset: &reset,
    };
    update(&Value::Null, &mut pod, &write);
    assert_eq!(
        meta::metadata(&pod).and_then(|m| m.get("managedFields")),
        Some(
            &json!([{"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, "f:run": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"nginx-demo\"}": {".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                    "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {}}},
            "manager": "kubectl-run", "operation": "Update", "time": "2026-10-31T14:28:09Z"}])
        )
    );
}

#[test]
fn every_golden_object_fits_its_table_unchanged() {
    let Some(folder) = folder() else { return };
    for (name, message) in objects(&folder) {
        let before: Value =
            serde_json::from_slice(&read(&folder, &name, "json")).expect("golden JSON");
        let mut object = before.clone();
        let unknown =
            conform(&mut object, message).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(unknown, Vec::<String>::new(), "{name}");
        assert_eq!(difference("", &before, &object), None, "{name}");
    }
}

/// Objects a real kube-apiserver served right after its first start.
fn boot_objects() -> Vec<(&'static crate::Resource, Value)> {
    let Some(golden) = folder() else {
        return Vec::new();
    };
    let path = golden.join("../../facts/boot-objects.json");
    let Ok(text) = std::fs::read(&path) else {
        println!("skipped: no objects at {}", path.display());
        return Vec::new();
    };
    let all: Value = serde_json::from_slice(&text).expect("JSON");
    let mut found = Vec::new();
    for (path, objects) in all.as_object().expect("by path") {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let resource = match parts.as_slice() {
            ["api", version, plural] => crate::find("", version, plural),
            ["apis", group, version, plural] => crate::find(group, version, plural),
            _ => None,
        };
        let Some(resource) = resource else { continue };
        found.extend(
            objects
                .as_array()
                .into_iter()
                .flatten()
                .map(|object| (resource, object.clone())),
        );
    }
    found
}

#[test]
fn objects_a_real_server_made_fit_unchanged() {
    for (resource, before) in boot_objects() {
        let mut object = before.clone();
        conform(&mut object, resource.schema).expect("fits");
        assert_eq!(
            difference("", &before, &object),
            None,
            "{} {}",
            resource.plural,
            meta::name(&before)
        );
    }
}

#[test]
fn owners_are_recorded_as_a_real_server_does() {
    let mut checked = 0;
    for (resource, mut object) in boot_objects() {
        let Some(Value::Array(entries)) = meta::metadata_mut(&mut object).remove("managedFields")
        else {
            continue;
        };
        let [entry] = entries.as_slice() else {
            continue;
        };
        let reset = FieldSet::of_paths(&["status"]);
        let write = Write {
            manager: entry["manager"].as_str().expect("a manager"),
            api_version: entry["apiVersion"].as_str().expect("a version"),
            subresource: entry
                .get("subresource")
                .and_then(Value::as_str)
                .unwrap_or(""),
            now: entry["time"].as_str().expect("a time"),
            message: resource.schema,
            reset: &reset,
        };
        update(&Value::Null, &mut object, &write);
        let own = &object["metadata"]["managedFields"][0]["fieldsV1"];
        let recorded = FieldSet::from_fields_v1(entry["fieldsV1"].clone()).expect("a set");
        let mut own = FieldSet::from_fields_v1(own.clone()).expect("a set");
        if matches!(resource.plural, "namespaces" | "services") {
            // What the server added after the fields were counted has no owner: finalizers, addresses.
            own = own.intersection(&recorded);
        }
        let (recorded, own) = (recorded.into_fields_v1(), own.into_fields_v1());
        assert_eq!(
            difference("", &recorded, &own),
            None,
            "{} {}",
            resource.plural,
            meta::name(&object)
        );
        checked += 1;
    }
    assert!(
        checked > 100 || folder().is_none(),
        "{checked} owners checked"
    );
}

/// The one recursive type, nested as deeply as a decoder lets through, on a test's 2 MiB of stack.
#[test]
fn the_deepest_schema_passes_through_everything() {
    let resource = &r::CUSTOMRESOURCEDEFINITIONS;
    let mut schema = json!({"type": "string", "unknown": 1});
    for _ in 0..245 {
        schema = json!({"properties": {"a": schema}});
    }
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a.b.c"},
        "spec": {"group": "b.c", "names": {"kind": "A", "plural": "a"}, "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let bytes = apimachinery::codec::json::encode(&crd);
    let decoded = apimachinery::codec::json::decode(&bytes).expect("within the depth");
    let decoded = decoded.conform(resource.schema).expect("fits");
    assert_eq!(decoded.strict.len(), 1);
    let mut object = decoded.value;
    let reset = FieldSet::of_paths(&["status"]);
    let write = Write {
        manager: "m",
        api_version: "apiextensions.k8s.io/v1",
        subresource: "",
        now: "2026-10-31T14:28:09Z",
        message: resource.schema,
        reset: &reset,
    };
    update(&Value::Null, &mut object, &write);
    let wire = apimachinery::codec::protobuf::encode_object(&object, resource.schema);
    let back = apimachinery::codec::protobuf::decode_object(&wire, |_, _| Some(resource.schema))
        .expect("own output");
    assert_eq!(difference("", &object, &back), None);
    assert_eq!(
        apimachinery::codec::yaml::decode(&bytes)
            .expect("JSON is YAML")
            .value,
        crd
    );
}
