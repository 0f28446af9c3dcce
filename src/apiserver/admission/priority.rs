//! Priority: a pod's class name becomes a number, and only one class is the default one.

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, flag, int, object_mut, text};

pub struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let is_class = attributes.resource.group == "scheduling.k8s.io"
            && attributes.resource.plural == "priorityclasses"
            && attributes.subresource.is_empty();
        (is_class || attributes.is_core("pods"))
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        if attributes.resource.plural != "pods" {
            return Ok(());
        }
        if let Some(old) = attributes.old {
            // The kubelet and old clients may not send what admission once filled in.
            for field in ["priority", "preemptionPolicy"] {
                let was = at(old, &["spec", field]);
                if at(object, &["spec", field]).is_null() && !was.is_null() {
                    let was = was.clone();
                    object_mut(object, &["spec"]).insert(field.to_owned(), was);
                }
            }
            return Ok(());
        }
        let (name, value, policy) = self.class_of(attributes, object).await?;
        if let Some(asked) = int(object, &["spec", "priority"])
            && asked != value
        {
            return Err(attributes.forbidden(&format!(
                "the integer value of priority ({asked}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            )));
        }
        let asked = text(object, &["spec", "preemptionPolicy"]);
        if !asked.is_empty() && asked != policy {
            return Err(attributes.forbidden(&format!(
                "the string value of PreemptionPolicy ({asked}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
            )));
        }
        let spec = object_mut(object, &["spec"]);
        if !name.is_empty() {
            spec.insert("priorityClassName".to_owned(), name.into());
        }
        spec.insert("priority".to_owned(), value.into());
        spec.insert("preemptionPolicy".to_owned(), policy.into());
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|_| attributes.resource.plural == "priorityclasses")
        else {
            return Ok(());
        };
        if !flag(object, &["globalDefault"]) {
            return Ok(());
        }
        let classes = attributes
            .registry
            .cached_values("scheduling.k8s.io", "priorityclasses")
            .await?;
        let other = classes.iter().find(|class| {
            flag(class, &["globalDefault"]) && meta::name(class) != meta::name(object)
        });
        match other {
            Some(other) => Err(attributes.forbidden(&format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                meta::name(other)
            ))),
            None => Ok(()),
        }
    }
}

impl Priority {
    /// Name, value and preemption policy of the class of a pod.
    async fn class_of(
        &self,
        attributes: &Attributes<'_>,
        pod: &Value,
    ) -> Result<(String, i64, String), Status> {
        let name = text(pod, &["spec", "priorityClassName"]);
        let registry = attributes.registry;
        let class = if name.is_empty() {
            let classes = registry
                .cached_values("scheduling.k8s.io", "priorityclasses")
                .await?;
            let default = classes
                .iter()
                .filter(|class| flag(class, &["globalDefault"]))
                .min_by_key(|class| int(class, &["value"]));
            match default {
                Some(class) => class.clone(),
                None => return Ok((String::new(), 0, "PreemptLowerPriority".to_owned())),
            }
        } else {
            match registry
                .stored_value("scheduling.k8s.io", "priorityclasses", "", name)
                .await?
            {
                Some(class) => class,
                None => {
                    return Err(attributes
                        .forbidden(&format!("no PriorityClass with name {name} was found")));
                }
            }
        };
        let policy = match text(&class, &["preemptionPolicy"]) {
            "" => "PreemptLowerPriority",
            policy => policy,
        };
        Ok((
            meta::name(&class).to_owned(),
            int(&class, &["value"]).unwrap_or(0),
            policy.to_owned(),
        ))
    }
}
