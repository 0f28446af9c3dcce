//! Random clusters: every decision is checked against a reference that knows nothing of sums, counts or indexes and
//! works each rule out from the objects as they stand. And several schedulers race for the same pods.

mod devices;
mod objects;
mod reference;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::cluster::testing::{mk_node, mk_pod};
use devices::{add_claims, random_slices, shared_claims};
use objects::{random_claims, random_node, random_pod};
use reference::{World, claims, items, text, wants_node};
use volumes::{add_volumes, is_provisioned, random_volumes, suits, waiting_claims};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

fn key(object: &Value) -> String {
    let meta = &object["metadata"];
    format!("{}/{}", text(&meta["namespace"]), text(&meta["name"]))
}

mod decisions {
    use std::sync::Arc;

    use super::*;
    use crate::{
        cluster::Cluster,
        cycle::Scheduler,
        node::node,
        plugins::{dynamic_resources, volume_binding},
        pod::{Pod, pod},
        preemption::Nomination,
        profile::Profile,
    };

    /// The scheduler's own view beside the plain one.
    struct Both {
        world: World,
        cluster: Cluster,
        scheduler: Scheduler,
        random: StdRng,
        next: usize,
    }

    impl Both {
        /// Namespaces, claims, and how many volumes nodes take.
        fn begin(&mut self, random: &mut StdRng) {
            for (name, labels) in [("default", json!({})), ("other", json!({"team": "x"}))] {
                let own = serde_json::from_value(labels.clone()).expect("labels");
                self.cluster.set_namespace(name, Some(own));
                self.world.namespaces.insert(name.into(), labels);
            }
            self.begin_unbound(random);
            let storage = &mut self.cluster.storage;
            for (key, claim, volume) in random_claims(random) {
                let name = volume["metadata"]["name"]
                    .as_str()
                    .unwrap_or("")
                    .to_string();
                let read = serde_json::from_value(volume.clone()).expect("a volume");
                storage.set_volume(&name, Some(Arc::new(read)));
                let read = serde_json::from_value(claim.clone()).expect("a claim");
                storage.claims.insert(key.clone(), Arc::new(read));
                self.world.claims.insert(key, (claim, volume));
            }
            for number in 0..6 {
                let (name, count) = (format!("node-{number}"), random.random_range(1..4));
                let node = json!({"spec": {"drivers": [{"name": "d.io", "allocatable": {"count": count}}]}});
                let node = serde_json::from_value(node).expect("a CSINode");
                storage.csi_nodes.insert(name.clone(), Arc::new(node));
                self.world.limits.insert(name, count);
            }
        }

        /// Devices, and claims and volumes that are still to find each other.
        fn begin_unbound(&mut self, random: &mut StdRng) {
            let storage = &mut self.cluster.storage;
            for class in super::devices::classes() {
                let name = text(&class["metadata"]["name"]).to_string();
                let class = serde_json::from_value(class).expect("a class");
                storage.device_classes.insert(name, Arc::new(class));
            }
            for slice in random_slices(random) {
                let name = text(&slice["metadata"]["name"]).to_string();
                let read = serde_json::from_value(slice.clone()).expect("a slice");
                storage.slices.insert(name, Arc::new(read));
                self.world.devices.slices.push(slice);
            }
            for claim in shared_claims(random) {
                self.put_device_claim(claim);
            }
            let storage = &mut self.cluster.storage;
            for class in super::volumes::classes() {
                let name = text(&class["metadata"]["name"]).to_string();
                let class = serde_json::from_value(class).expect("a class");
                storage.classes.insert(name, Arc::new(class));
            }
            for volume in random_volumes(random) {
                let name = text(&volume["metadata"]["name"]).to_string();
                let read = serde_json::from_value(volume.clone()).expect("a volume");
                storage.set_volume(&name, Some(Arc::new(read)));
                self.world.unbound.volumes.insert(name, volume);
            }
            for claim in waiting_claims(random) {
                self.put_claim(claim);
            }
        }

        fn put_device_claim(&mut self, claim: Value) {
            let key = key(&claim);
            let read = serde_json::from_value(claim.clone()).expect("a claim");
            let storage = &mut self.cluster.storage;
            storage.set_resource_claim(&key, Some(Arc::new(read)));
            self.world.devices.claims.insert(key, claim);
        }

        fn put_claim(&mut self, claim: Value) {
            let key = key(&claim);
            let read = serde_json::from_value(claim.clone()).expect("a claim");
            let storage = &mut self.cluster.storage;
            storage.claims.insert(key.clone(), Arc::new(read));
            self.world.unbound.claims.insert(key, claim);
        }

        /// Gives a pod its volumes and devices on its node, checks them, and shows them as the API would.
        fn give(&mut self, parsed: &Arc<Pod>, value: &Value, node: &str) {
            let index = self.cluster.find_node(node).expect("it is there").index;
            if let Some(plan) = volume_binding::reserve(parsed, &mut self.cluster, index) {
                for (volume, claim) in &plan.bind {
                    let free = self.world.unbound.volumes.remove(&volume.metadata.name);
                    self.bind(
                        &claim.metadata.key(),
                        free.expect("it is free"),
                        node,
                        false,
                    );
                }
                for claim in &plan.provision {
                    let term = json!({"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]});
                    let class = claim.class();
                    let name = format!("made-{}-{}", claim.metadata.namespace, claim.metadata.name);
                    let volume = json!({"metadata": {"name": name}, "status": {}, "spec": {
                        "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}});
                    self.bind(&claim.metadata.key(), volume, node, true);
                }
                for claim in &plan.claims {
                    self.cluster.storage.forget(claim);
                }
            }
            for claim in claims(value) {
                assert!(
                    self.world.claims.contains_key(&claim),
                    "{claim} has no volume"
                );
            }
            for plan in dynamic_resources::reserve(parsed, &mut self.cluster, index) {
                let mut key = plan.claim.metadata.key();
                if let Some(extended) = &plan.extended {
                    let meta = &value["metadata"];
                    let name = format!("{}-extended", text(&meta["name"]));
                    let owner = json!({"kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": true});
                    let meta = json!({"name": name, "namespace": meta["namespace"], "ownerReferences": [owner],
                        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}});
                    let claim = json!({"metadata": meta, "spec": extended.spec, "status": {}});
                    key = super::key(&claim);
                    self.world.devices.claims.insert(key.clone(), claim);
                }
                let object = &self.world.nodes[node];
                let devices = &mut self.world.devices;
                let shown = devices.give(&key, plan.allocation.as_ref(), value, object);
                let version = text(&shown["metadata"]["resourceVersion"]).to_string();
                let read = serde_json::from_value(shown).expect("a claim");
                let storage = &mut self.cluster.storage;
                // The watch may be sooner, or later, than the answer to the write.
                let is_sooner = self.random.random_bool(0.5);
                if is_sooner {
                    storage.set_resource_claim(&key, Some(Arc::new(read)));
                }
                match plan.extended {
                    Some(_) => storage.special_written(&parsed.uid, &key, &version),
                    None => storage.claim_written(&key, &version),
                }
                if !is_sooner {
                    let shown = &self.world.devices.claims[&key];
                    let read = serde_json::from_value(shown.clone()).expect("a claim");
                    storage.set_resource_claim(&key, Some(Arc::new(read)));
                }
            }
        }

        fn bind(&mut self, key: &str, mut volume: Value, node: &str, is_made: bool) {
            let mut claim = self.world.unbound.claims.remove(key).expect("it waits");
            let object = &self.world.nodes[node];
            match is_made {
                true => assert!(is_provisioned(&claim, object), "{claim} on {object}"),
                false => assert!(
                    suits(&volume, &claim, object),
                    "{volume} for {claim} on {node}"
                ),
            }
            let meta = claim["metadata"].clone();
            volume["spec"]["claimRef"] =
                json!({"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]});
            volume["status"]["phase"] = json!("Bound");
            let name = text(&volume["metadata"]["name"]).to_string();
            claim["spec"]["volumeName"] = json!(name);
            claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
            claim["status"]["phase"] = json!("Bound");
            let storage = &mut self.cluster.storage;
            let read = serde_json::from_value(volume.clone()).expect("a volume");
            storage.set_volume(&name, Some(Arc::new(read)));
            let read = serde_json::from_value(claim.clone()).expect("a claim");
            storage.claims.insert(key.into(), Arc::new(read));
            self.world.claims.insert(key.into(), (claim, volume));
        }

        /// A running pod begins to end: it goes on taking what it has, and counts for nothing where pods are spread.
        fn end(&mut self) {
            let running = self.world.pods.keys().cloned().collect::<Vec<_>>();
            if running.is_empty() {
                return;
            }
            let uid = &running[self.random.random_range(0..running.len())];
            if let Some(value) = self.world.pods.get_mut(uid) {
                value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                self.cluster.set_pod(Arc::new(pod(value.clone())));
            }
        }

        fn place(&mut self, mut value: Value, node: &str) {
            value["spec"]["nodeName"] = json!(node);
            let parsed = pod(value.clone());
            self.world.pods.insert(parsed.uid.to_string(), value);
            self.cluster.set_pod(Arc::new(parsed));
        }

        fn remove(&mut self, uid: &str) {
            let value = self.world.pods.remove(uid);
            self.cluster.remove_pod(uid);
            for (key, claim) in self.world.devices.free(uid) {
                let read = claim.map(|claim| serde_json::from_value(claim).expect("a claim"));
                let storage = &mut self.cluster.storage;
                storage.set_resource_claim(&key, read.map(Arc::new));
            }
            // Volumes of its own go with it.
            for key in value
                .iter()
                .flat_map(claims)
                .filter(|key| key.ends_with("-own"))
            {
                self.cluster.storage.claims.remove(&key);
                if let Some((_, volume)) = self.world.claims.remove(&key) {
                    let name = text(&volume["metadata"]["name"]);
                    self.cluster.storage.set_volume(name, None);
                }
            }
        }

        /// Lets the scheduler decide, checks what it says, and does it.
        fn schedule(&mut self) {
            self.next += 1;
            let mut value = random_pod(&mut self.random, &format!("pod-{}", self.next));
            if let Some(claim) = add_claims(&mut self.random, &mut value) {
                self.put_device_claim(claim);
            }
            for claim in add_volumes(&mut self.random, &mut value) {
                self.put_claim(claim);
            }
            let parsed = Arc::new(pod(value.clone()));
            let fitting = |world: &World| -> BTreeSet<String> {
                let names = world
                    .nodes
                    .keys()
                    .filter(|name| world.objection(&value, name).is_none());
                names.cloned().collect()
            };
            let possible = fitting(&self.world);
            match self
                .scheduler
                .schedule(&parsed, &Profile::default(), &mut self.cluster)
            {
                Ok(index) => {
                    let node = self.cluster.node(index).name.clone();
                    let objection = self.world.objection(&value, &node);
                    assert_eq!(objection, None, "{node} was chosen for {value}");
                    self.give(&parsed, &value, &node);
                    self.place(value, &node);
                }
                Err(failure) => {
                    assert!(
                        possible.is_empty(),
                        "{possible:?} would fit {value}: {}",
                        failure.error
                    );
                    if let Nomination::Set { best, .. } = failure.nomination {
                        let (node, victims) = (best.node, best.victims);
                        self.evict(&parsed, value, node, &victims);
                    }
                }
            }
        }

        /// The victims are lesser pods of the node, and without them, but with all others, the pod fits.
        fn evict(&mut self, parsed: &Arc<Pod>, value: Value, node: usize, victims: &[Arc<Pod>]) {
            let node = self.cluster.node(node).name.clone();
            for victim in victims {
                assert!(
                    victim.priority < parsed.priority,
                    "{} goes for {}",
                    victim.name,
                    parsed.name
                );
                assert_eq!(victim.node_name, node);
                self.remove(&victim.uid);
            }
            assert_eq!(
                self.world.objection(&value, &node),
                None,
                "{node} after evictions for {value}"
            );
            // None of them could have stayed.
            for victim in victims {
                let kept = self.world.pods.len();
                self.world
                    .pods
                    .insert(victim.uid.to_string(), rebuilt(victim));
                assert!(
                    self.world.objection(&value, &node).is_some(),
                    "{} need not go for {value}",
                    victim.name
                );
                self.world.pods.remove(&*victim.uid);
                assert_eq!(self.world.pods.len(), kept);
            }
            self.give(parsed, &value, &node);
            self.place(value, &node);
        }

        fn churn(&mut self) {
            match self.random.random_range(0..12) {
                11 => self.end(),
                0 => {
                    let name = format!("node-{}", self.random.random_range(0..12));
                    let mut value = random_node(&mut self.random, &name);
                    // What runs there goes on running, so it must not shrink below that.
                    if self.world.on(&name).next().is_some() {
                        value["status"] = self.world.nodes[&name]["status"].clone();
                    }
                    self.cluster.set_node(Arc::new(node(value.clone())));
                    self.world.nodes.insert(name, value);
                }
                1..=2 => {
                    let running: Vec<String> = self.world.pods.keys().cloned().collect();
                    if !running.is_empty() {
                        let uid = running[self.random.random_range(0..running.len())].clone();
                        self.remove(&uid);
                    }
                }
                _ => self.schedule(),
            }
        }
    }

    thread_local! {
        static OBJECTS: std::cell::RefCell<BTreeMap<String, Value>> = const { std::cell::RefCell::new(BTreeMap::new()) };
    }

    /// The object a pod was read from.
    fn rebuilt(pod: &Pod) -> Value {
        OBJECTS.with_borrow(|all| all.get(&*pod.uid).cloned().expect("it was placed"))
    }

    fn run(seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut both = Both {
            world: World::default(),
            cluster: Cluster::default(),
            scheduler: Scheduler::default(),
            next: 0,
            random: StdRng::seed_from_u64(seed ^ 1),
        };
        both.begin(&mut random);
        for number in 0..random.random_range(1..10) {
            let name = format!("node-{number}");
            let value = random_node(&mut random, &name);
            both.cluster.set_node(Arc::new(node(value.clone())));
            both.world.nodes.insert(name, value);
        }
        for _ in 0..80 {
            both.churn();
            let running = both.world.running();
            OBJECTS.with_borrow_mut(|all| {
                all.extend(running.map(|pod| {
                    (
                        pod["metadata"]["uid"].as_str().unwrap_or("").to_string(),
                        pod.clone(),
                    )
                }));
            });
        }
    }

    #[test]
    fn a_pod_goes_where_the_reference_lets_it_and_nowhere_only_if_there_is_no_such_node() {
        let rounds = std::env::var("ROUNDS")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(150);
        for seed in 0..rounds {
            let result = std::panic::catch_unwind(|| run(seed));
            if let Err(panic) = result {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

mod race {
    use std::time::Duration;

    use api::r::{
        DEVICECLASSES, NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS, RESOURCECLAIMS,
        RESOURCESLICES, STORAGECLASSES,
    };
    use client::fake::Server;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::SchedulerConfig;

    const SCHEDULERS: usize = 3;

    /// The bindings the server accepted, in order: pod and node.
    fn bindings(server: &Server) -> Vec<(String, String)> {
        let calls = server.requests_of("POST", "/binding").into_iter();
        calls
            .map(|call| {
                let text = |value: &Value| value.as_str().unwrap_or("").to_string();
                (
                    text(&call.body["metadata"]["uid"]),
                    text(&call.body["target"]["name"]),
                )
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn racing_schedulers_bind_each_pod_once_and_none_where_its_scheduler_saw_no_room() {
        for seed in 0..5 {
            let server = Server::default();
            let mut random = StdRng::seed_from_u64(seed);
            let mut world = World::default();
            for number in 0..6 {
                let name = format!("node-{number}");
                let node = random_node(&mut random, &name);
                server.put(&NODES, node.clone());
                world.nodes.insert(name, node);
            }
            let shutdown = CancellationToken::new();
            for _ in 0..SCHEDULERS {
                let config = SchedulerConfig {
                    leader_elect: false,
                    ..SchedulerConfig::default()
                };
                tokio::spawn(crate::run(server.client(), config, shutdown.clone()));
            }
            let mut left = Vec::new();
            for number in 0..40 {
                let mut pod = random_pod(&mut random, &format!("pod-{number}"));
                // Nobody is evicted here, and what depends on others is checked in turn below.
                pod["spec"]["priority"] = json!(0);
                // Nor are there claims, or other namespaces.
                pod["spec"]["volumes"] = json!([]);
                pod["metadata"]["namespace"] = json!("default");
                server.put(&PODS, pod.clone());
                left.push(pod);
                if number % 4 == 0 {
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(30)).await;
            shutdown.cancel();
            tokio::time::sleep(Duration::from_secs(2)).await;
            let tried = bindings(&server);
            let mut bound = BTreeSet::new();
            for pod in server.list(&PODS) {
                let Some(node) = pod["spec"]["nodeName"].as_str() else {
                    continue;
                };
                let uid = pod["metadata"]["uid"].as_str().unwrap_or("").to_string();
                // The node it has is the one of the first Binding that was sent for it: no later one moved it.
                let first = tried.iter().find(|(other, _)| *other == uid);
                assert_eq!(
                    first.map(|(_, node)| node.as_str()),
                    Some(node),
                    "seed {seed}"
                );
                assert!(bound.insert(uid));
            }
            assert!(!bound.is_empty(), "seed {seed}: something fits");
            // A pod that is bound by one is let go by the others: nobody tries it for ever.
            assert!(
                tried.len() <= bound.len() * SCHEDULERS,
                "seed {seed}: {} tries",
                tried.len()
            );
            // What each node took, without the decisions that others made at the same time, is within bounds: the
            // rules of a node itself hold whoever decides.
            for pod in server.list(&PODS) {
                let Some(node) = pod["spec"]["nodeName"].as_str() else {
                    continue;
                };
                let alone = World {
                    nodes: world.nodes.clone(),
                    ..World::default()
                };
                let mut pod = pod.clone();
                for kind in ["podAffinity", "podAntiAffinity"] {
                    pod["spec"]["affinity"][kind] = Value::Null;
                }
                pod["spec"]["topologySpreadConstraints"] = Value::Null;
                assert_eq!(alone.objection(&pod, node), None, "seed {seed}");
            }
        }
    }

    /// Binds claims and volumes that are meant for each other, and makes those that are asked for, as controllers do.
    async fn bind_volumes(server: Server) {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for volume in server.list(&PERSISTENTVOLUMES) {
                let claim = server.get(&PERSISTENTVOLUMECLAIMS, &key_of_claim(&volume));
                if let Some(claim) = claim.filter(|claim| claim["spec"]["volumeName"].is_null()) {
                    bind(&server, claim, volume);
                }
            }
            for claim in server.list(&PERSISTENTVOLUMECLAIMS) {
                let node = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
                if node.is_null() || claim["spec"]["volumeName"].is_string() {
                    continue;
                }
                let term = json!({"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]});
                let meta = &claim["metadata"];
                let volume = json!({"metadata": {"name": format!("made-{}", text(&meta["name"]))}, "spec": {
                    "storageClassName": claim["spec"]["storageClassName"], "accessModes": ["ReadWriteOnce"],
                    "claimRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}});
                bind(&server, claim, volume);
            }
        }
    }

    fn key_of_claim(volume: &Value) -> String {
        let of = &volume["spec"]["claimRef"];
        format!("{}/{}", text(&of["namespace"]), text(&of["name"]))
    }

    fn bind(server: &Server, mut claim: Value, mut volume: Value) {
        volume["status"] = json!({"phase": "Bound"});
        claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        claim["status"] = json!({"phase": "Bound"});
        server.put(&PERSISTENTVOLUMES, volume);
        server.put(&PERSISTENTVOLUMECLAIMS, claim);
    }

    /// Nodes, devices, volumes and claims, of the namespace `default` alone.
    fn fill(server: &Server, random: &mut StdRng, world: &mut World) {
        for number in 0..6 {
            let name = format!("node-{number}");
            let mut node = random_node(random, &name);
            node["status"]["allocatable"] =
                json!({"cpu": "64", "memory": "64Gi", "pods": "110", "ephemeral-storage": "64Gi"});
            server.put(&NODES, node.clone());
            world.nodes.insert(name, node);
        }
        let put_all = |resource: &api::Resource, objects: Vec<Value>| {
            for mut object in objects {
                if object["metadata"]["namespace"] == "other" {
                    continue;
                }
                if object["metadata"]["uid"].is_null() {
                    object["metadata"]["uid"] = object["metadata"]["name"].clone();
                }
                server.put(resource, object);
            }
        };
        put_all(&DEVICECLASSES, super::devices::classes().to_vec());
        put_all(&STORAGECLASSES, super::volumes::classes().to_vec());
        put_all(&RESOURCESLICES, random_slices(random));
        put_all(&RESOURCECLAIMS, shared_claims(random));
        put_all(&PERSISTENTVOLUMES, random_volumes(random));
        put_all(&PERSISTENTVOLUMECLAIMS, waiting_claims(random));
    }

    /// A bound pod's claims have what they need on its node.
    fn check_claims(server: &Server, world: &World, pod: &Value, seed: u64) {
        let node = &world.nodes[text(&pod["spec"]["nodeName"])];
        for key in claims(pod) {
            let claim = server.get(&PERSISTENTVOLUMECLAIMS, &key).expect("a claim");
            let volume = text(&claim["spec"]["volumeName"]);
            let volume = server.get(&PERSISTENTVOLUMES, volume);
            let volume =
                volume.unwrap_or_else(|| panic!("seed {seed}: {claim} of {pod} is not bound"));
            let affinity = &volume["spec"]["nodeAffinity"]["required"];
            assert!(wants_node(affinity, node), "seed {seed}: {volume} of {pod}");
        }
        for key in super::devices::named(pod) {
            let claim = server.get(&RESOURCECLAIMS, &key);
            let claim = claim.unwrap_or_else(|| panic!("seed {seed}: no {key} for {pod}"));
            let status = &claim["status"];
            let mut consumers = items(&status["reservedFor"]);
            let is_reserved = consumers.any(|one| one["uid"] == pod["metadata"]["uid"]);
            assert!(
                is_reserved && status["allocation"].is_object(),
                "seed {seed}: {claim} for {pod}"
            );
            let selector = &status["allocation"]["nodeSelector"];
            let is_here = selector.is_null() || wants_node(selector, node);
            assert!(is_here, "seed {seed}: {claim} for {pod}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn racing_schedulers_bind_no_pod_without_its_volumes_and_devices() {
        let (mut bound, mut with_claims) = (0, 0);
        for seed in 0..5 {
            let server = Server::default();
            let mut random = StdRng::seed_from_u64(seed);
            let mut world = World::default();
            fill(&server, &mut random, &mut world);
            let shutdown = CancellationToken::new();
            for _ in 0..SCHEDULERS {
                let config = SchedulerConfig {
                    leader_elect: false,
                    ..SchedulerConfig::default()
                };
                tokio::spawn(crate::run(server.client(), config, shutdown.clone()));
            }
            let binder = tokio::spawn(bind_volumes(server.clone()));
            for number in 0..40 {
                let mut pod = random_pod(&mut random, &format!("pod-{number}"));
                pod["spec"]["priority"] = json!(0);
                pod["spec"]["volumes"] = json!([]);
                pod["metadata"]["namespace"] = json!("default");
                let made = add_claims(&mut random, &mut pod);
                // Whose claim for extended resources is one of an earlier attempt, schedulers of the same pods cannot
                // tell (nor can upstream's), so there are none here.
                for list in ["initContainers", "containers"] {
                    let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
                    for container in containers.into_iter().flatten() {
                        let requests = container["resources"]["requests"].as_object_mut();
                        requests.map(|all| all.remove(super::devices::RESOURCE));
                    }
                }
                if let Some(mut claim) = made {
                    claim["metadata"]["uid"] = claim["metadata"]["name"].clone();
                    server.put(&RESOURCECLAIMS, claim);
                }
                for claim in add_volumes(&mut random, &mut pod) {
                    server.put(&PERSISTENTVOLUMECLAIMS, claim);
                }
                server.put(&PODS, pod);
                if number % 4 == 0 {
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            shutdown.cancel();
            tokio::time::sleep(Duration::from_secs(2)).await;
            binder.abort();
            let pods = server.list(&PODS).into_iter();
            for pod in pods.filter(|pod| pod["spec"]["nodeName"].is_string()) {
                check_claims(&server, &world, &pod, seed);
                bound += 1;
                let has_claims =
                    pod["spec"]["resourceClaims"].is_array() || !claims(&pod).is_empty();
                with_claims += usize::from(has_claims);
            }
        }
        assert!(
            with_claims > 20 && bound > with_claims,
            "{bound} pods, {with_claims} with claims"
        );
    }

    /// Half a minute is enough for whatever is left to be tried again.
    const CALM: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_scheduler_that_is_ended_at_any_moment_leaves_nothing_wrong() {
        for seed in 0..20 {
            let server = Server::default();
            let mut random = StdRng::seed_from_u64(seed);
            for number in 0..4 {
                let mut node = mk_node(&format!("node-{number}"));
                node["status"]["allocatable"] = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
                server.put(&NODES, node);
            }
            for number in 0..30 {
                let mut pod = mk_pod(&format!("pod-{number}"));
                pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "500m"});
                server.put(&PODS, pod);
                if random.random_bool(0.3) {
                    let shutdown = start(&server);
                    tokio::time::sleep(Duration::from_micros(random.random_range(0..2000))).await;
                    // Not even told: as a process that is killed.
                    shutdown.0.abort();
                    shutdown.1.cancel();
                }
                if random.random_bool(0.1) {
                    server.break_watches();
                }
            }
            let (task, shutdown) = start(&server);
            tokio::time::sleep(CALM).await;
            shutdown.cancel();
            task.await.expect("it ends").expect("it worked");
            let mut cpu: BTreeMap<String, usize> = BTreeMap::new();
            for pod in server.list(&PODS) {
                let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
                *cpu.entry(node.expect("all fit")).or_default() += 1;
            }
            assert!(cpu.values().all(|pods| *pods <= 8), "seed {seed}: {cpu:?}");
            let accepted = bindings(&server).len();
            assert!(accepted <= 2 * 30, "seed {seed}: {accepted} bindings");
        }
    }

    fn start(
        server: &Server,
    ) -> (
        tokio::task::JoinHandle<Result<(), crate::Error>>,
        CancellationToken,
    ) {
        let shutdown = CancellationToken::new();
        let config = SchedulerConfig {
            leader_elect: false,
            ..SchedulerConfig::default()
        };
        (
            tokio::spawn(crate::run(server.client(), config, shutdown.clone())),
            shutdown,
        )
    }
}
