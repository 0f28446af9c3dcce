//! Feeds the cluster and the queue from informers.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    r::{
        CSIDRIVERS, CSINODES, CSISTORAGECAPACITIES, DEVICECLASSES, NAMESPACES, NODES,
        PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODDISRUPTIONBUDGETS, PODS, REPLICASETS,
        REPLICATIONCONTROLLERS, RESOURCECLAIMS, RESOURCESLICES, SERVICES, STATEFULSETS,
        STORAGECLASSES, VOLUMEATTACHMENTS,
    },
    view::ObjectMeta,
};
use apimachinery::{Value, selector::LabelSelector};
use client::{Delta, Factory, Informer, Selectors};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    budget::PodDisruptionBudget,
    devices::view::{DeviceClass, ResourceSlice},
    framework::Change,
    node::Node,
    pod::Pod,
    run::Shared,
    storage::{
        CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim,
        ResourceClaim, Storage, StorageClass, VolumeAttachment,
    },
};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Labelled {
    metadata: ObjectMeta,
}

/// A Service, ReplicaSet, StatefulSet or ReplicationController: whom it selects.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Selecting {
    spec: SelectingSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SelectingSpec {
    selector: Value,
}

/// The informers of one term of leadership.
pub struct Informers {
    pub pods: Informer<Pod>,
    nodes: Informer<Node>,
    namespaces: Informer<Labelled>,
    services: Informer<Selecting>,
    workloads: [(&'static str, Informer<Selecting>); 3],
    budgets: Informer<PodDisruptionBudget>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    csi_nodes: Informer<CsiNode>,
    csi_drivers: Informer<CsiDriver>,
    capacities: Informer<CsiStorageCapacity>,
    attachments: Informer<VolumeAttachment>,
    resource_claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    device_classes: Informer<DeviceClass>,
}

impl Informers {
    pub fn new(factory: &Factory) -> Self {
        fn all<T>(factory: &Factory, resource: &'static api::Resource) -> Informer<T>
        where
            T: DeserializeOwned + Send + Sync + 'static,
        {
            factory.informer(resource, "", Selectors::default())
        }
        // Finished pods take nothing and are nobody's business here.
        let running = Selectors::fields("status.phase!=Succeeded,status.phase!=Failed");
        Informers {
            pods: factory.informer(&PODS, "", running),
            nodes: all(factory, &NODES),
            namespaces: all(factory, &NAMESPACES),
            services: all(factory, &SERVICES),
            workloads: [
                ("ReplicaSet", all(factory, &REPLICASETS)),
                ("StatefulSet", all(factory, &STATEFULSETS)),
                (
                    "ReplicationController",
                    all(factory, &REPLICATIONCONTROLLERS),
                ),
            ],
            budgets: all(factory, &PODDISRUPTIONBUDGETS),
            claims: all(factory, &PERSISTENTVOLUMECLAIMS),
            volumes: all(factory, &PERSISTENTVOLUMES),
            classes: all(factory, &STORAGECLASSES),
            csi_nodes: all(factory, &CSINODES),
            csi_drivers: all(factory, &CSIDRIVERS),
            capacities: all(factory, &CSISTORAGECAPACITIES),
            attachments: all(factory, &VOLUMEATTACHMENTS),
            resource_claims: all(factory, &RESOURCECLAIMS),
            slices: all(factory, &RESOURCESLICES),
            device_classes: all(factory, &DEVICECLASSES),
        }
    }

    pub async fn synced(&self) {
        self.pods.wait_synced().await;
        self.nodes.wait_synced().await;
        self.namespaces.wait_synced().await;
        self.services.wait_synced().await;
        for (_, workload) in &self.workloads {
            workload.wait_synced().await;
        }
        self.budgets.wait_synced().await;
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.classes.wait_synced().await;
        self.csi_nodes.wait_synced().await;
        self.csi_drivers.wait_synced().await;
        self.capacities.wait_synced().await;
        self.attachments.wait_synced().await;
        self.resource_claims.wait_synced().await;
        self.slices.wait_synced().await;
        self.device_classes.wait_synced().await;
    }

    /// Brings everything into `shared`, now and from now on. Pods come last, so that they find all else.
    pub fn feed(&self, shared: &Arc<Shared>) {
        let to = shared.clone();
        self.namespaces
            .add_handler(move |delta| namespace(&to, delta));
        let to = shared.clone();
        self.services.add_handler(move |delta| service(&to, delta));
        for (kind, workload) in &self.workloads {
            let (to, kind) = (shared.clone(), *kind);
            workload.add_handler(move |delta| {
                let selector = delta.new.as_ref().map(|new| selector(&new.spec.selector));
                to.state
                    .lock()
                    .cluster
                    .set_workload(kind, &delta.key, selector);
            });
        }
        self.feed_storage(shared);
        let to = shared.clone();
        self.nodes.add_handler(move |delta| node(&to, delta));
        let to = shared.clone();
        self.pods.add_handler(move |delta| pod(&to, delta));
    }

    fn feed_storage(&self, shared: &Arc<Shared>) {
        let to = shared.clone();
        self.budgets
            .add_handler(move |delta| put(&mut to.state.lock().cluster.budgets, delta));
        feed_storage(&self.claims, shared, |storage, delta| {
            put(&mut storage.claims, delta)
        });
        feed_storage(&self.volumes, shared, |storage, delta| {
            storage.set_volume(&delta.key, delta.new.clone())
        });
        feed_storage(&self.classes, shared, |storage, delta| {
            put(&mut storage.classes, delta)
        });
        feed_storage(&self.csi_nodes, shared, |storage, delta| {
            put(&mut storage.csi_nodes, delta)
        });
        feed_storage(&self.csi_drivers, shared, |storage, delta| {
            put(&mut storage.csi_drivers, delta)
        });
        feed_storage(&self.capacities, shared, |storage, delta| {
            put(&mut storage.capacities, delta)
        });
        feed_storage(&self.attachments, shared, |storage, delta| {
            storage.set_attachment(&delta.key, delta.old.as_deref(), delta.new.clone())
        });
        self.feed_devices(shared);
    }

    fn feed_devices(&self, shared: &Arc<Shared>) {
        feed_as(
            &self.resource_claims,
            shared,
            Change::Devices,
            |storage, delta| storage.set_resource_claim(&delta.key, delta.new.clone()),
        );
        feed_as(&self.slices, shared, Change::Devices, |storage, delta| {
            put(&mut storage.slices, delta)
        });
        feed_as(
            &self.device_classes,
            shared,
            Change::DeviceClass,
            |storage, delta| put(&mut storage.device_classes, delta),
        );
    }
}

fn feed_storage<T: Send + Sync + 'static>(
    from: &Informer<T>,
    shared: &Arc<Shared>,
    apply: fn(&mut Storage, &Delta<T>),
) {
    feed_as(from, shared, Change::Storage, apply);
}

fn feed_as<T: Send + Sync + 'static>(
    from: &Informer<T>,
    shared: &Arc<Shared>,
    change: Change<'static>,
    apply: fn(&mut Storage, &Delta<T>),
) {
    let to = shared.clone();
    from.add_handler(move |delta| {
        to.change(|state| apply(&mut state.cluster.storage, delta), &change);
        to.storage_changes.send_replace(());
    });
}

fn put<T>(map: &mut std::collections::HashMap<String, Arc<T>>, delta: &Delta<T>) {
    match &delta.new {
        Some(new) => map.insert(delta.key.to_string(), new.clone()),
        None => map.remove(&*delta.key),
    };
}

/// A label selector, or the plain map of a Service or ReplicationController.
fn selector(value: &Value) -> LabelSelector {
    let is_selector = ["matchLabels", "matchExpressions"]
        .iter()
        .any(|name| value.get(name).is_some_and(|v| !v.is_string()));
    if is_selector {
        return LabelSelector::from_value(value).unwrap_or_else(|_| LabelSelector::nothing());
    }
    match plain(value) {
        labels if labels.is_empty() => LabelSelector::nothing(),
        labels => LabelSelector::from_labels(labels),
    }
}

fn plain(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())))
        .collect()
}

fn namespace(shared: &Shared, delta: &Delta<Labelled>) {
    let labels = delta.new.as_ref().map(|new| new.metadata.labels.clone());
    let old = delta.old.as_ref().map(|old| &old.metadata.labels);
    if old == labels.as_ref() {
        return;
    }
    shared.change(
        |state| state.cluster.set_namespace(&delta.key, labels),
        &Change::Namespace,
    );
}

fn service(shared: &Shared, delta: &Delta<Selecting>) {
    let (namespace, name) = apimachinery::meta::split_key(&delta.key);
    let selector = delta.new.as_ref().map(|new| plain(&new.spec.selector));
    shared
        .state
        .lock()
        .cluster
        .set_service(namespace, name, selector);
}

fn node(shared: &Shared, delta: &Delta<Node>) {
    match (&delta.old, &delta.new) {
        // A heartbeat.
        (Some(old), Some(new)) if old == new => {}
        (Some(old), Some(new)) => {
            let change = Change::NodeUpdated { old, new };
            shared.change(|state| drop(state.cluster.set_node(new.clone())), &change);
        }
        (None, Some(new)) => {
            shared.change(
                |state| drop(state.cluster.set_node(new.clone())),
                &Change::NodeAdded(new),
            );
        }
        _ => shared.state.lock().cluster.remove_node(&delta.key),
    }
}

fn pod(shared: &Shared, delta: &Delta<Pod>) {
    // Another pod of the same name: the old one goes first.
    if let (Some(old), Some(new)) = (&delta.old, &delta.new)
        && old.uid != new.uid
    {
        gone(shared, old);
    }
    let Some(new) = delta.new.as_ref().filter(|new| !new.is_terminal) else {
        return gone(shared, delta.object());
    };
    if new.node_name.is_empty() {
        waiting(shared, delta.old.as_ref(), new);
    } else {
        assigned(shared, new);
    }
}

fn gone(shared: &Shared, pod: &Arc<Pod>) {
    let mut state = shared.state.lock();
    state.queue.remove(&pod.uid);
    let was_nominated = state.cluster.forget_nomination(&pod.uid);
    let removed = state.cluster.remove_pod(&pod.uid);
    let change = match &removed {
        Some(removed) => Change::PodDeleted(removed),
        None if was_nominated => Change::NominationGone,
        None => return,
    };
    state.queue.on_change(&change, Instant::now());
    drop(state);
    // It may have waited for its volumes.
    shared.storage_changes.send_replace(());
    shared.wake.notify_one();
}

fn assigned(shared: &Shared, new: &Arc<Pod>) {
    let mut state = shared.state.lock();
    state.queue.remove(&new.uid);
    let was_assumed = state.cluster.is_assumed(&new.uid);
    let old = state.cluster.set_pod(new.clone());
    let change = match &old {
        // Told when it was assumed.
        Some(_) if was_assumed => return,
        Some(old) => Change::PodUpdated { old, new },
        None => Change::PodAdded(new),
    };
    state.queue.on_change(&change, Instant::now());
    drop(state);
    shared.wake.notify_one();
}

fn waiting(shared: &Shared, old: Option<&Arc<Pod>>, new: &Arc<Pod>) {
    let mut state = shared.state.lock();
    let now = Instant::now();
    let ours = shared.profiles.contains_key(&new.scheduler_name);
    if new.is_deleting || !ours {
        state.queue.remove(&new.uid);
    }
    // Others may nominate, too. What was nominated here stays until the API has shown and then lost it.
    let was_shown = old.is_some_and(|old| !old.nominated_node.is_empty());
    if !new.nominated_node.is_empty() && !new.is_deleting && !state.cluster.is_assumed(&new.uid) {
        state.cluster.nominate(new.clone(), &new.nominated_node);
    } else if (was_shown || new.is_deleting) && state.cluster.forget_nomination(&new.uid) {
        state.queue.on_change(&Change::NominationGone, now);
        shared.wake.notify_one();
    }
    if new.is_deleting || !ours {
        return;
    }
    // While its binding is under way the pod still shows no node.
    if state.cluster.is_assumed(&new.uid) {
        return;
    }
    state.queue.set(new.clone(), now);
    drop(state);
    shared.wake.notify_one();
}
