//! Nodes, leases and runtime classes.

use serde_json::json;

use crate::cluster::{Cluster, assert_contains, items, refused};
use crate::endpoint::version;
use crate::kinds::{LEASE, NODE, POD, RUNTIME_CLASS};
use crate::lifecycle::Lifecycle;

pub async fn a_node_lives(cluster: &Cluster) {
    let nodes = cluster.all(NODE);
    let mut watcher = nodes.watch("checklist=fake-node", "").await;
    let node = json!({
        "metadata": {"name": "fake-node", "labels": {"checklist": "fake-node"}},
        "status": {"phase": "Running", "conditions": [{
            "type": "Ready", "status": "True", "reason": "Checklist", "message": "set by a test",
        }]},
    });
    let made = nodes.create(&node).await.expect("created");
    watcher.expect("ADDED").await;
    // A node is registered with the status it tells.
    assert_contains(&made["status"], &node["status"]);
    let patch = json!({"metadata": {"labels": {"patched": "yes"}}});
    let patched = nodes.strategic("fake-node", &patch).await.expect("patched");
    assert_contains(&patched, &patch);
    watcher
        .until("MODIFIED", |node| crate::cluster::contains(node, &patch))
        .await;
    let update = json!({"metadata": {"labels": {"updated": "yes"}}});
    let updated = nodes.update("fake-node", "", &update).await;
    assert_contains(&updated.expect("updated"), &update);
    let change = json!({"status": {"conditions": [{
        "type": "Ready", "status": "False", "reason": "Checklist", "message": "set by a test",
    }]}});
    let status = nodes.update("fake-node", "status", &change).await;
    assert_contains(&status.expect("status updated"), &change);
    watcher
        .until("MODIFIED", |node| crate::cluster::contains(node, &change))
        .await;
    nodes
        .delete_labelled("checklist=fake-node")
        .await
        .expect("the collection deleted");
    watcher.until("DELETED", |_| true).await;
    let left = nodes.labelled("checklist=fake-node").await.expect("a list");
    assert!(items(&left).is_empty());
}

pub async fn leases_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let leases = cluster.within(&namespace, LEASE);
    let lease = json!({
        "metadata": {"name": "lease", "labels": {"deletecollection": "true"}},
        "spec": {
            "holderIdentity": "holder", "leaseDurationSeconds": 30, "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:00:00.123456Z", "renewTime": "2026-01-01T00:00:15.000000Z",
        },
    });
    let made = leases.create(&lease).await.expect("created");
    assert_eq!(made["spec"], lease["spec"], "microseconds and all");
    let read = leases.get("lease").await.expect("got");
    assert_eq!(read, made);
    let change = json!({"spec": {"holderIdentity": "holder2", "leaseDurationSeconds": 29, "leaseTransitions": 1}});
    let updated = leases.update("lease", "", &change).await.expect("updated");
    assert_contains(&updated, &change);
    let patch = json!({"spec": {"holderIdentity": "holder3", "leaseDurationSeconds": 60}});
    let patched = leases.strategic("lease", &patch).await.expect("patched");
    assert_contains(&patched, &patch);
    assert!(version(&patched) > version(&updated));
    leases
        .create(&json!({"metadata": {"name": "lease2", "labels": {"deletecollection": "true"}}}))
        .await
        .expect("created");
    let found = leases.labelled("deletecollection=true").await;
    assert_eq!(items(&found.expect("a list")).len(), 2);
    leases
        .delete_labelled("deletecollection=true")
        .await
        .expect("the collection deleted");
    let left = leases.labelled("").await.expect("a list");
    assert!(items(&left).is_empty());
    Lifecycle::of(LEASE, json!({"spec": lease["spec"]}))
        .changed_by(json!({"spec": {"holderIdentity": "other"}}))
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn runtime_classes_live(cluster: &Cluster) {
    Lifecycle::of(
        RUNTIME_CLASS,
        json!({"handler": "runc", "overhead": {"podFixed": {"memory": "10Mi"}}}),
    )
    .live(cluster, None)
    .await;
    let classes = cluster.all(RUNTIME_CLASS);
    let class = json!({"metadata": {"name": "sealed"}, "handler": "runc"});
    classes.create(&class).await.expect("created");
    let other = json!({"handler": "other"});
    let message = refused(classes.merge("sealed", "", &other).await, 422, "Invalid");
    assert!(
        message.contains("handler: Invalid value: \"other\": field is immutable"),
        "{message}"
    );
    classes.delete("sealed").await.expect("deleted");
}

async fn a_pod_of_class_is_refused(cluster: &Cluster, class: &str) {
    let namespace = cluster.namespace_for_pods().await;
    let pod = json!({
        "metadata": {"generateName": "pod-"},
        "spec": {"runtimeClassName": class, "containers": [{"name": "pause", "image": "pause"}]},
    });
    let pods = cluster.within(&namespace, POD);
    let message = refused(pods.try_create(&pod).await, 403, "Forbidden");
    assert!(
        message.ends_with(&format!("pod rejected: RuntimeClass \"{class}\" not found")),
        "{message}"
    );
}

pub async fn a_pod_of_no_runtime_class_is_refused(cluster: &Cluster) {
    a_pod_of_class_is_refused(cluster, "nonexistent").await;
}

pub async fn a_pod_of_a_deleted_runtime_class_is_refused(cluster: &Cluster) {
    let classes = cluster.all(RUNTIME_CLASS);
    let class = json!({"metadata": {"name": "gone"}, "handler": "runc"});
    classes.create(&class).await.expect("created");
    classes.delete("gone").await.expect("deleted");
    crate::cluster::eventually("the end of the class", async || {
        classes.get("gone").await.is_err()
    })
    .await;
    a_pod_of_class_is_refused(cluster, "gone").await;
}
