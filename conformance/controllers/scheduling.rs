//! Where pods run, and what they are told when they cannot.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::cluster::Space;

async fn of_class(space: &Space, overhead: Value) -> anyhow::Result<Value> {
    let class = json!({"metadata": {"name": format!("class-{}", space.name)}, "handler": "simulated", "overhead": overhead});
    let class = space
        .post("/apis/node.k8s.io/v1/runtimeclasses", class)
        .await?;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"runtimeClassName": class["metadata"]["name"], "containers": [{"name": "c", "image": "i"}]}});
    space.post(&space.core("pods"), pod).await?;
    space
        .until("pod with a node", &space.core("pods/p"), |pod| {
            pod.is_some_and(|pod| pod["spec"]["nodeName"].is_string())
        })
        .await
}

pub async fn overhead(space: Space) -> anyhow::Result<()> {
    let fixed = json!({"cpu": "10m", "memory": "1Mi"});
    let pod = of_class(&space, json!({"podFixed": fixed})).await?;
    ensure!(pod["spec"]["overhead"] == fixed, "{pod}");
    Ok(())
}

pub async fn no_overhead(space: Space) -> anyhow::Result<()> {
    let pod = of_class(&space, Value::Null).await?;
    ensure!(pod["spec"]["overhead"].is_null(), "{pod}");
    Ok(())
}

pub async fn node_selector(space: Space) -> anyhow::Result<()> {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": {"label": "nonempty"}, "containers": [{"name": "c", "image": "i"}]}});
    space.post(&space.core("pods"), pod).await?;
    let said = |list: Option<&Value>| {
        list.and_then(|list| list["items"].as_array())
            .into_iter()
            .flatten()
            .any(|event| {
                let message = event["message"].as_str().unwrap_or("");
                event["reason"] == "FailedScheduling"
                    && message.contains("node(s) didn't match Pod's node affinity/selector")
            })
    };
    space.until("event", &space.core("events"), said).await?;
    let pod = space.get(&space.core("pods/p")).await?;
    ensure!(
        pod["spec"]["nodeName"].is_null() && pod["status"]["phase"] == "Pending",
        "{pod}"
    );
    let conditions = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let told = |one: &Value| {
        one["type"] == "PodScheduled"
            && one["status"] == "False"
            && one["reason"] == "Unschedulable"
    };
    ensure!(conditions.iter().any(told), "{conditions:?}");
    Ok(())
}
