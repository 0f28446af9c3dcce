//! Runs the simulated nodes: registers them, renews their leases and leads their pods through life.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use api::r::{NODES, PODS};
use apimachinery::{Value, time};
use client::{
    Client, ClientError, DeleteOptions, Factory, Informer, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, RateLimit, Requeue},
};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, ConfigError},
    lease,
    node::{self, Node, Ours},
    plan::{self, Action, Place, Step},
    pod::Pod,
    status::{self, Addresses},
};

/// Writes for pods under way at a time. Enough to keep a server busy, few enough that it serves others in between.
const WORKERS: usize = 64;
/// Writes for nodes under way at a time.
const NODE_WORKERS: usize = 16;
/// A step that was written and does not show after this long is written again.
const REWRITE: Duration = Duration::from_secs(10);
/// Back-off of writes that fail.
const RETRY: RateLimit = RateLimit {
    base: Duration::from_millis(50),
    max: Duration::from_secs(30),
};

/// Why the simulation cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot register a node: {0}")]
    Register(ClientError),
    #[error("{0}")]
    Watch(String),
}

/// Where a pod got to, and when.
struct Arrival {
    uid: Box<str>,
    place: Place,
    at: Instant,
    /// When the step from here was written last.
    written: Option<Instant>,
}

struct Simulator {
    config: Config,
    ours: Ours,
    client: Client,
    pods: Informer<Pod>,
    /// Of the pods that have a step before them.
    arrivals: Mutex<HashMap<Arc<str>, Arrival>>,
    next_address: AtomicU32,
}

/// Simulates until `shutdown`. The nodes stay registered afterwards, and become NotReady as nodes that are off do.
pub async fn run(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    config.check()?;
    let client = client.with_user_agent("simulator");
    let ours = Ours::new(&config);
    // Registered before anything is watched, so that no node of ours seems to be missing.
    futures::stream::iter(ours.names().to_vec())
        .map(|name| register(&client, &ours, name))
        .buffer_unordered(NODE_WORKERS)
        .take_until(shutdown.cancelled())
        .try_collect::<()>()
        .await
        .map_err(Error::Register)?;
    tracing::info!(
        nodes = ours.names().len(),
        "The simulated nodes are registered"
    );
    let stopping = shutdown.child_token();
    let factory = Factory::new(client.clone(), stopping.clone());
    let nodes: Informer<Node> = factory.informer(&NODES, "", Selectors::default());
    let pods: Informer<Pod> = factory.informer(&PODS, "", Selectors::fields("spec.nodeName!="));
    let simulator = Simulator {
        config,
        ours,
        client,
        pods,
        arrivals: Mutex::new(HashMap::new()),
        next_address: AtomicU32::new(1),
    };
    let ended = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        () = simulator.work(&nodes, &stopping) => Ok(()),
        ended = factory.join() => ended.map_err(|error| Error::Watch(error.to_string())),
    };
    stopping.cancel();
    ended
}

/// Retries what a busy server refuses.
async fn register(client: &Client, ours: &Ours, name: Arc<str>) -> Result<(), ClientError> {
    let mut pause = Duration::from_millis(100);
    loop {
        match node::register(client, ours, &name).await {
            Err(error) if error.is_transient() => {
                tracing::debug!(node = &*name, %error, "cannot register the node, will be retried");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
            other => return other,
        }
    }
}

impl Simulator {
    async fn work(&self, nodes: &Informer<Node>, stopping: &CancellationToken) {
        nodes.wait_synced().await;
        self.pods.wait_synced().await;
        let highest = self.pods.list().iter().map(|pod| pod.ip).max().unwrap_or(0);
        self.next_address.store(highest + 1, Ordering::Relaxed);
        let (pod_keys, node_keys) = (Queue::new(RETRY), Queue::new(RETRY));
        let to = pod_keys.clone();
        self.pods
            .add_handler(move |delta| to.add(delta.key.clone()));
        let to = node_keys.clone();
        nodes.add_handler(move |delta| to.add(delta.key.clone()));
        futures::join!(
            workqueue::run("pods", &pod_keys, WORKERS, stopping, |key| self.pod(key)),
            workqueue::run("nodes", &node_keys, NODE_WORKERS, stopping, |key| self
                .node(nodes, key)),
            lease::run(&self.client, &self.ours, nodes),
        );
    }

    /// Someone found the node silent, since its leases came late: it is not.
    async fn node(&self, nodes: &Informer<Node>, name: Arc<str>) -> Result<Requeue, ClientError> {
        if self.ours.contains(&name) && nodes.get(&name).is_some_and(|node| !node.is_ready) {
            match node::post(&self.client, &name).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(Requeue::No)
    }

    /// Leads a pod a step on, when it is time.
    async fn pod(&self, key: Arc<str>) -> Result<Requeue, ClientError> {
        let pod = self
            .pods
            .get(&key)
            .filter(|pod| self.ours.contains(&pod.node));
        let step = pod
            .as_ref()
            .and_then(|pod| Some((pod, plan::next(pod, &self.config)?)));
        let Some((pod, step)) = step else {
            self.arrivals.lock().remove(&key);
            return Ok(Requeue::No);
        };
        if let Some(wait) = self.time_until(&key, pod, &step) {
            return Ok(Requeue::After(wait));
        }
        match self.write(pod, &step.action).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
            // Gone, or another pod of the name: the watch will tell.
            _ => {}
        }
        if let Some(arrival) = self.arrivals.lock().get_mut(&key) {
            arrival.written = Some(Instant::now());
        }
        Ok(Requeue::After(REWRITE))
    }

    /// How long until the step is due; `None` if it is.
    fn time_until(&self, key: &Arc<str>, pod: &Pod, step: &Step) -> Option<Duration> {
        let now = Instant::now();
        let mut arrivals = self.arrivals.lock();
        let arrive = || Arrival {
            uid: pod.uid.clone(),
            place: step.place,
            at: now,
            written: None,
        };
        let arrival = arrivals.entry(key.clone()).or_insert_with(arrive);
        if arrival.place != step.place || arrival.uid != pod.uid {
            *arrival = arrive();
        }
        let mut due = arrival.at + step.after;
        if step.action == Action::Expire
            && let Some(age) = time::since(&pod.start_time, time::now())
        {
            due = now
                + step
                    .after
                    .saturating_sub(age.try_into().unwrap_or(Duration::ZERO));
        }
        if let Some(written) = arrival.written {
            due = due.max(written + REWRITE);
        }
        (due > now).then(|| due - now)
    }

    async fn write(&self, pod: &Pod, action: &Action) -> Result<(), ClientError> {
        let starts =
            matches!(action, Action::Start { .. } | Action::Hang { .. }) && !pod.host_network;
        let number = if starts {
            self.next_address.fetch_add(1, Ordering::Relaxed)
        } else {
            pod.ip
        };
        let addresses = Addresses {
            pod: status::pod_address(number),
            node: self.ours.address(&pod.node),
        };
        if let Some(patch) = status::patch(pod, action, &addresses) {
            let (patch, options) = (Patch::Strategic(patch), WriteOptions::default());
            self.client
                .patch::<Value>(&PODS, &pod.namespace, &pod.name, "status", &patch, &options)
                .await?;
        }
        if *action == Action::Delete {
            let options = DeleteOptions::uid(&*pod.uid).grace(0);
            self.client
                .delete(&PODS, &pod.namespace, &pod.name, &options)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
