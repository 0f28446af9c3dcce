//! NamespaceLifecycle: nothing is created where no namespace is, or where one is going away, and the namespaces that the
//! system stands on stay.

use apimachinery::status::{Cause, Details};
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::text;

/// Namespaces nobody may delete.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let is_namespace =
            attributes.resource.group.is_empty() && attributes.resource.plural == "namespaces";
        match attributes.operation {
            Operation::Delete => is_namespace,
            Operation::Create => {
                !is_namespace && !attributes.namespace.is_empty() && !is_review(attributes)
            }
            // Updates and deletes of content must work while a namespace goes away.
            _ => false,
        }
    }

    async fn admit(&self, attributes: &Attributes<'_>, _object: &mut Value) -> Result<(), Status> {
        if attributes.operation != Operation::Create {
            return Ok(());
        }
        let registry = attributes.registry;
        let Some(namespace) = registry.namespace(attributes.namespace).await? else {
            return Err(Status::not_found("", "namespaces", attributes.namespace));
        };
        let phase = text(&namespace, &["status", "phase"]);
        if phase != "Terminating" && !meta::is_deleting(&namespace) {
            return Ok(());
        }
        let mut status = attributes.forbidden(&format!(
            "unable to create new content in namespace {} because it is being terminated",
            attributes.namespace
        ));
        let details = status.details.get_or_insert_with(Details::default);
        details.causes.push(Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {} is being terminated", attributes.namespace),
            field: "metadata.namespace".to_owned(),
        });
        Err(status)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
    ) -> Result<(), Status> {
        if attributes.operation == Operation::Delete && IMMORTAL.contains(&attributes.name) {
            return Err(attributes.forbidden("this namespace may not be deleted"));
        }
        Ok(())
    }
}

/// Reviews are answered, not stored; a namespace in them is a question.
fn is_review(attributes: &Attributes<'_>) -> bool {
    attributes.resource.plural == "localsubjectaccessreviews"
}
