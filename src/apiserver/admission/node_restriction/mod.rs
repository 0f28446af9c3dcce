//! NodeRestriction: a kubelet changes its own Node, pods bound to it and their tokens, and nothing that would let it act
//! for another node. The Node authorizer looks at what is asked; this looks at what is written.

mod certificates;

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::authz::node::node_of;
use crate::authz::node::references::{Wanted, refers_to_any};
use crate::kinds::tree::{at, flag, has, items, object_mut, semantically_equal, text};

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
/// Fields of a claim's status that a kubelet writes when a volume grew (KEP-1790).
const OF_CLAIMS: &[&str] = &[
    "capacity",
    "conditions",
    "allocatedResources",
    "allocatedResourceStatuses",
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

    /// Looks at what was sent: what the strategy puts back afterwards (taints in a status) is refused too.
    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        check(attributes, Some(object)).await
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        match object {
            None => check(attributes, None).await,
            Some(_) => Ok(()),
        }
    }
}

async fn check(attributes: &Attributes<'_>, object: Option<&Value>) -> Result<(), Status> {
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
        ("", "persistentvolumeclaims", "status") => claim_status(attributes, node, object),
        ("", "persistentvolumeclaims", _) => Some("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") => token(attributes, node, object).await?,
        ("coordination.k8s.io", "leases", _) => lease(attributes, node, object),
        ("storage.k8s.io", "csinodes", _) => (named(attributes, object) != node).then(|| {
            "can only access CSINode with the same name as the requesting node".to_owned()
        }),
        ("resource.k8s.io", "resourceslices", _) => resource_slice(attributes, node, object),
        ("certificates.k8s.io", "certificatesigningrequests", _) => {
            certificates::signing_request(attributes, node, object)
        }
        ("certificates.k8s.io", "podcertificaterequests", _) => {
            certificates::of_pod(attributes, node, object).await?
        }
        _ => None,
    };
    match refusal {
        None => Ok(()),
        Some(why) => Err(attributes.forbidden(&why)),
    }
}

type Refusal = Option<String>;

fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

/// The name in the path, or the one of the object that is created.
fn named<'a>(attributes: &'a Attributes<'_>, object: Option<&'a Value>) -> &'a str {
    match (attributes.name, object) {
        ("", Some(object)) => meta::name(object),
        (name, _) => name,
    }
}

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
        (other, _) => Ok(Some(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            verb(other)
        ))),
    }
}

async fn mirror_pod(
    attributes: &Attributes<'_>,
    node: &str,
    pod: &Value,
) -> Result<Refusal, Status> {
    if meta::annotation(pod, MIRROR).is_none() {
        return Ok(Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        )));
    }
    if text(pod, &["spec", "nodeName"]) != node {
        return Ok(Some(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        )));
    }
    let owner = match items(pod, &["metadata", "ownerReferences"]) {
        [owner] => owner,
        others => {
            let count = if others.is_empty() { "an" } else { "a single" };
            return Ok(Some(format!(
                "node {node:?} can only create pods with {count} owner reference set to itself"
            )));
        }
    };
    if let Some(why) = owner_refusal(node, owner) {
        return Ok(Some(why));
    }
    let known = attributes
        .registry
        .stored_value("", "nodes", "", node)
        .await?
        .ok_or_else(|| Status::not_found("", "nodes", node))?;
    let (has, wants) = (meta::uid(&known), text(owner, &["uid"]));
    if has != wants {
        return Ok(Some(format!(
            "node {node} UID mismatch: expected {wants} got {has}"
        )));
    }
    Ok(references(pod)
        .map(|what| format!("node {node:?} can not create pods that reference {what}")))
}

fn owner_refusal(node: &str, owner: &Value) -> Refusal {
    let is_node = text(owner, &["apiVersion"]) == "v1"
        && text(owner, &["kind"]) == "Node"
        && text(owner, &["name"]) == node;
    let why = if !is_node {
        "can only create pods with an owner reference set to itself"
    } else if !flag(owner, &["controller"]) {
        "can only create pods with a controller owner reference set to itself"
    } else if flag(owner, &["blockOwnerDeletion"]) {
        "must not set blockOwnerDeletion on an owner reference"
    } else {
        return None;
    };
    Some(format!("node {node:?} {why}"))
}

/// What other objects a pod refers to, in the order they are looked for.
fn references(pod: &Value) -> Option<&'static str> {
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Some("a service account");
    }
    let of_any_volume = |wanted: Wanted| refers_to_any(pod, wanted);
    let projects = |source: &str| {
        items(pod, &["spec", "volumes"]).iter().any(|volume| {
            items(volume, &["projected", "sources"])
                .iter()
                .any(|part| has(part, &[source]))
        })
    };
    let checks: [(bool, &'static str); 5] = [
        (of_any_volume(Wanted::Secret), "secrets"),
        (of_any_volume(Wanted::ConfigMap), "configmaps"),
        (projects("clusterTrustBundle"), "clustertrustbundles"),
        (of_any_volume(Wanted::Claim), "persistentvolumeclaims"),
        (
            !items(pod, &["spec", "resourceClaims"]).is_empty(),
            "resourceclaims",
        ),
    ];
    checks
        .into_iter()
        .find(|(found, _)| *found)
        .map(|(_, what)| what)
}

fn pod_status(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    let (Some(old), Some(new)) = (attributes.old, object) else {
        return Some(format!(
            "unexpected operation {:?}",
            verb(attributes.operation)
        ));
    };
    if text(old, &["spec", "nodeName"]) != node {
        return Some(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let empty = apimachinery::Map::new();
    if meta::labels(old).unwrap_or(&empty) != meta::labels(new).unwrap_or(&empty) {
        return Some(format!(
            "node {node:?} cannot update labels through pod status"
        ));
    }
    let claims = |pod: &Value| items(pod, &["status", "resourceClaimStatuses"]).to_vec();
    (claims(old) != claims(new))
        .then(|| format!("node {node:?} cannot update resource claim statues"))
}

async fn eviction(attributes: &Attributes<'_>, node: &str) -> Result<Refusal, Status> {
    let (namespace, name) = (attributes.namespace, attributes.name);
    let pod = attributes
        .registry
        .stored_value("", "pods", namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", "pods", name))?;
    let bound = text(&pod, &["spec", "nodeName"]) == node;
    Ok((!bound)
        .then(|| format!("node {node} can only evict pods with spec.nodeName set to itself")))
}

/// A claim's status may tell its size and conditions; all else stays (`admitPVCStatus`).
fn claim_status(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    let (Some(old), Some(new)) = (attributes.old, object) else {
        return Some(format!(
            "unexpected operation {:?}",
            verb(attributes.operation)
        ));
    };
    let rest = |claim: &Value| {
        let mut rest = claim.clone();
        let metadata = object_mut(&mut rest, &["metadata"]);
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
        let status = object_mut(&mut rest, &["status"]);
        for field in OF_CLAIMS {
            status.remove(*field);
        }
        rest
    };
    (!semantically_equal(&rest(old), &rest(new))).then(|| {
        format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions")
    })
}

fn node_object(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    let name = named(attributes, object);
    if name != node {
        return Some(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let new = object?;
    let source = at(new, &["spec", "configSource"]);
    let Some(old) = attributes.old else {
        if !source.is_null() {
            return Some(format!(
                "node {node:?} is not allowed to create pods with a non-nil configSource"
            ));
        }
        let labels = forbidden_labels(None, new);
        return (!labels.is_empty()).then(|| {
            let labels = labels.join(", ");
            format!("node {node:?} is not allowed to set the following labels: {labels}")
        });
    };
    let differs = |path: &[&str]| !semantically_equal(at(old, path), at(new, path));
    if !source.is_null() && differs(&["spec", "configSource"]) {
        return Some(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if differs(&["spec", "taints"]) {
        return Some(format!("node {node:?} is not allowed to modify taints"));
    }
    if differs(&["metadata", "ownerReferences"]) {
        return Some(format!(
            "node {node:?} is not allowed to modify ownerReferences"
        ));
    }
    let labels = forbidden_labels(Some(old), new);
    (!labels.is_empty()).then(|| format!("is not allowed to modify labels: {}", labels.join(", ")))
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
    let bound = at(request, &["spec", "boundObjectRef"]);
    let (name, uid) = (text(bound, &["name"]), text(bound, &["uid"]));
    let is_pod = text(bound, &["apiVersion"]) == "v1" && text(bound, &["kind"]) == "Pod";
    if !is_pod || name.is_empty() {
        return Ok(Some("node requested token not bound to a pod".to_owned()));
    }
    if uid.is_empty() {
        return Ok(Some(
            "node requested token with a pod binding without a uid".to_owned(),
        ));
    }
    let pod = attributes
        .registry
        .stored_value("", "pods", attributes.namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", "pods", name))?;
    if meta::uid(&pod) != uid {
        return Ok(Some(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        )));
    }
    let elsewhere = text(&pod, &["spec", "nodeName"]) != node;
    Ok(elsewhere
        .then(|| "node requested token bound to a pod scheduled on a different node".to_owned()))
}

fn lease(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    if attributes.namespace != LEASES_NAMESPACE {
        return Some(format!(
            "can only access leases in the {LEASES_NAMESPACE:?} system namespace"
        ));
    }
    (named(attributes, object) != node)
        .then(|| "can only access node lease with the same name as the requesting node".to_owned())
}

/// Updates are the Node authorizer's: it sees the name, but not what is created nor each of what is deleted.
fn resource_slice(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    let (verb, slice) = match attributes.operation {
        Operation::Create => ("create", object),
        Operation::Delete => ("delete", attributes.old),
        _ => return None,
    };
    let own = slice.is_some_and(|slice| text(slice, &["spec", "nodeName"]) == node);
    (!own).then(|| {
        format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")
    })
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
