//! Random clusters: every decision is checked against a reference that knows nothing of sums, counts or indexes and
//! works each rule out from the objects as they stand. And several schedulers race for the same pods.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::cluster::testing::{mk_node, mk_pod};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// A cluster as plain objects.
#[derive(Default)]
struct World {
    nodes: BTreeMap<String, Value>,
    /// By uid; those with `spec.nodeName` run.
    pods: BTreeMap<String, Value>,
}

fn number(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or("0");
    let quantity: apimachinery::quantity::Quantity = text.parse().expect("a quantity");
    quantity.milli_value()
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| labels[key] == *value)
}

impl World {
    fn running(&self) -> impl Iterator<Item = &Value> {
        self.pods
            .values()
            .filter(|pod| pod["spec"]["nodeName"].is_string())
    }

    fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Value> {
        self.running()
            .filter(move |pod| pod["spec"]["nodeName"] == node)
    }

    /// Why the pod may not run on the node, as things are.
    fn objection(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let object = &self.nodes[node];
        if object["spec"]["unschedulable"] == true {
            return Some("cordoned");
        }
        let tolerated = |taint: &Value| {
            let tolerations = pod["spec"]["tolerations"].as_array().into_iter().flatten();
            taint["effect"] == "PreferNoSchedule"
                || tolerations
                    .into_iter()
                    .any(|one| one["key"] == taint["key"])
        };
        if !object["spec"]["taints"]
            .as_array()
            .into_iter()
            .flatten()
            .all(tolerated)
        {
            return Some("tainted");
        }
        let selector = pod["spec"]["nodeSelector"]
            .as_object()
            .into_iter()
            .flatten();
        if !selector
            .into_iter()
            .all(|(key, value)| object["metadata"]["labels"][key] == *value)
        {
            return Some("node selector");
        }
        self.resources(pod, node)
            .or_else(|| self.ports(pod, node))
            .or_else(|| self.affinity(pod, node))
            .or_else(|| self.spread(pod, node))
    }

    fn resources(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let have = &self.nodes[node]["status"]["allocatable"];
        if self.on(node).count() as i64 + 1 > number(&have["pods"]) / 1000 {
            return Some("pods");
        }
        let ask = |pod: &Value, name: &str| {
            number(&pod["spec"]["containers"][0]["resources"]["requests"][name])
        };
        for name in ["cpu", "memory", "example.com/gpu"] {
            let used: i64 = self.on(node).map(|pod| ask(pod, name)).sum();
            if ask(pod, name) > 0 && used + ask(pod, name) > number(&have[name]) {
                return Some("resources");
            }
        }
        None
    }

    fn ports(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let port = |pod: &Value| pod["spec"]["containers"][0]["ports"][0]["hostPort"].as_i64();
        let wanted = port(pod)?;
        self.on(node)
            .any(|other| port(other) == Some(wanted))
            .then_some("port")
    }

    /// The value of the topology key at the node of each running pod that a term selects.
    fn places<'a>(&'a self, term: &'a Value) -> impl Iterator<Item = &'a Value> {
        let key = term["topologyKey"].as_str().unwrap_or("");
        let selected = self
            .running()
            .filter(|pod| selects(&term["labelSelector"], &pod["metadata"]["labels"]));
        selected.map(move |pod| self.label(pod["spec"]["nodeName"].as_str().unwrap_or(""), key))
    }

    fn label(&self, node: &str, key: &str) -> &Value {
        const NONE: &Value = &Value::Null;
        self.nodes
            .get(node)
            .map_or(NONE, |node| &node["metadata"]["labels"][key])
    }

    fn affinity(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let required = |pod: &Value, kind: &str| {
            pod["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"][0]
                .clone()
        };
        let near = required(pod, "podAffinity");
        if !near.is_null() {
            let here = self.label(node, near["topologyKey"].as_str()?);
            let any = self.places(&near).any(|place| !place.is_null());
            let first = !any && selects(&near["labelSelector"], &pod["metadata"]["labels"]);
            if here.is_null() || (!first && !self.places(&near).any(|place| place == here)) {
                return Some("affinity");
            }
        }
        let away = required(pod, "podAntiAffinity");
        if !away.is_null() {
            let here = self.label(node, away["topologyKey"].as_str()?);
            if !here.is_null() && self.places(&away).any(|place| place == here) {
                return Some("anti-affinity");
            }
        }
        for other in self.running() {
            let away = required(other, "podAntiAffinity");
            if away.is_null() || !selects(&away["labelSelector"], &pod["metadata"]["labels"]) {
                continue;
            }
            let key = away["topologyKey"].as_str()?;
            let (here, there) = (
                self.label(node, key),
                self.label(other["spec"]["nodeName"].as_str()?, key),
            );
            if !here.is_null() && here == there {
                return Some("the others' anti-affinity");
            }
        }
        None
    }

    fn spread(&self, pod: &Value, node: &str) -> Option<&'static str> {
        let constraint = &pod["spec"]["topologySpreadConstraints"][0];
        if constraint["whenUnsatisfiable"] != "DoNotSchedule" {
            return None;
        }
        let key = constraint["topologyKey"].as_str()?;
        let here = self.label(node, key);
        if here.is_null() {
            return Some("spread: no label");
        }
        // Nodes that the pod's node selector leaves out are no domains.
        let counts_node = |node: &Value| {
            let selector = pod["spec"]["nodeSelector"]
                .as_object()
                .into_iter()
                .flatten();
            selector
                .into_iter()
                .all(|(key, value)| node["metadata"]["labels"][key] == *value)
        };
        let mut domains: BTreeMap<String, i64> = BTreeMap::new();
        for (name, object) in self.nodes.iter().filter(|(_, node)| counts_node(node)) {
            let domain = &object["metadata"]["labels"][key];
            if domain.is_null() {
                continue;
            }
            let matching = self.on(name).filter(|other| {
                selects(&constraint["labelSelector"], &other["metadata"]["labels"])
            });
            *domains.entry(domain.to_string()).or_default() += matching.count() as i64;
        }
        let least = domains.values().min().copied().unwrap_or(0);
        let own = i64::from(selects(
            &constraint["labelSelector"],
            &pod["metadata"]["labels"],
        ));
        let skew = domains.get(&here.to_string()).copied().unwrap_or(0) + own - least;
        (skew > constraint["maxSkew"].as_i64()?).then_some("spread: skew")
    }
}

fn random_node(random: &mut StdRng, name: &str) -> Value {
    let mut node = mk_node(name);
    if random.random_bool(0.8) {
        node["metadata"]["labels"][ZONE] = json!(format!("zone-{}", random.random_range(0..3)));
    }
    if random.random_bool(0.5) {
        node["metadata"]["labels"]["disk"] = json!("ssd");
    }
    node["status"]["allocatable"] = json!({
        "cpu": format!("{}", random.random_range(1..6)), "memory": format!("{}Gi", random.random_range(1..8)),
        "pods": format!("{}", random.random_range(2..8)),
    });
    if random.random_bool(0.2) {
        node["status"]["allocatable"]["example.com/gpu"] = json!("2");
    }
    if random.random_bool(0.15) {
        let effect = ["NoSchedule", "NoExecute", "PreferNoSchedule"][random.random_range(0..3)];
        node["spec"]["taints"] = json!([{"key": "dedicated", "effect": effect}]);
    }
    if random.random_bool(0.1) {
        node["spec"]["unschedulable"] = json!(true);
    }
    node
}

fn random_pod(random: &mut StdRng, name: &str) -> Value {
    let app = format!("app-{}", random.random_range(0..3));
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"image": "i", "resources": {"requests": {
            "cpu": format!("{}m", random.random_range(0..20) * 100),
            "memory": format!("{}Mi", random.random_range(0..20) * 100)}}}]},
    });
    let any_app = |random: &mut StdRng| json!({"matchLabels": {"app": format!("app-{}", random.random_range(0..3))}});
    let key = |random: &mut StdRng| if random.random_bool(0.5) { ZONE } else { HOST };
    let spec = &mut pod["spec"];
    if random.random_bool(0.1) {
        spec["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
    }
    if random.random_bool(0.15) {
        let port = random.random_range(8000..8003);
        spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
    }
    if random.random_bool(0.3) {
        spec["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]);
    }
    if random.random_bool(0.2) {
        spec["nodeSelector"] = json!({"disk": "ssd"});
    }
    if random.random_bool(0.3) {
        let kind = if random.random_bool(0.3) {
            "podAffinity"
        } else {
            "podAntiAffinity"
        };
        let term = json!({"labelSelector": any_app(random), "topologyKey": key(random)});
        spec["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([term]);
    }
    if random.random_bool(0.3) {
        let when = if random.random_bool(0.7) {
            "DoNotSchedule"
        } else {
            "ScheduleAnyway"
        };
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": random.random_range(1..3), "topologyKey": key(random), "whenUnsatisfiable": when,
            "labelSelector": any_app(random),
        }]);
    }
    if random.random_bool(0.3) {
        spec["priority"] = json!(random.random_range(0..3) * 100);
    }
    pod
}

mod decisions {
    use std::sync::Arc;

    use super::*;
    use crate::{
        cluster::Cluster,
        cycle::Scheduler,
        node::node,
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
        fn place(&mut self, mut value: Value, node: &str) {
            value["spec"]["nodeName"] = json!(node);
            let parsed = pod(value.clone());
            self.world.pods.insert(parsed.uid.to_string(), value);
            self.cluster.set_pod(Arc::new(parsed));
        }

        fn remove(&mut self, uid: &str) {
            self.world.pods.remove(uid);
            self.cluster.remove_pod(uid);
        }

        /// Lets the scheduler decide, checks what it says, and does it.
        fn schedule(&mut self) {
            self.next += 1;
            let value = random_pod(&mut self.random, &format!("pod-{}", self.next));
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
        fn evict(&mut self, parsed: &Pod, value: Value, node: usize, victims: &[Arc<Pod>]) {
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
            self.place(value, &node);
        }

        fn churn(&mut self) {
            match self.random.random_range(0..10) {
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

    use api::r::{NODES, PODS};
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
                    pods: BTreeMap::new(),
                };
                let mut pod = pod.clone();
                pod["spec"]["affinity"] = Value::Null;
                assert_eq!(alone.objection(&pod, node), None, "seed {seed}");
            }
        }
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
