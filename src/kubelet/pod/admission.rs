//! Whether the node takes a pod that was bound to it: enough room, free host
//! ports, the labels the pod asks for. The scheduler saw to that; pods bound by
//! hand, or to a node that changed, come to their verdict here. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::memory::Verdict;
use super::spec;
use super::support;
use crate::k8s::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use crate::resources::{self, Totals};

/// What the node's pods take, by uid; clones share it. An entry is made when a
/// pod is admitted and removed when it no longer runs.
#[derive(Clone, Default)]
pub struct Admitted(Arc<Mutex<BTreeMap<String, Taken>>>);

impl Admitted {
    /// Admits a pod: without a judgement if it was `taken_before`.
    pub fn admit(
        &self,
        uid: &str,
        taken_before: bool,
        judge: impl FnOnce(&BTreeMap<String, Taken>) -> Result<Taken, Verdict>,
        taken: impl FnOnce() -> Taken,
    ) -> Result<(), Verdict> {
        let mut admitted = self.0.lock();
        if !admitted.contains_key(uid) {
            let taken = if taken_before {
                taken()
            } else {
                judge(&admitted)?
            };
            admitted.insert(uid.to_owned(), taken);
        }
        Ok(())
    }

    /// Notes that an admitted pod takes something else now.
    pub fn take(&self, uid: &str, taken: Taken) {
        if let Some(known) = self.0.lock().get_mut(uid) {
            *known = taken;
        }
    }

    /// Gives back what a pod took.
    pub fn release(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

/// What a pod takes of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    totals: Totals,
    /// Protocol, address and number of each host port.
    ports: Vec<(String, String, i32)>,
}

impl Taken {
    /// What `pod` takes.
    pub fn of(pod: &Pod) -> Self {
        let slots = spec::slots(pod);
        let ports = slots
            .iter()
            .flat_map(|slot| slot.container.ports.iter().flatten());
        let ports = ports.filter_map(|port| {
            let number = match spec::host_network(pod) {
                true => port.container_port,
                false => port.host_port.filter(|port| *port > 0)?,
            };
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let address = port.host_ip.clone().filter(|ip| !ip.is_empty());
            Some((
                protocol,
                address.unwrap_or_else(|| "0.0.0.0".to_owned()),
                number,
            ))
        });
        Self {
            totals: resources::totals(pod),
            ports: ports.collect(),
        }
    }

    fn collides(&self, other: &Self) -> bool {
        let any = |address: &str| address == "0.0.0.0" || address == "::";
        self.ports.iter().any(|(protocol, address, port)| {
            other
                .ports
                .iter()
                .any(|(other_protocol, other_address, other_port)| {
                    protocol == other_protocol
                        && port == other_port
                        && (address == other_address || any(address) || any(other_address))
                })
        })
    }
}

/// Admits `pod` beside `others`, or says why not.
pub fn admit(pod: &Pod, node: &Node, others: &BTreeMap<String, Taken>) -> Result<Taken, Verdict> {
    let wanted = Taken::of(pod);
    support::check(pod, node)?;
    if !matches_node(pod, node) {
        return Err(rejected(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ));
    }
    if others.values().any(|other| other.collides(&wanted)) {
        return Err(rejected(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ));
    }
    fits(&wanted, node, others)?;
    Ok(wanted)
}

/// The end of a pod that the node does not take.
pub(super) fn rejected(reason: &str, message: &str) -> Verdict {
    Verdict {
        reason: reason.to_owned(),
        message: format!("Pod was rejected: {message}"),
        disruption: None,
        rejected: true,
    }
}

fn fits(wanted: &Taken, node: &Node, others: &BTreeMap<String, Taken>) -> Result<(), Verdict> {
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    // A node that has not said what it has yet takes everything.
    if allocatable.is_none() {
        return Ok(());
    }
    let used = others
        .values()
        .fold(Totals::default(), |sum, other| sum.plus(other.totals));
    let amount = |name: &str| resources::amount(allocatable, name);
    let pods = i64::try_from(others.len()).unwrap_or(i64::MAX);
    let checks = [
        ("pods", 1, pods, amount("pods").value()),
        (
            "cpu",
            wanted.totals.cpu_request,
            used.cpu_request,
            amount("cpu").milli_value(),
        ),
        (
            "memory",
            wanted.totals.memory_request,
            used.memory_request,
            amount("memory").value(),
        ),
        (
            "ephemeral-storage",
            wanted.totals.storage_request,
            used.storage_request,
            amount("ephemeral-storage").value(),
        ),
    ];
    for (name, requested, used, capacity) in checks {
        if requested > 0 && used.saturating_add(requested) > capacity {
            return Err(rejected(
                &format!("OutOf{name}"),
                &format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            ));
        }
    }
    Ok(())
}

fn matches_node(pod: &Pod, node: &Node) -> bool {
    let spec = spec::spec(pod);
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selector = spec.node_selector.iter().flatten();
    if !selector
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
    {
        return false;
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let name = node.metadata.name.as_deref().unwrap_or_default();
    required.is_none_or(|required| {
        required
            .node_selector_terms
            .iter()
            .any(|term| matches_term(term, &labels, name))
    })
}

fn matches_term(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|e| matches(e, labels.get(&e.key).map(String::as_str)))
        && fields
            .iter()
            .all(|e| e.key == "metadata.name" && matches(e, Some(name)))
}

fn matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let compare = |wanted: std::cmp::Ordering| {
        let bound = values.first().and_then(|bound| bound.parse::<i64>().ok());
        let value = value.and_then(|value| value.parse::<i64>().ok());
        value
            .zip(bound)
            .is_some_and(|(value, bound)| value.cmp(&bound) == wanted)
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    fn mk_node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd", "cores": "4"}},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "2"}},
        }))
        .expect("a node")
    }

    #[track_caller]
    fn check(spec: Value, others: &[Value], expected: Option<&str>) {
        let others = others.iter().enumerate();
        let others: BTreeMap<_, _> = others
            .map(|(i, spec)| (i.to_string(), Taken::of(&mk_pod(spec.clone()))))
            .collect();
        let verdict = admit(&mk_pod(spec), &mk_node(), &others).err();
        assert_eq!(verdict.map(|verdict| verdict.reason).as_deref(), expected);
    }

    fn cpu(amount: &str) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]})
    }

    #[test]
    fn room_is_counted_over_all_pods() {
        check(cpu("1"), &[], None);
        check(cpu("600m"), &[cpu("500m")], Some("OutOfcpu"));
        check(cpu("0"), &[cpu("1")], None);
        check(cpu("0"), &[cpu("0"), cpu("0")], Some("OutOfpods"));
    }

    #[test]
    fn a_rejection_says_what_was_asked_for_and_what_there_is() {
        let verdict = admit(&mk_pod(cpu("2")), &mk_node(), &BTreeMap::new()).expect_err("too much");
        assert_eq!(
            verdict.message,
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000"
        );
    }

    #[test]
    fn host_ports_are_taken_once() {
        let port = |ip: &str| json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80, "hostIP": ip}]}]});
        check(port(""), &[port("")], Some("NodePorts"));
        check(port("192.0.2.1"), &[port("192.0.2.2")], None);
        check(port("192.0.2.1"), &[port("")], Some("NodePorts"));
    }

    #[test]
    fn selectors_and_affinity_must_fit_the_node() {
        check(
            json!({"containers": [], "nodeSelector": {"disk": "ssd"}}),
            &[],
            None,
        );
        check(
            json!({"containers": [], "nodeSelector": {"disk": "hdd"}}),
            &[],
            Some("NodeAffinity"),
        );
        let affinity = |operator: &str, values: Value| {
            json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "cores", "operator": operator, "values": values}]},
                ]},
            }}})
        };
        check(affinity("Gt", json!(["2"])), &[], None);
        check(affinity("Lt", json!(["2"])), &[], Some("NodeAffinity"));
        check(affinity("In", json!(["4", "8"])), &[], None);
        check(
            affinity("DoesNotExist", json!([])),
            &[],
            Some("NodeAffinity"),
        );
    }
}
