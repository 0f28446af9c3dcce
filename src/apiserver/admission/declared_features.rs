//! NodeDeclaredFeatureValidator (KEP-5328): a running pod is not changed in a way that its node does not say it can.

use api::declared_features::{GUARANTEED_CPU_RESIZE, INIT_CONTAINER_RESIZE, POD_LEVEL_RESIZE};
use apimachinery::quantity::Quantity;
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, items, semantically_equal, text};

pub struct NodeDeclaredFeatureValidator;

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.resource.group.is_empty()
            && attributes.resource.plural == "pods"
            && matches!(attributes.subresource, "" | "resize")
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        pod: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (pod, attributes.old) else {
            return Ok(());
        };
        let needed = needed(new, old);
        if needed.is_empty() {
            return Ok(());
        }
        let Some(node) = node_of_changed(attributes, new, old).await? else {
            return Ok(());
        };
        let name = meta::name(&node);
        let declared = items(&node, &["status", "declaredFeatures"]);
        let is_missing = |one: &&str| !declared.iter().any(|declared| declared == one);
        let missing: Vec<&str> = needed.into_iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(attributes.forbidden(&format!(
            "pod update requires features {} which are not available on node {name:?}",
            missing.join(", ")
        )))
    }
}

/// The node of a pod whose spec is changed; `None` for a pod that has no node yet, and where nothing is changed.
///
/// # Errors
/// 403 when the node is not there.
pub async fn node_of_changed(
    attributes: &Attributes<'_>,
    new: &Value,
    old: &Value,
) -> Result<Option<Value>, Status> {
    let name = text(new, &["spec", "nodeName"]);
    if name.is_empty() || meta::generation(new) == meta::generation(old) {
        return Ok(None);
    }
    let node = attributes.registry.stored_value("", "nodes", "", name);
    match node.await? {
        Some(node) => Ok(Some(node)),
        None => Err(attributes.forbidden(&format!("node {name:?} not found"))),
    }
}

/// The features that a change of a pod needs, sorted (`InferForPodUpdate`).
fn needed(new: &Value, old: &Value) -> Vec<&'static str> {
    let pairs = |list: &'static str| {
        let new = items(new, &["spec", list]).iter();
        new.zip(items(old, &["spec", list]))
    };
    let cpu = |container: &Value| {
        let asked = text(container, &["resources", "requests", "cpu"]);
        asked.parse::<Quantity>().unwrap_or_default()
    };
    let resources = |value: &Value| at(value, &["resources"]).clone();
    let differ =
        |(new, old): (&Value, &Value)| !semantically_equal(&resources(new), &resources(old));
    let is_guaranteed = text(old, &["status", "qosClass"]) == "Guaranteed";
    let mut needed = Vec::new();
    if is_guaranteed && pairs("containers").any(|(new, old)| cpu(new) != cpu(old)) {
        needed.push(GUARANTEED_CPU_RESIZE);
    }
    if differ((at(new, &["spec"]), at(old, &["spec"]))) {
        needed.push(POD_LEVEL_RESIZE);
    }
    let is_sidecar = |container: &Value| text(container, &["restartPolicy"]) == "Always";
    let mut inits = pairs("initContainers").filter(|(_, old)| !is_sidecar(old));
    if inits.any(differ) {
        needed.push(INIT_CONTAINER_RESIZE);
    }
    needed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_pod(class: &str, cpu: &str) -> Value {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({
            "spec": {
                "containers": [{"name": "c", "resources": resources}],
                "initContainers": [
                    {"name": "i", "resources": {}},
                    {"name": "s", "restartPolicy": "Always", "resources": {}},
                ],
            },
            "status": {"qosClass": class},
        })
    }

    #[test]
    fn a_change_needs_a_feature_for_each_thing_it_resizes() {
        let old = mk_pod("Guaranteed", "1");
        assert!(needed(&mk_pod("", "1000m"), &old).is_empty());
        assert_eq!(needed(&mk_pod("", "2"), &old), [GUARANTEED_CPU_RESIZE]);
        assert!(needed(&mk_pod("", "2"), &mk_pod("Burstable", "1")).is_empty());
        let mut new = old.clone();
        new["spec"]["initContainers"][1]["resources"] = json!({"limits": {"memory": "1Gi"}});
        assert!(needed(&new, &old).is_empty());
        new["spec"]["initContainers"][0]["resources"] = json!({"limits": {"memory": "1Gi"}});
        assert_eq!(needed(&new, &old), [INIT_CONTAINER_RESIZE]);
        new["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
        assert_eq!(
            needed(&new, &old),
            [POD_LEVEL_RESIZE, INIT_CONTAINER_RESIZE]
        );
    }
}
