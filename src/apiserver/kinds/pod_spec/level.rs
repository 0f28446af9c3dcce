//! Resources of a pod as a whole (KEP-2837): which there may be, and that its containers fit into them.

use std::collections::BTreeMap;

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::quantity::Quantity;

use super::super::tree::{at, has, items, map, text};

const SUPPORTED: [&str; 2] = ["cpu", "memory"];

fn amount(value: &Value) -> Option<Quantity> {
    value.as_str()?.parse().ok()
}

/// Validates `spec.resources`.
pub fn resources(spec: &Value, path: &Path, errors: &mut ErrorList) {
    if !has(spec, &["resources"]) {
        return;
    }
    let path = path.child("resources");
    let own = at(spec, &["resources"]);
    for field in ["limits", "requests"] {
        for (called, value) in map(own, &[field]).into_iter().flatten() {
            let told = path.child(field).key(called);
            if !SUPPORTED.contains(&called.as_str()) && !called.starts_with("hugepages-") {
                errors.push(Error::not_supported(&told, called, &SUPPORTED));
            }
            if amount(value).is_some_and(|amount| amount.sign() < 0) {
                errors.push(Error::invalid(
                    &told,
                    value,
                    "must be greater than or equal to 0",
                ));
            }
        }
    }
    for (called, value) in map(own, &["requests"]).into_iter().flatten() {
        let limit = at(own, &["limits", called]);
        if let (Some(asked), Some(most)) = (amount(value), amount(limit))
            && asked > most
        {
            let shown = limit.as_str().unwrap_or("");
            errors.push(Error::invalid(
                &path.child("requests"),
                value,
                format!("must be less than or equal to {called} limit of {shown}"),
            ));
        }
    }
    if has(own, &["claims"]) {
        errors.push(Error::forbidden(
            &path.child("claims"),
            "claims may not be set for Resources at pod-level",
        ));
    }
    containers(spec, own, &path, errors);
}

/// The containers together ask for no more than the pod, and none may have more than the pod.
fn containers(spec: &Value, own: &Value, path: &Path, errors: &mut ErrorList) {
    let mut sums: BTreeMap<&str, Quantity> = BTreeMap::new();
    let sidecar = |container: &&Value| text(container, &["restartPolicy"]) == "Always";
    let asking = items(spec, &["containers"])
        .iter()
        .chain(items(spec, &["initContainers"]).iter().filter(sidecar));
    for container in asking {
        for (called, value) in map(container, &["resources", "requests"])
            .into_iter()
            .flatten()
        {
            if let Some(amount) = amount(value) {
                sums.entry(called.as_str())
                    .and_modify(|sum| sum.add(&amount))
                    .or_insert(amount);
            }
        }
    }
    for (called, sum) in sums {
        let asked = at(own, &["requests", called]);
        if amount(asked).is_some_and(|asked| sum > asked) {
            errors.push(Error::invalid(
                &path.child("requests").key(called),
                asked,
                format!("must be greater than or equal to aggregate container requests of {sum}"),
            ));
        }
    }
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            for (called, value) in map(container, &["resources", "limits"])
                .into_iter()
                .flatten()
            {
                let most = at(own, &["limits", called]);
                if let (Some(limit), Some(pod)) = (amount(value), amount(most))
                    && limit > pod
                {
                    let told = Path::new("spec").child(list).index(index);
                    let shown = most.as_str().unwrap_or("");
                    errors.push(Error::invalid(
                        &told.child("resources").child("limits").key(called),
                        value,
                        format!("must be less than or equal to pod limits of {shown}"),
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn containers_fit_into_their_pod() {
        let spec = json!({
            "resources": {"limits": {"cpu": "1", "disk": "1"}, "requests": {"cpu": "1"}},
            "containers": [
                {"resources": {"requests": {"cpu": "600m"}, "limits": {"cpu": "2"}}},
                {"resources": {"requests": {"cpu": "600m"}}},
            ],
        });
        let mut errors = ErrorList::new();
        resources(&spec, &Path::new("spec"), &mut errors);
        check(
            errors,
            &[
                "spec.resources.limits[disk]: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 1200m",
                "spec.containers[0].resources.limits[cpu]: Invalid value: \"2\": must be less than or equal to pod limits of 1",
            ],
        );
    }
}
