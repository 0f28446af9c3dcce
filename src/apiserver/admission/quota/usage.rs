//! What an object uses of the things quotas count (`pkg/quota/v1/evaluator/core`).

use std::collections::BTreeMap;

use api::Resource;
use apimachinery::Value;
use apimachinery::quantity::{Format, Quantity};

use crate::kinds::pod_spec::qos;
use crate::kinds::tree::{at, has, int, items, map, text};

pub type Amounts = BTreeMap<String, Quantity>;

/// Kinds that quotas also count by their bare name.
const BARE: [&str; 7] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];
const COMPUTE: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

/// How objects of one resource are counted.
pub struct Evaluator {
    plural: &'static str,
    core: bool,
    /// `count/deployments.apps`.
    count: String,
}

impl Evaluator {
    pub fn of(resource: &'static Resource) -> Self {
        let core = resource.group.is_empty();
        let count = if core {
            format!("count/{}", resource.plural)
        } else {
            format!("count/{}.{}", resource.plural, resource.group)
        };
        Self {
            plural: resource.plural,
            core,
            count,
        }
    }

    fn is(&self, plural: &str) -> bool {
        self.core && self.plural == plural
    }

    /// Whether these objects use any of what a quota calls `resource`.
    pub fn counts(&self, resource: &str) -> bool {
        if resource == self.count
            || (self.core && BARE.contains(&self.plural) && resource == self.plural)
        {
            return true;
        }
        match self.plural {
            "pods" if self.core => is_pod_resource(resource),
            "services" if self.core => {
                matches!(resource, "services.nodeports" | "services.loadbalancers")
            }
            "persistentvolumeclaims" if self.core => {
                resource == "requests.storage" || resource.contains(OF_CLASS)
            }
            _ => false,
        }
    }

    /// What an object uses.
    pub fn usage(&self, object: &Value) -> Amounts {
        let mut used = Amounts::new();
        used.insert(self.count.clone(), one());
        if self.is("pods") {
            if matches!(text(object, &["status", "phase"]), "Failed" | "Succeeded") {
                return used;
            }
            pod(object, &mut used);
        }
        if self.core && BARE.contains(&self.plural) {
            used.insert(self.plural.to_owned(), one());
        }
        if self.is("services") {
            service(object, &mut used);
        }
        if self.is("persistentvolumeclaims") {
            claim(object, &mut used);
        }
        used
    }

    /// Resources a quota limits that containers must ask for and do not, and which containers.
    pub fn missing<'a>(
        &self,
        object: &'a Value,
        required: &[&'a str],
    ) -> Vec<(&'a str, Vec<&'a str>)> {
        if !self.is("pods") || required.is_empty() {
            return Vec::new();
        }
        let mut missing: Vec<(&str, Vec<&str>)> = Vec::new();
        for resource in required {
            let (field, bare) = match resource.split_once('.') {
                Some(("limits", bare)) => ("limits", bare),
                Some(("requests", bare)) => ("requests", bare),
                _ => ("requests", *resource),
            };
            if !matches!(bare, "cpu" | "memory") || has(object, &["spec", "resources", field, bare])
            {
                continue;
            }
            let containers: Vec<&str> = ["containers", "initContainers"]
                .into_iter()
                .flat_map(|list| items(object, &["spec", list]))
                .filter(|container| !has(container, &["resources", field, bare]))
                .map(|container| text(container, &["name"]))
                .collect();
            if !containers.is_empty() {
                missing.push((resource, containers));
            }
        }
        missing.sort_unstable();
        missing
    }

    /// Whether a scope of a quota takes an object in.
    pub fn in_scope(&self, scope: &str, operator: &str, values: &[Value], object: &Value) -> bool {
        if self.is("persistentvolumeclaims") {
            return scope == "VolumeAttributesClass"
                && named(
                    text(object, &["spec", "volumeAttributesClassName"]),
                    operator,
                    values,
                );
        }
        if !self.is("pods") {
            return false;
        }
        match scope {
            "Terminating" => has(object, &["spec", "activeDeadlineSeconds"]),
            "NotTerminating" => !has(object, &["spec", "activeDeadlineSeconds"]),
            "BestEffort" => qos::class(object) == "BestEffort",
            "NotBestEffort" => qos::class(object) != "BestEffort",
            "PriorityClass" => named(
                text(object, &["spec", "priorityClassName"]),
                operator,
                values,
            ),
            "CrossNamespacePodAffinity" => crosses_namespaces(object),
            _ => false,
        }
    }
}

fn one() -> Quantity {
    Quantity::from_units(1, Format::DecimalSi)
}

/// A selector over a name that may be absent.
fn named(name: &str, operator: &str, values: &[Value]) -> bool {
    let among = values.iter().any(|value| value == name);
    match operator {
        "In" => !name.is_empty() && among,
        "NotIn" => !among,
        "DoesNotExist" => name.is_empty(),
        _ => !name.is_empty(),
    }
}

fn crosses_namespaces(pod: &Value) -> bool {
    let wide = |term: &Value| {
        !items(term, &["namespaces"]).is_empty() || has(term, &["namespaceSelector"])
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = at(pod, &["spec", "affinity", kind]);
        items(
            affinity,
            &["requiredDuringSchedulingIgnoredDuringExecution"],
        )
        .iter()
        .any(wide)
            || items(
                affinity,
                &["preferredDuringSchedulingIgnoredDuringExecution"],
            )
            .iter()
            .any(|term| wide(at(term, &["podAffinityTerm"])))
    })
}

fn is_pod_resource(resource: &str) -> bool {
    let bare = resource
        .strip_prefix("requests.")
        .or_else(|| resource.strip_prefix("limits."))
        .unwrap_or(resource);
    COMPUTE.contains(&bare)
        || bare.starts_with("hugepages-")
        || (resource.starts_with("requests.") && bare.contains('/'))
}

/// What a pod asks for and is bounded by, its containers taken together.
fn pod(pod: &Value, used: &mut Amounts) {
    for (resource, amount) in total(pod, "requests") {
        if COMPUTE.contains(&resource.as_str()) || resource.starts_with("hugepages-") {
            used.insert(resource.clone(), amount.clone());
        }
        used.insert(format!("requests.{resource}"), amount);
    }
    for (resource, amount) in total(pod, "limits") {
        if COMPUTE.contains(&resource.as_str()) {
            used.insert(format!("limits.{resource}"), amount);
        }
    }
}

fn read(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn add(sum: &mut Amounts, holder: &Value, path: &[&str]) {
    for (resource, amount) in map(holder, path).into_iter().flatten() {
        let Some(amount) = read(amount) else { continue };
        match sum.get_mut(resource) {
            Some(total) => total.add(&amount),
            None => {
                sum.insert(resource.clone(), amount);
            }
        }
    }
}

fn at_least(sum: &mut Amounts, other: Amounts) {
    for (resource, amount) in other {
        match sum.get(&resource) {
            Some(have) if *have >= amount => {}
            _ => {
                sum.insert(resource, amount);
            }
        }
    }
}

/// All that a pod asks for.
pub fn pod_requests(pod: &Value) -> Amounts {
    total(pod, "requests")
}

/// `PodRequests`, `PodLimits`: containers and sidecars at once, init containers one after the other, whichever is more;
/// a pod's own word counts before its containers'.
fn total(pod: &Value, field: &str) -> Amounts {
    let spec = at(pod, &["spec"]);
    let mut sum = Amounts::new();
    for container in items(spec, &["containers"]) {
        add(&mut sum, container, &["resources", field]);
    }
    let mut sidecars = Amounts::new();
    let mut highest = Amounts::new();
    for container in items(spec, &["initContainers"]) {
        let mut now = sidecars.clone();
        add(&mut now, container, &["resources", field]);
        if text(container, &["restartPolicy"]) == "Always" {
            add(&mut sum, container, &["resources", field]);
            sidecars = now.clone();
        }
        at_least(&mut highest, now);
    }
    at_least(&mut sum, highest);
    for (resource, amount) in map(spec, &["resources", field]).into_iter().flatten() {
        if let Some(amount) = read(amount) {
            sum.insert(resource.clone(), amount);
        }
    }
    if !sum.is_empty() {
        add(&mut sum, spec, &["overhead"]);
    }
    sum
}

fn service(service: &Value, used: &mut Amounts) {
    let ports = items(service, &["spec", "ports"]);
    let many = |count: usize| {
        Quantity::from_units(i64::try_from(count).unwrap_or(i64::MAX), Format::DecimalSi)
    };
    let assigned = ports
        .iter()
        .filter(|port| int(port, &["nodePort"]).unwrap_or(0) != 0)
        .count();
    let (node_ports, balancers) = match text(service, &["spec", "type"]) {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" => {
            let spared =
                at(service, &["spec", "allocateLoadBalancerNodePorts"]) == &Value::Bool(false);
            (if spared { assigned } else { ports.len() }, 1)
        }
        _ => (0, 0),
    };
    used.insert("services.nodeports".to_owned(), many(node_ports));
    used.insert("services.loadbalancers".to_owned(), many(balancers));
}

fn claim(claim: &Value, used: &mut Amounts) {
    let class = text(claim, &["spec", "storageClassName"]);
    if !class.is_empty() {
        used.insert(format!("{class}{OF_CLASS}persistentvolumeclaims"), one());
    }
    let Some(size) = read(at(claim, &["spec", "resources", "requests", "storage"])) else {
        return;
    };
    if !class.is_empty() {
        used.insert(format!("{class}{OF_CLASS}requests.storage"), size.clone());
    }
    used.insert("requests.storage".to_owned(), size);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(resource: &'static Resource, object: Value, expect: &[(&str, &str)]) {
        let used: Vec<(String, String)> = Evaluator::of(resource)
            .usage(&object)
            .into_iter()
            .map(|(resource, amount)| (resource, amount.to_string()))
            .collect();
        let expect: Vec<(String, String)> = expect
            .iter()
            .map(|(resource, amount)| ((*resource).to_owned(), (*amount).to_owned()))
            .collect();
        assert_eq!(used, expect);
    }

    #[test]
    fn pods_use_what_their_containers_ask_for_together() {
        check(
            &api::r::PODS,
            json!({"spec": {
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}},
                    {"name": "b", "resources": {"requests": {"cpu": "200m"}}}],
                "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}),
            &[
                ("count/pods", "1"),
                ("cpu", "1"),
                ("limits.cpu", "1"),
                ("memory", "1Gi"),
                ("pods", "1"),
                ("requests.cpu", "1"),
                ("requests.memory", "1Gi"),
            ],
        );
        check(
            &api::r::PODS,
            json!({"status": {"phase": "Succeeded"}, "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}),
            &[("count/pods", "1")],
        );
    }

    #[test]
    fn services_use_ports_and_claims_use_storage_of_their_class() {
        check(
            &api::r::SERVICES,
            json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}}),
            &[
                ("count/services", "1"),
                ("services", "1"),
                ("services.loadbalancers", "1"),
                ("services.nodeports", "2"),
            ],
        );
        check(
            &api::r::PERSISTENTVOLUMECLAIMS,
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}}),
            &[
                ("count/persistentvolumeclaims", "1"),
                (
                    "fast.storageclass.storage.k8s.io/persistentvolumeclaims",
                    "1",
                ),
                ("fast.storageclass.storage.k8s.io/requests.storage", "1Gi"),
                ("persistentvolumeclaims", "1"),
                ("requests.storage", "1Gi"),
            ],
        );
    }

    #[test]
    fn limited_resources_must_be_asked_for() {
        let pod = json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}, {"name": "b"}]}});
        let missing =
            Evaluator::of(&api::r::PODS).missing(&pod, &["requests.cpu", "limits.memory", "pods"]);
        assert_eq!(
            missing,
            [
                ("limits.memory", vec!["a", "b"]),
                ("requests.cpu", vec!["b"])
            ]
        );
    }
}
