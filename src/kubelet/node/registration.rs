//! Makes sure that the Node exists: creates it, or takes over the one that is
//! there and brings the labels that a kubelet owns up to date.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{Client, ClientError, Patch, options::WriteOptions};
use serde_json::{Value, json};

use super::status::{Observed, status};
use crate::clock;
use crate::config::KubeletConfig;
use crate::k8s::{Node, NodeStatus};

/// The pause after the first failure, doubled up to [`MAX_PAUSE`]; upstream's.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(7);

/// Registers, however long that takes; answers the Node as stored.
pub async fn register(client: &Client, config: &KubeletConfig, observed: &Observed) -> Node {
    let mut pause = FIRST_PAUSE;
    loop {
        match try_register(client, config, observed).await {
            Ok(node) => return node,
            Err(error) => {
                tracing::warn!(%error, node = config.node_name, "cannot register the node, will be retried");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn try_register(
    client: &Client,
    config: &KubeletConfig,
    observed: &Observed,
) -> Result<Node, ClientError> {
    let resource = &api::r::NODES;
    let options = WriteOptions::default();
    if config.register_node {
        let node = initial(config, observed);
        match client.create(resource, "", &node, &options).await {
            Err(error) if error.is_already_exists() => {}
            other => return other,
        }
    }
    let node: Node = client.get(resource, "", &config.node_name).await?;
    let have = node.metadata.labels.clone().unwrap_or_default();
    let wanted = own_labels(config, &observed.machine.architecture);
    let missing: BTreeMap<_, _> = wanted
        .iter()
        .filter(|(key, value)| have.get(*key) != Some(*value))
        .collect();
    if missing.is_empty() {
        return Ok(node);
    }
    let patch = Patch::Strategic(json!({"metadata": {"labels": missing}}));
    client
        .patch(resource, "", &config.node_name, "", &patch, &options)
        .await
}

/// The labels every kubelet keeps on its node.
fn own_labels(config: &KubeletConfig, architecture: &str) -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        label("beta.kubernetes.io/arch", architecture),
        label("beta.kubernetes.io/os", "linux"),
        label("kubernetes.io/arch", architecture),
        label("kubernetes.io/hostname", &config.node_name),
        label("kubernetes.io/os", "linux"),
    ])
}

/// The Node as it is created.
fn initial(config: &KubeletConfig, observed: &Observed) -> Value {
    let mut labels = own_labels(config, &observed.machine.architecture);
    labels.extend(config.node_labels.clone());
    let taints: Vec<_> = config
        .register_with_taints
        .iter()
        .map(|taint| {
            let mut json = json!({"key": taint.key, "effect": taint.effect});
            if !taint.value.is_empty() {
                json["value"] = json!(taint.value);
            }
            json
        })
        .collect();
    let mut spec = json!({});
    if !taints.is_empty() {
        spec["taints"] = json!(taints);
    }
    if let Some(provider_id) = &config.provider_id {
        spec["providerID"] = json!(provider_id);
    }
    let status = status(config, observed, &NodeStatus::default(), &clock::now_time());
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": config.node_name,
            "labels": labels,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": spec,
        "status": status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Taint;

    #[test]
    fn a_new_node_has_its_own_and_the_configured_labels_and_taints() {
        let mut config = KubeletConfig::new("lab-worker");
        config.node_labels.insert("a".to_owned(), "b".to_owned());
        config.register_with_taints.push(Taint {
            key: "node-role.kubernetes.io/control-plane".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        });
        let node = initial(&config, &Observed::default());
        assert_eq!(
            node["metadata"]["labels"]["kubernetes.io/hostname"],
            "lab-worker"
        );
        assert_eq!(node["metadata"]["labels"]["a"], "b");
        assert_eq!(
            node["spec"],
            json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]})
        );
        assert_eq!(
            node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"],
            10250
        );
    }
}
