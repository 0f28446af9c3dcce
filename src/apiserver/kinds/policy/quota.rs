//! ResourceQuotas and LimitRanges: which resources they may name, and that bounds do not cross.

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name};

use super::super::check::{IMMUTABLE, Node};
use super::super::tree::{at, items, items_mut, object_mut, text};
use crate::registry::strategy::{Change, Strategy};

/// Resources that a quota may name without a domain.
const QUOTA_RESOURCES: [&str; 19] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Those that are counted.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
const POD_COMPUTE: [&str; 7] = [
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "pods",
    "requests.cpu",
    "requests.memory",
];
const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// Whether a quota knows this resource (`IsStandardQuotaResourceName`).
fn is_standard(resource: &str) -> bool {
    QUOTA_RESOURCES.contains(&resource)
        || resource
            .strip_prefix("requests.")
            .unwrap_or(resource)
            .starts_with("hugepages-")
}

/// Whether a resource outside `kubernetes.io` that is counted whole (`IsExtendedResourceName`).
fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.")
}

/// Whether a scope means anything for a resource (`IsResourceQuotaScopeValidForResource`).
fn scope_fits(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => POD_COMPUTE.contains(&resource),
    }
}

pub struct ResourceQuotas;

impl Strategy for ResourceQuotas {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "resourcequotas")
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        quota(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return quota_status(new);
        }
        let mut errors = quota(new);
        if sorted(new) != sorted(old) {
            Node::root(at(new, &["spec", "scopes"]), "spec.scopes").invalid(&mut errors, IMMUTABLE);
        }
        errors
    }
}

fn sorted(quota: &Value) -> Vec<&str> {
    let mut scopes: Vec<&str> = items(quota, &["spec", "scopes"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    scopes.sort_unstable();
    scopes
}

fn quota(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    amounts(&spec.at("hard"), &mut errors);
    let hard: Vec<&str> = spec
        .value
        .get("hard")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(resource, _)| resource.as_str())
        .filter(|resource| is_standard(resource))
        .collect();
    scopes(&spec, &hard, &mut errors);
    scope_selector(&spec, &hard, &mut errors);
    errors
}

fn quota_status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(object, &["status"]), "status");
    for field in ["hard", "used"] {
        amounts(&status.at(field), &mut errors);
    }
    errors
}

fn amounts(map: &Node<'_, '_>, errors: &mut ErrorList) {
    for (resource, amount) in map.entries() {
        let wrong = name::qualified_name(resource);
        if wrong.is_empty() && !resource.contains('/') && !is_standard(resource) {
            amount.invalid_as(errors, resource, "must be a standard resource for quota");
        }
        for why in wrong {
            amount.invalid_as(errors, resource, why);
        }
        amount.amount(errors);
        let whole = amount.quantity().is_none_or(|amount| amount.is_whole());
        if (COUNTED.contains(&resource) || is_extended(resource)) && !whole {
            amount.invalid(errors, "must be an integer");
        }
    }
}

fn scopes(spec: &Node<'_, '_>, hard: &[&str], errors: &mut ErrorList) {
    let scopes = spec.at("scopes");
    let list: Vec<&str> = scopes.list().iter().filter_map(Value::as_str).collect();
    for scope in &list {
        if !SCOPES.contains(scope) {
            scopes.invalid(errors, "unsupported scope");
        }
        if hard.iter().any(|resource| !scope_fits(scope, resource)) {
            scopes.invalid(errors, "unsupported scope applied to resource");
        }
    }
    for (one, other) in [
        ("BestEffort", "NotBestEffort"),
        ("Terminating", "NotTerminating"),
    ] {
        if list.contains(&one) && list.contains(&other) {
            scopes.invalid(errors, "conflicting scopes");
        }
    }
}

fn scope_selector(spec: &Node<'_, '_>, hard: &[&str], errors: &mut ErrorList) {
    let selector = spec.at("scopeSelector");
    let expressions = selector.at("matchExpressions");
    for expression in expressions.items() {
        let scope = expression.at("scopeName");
        if !SCOPES.contains(&scope.text()) {
            scope.invalid_as(errors, scope.text(), "unsupported scope");
        }
        if hard
            .iter()
            .any(|resource| !scope_fits(scope.text(), resource))
        {
            selector.invalid(errors, "unsupported scope applied to resource");
        }
        let operator = expression.at("operator");
        if !matches!(scope.text(), "PriorityClass" | "VolumeAttributesClass")
            && operator.text() != "Exists"
        {
            operator.invalid_as(
                errors,
                operator.text(),
                "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        let values = expression.at("values");
        match operator.text() {
            "In" | "NotIn" if values.list().is_empty() => values.required(
                errors,
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.list().is_empty() => values.invalid(
                errors,
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => operator.invalid_as(errors, other, "not a valid selector operator"),
        }
    }
}

pub struct LimitRanges;

impl Strategy for LimitRanges {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "limitranges")
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    /// Limits follow from maxima, requests from limits or minima.
    fn default(&self, object: &mut Value) {
        for item in items_mut(object, &["spec", "limits"]) {
            if text(item, &["type"]) != "Container" {
                continue;
            }
            for (from, to) in [
                ("max", "default"),
                ("default", "defaultRequest"),
                ("min", "defaultRequest"),
            ] {
                let Some(source) = at(item, &[from]).as_object().cloned() else {
                    continue;
                };
                if source.is_empty() {
                    continue;
                }
                let target = object_mut(item, &[to]);
                for (name, amount) in source {
                    target.entry(name).or_insert(amount);
                }
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        limit_range(object)
    }
}

const LIMIT_TYPES: [&str; 3] = ["Container", "PersistentVolumeClaim", "Pod"];

fn limit_range(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    let limits = spec.at("limits");
    let mut seen: Vec<&str> = Vec::new();
    for limit in limits.items() {
        let kind = limit.at("type");
        let wrong = name::qualified_name(kind.text());
        if wrong.is_empty() && !kind.text().contains('/') && !LIMIT_TYPES.contains(&kind.text()) {
            kind.invalid(
                &mut errors,
                "must be a standard limit type or fully qualified",
            );
        }
        kind.syntax(&mut errors, |_| wrong.clone());
        if seen.contains(&kind.text()) {
            kind.duplicate(&mut errors);
        }
        seen.push(kind.text());
        match kind.text() {
            "Pod" => {
                for field in ["default", "defaultRequest"] {
                    let given = limit.at(field);
                    if !given.is_empty() {
                        given.forbidden(&mut errors, "may not be specified when `type` is 'Pod'");
                    }
                }
            }
            "PersistentVolumeClaim" => {
                let has = |field: &str| !at(limit.value, &[field, "storage"]).is_null();
                if !has("min") && !has("max") {
                    limit.at("limits").required(
                        &mut errors,
                        "either minimum or maximum storage value is required, but neither was provided",
                    );
                }
            }
            _ => {}
        }
        bounds(&limit, &mut errors);
    }
    errors
}

/// The bounds of each resource in the order they must not cross in.
fn bounds(limit: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut resources: Vec<&str> = [
        "max",
        "min",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
    ]
    .iter()
    .filter_map(|field| limit.value.get(field)?.as_object())
    .flatten()
    .map(|(resource, _)| resource.as_str())
    .collect();
    resources.sort_unstable();
    resources.dedup();
    for resource in resources {
        let of = |field: &str| {
            let map = limit.at(field);
            let amount = map.at(resource);
            amount
                .quantity()
                .map(|quantity| (quantity, map.path().key(resource)))
        };
        let mut crossed = |low: &str, high: &str, told: &str, texts: (&str, &str)| {
            let (Some((least, least_path)), Some((most, most_path))) = (of(low), of(high)) else {
                return;
            };
            if least > most {
                let path = if told == low { least_path } else { most_path };
                let shown = if told == low { &least } else { &most };
                let why = format!(
                    "{} value {least} is greater than {} value {most}",
                    texts.0, texts.1
                );
                errors.push(Error::invalid(&path, shown.to_string(), why));
            }
        };
        crossed("min", "max", "min", ("min", "max"));
        crossed(
            "min",
            "defaultRequest",
            "defaultRequest",
            ("min", "default request"),
        );
        crossed(
            "defaultRequest",
            "max",
            "defaultRequest",
            ("default request", "max"),
        );
        crossed(
            "defaultRequest",
            "default",
            "defaultRequest",
            ("default request", "default limit"),
        );
        crossed("min", "default", "default", ("min", "default"));
        crossed("default", "max", "default", ("default", "max"));
        if let Some((ratio, path)) = of("maxLimitRequestRatio")
            && ratio.as_f64() < 1.0
        {
            let why = format!("ratio {ratio} is less than 1");
            errors.push(Error::invalid(&path, ratio.to_string(), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn quotas_name_known_resources_in_whole_numbers_where_counted() {
        check(
            quota(
                &json!({"spec": {"hard": {"cpu": "100m", "pods": "3", "count/jobs.batch": "1",
                "requests.nvidia.com/gpu": "2", "hugepages-2Mi": "1Gi"}}}),
            ),
            &[],
        );
        check(
            quota(&json!({"spec": {"hard": {"cores": "1", "pods": "1500m", "cpu": "-1"}}})),
            &[
                "spec.hard[cores]: Invalid value: \"cores\": must be a standard resource for quota",
                "spec.hard[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
            ],
        );
    }

    #[test]
    fn scopes_fit_each_other_and_the_resources() {
        check(
            quota(
                &json!({"spec": {"hard": {"cpu": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}}),
            ),
            &[
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: unsupported scope applied to resource",
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
            ],
        );
        check(
            quota(&json!({"spec": {"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In"}, {"scopeName": "x", "operator": "Exists"}]}}})),
            &[
                "spec.scopeSelector.matchExpressions[0].values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                "spec.scopeSelector.matchExpressions[1].scopeName: Invalid value: \"x\": unsupported scope",
            ],
        );
    }

    #[test]
    fn bounds_of_a_range_do_not_cross() {
        check(
            limit_range(&json!({"spec": {"limits": [
                {"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}},
                {"type": "Pod", "default": {"cpu": "1"}},
                {"type": "PersistentVolumeClaim"},
                {"type": "Pod"}, {"type": "Box"}]}})),
            &[
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
                "spec.limits[1].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[2].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
                "spec.limits[3].type: Duplicate value: \"Pod\"",
                "spec.limits[4].type: Invalid value: \"Box\": must be a standard limit type or fully qualified",
            ],
        );
    }
}
