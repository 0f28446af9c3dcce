//! Claims that wait for their pod's node, and volumes for them, made by chance; and the reference: whether a pod's claims
//! can all be had on a node.

use std::collections::BTreeMap;

use rand::{Rng, rngs::StdRng};
use serde_json::{Value, json};

use super::reference::{claims, items, text, wants_node};
use super::{HOST, ZONE};

/// Claims in each namespace that wait for whoever uses them first.
const WAITING: usize = 4;
const VOLUMES: usize = 12;

/// What is not bound yet: claims by namespace and name, volumes by theirs.
#[derive(Default)]
pub struct Unbound {
    pub claims: BTreeMap<String, Value>,
    pub volumes: BTreeMap<String, Value>,
}

/// One of volumes that are there, one that makes them in some zones, and one that does either.
pub fn classes() -> [Value; 3] {
    let zones = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["zone-0", "zone-1"]}]}]);
    let class = |name: &str, provisioner: &str, topologies: &Value| {
        json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topologies})
    };
    [
        class("local", "kubernetes.io/no-provisioner", &json!([])),
        class("zonal", "p.io", &zones),
        class("either", "p.io", &json!([])),
    ]
}

fn gigabytes(value: &Value) -> i64 {
    let size = text(value).strip_suffix("Gi").expect("gibibytes");
    size.parse().expect("a number")
}

pub fn random_volumes(random: &mut StdRng) -> Vec<Value> {
    (0..VOLUMES)
        .map(|number| {
            let class = if random.random_bool(0.8) { "local" } else { "either" };
            let size = format!("{}Gi", random.random_range(1..5));
            let host = format!("node-{}", random.random_range(0..6));
            let term = json!({"matchExpressions": [{"key": HOST, "operator": "In", "values": [host]}]});
            json!({
                "metadata": {"name": format!("free-{number}")},
                "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
                "status": {"phase": "Available"},
            })
        })
        .collect()
}

fn random_claim(random: &mut StdRng, namespace: &Value, name: &str) -> Value {
    let class = ["local", "zonal", "either"][random.random_range(0..3)];
    let size = format!("{}Gi", random.random_range(1..5));
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("{}-{name}", text(namespace))},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Pending"},
    })
}

pub fn waiting_claims(random: &mut StdRng) -> Vec<Value> {
    let mut all = Vec::new();
    for namespace in ["default", "other"] {
        for number in 0..WAITING {
            all.push(random_claim(
                random,
                &json!(namespace),
                &format!("w{number}"),
            ));
        }
    }
    all
}

/// Lets a pod use claims that wait, and volumes of its own; returns the claims that were made for those, some of which
/// are somebody else's, and some of which are yet to be made.
pub fn add_volumes(random: &mut StdRng, pod: &mut Value) -> Vec<Value> {
    let mut volumes: Vec<Value> = items(&pod["spec"]["volumes"]).cloned().collect();
    let mut made = Vec::new();
    if random.random_bool(0.2) {
        for number in 0..random.random_range(1..3) {
            let claim = format!("w{}", random.random_range(0..WAITING));
            volumes.push(json!({"name": format!("w{number}"), "persistentVolumeClaim": {"claimName": claim}}));
        }
    }
    if random.random_bool(0.15) {
        volumes.push(json!({"name": "own", "ephemeral": {"volumeClaimTemplate": {}}}));
        let meta = &pod["metadata"];
        let mut claim = random_claim(
            random,
            &meta["namespace"],
            &format!("{}-own", text(&meta["name"])),
        );
        let uid = match random.random_bool(0.9) {
            true => text(&meta["uid"]),
            false => "somebody",
        };
        claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
            "name": meta["name"], "uid": uid, "controller": true}]);
        if random.random_bool(0.9) {
            made.push(claim);
        }
    }
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = json!(volumes);
    }
    made
}

fn class_of(claim: &Value) -> Value {
    let all = classes();
    let name = &claim["spec"]["storageClassName"];
    let found = all.iter().find(|class| class["metadata"]["name"] == *name);
    found.expect("a class").clone()
}

/// Whether a volume would do for a claim on a node.
pub fn suits(volume: &Value, claim: &Value, node: &Value) -> bool {
    volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"]
        && gigabytes(&volume["spec"]["capacity"]["storage"])
            >= gigabytes(&claim["spec"]["resources"]["requests"]["storage"])
        && wants_node(&volume["spec"]["nodeAffinity"]["required"], node)
}

/// Whether a volume can be made for a claim on a node.
pub fn is_provisioned(claim: &Value, node: &Value) -> bool {
    let class = class_of(claim);
    let mut topologies = items(&class["allowedTopologies"]).peekable();
    class["provisioner"] == "p.io"
        && (topologies.peek().is_none()
            || topologies.any(|term| {
                items(&term["matchLabelExpressions"]).all(|one| {
                    let own = &node["metadata"]["labels"][text(&one["key"])];
                    items(&one["values"]).any(|value| value == own)
                })
            }))
}

impl Unbound {
    /// Why the pod's claims that are not bound cannot be had on the node.
    pub fn objection(
        &self,
        pod: &Value,
        node: &Value,
        is_bound: impl Fn(&str) -> bool,
    ) -> Option<&'static str> {
        let own = format!("{}-own", text(&pod["metadata"]["name"]));
        let mut waiting: Vec<&Value> = Vec::new();
        for key in claims(pod).into_iter().filter(|key| !is_bound(key)) {
            let Some(claim) = self.claims.get(&key) else {
                return Some("no such claim");
            };
            let is_own = claim["metadata"]["name"] == own;
            if is_own && claim["metadata"]["ownerReferences"][0]["uid"] != pod["metadata"]["uid"] {
                return Some("somebody else's claim");
            }
            if !waiting.contains(&claim) {
                waiting.push(claim);
            }
        }
        let can_be = self.find(&waiting, node, &mut Vec::new());
        (!can_be).then_some("volumes")
    }

    /// Whether each claim can have a volume of its own, or one that is made for it.
    fn find<'a>(&'a self, claims: &[&Value], node: &Value, taken: &mut Vec<&'a str>) -> bool {
        let Some((claim, rest)) = claims.split_first() else {
            return true;
        };
        for (name, volume) in &self.volumes {
            if taken.contains(&name.as_str()) || !suits(volume, claim, node) {
                continue;
            }
            taken.push(name);
            if self.find(rest, node, taken) {
                return true;
            }
            taken.pop();
        }
        is_provisioned(claim, node) && self.find(rest, node, taken)
    }
}
