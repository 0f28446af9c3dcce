//! Resizing a pod: cpu and memory of what runs in it may change, and nothing else (KEP-1287, `ValidatePodResize`).

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta};

use super::super::super::pod_spec::qos;
use super::super::super::pod_spec::validation::pod_spec;
use super::super::super::tree::{
    at, has, items, items_mut, map, object_mut, restore, semantically_equal, text,
};
use super::update::MIRROR;
use crate::registry::strategy::keep_all_but;

/// Takes the resources of containers, and what becomes of them, out of the request.
pub fn keep_all_but_resources(new: &mut Value, old: &Value) {
    let mut spec = at(old, &["spec"]).clone();
    for list in ["containers", "initContainers"] {
        for container in items_mut(&mut spec, &[list]) {
            let called = text(container, &["name"]).to_owned();
            let asked = items(new, &["spec", list])
                .iter()
                .find(|asked| text(asked, &["name"]) == called);
            let Some(asked) = asked else { continue };
            for field in ["resources", "resizePolicy"] {
                restore(container, asked, field);
            }
        }
    }
    keep_all_but(new, old, &[]);
    new["spec"] = spec;
}

/// What may be asked of a pod that runs.
pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let spec = Path::new("spec");
    let never = if meta::annotation(old, MIRROR).is_some() {
        "static pods cannot be resized"
    } else if text(old, &["spec", "os", "name"]) == "windows" {
        "windows pods cannot be resized"
    } else {
        ""
    };
    if !never.is_empty() {
        return Error::forbidden(&Path::default(), never).into();
    }
    let mut errors = pod_spec(at(new, &["spec"]), &spec);
    let class = match text(old, &["status", "qosClass"]) {
        "" => qos::class(old),
        class => class,
    };
    if qos::class(new) != class {
        errors.push(Error::invalid(
            &spec,
            class,
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    let running = items(old, &["status", "containerStatuses"])
        .iter()
        .find(|status| has(status, &["state", "running"]));
    if running.is_some_and(|status| !has(status, &["resources"])) {
        errors.push(Error::forbidden(
            &spec,
            "Pod running on node without support for resize",
        ));
    }
    for list in ["initContainers", "containers"] {
        let pairs = items(new, &["spec", list])
            .iter()
            .zip(items(old, &["spec", list]));
        for (index, (is, was)) in pairs.enumerate() {
            let sidecar = text(was, &["restartPolicy"]) == "Always";
            if list == "initContainers" && !sidecar {
                if !semantically_equal(is, was) {
                    errors.push(Error::forbidden(
                        &spec,
                        "resources for non-sidecar init containers are immutable",
                    ));
                }
                continue;
            }
            let path = spec.child(list).index(index).child("resources");
            container(is, was, &path, &mut errors);
            if !only_cpu_and_memory(is, was) {
                let what = if list == "containers" {
                    "only cpu and memory resources are mutable"
                } else {
                    "only cpu and memory resources for sidecar containers are mutable"
                };
                errors.push(Error::forbidden(&spec, what));
            }
        }
    }
    errors
}

/// What was asked for or limited stays so.
fn container(is: &Value, was: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["requests", "limits"] {
        let removed = map(was, &["resources", field])
            .into_iter()
            .flatten()
            .any(|(called, _)| !has(is, &["resources", field, called]));
        if removed {
            errors.push(Error::forbidden(
                &path.child(field),
                format!("resource {field} cannot be removed"),
            ));
        }
    }
}

fn only_cpu_and_memory(is: &Value, was: &Value) -> bool {
    let others = |container: &Value| {
        let mut container = container.clone();
        for field in ["requests", "limits"] {
            if map(&container, &["resources", field]).is_some() {
                let amounts = object_mut(&mut container, &["resources", field]);
                amounts.retain(|called, _| !matches!(called.as_str(), "cpu" | "memory"));
            }
        }
        container
    };
    semantically_equal(&others(is), &others(was))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "c", "image": "a", "imagePullPolicy": "Always",
                "terminationMessagePolicy": "File", "resources": resources}],
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}})
    }

    #[test]
    fn cpu_and_memory_may_change_within_a_class() {
        let old = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}}));
        let new = pod(json!({"requests": {"cpu": "2", "memory": "2Gi"}}));
        check(validate(&new, &old), &[]);
        let best_effort = pod(json!({}));
        check(
            validate(&best_effort, &old),
            &[
                "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing",
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
            ],
        );
        let disk =
            pod(json!({"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1"}}));
        check(
            validate(&disk, &old),
            &["spec: Forbidden: only cpu and memory resources are mutable"],
        );
    }

    #[test]
    fn a_kubelets_own_pod_is_left_alone() {
        let mut old = pod(json!({}));
        old["metadata"] = json!({"annotations": {MIRROR: "x"}});
        check(
            validate(&old, &old),
            &[": Forbidden: static pods cannot be resized"],
        );
    }
}
