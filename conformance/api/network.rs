//! Ingresses, their classes, service ranges and addresses.

use serde_json::json;

use crate::cluster::{Cluster, assert_contains, eventually, items, refused, text};
use crate::endpoint::version;
use crate::kinds::{INGRESS, INGRESS_CLASS, IP_ADDRESS, SERVICE_CIDR};
use crate::lifecycle::{Lifecycle, served};

pub async fn ingresses_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let backend = json!({"service": {"name": "test-backend", "port": {"number": 80}}});
    let ingress = json!({"spec": {
        "defaultBackend": backend,
        "rules": [{"host": "foo.bar.com", "http": {"paths": [
            {"path": "/", "pathType": "ImplementationSpecific", "backend": backend},
        ]}}],
    }});
    Lifecycle::of(INGRESS, ingress)
        .changed_by(json!({"spec": {"defaultBackend": {"service": {"port": {"number": 81}}}}}))
        .with_status(
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}}}),
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "169.1.1.2"}, {"hostname": "example.com"}]}}}),
        )
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn ingress_classes_live(cluster: &Cluster) {
    Lifecycle::of(
        INGRESS_CLASS,
        json!({"spec": {"controller": "example.com/controller"}}),
    )
    .changed_by(json!({"spec": {"parameters": {
        "apiGroup": "example.com", "kind": "Parameters", "name": "some", "scope": "Cluster",
    }}}))
    .live(cluster, None)
    .await;
}

pub async fn addresses_live(cluster: &Cluster) {
    served(cluster, IP_ADDRESS, &[]).await;
    let addresses = cluster.all(IP_ADDRESS);
    let parent =
        json!({"group": "mygroup", "resource": "myresources", "namespace": "foo", "name": "bar"});
    let address = |name: &str, of: &str| json!({"metadata": {"name": name, "labels": {"type": of}}, "spec": {"parentRef": parent}});
    let broadcast = "255.255.255.255";
    let made = addresses.create(&address(broadcast, "broadcast")).await;
    let made = made.expect("created");
    let local = address("fe80::42:1dff:fe84:f9e2", "link-local");
    addresses.create(&local).await.expect("created");
    let message = refused(
        addresses.create(&address("fe80::0:1", "link-local")).await,
        422,
        "Invalid",
    );
    assert!(
        message.contains("must be in canonical form (\"fe80::1\")"),
        "{message}"
    );
    let mut watcher = addresses
        .watch("type=broadcast", &version(&made).to_string())
        .await;

    let patch = json!({"metadata": {"annotations": {"patched": "true"}}});
    let patched = addresses.merge(broadcast, "", &patch).await;
    let patched = patched.expect("patched");
    assert_contains(&patched, &patch);
    assert!(version(&patched) > version(&made));
    let update = json!({"metadata": {"annotations": {"updated": "true"}}});
    let updated = addresses.update(broadcast, "", &update).await;
    let updated = updated.expect("updated");
    assert_contains(&updated, &update);
    let other = json!({"spec": {"parentRef": {"name": "other"}}});
    let message = refused(
        addresses.update(broadcast, "", &other).await,
        422,
        "Invalid",
    );
    assert!(message.contains("spec.parentRef"), "{message}");
    assert_eq!(addresses.get(broadcast).await.expect("got"), updated);
    let list = addresses.labelled("type=broadcast").await.expect("a list");
    assert_eq!(items(&list).len(), 1);

    addresses.delete(broadcast).await.expect("deleted");
    assert_eq!(watcher.expect("MODIFIED").await, patched);
    assert_eq!(watcher.expect("MODIFIED").await, updated);
    watcher.expect("DELETED").await;
    addresses
        .delete_labelled("type=link-local")
        .await
        .expect("the collection deleted");
    let left = addresses.labelled("type=link-local").await.expect("a list");
    assert!(items(&left).is_empty());
}

pub async fn service_ranges_live(cluster: &Cluster) {
    served(cluster, SERVICE_CIDR, &["status"]).await;
    let ranges = cluster.all(SERVICE_CIDR);
    let own = ranges.get("kubernetes").await.expect("the cluster's own");
    let status = ranges.get_sub("kubernetes", "status").await;
    let status = status.expect("a status");
    assert_eq!(text(&status, "/kind"), "ServiceCIDR");
    assert_eq!(status["metadata"]["uid"], own["metadata"]["uid"]);

    let made = json!({"metadata": {"name": "more", "labels": {"checklist": "ranges"}}, "spec": {"cidrs": ["203.0.113.0/24"]}});
    let made = ranges.create(&made).await.expect("created");
    let mut watcher = ranges
        .watch("checklist=ranges", &version(&made).to_string())
        .await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    watcher
        .until("MODIFIED", |range| crate::cluster::contains(range, &ready))
        .await;
    let listed = ranges.labelled("checklist=ranges").await.expect("a list");
    assert_eq!(items(&listed).len(), 1);

    let patch = json!({"metadata": {"annotations": {"patched": "true"}}});
    assert_contains(
        &ranges.merge("more", "", &patch).await.expect("patched"),
        &patch,
    );
    let update = json!({"metadata": {"annotations": {"updated": "true"}}});
    assert_contains(
        &ranges.update("more", "", &update).await.expect("updated"),
        &update,
    );
    let other = json!({"spec": {"cidrs": ["198.51.100.0/24"]}});
    let message = refused(ranges.merge("more", "", &other).await, 422, "Invalid");
    assert!(message.contains("spec.cidrs"), "{message}");
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": "Checklist", "message": "set by a test",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let patch = json!({"status": {"conditions": [condition("StatusPatched")]}});
    let patched = ranges.merge("more", "status", &patch).await;
    assert_contains(&patched.expect("status patched"), &patch);
    let update = json!({"status": {"conditions": [condition("StatusUpdated")]}});
    let updated = ranges.update("more", "status", &update).await;
    assert_contains(&updated.expect("status updated"), &update);

    ranges
        .delete_labelled("checklist=ranges")
        .await
        .expect("the collection deleted");
    watcher.until("DELETED", |_| true).await;
    eventually("the end of the range", async || {
        let left = ranges.labelled("checklist=ranges").await;
        items(&left.expect("a list")).is_empty()
    })
    .await;
}
