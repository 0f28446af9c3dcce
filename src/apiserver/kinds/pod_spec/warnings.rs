//! What a pod's author is told though the pod is taken (`pkg/api/pod/warnings.go`).

use apimachinery::quantity::Quantity;
use apimachinery::{Value, meta, name};

use super::super::check::Node;
use super::super::tree::{at, has};

/// Labels of nodes that went out of use, and what to say instead.
const OLD_LABELS: [(&str, &str); 5] = [
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
];

/// Kinds of volumes that went out of use.
const OLD_VOLUMES: [(&str, &str); 6] = [
    (
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Tells about a pod, or (`at`: `template` and the like) a template.
pub fn pod(pod: &Value, prefix: &str, texts: &mut Vec<String>) {
    let root = Node::root(pod, prefix);
    let metadata = root.at("metadata");
    annotations(&metadata.at("annotations"), texts);
    let spec = root.at("spec");
    if !spec.is_set() {
        return;
    }
    labels(&spec.at("nodeSelector"), texts);
    volumes(&spec.at("volumes"), texts);
    secrets(&spec.at("imagePullSecrets"), texts);
    let grace = spec.at("terminationGracePeriodSeconds");
    if grace.int().is_some_and(|seconds| seconds < 0) {
        texts.push(format!(
            "{}: must be >= 0; negative values are invalid and will be treated as 1",
            grace.path()
        ));
    }
    let spread = spec.at("topologySpreadConstraints");
    for constraint in spread.items() {
        for (key, why) in OLD_LABELS {
            if constraint.at("topologyKey").text() == key {
                texts.push(format!(
                    "{}: {key} is {why}",
                    constraint.at("topologyKey").path()
                ));
            }
        }
        let selector = constraint.at("labelSelector");
        if !selector.is_set() {
            texts.push(format!(
                "{}: a null labelSelector results in matching no pod",
                selector.path()
            ));
        }
    }
    for list in ["initContainers", "containers"] {
        let containers = spec.at(list);
        for container in containers.items() {
            environment(&container.at("env"), texts);
            ports(&container.at("ports"), texts);
            let resources = container.at("resources");
            for field in ["limits", "requests"] {
                fractions(&resources.at(field), texts);
            }
        }
    }
}

/// A name that cannot be a host's.
pub fn name_of_host(object: &Value, what: &str, texts: &mut Vec<String>) {
    let called = meta::name(object);
    // The common case costs nothing.
    if called.len() <= name::DNS_LABEL_MAX && !called.contains('.') {
        return;
    }
    let wrong = name::dns_1123_label(called);
    if !wrong.is_empty() {
        texts.push(format!(
            "metadata.name: this is used in {what}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            wrong.join(" ")
        ));
    }
}

fn annotations(annotations: &Node<'_, '_>, texts: &mut Vec<String>) {
    for (key, value) in annotations.entries() {
        let why = if key == "seccomp.security.alpha.kubernetes.io/pod"
            || key.starts_with("container.seccomp.security.alpha.kubernetes.io/")
        {
            "non-functional in v1.27+; use the \"seccompProfile\" field instead"
        } else if key.starts_with("container.apparmor.security.beta.kubernetes.io/") {
            "deprecated since v1.30; use the \"appArmorProfile\" field instead"
        } else {
            continue;
        };
        texts.push(format!("{}: {why}", value.path()));
    }
}

fn labels(selector: &Node<'_, '_>, texts: &mut Vec<String>) {
    for (key, why) in OLD_LABELS {
        if selector.at(key).is_set() {
            texts.push(format!("{}: {why}", selector.path().key(key)));
        }
    }
}

fn volumes(volumes: &Node<'_, '_>, texts: &mut Vec<String>) {
    for volume in volumes.items() {
        for (kind, why) in OLD_VOLUMES {
            if has(volume.value, &[kind]) {
                texts.push(format!("{}: {why}", volume.at(kind).path()));
            }
        }
    }
}

fn secrets(secrets: &Node<'_, '_>, texts: &mut Vec<String>) {
    for secret in secrets.items() {
        let called = secret.at("name");
        if called.text().is_empty() {
            texts.push(format!(
                "{}: invalid empty name {:?}",
                called.path(),
                called.text()
            ));
        }
    }
}

fn environment(env: &Node<'_, '_>, texts: &mut Vec<String>) {
    if env.list().len() < 2 {
        return;
    }
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for variable in env.items() {
        let called = variable.at("name").text();
        let value = variable.at("value").text();
        let hidden = seen
            .iter()
            .rev()
            .find(|(name, _)| *name == called)
            .is_some_and(|(_, before)| !refers_to(value, called) || before.is_empty());
        if hidden {
            texts.push(format!(
                "{}: hides previous definition of {called:?}, which may be dropped when using apply",
                variable.path()
            ));
        }
        seen.push((called, value));
    }
}

/// Whether a value builds on the variable it hides (`$(NAME)`).
fn refers_to(value: &str, name: &str) -> bool {
    value.contains(&format!("$({name})"))
}

fn ports(ports: &Node<'_, '_>, texts: &mut Vec<String>) {
    if ports.list().len() < 2 {
        return;
    }
    let key = |port: &Value| {
        let number = |field: &str| at(port, &[field]).as_i64().unwrap_or(0);
        let word = |field: &str| at(port, &[field]).as_str().unwrap_or("").to_owned();
        (
            number("containerPort"),
            number("hostPort"),
            word("protocol"),
            word("hostIP"),
        )
    };
    for (index, port) in ports.items().enumerate() {
        let same = ports.list()[..index]
            .iter()
            .position(|other| key(other) == key(port.value));
        if let Some(first) = same {
            texts.push(format!(
                "{}: duplicate port definition with {}",
                port.path(),
                ports.path().index(first)
            ));
        }
    }
}

fn fractions(amounts: &Node<'_, '_>, texts: &mut Vec<String>) {
    for resource in ["memory", "ephemeral-storage"] {
        let amount = amounts.at(resource);
        if amount
            .quantity()
            .is_some_and(|quantity: Quantity| !quantity.is_whole())
        {
            texts.push(format!(
                "{}: fractional byte value {:?} is invalid, must be an integer",
                amounts.path().key(resource),
                amount.text()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn doubtful_fields_are_told_about_one_by_one() {
        let mut texts = Vec::new();
        let object = json!({
            "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "x"}},
            "spec": {
                "nodeSelector": {"beta.kubernetes.io/os": "linux"}, "terminationGracePeriodSeconds": -1,
                "imagePullSecrets": [{}], "volumes": [{"name": "g", "gitRepo": {"repository": "r"}}],
                "topologySpreadConstraints": [{"topologyKey": "z"}],
                "containers": [{"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "x$(A)"}],
                    "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"memory": "100m"}}}]}});
        pod(&object, "", &mut texts);
        assert_eq!(
            texts,
            [
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the \"appArmorProfile\" field instead",
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
                "spec.imagePullSecrets[0].name: invalid empty name \"\"",
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
                "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            ]
        );
    }

    #[test]
    fn names_with_dots_make_odd_hosts() {
        let mut texts = Vec::new();
        name_of_host(&json!({"metadata": {"name": "plain"}}), "x", &mut texts);
        assert!(texts.is_empty());
        name_of_host(
            &json!({"metadata": {"name": "a.b"}}),
            "the Pod's hostname",
            &mut texts,
        );
        assert!(texts[0].starts_with("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [a lowercase"));
    }
}
