//! VolumeZone: a bound volume with zone or region labels can be used on nodes of the same zone and region only.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::Pod,
    storage::PersistentVolume,
};

/// The labels in use, each with its older name.
const LABELS: [(&str, &str); 2] = [
    (
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/zone",
    ),
    (
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/region",
    ),
];

pub struct VolumeZone;

/// A label under either name.
fn label<'a>(labels: &'a BTreeMap<String, String>, names: (&str, &str)) -> Option<&'a str> {
    labels
        .get(names.0)
        .or_else(|| labels.get(names.1))
        .map(String::as_str)
}

/// Whether a node is where the volume is. A value of a volume may be several, parted by `__`.
fn shares_zone(volume: &PersistentVolume, node: &BTreeMap<String, String>) -> bool {
    LABELS.iter().all(|names| {
        label(&volume.metadata.labels, *names).is_none_or(|zones| {
            label(node, *names).is_some_and(|zone| zones.split("__").any(|one| one == zone))
        })
    })
}

fn is_zoned(labels: &BTreeMap<String, String>) -> bool {
    LABELS.iter().any(|names| label(labels, *names).is_some())
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let storage = &ask.cluster.storage;
        let volumes = ask.pod.claims.iter().filter_map(|claim| {
            let claim = storage
                .claims
                .get(&format!("{}/{}", ask.pod.namespace, claim.name))?;
            storage.volume(&claim.spec.volume_name)
        });
        let zoned: Vec<&Arc<PersistentVolume>> = volumes
            .filter(|volume| is_zoned(&volume.metadata.labels))
            .collect();
        if zoned.is_empty() {
            return Filter::Skip;
        }
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            let Some(node) = &info.node else { return };
            // Where nodes say nothing about zones there are none.
            if is_zoned(&node.labels)
                && !zoned.iter().all(|volume| shares_zone(volume, &node.labels))
            {
                why.push(Rejection::unresolvable(
                    "node(s) had no available volume zone",
                ));
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
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::*, plugins::testing::verdict};

    #[test]
    fn a_volume_is_used_in_its_zone_only() {
        let zoned = |name: &str, zone: &str| {
            let mut node = mk_node(name);
            node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(zone);
            node
        };
        let mut cluster = cluster(&[zoned("a", "1"), zoned("b", "2"), mk_node("c")], &[]);
        let volume = json!({"metadata": {"name": "v", "labels": {"failure-domain.beta.kubernetes.io/zone": "2__3"}}});
        cluster
            .storage
            .set_volume("v", Some(Arc::new(serde_json::from_value(volume).unwrap())));
        let claim =
            json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"volumeName": "v"}});
        cluster.storage.claims.insert(
            "default/c".into(),
            Arc::new(serde_json::from_value(claim).unwrap()),
        );
        let mut pod = mk_pod("p");
        pod["spec"]["volumes"] =
            json!([{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]);
        for (node, fits) in [("a", false), ("b", true), ("c", true)] {
            assert_eq!(
                verdict(&VolumeZone, &cluster, pod.clone(), node).is_empty(),
                fits,
                "{node}"
            );
        }
    }
}
