//! Priority: the class named by a pod, or by a group of pods, becomes a number, and only one class is the default one.

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, flag, int, object_mut, text};

/// The gate under which groups of pods say whether they preempt.
const GROUPS_PREEMPT: &str = "PodGroupPreemptionPolicy";

pub struct Priority;

/// What has a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Pod,
    PodGroup,
    CompositePodGroup,
}

impl Holder {
    fn of(attributes: &Attributes<'_>) -> Option<Self> {
        let resource = attributes.resource;
        match (resource.group, resource.plural, attributes.subresource) {
            ("", "pods", "") => Some(Self::Pod),
            ("scheduling.k8s.io", "podgroups", "") => Some(Self::PodGroup),
            ("scheduling.k8s.io", "compositepodgroups", "") => Some(Self::CompositePodGroup),
            _ => None,
        }
    }

    /// How refusals call where a priority stands.
    fn spec(self) -> &'static str {
        match self {
            Self::Pod => "pod spec",
            Self::PodGroup => "pod group spec",
            Self::CompositePodGroup => "composite pod group spec",
        }
    }
}

/// What a class gives.
struct Class {
    /// Empty where no class is the default one.
    name: String,
    value: i64,
    policy: String,
}

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let is_class = attributes.resource.group == "scheduling.k8s.io"
            && attributes.resource.plural == "priorityclasses"
            && attributes.subresource.is_empty();
        (is_class || Holder::of(attributes).is_some())
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        match (Holder::of(attributes), attributes.old) {
            (Some(Holder::Pod), Some(old)) => keep(object, old),
            (Some(holder), None) => {
                let class = class_of(attributes, object).await?;
                let preempts =
                    holder == Holder::Pod || !attributes.registry.gates.is_off(GROUPS_PREEMPT);
                give(object, holder, &class, preempts).map_err(|why| attributes.forbidden(&why))?;
            }
            // A group's priority is made once.
            _ => {}
        }
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

/// The kubelet and old clients may not send what admission once filled in.
fn keep(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        let was = at(old, &["spec", field]);
        if at(pod, &["spec", field]).is_null() && !was.is_null() {
            let was = was.clone();
            object_mut(pod, &["spec"]).insert(field.to_owned(), was);
        }
    }
}

/// Fills in what the class gives; what else was asked for is refused.
fn give(object: &mut Value, holder: Holder, class: &Class, preempts: bool) -> Result<(), String> {
    let (value, policy, spec) = (class.value, &class.policy, holder.spec());
    if let Some(asked) = int(object, &["spec", "priority"])
        && asked != value
    {
        return Err(format!(
            "the integer value of priority ({asked}) must not be provided in {spec}; priority admission controller computed {value} from the given PriorityClass name"
        ));
    }
    let asked = text(object, &["spec", "preemptionPolicy"]);
    if preempts && !asked.is_empty() && asked != policy {
        return Err(format!(
            "the string value of PreemptionPolicy ({asked}) must not be provided in {spec}; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    let spec = object_mut(object, &["spec"]);
    if !class.name.is_empty() {
        spec.insert("priorityClassName".to_owned(), class.name.as_str().into());
    }
    spec.insert("priority".to_owned(), value.into());
    if preempts {
        spec.insert("preemptionPolicy".to_owned(), policy.as_str().into());
    }
    Ok(())
}

/// The class that an object names, or the default one.
async fn class_of(attributes: &Attributes<'_>, object: &Value) -> Result<Class, Status> {
    let name = text(object, &["spec", "priorityClassName"]);
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
            None => {
                return Ok(Class {
                    name: String::new(),
                    value: 0,
                    policy: "PreemptLowerPriority".to_owned(),
                });
            }
        }
    } else {
        registry
            .stored_value("scheduling.k8s.io", "priorityclasses", "", name)
            .await?
            .ok_or_else(|| {
                attributes.forbidden(&format!("no PriorityClass with name {name} was found"))
            })?
    };
    let policy = match text(&class, &["preemptionPolicy"]) {
        "" => "PreemptLowerPriority",
        policy => policy,
    };
    Ok(Class {
        name: meta::name(&class).to_owned(),
        value: int(&class, &["value"]).unwrap_or(0),
        policy: policy.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_group_gets_a_number_and_says_whether_it_preempts_only_under_the_gate() {
        let class = Class {
            name: "high".to_owned(),
            value: 7,
            policy: "Never".to_owned(),
        };
        let mut group = json!({"spec": {"priority": 7}});
        give(&mut group, Holder::PodGroup, &class, false).expect("the same number");
        assert_eq!(
            group,
            json!({"spec": {"priority": 7, "priorityClassName": "high"}})
        );
        give(&mut group, Holder::PodGroup, &class, true).expect("no policy asked for");
        assert_eq!(group["spec"]["preemptionPolicy"], "Never");
        let mut other = json!({"spec": {"priority": 8}});
        let why = give(&mut other, Holder::PodGroup, &class, false);
        assert_eq!(
            why,
            Err("the integer value of priority (8) must not be provided in pod group spec; priority admission controller computed 7 from the given PriorityClass name".to_owned())
        );
    }
}
