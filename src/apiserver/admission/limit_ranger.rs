//! LimitRanger: containers get a namespace's default requests and limits, and nothing goes beyond its bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, items, items_mut, map, object_mut, text};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        match attributes.operation {
            Operation::Create => {
                attributes.is_core("pods") || attributes.is_core("persistentvolumeclaims")
            }
            Operation::Update => attributes.is_core("persistentvolumeclaims"),
            _ => false,
        }
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        if !attributes.is_core("pods") {
            return Ok(());
        }
        let all = ranges(attributes).await?;
        for range in here(attributes, &all) {
            let defaults = |field: &str| defaults_of(range, field);
            fill(object, &defaults("defaultRequest"), &defaults("default"));
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|object| !meta::is_deleting(object)) else {
            return Ok(());
        };
        let mut errors = Vec::new();
        let all = ranges(attributes).await?;
        for range in here(attributes, &all) {
            for limit in items(range, &["spec", "limits"]) {
                check(attributes, limit, object, &mut errors);
            }
        }
        match errors.as_slice() {
            [] => Ok(()),
            [one] => Err(attributes.forbidden(one)),
            many => Err(attributes.forbidden(&format!("[{}]", many.join(", ")))),
        }
    }
}

/// All ranges; `here` picks the namespace's.
async fn ranges(attributes: &Attributes<'_>) -> Result<Arc<Vec<Value>>, Status> {
    attributes.registry.cached_values("", "limitranges").await
}

fn here<'a>(attributes: &Attributes<'_>, all: &'a [Value]) -> impl Iterator<Item = &'a Value> {
    let namespace = attributes.namespace.to_owned();
    all.iter()
        .filter(move |range| meta::namespace(range) == namespace)
}

type Amounts = BTreeMap<String, Value>;

fn defaults_of(range: &Value, field: &str) -> Amounts {
    items(range, &["spec", "limits"])
        .iter()
        .filter(|limit| text(limit, &["type"]) == "Container")
        .flat_map(|limit| map(limit, &[field]).into_iter().flatten())
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}

/// Gives containers what they do not say, and the pod an annotation that tells.
fn fill(pod: &mut Value, requests: &Amounts, limits: &Amounts) {
    let mut told = Vec::new();
    for (list, word) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        for container in items_mut(pod, &["spec", list]) {
            let name = text(container, &["name"]).to_owned();
            for (field, defaults) in [("requests", requests), ("limits", limits)] {
                let mut set = Vec::new();
                for (resource, amount) in defaults {
                    if at(container, &["resources", field, resource]).is_null() {
                        object_mut(container, &["resources", field])
                            .insert(resource.clone(), amount.clone());
                        set.push(resource.as_str());
                    }
                }
                if !set.is_empty() {
                    let one = field.trim_end_matches('s');
                    told.push(format!("{} {one} for {word} {name}", set.join(", ")));
                }
            }
        }
    }
    if !told.is_empty() {
        let text = format!("LimitRanger plugin set: {}", told.join("; "));
        meta::set_annotation(pod, ANNOTATION, &text);
    }
}

fn check(attributes: &Attributes<'_>, limit: &Value, object: &Value, errors: &mut Vec<String>) {
    let kind = text(limit, &["type"]);
    match kind {
        "Container" if attributes.is_core("pods") => {
            for list in ["containers", "initContainers"] {
                for container in items(object, &["spec", list]) {
                    let resources = at(container, &["resources"]);
                    bounds(
                        limit,
                        kind,
                        &amounts(resources, "requests"),
                        &amounts(resources, "limits"),
                        errors,
                    );
                }
            }
        }
        "Pod" if attributes.is_core("pods") => {
            bounds(
                limit,
                kind,
                &pod_total(object, "requests"),
                &pod_total(object, "limits"),
                errors,
            );
        }
        "PersistentVolumeClaim" if attributes.is_core("persistentvolumeclaims") => {
            let requests = amounts(at(object, &["spec", "resources"]), "requests");
            claim(limit, &requests, errors);
        }
        _ => {}
    }
}

fn amounts(resources: &Value, field: &str) -> BTreeMap<String, Quantity> {
    map(resources, &[field])
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?)))
        .collect()
}

/// The containers' sum, or an init container's share where that is more.
fn pod_total(pod: &Value, field: &str) -> BTreeMap<String, Quantity> {
    let mut total: BTreeMap<String, Quantity> = BTreeMap::new();
    for container in items(pod, &["spec", "containers"]) {
        for (name, amount) in amounts(at(container, &["resources"]), field) {
            total
                .entry(name)
                .and_modify(|sum| sum.add(&amount))
                .or_insert(amount);
        }
    }
    for container in items(pod, &["spec", "initContainers"]) {
        for (name, amount) in amounts(at(container, &["resources"]), field) {
            let entry = total.entry(name).or_insert(amount);
            if *entry < amount {
                *entry = amount;
            }
        }
    }
    total
}

fn bounds(
    limit: &Value,
    kind: &str,
    requests: &BTreeMap<String, Quantity>,
    limits: &BTreeMap<String, Quantity>,
    errors: &mut Vec<String>,
) {
    for (name, least) in amounts(limit, "min") {
        match requests.get(&name) {
            Some(request) if *request < least => errors.push(format!(
                "minimum {name} usage per {kind} is {least}, but request is {request}"
            )),
            Some(_) => {}
            None => errors.push(format!(
                "minimum {name} usage per {kind} is {least}.  No request is specified"
            )),
        }
        if let Some(limit) = limits.get(&name).filter(|limit| **limit < least) {
            errors.push(format!(
                "minimum {name} usage per {kind} is {least}, but limit is {limit}"
            ));
        }
    }
    for (name, most) in amounts(limit, "max") {
        match limits.get(&name) {
            Some(limit) if *limit > most => errors.push(format!(
                "maximum {name} usage per {kind} is {most}, but limit is {limit}"
            )),
            Some(_) => {}
            None => errors.push(format!(
                "maximum {name} usage per {kind} is {most}.  No limit is specified"
            )),
        }
        if let Some(request) = requests.get(&name).filter(|request| **request > most) {
            errors.push(format!(
                "maximum {name} usage per {kind} is {most}, but request is {request}"
            ));
        }
    }
    for (name, ratio) in amounts(limit, "maxLimitRequestRatio") {
        let request = requests.get(&name).filter(|request| !request.is_zero());
        match (request, limits.get(&name)) {
            (None, _) => errors.push(format!(
                "{name} max limit to request ratio per {kind} is {ratio}, but no request is specified or request is 0"
            )),
            (Some(_), None) => errors.push(format!(
                "{name} max limit to request ratio per {kind} is {ratio}, but no limit is specified"
            )),
            (Some(request), Some(limit)) => {
                let have = limit.as_f64() / request.as_f64();
                if have > ratio.as_f64() {
                    errors.push(format!(
                        "{name} max limit to request ratio per {kind} is {ratio}, but provided ratio is {have:.6}"
                    ));
                }
            }
        }
    }
}

fn claim(limit: &Value, requests: &BTreeMap<String, Quantity>, errors: &mut Vec<String>) {
    let Some(request) = requests.get("storage") else {
        return;
    };
    if let Some(least) = amounts(limit, "min")
        .get("storage")
        .filter(|least| request < least)
    {
        errors.push(format!(
            "minimum storage usage per PersistentVolumeClaim is {least}, but request is {request}"
        ));
    }
    if let Some(most) = amounts(limit, "max")
        .get("storage")
        .filter(|most| request > most)
    {
        errors.push(format!(
            "maximum storage usage per PersistentVolumeClaim is {most}, but request is {request}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_are_filled_in_and_told() {
        let range = json!({"spec": {"limits": [{"type": "Container",
            "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m", "memory": "1Gi"}}]}});
        let mut pod = json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"memory": "2Gi"}}}]}});
        fill(
            &mut pod,
            &defaults_of(&range, "defaultRequest"),
            &defaults_of(&range, "default"),
        );
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": "1"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu limit for container a"
        );
    }

    #[test]
    fn bounds_are_told_in_upstreams_words() {
        let limit = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"memory": "1Gi"}});
        let requests = amounts(&json!({"requests": {"cpu": "50m"}}), "requests");
        let limits = amounts(&json!({"limits": {"memory": "2Gi"}}), "limits");
        let mut errors = Vec::new();
        bounds(&limit, "Container", &requests, &limits, &mut errors);
        assert_eq!(
            errors,
            [
                "minimum cpu usage per Container is 100m, but request is 50m",
                "maximum memory usage per Container is 1Gi, but limit is 2Gi"
            ]
        );
    }
}
