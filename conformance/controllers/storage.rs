//! Volumes, claims and classes from their making to their end.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::cluster::Space;

pub async fn volume(space: Space) -> anyhow::Result<()> {
    let name = format!("pv-{}", space.name);
    let class = format!("class-{}", space.name);
    let (volume, claim) = (
        format!("/api/v1/persistentvolumes/{name}"),
        space.core("persistentvolumeclaims/c"),
    );
    space.post("/api/v1/persistentvolumes", json!({"metadata": {"name": name, "labels": {"of": space.name}}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "e2e.example.com", "volumeHandle": "e2e"}}})).await?;
    space.post(&space.core("persistentvolumeclaims"), json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}})).await?;
    let phase = |wanted: &'static str| {
        move |found: Option<&Value>| found.is_some_and(|found| found["status"]["phase"] == wanted)
    };
    space.until("bound claim", &claim, phase("Bound")).await?;
    space.until("bound volume", &volume, phase("Bound")).await?;
    space
        .patch(&volume, json!({"metadata": {"labels": {"patched": "yes"}}}))
        .await?;
    space
        .patch(&claim, json!({"metadata": {"labels": {"patched": "yes"}}}))
        .await?;
    ensure!(
        space
            .items("/api/v1/persistentvolumes?labelSelector=patched=yes")
            .await?
            .len()
            == 1
    );
    ensure!(
        space
            .items(&space.core("persistentvolumeclaims?labelSelector=patched=yes"))
            .await?
            .len()
            == 1
    );
    let protected = |object: &Value, by: &str| {
        object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| all.contains(&json!(by)))
    };
    ensure!(protected(
        &space.get(&claim).await?,
        "kubernetes.io/pvc-protection"
    ));
    ensure!(protected(
        &space.get(&volume).await?,
        "kubernetes.io/pv-protection"
    ));
    space.delete(&claim).await?;
    space.until_gone(&claim).await?;
    space
        .until("released volume", &volume, phase("Released"))
        .await?;
    space.delete(&volume).await?;
    space.until_gone(&volume).await
}

pub async fn attributes_class(space: Space) -> anyhow::Result<()> {
    let classes = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    let class = |name: &str| json!({"metadata": {"name": format!("{name}-{}", space.name), "labels": {"of": space.name}}, "driverName": "e2e.example.com", "parameters": {"iops": "1"}});
    let made = space.post(classes, class("one")).await?;
    let path = format!("{classes}/one-{}", space.name);
    ensure!(
        space.get(&path).await?["parameters"]["iops"] == "1",
        "{made}"
    );
    space
        .patch(&path, json!({"metadata": {"labels": {"patched": "yes"}}}))
        .await?;
    let mut whole = space.get(&path).await?;
    whole["metadata"]["labels"]["updated"] = json!("yes");
    space.put(&path, whole).await?;
    let selected = format!(
        "{classes}?labelSelector=of={},patched=yes,updated=yes",
        space.name
    );
    ensure!(space.items(&selected).await?.len() == 1);
    space.delete(&path).await?;
    space.until_gone(&path).await?;
    space.post(classes, class("two")).await?;
    let all = format!("{classes}?labelSelector=of={}", space.name);
    space.delete(&all).await?;
    space.until_count(&all, 0).await?;
    Ok(())
}
