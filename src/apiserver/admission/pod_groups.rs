//! PodGroupWorkloadExists: a group of pods is made from a template of a workload that is there (KEP-4671).

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{items, text};

pub struct PodGroupWorkloadExists;

#[async_trait]
impl Plugin for PodGroupWorkloadExists {
    fn name(&self) -> &'static str {
        "PodGroupWorkloadExists"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.resource.group == "scheduling.k8s.io"
            && attributes.resource.plural == "podgroups"
            && attributes.subresource.is_empty()
            && attributes.operation == Operation::Create
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(group) = object else {
            return Ok(());
        };
        let name = text(group, &["spec", "workloadRef", "workloadName"]);
        if name.is_empty() {
            return Ok(());
        }
        let namespace = attributes.namespace;
        let workload = attributes
            .registry
            .stored_value("scheduling.k8s.io", "workloads", namespace, name)
            .await?;
        let template = text(group, &["spec", "workloadRef", "templateName"]);
        match refusal(workload.as_ref(), name, template) {
            None => Ok(()),
            Some(why) => Err(attributes.forbidden(&format!("PodGroup rejected: {why}"))),
        }
    }
}

fn refusal(workload: Option<&Value>, name: &str, template: &str) -> Option<String> {
    let Some(workload) = workload else {
        return Some(format!("Workload {name:?} not found"));
    };
    if meta::is_deleting(workload) {
        return Some(format!("Workload {name:?} is being deleted"));
    }
    (!has_template(&workload["spec"], template))
        .then(|| format!("PodGroupTemplate {template:?} not found in Workload {name:?}"))
}

/// Whether a template of this name is there, or in one of the composite ones.
fn has_template(holder: &Value, name: &str) -> bool {
    items(holder, &["podGroupTemplates"])
        .iter()
        .any(|template| text(template, &["name"]) == name)
        || items(holder, &["compositePodGroupTemplates"])
            .iter()
            .any(|inner| has_template(inner, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_group_is_made_from_a_template_that_is_there() {
        let workload = json!({"spec": {"podGroupTemplates": [{"name": "a"}],
            "compositePodGroupTemplates": [{"name": "c", "podGroupTemplates": [{"name": "b"}]}]}});
        assert_eq!(refusal(Some(&workload), "w", "a"), None);
        assert_eq!(refusal(Some(&workload), "w", "b"), None);
        assert_eq!(
            refusal(Some(&workload), "w", "c").as_deref(),
            Some("PodGroupTemplate \"c\" not found in Workload \"w\"")
        );
        assert_eq!(
            refusal(None, "w", "a").as_deref(),
            Some("Workload \"w\" not found")
        );
        let dying = json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}});
        assert_eq!(
            refusal(Some(&dying), "w", "a").as_deref(),
            Some("Workload \"w\" is being deleted")
        );
    }
}
