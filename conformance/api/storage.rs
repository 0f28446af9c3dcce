//! Drivers, classes, attachments, volumes and claims.

use serde_json::json;

use crate::cluster::{Cluster, assert_contains, eventually, text};
use crate::kinds::{
    CSI_DRIVER, CSI_NODE, STORAGE_CAPACITY, STORAGE_CLASS, VOLUME, VOLUME_ATTACHMENT, VOLUME_CLAIM,
};
use crate::lifecycle::Lifecycle;

pub async fn drivers_live(cluster: &Cluster) {
    Lifecycle::of(
        CSI_DRIVER,
        json!({"spec": {"attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"]}}),
    )
    .changed_by(json!({"spec": {"requiresRepublish": true}}))
    .live(cluster, None)
    .await;
}

pub async fn driver_nodes_live(cluster: &Cluster) {
    Lifecycle::of(CSI_NODE, json!({"spec": {"drivers": []}}))
        .changed_by(json!({"spec": {"drivers": [
            {"name": "one.example.com", "nodeID": "here", "topologyKeys": ["example.com/zone"]},
        ]}}))
        .live(cluster, None)
        .await;
}

pub async fn storage_capacities_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    Lifecycle::of(
        STORAGE_CAPACITY,
        json!({"storageClassName": "checklist", "capacity": "1Gi", "nodeTopology": {"matchLabels": {"zone": "a"}}}),
    )
    .changed_by(json!({"capacity": "2Gi"}))
    .live(cluster, Some(&namespace))
    .await;
}

pub async fn storage_classes_live(cluster: &Cluster) {
    Lifecycle::of(
        STORAGE_CLASS,
        json!({"provisioner": "e2e.example.com", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
    )
    .changed_by(json!({"allowVolumeExpansion": true}))
    .live(cluster, None)
    .await;
}

fn attachment() -> serde_json::Value {
    json!({"spec": {
        "attacher": "e2e.example.com", "nodeName": "worker",
        "source": {"persistentVolumeName": "volume"},
    }})
}

pub async fn attachments_live(cluster: &Cluster) {
    Lifecycle::of(VOLUME_ATTACHMENT, attachment())
        .live(cluster, None)
        .await;
}

pub async fn an_attachments_status_is_written(cluster: &Cluster) {
    let attachments = cluster.all(VOLUME_ATTACHMENT);
    let mut object = attachment();
    object["metadata"] = json!({"name": "attachment"});
    let made = attachments.create(&object).await.expect("created");
    assert_eq!(made["status"], json!({"attached": false}));
    let patch = json!({"status": {"attached": true, "attachmentMetadata": {"disk": "a"}}});
    let patched = attachments.merge("attachment", "status", &patch).await;
    let patched = patched.expect("status patched");
    assert_contains(&patched, &patch);
    let read = attachments.get_sub("attachment", "status").await;
    assert_eq!(read.expect("a status"), patched);
    let update = json!({"status": {"attached": false, "attachError": {"message": "no more"}}});
    let updated = attachments.update("attachment", "status", &update).await;
    let updated = updated.expect("status updated");
    assert_contains(&updated, &update);
    assert_eq!(updated["spec"], made["spec"]);
    attachments.delete("attachment").await.expect("deleted");
}

pub async fn a_volumes_and_a_claims_status_are_written(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let (volumes, claims) = (
        cluster.all(VOLUME),
        cluster.within(&namespace, VOLUME_CLAIM),
    );
    let volume = json!({"metadata": {"name": "checklist-volume"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "checklist-status",
        "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "e2e.example.com", "volumeHandle": "handle"},
    }});
    volumes.create(&volume).await.expect("a volume");
    let claim = json!({"metadata": {"name": "claim"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "checklist-status", "volumeName": "checklist-volume",
        "resources": {"requests": {"storage": "1Gi"}},
    }});
    claims.create(&claim).await.expect("a claim");
    eventually("the bond", async || {
        let bound = |object: serde_json::Value| text(&object, "/status/phase") == "Bound";
        bound(claims.get("claim").await.expect("got"))
            && bound(volumes.get("checklist-volume").await.expect("got"))
    })
    .await;

    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Checklist", "message": "set by a test"});
    let read = claims.get_sub("claim", "status").await.expect("a status");
    assert_eq!(text(&read, "/kind"), "PersistentVolumeClaim");
    let patch = json!({
        "metadata": {"annotations": {"patched": "true"}},
        "status": {"conditions": [condition("StatusPatched")]},
    });
    let patched = claims.merge("claim", "status", &patch).await;
    let patched = patched.expect("status patched");
    assert_contains(&patched, &patch);
    let update =
        json!({"status": {"conditions": [condition("StatusPatched"), condition("StatusUpdated")]}});
    let updated = claims.update("claim", "status", &update).await;
    let updated = updated.expect("status updated");
    assert_contains(&updated, &update);
    assert_eq!(updated["spec"], patched["spec"]);
    assert_eq!(text(&updated, "/status/phase"), "Bound");

    let read = volumes.get_sub("checklist-volume", "status").await;
    assert_eq!(text(&read.expect("a status"), "/kind"), "PersistentVolume");
    let patch = json!({
        "metadata": {"annotations": {"patched": "true"}},
        "status": {"message": "StatusPatched", "reason": "Checklist"},
    });
    let patched = volumes.merge("checklist-volume", "status", &patch).await;
    assert_contains(&patched.expect("status patched"), &patch);
    let update = json!({"status": {"message": "StatusUpdated"}});
    let updated = volumes.update("checklist-volume", "status", &update).await;
    assert_contains(&updated.expect("status updated"), &update);

    claims.delete("claim").await.expect("deleted");
    volumes.delete("checklist-volume").await.expect("deleted");
    eventually("the end of both", async || {
        claims.get("claim").await.is_err() && volumes.get("checklist-volume").await.is_err()
    })
    .await;
}
