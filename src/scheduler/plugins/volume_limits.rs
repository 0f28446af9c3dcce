//! NodeVolumeLimits: a node takes only so many volumes of a CSI driver. Those count that its pods use, and those that
//! are attached to it still or already.

use std::collections::{HashMap, HashSet};

use crate::{
    cluster::Cluster,
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::Pod,
    storage::Storage,
};

pub struct NodeVolumeLimits;

/// The CSI volumes of a pod: driver and what tells the volume from others. A claim that has no volume yet will get
/// one of its class's provisioner.
fn volumes<'a>(pod: &Pod, storage: &'a Storage) -> Vec<(&'a str, String)> {
    let volumes = pod.claims.iter().filter_map(|wanted| {
        let key = format!("{}/{}", pod.namespace, wanted.name);
        let claim = storage.claims.get(&key)?;
        if let Some(volume) = storage.volume(&claim.spec.volume_name) {
            let csi = volume.spec.csi.as_ref()?;
            return Some((csi.driver.as_str(), csi.volume_handle.clone()));
        }
        let class = storage.classes.get(claim.class())?;
        Some((class.provisioner.as_str(), key))
    });
    volumes.collect()
}

/// Whether the volumes of `new` and those on the node are too many for any driver of `new`.
fn is_over(new: &[(&str, String)], info: &NodeInfo, cluster: &Cluster) -> bool {
    let Some(limits) = cluster.storage.csi_nodes.get(&info.name) else {
        return false;
    };
    let mut used: HashMap<&str, HashSet<String>> = HashMap::new();
    for (driver, volume) in info
        .pods
        .iter()
        .flat_map(|pod| volumes(pod, &cluster.storage))
    {
        used.entry(driver).or_default().insert(volume);
    }
    for (driver, volume) in cluster.storage.attached_to(&info.name) {
        used.entry(driver).or_default().insert(volume.into());
    }
    let mut wanted: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (driver, volume) in new {
        if used.get(driver).is_none_or(|used| !used.contains(volume)) {
            wanted.entry(driver).or_default().insert(volume);
        }
    }
    wanted.iter().any(|(driver, more)| {
        let here = used.get(driver).map_or(0, HashSet::len);
        limits
            .limit(driver)
            .is_some_and(|limit| here + more.len() > limit)
    })
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let cluster = ask.cluster;
        let new = volumes(ask.pod, &cluster.storage);
        if new.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            if is_over(&new, info, cluster) {
                why.push(Rejection::resolvable("node(s) exceed max volume count"));
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::PodDeleted, Event::Storage]
    }

    fn may_help(&self, _: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::PodDeleted(other) => !other.claims.is_empty(),
            Change::NodeAdded(_) | Change::Storage => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::testing::*, plugins::testing::verdict};

    #[test]
    fn volumes_of_a_driver_are_counted_once_each() {
        let with = |name: &str, claim: &str| -> Value {
            let mut pod = mk_pod(name);
            pod["spec"]["volumes"] =
                json!([{"name": "c", "persistentVolumeClaim": {"claimName": claim}}]);
            pod
        };
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[on(with("x", "c1"), "a")]);
        for number in 1..=2 {
            let claim = json!({"metadata": {"name": format!("c{number}")}, "spec": {"volumeName": format!("v{number}")}});
            let claim = Arc::new(serde_json::from_value(claim).unwrap());
            cluster
                .storage
                .claims
                .insert(format!("default/c{number}"), claim);
            let volume =
                json!({"spec": {"csi": {"driver": "d", "volumeHandle": format!("h{number}")}}});
            cluster.storage.set_volume(
                &format!("v{number}"),
                Some(Arc::new(serde_json::from_value(volume).unwrap())),
            );
        }
        for node in ["a", "b"] {
            let limits = json!({"spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}});
            cluster.storage.csi_nodes.insert(
                node.into(),
                Arc::new(serde_json::from_value(limits).unwrap()),
            );
        }
        for (claim, node, fits) in [("c1", "a", true), ("c2", "a", false), ("c2", "b", true)] {
            let why = verdict(&NodeVolumeLimits, &cluster, with("p", claim), node);
            assert_eq!(why.is_empty(), fits, "{claim} {node}");
        }
        // Attached still, though no pod there uses it.
        let attachment = json!({"spec": {"attacher": "d", "nodeName": "b", "source": {"persistentVolumeName": "v1"}}});
        let attachment: crate::storage::VolumeAttachment =
            serde_json::from_value(attachment).unwrap();
        cluster
            .storage
            .set_attachment("x", None, Some(Arc::new(attachment.clone())));
        let fits = |cluster: &crate::cluster::Cluster, claim| {
            verdict(&NodeVolumeLimits, cluster, with("p", claim), "b").is_empty()
        };
        assert!(!fits(&cluster, "c2") && fits(&cluster, "c1"));
        cluster.storage.set_attachment("x", Some(&attachment), None);
        assert!(fits(&cluster, "c2"));
    }
}
