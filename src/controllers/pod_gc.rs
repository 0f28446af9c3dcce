//! pod-garbage-collector-controller: removes pods nobody else will: those whose node is gone, those deleted before
//! they had one, and the oldest finished ones beyond a number.

use std::{sync::Arc, time::Duration};

use api::r::{NODES, PODS};
use apimachinery::{Value, time::now_text};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    objects::{BY_NODE, Node, Pod, pods_by_node},
};

/// How long a node may be missing before its pods are removed: it may be about to register again (quarantineTime).
const QUARANTINE: Duration = Duration::from_secs(40);
/// How often finished pods are counted while there are any (gcCheckPeriod).
const COUNT_PERIOD: Duration = Duration::from_secs(20);

pub struct PodGc;

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Pod(String),
    MissingNode(String),
    Finished,
}

struct Collector {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    queue: Queue<Key>,
}

#[async_trait]
impl Controller for PodGc {
    fn name(&self) -> &'static str {
        "pod-garbage-collector-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["podgc"]
    }

    async fn run(&self, context: Context) {
        let collector = Arc::new(Collector {
            pods: context.informers.informer(&PODS, "", Selectors::default()),
            nodes: context.informers.informer(&NODES, "", Selectors::default()),
            queue: Queue::default(),
        });
        let Collector { pods, nodes, .. } = &*collector;
        pods.add_index(BY_NODE, pods_by_node);
        if !synced!(context, pods, nodes) {
            return;
        }
        let to = collector.clone();
        nodes.add_handler(move |change| {
            if change.is_deleted() {
                to.queue
                    .add_after(Key::MissingNode(change.key.to_string()), QUARANTINE);
            }
        });
        let to = collector.clone();
        pods.add_handler(move |change| {
            if let Some(pod) = &change.new {
                to.look(&change.key, pod);
            }
        });
        workqueue::run("pod-gc", &collector.queue, 2, &context.shutdown, |key| {
            let (context, collector) = (&context, &collector);
            async move { collector.reconcile(context, &key).await }
        })
        .await;
    }
}

impl Collector {
    fn look(&self, key: &str, pod: &Pod) {
        let node = &pod.spec.node_name;
        if node.is_empty() {
            if pod.metadata.is_deleting() {
                self.queue.add(Key::Pod(key.into()));
            }
        } else if self.nodes.get(node).is_none() {
            self.queue
                .add_after(Key::MissingNode(node.clone()), QUARANTINE);
        }
        if pod.is_terminal() {
            self.queue.add_after(Key::Finished, COUNT_PERIOD);
        }
    }

    async fn reconcile(&self, context: &Context, key: &Key) -> Result<Requeue, ClientError> {
        match key {
            Key::Pod(key) => {
                let pod = self.pods.get(key);
                let stuck =
                    pod.filter(|pod| pod.metadata.is_deleting() && pod.spec.node_name.is_empty());
                if let Some(pod) = stuck {
                    remove(context, &pod, None).await?;
                }
            }
            Key::MissingNode(name) => {
                if self.nodes.get(name).is_none() && !exists(context, name).await? {
                    for pod in self.pods.by_index(BY_NODE, name) {
                        remove(context, &pod, Some("PodGC: node no longer exists")).await?;
                    }
                }
            }
            Key::Finished => {
                for pod in surplus(
                    &self.pods.list(),
                    context.config.terminated_pod_gc_threshold,
                ) {
                    remove(context, &pod, None).await?;
                }
            }
        }
        Ok(Requeue::No)
    }
}

/// Asks the server itself, as the cache may be behind.
async fn exists(context: &Context, node: &str) -> Result<bool, ClientError> {
    match context.client.get::<Value>(&NODES, "", node).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The oldest finished pods beyond `threshold`; none if that is 0.
fn surplus(pods: &[Arc<Pod>], threshold: usize) -> Vec<Arc<Pod>> {
    let mut finished: Vec<Arc<Pod>> = pods
        .iter()
        .filter(|pod| pod.is_terminal())
        .cloned()
        .collect();
    if threshold == 0 || finished.len() <= threshold {
        return Vec::new();
    }
    let age = |pod: &Arc<Pod>| {
        (
            pod.metadata.creation_timestamp.clone(),
            pod.metadata.name.clone(),
        )
    };
    finished.sort_by_key(age);
    finished.truncate(finished.len() - threshold);
    finished
}

/// Removes a pod at once. `lost` is why it is failed before, if it was still meant to run.
async fn remove(context: &Context, pod: &Pod, lost: Option<&str>) -> Result<(), ClientError> {
    let meta = &pod.metadata;
    let client = &context.client;
    if let Some(message) = lost.filter(|_| !pod.is_terminal()) {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": message,
            "lastTransitionTime": now_text(), "observedGeneration": meta.generation,
        });
        let patch = json!({"metadata": {"uid": meta.uid}, "status": {"phase": "Failed", "conditions": [condition]}});
        let (patch, options) = (Patch::Strategic(patch), WriteOptions::default());
        let patched = client
            .patch::<Value>(
                &PODS,
                &meta.namespace,
                &meta.name,
                "status",
                &patch,
                &options,
            )
            .await;
        match patched {
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(()),
            other => other?,
        };
    }
    let options = DeleteOptions::uid(&meta.uid).grace(0);
    match client
        .delete(&PODS, &meta.namespace, &meta.name, &options)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;
    use tokio_util::sync::CancellationToken;

    fn finished(name: &str, created: &str) -> Arc<Pod> {
        let value = json!({"metadata": {"name": name, "creationTimestamp": created}, "status": {"phase": "Failed"}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn the_oldest_finished_pods_go_first() {
        let pods = [
            finished("b", "2026-01-02T00:00:00Z"),
            finished("a", "2026-01-03T00:00:00Z"),
            finished("c", "2026-01-01T00:00:00Z"),
        ];
        let names = |threshold| -> Vec<String> {
            surplus(&pods, threshold)
                .iter()
                .map(|pod| pod.metadata.name.clone())
                .collect()
        };
        assert_eq!(names(1), ["c", "b"]);
        assert!(names(3).is_empty() && names(0).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_a_node_that_is_gone_for_good_are_removed() {
        let server = Server::default();
        server.put(&NODES, json!({"metadata": {"name": "here"}}));
        let config = crate::ControllersConfig {
            controllers: vec!["pod-garbage-collector-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        for (name, node) in [("kept", "here"), ("lost", "gone"), ("waiting", "")] {
            let mut pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {}});
            if !node.is_empty() {
                pod["spec"]["nodeName"] = json!(node);
            }
            server.put(&PODS, pod);
        }
        tokio::time::sleep(Duration::from_secs(39)).await;
        assert!(server.get(&PODS, "default/lost").is_some());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.get(&PODS, "default/lost").is_none());
        assert!(server.get(&PODS, "default/kept").is_some());
        assert!(server.get(&PODS, "default/waiting").is_some());
    }
}
