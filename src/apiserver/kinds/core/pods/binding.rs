//! Binding: a pod gets its node, once and for ever (`BindingREST.assignPod`).

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, meta, time};
use serde_json::json;

use super::super::super::tree::{items, items_mut, map, object_mut, text};
use super::{is_same, success};
use crate::registry::strategy::Change;

/// Binds the pod called `name` to the node that `binding` names.
pub async fn bind(change: &Change<'_>, name: &str, binding: &Value) -> Result<Value, Status> {
    let errors = validate(binding);
    if !errors.is_empty() {
        return Err(Status::invalid("", "Binding", name, errors));
    }
    change
        .registry
        .modify(change, name, |pod| assign(pod, name, binding))
        .await?;
    Ok(success())
}

fn validate(binding: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("target");
    let kind = text(binding, &["target", "kind"]);
    if !matches!(kind, "" | "Node") {
        errors.push(Error::not_supported(
            &path.child("kind"),
            kind,
            &["Node", "<empty>"],
        ));
    }
    if text(binding, &["target", "name"]).is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    errors
}

fn conflict(name: &str, why: &str) -> Status {
    Status::conflict("", "pods/binding", name, why)
}

fn assign(pod: &mut Value, name: &str, binding: &Value) -> Result<(), Status> {
    if !is_same(pod, meta::uid(binding)) {
        return Err(conflict(
            name,
            &format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                meta::uid(binding),
                meta::uid(pod)
            ),
        ));
    }
    if meta::is_deleting(pod) {
        let why = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(conflict(name, &why));
    }
    let node = text(pod, &["spec", "nodeName"]);
    if !node.is_empty() {
        let why = format!("pod {name} is already assigned to node {node:?}");
        return Err(conflict(name, &why));
    }
    if !items(pod, &["spec", "schedulingGates"]).is_empty() {
        let why = format!("pod {name} has non-empty .spec.schedulingGates");
        return Err(conflict(name, &why));
    }
    let node = text(binding, &["target", "name"]);
    object_mut(pod, &["spec"]).insert("nodeName".to_owned(), node.into());
    for (key, value) in map(binding, &["metadata", "annotations"])
        .into_iter()
        .flatten()
    {
        meta::set_annotation(pod, key, value.as_str().unwrap_or(""));
    }
    // As a webhook or PodTopologyLabels has them, whatever the pod says.
    for (key, value) in map(binding, &["metadata", "labels"]).into_iter().flatten() {
        meta::set_label(pod, key, value.as_str().unwrap_or(""));
    }
    object_mut(pod, &["status"]).remove("nominatedNodeName");
    scheduled(pod);
    Ok(())
}

fn scheduled(pod: &mut Value) {
    let mut condition = json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": time::now_text(),
    });
    let generation = meta::generation(pod);
    if generation > 0 {
        condition["observedGeneration"] = generation.into();
    }
    let known = items_mut(pod, &["status", "conditions"])
        .iter_mut()
        .find(|known| text(known, &["type"]) == "PodScheduled");
    if let Some(known) = known {
        *known = condition;
        return;
    }
    let list = object_mut(pod, &["status"])
        .entry("conditions")
        .or_insert_with(|| json!([]));
    if let Value::Array(list) = list {
        list.push(condition);
    }
}
