//! What an autoscaler may say (`pkg/apis/autoscaling/validation`).

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::pod_spec::affinity::label_selector;
use super::super::tree::at;

/// Bounds of a scaling policy (seconds).
const MAX_PERIOD: i64 = 1800;
const MAX_WINDOW: i64 = 3600;
/// Type of a metric and the member that tells about it.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("External", "external"),
    ("ContainerResource", "containerResource"),
];
const TYPES: [&str; 5] = [
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];

/// `validateHorizontalPodAutoscalerSpec`.
pub fn autoscaler(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let (least, most) = (spec.at("minReplicas"), spec.at("maxReplicas"));
    if least.int().is_some_and(|least| least < 1) {
        least.invalid(errors, "must be greater than or equal to 1");
    }
    let number = most.int().unwrap_or(0);
    if number < 1 {
        most.invalid_as(errors, number, "must be greater than 0");
    }
    if least.int().is_some_and(|least| number < least) {
        most.invalid_as(
            errors,
            number,
            "must be greater than or equal to `minReplicas`",
        );
    }
    reference(&spec.at("scaleTargetRef"), errors);
    let metrics = spec.at("metrics");
    for metric in metrics.items() {
        self::metric(&metric, errors);
    }
    let behavior = spec.at("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        let rules = behavior.at(direction);
        if rules.is_set() {
            scaling(&rules, errors);
        }
    }
    std::mem::take(errors)
}

/// `ValidateCrossVersionObjectReference`.
fn reference(reference: &Node<'_, '_>, errors: &mut ErrorList) {
    let version = reference.at("apiVersion");
    if version.text().split('/').count() > 2 {
        version.invalid(
            errors,
            format!("unexpected GroupVersion string: {}", version.text()),
        );
    }
    for field in ["kind", "name"] {
        reference.at(field).named(errors, name::path_segment);
    }
}

fn metric(metric: &Node<'_, '_>, errors: &mut ErrorList) {
    let kind = metric.at("type");
    if kind.text().is_empty() {
        kind.required(errors, "must specify a metric source type");
    }
    let Some((_, wanted)) = SOURCES.iter().find(|(name, _)| *name == kind.text()) else {
        kind.not_supported(errors, &TYPES);
        return;
    };
    for (_, field) in SOURCES {
        let source = metric.at(field);
        if field == *wanted {
            if source.is_set() {
                self::source(&source, field, errors);
            } else {
                source.required(
                    errors,
                    "must populate information for the given metric source",
                );
            }
        } else if source.is_set() {
            source.forbidden(errors, "must populate the given metric source only");
        }
    }
}

fn source(source: &Node<'_, '_>, kind: &str, errors: &mut ErrorList) {
    match kind {
        "resource" => {
            source
                .at("name")
                .present_or(errors, "must specify a resource name");
        }
        "containerResource" => {
            source
                .at("name")
                .present_or(errors, "must specify a resource name");
            source
                .at("container")
                .present_or(errors, "must specify a container");
        }
        _ => {
            if kind == "object" {
                reference(&source.at("describedObject"), errors);
            }
            let metric = source.at("metric");
            metric.at("name").named(errors, name::path_segment);
            let selector = metric.at("selector");
            label_selector(selector.value, &selector.path(), errors);
        }
    }
    target(&source.at("target"), kind, errors);
}

fn target(target: &Node<'_, '_>, source: &str, errors: &mut ErrorList) {
    let kind = target.at("type");
    match kind.text() {
        "" => kind.required(errors, "must specify a metric target type"),
        "AverageValue" | "Utilization" | "Value" => {}
        _ => kind.invalid(errors, "must be either Utilization, Value, or AverageValue"),
    }
    let (value, average) = (target.at("value"), target.at("averageValue"));
    for amount in [&value, &average] {
        if amount.quantity().is_some_and(|amount| amount.sign() != 1) {
            amount.invalid(errors, "must be positive");
        }
    }
    let percent = target.at("averageUtilization");
    if percent.int().is_some_and(|percent| percent < 1) {
        percent.invalid(errors, "must be greater than 0");
    }
    let (has_value, has_average) = (value.is_set(), average.is_set());
    match source {
        "resource" | "containerResource" => {
            if !percent.is_set() && !has_average {
                percent.required(
                    errors,
                    "must set either a target raw value or a target utilization",
                );
            } else if percent.is_set() && has_average {
                average.forbidden(
                    errors,
                    "may not set both a target raw value and a target utilization",
                );
            }
        }
        "pods" => {
            if !has_average {
                average.required(errors, "must specify a positive target averageValue");
            }
        }
        _ => {
            if !has_value && !has_average {
                average.required(
                    errors,
                    "must set either a target value for metric or a per-pod target",
                );
            } else if has_value && has_average && source == "external" {
                value.forbidden(
                    errors,
                    "may not set both a target value for metric and a per-pod target",
                );
            }
        }
    }
}

/// `validateScalingRules`.
fn scaling(rules: &Node<'_, '_>, errors: &mut ErrorList) {
    let window = rules.at("stabilizationWindowSeconds");
    match window.int() {
        Some(..0) => window.invalid(errors, "must be greater than or equal to zero"),
        Some(seconds) if seconds > MAX_WINDOW => {
            window.invalid(
                errors,
                format!("must be less than or equal to {MAX_WINDOW}"),
            );
        }
        _ => {}
    }
    rules
        .at("selectPolicy")
        .known_if_set(errors, &["Disabled", "Max", "Min"]);
    let policies = rules.at("policies");
    if policies.list().is_empty() {
        policies.required(errors, "must specify at least one Policy");
    }
    for policy in policies.items() {
        policy.at("type").known(errors, &["Percent", "Pods"]);
        for field in ["value", "periodSeconds"] {
            let number = policy.at(field);
            if number.int().unwrap_or(0) <= 0 {
                number.invalid_as(
                    errors,
                    number.int().unwrap_or(0),
                    "must be greater than zero",
                );
            }
        }
        let period = policy.at("periodSeconds");
        if period.int().unwrap_or(0) > MAX_PERIOD {
            period.invalid(
                errors,
                format!("must be less than or equal to {MAX_PERIOD}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        let errors = autoscaler(&json!({ "spec": spec }));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn metrics_name_one_source_with_one_target() {
        check(
            json!({"minReplicas": 2, "maxReplicas": 1, "scaleTargetRef": {"kind": "D"}, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
                {"type": "Resource", "pods": {}}, {"type": "Odd"}]}),
            &[
                "spec.maxReplicas: Invalid value: 1: must be greater than or equal to `minReplicas`",
                "spec.scaleTargetRef.name: Required value",
                "spec.metrics[1].pods: Forbidden: must populate the given metric source only",
                "spec.metrics[1].resource: Required value: must populate information for the given metric source",
                "spec.metrics[2].type: Unsupported value: \"Odd\": supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"",
            ],
        );
    }

    #[test]
    fn behaviour_has_policies_in_bounds() {
        check(
            json!({"maxReplicas": 1, "scaleTargetRef": {"kind": "D", "name": "d"}, "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 3601, "policies": [{"type": "Pods", "value": 0, "periodSeconds": 1801}]},
                "scaleDown": {}}}),
            &[
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600",
                "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
                "spec.behavior.scaleDown.policies: Required value: must specify at least one Policy",
            ],
        );
    }
}
