//! Nodes, pods and claims made by chance.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::{HOST, ZONE, mk_node};

/// Claims there are in each namespace.
const CLAIMS: usize = 8;
const NAMESPACES: [&str; 2] = ["default", "other"];
const APPS: [&str; 3] = ["app-0", "app-1", "app-2"];

fn one<'a>(random: &mut StdRng, of: &[&'a str]) -> &'a str {
    of.choose(random).copied().unwrap_or("")
}

pub fn random_node(random: &mut StdRng, name: &str) -> Value {
    let mut node = mk_node(name);
    if random.random_bool(0.8) {
        node["metadata"]["labels"][ZONE] = json!(format!("zone-{}", random.random_range(0..3)));
    }
    if random.random_bool(0.5) {
        node["metadata"]["labels"]["disk"] = json!("ssd");
    }
    if random.random_bool(0.7) {
        node["metadata"]["labels"]["cores"] = json!(random.random_range(1..5).to_string());
    }
    node["status"]["allocatable"] = json!({
        "cpu": format!("{}", random.random_range(1..6)), "memory": format!("{}Gi", random.random_range(1..8)),
        "ephemeral-storage": "4Gi", "pods": format!("{}", random.random_range(2..8)),
    });
    if random.random_bool(0.2) {
        node["status"]["allocatable"]["example.com/gpu"] = json!("2");
    }
    if random.random_bool(0.25) {
        let effect = one(random, &["NoSchedule", "NoExecute", "PreferNoSchedule"]);
        let value = one(random, &["", "a", "b"]);
        node["spec"]["taints"] = json!([{"key": "dedicated", "value": value, "effect": effect}]);
    }
    if random.random_bool(0.1) {
        node["spec"]["unschedulable"] = json!(true);
    }
    node
}

/// Claims with their volumes, which are somewhere.
pub fn random_claims(random: &mut StdRng) -> Vec<(String, Value, Value)> {
    let mut all = Vec::new();
    for namespace in NAMESPACES {
        for number in 0..CLAIMS {
            let (name, volume) = (format!("c{number}"), format!("{namespace}-v{number}"));
            let mode = one(
                random,
                &["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"],
            );
            let claim = json!({
                "metadata": {"name": name, "namespace": namespace, "uid": volume,
                    "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": volume, "accessModes": [mode]}, "status": {"phase": "Bound"},
            });
            // Two claims may be of one disk.
            let handle = format!("{namespace}-{}", number / 2);
            let mut volume = json!({
                "metadata": {"name": volume, "labels": {}},
                "spec": {"accessModes": [mode], "csi": {"driver": "d.io", "volumeHandle": handle},
                    "claimRef": {"namespace": namespace, "name": name, "uid": volume}},
                "status": {"phase": "Bound"},
            });
            if random.random_bool(0.3) {
                let zone = format!("zone-{}", random.random_range(0..3));
                volume["metadata"]["labels"][ZONE] = json!(zone);
            }
            if random.random_bool(0.3) {
                let host = format!("node-{}", random.random_range(0..4));
                volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = json!([
                    {"matchExpressions": [{"key": HOST, "operator": "NotIn", "values": [host]}]}]);
            }
            all.push((format!("{namespace}/{name}"), claim, volume));
        }
    }
    all
}

fn random_requests(random: &mut StdRng) -> Value {
    let mut requests = json!({});
    if random.random_bool(0.8) {
        requests["cpu"] = json!(format!("{}m", random.random_range(0..20) * 100));
    }
    if random.random_bool(0.8) {
        requests["memory"] = json!(format!("{}Mi", random.random_range(0..20) * 100));
    }
    if random.random_bool(0.1) {
        requests["ephemeral-storage"] = json!("1Gi");
    }
    if random.random_bool(0.1) {
        requests["example.com/gpu"] = json!("1");
    }
    requests
}

pub fn random_pod(random: &mut StdRng, name: &str) -> Value {
    let labels = json!({"app": one(random, &APPS), "version": one(random, &["1", "2"])});
    let namespace = if random.random_bool(0.8) {
        "default"
    } else {
        "other"
    };
    let mut pod = json!({
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels},
        "spec": {"schedulerName": "default-scheduler", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": random_requests(random)}}]},
    });
    add_containers(random, &mut pod);
    add_ports(random, &mut pod["spec"]);
    add_node_rules(random, &mut pod["spec"]);
    add_pod_rules(random, &mut pod["spec"]);
    add_volumes(random, &mut pod["spec"]);
    if random.random_bool(0.3) {
        pod["spec"]["priority"] = json!(random.random_range(0..3) * 100);
    }
    pod
}

/// Further containers, what the pod asks for as a whole, and what it has already.
fn add_containers(random: &mut StdRng, pod: &mut Value) {
    let spec = &mut pod["spec"];
    if random.random_bool(0.2) {
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}});
        let init = json!({"name": "i", "resources": {"requests": random_requests(random)}});
        let mut both = [sidecar, init];
        if random.random_bool(0.5) {
            both.reverse();
        }
        spec["initContainers"] = json!(both);
    }
    if random.random_bool(0.15) {
        spec["overhead"] = json!({"cpu": "100m", "memory": "128Mi"});
    }
    if random.random_bool(0.1) {
        spec["resources"] = json!({"requests": {"cpu": "700m"}});
    }
    if random.random_bool(0.15) {
        let amount =
            |random: &mut StdRng| json!({"cpu": format!("{}m", random.random_range(1..15) * 100)});
        pod["status"] = json!({"containerStatuses": [{"name": "c", "allocatedResources": amount(random),
            "resources": {"requests": amount(random)}}]});
        if random.random_bool(0.3) {
            pod["status"]["conditions"] =
                json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        }
    }
}

fn add_ports(random: &mut StdRng, spec: &mut Value) {
    if !random.random_bool(0.25) {
        return;
    }
    let mut port = json!({"containerPort": 80, "hostPort": random.random_range(8000..8003)});
    if random.random_bool(0.3) {
        port["protocol"] = json!("UDP");
    }
    if random.random_bool(0.3) {
        port["hostIP"] = json!(one(random, &["127.0.0.1", "0.0.0.0"]));
    }
    let inits = spec.get_mut("initContainers");
    let mut inits = inits.and_then(Value::as_array_mut).into_iter().flatten();
    let sidecar = inits.find(|one| one["name"] == "s");
    match sidecar.filter(|_| random.random_bool(0.5)) {
        Some(sidecar) => sidecar["ports"] = json!([port]),
        None => spec["containers"][0]["ports"] = json!([port]),
    }
}

fn add_node_rules(random: &mut StdRng, spec: &mut Value) {
    if random.random_bool(0.4) {
        spec["tolerations"] = match random.random_range(0..5) {
            0 => json!([{"operator": "Exists"}]),
            1 => json!([{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]),
            2 => json!([{"key": "dedicated", "value": "a"}]),
            3 => json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            _ => json!([{"key": "dedicated", "operator": "Exists"}]),
        };
    }
    if random.random_bool(0.2) {
        spec["nodeSelector"] = json!({"disk": "ssd"});
    }
    if random.random_bool(0.25) {
        let expression = |random: &mut StdRng| match random.random_range(0..6) {
            0 => json!({"key": "cores", "operator": "Gt", "values": ["2"]}),
            1 => json!({"key": "cores", "operator": "Lt", "values": ["4"]}),
            2 => json!({"key": "disk", "operator": "DoesNotExist"}),
            3 => json!({"key": ZONE, "operator": "NotIn", "values": ["zone-0"]}),
            4 => json!({"key": ZONE, "operator": "Exists"}),
            _ => json!({"key": ZONE, "operator": "In", "values": ["zone-1", "zone-2"]}),
        };
        let mut terms: Vec<Value> = (0..random.random_range(1..3))
            .map(|_| json!({"matchExpressions": [expression(random)]}))
            .collect();
        if random.random_bool(0.3) {
            let names: Vec<String> = (0..3).map(|number| format!("node-{number}")).collect();
            let field = json!({"key": "metadata.name", "operator": "In", "values": names});
            for term in &mut terms {
                term["matchFields"] = json!([field]);
            }
        }
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": terms});
    }
}

fn random_key(random: &mut StdRng) -> &'static str {
    if random.random_bool(0.5) { ZONE } else { HOST }
}

fn random_selector(random: &mut StdRng) -> Value {
    json!({"matchLabels": {"app": one(random, &APPS)}})
}

fn random_term(random: &mut StdRng) -> Value {
    let mut term =
        json!({"labelSelector": random_selector(random), "topologyKey": random_key(random)});
    match random.random_range(0..8) {
        0 => term["namespaces"] = json!(["other"]),
        1 => term["namespaces"] = json!(["default", "other"]),
        2 => term["namespaceSelector"] = json!({"matchLabels": {"team": "x"}}),
        3 => term["namespaceSelector"] = json!({}),
        _ => {}
    }
    term
}

fn add_pod_rules(random: &mut StdRng, spec: &mut Value) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    if random.random_bool(0.12) {
        let terms: Vec<Value> = (0..random.random_range(1..3))
            .map(|_| random_term(random))
            .collect();
        spec["affinity"]["podAffinity"][REQUIRED] = json!(terms);
    }
    if random.random_bool(0.2) {
        let terms: Vec<Value> = (0..random.random_range(1..3))
            .map(|_| random_term(random))
            .collect();
        spec["affinity"]["podAntiAffinity"][REQUIRED] = json!(terms);
    }
    if random.random_bool(0.35) {
        let mut keys = vec![ZONE, HOST];
        if random.random_bool(0.7) {
            keys = vec![random_key(random)];
        }
        let constraints: Vec<Value> = keys
            .into_iter()
            .map(|key| random_spread(random, key))
            .collect();
        spec["topologySpreadConstraints"] = json!(constraints);
    }
}

fn random_spread(random: &mut StdRng, key: &str) -> Value {
    let is_hard = random.random_bool(0.7);
    let when = if is_hard {
        "DoNotSchedule"
    } else {
        "ScheduleAnyway"
    };
    let mut constraint = json!({
        "maxSkew": random.random_range(1..3), "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": random_selector(random),
    });
    if is_hard && random.random_bool(0.3) {
        constraint["minDomains"] = json!(random.random_range(1..5));
    }
    if random.random_bool(0.3) {
        constraint["nodeAffinityPolicy"] = json!(one(random, &["Honor", "Ignore"]));
    }
    if random.random_bool(0.3) {
        constraint["nodeTaintsPolicy"] = json!(one(random, &["Honor", "Ignore"]));
    }
    if random.random_bool(0.2) {
        constraint["matchLabelKeys"] = json!(["version", "absent"]);
    }
    constraint
}

fn add_volumes(random: &mut StdRng, spec: &mut Value) {
    let mut volumes = Vec::new();
    if random.random_bool(0.15) {
        let reads = random.random_bool(0.5);
        volumes.push(json!({"name": "d", "gcePersistentDisk": {
            "pdName": one(random, &["x", "y"]), "readOnly": reads}}));
    }
    if random.random_bool(0.3) {
        for number in 0..random.random_range(1..3) {
            let claim = format!("c{}", random.random_range(0..CLAIMS));
            volumes.push(json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": claim}}));
        }
    }
    if !volumes.is_empty() {
        spec["volumes"] = json!(volumes);
    }
}
