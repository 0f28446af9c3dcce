//! Devices and claims made by chance, and the reference for them: whether a pod's claims can be had on a node, found out
//! by trying all there is.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, rngs::StdRng};
use serde_json::{Value, json};

use super::reference::{asks, items, text, wants_node};

/// Nodes that may have devices, and claims that pods share in each namespace.
const NODES: usize = 8;
const SHARED: usize = 3;
/// The resource that devices of the class `extended` stand for.
pub const RESOURCE: &str = "example.com/device";
const BIG: &str = "device.attributes['d.io'].model == 'big'";

/// Slices and claims as plain objects, claims by namespace and name.
#[derive(Default)]
pub struct Devices {
    pub slices: Vec<Value>,
    pub claims: BTreeMap<String, Value>,
    version: u64,
}

/// Pool and name of a device.
type Id = (String, String);

pub fn classes() -> [Value; 3] {
    [
        json!({"metadata": {"name": "any"}, "spec": {}}),
        json!({"metadata": {"name": "big"}, "spec": {"selectors": [{"cel": {"expression": BIG}}]}}),
        json!({"metadata": {"name": "extended"}, "spec": {"extendedResourceName": RESOURCE}}),
    ]
}

/// Devices of nodes, of a zone, and of nobody in particular.
pub fn random_slices(random: &mut StdRng) -> Vec<Value> {
    let mut slices = Vec::new();
    for number in 0..NODES {
        let name = format!("node-{number}");
        let place = json!({"nodeName": name});
        slices.push(slice(random, &name, place, 4));
    }
    let zone = json!({"key": super::ZONE, "operator": "In", "values": ["zone-1"]});
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}]});
    slices.push(slice(random, "zone", json!({"nodeSelector": selector}), 2));
    slices.push(slice(random, "net", json!({"allNodes": true}), 2));
    slices
}

fn slice(random: &mut StdRng, pool: &str, mut spec: Value, most: usize) -> Value {
    let devices: Vec<Value> = (0..random.random_range(0..=most))
        .map(|number| {
            let model = if random.random_bool(0.4) {
                "big"
            } else {
                "small"
            };
            let mut device =
                json!({"name": format!("d{number}"), "attributes": {"model": {"string": model}}});
            if random.random_bool(0.1) {
                device["taints"] = json!([{"key": "broken", "effect": "NoSchedule"}]);
            }
            device
        })
        .collect();
    spec["driver"] = json!("d.io");
    spec["pool"] = json!({"name": pool, "generation": 1, "resourceSliceCount": 1});
    spec["devices"] = json!(devices);
    json!({"metadata": {"name": pool}, "spec": spec})
}

fn random_spec(random: &mut StdRng) -> Value {
    let class = |random: &mut StdRng| {
        if random.random_bool(0.4) {
            "big"
        } else {
            "any"
        }
    };
    let exactly = |random: &mut StdRng, most: usize| {
        let count = random.random_range(1..=most);
        json!({"deviceClassName": class(random), "allocationMode": "ExactCount", "count": count})
    };
    let requests: Vec<Value> = (0..random.random_range(1..3))
        .map(|number| {
            let name = format!("r{number}");
            match random.random_range(0..10) {
                0 => json!({"name": name, "exactly": {"deviceClassName": class(random), "allocationMode": "All"}}),
                1..=2 => {
                    let mut first = exactly(random, 2);
                    let mut second = exactly(random, 1);
                    (first["name"], second["name"]) = (json!("a"), json!("b"));
                    json!({"name": name, "firstAvailable": [first, second]})
                }
                _ => json!({"name": name, "exactly": exactly(random, 2)}),
            }
        })
        .collect();
    let mut spec = json!({"devices": {"requests": requests}});
    if random.random_bool(0.25) {
        spec["devices"]["constraints"] = json!([{"matchAttribute": "d.io/model"}]);
    }
    spec
}

/// Claims that pods share, in each namespace.
pub fn shared_claims(random: &mut StdRng) -> Vec<Value> {
    let mut claims = Vec::new();
    for namespace in ["default", "other"] {
        for number in 0..SHARED {
            let meta = json!({"name": format!("shared-{number}"), "namespace": namespace});
            claims.push(json!({"metadata": meta, "spec": random_spec(random), "status": {}}));
        }
    }
    claims
}

/// Lets a pod ask for devices; returns the claim that was made for it of a template.
pub fn add_claims(random: &mut StdRng, pod: &mut Value) -> Option<Value> {
    let mut claims = Vec::new();
    let mut made = None;
    let meta = &pod["metadata"];
    if random.random_bool(0.2) {
        let name = format!("{}-own", text(&meta["name"]));
        let meta = json!({"name": name, "namespace": meta["namespace"], "annotations": {"made": "for a pod"}});
        made = Some(json!({"metadata": meta, "spec": random_spec(random), "status": {}}));
        claims.push(json!({"name": "own", "resourceClaimTemplateName": "t"}));
        pod["status"]["resourceClaimStatuses"] =
            json!([{"name": "own", "resourceClaimName": name}]);
    }
    if random.random_bool(0.15) {
        let name = format!("shared-{}", random.random_range(0..=SHARED));
        claims.push(json!({"name": "shared", "resourceClaimName": name}));
    }
    if !claims.is_empty() {
        pod["spec"]["resourceClaims"] = json!(claims);
    }
    if random.random_bool(0.15) {
        let inits = pod["spec"]["initContainers"].as_array().map_or(0, Vec::len);
        let amount = |random: &mut StdRng| json!(random.random_range(1..3).to_string());
        pod["spec"]["containers"][0]["resources"]["requests"][RESOURCE] = amount(random);
        for place in 0..inits {
            if random.random_bool(0.5) {
                pod["spec"]["initContainers"][place]["resources"]["requests"][RESOURCE] =
                    amount(random);
            }
        }
    }
    made
}

/// The keys of the claims a pod names.
pub fn named(pod: &Value) -> Vec<String> {
    let made = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
    let namespace = text(&pod["metadata"]["namespace"]);
    let claims = items(&pod["spec"]["resourceClaims"]);
    let names = claims.map(|one| one["resourceClaimName"].as_str().unwrap_or(text(made)));
    names.map(|name| format!("{namespace}/{name}")).collect()
}

/// One device that is to be found, as the constraint of its claim sees it.
struct Unit {
    claim: usize,
    must_match: bool,
    among: Vec<usize>,
}

/// A device on a node.
struct Here {
    id: Id,
    model: String,
    is_tainted: bool,
}

impl Here {
    fn is_of(&self, class: &str) -> bool {
        class != "big" || self.model == "big"
    }
}

impl Devices {
    fn here(&self, node: &Value) -> Vec<Here> {
        let mut all = Vec::new();
        for slice in &self.slices {
            let spec = &slice["spec"];
            let is_here = spec["allNodes"] == true
                || spec["nodeName"] == node["metadata"]["name"]
                || (spec["nodeSelector"].is_object() && wants_node(&spec["nodeSelector"], node));
            for device in items(&spec["devices"]).filter(|_| is_here) {
                all.push(Here {
                    id: (
                        text(&spec["pool"]["name"]).into(),
                        text(&device["name"]).into(),
                    ),
                    model: text(&device["attributes"]["model"]["string"]).into(),
                    is_tainted: device["taints"].is_array(),
                });
            }
        }
        all
    }

    fn taken(&self) -> BTreeSet<Id> {
        let results = |claim: &Value| -> Vec<Id> {
            let results = items(&claim["status"]["allocation"]["devices"]["results"]);
            results
                .map(|one| (text(&one["pool"]).into(), text(&one["device"]).into()))
                .collect()
        };
        self.claims.values().flat_map(results).collect()
    }

    /// Why the pod's claims cannot be had on the node.
    pub fn objection(&self, pod: &Value, node: &Value) -> Option<&'static str> {
        let mut open = Vec::new();
        for key in named(pod) {
            let Some(claim) = self.claims.get(&key) else {
                return Some("no such claim");
            };
            let allocation = &claim["status"]["allocation"];
            let selector = &allocation["nodeSelector"];
            if selector.is_object() && !wants_node(selector, node) {
                return Some("its devices are elsewhere");
            }
            if allocation.is_null() {
                open.push(claim.clone());
            }
        }
        let count = asks(pod, RESOURCE) / 1000;
        if count > 0 {
            let exactly = json!({"deviceClassName": "extended", "count": count});
            let request = json!({"name": "r", "exactly": exactly});
            open.push(json!({"spec": {"devices": {"requests": [request]}}}));
        }
        let (here, taken) = (self.here(node), self.taken());
        let is_free = |place: &usize| !here[*place].is_tainted && !taken.contains(&here[*place].id);
        // All ways to choose among alternatives, each a list of single devices to be found.
        let mut ways: Vec<Vec<Unit>> = vec![Vec::new()];
        for (index, claim) in open.iter().enumerate() {
            let must_match = claim["spec"]["devices"]["constraints"].is_array();
            for request in items(&claim["spec"]["devices"]["requests"]) {
                let exactly = Some(&request["exactly"]).filter(|one| one.is_object());
                let alternatives = items(&request["firstAvailable"]).chain(exactly);
                let mut next = Vec::new();
                for wish in alternatives {
                    let class = text(&wish["deviceClassName"]);
                    let of_class: Vec<usize> = (0..here.len())
                        .filter(|one| here[*one].is_of(class))
                        .collect();
                    let wanted: Vec<Vec<usize>> = if wish["allocationMode"] == "All" {
                        if of_class.is_empty() {
                            continue;
                        }
                        of_class.iter().map(|one| vec![*one]).collect()
                    } else {
                        let count = wish["count"].as_u64().unwrap_or(1);
                        (0..count).map(|_| of_class.clone()).collect()
                    };
                    for way in &ways {
                        let before = way.iter().map(|unit| Unit {
                            claim: unit.claim,
                            must_match: unit.must_match,
                            among: unit.among.clone(),
                        });
                        let more = wanted.iter().map(|among| Unit {
                            claim: index,
                            must_match,
                            among: among.iter().copied().filter(is_free).collect(),
                        });
                        next.push(before.chain(more).collect());
                    }
                }
                ways = next;
            }
        }
        let can_be = ways.iter().any(|way| find(way, &here, &mut Vec::new()));
        (!can_be).then_some("devices")
    }

    /// Checks what a claim was given on a node, and keeps it. Returns it as the API would show it.
    pub fn give(
        &mut self,
        key: &str,
        allocation: Option<&Value>,
        pod: &Value,
        node: &Value,
    ) -> Value {
        let (here, taken) = (self.here(node), self.taken());
        self.version += 1;
        let version = self.version.to_string();
        let claim = self.claims.get_mut(key).expect("it is there");
        if let Some(allocation) = allocation {
            assert!(
                claim["status"]["allocation"].is_null(),
                "{key} has devices already"
            );
            let mut given: BTreeMap<String, Vec<&Here>> = BTreeMap::new();
            let mut own = BTreeSet::new();
            for result in items(&allocation["devices"]["results"]) {
                let id: Id = (text(&result["pool"]).into(), text(&result["device"]).into());
                let device = here
                    .iter()
                    .find(|one| one.id == id)
                    .expect("it is on the node");
                assert!(
                    !device.is_tainted && !taken.contains(&id),
                    "{id:?} for {key}"
                );
                assert!(own.insert(id.clone()), "{id:?} twice for {key}");
                given
                    .entry(text(&result["request"]).into())
                    .or_default()
                    .push(device);
            }
            let devices = &claim["spec"]["devices"];
            for request in items(&devices["requests"]) {
                let name = text(&request["name"]);
                let exactly = Some((name.to_string(), &request["exactly"]));
                let first = items(&request["firstAvailable"]);
                let first = first.map(|one| (format!("{name}/{}", text(&one["name"])), one));
                let all = first.chain(exactly.filter(|(_, wish)| wish.is_object()));
                let chosen: Vec<_> = all.filter(|(name, _)| given.contains_key(name)).collect();
                assert_eq!(
                    chosen.len(),
                    1,
                    "one alternative of {request} is given: {allocation}"
                );
                let (name, wish) = &chosen[0];
                let class = text(&wish["deviceClassName"]);
                assert!(
                    given[name].iter().all(|one| one.is_of(class)),
                    "{allocation}"
                );
                let of_class = here.iter().filter(|one| one.is_of(class)).count();
                let count = match wish["allocationMode"] == "All" {
                    true => of_class,
                    false => wish["count"].as_u64().unwrap_or(1) as usize,
                };
                assert_eq!(given[name].len(), count, "{allocation}");
            }
            if devices["constraints"].is_array() {
                let models: BTreeSet<&str> = given
                    .values()
                    .flatten()
                    .map(|one| one.model.as_str())
                    .collect();
                assert!(models.len() <= 1, "{allocation}");
            }
            claim["status"]["allocation"] = allocation.clone();
        }
        let consumer = json!({"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
        match claim["status"]["reservedFor"].as_array_mut() {
            Some(all) => all.push(consumer),
            None => claim["status"]["reservedFor"] = json!([consumer]),
        }
        claim["metadata"]["resourceVersion"] = json!(version);
        claim.clone()
    }

    /// A pod is gone: what only it used is free, what was made for it goes. Returns what became of its claims.
    pub fn free(&mut self, pod: &str) -> Vec<(String, Option<Value>)> {
        let mut changed = Vec::new();
        for (key, claim) in &mut self.claims {
            let consumers = claim["status"]["reservedFor"].as_array_mut();
            let Some(consumers) = consumers else { continue };
            let before = consumers.len();
            consumers.retain(|one| one["uid"] != pod);
            if consumers.len() == before {
                continue;
            }
            if !consumers.is_empty() {
                changed.push((key.clone(), Some(claim.clone())));
            } else if claim["metadata"]["annotations"].is_object() {
                changed.push((key.clone(), None));
            } else {
                claim["status"] = json!({});
                changed.push((key.clone(), Some(claim.clone())));
            }
        }
        for (key, claim) in &mut changed {
            match claim {
                None => drop(self.claims.remove(key)),
                Some(claim) => {
                    self.version += 1;
                    claim["metadata"]["resourceVersion"] = json!(self.version.to_string());
                    self.claims.insert(key.clone(), claim.clone());
                }
            }
        }
        changed
    }
}

/// Whether every unit can have a device of its own.
fn find(units: &[Unit], here: &[Here], chosen: &mut Vec<usize>) -> bool {
    let Some(unit) = units.get(chosen.len()) else {
        return true;
    };
    for device in &unit.among {
        let mut others = chosen.iter().zip(units);
        let clashes = others.any(|(other, of)| {
            let same_claim = of.claim == unit.claim && unit.must_match;
            other == device || (same_claim && here[*other].model != here[*device].model)
        });
        if clashes {
            continue;
        }
        chosen.push(*device);
        if find(units, here, chosen) {
            return true;
        }
        chosen.pop();
    }
    false
}
