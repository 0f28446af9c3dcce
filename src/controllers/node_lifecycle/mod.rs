//! node-lifecycle-controller: notices nodes whose kubelet fell silent, says so in their conditions and taints, and in
//! the readiness of their pods. Who evicts the pods is `taint_eviction`.
//!
//! A kubelet shows that it lives by renewing its Lease in kube-node-lease (or by its status). The renewals are timed
//! by this process's clock as they arrive; each node has one timer, set to when its grace period would end.
//! `plan` decides about one node, `zones` about how many may be evicted how fast.

mod plan;
mod zones;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::r::{LEASES, NODES, PODS};
use apimachinery::{Value, time::now_text};
use async_trait::async_trait;
use client::{
    ClientError, Delta, Informer, Patch, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{BY_NODE, Lease, Node, Pod, condition, pods_by_node},
};
use plan::{Action, Observed, plan, ready, wants_eviction};
use zones::Zones;

const NODE_LEASES: &str = "kube-node-lease";
/// Nodes reconciled at a time.
const WORKERS: usize = 8;

pub struct NodeLifecycle;

/// What the controller reads and remembers.
struct Monitor {
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Informer<Pod>,
    /// When each node last showed that it lives. Written by the handlers.
    signs: Mutex<HashMap<String, Instant>>,
    zones: Mutex<Zones>,
    /// Nodes that went from ready to not ready, whose pods are still to be marked.
    fallen: Mutex<std::collections::HashSet<String>>,
    /// The version of each node after this controller's last write to it.
    written: Mutex<HashMap<String, String>>,
    queue: Queue<String>,
    recorder: Recorder,
}

#[async_trait]
impl Controller for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-lifecycle-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["nodelifecycle"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let monitor = Arc::new(Monitor {
            nodes: informers.informer(&NODES, "", Selectors::default()),
            leases: informers.informer(&LEASES, NODE_LEASES, Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            signs: Mutex::default(),
            zones: Mutex::new(Zones::new(&context.config)),
            fallen: Mutex::default(),
            written: Mutex::default(),
            queue: Queue::default(),
            recorder: context.recorder("node-controller"),
        });
        monitor.pods.add_index(BY_NODE, pods_by_node);
        let Monitor {
            nodes,
            leases,
            pods,
            ..
        } = &*monitor;
        if !synced!(context, nodes, leases, pods) {
            return;
        }
        let to = monitor.clone();
        leases.add_handler(move |change| to.lease_changed(change));
        let to = monitor.clone();
        nodes.add_handler(move |change| to.node_changed(change));
        workqueue::run(
            "node-lifecycle",
            &monitor.queue,
            WORKERS,
            &context.shutdown,
            |name| {
                let (context, monitor) = (&context, &monitor);
                async move { monitor.reconcile(context, &name).await }
            },
        )
        .await;
    }
}

impl Monitor {
    /// A renewal only needs attention when the node was given up.
    fn lease_changed(&self, change: &Delta<Lease>) {
        let Some(new) = &change.new else { return };
        let renewed = change
            .old
            .as_ref()
            .is_none_or(|old| old.spec.renew_time != new.spec.renew_time);
        if renewed {
            self.sign_of_life(&new.metadata.name);
        }
    }

    fn sign_of_life(&self, name: &str) {
        self.signs.lock().insert(name.into(), Instant::now());
    }

    fn node_changed(&self, change: &Delta<Node>) {
        let name = &change.object().metadata.name;
        let Some(new) = &change.new else {
            self.signs.lock().remove(name);
            self.written.lock().remove(name);
            self.fallen.lock().remove(name);
            self.node_event(
                change.object(),
                "RemovingNode",
                &format!("Removing Node {name} from Controller"),
            );
            let changed = self.zones.lock().remove(name);
            if changed {
                self.look_at_unhealthy();
            }
            return;
        };
        let heartbeat = |node: &Node| {
            let ready = condition(&node.status.conditions, "Ready");
            ready.and_then(|ready| ready.last_heartbeat_time.clone())
        };
        match &change.old {
            None => {
                self.sign_of_life(name);
                self.node_event(
                    new,
                    "RegisteredNode",
                    &format!("Registered Node {name} in Controller"),
                );
            }
            Some(old) => {
                let speaks = ready(old) != ready(new) && ready(new) != "Unknown";
                if heartbeat(old) != heartbeat(new) || speaks {
                    self.sign_of_life(name);
                }
                if ready(old) == "True" && ready(new) != "True" {
                    self.fallen.lock().insert(name.clone());
                    self.status_event(new);
                }
            }
        }
        if self.zones.lock().set(new, ready(new) == "True") {
            self.look_at_unhealthy();
        }
        let states = |node: &Node| -> Vec<(String, String)> {
            let all = node.status.conditions.iter();
            all.map(|one| (one.kind.clone(), one.status.clone()))
                .collect()
        };
        let same = change
            .old
            .as_ref()
            .is_some_and(|old| old.spec == new.spec && states(old) == states(new));
        if !same {
            self.queue.add(name.clone());
        }
    }

    /// A zone's state changed: what was held back may go on, or must be taken back.
    fn look_at_unhealthy(&self) {
        for node in self.nodes.list() {
            if ready(&node) != "True" {
                self.queue.add(node.metadata.name.clone());
            }
        }
    }

    async fn reconcile(&self, context: &Context, name: &str) -> Result<Requeue, ClientError> {
        let seen = self
            .written
            .lock()
            .get(name)
            .is_none_or(|version| self.nodes.has_seen(version));
        if !seen {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let Some(node) = self.nodes.get(name) else {
            return Ok(Requeue::No);
        };
        let config = &context.config;
        let grace = if ready(&node).is_empty() {
            config.node_startup_grace_period
        } else {
            config.node_monitor_grace_period
        };
        let silent = self.silence(name);
        let (eviction, retry) = if wants_eviction(&node) {
            self.zones.lock().evict(name, Instant::now())
        } else {
            (self.zones.lock().standing(), None)
        };
        let actions = plan(&Observed {
            node: &node,
            silent,
            grace,
            eviction,
            now: now_text(),
        });
        for action in &actions {
            self.apply(context, &node, action).await?;
        }
        if self.fallen.lock().remove(name)
            && let Err(error) = self.mark_pods(context, name).await
        {
            self.fallen.lock().insert(name.into());
            return Err(error);
        }
        // A silent node is looked at again when it changes; any other when its grace period would end.
        let deadline = (silent <= grace).then(|| grace - silent + Duration::from_millis(1));
        let next = deadline.into_iter().chain(retry).min();
        Ok(next.map_or(Requeue::No, Requeue::After))
    }

    /// How long the node has been silent, not counting times when nothing could have arrived.
    fn silence(&self, name: &str) -> Duration {
        let Some(contact) = self.leases.in_contact_since() else {
            return Duration::ZERO;
        };
        let sign = self.signs.lock().get(name).copied().unwrap_or(contact);
        sign.max(contact).elapsed()
    }

    async fn apply(
        &self,
        context: &Context,
        node: &Node,
        action: &Action,
    ) -> Result<(), ClientError> {
        let version = &node.metadata.resource_version;
        let (subresource, patch) = match action {
            Action::SetConditions(conditions) => {
                tracing::warn!(
                    node = node.metadata.name,
                    "the kubelet stopped posting node status"
                );
                ("status", json!({"status": {"conditions": conditions}}))
            }
            Action::SetTaints(taints) => {
                let patch =
                    json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
                ("", patch)
            }
            Action::MarkPodsNotReady => return self.mark_pods(context, &node.metadata.name).await,
        };
        let options = WriteOptions::default();
        let name = &node.metadata.name;
        let patch = Patch::Strategic(patch);
        let patched = context
            .client
            .patch::<Value>(&NODES, "", name, subresource, &patch, &options)
            .await;
        match patched {
            Ok(stored) => {
                let version = apimachinery::meta::resource_version(&stored).to_string();
                self.written.lock().insert(name.clone(), version);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets the Ready condition of the node's pods to False (MarkPodsNotReady).
    async fn mark_pods(&self, context: &Context, node: &str) -> Result<(), ClientError> {
        for pod in self.pods.by_index(BY_NODE, node) {
            if !pod.is_ready() {
                continue;
            }
            let meta = &pod.metadata;
            let condition = json!({
                "type": "Ready", "status": "False", "lastTransitionTime": now_text(),
                "observedGeneration": meta.generation,
            });
            let patch = Patch::Strategic(json!({
                "metadata": {"uid": meta.uid}, "status": {"conditions": [condition]},
            }));
            let options = WriteOptions::default();
            let patched = context.client.patch::<Value>(
                &PODS,
                &meta.namespace,
                &meta.name,
                "status",
                &patch,
                &options,
            );
            match patched.await {
                Err(error) if error.is_not_found() || error.is_conflict() => continue,
                other => other?,
            };
            let reference = ObjectReference::pod(
                &meta.namespace,
                &meta.name,
                &meta.uid,
                &meta.resource_version,
            );
            self.recorder.event(
                &reference,
                EventKind::Warning,
                "NodeNotReady",
                "Node is not ready",
            );
        }
        Ok(())
    }

    fn node_event(&self, node: &Node, reason: &str, what: &str) {
        let message = format!("Node {} event: {what}", node.metadata.name);
        self.recorder
            .event(&reference(node), EventKind::Normal, reason, message);
    }

    fn status_event(&self, node: &Node) {
        let message = format!("Node {} status is now: NodeNotReady", node.metadata.name);
        self.recorder
            .event(&reference(node), EventKind::Normal, "NodeNotReady", message);
    }
}

fn reference(node: &Node) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone(),
        uid: node.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
