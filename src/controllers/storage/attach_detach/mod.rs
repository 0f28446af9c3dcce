//! persistentvolume-attach-detach-controller: tells drivers by VolumeAttachments which CSI volumes belong on which
//! node, and nodes which of them they have.
//!
//! A key is a node. What is attached is read off the VolumeAttachments alone, so that a restart forgets nothing: one
//! whose driver has not answered is as much there as one that is attached.
//!
//! **Invariant:** an attachment is deleted only after the node's status, read anew, says that the volume is not in use,
//! and no longer lists it as attached; the two are one write.

mod plan;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::r::{
    CSIDRIVERS, NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS, VOLUMEATTACHMENTS,
};
use apimachinery::{Value, meta, meta::join_key};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Delta, Informer, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

pub use self::plan::AttachedVolume;
use self::plan::{Detach, Elsewhere, Observed, Plan, Wanted, attachment_name, plan};
use super::{
    protection::{BY_CLAIM, pods_by_claim},
    view::{Claim, CsiDriver, Volume, VolumeAttachment},
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{BY_NODE, Node, Pod, condition, pods_by_node},
};

/// Nodes looked at at a time.
const WORKERS: usize = 10;
/// Index of attachments by their volume.
const BY_VOLUME: &str = "volume";

pub struct AttachDetach;

#[async_trait]
impl Controller for AttachDetach {
    fn name(&self) -> &'static str {
        "persistentvolume-attach-detach-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["attachdetach"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let manager = Arc::new(Manager {
            nodes: informers.informer(&NODES, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            claims: informers.informer(&PERSISTENTVOLUMECLAIMS, "", Selectors::default()),
            volumes: informers.informer(&PERSISTENTVOLUMES, "", Selectors::default()),
            drivers: informers.informer(&CSIDRIVERS, "", Selectors::default()),
            attachments: informers.informer(&VOLUMEATTACHMENTS, "", Selectors::default()),
            recorder: context.recorder("attachdetach-controller"),
            queue: Queue::default(),
            memory: Mutex::default(),
            context: context.clone(),
        });
        let Manager {
            nodes,
            pods,
            claims,
            volumes,
            drivers,
            attachments,
            ..
        } = &*manager;
        pods.add_index(BY_NODE, pods_by_node);
        pods.add_index(BY_CLAIM, pods_by_claim);
        attachments.add_index(BY_NODE, |one| vec![one.spec.node_name.clone()]);
        attachments.add_index(BY_VOLUME, |one| vec![one.volume().to_string()]);
        if !synced!(context, nodes, pods, claims, volumes, drivers, attachments) {
            return;
        }
        manager.follow();
        let name = "attach-detach";
        workqueue::run(name, &manager.queue, WORKERS, &context.shutdown, |node| {
            let manager = &manager;
            async move { manager.reconcile(&node).await }
        })
        .await;
    }
}

struct Manager {
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    claims: Informer<Claim>,
    volumes: Informer<Volume>,
    drivers: Informer<CsiDriver>,
    attachments: Informer<VolumeAttachment>,
    recorder: Recorder,
    queue: Queue<String>,
    memory: Mutex<Memory>,
    context: Context,
}

/// What the API does not say. Bounded by the attachments there are, and the pods that wait for one.
#[derive(Default)]
struct Memory {
    /// Since when attachments have been unwanted, by name.
    unwanted: HashMap<String, Instant>,
    /// Volumes for one node at a time that are being attached, until the cache shows it: the node, and the version.
    promised: HashMap<String, (String, Option<String>)>,
    /// Told already: attachments and their errors, and pods (by uid) that wait for another node.
    told: HashSet<(String, String)>,
}

impl Manager {
    /// Every change brings the nodes it matters to.
    fn follow(self: &Arc<Self>) {
        let to = self.clone();
        self.nodes.add_handler(move |change| {
            let decides = |node: &Arc<Node>| {
                let ready =
                    condition(&node.status.conditions, "Ready").map(|one| one.status.clone());
                let status = &node.status;
                let lists = (
                    status.volumes_in_use.clone(),
                    status.volumes_attached.clone(),
                );
                (
                    lists,
                    ready,
                    node.spec.taints.clone(),
                    node.metadata.annotations.clone(),
                )
            };
            if change.old.as_ref().map(decides) != change.new.as_ref().map(decides) {
                to.queue.add(change.key.to_string());
            }
        });
        let to = self.clone();
        self.pods.add_handler(move |change| to.pod_changed(change));
        let to = self.clone();
        self.claims
            .add_handler(move |change| to.claim_changed(&change.key));
        let to = self.clone();
        self.volumes.add_handler(move |change| {
            if let Some(claim) = &change.object().spec.claim_ref {
                to.claim_changed(&join_key(&claim.namespace, &claim.name));
            }
        });
        let to = self.clone();
        self.drivers.add_handler(move |_| {
            to.nodes
                .keys()
                .iter()
                .for_each(|node| to.queue.add(node.to_string()));
        });
        let to = self.clone();
        self.attachments.add_handler(move |change| {
            let object = change.object();
            to.queue.add(object.spec.node_name.clone());
            if change.is_deleted() {
                to.forget(object);
                // Whoever waited for it may have it now.
                to.volume_freed(object.volume());
            }
        });
    }

    fn pod_changed(&self, change: &Delta<Pod>) {
        let decides = |pod: &Arc<Pod>| {
            (
                pod.spec.node_name.clone(),
                pod.is_terminal(),
                pod.metadata.uid.clone(),
            )
        };
        if change.old.as_ref().map(decides) == change.new.as_ref().map(decides) {
            return;
        }
        for pod in change.old.iter().chain(&change.new) {
            if !pod.spec.node_name.is_empty() && !pod.spec.volumes.is_empty() {
                self.queue.add(pod.spec.node_name.clone());
            }
        }
    }

    fn claim_changed(&self, claim: &str) {
        for pod in self.pods.by_index(BY_CLAIM, claim) {
            if !pod.spec.node_name.is_empty() {
                self.queue.add(pod.spec.node_name.clone());
            }
        }
    }

    fn volume_freed(&self, volume: &str) {
        let volume = self.volumes.get(volume);
        if let Some(claim) = volume
            .as_ref()
            .and_then(|volume| volume.spec.claim_ref.as_ref())
        {
            self.claim_changed(&join_key(&claim.namespace, &claim.name));
        }
    }

    fn forget(&self, attachment: &VolumeAttachment) {
        let mut memory = self.memory.lock();
        let name = &attachment.metadata.name;
        memory.unwanted.remove(name);
        memory.told.retain(|(one, _)| one != name);
        let holder = memory.promised.get(attachment.volume());
        if holder.is_some_and(|(node, _)| *node == attachment.spec.node_name) {
            memory.promised.remove(attachment.volume());
        }
    }

    /// The volume of a pod's claim, if it is one to be attached.
    fn volume_of(&self, pod: &Pod, claim: &str) -> Option<Arc<Volume>> {
        let claim = self.claims.get(&join_key(&pod.metadata.namespace, claim))?;
        if claim.status.phase != "Bound" {
            return None;
        }
        let volume = self.volumes.get(&claim.spec.volume_name)?;
        let driver = volume.spec.csi["driver"].as_str()?;
        // A driver that says nothing of itself is attached.
        let attaches = self
            .drivers
            .get(driver)
            .is_none_or(|driver| driver.spec.attach_required);
        (attaches && volume.is_bound_to(&claim)).then_some(volume)
    }

    /// What the pods on a node need, by the volume's name.
    fn wanted(&self, node: &Node) -> BTreeMap<String, Wanted> {
        let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
        if !plan::is_managed(node) {
            return wanted;
        }
        for pod in self.pods.by_index(BY_NODE, &node.metadata.name) {
            if !plan::holds_volumes(&pod, node) {
                continue;
            }
            for claim in pod
                .spec
                .volumes
                .iter()
                .filter_map(|volume| volume.claim(&pod))
            {
                let Some(volume) = self.volume_of(&pod, &claim) else {
                    continue;
                };
                let entry = wanted.entry(volume.metadata.name.clone());
                let entry = entry.or_insert_with(|| Wanted {
                    volume,
                    pods: Vec::new(),
                });
                entry.pods.push(pod.clone());
            }
        }
        wanted
    }

    /// Which of the wanted volumes are on another node, or are on their way there.
    fn elsewhere(
        &self,
        node: &str,
        wanted: &BTreeMap<String, Wanted>,
    ) -> BTreeMap<String, Elsewhere> {
        let mut elsewhere = BTreeMap::new();
        for (name, one) in wanted
            .iter()
            .filter(|(_, one)| plan::is_exclusive(&one.volume))
        {
            let attachments = self.ours(BY_VOLUME, name);
            let attached = attachments.iter().any(|other| other.spec.node_name != node);
            if attached || self.is_promised(name, node) {
                let claim = one.volume.spec.claim_ref.clone().unwrap_or_default();
                let mut pods = self
                    .pods
                    .by_index(BY_CLAIM, &join_key(&claim.namespace, &claim.name));
                pods.retain(|pod| {
                    !pod.spec.node_name.is_empty()
                        && pod.spec.node_name != node
                        && !pod.is_terminal()
                });
                elsewhere.insert(name.clone(), Elsewhere { pods });
            }
        }
        elsewhere
    }

    /// The attachments under a value of an index that were made here.
    fn ours(&self, index: &str, value: &str) -> Vec<Arc<VolumeAttachment>> {
        let mut attachments = self.attachments.by_index(index, value);
        attachments.retain(|one| plan::is_ours(one, self.volumes.get(one.volume()).as_deref()));
        attachments
    }

    /// Whether another node is being given the volume, which the cache does not show yet.
    fn is_promised(&self, volume: &str, node: &str) -> bool {
        let mut memory = self.memory.lock();
        let Some((holder, version)) = memory.promised.get(volume) else {
            return false;
        };
        let attachments = self.attachments.by_index(BY_VOLUME, volume);
        if version
            .as_ref()
            .is_some_and(|version| self.attachments.has_seen(version))
            || attachments.iter().any(|one| one.spec.node_name == *holder)
        {
            memory.promised.remove(volume);
            return false;
        }
        holder != node
    }

    async fn reconcile(&self, name: &str) -> Result<Requeue, ClientError> {
        let node = self.nodes.get(name);
        let attachments = self.ours(BY_NODE, name);
        let wanted = node
            .as_ref()
            .map(|node| self.wanted(node))
            .unwrap_or_default();
        let volumes = attachments
            .iter()
            .filter_map(|one| self.volumes.get(one.volume()));
        let volumes = volumes
            .map(|volume| (volume.metadata.name.clone(), volume))
            .collect();
        let elsewhere = self.elsewhere(name, &wanted);
        let unwanted_for = self.unwanted_for(&attachments, &wanted);
        let plan = plan(&Observed {
            node: node.as_deref(),
            wanted: &wanted,
            attachments: &attachments,
            volumes: &volumes,
            elsewhere: &elsewhere,
            unwanted_for: &unwanted_for,
        });
        for volume in &plan.blocked {
            self.tell_blocked(volume, &wanted[volume], &elsewhere[volume]);
        }
        self.tell_results(&attachments, &wanted);
        let waits = self.settle(node.as_deref(), &plan).await?;
        for volume in &plan.attach {
            self.attach(name, &wanted[volume]).await?;
        }
        Ok(match (waits, plan.again) {
            (true, _) => Requeue::After(LAG_RETRY),
            (false, Some(again)) => Requeue::After(again),
            (false, None) => Requeue::No,
        })
    }

    fn unwanted_for(
        &self,
        attachments: &[Arc<VolumeAttachment>],
        wanted: &BTreeMap<String, Wanted>,
    ) -> BTreeMap<String, Duration> {
        let mut memory = self.memory.lock();
        let mut times = BTreeMap::new();
        for attachment in attachments {
            let name = &attachment.metadata.name;
            if wanted.contains_key(attachment.volume()) {
                memory.unwanted.remove(name);
            } else {
                let since = memory
                    .unwanted
                    .entry(name.clone())
                    .or_insert_with(Instant::now);
                times.insert(name.clone(), since.elapsed());
            }
        }
        times
    }

    /// Writes what the node has, then deletes the attachments it has no more. True if some are in use after all.
    async fn settle(&self, node: Option<&Node>, plan: &Plan) -> Result<bool, ClientError> {
        let Some(node) = node else {
            for detach in &plan.detach {
                self.detach(detach).await?;
            }
            return Ok(false);
        };
        let is_current = |attached: &Vec<AttachedVolume>| *attached == node.status.volumes_attached;
        if plan.detach.is_empty() && plan.attached.as_ref().is_none_or(is_current) {
            return Ok(false);
        }
        let fresh = self
            .context
            .client
            .get::<Value>(&NODES, "", &node.metadata.name)
            .await;
        let mut fresh = match fresh {
            Ok(fresh) if meta::uid(&fresh) == node.metadata.uid => fresh,
            // Its end is on its way to the cache.
            Ok(_) => return Ok(true),
            Err(error) if error.is_not_found() => return Ok(true),
            Err(error) => return Err(error),
        };
        let in_use = |detach: &&Detach| {
            let all = fresh["status"]["volumesInUse"].as_array();
            let names = |name: &Value| name.as_str() == Some(&detach.unique);
            !detach.force && all.is_some_and(|all| all.iter().any(names))
        };
        let (stay, go): (Vec<&Detach>, Vec<&Detach>) = plan.detach.iter().partition(in_use);
        if let Some(mut attached) = plan.attached.clone() {
            attached.extend(stay.iter().map(|one| AttachedVolume {
                name: one.unique.clone(),
                device_path: String::new(),
            }));
            let new = if attached.is_empty() {
                Value::Null
            } else {
                json!(attached)
            };
            if fresh["status"]["volumesAttached"] != new {
                set_attached(&mut fresh, new);
                let options = WriteOptions::default();
                let name = &node.metadata.name;
                let client = &self.context.client;
                client
                    .update_status::<_, Value>(&NODES, "", name, &fresh, &options)
                    .await?;
            }
        }
        for detach in go {
            self.detach(detach).await?;
        }
        Ok(!stay.is_empty())
    }

    async fn detach(&self, detach: &Detach) -> Result<(), ClientError> {
        let Some(attachment) = self.attachments.get(&detach.attachment) else {
            return Ok(());
        };
        let meta = &attachment.metadata;
        let options = DeleteOptions::uid(&meta.uid);
        match self
            .context
            .client
            .delete(&VOLUMEATTACHMENTS, "", &meta.name, &options)
            .await
        {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    async fn attach(&self, node: &str, wanted: &Wanted) -> Result<(), ClientError> {
        let csi = &wanted.volume.spec.csi;
        let (driver, handle) = (
            csi["driver"].as_str().unwrap_or(""),
            csi["volumeHandle"].as_str().unwrap_or(""),
        );
        let volume = &wanted.volume.metadata.name;
        if plan::is_exclusive(&wanted.volume) {
            // Looked at and taken in one step: another worker may be at another node's.
            let mut memory = self.memory.lock();
            if memory
                .promised
                .get(volume)
                .is_some_and(|(holder, _)| holder != node)
            {
                drop(memory);
                self.queue.add_after(node.to_string(), LAG_RETRY);
                return Ok(());
            }
            memory
                .promised
                .insert(volume.clone(), (node.to_string(), None));
        }
        let attachment = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": attachment_name(driver, handle, node)},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
        });
        let options = WriteOptions::default();
        let created = self
            .context
            .client
            .create::<_, Value>(&VOLUMEATTACHMENTS, "", &attachment, &options)
            .await;
        let mut memory = self.memory.lock();
        match created {
            Ok(created) => {
                if let Some((_, version)) = memory.promised.get_mut(volume) {
                    *version = Some(meta::resource_version(&created).to_string());
                }
                Ok(())
            }
            // The cache is behind: it will show it, or its end.
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => {
                memory.promised.remove(volume);
                drop(memory);
                let message = format!("AttachVolume.Attach failed for volume {volume:?} : {error}");
                self.event(
                    &wanted.pods,
                    EventKind::Warning,
                    "FailedAttachVolume",
                    &message,
                );
                Err(error)
            }
        }
    }

    /// Once for each pod that waits.
    fn tell_blocked(&self, volume: &str, wanted: &Wanted, elsewhere: &Elsewhere) {
        for pod in &wanted.pods {
            let csi = &wanted.volume.spec.csi;
            let (driver, handle) = (csi["driver"].as_str(), csi["volumeHandle"].as_str());
            let name = attachment_name(
                driver.unwrap_or(""),
                handle.unwrap_or(""),
                &pod.spec.node_name,
            );
            if self
                .memory
                .lock()
                .told
                .insert((name, pod.metadata.uid.clone()))
            {
                let message = plan::multi_attach_message(volume, pod, elsewhere);
                self.event(
                    std::slice::from_ref(pod),
                    EventKind::Warning,
                    "FailedAttachVolume",
                    &message,
                );
            }
        }
    }

    /// Tells the pods when their volume is attached, or could not be; each answer once.
    fn tell_results(
        &self,
        attachments: &[Arc<VolumeAttachment>],
        wanted: &BTreeMap<String, Wanted>,
    ) {
        for attachment in attachments {
            let Some(wanted) = wanted.get(attachment.volume()) else {
                continue;
            };
            let volume = attachment.volume();
            let (kind, reason, message, mark) = match &attachment.status.attach_error {
                _ if attachment.status.attached => {
                    let message = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
                    (
                        EventKind::Normal,
                        "SuccessfulAttachVolume",
                        message,
                        String::new(),
                    )
                }
                Some(error) => {
                    let message = format!(
                        "AttachVolume.Attach failed for volume {volume:?} : {}",
                        error.message
                    );
                    (
                        EventKind::Warning,
                        "FailedAttachVolume",
                        message,
                        error.time.clone(),
                    )
                }
                None => continue,
            };
            let name = &attachment.metadata.name;
            // After a restart what was attached long ago is no news.
            let is_old = attachment.status.attached && self.is_reported(attachment, wanted);
            if self.memory.lock().told.insert((name.clone(), mark)) && !is_old {
                self.event(&wanted.pods, kind, reason, &message);
            }
        }
    }

    fn is_reported(&self, attachment: &VolumeAttachment, wanted: &Wanted) -> bool {
        let handle = wanted.volume.spec.csi["volumeHandle"]
            .as_str()
            .unwrap_or("");
        let unique = plan::unique_name(&attachment.spec.attacher, handle);
        let node = self.nodes.get(&attachment.spec.node_name);
        node.is_some_and(|node| {
            node.status
                .volumes_attached
                .iter()
                .any(|one| one.name == unique)
        })
    }

    fn event(&self, pods: &[Arc<Pod>], kind: EventKind, reason: &'static str, message: &str) {
        for pod in pods {
            let meta = &pod.metadata;
            let object = ObjectReference::pod(
                &meta.namespace,
                &meta.name,
                &meta.uid,
                &meta.resource_version,
            );
            self.recorder
                .event(&object, kind, reason, message.to_string());
        }
    }
}

fn set_attached(node: &mut Value, attached: Value) {
    if let Some(status) = node["status"].as_object_mut()
        && attached.is_null()
    {
        status.remove("volumesAttached");
        return;
    }
    node["status"]["volumesAttached"] = attached;
}

#[cfg(test)]
mod tests;
