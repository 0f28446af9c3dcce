//! VolumeRestrictions: disks that only one pod of a node can have, and claims that only one pod of all can
//! (ReadWriteOncePod).

use std::sync::Arc;

use crate::{
    cluster::Cluster,
    framework::{Ask, Change, Event, Filter, NodeFilter, Plugin, Rejection, Trial},
    node::NodeInfo,
    pod::{Disk, Pod},
};

pub struct VolumeRestrictions;

struct Checks<'a> {
    pod: &'a Pod,
    /// Claims for one pod, with how many pods have them.
    alone: Vec<(String, i64)>,
}

fn collide(wanted: &[Disk], pods: &[Arc<Pod>]) -> bool {
    let used = || pods.iter().flat_map(|pod| &pod.disks);
    wanted
        .iter()
        .any(|disk| used().any(|other| disk.conflicts(other)))
}

impl Checks<'_> {
    fn verdict(&self, info: &NodeInfo, is_alone: bool, why: &mut Vec<Rejection>) {
        if !self.pod.disks.is_empty() && collide(&self.pod.disks, &info.pods) {
            why.push(Rejection::resolvable("node(s) had no available disk"));
        } else if !is_alone {
            let reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
            why.push(Rejection::resolvable(reason));
        }
    }
}

/// How many pods of `namespace` use a claim.
fn uses(pod: &Pod, namespace: &str, name: &str) -> bool {
    pod.namespace == namespace && pod.claims.iter().any(|claim| claim.name == name)
}

impl NodeFilter for Checks<'_> {
    fn check(&self, node: &NodeInfo, why: &mut Vec<Rejection>) {
        self.verdict(node, self.alone.iter().all(|(_, pods)| *pods == 0), why);
    }

    fn check_trial(&self, trial: &Trial, why: &mut Vec<Rejection>) {
        let is_alone = self.alone.iter().all(|(name, pods)| {
            let changed = trial
                .changes()
                .filter(|(_, other)| uses(other, &self.pod.namespace, name));
            changed.map(|(by, _)| by).sum::<i64>() + pods == 0
        });
        self.verdict(&trial.node, is_alone, why);
    }
}

fn is_for_one_pod(cluster: &Cluster, namespace: &str, name: &str) -> bool {
    let claim = cluster.storage.claims.get(&format!("{namespace}/{name}"));
    claim.is_some_and(|claim| {
        claim
            .spec
            .access_modes
            .iter()
            .any(|mode| mode == "ReadWriteOncePod")
    })
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let Ask { pod, cluster, .. } = ask;
        let alone = pod
            .claims
            .iter()
            .filter(|claim| is_for_one_pod(cluster, &pod.namespace, &claim.name));
        let alone: Vec<_> = alone
            .map(|claim| {
                (
                    claim.name.clone(),
                    cluster.claim_users(&format!("{}/{}", pod.namespace, claim.name)),
                )
            })
            .collect();
        if pod.disks.is_empty() && alone.is_empty() {
            return Filter::Skip;
        }
        Filter::check(Checks { pod, alone })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::PodDeleted, Event::Storage]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::PodDeleted(other) => {
                pod.disks
                    .iter()
                    .any(|disk| other.disks.iter().any(|used| disk.conflicts(used)))
                    || pod
                        .claims
                        .iter()
                        .any(|claim| uses(other, &pod.namespace, &claim.name))
            }
            Change::NodeAdded(_) | Change::Storage => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::testing::*, plugins::testing::verdict};

    fn with(name: &str, volume: Value) -> Value {
        let mut pod = mk_pod(name);
        pod["spec"]["volumes"] = json!([volume]);
        pod
    }

    #[test]
    fn a_disk_is_shared_only_for_reading() {
        let disk = |read_only: bool| json!({"name": "d", "gcePersistentDisk": {"pdName": "x", "readOnly": read_only}});
        let block = |id: &str| json!({"name": "d", "awsElasticBlockStore": {"volumeID": id, "readOnly": true}});
        let rbd = |host: &str| json!({"name": "d", "rbd": {"monitors": [host, "m"], "image": "i", "pool": "p"}});
        for (one, other, fits) in [
            (disk(true), disk(true), true),
            (disk(true), disk(false), false),
            (block("x"), block("x"), false),
            (block("x"), block("y"), true),
            (rbd("a"), rbd("b"), false),
        ] {
            let cluster = cluster(&[mk_node("a")], &[on(with("x", one.clone()), "a")]);
            let why = verdict(&VolumeRestrictions, &cluster, with("p", other), "a");
            assert_eq!(why.is_empty(), fits, "{one}: {why:?}");
        }
    }

    #[test]
    fn a_claim_for_one_pod_is_used_by_one() {
        let volume = json!({"name": "c", "persistentVolumeClaim": {"claimName": "c"}});
        let mut cluster = cluster(
            &[mk_node("a"), mk_node("b")],
            &[on(with("x", volume.clone()), "a")],
        );
        let claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOncePod"]}});
        cluster.storage.claims.insert(
            "default/c".into(),
            Arc::new(serde_json::from_value(claim).unwrap()),
        );
        let pod = with("p", volume);
        assert_eq!(
            verdict(&VolumeRestrictions, &cluster, pod.clone(), "b").len(),
            1,
            "on every node"
        );
        cluster.remove_pod("x");
        assert!(verdict(&VolumeRestrictions, &cluster, pod, "b").is_empty());
    }
}
