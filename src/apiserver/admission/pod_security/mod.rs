//! PodSecurity (KEP-2579): what pods may do in a namespace, by the namespace's labels.
//!
//! `enforce` refuses pods; `warn` tells the author of a pod or of a workload's template. The checks of a level are in
//! `checks`; a level's version is told, and every version holds pods to the newest checks.

mod checks;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::pod_spec::TEMPLATES;
use crate::kinds::tree::{at, items, semantically_equal};

const PREFIX: &str = "pod-security.kubernetes.io/";
const LEVELS: [&str; 3] = ["privileged", "baseline", "restricted"];
/// Pods looked at when a namespace's level is raised (upstream's `namespaceMaxPodsToCheck`).
const MAX_CHECKED: usize = 3000;
/// Lines told of them.
const MAX_TOLD: usize = 10;

/// How strict, and how the version is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy<'a> {
    level: &'a str,
    version: &'a str,
}

impl<'a> Policy<'a> {
    fn of(namespace: &'a Value, mode: &str) -> Self {
        let label = |name: &str| meta::label(namespace, &format!("{PREFIX}{name}")).unwrap_or("");
        // Who is held to a level is warned by it, unless told otherwise.
        let mode = match mode {
            "warn" if label("warn").is_empty() => "enforce",
            mode => mode,
        };
        let level = match label(mode) {
            known if LEVELS.contains(&known) => known,
            "" => "privileged",
            // What cannot be read is taken for the strictest where it is enforced, and is not told of elsewhere.
            _ if mode == "enforce" => "restricted",
            _ => "privileged",
        };
        let version = match label(&format!("{mode}-version")) {
            "" => "latest",
            version => version,
        };
        Self { level, version }
    }

    fn is_open(&self) -> bool {
        self.level == "privileged"
    }

    /// `restricted:latest`.
    fn text(&self) -> String {
        format!("{}:{}", self.level, self.version)
    }

    /// What a pod does that it may not, in upstream's words.
    fn violations(&self, pod: &Value) -> Vec<String> {
        match self.level {
            "baseline" => checks::baseline(pod, false),
            "restricted" => checks::restricted(pod),
            _ => Vec::new(),
        }
    }
}

pub struct PodSecurity;

fn template_path(attributes: &Attributes<'_>) -> Option<&'static [&'static str]> {
    let resource = attributes.resource;
    TEMPLATES
        .iter()
        .find(|(group, plural, _)| *group == resource.group && *plural == resource.plural)
        .map(|(_, _, path)| *path)
}

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        if !matches!(attributes.operation, Operation::Create | Operation::Update) {
            return false;
        }
        let is_pod = attributes.resource.group.is_empty()
            && attributes.resource.plural == "pods"
            && matches!(attributes.subresource, "" | "ephemeralcontainers");
        is_pod
            || attributes.is_core("namespaces")
            || (attributes.subresource.is_empty() && template_path(attributes).is_some())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if attributes.is_core("namespaces") {
            return namespace(attributes, object).await;
        }
        if meta::is_deleting(object) {
            return Ok(());
        }
        let namespace = attributes
            .registry
            .namespace_marked(attributes.namespace, PREFIX)
            .await?;
        let Some(namespace) = namespace else {
            return Ok(());
        };
        match template_path(attributes) {
            Some(path) => template(attributes, &namespace, at(object, path), path),
            None => pod(attributes, &namespace, object)?,
        }
        Ok(())
    }
}

/// Whether an update changes what checks look at.
fn is_significant(attributes: &Attributes<'_>, pod: &Value) -> bool {
    let Some(old) = attributes.old else {
        return true;
    };
    let same = |list: &str| semantically_equal(at(pod, &["spec", list]), at(old, &["spec", list]));
    !(same("containers")
        && same("initContainers")
        && same("ephemeralContainers")
        && semantically_equal(
            at(pod, &["metadata", "annotations"]),
            at(old, &["metadata", "annotations"]),
        ))
}

fn pod(attributes: &Attributes<'_>, namespace: &Value, pod: &Value) -> Result<(), Status> {
    if !is_significant(attributes, pod) {
        return Ok(());
    }
    let enforced = Policy::of(namespace, "enforce");
    if !enforced.is_open() {
        let found = enforced.violations(pod);
        if !found.is_empty() {
            let text = enforced.text();
            return Err(attributes.forbidden(&format!(
                "violates PodSecurity {text:?}: {}",
                found.join(", ")
            )));
        }
    }
    warn(attributes, namespace, pod);
    Ok(())
}

fn template(attributes: &Attributes<'_>, namespace: &Value, template: &Value, path: &[&str]) {
    let unchanged = attributes
        .old
        .is_some_and(|old| semantically_equal(at(old, path), template));
    if !unchanged && template.is_object() {
        warn(attributes, namespace, template);
    }
}

fn warn(attributes: &Attributes<'_>, namespace: &Value, pod: &Value) {
    let policy = Policy::of(namespace, "warn");
    if policy.is_open() {
        return;
    }
    let found = policy.violations(pod);
    if !found.is_empty() {
        let text = policy.text();
        attributes.request.warnings.add(format!(
            "would violate PodSecurity {text:?}: {}",
            found.join(", ")
        ));
    }
}

/// Labels must be readable; raising the enforced level tells of pods that would not be let in any more.
async fn namespace(attributes: &Attributes<'_>, namespace: &Value) -> Result<(), Status> {
    let errors = label_errors(namespace);
    if !errors.is_empty() {
        let unchanged = attributes
            .old
            .is_some_and(|old| label_errors(old) == errors);
        if !unchanged {
            return Err(Status::invalid(
                "",
                "Namespace",
                meta::name(namespace),
                errors,
            ));
        }
    }
    let Some(old) = attributes.old else {
        return Ok(());
    };
    let (new, was) = (Policy::of(namespace, "enforce"), Policy::of(old, "enforce"));
    if new.is_open() || new == was {
        return Ok(());
    }
    let name = meta::name(namespace);
    let pods = attributes.registry.all_values("", "pods").await?;
    let mut told = existing(new, pods.iter().filter(|pod| meta::namespace(pod) == name));
    if told.is_empty() {
        return Ok(());
    }
    attributes.request.warnings.add(format!(
        "existing pods in namespace {name:?} violate the new PodSecurity enforce level {:?}",
        new.text()
    ));
    told.truncate(MAX_TOLD);
    for line in told {
        attributes.request.warnings.add(line);
    }
    Ok(())
}

/// Lines like `name (and 2 other pods): why`, grouped by what is wrong.
fn existing<'a>(policy: Policy<'_>, pods: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let mut groups: Vec<(String, &str, usize)> = Vec::new();
    for pod in pods.take(MAX_CHECKED) {
        let found = policy.violations(pod);
        if found.is_empty() {
            continue;
        }
        // Without the details in brackets, as many pods differ in them only.
        let reasons: Vec<&str> = found
            .iter()
            .map(|text| text.split(" (").next().unwrap_or(text))
            .collect();
        let why = reasons.join(", ");
        match groups.iter_mut().find(|(known, _, _)| *known == why) {
            Some((_, _, count)) => *count += 1,
            None => groups.push((why, meta::name(pod), 0)),
        }
    }
    groups
        .into_iter()
        .map(|(why, name, others)| match others {
            0 => format!("{name}: {why}"),
            1 => format!("{name} (and 1 other pod): {why}"),
            many => format!("{name} (and {many} other pods): {why}"),
        })
        .collect()
}

fn label_errors(namespace: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata").child("labels");
    for mode in ["enforce", "audit", "warn"] {
        let level = format!("{PREFIX}{mode}");
        if let Some(value) = meta::label(namespace, &level)
            && !LEVELS.contains(&value)
        {
            errors.push(Error::invalid(
                &path.key(&level),
                value,
                format!("must be one of {}", LEVELS.join(", ")),
            ));
        }
        let version = format!("{PREFIX}{mode}-version");
        if let Some(value) = meta::label(namespace, &version)
            && !is_version(value)
        {
            errors.push(Error::invalid(
                &path.key(&version),
                value,
                "must be \"latest\" or \"v1.x\"",
            ));
        }
    }
    errors
}

fn is_version(text: &str) -> bool {
    text == "latest"
        || text.strip_prefix("v1.").is_some_and(|minor| {
            !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// All containers in the order checks visit them.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(move |list| items(pod, &["spec", list]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn levels_are_read_from_labels() {
        let namespace = json!({"metadata": {"name": "n", "labels": {
            "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.30",
            "pod-security.kubernetes.io/warn": "odd", "pod-security.kubernetes.io/audit-version": "2"}}});
        assert_eq!(Policy::of(&namespace, "enforce").text(), "baseline:v1.30");
        assert!(Policy::of(&namespace, "warn").is_open());
        let held =
            json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
        assert_eq!(Policy::of(&held, "warn").text(), "baseline:latest");
        assert!(Policy::of(&namespace, "audit").is_open());
        let texts: Vec<String> = label_errors(&namespace)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            texts,
            [
                "metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: \"2\": must be \"latest\" or \"v1.x\"",
                "metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"odd\": must be one of privileged, baseline, restricted",
            ]
        );
    }

    #[test]
    fn pods_that_are_there_are_told_of_in_groups() {
        let policy = Policy {
            level: "baseline",
            version: "latest",
        };
        let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"hostNetwork": true}});
        let pods = [pod("a"), pod("b"), json!({"metadata": {"name": "c"}})];
        assert_eq!(
            existing(policy, pods.iter()),
            ["a (and 1 other pod): host namespaces"]
        );
    }
}
