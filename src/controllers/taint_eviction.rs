//! taint-eviction-controller: deletes pods from nodes with NoExecute taints they do not tolerate, or no longer.
//!
//! The time a pod has left is reckoned from the taint's own time (or the pod's arrival, if that is later), so that a
//! restart of the controller neither hastens nor delays anything.

use std::{collections::HashSet, sync::Arc, time::Duration};

use api::{
    r::{NODES, PODS},
    view::{Taint, Toleration},
};
use apimachinery::{
    Value,
    time::{Time, now, now_text, parse},
};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Delta, Informer, Patch, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    objects::{BY_NODE, Node, Pod, condition, pods_by_node},
};

/// Pods deleted at a time.
const WORKERS: usize = 8;
const REASON: &str = "TaintManagerEviction";

pub struct TaintEviction;

struct Manager {
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    queue: Queue<String>,
    /// Uids of pods whose deletion is due some time; told when it is called off. Pods that are gone leave it.
    pending: Mutex<HashSet<String>>,
    recorder: Recorder,
}

/// What becomes of a pod.
#[derive(Debug, PartialEq)]
enum Verdict {
    Stays,
    GoesAt(Time),
    GoesNow,
}

#[async_trait]
impl Controller for TaintEviction {
    fn name(&self) -> &'static str {
        "taint-eviction-controller"
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let manager = Arc::new(Manager {
            nodes: informers.informer(&NODES, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            queue: Queue::default(),
            pending: Mutex::default(),
            recorder: context.recorder("taint-eviction-controller"),
        });
        manager.pods.add_index(BY_NODE, pods_by_node);
        let Manager { nodes, pods, .. } = &*manager;
        if !synced!(context, nodes, pods) {
            return;
        }
        let to = manager.clone();
        nodes.add_handler(move |change| to.node_changed(change));
        let to = manager.clone();
        pods.add_handler(move |change| to.pod_changed(change));
        workqueue::run(
            "taint-eviction",
            &manager.queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let (context, manager) = (&context, &manager);
                async move { manager.reconcile(context, &key).await }
            },
        )
        .await;
    }
}

fn executing(node: &Node) -> Vec<&Taint> {
    node.spec
        .taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .collect()
}

impl Manager {
    fn node_changed(&self, change: &Delta<Node>) {
        let taints = |node: &Option<Arc<Node>>| -> Vec<Taint> {
            node.iter()
                .flat_map(|node| executing(node))
                .cloned()
                .collect()
        };
        if taints(&change.old) == taints(&change.new) {
            return;
        }
        for pod in self.pods.by_index(BY_NODE, &change.key) {
            self.queue.add(pod.metadata.key());
        }
    }

    fn pod_changed(&self, change: &Delta<Pod>) {
        let Some(new) = &change.new else {
            self.pending.lock().remove(&change.object().metadata.uid);
            return;
        };
        let decides = |pod: &Pod| {
            (
                pod.spec.node_name.clone(),
                pod.spec.tolerations.clone(),
                pod.metadata.uid.clone(),
            )
        };
        if change
            .old
            .as_ref()
            .is_some_and(|old| decides(old) == decides(new))
        {
            return;
        }
        let node = self.nodes.get(&new.spec.node_name);
        if node.is_some_and(|node| !executing(&node).is_empty())
            || self.pending.lock().contains(&new.metadata.uid)
        {
            self.queue.add(change.key.to_string());
        }
    }

    async fn reconcile(&self, context: &Context, key: &str) -> Result<Requeue, ClientError> {
        let Some(pod) = self.pods.get(key).filter(|pod| !pod.metadata.is_deleting()) else {
            return Ok(Requeue::No);
        };
        let uid = &pod.metadata.uid;
        let node = self.nodes.get(&pod.spec.node_name);
        let taints = node.as_ref().map_or_else(Vec::new, |node| executing(node));
        let verdict = match verdict(&pod, &taints) {
            Verdict::GoesAt(at) if at <= now() => Verdict::GoesNow,
            verdict => verdict,
        };
        match verdict {
            Verdict::Stays => {
                if self.pending.lock().remove(uid) {
                    self.event(&pod, format!("Cancelling deletion of Pod {key}"));
                }
                Ok(Requeue::No)
            }
            Verdict::GoesAt(at) => {
                self.pending.lock().insert(uid.clone());
                let left = Duration::try_from(at - now()).unwrap_or_default();
                Ok(Requeue::After(left + Duration::from_millis(1)))
            }
            Verdict::GoesNow => {
                self.event(&pod, format!("Marking for deletion Pod {key}"));
                evict(context, &pod, &EVICTED).await?;
                self.pending.lock().remove(uid);
                Ok(Requeue::No)
            }
        }
    }

    fn event(&self, pod: &Pod, message: String) {
        let meta = &pod.metadata;
        let reference = ObjectReference::pod(
            &meta.namespace,
            &meta.name,
            &meta.uid,
            &meta.resource_version,
        );
        self.recorder
            .event(&reference, EventKind::Normal, REASON, message);
    }
}

/// A taint without a toleration evicts at once; else the toleration that runs out first decides.
fn verdict(pod: &Pod, taints: &[&Taint]) -> Verdict {
    let mut earliest: Option<Time> = None;
    for taint in taints {
        let covers = |toleration: &&Toleration| toleration.tolerates(taint);
        let Some(toleration) = pod.spec.tolerations.iter().find(covers) else {
            return Verdict::GoesNow;
        };
        let Some(seconds) = toleration.toleration_seconds else {
            continue;
        };
        let at = since(pod, taint) + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
    }
    earliest.map_or(Verdict::Stays, Verdict::GoesAt)
}

/// Since when the pod has been on a node with this taint.
fn since(pod: &Pod, taint: &Taint) -> Time {
    let scheduled = condition(&pod.status.conditions, "PodScheduled");
    let arrived = scheduled
        .and_then(|scheduled| scheduled.last_transition_time.as_deref())
        .or(pod.metadata.creation_timestamp.as_deref());
    let times = [taint.time_added.as_deref(), arrived];
    times
        .into_iter()
        .flatten()
        .filter_map(parse)
        .max()
        .unwrap_or_else(now)
}

/// What a pod is told in its condition.
pub struct Told {
    pub reason: &'static str,
    pub message: &'static str,
}

const EVICTED: Told = Told {
    reason: "DeletionByTaintManager",
    message: "Taint manager: deleting due to NoExecute taint",
};

/// Tells the pod why, and deletes it.
pub async fn evict(context: &Context, pod: &Pod, told: &Told) -> Result<(), ClientError> {
    let meta = &pod.metadata;
    let client = &context.client;
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": told.reason, "message": told.message,
        "lastTransitionTime": now_text(), "observedGeneration": meta.generation,
    });
    let patch = Patch::Strategic(
        json!({"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}),
    );
    let options = WriteOptions::default();
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
    gone_is_fine(patched)?;
    let options = DeleteOptions::uid(&meta.uid);
    gone_is_fine(
        client
            .delete(&PODS, &meta.namespace, &meta.name, &options)
            .await,
    )
}

/// Another pod of that name, or none, is as good as deleted.
fn gone_is_fine(result: Result<Value, ClientError>) -> Result<(), ClientError> {
    match result {
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

    fn pod(tolerations: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"tolerations": tolerations},
        }))
        .unwrap()
    }

    fn taint(key: &str, added: &str) -> Taint {
        Taint {
            time_added: Some(added.into()),
            ..Taint::new(key, "NoExecute")
        }
    }

    #[test]
    fn the_toleration_that_runs_out_first_decides() {
        let (a, b) = (
            taint("a", "2026-01-01T01:00:00Z"),
            taint("b", "2026-01-01T01:01:00Z"),
        );
        let tolerate = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "tolerationSeconds": seconds});
        let at = |text: &str| Verdict::GoesAt(parse(text).unwrap());
        let forever = json!([{"operator": "Exists"}]);
        for (tolerations, expected) in [
            (json!([]), Verdict::GoesNow),
            (json!([tolerate("a", 10)]), Verdict::GoesNow),
            (
                json!([tolerate("a", 300), tolerate("b", 300)]),
                at("2026-01-01T01:05:00Z"),
            ),
            (
                json!([tolerate("a", 300), tolerate("b", 60)]),
                at("2026-01-01T01:02:00Z"),
            ),
            (
                json!([tolerate("a", -5), tolerate("b", 60)]),
                at("2026-01-01T01:00:00Z"),
            ),
            (forever, Verdict::Stays),
        ] {
            assert_eq!(
                verdict(&pod(tolerations.clone()), &[&a, &b]),
                expected,
                "{tolerations}"
            );
        }
        assert_eq!(verdict(&pod(json!([])), &[]), Verdict::Stays);
    }

    #[test]
    fn a_pod_that_arrived_after_the_taint_has_its_full_time() {
        let mut late = pod(json!([{"operator": "Exists", "tolerationSeconds": 300}]));
        late.metadata.creation_timestamp = Some("2026-01-01T02:00:00Z".into());
        let at = parse("2026-01-01T02:05:00Z").unwrap();
        assert_eq!(
            verdict(&late, &[&taint("a", "2026-01-01T01:00:00Z")]),
            Verdict::GoesAt(at)
        );
    }

    #[tokio::test]
    async fn a_pod_goes_when_its_time_is_up_and_stays_when_the_taint_goes_first() {
        let server = Server::default();
        let shutdown = CancellationToken::new();
        let config = crate::ControllersConfig {
            controllers: vec!["taint-eviction-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        let tainted = json!({"metadata": {"name": "n"}, "spec": {"taints": [
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": now_text()}]}});
        server.put(&NODES, tainted);
        for (name, seconds) in [("now", 0), ("soon", 1), ("later", 60)] {
            server.put(&PODS, json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": "n", "tolerations": [{"operator": "Exists", "tolerationSeconds": seconds}]},
            }));
        }
        let deleting = |name: &str| {
            let pod = server.get(&PODS, &format!("default/{name}")).unwrap();
            pod["metadata"]["deletionTimestamp"].is_string()
        };
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert!(deleting("now") && deleting("soon") && !deleting("later"));
        server.put(&NODES, json!({"metadata": {"name": "n"}}));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let events = server.list(&api::r::EVENTS);
        let said = |message: &str| {
            events
                .iter()
                .any(|event| event["message"] == message && event["reason"] == REASON)
        };
        assert!(said("Marking for deletion Pod default/soon"));
        assert!(said("Cancelling deletion of Pod default/later"));
        assert!(!deleting("later"));
    }
}
