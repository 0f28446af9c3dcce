//! Nobody grants rights that they do not have: roles and bindings are checked against what the writer may do.
//!
//! Upstream does this in the storage of these kinds and not in a plugin; the place in the order is the same, right
//! before the write.

use apimachinery::{Status, Value};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::authz::rbac::{GROUP, check_binding, check_role};

/// Asks `authz::rbac` before a role or a binding is written.
pub struct Escalation;

#[async_trait]
impl Plugin for Escalation {
    fn name(&self) -> &'static str {
        "Escalation"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.resource.group == GROUP
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else {
            return Ok(());
        };
        let plural = attributes.resource.plural;
        match plural {
            "roles" | "clusterroles" => {
                check_role(attributes.request, plural, object, attributes.old).await
            }
            _ => check_binding(attributes.request, plural, object, attributes.old).await,
        }
    }
}
