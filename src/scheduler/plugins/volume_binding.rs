//! VolumeBinding: the pod's claims are bound, and their volumes can be reached from the node.
//!
//! Claims of a class with WaitForFirstConsumer that are not bound yet are not bound here; such pods wait.

use crate::{
    cluster::Cluster,
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::Pod,
    storage::PersistentVolumeClaim,
};

pub struct VolumeBinding;

/// The claims of the pod, or why it cannot run anywhere.
fn claims<'a>(pod: &Pod, cluster: &'a Cluster) -> Result<Vec<&'a PersistentVolumeClaim>, String> {
    let mut claims = Vec::new();
    for wanted in &pod.claims {
        let name = &wanted.name;
        let Some(claim) = cluster
            .storage
            .claims
            .get(&format!("{}/{name}", pod.namespace))
        else {
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
        if wanted.is_ephemeral
            && claim
                .metadata
                .controller()
                .is_none_or(|owner| *owner.uid != *pod.uid)
        {
            let namespace = &pod.namespace;
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                pod.name
            ));
        }
        claims.push(claim.as_ref());
    }
    Ok(claims)
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
        let claims = match claims(pod, cluster) {
            Ok(claims) => claims,
            Err(reason) => return Filter::Reject(Rejection::unresolvable(reason)),
        };
        let storage = &cluster.storage;
        let unbound = |claim: &&&PersistentVolumeClaim| claim.spec.volume_name.is_empty();
        if claims
            .iter()
            .filter(unbound)
            .any(|claim| !storage.waits_for_consumer(claim))
        {
            let reason = "pod has unbound immediate PersistentVolumeClaims";
            return Filter::Reject(Rejection::unresolvable(reason));
        }
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            let Some(node) = &info.node else { return };
            for claim in &claims {
                if claim.spec.volume_name.is_empty() {
                    let reason = "node(s) didn't find available persistent volumes to bind";
                    return why.push(Rejection::unresolvable(reason));
                }
                let Some(volume) = storage.volumes.get(&claim.spec.volume_name) else {
                    let reason =
                        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
                    return why.push(Rejection::unresolvable(reason));
                };
                let required = volume.spec.node_affinity.required.as_ref();
                if required.is_some_and(|required| !required.matches(&node.name, &node.labels)) {
                    let reason = "node(s) didn't match PersistentVolume's node affinity";
                    return why.push(Rejection::unresolvable(reason));
                }
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
