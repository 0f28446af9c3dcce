//! What a ResourceQuota counts, what it refuses, and what it gives back.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::cluster::{Space, pending, refused, template};

async fn quota(space: &Space, hard: Value) -> anyhow::Result<()> {
    scoped(space, "q", hard, json!([])).await
}

async fn scoped(space: &Space, name: &str, hard: Value, scopes: Value) -> anyhow::Result<()> {
    let quota = json!({"metadata": {"name": name}, "spec": {"hard": hard, "scopes": scopes}});
    space.post(&space.core("resourcequotas"), quota).await?;
    let counted =
        |quota: Option<&Value>| quota.is_some_and(|quota| quota["status"]["used"].is_object());
    space
        .until(
            "counted quota",
            &space.core(&format!("resourcequotas/{name}")),
            counted,
        )
        .await?;
    Ok(())
}

async fn used(space: &Space, resource: &str, amount: &str) -> anyhow::Result<()> {
    used_of(space, "q", resource, amount).await
}

async fn used_of(space: &Space, name: &str, resource: &str, amount: &str) -> anyhow::Result<()> {
    let what = format!("use of {amount} {resource}");
    let is_so = |quota: Option<&Value>| {
        quota.is_some_and(|quota| quota["status"]["used"][resource] == amount)
    };
    space
        .until(&what, &space.core(&format!("resourcequotas/{name}")), is_so)
        .await?;
    Ok(())
}

/// Made, counted, refused beyond the limit, deleted, not counted any more.
async fn life(
    space: &Space,
    resource: &str,
    before: usize,
    path: &str,
    object: Value,
) -> anyhow::Result<()> {
    quota(space, json!({resource: (before + 1).to_string()})).await?;
    used(space, resource, &before.to_string()).await?;
    let named = |name: &str| {
        let mut object = object.clone();
        object["metadata"]["name"] = json!(name);
        object
    };
    space.post(path, named("first")).await?;
    used(space, resource, &(before + 1).to_string()).await?;
    let message = refused(space.post(path, named("second")).await, 403)?;
    ensure!(message.contains("exceeded quota: q"), "{message}");
    space.delete(&format!("{path}/first")).await?;
    used(space, resource, &before.to_string()).await?;
    space.post(path, named("second")).await?;
    Ok(())
}

pub async fn status(space: Space) -> anyhow::Result<()> {
    quota(&space, json!({"cpu": "1", "memory": "500Gi"})).await?;
    let path = space.core("resourcequotas/q/status");
    space
        .patch(
            &path,
            json!({"status": {"hard": {"cpu": "7"}, "used": {"cpu": "3"}}}),
        )
        .await?;
    let right = |quota: Option<&Value>| {
        quota.is_some_and(|quota| {
            quota["status"]["hard"] == json!({"cpu": "1", "memory": "500Gi"})
                && quota["status"]["used"] == json!({"cpu": "0", "memory": "0"})
        })
    };
    space
        .until("right status", &space.core("resourcequotas/q"), right)
        .await?;
    space
        .patch(
            &space.core("resourcequotas/q"),
            json!({"spec": {"hard": {"cpu": "2"}}}),
        )
        .await?;
    let raised =
        |quota: Option<&Value>| quota.is_some_and(|quota| quota["status"]["hard"]["cpu"] == "2");
    space
        .until("raised limit", &space.core("resourcequotas/q"), raised)
        .await?;
    Ok(())
}

pub async fn config_map(space: Space) -> anyhow::Result<()> {
    // Every namespace has one for the authority's certificate.
    space
        .until("map", &space.core("configmaps/kube-root-ca.crt"), |map| {
            map.is_some()
        })
        .await?;
    life(
        &space,
        "configmaps",
        1,
        &space.core("configmaps"),
        json!({"metadata": {}, "data": {"a": "b"}}),
    )
    .await
}

pub async fn secret(space: Space) -> anyhow::Result<()> {
    life(
        &space,
        "secrets",
        0,
        &space.core("secrets"),
        json!({"metadata": {}, "stringData": {"a": "b"}}),
    )
    .await
}

pub async fn replica_set(space: Space) -> anyhow::Result<()> {
    let set = json!({"metadata": {}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": template("a")}});
    life(
        &space,
        "count/replicasets.apps",
        0,
        &space.group("apps/v1", "replicasets"),
        set,
    )
    .await
}

pub async fn replication_controller(space: Space) -> anyhow::Result<()> {
    let set = json!({"metadata": {}, "spec": {"replicas": 0, "selector": {"app": "a"}, "template": template("a")}});
    life(
        &space,
        "replicationcontrollers",
        0,
        &space.core("replicationcontrollers"),
        set,
    )
    .await
}

pub async fn service(space: Space) -> anyhow::Result<()> {
    quota(
        &space,
        json!({"services": "3", "services.nodeports": "1", "services.loadbalancers": "1"}),
    )
    .await?;
    let path = space.core("services");
    let service = |name: &str, kind: &str| json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": null}});
    space.post(&path, service("inside", "ClusterIP")).await?;
    space.post(&path, service("ports", "NodePort")).await?;
    used(&space, "services", "2").await?;
    used(&space, "services.nodeports", "1").await?;
    refused(space.post(&path, service("more", "NodePort")).await, 403)?;
    let mut balanced = service("balanced", "LoadBalancer");
    balanced["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    space.post(&path, balanced).await?;
    used(&space, "services.loadbalancers", "1").await?;
    refused(space.post(&path, service("fourth", "ClusterIP")).await, 403)?;
    for name in ["inside", "ports", "balanced"] {
        space.delete(&format!("{path}/{name}")).await?;
    }
    for resource in ["services", "services.nodeports", "services.loadbalancers"] {
        used(&space, resource, "0").await?;
    }
    Ok(())
}

pub async fn prompt(space: Space) -> anyhow::Result<()> {
    quota(&space, json!({"pods": "5", "requests.cpu": "1"})).await?;
    let quota = space.get(&space.core("resourcequotas/q")).await?;
    ensure!(
        quota["status"]
            == json!({"hard": {"pods": "5", "requests.cpu": "1"}, "used": {"pods": "0", "requests.cpu": "0"}}),
        "{quota}"
    );
    Ok(())
}

fn asking(name: &str, requests: Value) -> Value {
    let mut spec = pending();
    spec["containers"][0]["resources"] = json!({"requests": requests.clone(), "limits": requests});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn remove(space: &Space, name: &str) -> anyhow::Result<()> {
    space
        .delete_now(
            &space.core(&format!("pods/{name}")),
            json!({"gracePeriodSeconds": 0}),
        )
        .await?;
    Ok(())
}

pub async fn pod(space: Space) -> anyhow::Result<()> {
    quota(
        &space,
        json!({"pods": "5", "cpu": "1", "memory": "500Mi", "ephemeral-storage": "50Gi"}),
    )
    .await?;
    let pods = space.core("pods");
    space
        .post(
            &pods,
            asking(
                "fits",
                json!({"cpu": "500m", "memory": "252Mi", "ephemeral-storage": "30Gi"}),
            ),
        )
        .await?;
    for (resource, amount) in [
        ("pods", "1"),
        ("cpu", "500m"),
        ("memory", "252Mi"),
        ("ephemeral-storage", "30Gi"),
    ] {
        used(&space, resource, amount).await?;
    }
    let more = asking(
        "more",
        json!({"cpu": "600m", "memory": "100Mi", "ephemeral-storage": "1Gi"}),
    );
    let message = refused(space.post(&pods, more).await, 403)?;
    ensure!(
        message.contains("exceeded quota: q, requested: cpu=600m, used: cpu=500m, limited: cpu=1"),
        "{message}"
    );
    // A pod that names no amount cannot be counted.
    refused(
        space
            .post(
                &pods,
                json!({"metadata": {"name": "none"}, "spec": pending()}),
            )
            .await,
        403,
    )?;
    refused(space.patch(&space.core("pods/fits"), json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "700m"}}}]}})).await, 422)?;
    used(&space, "cpu", "500m").await?;
    remove(&space, "fits").await?;
    for (resource, amount) in [
        ("pods", "0"),
        ("cpu", "0"),
        ("memory", "0"),
        ("ephemeral-storage", "0"),
    ] {
        used(&space, resource, amount).await?;
    }
    Ok(())
}

pub async fn best_effort(space: Space) -> anyhow::Result<()> {
    scoped(&space, "best", json!({"pods": "5"}), json!(["BestEffort"])).await?;
    scoped(
        &space,
        "not-best",
        json!({"pods": "5"}),
        json!(["NotBestEffort"]),
    )
    .await?;
    for (pod, counts, not) in [
        (
            json!({"metadata": {"name": "p"}, "spec": pending()}),
            "best",
            "not-best",
        ),
        (
            asking("p", json!({"cpu": "1", "memory": "1Mi"})),
            "not-best",
            "best",
        ),
    ] {
        space.post(&space.core("pods"), pod).await?;
        used_of(&space, counts, "pods", "1").await?;
        used_of(&space, not, "pods", "0").await?;
        remove(&space, "p").await?;
        used_of(&space, counts, "pods", "0").await?;
    }
    Ok(())
}

pub async fn terminating(space: Space) -> anyhow::Result<()> {
    scoped(
        &space,
        "ending",
        json!({"pods": "5"}),
        json!(["Terminating"]),
    )
    .await?;
    scoped(
        &space,
        "lasting",
        json!({"pods": "5"}),
        json!(["NotTerminating"]),
    )
    .await?;
    let mut ending = asking("p", json!({"cpu": "1", "memory": "1Mi"}));
    ending["spec"]["activeDeadlineSeconds"] = json!(3600);
    for (pod, counts, not) in [
        (
            asking("p", json!({"cpu": "1", "memory": "1Mi"})),
            "lasting",
            "ending",
        ),
        (ending, "ending", "lasting"),
    ] {
        space.post(&space.core("pods"), pod).await?;
        used_of(&space, counts, "pods", "1").await?;
        used_of(&space, not, "pods", "0").await?;
        remove(&space, "p").await?;
        used_of(&space, counts, "pods", "0").await?;
    }
    Ok(())
}
