//! DefaultIngressClass, RuntimeClass and PersistentVolumeClaimResize: what objects take from, or may do by, their class.

use apimachinery::quantity::Quantity;
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, flag, has, items, map, object_mut, semantically_equal, text};

const DEFAULT_INGRESS: &str = "ingressclass.kubernetes.io/is-default-class";
const OLD_INGRESS: &str = "kubernetes.io/ingress.class";

/// The name of the class that one of `annotations` marks as the default: the newest, of equally old ones the first by name.
pub(super) async fn newest_default(
    attributes: &Attributes<'_>,
    (group, plural): (&'static str, &'static str),
    annotations: &[&str],
) -> Result<Option<String>, Status> {
    let classes = attributes.registry.cached_values(group, plural).await?;
    let newest = classes
        .iter()
        .filter(|class| {
            annotations
                .iter()
                .any(|key| meta::annotation(class, key) == Some("true"))
        })
        .max_by(|a, b| {
            meta::creation_timestamp(a)
                .cmp(meta::creation_timestamp(b))
                .then(meta::name(b).cmp(meta::name(a)))
        });
    Ok(newest.map(|class| meta::name(class).to_owned()))
}

pub struct DefaultIngressClass;

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.resource.group == "networking.k8s.io"
            && attributes.resource.plural == "ingresses"
            && attributes.subresource.is_empty()
            && attributes.operation == Operation::Create
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        if has(object, &["spec", "ingressClassName"])
            || meta::annotation(object, OLD_INGRESS).is_some()
        {
            return Ok(());
        }
        let class = newest_default(
            attributes,
            ("networking.k8s.io", "ingressclasses"),
            &[DEFAULT_INGRESS],
        );
        if let Some(class) = class.await? {
            object_mut(object, &["spec"]).insert("ingressClassName".to_owned(), class.into());
        }
        Ok(())
    }
}

pub struct RuntimeClass;

impl RuntimeClass {
    async fn class(
        &self,
        attributes: &Attributes<'_>,
        pod: &Value,
    ) -> Result<Option<Value>, Status> {
        let name = text(pod, &["spec", "runtimeClassName"]);
        if name.is_empty() {
            return Ok(None);
        }
        let class = attributes
            .registry
            .stored_value("node.k8s.io", "runtimeclasses", "", name)
            .await?;
        match class {
            Some(class) => Ok(Some(class)),
            None => {
                Err(attributes.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found")))
            }
        }
    }
}

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_core("pods") && attributes.operation == Operation::Create
    }

    async fn admit(&self, attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), Status> {
        let Some(class) = self.class(attributes, pod).await? else {
            return Ok(());
        };
        let overhead = at(&class, &["overhead", "podFixed"]);
        let said = at(pod, &["spec", "overhead"]);
        if !said.is_null() && !semantically_equal(said, overhead) {
            return Err(attributes.forbidden(
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            ));
        }
        if !overhead.is_null() {
            let overhead = overhead.clone();
            object_mut(pod, &["spec"]).insert("overhead".to_owned(), overhead);
        }
        for (key, value) in map(&class, &["scheduling", "nodeSelector"])
            .into_iter()
            .flatten()
        {
            let said = at(pod, &["spec", "nodeSelector", key]);
            if !said.is_null() && said != value {
                return Err(attributes.forbidden(&format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    value.as_str().unwrap_or(""),
                    said.as_str().unwrap_or("")
                )));
            }
            object_mut(pod, &["spec", "nodeSelector"]).insert(key.clone(), value.clone());
        }
        let tolerations = items(&class, &["scheduling", "tolerations"]).to_vec();
        if !tolerations.is_empty() {
            let list = object_mut(pod, &["spec"])
                .entry("tolerations")
                .or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                for toleration in tolerations {
                    if !list.contains(&toleration) {
                        list.push(toleration);
                    }
                }
            }
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        pod: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = pod else { return Ok(()) };
        let has_class = self.class(attributes, pod).await?.is_some();
        if !has_class && has(pod, &["spec", "overhead"]) {
            return Err(attributes.forbidden(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            ));
        }
        Ok(())
    }
}

pub struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_core("persistentvolumeclaims") && attributes.operation == Operation::Update
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (object, attributes.old) else {
            return Ok(());
        };
        let size = |claim: &Value| {
            text(claim, &["spec", "resources", "requests", "storage"])
                .parse::<Quantity>()
                .ok()
        };
        let (Some(is), Some(was)) = (size(new), size(old)) else {
            return Ok(());
        };
        if is <= was {
            return Ok(());
        }
        if text(old, &["status", "phase"]) != "Bound" {
            return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = text(old, &["spec", "storageClassName"]);
        let class = attributes
            .registry
            .stored_value("storage.k8s.io", "storageclasses", "", class)
            .await?;
        if class.is_some_and(|class| flag(&class, &["allowVolumeExpansion"])) {
            return Ok(());
        }
        Err(attributes.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}
