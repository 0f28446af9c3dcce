//! What jobs may say (`pkg/apis/batch/validation`).

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::selector::LabelSelector;
use apimachinery::{Value, name};

use super::super::apps::{no_ephemeral, template_metadata};
use super::super::check::{IMMUTABLE, Node};
use super::super::pod_spec::affinity::label_selector;
use super::super::pod_spec::validation::pod_spec;
use super::super::tree::{at, flag, has, int, items, semantically_equal, text};

/// Most pods at a time of a job that numbers them.
const MAX_INDEXED_PARALLELISM: i64 = 100_000;
/// Bounds of policies.
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// `validateJobSpec`.
pub fn job(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        spec.at(field).nonnegative(errors);
    }
    let per_index = spec.at("backoffLimitPerIndex");
    let failed = spec.at("maxFailedIndexes");
    if failed.is_set() && !per_index.is_set() {
        per_index.required(errors, "when maxFailedIndexes is specified");
    }
    completion(spec, errors);
    let replacement = spec.at("podReplacementPolicy");
    if has(spec.value, &["podFailurePolicy"]) {
        replacement.known_if_set(errors, &["Failed"]);
        failure_policy(spec, errors);
    } else {
        replacement.known_if_set(errors, &["Failed", "TerminatingOrFailed"]);
    }
    success_policy(spec, errors);
    let manager = spec.at("managedBy");
    if manager.is_set() && !manager.text().contains('/') {
        manager.invalid(
            errors,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        );
    }
    template(spec, errors);
}

fn completion(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let mode = spec.at("completionMode");
    mode.known_if_set(errors, &["Indexed", "NonIndexed"]);
    if mode.text() == "Indexed" {
        let completions = spec.at("completions");
        if !completions.is_set() {
            completions.required(errors, "when completion mode is Indexed");
        }
        for field in ["parallelism", "maxFailedIndexes"] {
            let value = spec.at(field);
            if value.int().unwrap_or(0) > MAX_INDEXED_PARALLELISM {
                value.invalid(
                    errors,
                    format!(
                        "must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
                    ),
                );
            }
        }
        let failed = spec.at("maxFailedIndexes");
        if failed.int() > completions.int() && completions.is_set() {
            failed.invalid(errors, "must be less than or equal to completions");
        }
    } else {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            let value = spec.at(field);
            if value.is_set() {
                value.invalid(errors, "requires indexed completion mode");
            }
        }
    }
}

fn template(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let template = spec.at("template");
    template_metadata(template.value, &template.path(), errors);
    let pod = template.at("spec");
    errors.extend(pod_spec(pod.value, &pod.path()));
    no_ephemeral(template.value, &template.path(), errors);
    let policy = pod.at("restartPolicy");
    match policy.text() {
        "Never" | "OnFailure" => {}
        "Always" | "" => {
            policy.required(errors, "valid values: \"OnFailure\", \"Never\"");
        }
        _ => policy.not_supported(errors, &["OnFailure", "Never"]),
    }
    if has(spec.value, &["podFailurePolicy"]) && policy.text() != "Never" {
        policy.invalid(
            errors,
            "only \"Never\" is supported when podFailurePolicy is specified",
        );
    }
}

/// `validatePodFailurePolicy`.
fn failure_policy(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let pod = at(spec.value, &["template", "spec"]);
    let containers: Vec<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(pod, &[list]))
        .map(|container| text(container, &["name"]))
        .collect();
    let policy = spec.at("podFailurePolicy");
    let rules = policy.at("rules");
    let count = rules.list().len();
    if count > MAX_RULES {
        errors.push(Error::too_many(&rules.path(), count, MAX_RULES));
    }
    for rule in rules.items() {
        let action = rule.at("action");
        match action.text() {
            "" => action.required(
                errors,
                "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
            ),
            "FailIndex" if !has(spec.value, &["backoffLimitPerIndex"]) => {
                action.invalid(errors, "requires the backoffLimitPerIndex to be set");
            }
            _ => action.known(errors, &["Count", "FailIndex", "FailJob", "Ignore"]),
        }
        let (codes, conditions) = (rule.at("onExitCodes"), rule.at("onPodConditions"));
        match (codes.is_set(), conditions.list().is_empty()) {
            (true, false) => rule.invalid(
                errors,
                "specifying both OnExitCodes and OnPodConditions is not supported",
            ),
            (false, true) => rule.invalid(
                errors,
                "specifying one of OnExitCodes and OnPodConditions is required",
            ),
            _ => {}
        }
        if codes.is_set() {
            exit_codes(&codes, &containers, errors);
        }
        for condition in conditions.items() {
            condition
                .at("status")
                .one_of(errors, &["False", "True", "Unknown"]);
            condition
                .at("type")
                .syntax(errors, apimachinery::name::qualified_name);
        }
    }
}

fn exit_codes(codes: &Node<'_, '_>, containers: &[&str], errors: &mut ErrorList) {
    let (operator, container) = (codes.at("operator"), codes.at("containerName"));
    operator.one_of(errors, &["In", "NotIn"]);
    if container.is_set() && !containers.contains(&container.text()) {
        container.invalid(
            errors,
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let values = codes.at("values");
    let count = values.list().len();
    if count == 0 {
        values.invalid(errors, "at least one value is required");
    } else if count > MAX_EXIT_CODES {
        errors.push(Error::too_many(&values.path(), count, MAX_EXIT_CODES));
    }
    let mut ordered = true;
    for (index, value) in values.items().enumerate() {
        let number = value.int().unwrap_or(0);
        if number == 0 && operator.text() == "In" {
            value.invalid(errors, "must not be 0 for the In operator");
        }
        if values.list()[..index].contains(value.value) {
            value.duplicate(errors);
        }
        ordered &= index == 0
            || values.list()[index - 1]
                .as_i64()
                .is_none_or(|before| before <= number);
    }
    if !ordered {
        values.invalid(errors, "must be ordered");
    }
}

/// `validateSuccessPolicy`.
fn success_policy(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let policy = spec.at("successPolicy");
    if !policy.is_set() {
        return;
    }
    if spec.at("completionMode").text() != "Indexed" {
        policy.invalid(errors, "requires indexed completion mode");
        return;
    }
    let rules = policy.at("rules");
    if rules.list().is_empty() {
        rules.required(
            errors,
            "at least one rules must be specified when the successPolicy is specified",
        );
    }
    if rules.list().len() > MAX_RULES {
        errors.push(Error::too_many(
            &rules.path(),
            rules.list().len(),
            MAX_RULES,
        ));
    }
    for rule in rules.items() {
        let (indexes, count) = (rule.at("succeededIndexes"), rule.at("succeededCount"));
        if !indexes.is_set() && !count.is_set() {
            rule.required(
                errors,
                "at least one of succeededCount or succeededIndexes must be specified",
            );
        }
        count.nonnegative(errors);
        let completions = int(spec.value, &["completions"]).unwrap_or(0);
        if count.int().unwrap_or(0) > completions {
            count.invalid(
                errors,
                format!("must be less than or equal to {completions} (the number of specified completions)"),
            );
        }
    }
}

/// A job's selector selects its own pods only (`ValidateGeneratedSelector`, `ValidateJob`).
pub fn selector(object: &Value, errors: &mut ErrorList) {
    let spec = Node::root(at(object, &["spec"]), "spec");
    let selector = spec.at("selector");
    let template = spec.at("template");
    let metadata = template.at("metadata");
    let labels = metadata.at("labels");
    let manual = flag(spec.value, &["manualSelector"]);
    // No selector matches nothing.
    let mut matches = false;
    if selector.is_set() {
        label_selector(selector.value, &selector.path(), errors);
        matches = LabelSelector::from_value(selector.value)
            .map_or(true, |parsed| parsed.matches(labels.value));
    } else {
        selector.required(errors, "");
    }
    if !matches {
        labels.invalid(errors, "`selector` does not match template `labels`");
    }
    let uid = apimachinery::meta::uid(object);
    if manual || uid.is_empty() || !selector.is_set() {
        return;
    }
    // A selector of one's own would adopt the pods of others.
    let own = ["batch.kubernetes.io/controller-uid", "controller-uid"]
        .iter()
        .any(|key| text(selector.value, &["matchLabels", key]) == uid);
    if !own {
        selector.invalid(errors, "`selector` not auto-generated");
    }
}

/// `ValidateJobSpecUpdate`.
pub fn update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let spec = Node::root(at(new, &["spec"]), "spec");
    let was = at(old, &["spec"]);
    completions(&spec, was, errors);
    for field in [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        spec.at(field).unchanged(errors, at(was, &[field]));
    }
    let (is_template, was_template) = (spec.at("template"), at(was, &["template"]));
    if semantically_equal(is_template.value, was_template) {
        return;
    }
    // Where pods of a job that has not started go may be decided late.
    let suspended = flag(was, &["suspend"]) && !has(old, &["status", "startTime"]);
    if !suspended || !same_but_placement(is_template.value, was_template) {
        is_template.invalid(errors, IMMUTABLE);
    }
}

/// Pods of an indexed job are called after it and their index, and that is a host's name.
pub fn hostname(job: &Value, errors: &mut ErrorList) {
    let completions = at(job, &["spec", "completions"]).as_i64().unwrap_or(0);
    if text(job, &["spec", "completionMode"]) != "Indexed" || completions <= 0 {
        return;
    }
    let called = text(job, &["metadata", "name"]);
    let host = format!("{called}-{}", completions - 1);
    if !name::dns_1123_label(&host).is_empty() {
        errors.push(Error::invalid(
            &Path::new("metadata").child("name"),
            called,
            format!("will not able to create pod with invalid DNS label: {host}"),
        ));
    }
}

fn completions(spec: &Node<'_, '_>, was: &Value, errors: &mut ErrorList) {
    let (is, old) = (spec.at("completions"), at(was, &["completions"]));
    if semantically_equal(is.value, old) {
        return;
    }
    let elastic = spec.at("completionMode").text() == "Indexed" && is.is_set() && !old.is_null();
    if !elastic {
        is.invalid(errors, IMMUTABLE);
    } else if is.int() != spec.at("parallelism").int() {
        is.invalid(
            errors,
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

/// Whether two templates differ at most in labels, annotations and where pods may go.
fn same_but_placement(new: &Value, old: &Value) -> bool {
    const PLACEMENT: [&str; 4] = ["affinity", "nodeSelector", "schedulingGates", "tolerations"];
    let same = |field: &str, but: &[&str]| {
        let (new, old) = (at(new, &[field]), at(old, &[field]));
        let keys = |value: &Value| -> Vec<String> {
            value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect()
        };
        keys(new)
            .iter()
            .chain(&keys(old))
            .filter(|key| !but.contains(&key.as_str()))
            .all(|key| semantically_equal(at(new, &[key]), at(old, &[key])))
    };
    same("spec", &PLACEMENT) && same("metadata", &["labels", "annotations"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> Value {
        json!({"parallelism": 1, "completions": 1, "completionMode": "NonIndexed", "backoffLimit": 6,
            "template": {"spec": {"restartPolicy": "Never", "dnsPolicy": "ClusterFirst", "containers": [{"name": "c", "image": "i",
                "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]}}})
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expect: &[&str]) {
        let mut spec = spec();
        change(&mut spec);
        let mut errors = ErrorList::new();
        job(&Node::root(&spec, "spec"), &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn modes_and_policies_fit_together() {
        check(|_| {}, &[]);
        check(
            |spec| {
                spec["maxFailedIndexes"] = 1.into();
                spec["template"]["spec"]["restartPolicy"] = "Always".into();
            },
            &[
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
                "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ],
        );
        check(
            |spec| {
                spec["podFailurePolicy"] = json!({"rules": [
                    {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3, 0], "containerName": "x"}},
                    {"action": "Ignore"}]});
                spec["successPolicy"] = json!({});
            },
            &[
                "spec.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
                "spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template",
                "spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
                "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [3,0]: must be ordered",
                "spec.podFailurePolicy.rules[1]: Invalid value: {\"action\":\"Ignore\"}: specifying one of OnExitCodes and OnPodConditions is required",
                "spec.successPolicy: Invalid value: {}: requires indexed completion mode",
            ],
        );
    }

    #[test]
    fn a_template_is_fixed_but_for_placement_before_the_start() {
        let old = json!({ "spec": spec() });
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
        let mut errors = ErrorList::new();
        update(&new, &old, &mut errors);
        assert!(errors.aggregate().contains("spec.template: Invalid value"));
        let mut suspended = old.clone();
        suspended["spec"]["suspend"] = true.into();
        let mut errors = ErrorList::new();
        update(&new, &suspended, &mut errors);
        assert!(errors.is_empty(), "{}", errors.aggregate());
        new["spec"]["template"]["spec"]["containers"][0]["image"] = "j".into();
        update(&new, &suspended, &mut errors);
        assert_eq!(errors.len(), 1);
    }
}
