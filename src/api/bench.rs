//! What one write costs in the object model, on a pod of 4.5 KB. Run with
//! `cargo test --release -p api bench -- --ignored --nocapture`.

use crate::r;
use apimachinery::Value;
use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{Write, apply, update};
use apimachinery::codec::{json, protobuf};
use apimachinery::patch::{merge_patch, strategic_merge};
use apimachinery::schema::conform;
use serde_json::json as tree;
use std::time::{Duration, Instant};

/// Rounds of each measurement.
const ROUNDS: u32 = 2_000;

/// A pod as large as a real one: 4.5 KB with its status.
fn pod() -> Value {
    let container = |name: &str| {
        tree!({"name": name, "image": "registry.example.com/team/app:v1.2.3", "imagePullPolicy": "IfNotPresent",
            "env": (0..8).map(|n| tree!({"name": format!("VARIABLE_{n}"), "value": format!("value number {n}")})).collect::<Vec<_>>(),
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}, {"containerPort": 9090, "name": "metrics", "protocol": "TCP"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "failureThreshold": 3, "successThreshold": 1, "timeoutSeconds": 1},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 5, "failureThreshold": 3, "successThreshold": 1, "timeoutSeconds": 1},
            "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "250m", "memory": "128Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access-abcde", "readOnly": true}, {"mountPath": "/data", "name": "data"}]})
    };
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        tree!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-10-31T14:28:11Z"})
    });
    tree!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "app-5d4f8c7b9-abcde", "namespace": "default", "uid": "0b0c8c9e-4b2f-4d5c-9f4e-1a2b3c4d5e6f",
            "creationTimestamp": "2026-10-31T14:28:09Z", "generateName": "app-5d4f8c7b9-",
            "labels": {"app": "app", "pod-template-hash": "5d4f8c7b9", "tier": "backend", "team": "payments"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-5d4f8c7b9", "uid": "9b0c8c9e-4b2f-4d5c-9f4e-1a2b3c4d5e6f", "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"containers": [container("app"), container("sidecar")], "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "nodeName": "lab-worker",
            "preemptionPolicy": "PreemptLowerPriority", "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
            "tolerations": [{"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300},
                {"effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "kube-api-access-abcde", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}]},
        "status": {"phase": "Running", "podIP": "10.244.1.6", "podIPs": [{"ip": "10.244.1.6"}], "hostIP": "172.30.0.3", "qosClass": "Burstable",
            "startTime": "2026-10-31T14:28:09Z",
            "conditions": conditions}})
}

fn measure<T, U>(name: &str, mut make: impl FnMut() -> T, mut run: impl FnMut(T) -> U) {
    let mut spent = Duration::ZERO;
    for _ in 0..ROUNDS {
        let input = make();
        let start = Instant::now();
        let output = run(input);
        spent += start.elapsed();
        drop(output);
    }
    println!(
        "{name:32} {:8.1} µs",
        spent.as_secs_f64() * 1e6 / f64::from(ROUNDS)
    );
}

#[test]
#[ignore = "a measurement, not a test"]
fn the_cost_of_a_write() {
    let schema = r::PODS.schema;
    let reset = FieldSet::of_paths(&["status"]);
    let write = Write {
        manager: "bench",
        api_version: "v1",
        subresource: "",
        now: "2026-10-31T14:28:09Z",
        message: schema,
        reset: &reset,
    };
    let mut stored = pod();
    conform(&mut stored, schema).expect("fits");
    let plain = stored.clone();
    update(&Value::Null, &mut stored, &write);
    let bytes = json::encode(&stored);
    let sent = json::encode(&plain);
    println!("{} bytes sent, {} stored", sent.len(), bytes.len());

    measure(
        "json::decode",
        || (),
        |()| json::decode(&sent).expect("valid"),
    );
    measure(
        "serde_json::from_slice",
        || (),
        |()| serde_json::from_slice::<Value>(&sent).expect("valid"),
    );
    measure(
        "conform",
        || plain.clone(),
        |mut object| {
            conform(&mut object, schema).expect("fits");
            object
        },
    );
    measure(
        "update on create",
        || plain.clone(),
        |mut object| {
            update(&Value::Null, &mut object, &write);
            object
        },
    );
    measure("json::encode", || (), |()| json::encode(&stored));
    measure("clone", || (), |()| stored.clone());
    measure("drop", || stored.clone(), drop);
    measure(
        "protobuf::encode",
        || (),
        |()| protobuf::encode_object(&stored, schema),
    );
    let wire = protobuf::encode_object(&stored, schema);
    measure(
        "protobuf::decode",
        || (),
        |()| protobuf::decode_object(&wire, |_, _| Some(schema)).expect("valid"),
    );
    let patch = tree!({"metadata": {"labels": {"touched": "1"}}});
    measure(
        "create, whole",
        || (),
        |()| {
            let mut decoded = json::decode(&sent)
                .expect("valid")
                .conform(schema)
                .expect("fits")
                .value;
            update(&Value::Null, &mut decoded, &write);
            json::encode(&decoded)
        },
    );
    let other = Write {
        manager: "other",
        ..write
    };
    measure(
        "merge patch, whole",
        || (),
        |()| {
            let live = json::decode(&bytes).expect("valid").value;
            let mut new = live.clone();
            merge_patch(&mut new, patch.clone());
            conform(&mut new, schema).expect("fits");
            update(&live, &mut new, &other);
            json::encode(&new)
        },
    );
    let strategic = tree!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    measure(
        "strategic_merge",
        || stored.clone(),
        |live| strategic_merge(live, strategic.clone(), schema),
    );
    let config = tree!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app-5d4f8c7b9-abcde", "labels": {"x": "y"}}});
    measure("apply", || (), |()| apply(&stored, &config, &other, true));
}
