//! NodeRestriction: a kubelet changes its own Node, pods bound to it and their tokens, and nothing that would let it act
//! for another node. The Node authorizer looks at what is asked; this looks at what is written.

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::authz::node::node_of;
use crate::kinds::tree::{has, items, text};

const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASES_NAMESPACE: &str = "kube-node-lease";

/// Labels in Kubernetes' own namespaces that a kubelet may set on its Node (upstream's `kubeletLabels`).
const LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const LABEL_NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Limits what nodes write.
pub struct NodeRestriction;

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        node_of(&attributes.request.user).is_some()
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(node) = node_of(&attributes.request.user) else {
            return Ok(());
        };
        let subject = (
            attributes.resource.group,
            attributes.resource.plural,
            attributes.subresource,
        );
        let refusal = match subject {
            ("", "pods", "") => pod(attributes, node, object).await?,
            ("", "pods", "status") => pod_status(attributes, node, object),
            ("", "pods", "eviction") => eviction(attributes, node).await?,
            ("", "pods", other) => Some(format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            )),
            ("", "nodes", _) => node_object(attributes, node, object),
            ("", "persistentvolumeclaims", "status") => None,
            ("", "persistentvolumeclaims", _) => Some("may only update PVC status".to_owned()),
            ("", "serviceaccounts", "token") => token(attributes, node, object).await?,
            ("coordination.k8s.io", "leases", _) => own(attributes, node, object, LEASES_NAMESPACE),
            ("storage.k8s.io", "csinodes", _) => own(attributes, node, object, ""),
            _ => None,
        };
        match refusal {
            None => Ok(()),
            Some(why) => Err(attributes.forbidden(&why)),
        }
    }
}

type Refusal = Option<String>;

async fn pod(
    attributes: &Attributes<'_>,
    node: &str,
    object: Option<&Value>,
) -> Result<Refusal, Status> {
    match (attributes.operation, object) {
        (Operation::Create, Some(pod)) => mirror_pod(attributes, node, pod).await,
        (Operation::Delete, _) => {
            let bound = attributes
                .old
                .is_some_and(|pod| text(pod, &["spec", "nodeName"]) == node);
            let why =
                || format!("node {node:?} can only delete pods with spec.nodeName set to itself");
            Ok((!bound).then(why))
        }
        _ => Ok(Some(format!(
            "unexpected operation, node {node:?} can only create and delete mirror pods"
        ))),
    }
}

async fn mirror_pod(
    attributes: &Attributes<'_>,
    node: &str,
    pod: &Value,
) -> Result<Refusal, Status> {
    let refuse = |why: String| Ok(Some(why));
    if meta::annotation(pod, MIRROR).is_none() {
        return refuse(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(pod, &["spec", "nodeName"]) != node {
        return refuse(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owners = items(pod, &["metadata", "ownerReferences"]);
    let [owner] = owners else {
        return refuse(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    };
    let is_node = text(owner, &["apiVersion"]) == "v1"
        && text(owner, &["kind"]) == "Node"
        && text(owner, &["name"]) == node;
    let known = attributes
        .registry
        .stored_value("", "nodes", "", node)
        .await?;
    if !is_node || known.is_none_or(|known| meta::uid(&known) != text(owner, &["uid"])) {
        return refuse(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return refuse(format!(
            "node {node:?} can not create pods that reference a service account"
        ));
    }
    let refers = ["secret", "configMap", "persistentVolumeClaim", "projected"];
    let volume = items(pod, &["spec", "volumes"])
        .iter()
        .find_map(|volume| refers.iter().find(|source| has(volume, &[source])));
    Ok(volume
        .map(|source| format!("node {node:?} can not create pods that reference {source} volumes")))
}

fn pod_status(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    let (Some(old), Some(new)) = (attributes.old, object) else {
        return Some("unexpected operation".to_owned());
    };
    if text(old, &["spec", "nodeName"]) != node {
        return Some(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let changed = meta::labels(old) != meta::labels(new);
    changed.then(|| format!("node {node:?} cannot update labels through pod status"))
}

async fn eviction(attributes: &Attributes<'_>, node: &str) -> Result<Refusal, Status> {
    let pod = attributes
        .registry
        .stored_value("", "pods", attributes.namespace, attributes.name)
        .await?;
    let bound = pod.is_none_or(|pod| text(&pod, &["spec", "nodeName"]) == node);
    Ok((!bound)
        .then(|| format!("node {node} can only evict pods with spec.nodeName set to itself")))
}

fn node_object(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    let name = match (attributes.name, object) {
        ("", Some(object)) => meta::name(object),
        (name, _) => name,
    };
    if name != node {
        return Some(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let new = object?;
    if let Some(old) = attributes.old {
        if old["spec"]["taints"] != new["spec"]["taints"] {
            return Some(format!("node {node:?} is not allowed to modify taints"));
        }
        if old["metadata"]["ownerReferences"] != new["metadata"]["ownerReferences"] {
            return Some(format!(
                "node {node:?} is not allowed to modify ownerReferences"
            ));
        }
    }
    let forbidden = forbidden_labels(attributes.old, new);
    if forbidden.is_empty() {
        return None;
    }
    let verb = if attributes.old.is_some() {
        "modify"
    } else {
        "set"
    };
    Some(format!(
        "node {node:?} is not allowed to {verb} the following labels: {}",
        forbidden.join(", ")
    ))
}

/// Changed labels that only an administrator may set, sorted.
fn forbidden_labels(old: Option<&Value>, new: &Value) -> Vec<String> {
    let empty = apimachinery::Map::new();
    let before = old.and_then(meta::labels).unwrap_or(&empty);
    let after = meta::labels(new).unwrap_or(&empty);
    let mut changed: Vec<String> = before
        .keys()
        .chain(after.keys())
        .filter(|key| before.get(*key) != after.get(*key))
        .filter(|key| !is_kubelets(key))
        .cloned()
        .collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

fn is_kubelets(label: &str) -> bool {
    let namespace = label.split_once('/').map_or("", |(namespace, _)| namespace);
    let is_in = |domain: &str| {
        namespace == domain
            || namespace
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    if is_in("node-restriction.kubernetes.io") {
        return false;
    }
    if !is_in("kubernetes.io") && !is_in("k8s.io") {
        return true;
    }
    LABELS.contains(&label) || LABEL_NAMESPACES.iter().any(|domain| is_in(domain))
}

async fn token(
    attributes: &Attributes<'_>,
    node: &str,
    object: Option<&Value>,
) -> Result<Refusal, Status> {
    let Some(request) = object else {
        return Ok(None);
    };
    let bound = &request["spec"]["boundObjectRef"];
    if text(bound, &["kind"]) != "Pod" {
        return Ok(Some("node requested token not bound to a pod".to_owned()));
    }
    if text(bound, &["uid"]).is_empty() {
        return Ok(Some(
            "node requested token with a pod binding without a uid".to_owned(),
        ));
    }
    let name = text(bound, &["name"]);
    let pod = attributes
        .registry
        .stored_value("", "pods", attributes.namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", "pods", name))?;
    if meta::uid(&pod) != text(bound, &["uid"]) {
        return Ok(Some(
            "the UID in the bound object reference does not match the UID in record".to_owned(),
        ));
    }
    let elsewhere = text(&pod, &["spec", "nodeName"]) != node;
    Ok(elsewhere
        .then(|| "node requested token bound to a pod scheduled on a different node".to_owned()))
}

/// Leases and CSINodes have the name of their node.
fn own(
    attributes: &Attributes<'_>,
    node: &str,
    object: Option<&Value>,
    namespace: &str,
) -> Refusal {
    if attributes.namespace != namespace {
        return Some(format!(
            "can only access leases in the {namespace:?} system namespace"
        ));
    }
    let name = match (attributes.name, object) {
        ("", Some(object)) => meta::name(object),
        (name, _) => name,
    };
    let what = attributes.resource.kind;
    (name != node)
        .then(|| format!("can only access {what} with the same name as the requesting node"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_kubelets_own_labels_may_change() {
        let old = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "1", "kubernetes.io/hostname": "n"}}});
        let new = json!({"metadata": {"labels": {
            "kubernetes.io/hostname": "m", "example.com/x": "1", "node.kubernetes.io/y": "1",
            "node-role.kubernetes.io/control-plane": ""}}});
        assert_eq!(
            forbidden_labels(Some(&old), &new),
            [
                "node-restriction.kubernetes.io/a",
                "node-role.kubernetes.io/control-plane"
            ]
        );
        assert!(forbidden_labels(Some(&new), &new).is_empty());
    }
}
