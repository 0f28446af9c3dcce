//! What a pod asks for and is limited to, as a whole (resource.PodRequests, resource.PodLimits). Pure.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;

use crate::objects::{Container, Pod};

pub type Amounts = BTreeMap<String, Quantity>;

/// Which of the two is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

fn parsed(amounts: &BTreeMap<String, String>) -> Amounts {
    let parse = |(name, text): (&String, &String)| Some((name.clone(), text.parse().ok()?));
    amounts.iter().filter_map(parse).collect()
}

/// What one container asks for.
pub fn of_container(container: &Container, side: Side) -> Amounts {
    let resources = &container.resources;
    parsed(match side {
        Side::Requests => &resources.requests,
        Side::Limits => &resources.limits,
    })
}

pub fn add(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        to.entry(name.clone()).or_default().add(amount);
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let present = to.entry(name.clone()).or_insert(*amount);
        if *present < *amount {
            *present = *amount;
        }
    }
}

/// What the pod needs at its highest: all containers and sidecars together, or an init container with the sidecars
/// before it; what is set for the pod as a whole replaces the sum; its overhead comes on top.
pub fn of_pod(pod: &Pod, side: Side) -> Amounts {
    let spec = &pod.spec;
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of_container(container, side));
    }
    let mut sidecars = Amounts::new();
    let mut highest = Amounts::new();
    for container in &spec.init_containers {
        let own = of_container(container, side);
        if container.restart_policy == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut highest, &sidecars);
        } else {
            let mut together = sidecars.clone();
            add(&mut together, &own);
            raise(&mut highest, &together);
        }
    }
    raise(&mut total, &highest);
    if let Some(whole) = &spec.resources {
        total.extend(parsed(match side {
            Side::Requests => &whole.requests,
            Side::Limits => &whole.limits,
        }));
    }
    let overhead = parsed(&spec.overhead);
    for (name, amount) in &overhead {
        // A pod without a limit stays without.
        if side == Side::Requests || total.contains_key(name) {
            total.entry(name.clone()).or_default().add(amount);
        }
    }
    total
}

/// Whether it asks for no CPU and no memory at all (the quality of service BestEffort).
pub fn is_best_effort(pod: &Pod) -> bool {
    let counts = |amounts: &BTreeMap<String, String>| {
        parsed(amounts)
            .iter()
            .any(|(name, amount)| (name == "cpu" || name == "memory") && !amount.is_zero())
    };
    let spec = &pod.spec;
    let whole = spec.resources.iter().map(AsRef::as_ref);
    let containers = spec.containers.iter().chain(&spec.init_containers);
    let mut all = containers.map(|one| &one.resources).chain(whole);
    !all.any(|resources| counts(&resources.requests) || counts(&resources.limits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn container(cpu: &str, sidecar: bool) -> Value {
        let policy = if sidecar { "Always" } else { "" };
        json!({"resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy})
    }

    #[test]
    fn a_pod_needs_what_it_needs_at_its_highest() {
        for (spec, expected) in [
            (
                json!({"containers": [container("100m", false), container("200m", false)]}),
                "300m",
            ),
            (
                json!({"containers": [container("1", false)], "initContainers": [container("3", false)]}),
                "3",
            ),
            (
                json!({"containers": [container("1", false)], "initContainers": [container("500m", true)]}),
                "1500m",
            ),
            (
                json!({"containers": [container("1", false)],
                    "initContainers": [container("500m", true), container("2", false)]}),
                "2500m",
            ),
            (
                json!({"containers": [container("1", false)], "overhead": {"cpu": "250m"}}),
                "1250m",
            ),
            (
                json!({"containers": [container("1", false)], "resources": {"requests": {"cpu": "5"}}}),
                "5",
            ),
        ] {
            let total = of_pod(&pod(spec.clone()), Side::Requests);
            assert_eq!(total["cpu"].to_string(), expected, "{spec}");
        }
    }

    #[test]
    fn best_effort_asks_for_nothing() {
        assert!(is_best_effort(&pod(
            json!({"containers": [{"resources": {"requests": {"cpu": "0"}}}]})
        )));
        assert!(!is_best_effort(&pod(
            json!({"containers": [{"resources": {"limits": {"memory": "1Mi"}}}]})
        )));
    }
}
