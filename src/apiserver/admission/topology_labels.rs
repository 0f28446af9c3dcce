//! PodTopologyLabels (KEP-4742): a pod learns the zone and the region of its node as labels when it gets the node.

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::text;

const LABELS: [&str; 2] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];
const GATE: &str = "PodTopologyLabelsAdmission";

pub struct PodTopologyLabels;

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create
            && attributes.resource.group.is_empty()
            && attributes.resource.plural == "pods"
            && matches!(attributes.subresource, "" | "binding")
            && attributes.registry.options.feature_gates.get(GATE) != Some(&false)
    }

    /// Labels that the binding, or the pod made on a node, has already stay as they are.
    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        let node = match attributes.subresource {
            "binding" if text(object, &["target", "kind"]) != "Node" => return Ok(()),
            "binding" => text(object, &["target", "name"]),
            _ => text(object, &["spec", "nodeName"]),
        };
        if node.is_empty() {
            return Ok(());
        }
        let node = attributes.registry.stored_entry("", "nodes", "", node);
        let Some(node) = node.await? else {
            return Ok(());
        };
        for key in LABELS {
            if let Some(value) = node.label(key)
                && meta::label(object, key).is_none()
            {
                meta::set_label(object, key, value);
            }
        }
        Ok(())
    }
}
