//! Every controller and the scheduler killed at random moments in a running control plane, while everything changes:
//! what is left in the end must be exactly what was asked for.
//!
//! The server is a whole one on its embedded store, over a socket; the nodes are simulated. In each round the
//! controllers are dealt anew into groups, each of which runs alone with caches of its own and is aborted, not asked to
//! end. `SKIFF_KILL_ROUNDS` sets the number of rounds, `SKIFF_KILL_SEED` repeats one's choices.

use std::{collections::BTreeSet, path::Path, time::Duration};

use api::r::{
    CONFIGMAPS, DAEMONSETS, DEPLOYMENTS, ENDPOINTS, ENDPOINTSLICES, JOBS, NAMESPACES, NODES, PODS,
    REPLICASETS, RESOURCEQUOTAS, SERVICES, STATEFULSETS,
};
use apimachinery::{Value, meta};
use client::{
    Client, ClientError, DeleteOptions, ListOptions, Patch, Propagation, RestConfig, WriteOptions,
};
use cluster::control::server::{ServerConfig, ServerStore};
use controllers::{CONTROLLERS, ControllersConfig};
use integration::process;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use scheduler::SchedulerConfig;
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// Rounds in `hack/test`, where they take half a minute.
const ROUNDS: u64 = 4;
/// Changes and kills in each round.
const STEPS: usize = 12;
const GROUPS: usize = 5;
const NODE_COUNT: usize = 3;
const COMPLETIONS: i64 = 4;
/// How long everything may take to come right after the last kill.
const PATIENCE: Duration = Duration::from_secs(60);

/// What runs, and can be killed.
struct Part {
    names: Vec<String>,
    task: JoinHandle<()>,
}

impl Part {
    /// Controllers, or the scheduler if there are none, with a connection of their own as in a process of their own.
    fn start(config: &RestConfig, names: Vec<String>) -> Part {
        let client = client_of(config.clone()).expect("a client");
        let controllers = names.clone();
        let task = tokio::spawn(async move {
            let shutdown = CancellationToken::new();
            let ended = if controllers.is_empty() {
                let config = SchedulerConfig {
                    leader_elect: false,
                    ..SchedulerConfig::default()
                };
                scheduler::run(client, config, shutdown)
                    .await
                    .map_err(|error| error.to_string())
            } else {
                let config = ControllersConfig {
                    controllers,
                    leader_elect: false,
                    root_ca: Some("CA".into()),
                    ..ControllersConfig::default()
                };
                controllers::run(client, config, shutdown)
                    .await
                    .map_err(|error| error.to_string())
            };
            panic!("a part ended by itself: {ended:?}");
        });
        Part { names, task }
    }

    fn restart(&mut self, config: &RestConfig) {
        self.task.abort();
        *self = Part::start(config, self.names.clone());
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All controllers in random groups, and the scheduler.
fn deal(config: &RestConfig, random: &mut StdRng) -> Vec<Part> {
    let mut names: Vec<String> = CONTROLLERS
        .iter()
        .map(|one| one.name().to_string())
        .collect();
    names.shuffle(random);
    let size = names.len().div_ceil(GROUPS);
    let groups = names
        .chunks(size)
        .map(<[String]>::to_vec)
        .chain([Vec::new()]);
    groups.map(|names| Part::start(config, names)).collect()
}

struct Round {
    client: Client,
    namespace: String,
}

fn template(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": image}]}})
}

fn workload(app: &str, replicas: usize) -> Value {
    json!({"metadata": {"name": app}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template(app, "v0")}})
}

impl Round {
    async fn make(&self, resource: &api::Resource, object: Value) {
        let options = WriteOptions::default();
        let made = self
            .client
            .create::<_, Value>(resource, &self.namespace, &object, &options)
            .await;
        match made {
            Ok(_) => {}
            Err(error) if error.is_already_exists() => {}
            // Nobody has counted yet what the quota limits.
            Err(error) if error.to_string().contains("status unknown for quota") => {}
            Err(error) => panic!("cannot make {object}: {error}"),
        }
    }

    async fn get(&self, resource: &api::Resource, name: &str) -> Option<Value> {
        match self.client.get(resource, &self.namespace, name).await {
            Ok(object) => Some(object),
            Err(error) if error.is_not_found() => None,
            Err(error) => panic!("cannot read {name}: {error}"),
        }
    }

    async fn list(&self, resource: &api::Resource) -> Vec<Value> {
        let options = ListOptions::default();
        let list = self
            .client
            .list_all::<Value>(resource, &self.namespace, &options)
            .await;
        list.expect("the server answers").items
    }

    async fn patch(&self, resource: &api::Resource, name: &str, patch: Value) {
        let options = WriteOptions::default();
        let patched = self
            .client
            .patch::<Value>(
                resource,
                &self.namespace,
                name,
                "",
                &Patch::Strategic(patch),
                &options,
            )
            .await;
        gone_is_fine(patched);
    }

    async fn delete(&self, resource: &api::Resource, name: &str, propagation: Propagation) {
        let options = DeleteOptions::default().propagation(propagation);
        gone_is_fine(
            self.client
                .delete(resource, &self.namespace, name, &options)
                .await,
        );
    }

    async fn set_up(&self) {
        let namespace = json!({"metadata": {"name": self.namespace}});
        let options = WriteOptions::default();
        self.client
            .create::<_, Value>(&NAMESPACES, "", &namespace, &options)
            .await
            .expect("a namespace");
        // Nothing else makes it before the controllers run.
        self.make(
            &api::r::SERVICEACCOUNTS,
            json!({"metadata": {"name": "default"}}),
        )
        .await;
        self.make(&RESOURCEQUOTAS, json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "100", "count/configmaps": "100"}}})).await;
        self.make(&DEPLOYMENTS, workload("web", 3)).await;
        self.make(&DEPLOYMENTS, workload("extra", 2)).await;
        self.make(&REPLICASETS, workload("solo", 2)).await;
        let mut set = workload("db", 2);
        set["spec"]["serviceName"] = json!("db");
        self.make(&STATEFULSETS, set).await;
        let daemon = json!({"metadata": {"name": "ds"}, "spec": {"selector": {"matchLabels": {"app": "ds"}}, "template": template("ds", "v0")}});
        self.make(&DAEMONSETS, daemon).await;
        let mut pod = template("job", "v0");
        pod["spec"]["restartPolicy"] = json!("Never");
        self.make(&JOBS, json!({"metadata": {"name": "job"}, "spec": {"completions": COMPLETIONS, "parallelism": 2, "backoffLimit": 100, "template": pod}})).await;
        self.make(&SERVICES, json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}})).await;
    }

    async fn change(&self, random: &mut StdRng) {
        let replicas = json!({"spec": {"replicas": random.random_range(0..5)}});
        let image = format!("v{}", random.random_range(1..9));
        let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
        match random.random_range(0..11) {
            0 => self.patch(&DEPLOYMENTS, "web", replicas).await,
            1 => self.patch(&DEPLOYMENTS, "web", image).await,
            2 => self.patch(&REPLICASETS, "solo", replicas).await,
            3 => self.patch(&STATEFULSETS, "db", replicas).await,
            4 => self.patch(&STATEFULSETS, "db", image).await,
            5 => self.patch(&DAEMONSETS, "ds", image).await,
            6 => {
                self.delete(&DEPLOYMENTS, "extra", Propagation::Foreground)
                    .await
            }
            7 => self.make(&DEPLOYMENTS, workload("extra", 2)).await,
            8 => {
                let name = format!("m{}", random.random_range(0..3));
                self.make(&CONFIGMAPS, json!({"metadata": {"name": name}}))
                    .await;
            }
            9 => {
                let name = format!("m{}", random.random_range(0..3));
                self.delete(&CONFIGMAPS, &name, Propagation::Background)
                    .await;
            }
            _ => {
                let pods = self.list(&PODS).await;
                if !pods.is_empty() {
                    let pod = &pods[random.random_range(0..pods.len())];
                    self.delete(&PODS, meta::name(pod), Propagation::Background)
                        .await;
                }
            }
        }
    }

    /// What is not right yet; nothing when all is.
    async fn wrong(&self, nodes: usize) -> Option<String> {
        let pods = self.list(&PODS).await;
        if let Some(pod) = pods.iter().find(|pod| meta::is_deleting(pod)) {
            return Some(format!("pod {} is still going", meta::name(pod)));
        }
        let of = |app: &str| {
            pods.iter()
                .filter(|pod| meta::label(pod, "app") == Some(app))
                .collect::<Vec<_>>()
        };
        for (resource, name, expected) in [
            (&DEPLOYMENTS, "web", None),
            (&DEPLOYMENTS, "extra", None),
            (&REPLICASETS, "solo", None),
            (&STATEFULSETS, "db", None),
            (&DAEMONSETS, "ds", Some(nodes)),
        ] {
            let object = self.get(resource, name).await;
            let wanted = object.as_ref().map_or(0, |object| {
                expected.unwrap_or_else(|| {
                    usize::try_from(object["spec"]["replicas"].as_u64().unwrap_or(0)).unwrap_or(0)
                })
            });
            if let Some(why) = misfit(name, object.as_ref(), &of(name), wanted) {
                return Some(why);
            }
        }
        let job = self.get(&JOBS, "job").await?;
        let is_complete = job["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| one["type"] == "Complete" && one["status"] == "True");
        if job["status"]["succeeded"] != COMPLETIONS || !is_complete {
            return Some(format!("the job is not done: {}", job["status"]));
        }
        if let Some(pod) = pods
            .iter()
            .find(|pod| meta::finalizers(pod).next().is_some())
        {
            return Some(format!("pod {} has finalizers", meta::name(pod)));
        }
        if let Some(why) = self.orphan(&pods).await {
            return Some(why);
        }
        if let Some(why) = self.miscounted(&pods).await {
            return Some(why);
        }
        self.misdirected(&of("web")).await
    }

    /// A pod or a ReplicaSet whose owner is not there.
    async fn orphan(&self, pods: &[Value]) -> Option<String> {
        let mut there = BTreeSet::new();
        let sets = self.list(&REPLICASETS).await;
        for resource in [&DEPLOYMENTS, &STATEFULSETS, &DAEMONSETS, &JOBS] {
            there.extend(
                self.list(resource)
                    .await
                    .iter()
                    .map(|one| meta::uid(one).to_string()),
            );
        }
        there.extend(sets.iter().map(|one| meta::uid(one).to_string()));
        let owned = pods
            .iter()
            .chain(sets.iter().filter(|set| meta::name(set) != "solo"));
        let mut owned = owned.filter(|one| {
            one["metadata"]["ownerReferences"][0]["uid"]
                .as_str()
                .is_none_or(|uid| !there.contains(uid))
        });
        owned
            .next()
            .map(|one| format!("{} is an orphan", meta::name(one)))
    }

    async fn miscounted(&self, pods: &[Value]) -> Option<String> {
        let quota = self.get(&RESOURCEQUOTAS, "q").await?;
        let ended = |pod: &&Value| {
            matches!(
                pod["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            )
        };
        let running = pods.len() - pods.iter().filter(ended).count();
        let maps = self.list(&CONFIGMAPS).await.len();
        let wanted = json!({"pods": running.to_string(), "count/configmaps": maps.to_string()});
        let used = &quota["status"]["used"];
        (*used != wanted).then(|| format!("the quota says {used}, there are {wanted}"))
    }

    /// The addresses of the Service are those of its pods.
    async fn misdirected(&self, pods: &[&Value]) -> Option<String> {
        let wanted: BTreeSet<String> = pods
            .iter()
            .filter_map(|pod| Some(pod["status"]["podIP"].as_str()?.to_string()))
            .collect();
        let mut sliced = BTreeSet::new();
        for slice in self
            .list(&ENDPOINTSLICES)
            .await
            .iter()
            .filter(|one| meta::label(one, "kubernetes.io/service-name") == Some("web"))
        {
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                sliced.extend(endpoint["addresses"][0].as_str().map(String::from));
            }
        }
        let endpoints = self.get(&ENDPOINTS, "web").await.unwrap_or_default();
        let subsets = endpoints["subsets"].as_array().into_iter().flatten();
        let addresses =
            subsets.flat_map(|subset| subset["addresses"].as_array().into_iter().flatten());
        let listed: BTreeSet<String> = addresses
            .filter_map(|one| Some(one["ip"].as_str()?.to_string()))
            .collect();
        (sliced != wanted || listed != wanted)
            .then(|| format!("pods {wanted:?}, slices {sliced:?}, endpoints {listed:?}"))
    }

    async fn settle(&self, nodes: usize) {
        let started = Instant::now();
        while let Some(why) = self.wrong(nodes).await {
            assert!(started.elapsed() < PATIENCE, "{}: {why}", self.namespace);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // It stays so: what was under way would show by now.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let why = self.wrong(nodes).await;
        assert!(why.is_none(), "{}: {why:?}", self.namespace);
    }
}

/// What is wrong with the pods of a workload.
fn misfit(name: &str, object: Option<&Value>, pods: &[&Value], wanted: usize) -> Option<String> {
    if pods.len() != wanted {
        return Some(format!("{name} has {} pods of {wanted}", pods.len()));
    }
    let image = object.map(|object| &object["spec"]["template"]["spec"]["containers"][0]["image"]);
    pods.iter().find_map(|pod| {
        let is_new = Some(&pod["spec"]["containers"][0]["image"]) == image;
        let runs = pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"].is_string();
        (!is_new || !runs).then(|| {
            format!(
                "{} does not run as wanted: {}",
                meta::name(pod),
                pod["status"]["phase"]
            )
        })
    })
}

fn gone_is_fine<T>(result: Result<T, ClientError>) {
    match result {
        Err(error) if !error.is_not_found() => panic!("{error}"),
        _ => {}
    }
}

/// Runs a server in this process, and gives what its administrator connects with.
async fn serve(folder: &Path, shutdown: CancellationToken) -> RestConfig {
    let config = ServerConfig {
        directory: folder.to_path_buf(),
        bind: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        names: Vec::new(),
        store: ServerStore::Embedded {
            etcd_listen: Vec::new(),
        },
        scheduler: None,
        controllers: None,
        adjust: Box::new(|_| {}),
    };
    let server = tokio::spawn(cluster::control::server::run(config, shutdown));
    let file = folder.join("admin.kubeconfig");
    let started = Instant::now();
    loop {
        assert!(
            !server.is_finished(),
            "the server ended: {:?}",
            server.await
        );
        assert!(started.elapsed() < PATIENCE, "the server is not ready");
        if let Ok(config) = RestConfig::load(Some(&file))
            && let Ok(client) = client_of(config.clone())
            && client
                .list::<Value>(&NODES, "", &ListOptions::default())
                .await
                .is_ok()
        {
            return config;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn client_of(config: RestConfig) -> Result<Client, String> {
    Client::connect(config).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_controllers_and_scheduler_bring_about_what_was_asked_for() {
    process::install_crypto();
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seed = number("SKIFF_KILL_SEED").unwrap_or_else(rand::random);
    println!("SKIFF_KILL_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let config = serve(folder.path(), shutdown.clone()).await;
    let client = client_of(config.clone()).expect("a client");
    let nodes = simulator::run(
        client.clone(),
        simulator::Config::of_nodes(NODE_COUNT),
        shutdown.clone(),
    );
    tokio::spawn(nodes);
    let mut last: Option<String> = None;
    for round in 0..number("SKIFF_KILL_ROUNDS").unwrap_or(ROUNDS) {
        println!("round {round}");
        let namespace = format!("round-{round}");
        let this = Round {
            client: client.clone(),
            namespace: namespace.clone(),
        };
        this.set_up().await;
        let mut parts = deal(&config, &mut random);
        for _ in 0..STEPS {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..150))).await;
            this.change(&mut random).await;
            tokio::time::sleep(Duration::from_millis(random.random_range(0..50))).await;
            let killed = random.random_range(0..parts.len());
            parts[killed].restart(&config);
        }
        this.settle(NODE_COUNT).await;
        if let Some(last) = last.replace(namespace) {
            let started = Instant::now();
            while this
                .client
                .get::<Value>(&NAMESPACES, "", &last)
                .await
                .is_ok()
            {
                assert!(started.elapsed() < PATIENCE, "namespace {last} is stuck");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        // It ends under the next round's kills.
        let options = DeleteOptions::default();
        gone_is_fine(
            client
                .delete(&NAMESPACES, "", &this.namespace, &options)
                .await,
        );
    }
}
