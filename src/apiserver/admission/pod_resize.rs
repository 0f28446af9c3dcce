//! PodResizeValidator (KEP-1287): a pod that has a node is not resized beyond what the node can give.

use apimachinery::quantity::Quantity;
use apimachinery::status::Cause;
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::declared_features::node_of_changed;
use super::quota::pod_requests;
use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::text;

pub struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.resource.group.is_empty()
            && attributes.resource.plural == "pods"
            && attributes.subresource == "resize"
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        pod: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (pod, attributes.old) else {
            return Ok(());
        };
        let Some(node) = node_of_changed(attributes, new, old).await? else {
            return Ok(());
        };
        match refusal(new, &node) {
            None => Ok(()),
            Some((reason, why)) => Err(because(attributes.forbidden(&why), reason)),
        }
    }
}

/// Why a node cannot take the pod as it is to be: the cause's reason, and the words.
fn refusal(pod: &Value, node: &Value) -> Option<(&'static str, String)> {
    let requests = pod_requests(pod);
    let amount = |resource: &str| requests.get(resource).cloned().unwrap_or_default();
    let has = |resource: &str| {
        let allocatable = text(node, &["status", "allocatable", resource]);
        allocatable.parse::<Quantity>().unwrap_or_default()
    };
    let lacks = [
        ("cpu", amount("cpu").milli_value(), has("cpu").milli_value()),
        ("memory", amount("memory").value(), has("memory").value()),
    ]
    .into_iter()
    .filter(|(_, requested, allocatable)| requested > allocatable)
    .map(|(resource, requested, allocatable)| {
        format!("{resource}, requested: {requested}, allocatable: {allocatable}")
    })
    .collect::<Vec<_>>()
    .join("; ");
    if !lacks.is_empty() {
        let why = format!("Node didn't have enough allocatable resources: {lacks}");
        return Some(("NodeCapacity", why));
    }
    let system = meta::label(node, "kubernetes.io/os").unwrap_or("");
    (system != "linux").then(|| {
        let name = meta::name(node);
        let why =
            format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
        ("UnsupportedPlatform", why)
    })
}

fn because(mut status: Status, reason: &str) -> Status {
    let cause = Cause {
        reason: reason.to_owned(),
        ..Cause::default()
    };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_gives_no_more_than_it_has() {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux"}},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}},
        });
        let pod = |cpu: &str, memory: &str| {
            let requests = json!({"cpu": cpu, "memory": memory});
            json!({"spec": {"containers": [{"resources": {"requests": requests}}]}})
        };
        assert_eq!(refusal(&pod("2", "1Gi"), &node), None);
        let lacks = "Node didn't have enough allocatable resources: cpu, requested: 2001, allocatable: 2000; memory, requested: 1073741825, allocatable: 1073741824";
        assert_eq!(
            refusal(&pod("2001m", "1073741825"), &node),
            Some(("NodeCapacity", lacks.to_owned()))
        );
        node["metadata"]["labels"]["kubernetes.io/os"] = json!("windows");
        let system = "pod resize is only supported on linux nodes, node \"n\" is \"windows\"";
        assert_eq!(
            refusal(&pod("1", "1"), &node),
            Some(("UnsupportedPlatform", system.to_owned()))
        );
    }
}
