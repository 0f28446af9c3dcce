//! What an update of a pod may change (`ValidatePodUpdate`): images, the deadline, more tolerations, fewer gates.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Map, Value};

use super::super::super::check::Node;
use super::super::super::pod_spec::validation::pod_spec;
use super::super::super::tree::{
    at, int, items, items_mut, object_mut, restore, semantically_equal, text,
};
use crate::registry::strategy::keep_all_but;

const ALLOWED: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// An update of the pod itself.
pub fn pod(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    for list in ["containers", "initContainers"] {
        let (is, was) = (items(new, &["spec", list]), items(old, &["spec", list]));
        if is.len() != was.len() {
            errors.push(Error::forbidden(
                &path.child(list),
                "pod updates may not add or remove containers",
            ));
            return errors;
        }
        for (index, container) in is.iter().enumerate() {
            let image = text(container, &["image"]);
            if image.is_empty() {
                let path = path.child(list).index(index).child("image");
                errors.push(Error::required(&path, ""));
            }
        }
    }
    if at(new, &["spec"]) == at(old, &["spec"]) {
        // What was stored before a rule was tightened may stay as it is.
        return errors;
    }
    deadline(new, old, &path, &mut errors);
    gates(new, old, &path, &mut errors);
    tolerations(new, old, &path, &mut errors);
    let (is, was) = (munge(new, old), munge(old, old));
    if !semantically_equal(&is, &was) {
        errors.push(Error::forbidden(
            &path,
            format!("{ALLOWED}\n{}", difference(&was, &is)),
        ));
    }
    if errors.is_empty() {
        // As above, rule by rule.
        let before = pod_spec(at(old, &["spec"]), &path);
        let after = pod_spec(at(new, &["spec"]), &path);
        errors.extend(
            after
                .into_iter()
                .filter(|error| !before.iter().any(|known| known == error)),
        );
    }
    errors
}

fn deadline(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("activeDeadlineSeconds");
    let was = int(old, &["spec", "activeDeadlineSeconds"]);
    match (int(new, &["spec", "activeDeadlineSeconds"]), was) {
        (Some(is), Some(was)) if is > was => errors.push(Error::invalid(
            &path,
            is,
            "must be less than or equal to previous value",
        )),
        (Some(is), None) if is < 0 => errors.push(Error::invalid(
            &path,
            is,
            "must be between 0 and 2147483647, inclusive",
        )),
        (None, Some(was)) => errors.push(Error::invalid(
            &path,
            was,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
}

fn gates(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let was = items(old, &["spec", "schedulingGates"]);
    for gate in items(new, &["spec", "schedulingGates"]) {
        if !was.contains(gate) {
            errors.push(Error::forbidden(
                &path.child("schedulingGates"),
                format!(
                    "only deletion is allowed, but found new scheduling gate '{}'",
                    text(gate, &["name"])
                ),
            ));
        }
    }
}

fn tolerations(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let timeless = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(map) = toleration.as_object_mut() {
            map.remove("tolerationSeconds");
        }
        toleration
    };
    let is: Vec<Value> = items(new, &["spec", "tolerations"])
        .iter()
        .map(timeless)
        .collect();
    let kept = items(old, &["spec", "tolerations"])
        .iter()
        .map(timeless)
        .all(|toleration| is.contains(&toleration));
    if !kept {
        errors.push(Error::forbidden(
            &path.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

/// The spec with everything that may change made equal to `old`'s.
fn munge(pod: &Value, old: &Value) -> Value {
    let mut spec = at(pod, &["spec"]).clone();
    for list in ["containers", "initContainers"] {
        let images: Vec<Value> = items(old, &["spec", list])
            .iter()
            .map(|container| at(container, &["image"]).clone())
            .collect();
        for (container, image) in items_mut(&mut spec, &[list]).iter_mut().zip(images) {
            container["image"] = image;
        }
    }
    let gated = !items(old, &["spec", "schedulingGates"]).is_empty();
    let fields: &mut Map<String, Value> = object_mut(&mut spec, &[]);
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        fields.remove(field);
    }
    if gated {
        fields.remove("nodeSelector");
    }
    let negative = int(old, &["spec", "terminationGracePeriodSeconds"]).is_some_and(|was| was < 0);
    if negative {
        fields.remove("terminationGracePeriodSeconds");
    }
    spec
}

/// What differs, a line each: `- ` the old value, `+ ` the new one.
fn difference(was: &Value, is: &Value) -> String {
    let mut lines = Vec::new();
    walk(was, is, "spec", &mut lines);
    lines.join("\n")
}

/// Lines of a difference that are shown.
const SHOWN: usize = 20;

fn walk(was: &Value, is: &Value, path: &str, lines: &mut Vec<String>) {
    if semantically_equal(was, is) || lines.len() >= SHOWN {
        return;
    }
    match (was, is) {
        (Value::Object(left), Value::Object(right)) => {
            let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let none = Value::Null;
                let (left, right) = (
                    left.get(key).unwrap_or(&none),
                    right.get(key).unwrap_or(&none),
                );
                walk(left, right, &format!("{path}.{key}"), lines);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                walk(left, right, &format!("{path}[{index}]"), lines);
            }
        }
        _ => {
            lines.push(format!("- {path}: {was}"));
            lines.push(format!("+ {path}: {is}"));
        }
    }
}

/// An update of the status: what ended and is not restarted does not run again (`ValidatePodStatusUpdate`).
pub fn status(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let policy = text(new, &["spec", "restartPolicy"]);
    if policy == "Always" {
        return errors;
    }
    let root = Node::root(at(new, &["status"]), "status");
    for list in ["containerStatuses", "initContainerStatuses"] {
        let statuses = root.at(list);
        for status in statuses.items() {
            let called = status.at("name").text();
            let spec_list = if list == "containerStatuses" {
                "containers"
            } else {
                "initContainers"
            };
            let own_policy = items(new, &["spec", spec_list])
                .iter()
                .find(|container| text(container, &["name"]) == called)
                .is_some_and(|container| {
                    !at(container, &["restartPolicy"]).is_null()
                        || !items(container, &["restartPolicyRules"]).is_empty()
                });
            let ended = items(old, &["status", list])
                .iter()
                .find(|was| text(was, &["name"]) == called)
                .map(|was| at(was, &["state", "terminated"]))
                .filter(|ended| !ended.is_null());
            let Some(ended) = ended.filter(|_| !own_policy) else {
                continue;
            };
            let may_restart = (policy == "OnFailure" || list == "initContainerStatuses")
                && int(ended, &["exitCode"]).unwrap_or(0) != 0;
            let state = status.at("state");
            if !may_restart && !state.at("terminated").is_set() {
                state.forbidden(
                    &mut errors,
                    "may not be transitioned to non-terminated state",
                );
            }
        }
    }
    errors
}

/// An update of the ephemeral containers: they are only ever added.
pub fn ephemeral(new: &Value, old: &Value) -> ErrorList {
    let path = Path::new("spec");
    let mut errors = pod_spec(at(new, &["spec"]), &path);
    let list = path.child("ephemeralContainers");
    let is = items(new, &["spec", "ephemeralContainers"]);
    for was in items(old, &["spec", "ephemeralContainers"]) {
        let called = text(was, &["name"]);
        match is
            .iter()
            .find(|container| text(container, &["name"]) == called)
        {
            None => errors.push(Error::forbidden(
                &list,
                format!("existing ephemeral containers {called:?} may not be removed\n"),
            )),
            Some(now) if !semantically_equal(now, was) => errors.push(Error::forbidden(
                &list,
                format!("existing ephemeral containers {called:?} may not be changed\n"),
            )),
            Some(_) => {}
        }
    }
    errors
}

/// A resize changes the resources of containers and nothing else (KEP-1287).
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn old() -> Value {
        json!({"spec": {
            "containers": [{"name": "c", "image": "a:1", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}],
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "nodeName": "n",
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]}})
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expect: &str) {
        let old = old();
        let mut new = old.clone();
        change(&mut new);
        let errors = pod(&new, &old);
        match expect {
            "" => assert!(errors.is_empty(), "{}", errors.aggregate()),
            expect => assert!(
                errors.aggregate().contains(expect),
                "{}",
                errors.aggregate()
            ),
        }
    }

    #[test]
    fn images_deadlines_and_more_tolerations_may_change() {
        check(
            |new| new["spec"]["containers"][0]["image"] = "a:2".into(),
            "",
        );
        check(|new| new["spec"]["activeDeadlineSeconds"] = 5.into(), "");
        check(
            |new| {
                new["spec"]["tolerations"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"key": "x", "operator": "Exists"}));
            },
            "",
        );
        check(
            |new| new["spec"]["tolerations"][0]["tolerationSeconds"] = 1.into(),
            "",
        );
    }

    #[test]
    fn what_ended_for_good_does_not_run_again() {
        let pod = |policy: &str, state: Value| {
            json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c"}]},
                "status": {"containerStatuses": [{"name": "c", "state": state}]}})
        };
        let failed = json!({"terminated": {"exitCode": 1}});
        let running = json!({"running": {}});
        let errors = status(
            &pod("Never", running.clone()),
            &pod("Never", failed.clone()),
        );
        assert_eq!(
            errors.aggregate(),
            "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
        );
        for policy in ["Always", "OnFailure"] {
            let errors = status(&pod(policy, running.clone()), &pod(policy, failed.clone()));
            assert!(errors.is_empty(), "{policy}");
        }
    }

    #[test]
    fn everything_else_may_not() {
        check(
            |new| new["spec"]["nodeName"] = "m".into(),
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
        );
        check(
            |new| new["spec"]["tolerations"] = json!([]),
            "existing toleration can not be modified",
        );
        check(
            |new| {
                new["spec"]["containers"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"name": "d"}));
            },
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        );
    }
}
