//! What an update of a pod may change (`ValidatePodUpdate`): images, the deadline, more tolerations, fewer gates.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Map, Value, meta};

use super::super::super::pod_spec::validation::pod_spec;
use super::super::super::tree::{at, int, items, items_mut, object_mut, semantically_equal, text};

/// What a kubelet marks pods of its own with.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

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
            let path = path.child(list).index(index).child("image");
            if image.is_empty() {
                errors.push(Error::required(&path, ""));
            } else if image != image.trim() {
                errors.push(Error::invalid(
                    &path,
                    image,
                    "must not have leading or trailing whitespace",
                ));
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
    placement(new, old, &path, &mut errors);
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
    if !items(old, &["spec", "schedulingGates"]).is_empty() {
        set_aside_placement(&mut spec);
    }
    let fields: &mut Map<String, Value> = object_mut(&mut spec, &[]);
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        fields.remove(field);
    }
    // A period that never was may become the shortest one.
    let period = |pod: &Value| int(pod, &["spec", "terminationGracePeriodSeconds"]);
    if period(old).is_some_and(|was| was < 0) && period(pod) == Some(1) {
        let field = "terminationGracePeriodSeconds";
        fields.insert(field.to_owned(), at(old, &["spec", field]).clone());
    }
    spec
}

/// A gated pod's nodes are checked apart.
fn set_aside_placement(spec: &mut Value) {
    let fields = object_mut(spec, &[]);
    fields.remove("nodeSelector");
    if let Some(Value::Object(affinity)) = fields.get_mut("affinity") {
        affinity.remove("nodeAffinity");
        if affinity.is_empty() {
            fields.remove("affinity");
        }
    }
}

/// A pod that is not scheduled yet may be bound to fewer nodes, never to others.
fn placement(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    if items(old, &["spec", "schedulingGates"]).is_empty() {
        return;
    }
    let (is, was) = (
        at(new, &["spec", "nodeSelector"]),
        at(old, &["spec", "nodeSelector"]),
    );
    let kept = was
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| is.get(key) == Some(value));
    if !kept {
        errors.push(Error::invalid(
            &path.child("nodeSelector"),
            is,
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        ));
    }
    const TERMS: [&str; 5] = [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let (is, was) = (items(new, &TERMS), items(old, &TERMS));
    if was.is_empty() {
        return;
    }
    let told = Path::new(TERMS.join("."));
    if is.len() != was.len() {
        errors.push(Error::invalid(
            &told,
            is,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        ));
        return;
    }
    for (index, (is, was)) in is.iter().zip(was).enumerate() {
        let kept = ["matchExpressions", "matchFields"].iter().all(|field| {
            let is = items(is, &[field]);
            items(was, &[field])
                .iter()
                .all(|requirement| is.contains(requirement))
        });
        // A term without requirements matches nothing, and so it would match more.
        let was_empty = ["matchExpressions", "matchFields"]
            .iter()
            .all(|field| items(was, &[field]).is_empty());
        if !kept || (was_empty && is != was) {
            errors.push(Error::invalid(
                &told.index(index),
                is,
                "only additions are allowed (no mutations or deletions)",
            ));
        }
    }
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

/// An update of the ephemeral containers: they are only ever added.
pub fn ephemeral(new: &Value, old: &Value) -> ErrorList {
    let path = Path::new("spec");
    let mut errors = pod_spec(at(new, &["spec"]), &path);
    if meta::annotation(old, MIRROR).is_some() {
        let mut errors = ErrorList::new();
        errors.push(Error::forbidden(
            &Path::default(),
            "static pods do not support ephemeral containers",
        ));
        return errors;
    }
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
    fn a_gated_pod_may_be_bound_to_fewer_nodes_and_no_others() {
        let mut old = old();
        old["spec"]["schedulingGates"] = json!([{"name": "a/b"}]);
        old["spec"]["nodeSelector"] = json!({"a": "b"});
        let mut new = old.clone();
        new["spec"]["nodeSelector"]["c"] = "d".into();
        new["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]}}});
        assert!(
            pod(&new, &old).is_empty(),
            "{}",
            pod(&new, &old).aggregate()
        );
        let mut other = new.clone();
        other["spec"]["nodeSelector"] = json!({"a": "z"});
        other["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"] = json!([]);
        let texts = pod(&other, &new).aggregate();
        assert!(texts.contains("spec.nodeSelector: Invalid value: {\"a\":\"z\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"), "{texts}");
        assert!(texts.contains("nodeSelectorTerms: Invalid value: []: no additions/deletions to non-empty NodeSelectorTerms list are allowed"), "{texts}");
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
