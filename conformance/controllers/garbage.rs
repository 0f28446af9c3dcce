//! What becomes of dependents when their owner goes, and of what every namespace has.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::cluster::{Space, controller, owners, pending, template};

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template(name)}})
}

async fn with_replica_set(space: &Space) -> anyhow::Result<()> {
    space
        .post(&space.group("apps/v1", "deployments"), deployment("d"))
        .await?;
    space
        .until_count(&space.group("apps/v1", "replicasets"), 1)
        .await?;
    Ok(())
}

async fn with_pods(space: &Space, name: &str, count: usize) -> anyhow::Result<Vec<Value>> {
    space
        .post(
            &space.core("replicationcontrollers"),
            controller(name, count),
        )
        .await?;
    space
        .until_count(
            &space.core(&format!("pods?labelSelector=app={name}")),
            count,
        )
        .await
}

pub async fn background(space: Space) -> anyhow::Result<()> {
    with_replica_set(&space).await?;
    space
        .delete_as(&space.group("apps/v1", "deployments/d"), "Background")
        .await?;
    space
        .until_count(&space.group("apps/v1", "replicasets"), 0)
        .await?;
    space.until_count(&space.core("pods"), 0).await?;
    Ok(())
}

pub async fn background_pods(space: Space) -> anyhow::Result<()> {
    with_pods(&space, "rc", 2).await?;
    space
        .delete_as(&space.core("replicationcontrollers/rc"), "Background")
        .await?;
    space.until_count(&space.core("pods"), 0).await?;
    Ok(())
}

pub async fn foreground(space: Space) -> anyhow::Result<()> {
    let pods = with_pods(&space, "rc", 3).await?;
    let held = space.core(&format!(
        "pods/{}",
        pods[0]["metadata"]["name"].as_str().unwrap_or("")
    ));
    space
        .patch(
            &held,
            json!({"metadata": {"finalizers": ["example.com/held"]}}),
        )
        .await?;
    let path = space.core("replicationcontrollers/rc");
    space.delete_as(&path, "Foreground").await?;
    space.until_count(&space.core("pods"), 1).await?;
    let rc = space.get(&path).await?;
    ensure!(
        rc["metadata"]["deletionTimestamp"].is_string(),
        "it is going: {rc}"
    );
    ensure!(
        rc["metadata"]["finalizers"] == json!(["foregroundDeletion"]),
        "it waits: {rc}"
    );
    space
        .patch(&held, json!({"metadata": {"finalizers": null}}))
        .await?;
    space.until_gone(&path).await?;
    space.until_count(&space.core("pods"), 0).await?;
    Ok(())
}

pub async fn circle(space: Space) -> anyhow::Result<()> {
    let mut made = Vec::new();
    for name in ["p1", "p2", "p3"] {
        made.push(
            space
                .post(
                    &space.core("pods"),
                    json!({"metadata": {"name": name}, "spec": pending()}),
                )
                .await?,
        );
    }
    for (pod, owner) in [(0, 2), (1, 0), (2, 1)] {
        let meta: &Value = &made[owner]["metadata"];
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"],
            "controller": true, "blockOwnerDeletion": true});
        let path = space.core(&format!("pods/p{}", pod + 1));
        space
            .patch(&path, json!({"metadata": {"ownerReferences": [reference]}}))
            .await?;
    }
    space
        .delete_as(&space.core("pods/p1"), "Foreground")
        .await?;
    space.until_count(&space.core("pods"), 0).await?;
    Ok(())
}

pub async fn two_owners(space: Space) -> anyhow::Result<()> {
    let pods = with_pods(&space, "goes", 4).await?;
    let stays = space
        .post(
            &space.core("replicationcontrollers"),
            controller("stays", 0),
        )
        .await?;
    let kept: Vec<&str> = pods
        .iter()
        .take(2)
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .collect();
    for (pod, name) in pods.iter().zip(&kept) {
        let mut references = pod["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        references.push(json!({"apiVersion": "v1", "kind": "ReplicationController", "name": "stays", "uid": stays["metadata"]["uid"]}));
        space
            .patch(
                &space.core(&format!("pods/{name}")),
                json!({"metadata": {"ownerReferences": references}}),
            )
            .await?;
    }
    space
        .delete_as(&space.core("replicationcontrollers/goes"), "Foreground")
        .await?;
    space
        .until_gone(&space.core("replicationcontrollers/goes"))
        .await?;
    let left = space.until_count(&space.core("pods"), 2).await?;
    for pod in &left {
        let name = pod["metadata"]["name"].as_str().unwrap_or("");
        ensure!(kept.contains(&name), "{name} had one owner");
        ensure!(
            owners(pod) == ["stays"] && pod["metadata"]["deletionTimestamp"].is_null(),
            "{pod}"
        );
    }
    Ok(())
}

pub async fn orphans(space: Space) -> anyhow::Result<()> {
    with_replica_set(&space).await?;
    space
        .delete_as(&space.group("apps/v1", "deployments/d"), "Orphan")
        .await?;
    space
        .until_gone(&space.group("apps/v1", "deployments/d"))
        .await?;
    let sets = space
        .until_count(&space.group("apps/v1", "replicasets"), 1)
        .await?;
    ensure!(owners(&sets[0]).is_empty(), "it has an owner: {}", sets[0]);
    space.until_count(&space.core("pods"), 1).await?;
    Ok(())
}

pub async fn orphan_pods(space: Space) -> anyhow::Result<()> {
    with_pods(&space, "rc", 3).await?;
    space
        .delete_as(&space.core("replicationcontrollers/rc"), "Orphan")
        .await?;
    space
        .until_gone(&space.core("replicationcontrollers/rc"))
        .await?;
    let pods = space.until_count(&space.core("pods"), 3).await?;
    ensure!(
        pods.iter()
            .all(|pod| owners(pod).is_empty() && pod["metadata"]["deletionTimestamp"].is_null())
    );
    Ok(())
}

pub async fn namespace(space: Space) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/{}", space.name);
    space
        .post(
            &space.core("services"),
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .await?;
    space.delete(&path).await?;
    space.until_gone(&path).await?;
    space
        .post(
            "/api/v1/namespaces",
            json!({"metadata": {"name": space.name}}),
        )
        .await?;
    ensure!(
        space.items(&space.core("services")).await?.is_empty(),
        "the service outlived its namespace"
    );
    Ok(())
}

pub async fn root_ca(space: Space) -> anyhow::Result<()> {
    let path = space.core("configmaps/kube-root-ca.crt");
    let first = space.until("map", &path, |map| map.is_some()).await?;
    space.delete(&path).await?;
    let again = |map: Option<&Value>| {
        map.is_some_and(|map| map["metadata"]["uid"] != first["metadata"]["uid"])
    };
    space.until("new map", &path, again).await?;
    space
        .patch(&path, json!({"data": {"ca.crt": "wrong"}}))
        .await?;
    space
        .until("right map", &path, |map| {
            map.is_some_and(|map| map["data"] == first["data"])
        })
        .await?;
    Ok(())
}
