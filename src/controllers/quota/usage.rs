//! What objects use of a quota's resources, and which objects a quota's scopes take in. Pure.

use std::time::Duration;

use apimachinery::{
    Value,
    quantity::{Format, Quantity},
    time::{Time, parse},
};

use super::Scope;
use crate::{
    objects::Pod,
    pod_resources::{self, Amounts, Side},
    storage::view::Claim,
};

fn one() -> Quantity {
    Quantity::from_units(1, Format::DecimalSi)
}

/// Whether a pod still uses anything but its place in the store: it has not ended, and its deletion is not overdue.
fn counts(pod: &Pod, now: Time) -> bool {
    if pod.is_terminal() {
        return false;
    }
    let deleted = pod.metadata.deletion_timestamp.as_deref().and_then(parse);
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    deleted.is_none_or(|at| now <= at + grace)
}

pub fn of_pod(pod: &Pod, now: Time) -> Amounts {
    let mut used = Amounts::from([("count/pods".to_string(), one())]);
    if !counts(pod, now) {
        return used;
    }
    used.insert("pods".into(), one());
    for (name, amount) in pod_resources::of_pod(pod, Side::Requests) {
        let compute = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if compute || name.starts_with("hugepages-") {
            used.insert(name.clone(), amount);
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in pod_resources::of_pod(pod, Side::Limits) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount);
        }
    }
    used
}

pub fn of_claim(claim: &Claim) -> Amounts {
    let mut used = Amounts::from([
        ("count/persistentvolumeclaims".to_string(), one()),
        ("persistentvolumeclaims".to_string(), one()),
    ]);
    let class = claim.class();
    let of_class = |name: &str| format!("{class}.storageclass.storage.k8s.io/{name}");
    if !class.is_empty() {
        used.insert(of_class("persistentvolumeclaims"), one());
    }
    if let Some(request) = claim.request() {
        used.insert("requests.storage".into(), request);
        if !class.is_empty() {
            used.insert(of_class("requests.storage"), request);
        }
    }
    used
}

/// A Service's use; `spec` as it is stored.
pub fn of_service(spec: &Value) -> Amounts {
    let mut used = Amounts::from([
        ("count/services".to_string(), one()),
        ("services".to_string(), one()),
    ]);
    let ports = spec["ports"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let count = |number: usize| {
        Quantity::from_units(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi)
    };
    match spec["type"].as_str() {
        Some("NodePort") => {
            used.insert("services.nodeports".into(), count(ports.len()));
        }
        Some("LoadBalancer") => {
            used.insert("services.loadbalancers".into(), one());
            let allocates = spec["allocateLoadBalancerNodePorts"] != false;
            let taken = ports
                .iter()
                .filter(|port| allocates || port["nodePort"].as_i64().unwrap_or(0) > 0);
            used.insert("services.nodeports".into(), count(taken.count()));
        }
        _ => {}
    }
    used
}

/// Whether all of a quota's scopes take the pod in.
pub fn takes_pod(scopes: &[Scope], pod: &Pod) -> bool {
    scopes.iter().all(|scope| {
        let spec = &pod.spec;
        let terminating = spec
            .active_deadline_seconds
            .is_some_and(|seconds| seconds >= 0);
        match scope.name.as_str() {
            "Terminating" => terminating,
            "NotTerminating" => !terminating,
            "BestEffort" => pod_resources::is_best_effort(pod),
            "NotBestEffort" => !pod_resources::is_best_effort(pod),
            "PriorityClass" => scope.takes(&spec.priority_class_name),
            "CrossNamespacePodAffinity" => crosses_namespaces(pod),
            _ => false,
        }
    })
}

/// Whether all of a quota's scopes take the claim in.
pub fn takes_claim(scopes: &[Scope], claim: &Claim) -> bool {
    scopes.iter().all(|scope| {
        let class = claim
            .spec
            .volume_attributes_class_name
            .as_deref()
            .unwrap_or("");
        scope.name == "VolumeAttributesClass" && scope.takes(class)
    })
}

/// Whether its affinity to pods names namespaces, or selects them.
fn crosses_namespaces(pod: &Pod) -> bool {
    let affinity = &pod.spec.affinity;
    [&affinity.pod_affinity, &affinity.pod_anti_affinity]
        .into_iter()
        .any(|rules| {
            let terms = |field: &str| rules[field].as_array().cloned().unwrap_or_default();
            let required = terms("requiredDuringSchedulingIgnoredDuringExecution");
            let preferred = terms("preferredDuringSchedulingIgnoredDuringExecution")
                .into_iter()
                .map(|weighted| weighted["podAffinityTerm"].clone());
            required.into_iter().chain(preferred).any(|term| {
                term["namespaceSelector"].is_object()
                    || term["namespaces"]
                        .as_array()
                        .is_some_and(|all| !all.is_empty())
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::time::now;
    use serde_json::json;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn text(used: &Amounts) -> Vec<String> {
        used.iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect()
    }

    #[test]
    fn pods_use_what_they_ask_for_until_they_end() {
        let mut value = json!({"spec": {"containers": [{"resources": {
            "requests": {"cpu": "1", "example.com/gpu": "2"}, "limits": {"cpu": "2"}}}]}});
        assert_eq!(
            text(&of_pod(&pod(value.clone()), now())),
            [
                "count/pods=1",
                "cpu=1",
                "limits.cpu=2",
                "pods=1",
                "requests.cpu=1",
                "requests.example.com/gpu=2"
            ]
        );
        value["status"] = json!({"phase": "Succeeded"});
        assert_eq!(text(&of_pod(&pod(value.clone()), now())), ["count/pods=1"]);
        value["status"] = json!({});
        value["metadata"] =
            json!({"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        assert_eq!(text(&of_pod(&pod(value), now())), ["count/pods=1"]);
    }

    #[test]
    fn claims_and_services_use_by_class_and_type() {
        let claim: Claim = serde_json::from_value(json!({"spec": {"storageClassName": "fast",
            "resources": {"requests": {"storage": "5Gi"}}}}))
        .unwrap();
        let used = of_claim(&claim);
        assert_eq!(
            used["fast.storageclass.storage.k8s.io/requests.storage"].to_string(),
            "5Gi"
        );
        assert_eq!(used.len(), 5);
        let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30000}]);
        let used = |kind: &str, allocate: bool| {
            let spec =
                json!({"type": kind, "ports": ports, "allocateLoadBalancerNodePorts": allocate});
            text(&of_service(&spec)).join(" ")
        };
        assert_eq!(used("ClusterIP", true), "count/services=1 services=1");
        assert_eq!(
            used("NodePort", true),
            "count/services=1 services=1 services.nodeports=2"
        );
        assert_eq!(
            used("LoadBalancer", false),
            "count/services=1 services=1 services.loadbalancers=1 services.nodeports=1"
        );
    }

    #[test]
    fn scopes_take_in_the_pods_they_name() {
        let scope = |name: &str, operator: &str, values: &[&str]| Scope {
            name: name.into(),
            operator: operator.into(),
            values: values.iter().map(ToString::to_string).collect(),
        };
        let urgent =
            pod(json!({"spec": {"priorityClassName": "high", "activeDeadlineSeconds": 5}}));
        for (scope, expected) in [
            (scope("Terminating", "Exists", &[]), true),
            (scope("NotTerminating", "Exists", &[]), false),
            (scope("BestEffort", "Exists", &[]), true),
            (scope("PriorityClass", "In", &["high"]), true),
            (scope("PriorityClass", "NotIn", &["high"]), false),
            (scope("PriorityClass", "Exists", &[]), true),
            (scope("CrossNamespacePodAffinity", "Exists", &[]), false),
        ] {
            assert_eq!(
                takes_pod(std::slice::from_ref(&scope), &urgent),
                expected,
                "{scope:?}"
            );
        }
        let crossing = pod(json!({"spec": {"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["x"]}]}}}}));
        assert!(takes_pod(
            &[scope("CrossNamespacePodAffinity", "Exists", &[])],
            &crossing
        ));
    }
}
