//! What a new cluster's API holds besides what the API server makes itself: the DNS service, and on each node what
//! kubeadm would write there.

use std::net::Ipv4Addr;

use api::Resource;
use apimachinery::Value;
use client::{Client, ClientError, Patch, WriteOptions};
use serde_json::json;

use super::state::{DNS_SERVICE, NodeState};

/// Creates or updates the objects of the cluster's DNS, which runs on the node with this address.
pub async fn dns(client: &Client, address: Ipv4Addr) -> Result<(), ClientError> {
    let labels = json!({"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"});
    let ports = |target: bool| {
        let port = |name: &str, protocol: &str| {
            let mut port = json!({"name": name, "port": 53, "protocol": protocol});
            if target {
                port["targetPort"] = json!(53);
            }
            port
        };
        json!([port("dns", "UDP"), port("dns-tcp", "TCP")])
    };
    // Who may read what the answers are made of.
    ensure(client, &api::r::CLUSTERROLES, "", json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:dns"},
        "rules": [
            {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces", "nodes"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
        ],
    })).await?;
    ensure(client, &api::r::CLUSTERROLEBINDINGS, "", json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "system:dns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:dns"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:dns"}],
    })).await?;
    ensure(client, &api::r::SERVICES, "kube-system", json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "spec": {"clusterIP": DNS_SERVICE, "clusterIPs": [DNS_SERVICE], "ports": ports(true)},
    })).await?;
    ensure(
        client,
        &api::r::ENDPOINTSLICES,
        "kube-system",
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {
                "kubernetes.io/service-name": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "skiff",
            }},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            "ports": ports(false),
        }),
    )
    .await
}

/// Creates the default storage class: volumes on the node where a claim's first pod runs.
pub async fn storage(client: &Client) -> Result<(), ClientError> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": controllers::LOCAL_PROVISIONER, "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    let options = WriteOptions {
        field_manager: "skiff".into(),
        ..WriteOptions::default()
    };
    // Once made it is the user's: one that was changed stays as it is.
    match client
        .create::<_, Value>(&api::r::STORAGECLASSES, "", &class, &options)
        .await
    {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Gives a node its role and its pods' range, as kubeadm and the controller manager do.
pub async fn node(client: &Client, node: &NodeState, present: &Value) -> Result<(), ClientError> {
    let mut patch = json!({});
    if present["spec"]["podCIDR"]
        .as_str()
        .unwrap_or_default()
        .is_empty()
    {
        let pods = node.pods.to_string();
        patch["spec"] = json!({"podCIDR": pods, "podCIDRs": [pods]});
    }
    if node.control_plane {
        for label in [
            "node-role.kubernetes.io/control-plane",
            "node.kubernetes.io/exclude-from-external-load-balancers",
        ] {
            if present["metadata"]["labels"].get(label).is_none() {
                patch["metadata"]["labels"][label] = json!("");
            }
        }
    }
    if patch.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    let options = WriteOptions {
        field_manager: "skiff".into(),
        ..WriteOptions::default()
    };
    client
        .patch::<Value>(
            &api::r::NODES,
            "",
            &node.name,
            "",
            &Patch::Merge(patch),
            &options,
        )
        .await?;
    Ok(())
}

/// Merges the object into the one that is there, or creates it. (Creating first would not do: a service whose address is
/// taken, by itself, is refused as invalid and not as existing.)
async fn ensure(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    object: Value,
) -> Result<(), ClientError> {
    let options = WriteOptions {
        field_manager: "skiff".into(),
        ..WriteOptions::default()
    };
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_string();
    let patch = Patch::Merge(object.clone());
    match client
        .patch::<Value>(resource, namespace, &name, "", &patch, &options)
        .await
    {
        Err(error) if error.is_not_found() => {
            client
                .create::<_, Value>(resource, namespace, &object, &options)
                .await?;
            Ok(())
        }
        other => other.map(drop),
    }
}
