//! VolumeBinding: the pod's claims are bound and their volumes can be reached from the node; or they wait for a
//! consumer (WaitForFirstConsumer) and the node has a volume for each, or one can be provisioned there.

use std::{borrow::Cow, sync::Arc};

use crate::{
    cluster::Cluster,
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::{Node, NodeInfo},
    pod::Pod,
    storage::{PersistentVolume, PersistentVolumeClaim, Storage},
};

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const UNREACHABLE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_ROOM: &str = "node(s) did not have enough free storage";
const GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

pub struct VolumeBinding;

/// What must be written before a pod can be bound to its node.
#[derive(Clone, Debug, Default)]
pub struct VolumePlan {
    /// Volumes to give to claims.
    pub bind: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    /// Claims to be provisioned for the node, without those that say so already.
    pub provision: Vec<Arc<PersistentVolumeClaim>>,
    /// All claims to wait for, `namespace/name`.
    pub claims: Vec<String>,
}

/// The claims of a pod that has any, parted.
struct Claims {
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Those that wait for the pod, the smallest first.
    waiting: Vec<Arc<PersistentVolumeClaim>>,
}

/// The claims of the pod, or why it cannot run anywhere.
fn claims(pod: &Pod, cluster: &Cluster) -> Result<Vec<Arc<PersistentVolumeClaim>>, String> {
    let mut claims: Vec<Arc<PersistentVolumeClaim>> = Vec::new();
    for wanted in &pod.claims {
        let name = &wanted.name;
        let key = format!("{}/{name}", pod.namespace);
        let Some(claim) = cluster.storage.claims.get(&key) else {
            return Err(if wanted.is_ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                )
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            });
        };
        if claim.status.phase == "Lost" {
            let volume = &claim.spec.volume_name;
            return Err(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            ));
        }
        if claim.metadata.is_deleting() {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        let owner = claim.metadata.controller();
        if wanted.is_ephemeral && owner.is_none_or(|owner| *owner.uid != *pod.uid) {
            let namespace = &pod.namespace;
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                pod.name
            ));
        }
        // A claim that is used twice needs one volume.
        if !claims.iter().any(|other| Arc::ptr_eq(other, claim)) {
            claims.push(claim.clone());
        }
    }
    Ok(claims)
}

impl Claims {
    /// Parts the pod's claims (GetPodVolumeClaims).
    fn of(pod: &Pod, cluster: &Cluster) -> Result<Self, Cow<'static, str>> {
        let (bound, mut waiting): (Vec<_>, Vec<_>) = claims(pod, cluster)?
            .into_iter()
            .partition(|claim| claim.is_bound());
        let storage = &cluster.storage;
        if waiting
            .iter()
            .any(|claim| !claim.spec.volume_name.is_empty() || !storage.waits_for_consumer(claim))
        {
            return Err("pod has unbound immediate PersistentVolumeClaims".into());
        }
        waiting.sort_by_key(|claim| claim.size());
        Ok(Claims { bound, waiting })
    }

    /// What would have to be written for a node, or why it will not do (FindPodVolumes).
    fn plan(&self, storage: &Storage, node: &Node) -> Result<VolumePlan, Vec<&'static str>> {
        let mut why = Vec::new();
        for claim in &self.bound {
            match storage.volume(&claim.spec.volume_name) {
                None => {
                    why.push(GONE);
                    break;
                }
                Some(volume) if !volume.is_reachable(&node.name, &node.labels) => {
                    why.push(UNREACHABLE);
                    break;
                }
                Some(_) => {}
            }
        }
        match self.place_waiting(storage, node) {
            Ok(plan) if why.is_empty() => Ok(plan),
            Ok(_) => Err(why),
            Err(reason) => {
                why.push(reason);
                Err(why)
            }
        }
    }

    fn place_waiting(&self, storage: &Storage, node: &Node) -> Result<VolumePlan, &'static str> {
        let mut plan = VolumePlan::default();
        let mut taken: Vec<&str> = Vec::new();
        for claim in &self.waiting {
            plan.claims.push(claim.key());
            if let Some(selected) = storage.selected_node(claim) {
                if selected != node.name {
                    return Err(NO_VOLUME);
                }
                if claim.selected_node().is_none() {
                    plan.provision.push(claim.clone());
                }
                continue;
            }
            if let Some(volume) = storage.find_volume(claim, &node.name, &node.labels, &taken) {
                taken.push(&volume.metadata.name);
                plan.bind.push((volume.clone(), claim.clone()));
                continue;
            }
            let class = storage
                .classes
                .get(claim.class())
                .filter(|class| class.provisions());
            let Some(class) = class.filter(|class| class.reaches(&node.labels)) else {
                return Err(NO_VOLUME);
            };
            if !storage.has_room(claim, class, &node.labels) {
                return Err(NO_ROOM);
            }
            plan.provision.push(claim.clone());
        }
        Ok(plan)
    }
}

/// What must be written before the pod can be bound to the node (Reserve), and promises it; `None` if nothing.
pub fn reserve(pod: &Pod, cluster: &mut Cluster, node: usize) -> Option<VolumePlan> {
    if pod.claims.is_empty() {
        return None;
    }
    let node = cluster.node(node).node.clone()?;
    let plan = Claims::of(pod, cluster)
        .ok()?
        .plan(&cluster.storage, &node)
        .ok()?;
    for (volume, claim) in &plan.bind {
        cluster.storage.promise(&volume.metadata.name, &claim.key());
    }
    for claim in &plan.provision {
        cluster.storage.provision(&claim.key(), &node.name);
    }
    (!plan.claims.is_empty()).then_some(plan)
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let Ask { pod, cluster, .. } = ask;
        if pod.claims.is_empty() {
            return Filter::Skip;
        }
        let claims = match Claims::of(pod, cluster) {
            Ok(claims) => claims,
            Err(reason) => return Filter::Reject(Rejection::unresolvable(reason)),
        };
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            let Some(node) = &info.node else { return };
            if let Err(reasons) = claims.plan(&cluster.storage, node) {
                why.extend(reasons.into_iter().map(Rejection::unresolvable));
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::NodeUpdated, Event::Storage]
    }

    fn may_help(&self, _: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::Storage | Change::NodeAdded(_) => true,
            Change::NodeUpdated { old, new } => old.labels != new.labels,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::testing::*, plugins::testing::verdict, pod::pod};

    pub fn with_claims(name: &str, claims: &[&str]) -> Value {
        let mut pod = mk_pod(name);
        let volumes = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
        pod["spec"]["volumes"] = volumes.collect();
        pod
    }

    fn claim(cluster: &mut Cluster, name: &str, size: &str, change: impl FnOnce(&mut Value)) {
        let mut value = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": size}}},
            "status": {"phase": "Pending"},
        });
        change(&mut value);
        let claim = serde_json::from_value(value).expect("a claim");
        cluster
            .storage
            .claims
            .insert(format!("default/{name}"), Arc::new(claim));
    }

    fn class(cluster: &mut Cluster, provisioner: &str, change: impl FnOnce(&mut Value)) {
        let mut value = json!({
            "metadata": {"name": "local"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
        });
        change(&mut value);
        let class = serde_json::from_value(value).expect("a class");
        cluster
            .storage
            .classes
            .insert("local".into(), Arc::new(class));
    }

    fn local_volume(cluster: &mut Cluster, name: &str, size: &str, node: &str) {
        let value = json!({
            "metadata": {"name": name},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}},
            "status": {"phase": "Available"},
        });
        let volume = serde_json::from_value(value).expect("a volume");
        cluster.storage.set_volume(name, Some(Arc::new(volume)));
    }

    fn verdicts(cluster: &Cluster, pod: Value) -> Vec<Vec<String>> {
        ["a", "b"]
            .map(|node| verdict(&VolumeBinding, cluster, pod.clone(), node))
            .to_vec()
    }

    #[test]
    fn a_waiting_claim_takes_the_smallest_local_volume_that_is_large_enough() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        class(&mut cluster, "kubernetes.io/no-provisioner", |_| {});
        claim(&mut cluster, "c", "2Gi", |_| {});
        for (name, size, node) in [("v1", "1Gi", "a"), ("v2", "5Gi", "b"), ("v3", "3Gi", "b")] {
            local_volume(&mut cluster, name, size, node);
        }
        let value = with_claims("p", &["c"]);
        assert_eq!(
            verdicts(&cluster, value.clone()),
            [vec![NO_VOLUME.to_string()], vec![]]
        );
        let b = cluster.find_node("b").unwrap().index;
        let plan = reserve(&pod(value), &mut cluster, b).unwrap();
        assert_eq!(plan.bind[0].0.metadata.name, "v3");
        assert_eq!(plan.claims, ["default/c"]);
        // What is promised is not given twice.
        claim(&mut cluster, "d", "2Gi", |_| {});
        let plan = reserve(&pod(with_claims("q", &["d"])), &mut cluster, b).unwrap();
        assert_eq!(plan.bind[0].0.metadata.name, "v2");
        cluster.storage.forget("default/c");
        claim(&mut cluster, "e", "2Gi", |_| {});
        assert!(reserve(&pod(with_claims("r", &["e"])), &mut cluster, b).is_some());
    }

    #[test]
    fn two_claims_of_a_pod_need_two_volumes() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        class(&mut cluster, "kubernetes.io/no-provisioner", |_| {});
        claim(&mut cluster, "c", "1Gi", |_| {});
        claim(&mut cluster, "d", "1Gi", |_| {});
        for (name, node) in [("v1", "a"), ("v2", "b"), ("v3", "b")] {
            local_volume(&mut cluster, name, "1Gi", node);
        }
        assert_eq!(
            verdicts(&cluster, with_claims("p", &["c", "d"])),
            [vec![NO_VOLUME.to_string()], vec![]]
        );
    }

    #[test]
    fn a_claim_is_provisioned_where_its_class_reaches_and_has_room() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        class(&mut cluster, "example.com/csi", |class| {
            class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": ["b"]}]}]);
        });
        claim(&mut cluster, "c", "2Gi", |_| {});
        let value = with_claims("p", &["c"]);
        assert_eq!(
            verdicts(&cluster, value.clone()),
            [vec![NO_VOLUME.to_string()], vec![]]
        );
        let driver = serde_json::from_value(json!({"spec": {"storageCapacity": true}})).unwrap();
        cluster
            .storage
            .csi_drivers
            .insert("example.com/csi".into(), Arc::new(driver));
        assert_eq!(verdicts(&cluster, value.clone())[1], [NO_ROOM]);
        let capacity = json!({"storageClassName": "local", "nodeTopology": {}, "capacity": "2Gi"});
        let capacity = serde_json::from_value(capacity).unwrap();
        cluster
            .storage
            .capacities
            .insert("kube-system/x".into(), Arc::new(capacity));
        assert!(verdicts(&cluster, value.clone())[1].is_empty());
        let b = cluster.find_node("b").unwrap().index;
        let plan = reserve(&pod(value.clone()), &mut cluster, b).unwrap();
        assert_eq!((plan.bind.len(), plan.provision.len()), (0, 1));
        // Once decided, other pods of the claim must follow.
        class(&mut cluster, "example.com/csi", |_| {});
        assert_eq!(
            verdicts(&cluster, value),
            [vec![NO_VOLUME.to_string()], vec![]]
        );
    }

    #[test]
    fn bound_claims_keep_the_pod_to_their_volumes_and_immediate_ones_are_waited_for() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        local_volume(&mut cluster, "v", "1Gi", "b");
        let bind = |claim: &mut Value| {
            claim["spec"]["volumeName"] = json!("v");
            claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        };
        claim(&mut cluster, "c", "1Gi", bind);
        assert_eq!(
            verdicts(&cluster, with_claims("p", &["c"])),
            [vec![UNREACHABLE.to_string()], vec![]]
        );
        cluster.storage.set_volume("v", None);
        assert_eq!(verdicts(&cluster, with_claims("p", &["c"]))[1], [GONE]);
        claim(&mut cluster, "d", "1Gi", |_| {});
        let immediate = "pod has unbound immediate PersistentVolumeClaims";
        assert_eq!(verdicts(&cluster, with_claims("p", &["d"]))[0], [immediate]);
        assert_eq!(
            verdicts(&cluster, with_claims("p", &["x"]))[0],
            ["persistentvolumeclaim \"x\" not found"]
        );
    }
}
