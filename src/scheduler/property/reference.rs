//! The reference: whether a pod may run on a node, worked out rule by rule from plain objects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{devices::Devices, volumes::Unbound};

/// A cluster as plain objects.
#[derive(Default)]
pub struct World {
    pub nodes: BTreeMap<String, Value>,
    /// By uid; those with `spec.nodeName` run.
    pub pods: BTreeMap<String, Value>,
    /// Claims that are bound, by namespace and name, each with its volume.
    pub claims: BTreeMap<String, (Value, Value)>,
    /// How many volumes of the one driver a node takes.
    pub limits: BTreeMap<String, usize>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<String, Value>,
    pub devices: Devices,
    pub unbound: Unbound,
}

pub fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// In thousandths.
fn number(value: &Value) -> i64 {
    let quantity: apimachinery::quantity::Quantity =
        value.as_str().unwrap_or("0").parse().expect("a quantity");
    quantity.milli_value()
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| labels[key] == *value)
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// What a container counts for: what it asks for, or has, if it is being resized.
fn of_container(pod: &Value, container: &Value, name: &str) -> i64 {
    let asked = number(&container["resources"]["requests"][name]);
    let statuses = items(&pod["status"]["containerStatuses"]);
    let all = statuses.chain(items(&pod["status"]["initContainerStatuses"]));
    let mut own = all.filter(|status| status["name"] == container["name"]);
    let Some(status) = own.next() else {
        return asked;
    };
    let has = number(&status["allocatedResources"][name])
        .max(number(&status["resources"]["requests"][name]));
    let is_infeasible = items(&pod["status"]["conditions"])
        .any(|one| one["type"] == "PodResizePending" && one["reason"] == "Infeasible");
    if is_infeasible { has } else { asked.max(has) }
}

/// What a pod counts for: its containers and sidecars, or the largest of its init containers with the sidecars before
/// it; what the pod as a whole asks for instead; and its overhead.
pub fn asks(pod: &Value, name: &str) -> i64 {
    let spec = &pod["spec"];
    let mut sidecars = 0;
    let mut peak = 0;
    for init in items(&spec["initContainers"]) {
        let amount = of_container(pod, init, name);
        if is_sidecar(init) {
            sidecars += amount;
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars + amount);
        }
    }
    let containers = items(&spec["containers"]);
    let sum: i64 = containers.map(|one| of_container(pod, one, name)).sum();
    let mut total = (sum + sidecars).max(peak);
    if spec["resources"]["requests"][name].is_string() {
        total = number(&spec["resources"]["requests"][name]);
    }
    total + number(&spec["overhead"][name])
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (key, effect) = (text(&toleration["key"]), text(&toleration["effect"]));
    (effect.is_empty() || effect == taint["effect"])
        && (key.is_empty() || key == taint["key"])
        && (toleration["operator"] == "Exists"
            || text(&toleration["value"]) == text(&taint["value"]))
}

fn is_tainted_for(pod: &Value, node: &Value) -> bool {
    items(&node["spec"]["taints"]).any(|taint| {
        taint["effect"] != "PreferNoSchedule"
            && !items(&pod["spec"]["tolerations"]).any(|one| tolerates(one, taint))
    })
}

fn requirement(one: &Value, value: &Value) -> bool {
    let among = || items(&one["values"]).any(|other| other == value);
    let integer = |value: &Value| text(value).parse::<i64>();
    let limit = || integer(&one["values"][0]).expect("a number");
    match text(&one["operator"]) {
        "In" => !value.is_null() && among(),
        "NotIn" => value.is_null() || !among(),
        "Exists" => !value.is_null(),
        "DoesNotExist" => value.is_null(),
        "Gt" => integer(value).is_ok_and(|value| value > limit()),
        "Lt" => integer(value).is_ok_and(|value| value < limit()),
        other => panic!("operator {other}"),
    }
}

/// Whether a node selector with terms wants a node.
pub fn wants_node(selector: &Value, node: &Value) -> bool {
    items(&selector["nodeSelectorTerms"]).any(|term| {
        let labels = items(&term["matchExpressions"])
            .all(|one| requirement(one, &node["metadata"]["labels"][text(&one["key"])]));
        let fields =
            items(&term["matchFields"]).all(|one| requirement(one, &node["metadata"]["name"]));
        labels && fields
    })
}

fn is_chosen_by(pod: &Value, node: &Value) -> bool {
    let selector = pod["spec"]["nodeSelector"].as_object();
    let required =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let mut selector = selector.into_iter().flatten();
    selector.all(|(key, value)| node["metadata"]["labels"][key] == *value)
        && (required.is_null() || wants_node(required, node))
}

/// Host ports of everything that goes on running: address, protocol, port.
fn host_ports(pod: &Value) -> Vec<(String, String, i64)> {
    let spec = &pod["spec"];
    let sidecars = items(&spec["initContainers"]).filter(|one| is_sidecar(one));
    let ports = items(&spec["containers"]).chain(sidecars);
    let ports = ports.flat_map(|one| items(&one["ports"]));
    let or = |value: &Value, default: &str| value.as_str().unwrap_or(default).to_string();
    ports
        .filter_map(|port| {
            let number = port["hostPort"].as_i64()?;
            Some((
                or(&port["hostIP"], "0.0.0.0"),
                or(&port["protocol"], "TCP"),
                number,
            ))
        })
        .collect()
}

fn terms<'a>(pod: &'a Value, kind: &str) -> Vec<&'a Value> {
    items(&pod["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
        .collect()
}

/// The names of the claims a pod uses, those of its own volumes included.
pub fn claims(pod: &Value) -> Vec<String> {
    let [namespace, name] = ["namespace", "name"].map(|field| text(&pod["metadata"][field]));
    let volumes = items(&pod["spec"]["volumes"]);
    let claims = volumes.filter_map(|volume| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
        let own = volume["ephemeral"].is_object();
        let own = own.then(|| format!("{namespace}/{name}-{}", text(&volume["name"])));
        claim.map(|claim| format!("{namespace}/{claim}")).or(own)
    });
    claims.collect()
}

impl World {
    pub fn running(&self) -> impl Iterator<Item = &Value> {
        self.pods
            .values()
            .filter(|pod| pod["spec"]["nodeName"].is_string())
    }

    pub fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Value> {
        self.running()
            .filter(move |pod| pod["spec"]["nodeName"] == node)
    }

    /// Why the pod may not run on the node, as things are.
    pub fn objection(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let object = &self.nodes[node];
        let cordon = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
        if object["spec"]["unschedulable"] == true
            && !items(&pod["spec"]["tolerations"]).any(|one| tolerates(one, &cordon))
        {
            return Some("cordoned");
        }
        if is_tainted_for(pod, object) {
            return Some("tainted");
        }
        if !is_chosen_by(pod, object) {
            return Some("node affinity");
        }
        self.resources(pod, node)
            .or_else(|| self.ports(pod, node))
            .or_else(|| self.disks(pod, node))
            .or_else(|| self.volumes(pod, node))
            .or_else(|| {
                let is_bound = |key: &str| self.claims.contains_key(key);
                self.unbound.objection(pod, object, is_bound)
            })
            .or_else(|| self.devices.objection(pod, object))
            .or_else(|| self.affinity(pod, node))
            .or_else(|| self.spread(pod, node))
    }

    fn resources(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let have = &self.nodes[node]["status"]["allocatable"];
        if self.on(node).count() as i64 + 1 > number(&have["pods"]) / 1000 {
            return Some("pods");
        }
        for name in ["cpu", "memory", "ephemeral-storage", "example.com/gpu"] {
            let used: i64 = self.on(node).map(|pod| asks(pod, name)).sum();
            let asked = asks(pod, name);
            if asked > 0 && used + asked > number(&have[name]) {
                return Some("resources");
            }
        }
        None
    }

    fn ports(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let wanted = host_ports(pod);
        let collide = |one: &(String, String, i64), other: &(String, String, i64)| {
            let any = "0.0.0.0";
            (&one.1, one.2) == (&other.1, other.2)
                && (one.0 == other.0 || one.0 == any || other.0 == any)
        };
        let mut used = self.on(node).flat_map(host_ports);
        used.any(|other| wanted.iter().any(|one| collide(one, &other)))
            .then_some("port")
    }

    /// Disks without a claim, which only readers share.
    fn disks(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let disks = |pod: &Value| -> Vec<(String, bool)> {
            let all = items(&pod["spec"]["volumes"]).map(|volume| &volume["gcePersistentDisk"]);
            all.filter(|disk| disk.is_object())
                .map(|disk| (text(&disk["pdName"]).into(), disk["readOnly"] == true))
                .collect()
        };
        let wanted = disks(pod);
        let mut used = self.on(node).flat_map(disks);
        used.any(|(name, reads)| {
            wanted
                .iter()
                .any(|(other, also)| *other == name && !(reads && *also))
        })
        .then_some("disk")
    }

    /// Claims: where their volumes are, how many the node takes, and those that one pod has to itself.
    fn volumes(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let object = &self.nodes[node];
        let labels = &object["metadata"]["labels"];
        let handle = |key: &String| text(&self.claims[key].1["spec"]["csi"]["volumeHandle"]);
        let bound = |pod: &Value| -> Vec<String> {
            let mut all = claims(pod);
            all.retain(|key| self.claims.contains_key(key));
            all
        };
        for key in bound(pod) {
            let (claim, volume) = &self.claims[&key];
            let is_alone =
                items(&claim["spec"]["accessModes"]).any(|mode| mode == "ReadWriteOncePod");
            if is_alone && self.running().any(|other| claims(other).contains(&key)) {
                return Some("a claim for one pod");
            }
            let zone = &volume["metadata"]["labels"][super::ZONE];
            if !zone.is_null() && !labels[super::ZONE].is_null() && labels[super::ZONE] != *zone {
                return Some("the volume's zone");
            }
            let required = &volume["spec"]["nodeAffinity"]["required"];
            if !required.is_null() && !wants_node(required, object) {
                return Some("the volume's node affinity");
            }
        }
        let new = bound(pod);
        let used: Vec<String> = self.on(node).flat_map(bound).collect();
        // Volumes of no driver are not counted.
        let handles = |keys: &Vec<String>| -> BTreeSet<String> {
            let all = keys.iter().map(handle).filter(|handle| !handle.is_empty());
            all.map(str::to_owned).collect()
        };
        let used = handles(&used);
        let all: BTreeSet<String> = handles(&new).union(&used).cloned().collect();
        let limit = self.limits.get(node).copied().unwrap_or(usize::MAX);
        (all.len() > used.len() && all.len() > limit).then_some("volume count")
    }

    fn label(&self, node: &str, key: &str) -> &Value {
        const NONE: &Value = &Value::Null;
        self.nodes
            .get(node)
            .map_or(NONE, |node| &node["metadata"]["labels"][key])
    }

    /// Whether a term of one pod's affinity is about another.
    fn is_about(&self, term: &Value, owner: &Value, other: &Value) -> bool {
        let namespace = text(&other["metadata"]["namespace"]);
        let named = items(&term["namespaces"]).any(|one| one == namespace);
        let selector = &term["namespaceSelector"];
        let by_label = selector.is_object()
            && self
                .namespaces
                .get(namespace)
                .is_some_and(|labels| selects(selector, labels));
        let own = !term["namespaces"].is_array()
            && !selector.is_object()
            && owner["metadata"]["namespace"] == namespace;
        (named || by_label || own) && selects(&term["labelSelector"], &other["metadata"]["labels"])
    }

    /// Whether a running pod is where the node is, as a term sees it.
    fn is_near(&self, term: &Value, other: &Value, node: &str) -> bool {
        let key = text(&term["topologyKey"]);
        let here = self.label(node, key);
        !here.is_null() && here == self.label(text(&other["spec"]["nodeName"]), key)
    }

    fn affinity(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let near = terms(pod, "podAffinity");
        if !near.is_empty() {
            let is_wanted = |other: &Value| near.iter().all(|term| self.is_about(term, pod, other));
            let wanted: Vec<&Value> = self.running().filter(|other| is_wanted(other)).collect();
            let has_labels =
                |node: &str, term: &Value| !self.label(node, text(&term["topologyKey"])).is_null();
            let is_counted = |other: &&&Value| {
                let there = text(&other["spec"]["nodeName"]);
                near.iter().any(|term| has_labels(there, term))
            };
            let is_first = wanted.iter().filter(is_counted).count() == 0 && is_wanted(pod);
            let all_near = near
                .iter()
                .all(|term| wanted.iter().any(|other| self.is_near(term, other, node)));
            if !near.iter().all(|term| has_labels(node, term)) || !(all_near || is_first) {
                return Some("affinity");
            }
        }
        for term in terms(pod, "podAntiAffinity") {
            let mut others = self.running();
            if others
                .any(|other| self.is_about(term, pod, other) && self.is_near(term, other, node))
            {
                return Some("anti-affinity");
            }
        }
        for other in self.running() {
            for term in terms(other, "podAntiAffinity") {
                if self.is_about(term, other, pod) && self.is_near(term, other, node) {
                    return Some("the others' anti-affinity");
                }
            }
        }
        None
    }

    fn spread(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let all = items(&pod["spec"]["topologySpreadConstraints"]);
        let hard: Vec<&Value> = all
            .filter(|one| one["whenUnsatisfiable"] == "DoNotSchedule")
            .collect();
        let keys: Vec<&str> = hard.iter().map(|one| text(&one["topologyKey"])).collect();
        hard.iter()
            .find_map(|constraint| self.skew(constraint, &keys, pod, node))
    }

    fn skew(
        &self,
        constraint: &Value,
        keys: &[&str],
        pod: &Value,
        node: &str,
    ) -> Option<&'static str> {
        let key = text(&constraint["topologyKey"]);
        let here = self.label(node, key);
        if here.is_null() {
            return Some("spread: no label");
        }
        let takes_part = |node: &Value| {
            let labels = &node["metadata"]["labels"];
            keys.iter().all(|key| !labels[*key].is_null())
                && (constraint["nodeAffinityPolicy"] == "Ignore" || is_chosen_by(pod, node))
                && (constraint["nodeTaintsPolicy"] != "Honor" || !is_tainted_for(pod, node))
        };
        let labels = &pod["metadata"]["labels"];
        let is_counted = |other: &Value| {
            let of_keys = items(&constraint["matchLabelKeys"]).map(text);
            let mut of_keys = of_keys.filter(|key| !labels[*key].is_null());
            other["metadata"]["namespace"] == pod["metadata"]["namespace"]
                && other["metadata"]["deletionTimestamp"].is_null()
                && selects(&constraint["labelSelector"], &other["metadata"]["labels"])
                && of_keys.all(|key| other["metadata"]["labels"][key] == labels[key])
        };
        let mut domains: BTreeMap<String, i64> = BTreeMap::new();
        for (name, object) in self.nodes.iter().filter(|(_, node)| takes_part(node)) {
            let domain = object["metadata"]["labels"][key].to_string();
            let pods = self.on(name).filter(|other| is_counted(other)).count();
            *domains.entry(domain).or_default() += pods as i64;
        }
        let wanted = constraint["minDomains"].as_u64().unwrap_or(1) as usize;
        let least = match domains.len() < wanted {
            true => 0,
            false => domains.values().min().copied().unwrap_or(0),
        };
        let own = i64::from(is_counted(pod));
        let skew = domains.get(&here.to_string()).copied().unwrap_or(0) + own - least;
        (skew > constraint["maxSkew"].as_i64()?).then_some("spread: skew")
    }
}
