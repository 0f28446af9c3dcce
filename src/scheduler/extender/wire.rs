//! What is said to extenders and what they answer (k8s.io/kube-scheduler/extender/v1). Go reads names of fields in any
//! case, and so do we.

use std::collections::BTreeMap;

use apimachinery::Value;
use serde_json::json;

use crate::pod::Pod;

/// ExtenderFilterResult.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    pub nodes: Vec<String>,
    pub failed: BTreeMap<String, String>,
    /// Where evicting pods cannot help.
    pub unresolvable: BTreeMap<String, String>,
}

/// Pods that must go from a node.
#[derive(Clone, Debug)]
pub struct Victims {
    pub uids: Vec<String>,
    /// The pods as the API has them, for those who want them.
    pub whole: Vec<Value>,
    pub violations: usize,
}

/// A field by its name in any case.
pub fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    let fields = value.as_object().into_iter().flatten();
    let mut found = fields.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    found.next().map_or(&Value::Null, |(_, value)| value)
}

/// ExtenderArgs.
pub fn arguments(pod: &Value, names: &[String], whole: &[Value], wants_nodes: bool) -> Value {
    if wants_nodes {
        let nodes = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": whole});
        return json!({"Pod": pod, "Nodes": nodes, "NodeNames": null});
    }
    json!({"Pod": pod, "Nodes": null, "NodeNames": names})
}

impl Filtered {
    pub fn read(answer: &Value, wants_nodes: bool) -> Self {
        let texts = |value: &Value| -> BTreeMap<String, String> {
            let fields = value.as_object().into_iter().flatten();
            fields
                .map(|(name, why)| (name.clone(), why.as_str().unwrap_or("").to_string()))
                .collect()
        };
        let names = field(answer, "NodeNames").as_array();
        let nodes = match names.filter(|_| !wants_nodes) {
            Some(names) => names
                .iter()
                .filter_map(Value::as_str)
                .map(String::from)
                .collect(),
            None => {
                let items = field(field(answer, "Nodes"), "items")
                    .as_array()
                    .into_iter()
                    .flatten();
                items
                    .map(|node| apimachinery::meta::name(node).to_string())
                    .collect()
            }
        };
        Filtered {
            nodes,
            failed: texts(field(answer, "FailedNodes")),
            unresolvable: texts(field(answer, "FailedAndUnresolvableNodes")),
        }
    }
}

/// HostPriorityList.
pub fn scores(answer: &Value) -> Vec<(String, i64)> {
    let all = answer.as_array().into_iter().flatten();
    all.filter_map(|one| {
        Some((
            field(one, "Host").as_str()?.to_string(),
            field(one, "Score").as_i64()?,
        ))
    })
    .collect()
}

/// ExtenderPreemptionArgs.
pub fn preemption(pod: &Value, candidates: &BTreeMap<String, Victims>, wants_pods: bool) -> Value {
    let mut victims = json!({});
    for (node, one) in candidates {
        let pods: Vec<Value> = if wants_pods {
            one.whole.clone()
        } else {
            one.uids.iter().map(|uid| json!({"UID": uid})).collect()
        };
        victims[node.as_str()] = json!({"Pods": pods, "NumPDBViolations": one.violations});
    }
    let name = if wants_pods {
        "NodeNameToVictims"
    } else {
        "NodeNameToMetaVictims"
    };
    json!({"Pod": pod, name: victims})
}

/// ExtenderPreemptionResult: nodes with the uids of their victims.
pub fn remaining(answer: &Value) -> BTreeMap<String, Vec<String>> {
    let nodes = field(answer, "NodeNameToMetaVictims")
        .as_object()
        .into_iter()
        .flatten();
    let uids = |victims: &Value| -> Vec<String> {
        let pods = field(victims, "Pods").as_array().into_iter().flatten();
        pods.filter_map(|pod| field(pod, "UID").as_str().map(String::from))
            .collect()
    };
    nodes
        .map(|(node, victims)| (node.clone(), uids(victims)))
        .collect()
}

/// ExtenderBindingArgs.
pub fn binding(pod: &Pod, node: &str) -> Value {
    json!({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": &*pod.uid, "Node": node})
}
