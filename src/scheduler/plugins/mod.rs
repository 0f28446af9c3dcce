//! The plugins of upstream's default profile, each in its file. Adding one is a file and a line in `PLUGINS`.

mod amounts;
mod balanced_allocation;
mod declared_features;
pub mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_unschedulable;
mod resources_fit;
mod scheduling_gates;
mod taint_toleration;
mod topology_spread;
pub mod volume_binding;
mod volume_limits;
mod volume_restrictions;
mod volume_zone;

use std::collections::BTreeSet;

use crate::framework::Plugin;

/// Every plugin with the weight of its score, in upstream's order: the first filter that rejects a node is the one
/// that is told (apis/config/v1/default_plugins.go).
pub static PLUGINS: &[(&dyn Plugin, i64)] = &[
    (&scheduling_gates::SchedulingGates, 0),
    (&node_unschedulable::NodeUnschedulable, 0),
    (&node_name::NodeName, 0),
    (&taint_toleration::TaintToleration, 3),
    (&node_affinity::NodeAffinityPlugin, 2),
    (&node_ports::NodePorts, 0),
    (&resources_fit::NodeResourcesFit, 1),
    (&volume_restrictions::VolumeRestrictions, 0),
    (&volume_limits::NodeVolumeLimits, 0),
    (&volume_binding::VolumeBinding, 0),
    (&volume_zone::VolumeZone, 0),
    (&topology_spread::PodTopologySpread, 2),
    (&inter_pod_affinity::InterPodAffinity, 2),
    (&dynamic_resources::DynamicResources, 2),
    (&balanced_allocation::BalancedAllocation, 1),
    (&image_locality::ImageLocality, 1),
    (&declared_features::NodeDeclaredFeatures, 0),
];

/// Plugins by their places in `PLUGINS`, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginSet(u32);

impl PluginSet {
    /// Those of these names; what is no plugin is left out.
    pub fn of(names: &BTreeSet<&'static str>) -> Self {
        let places = all()
            .enumerate()
            .filter(|(_, plugin)| names.contains(plugin.name()));
        PluginSet(places.fold(0, |bits, (place, _)| bits | 1 << place))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its plugins with their places.
    pub fn iter(self) -> impl Iterator<Item = (usize, &'static dyn Plugin)> {
        all()
            .enumerate()
            .filter(move |(place, _)| self.0 & (1 << place) != 0)
    }
}

/// All plugins, in order.
pub fn all() -> impl Iterator<Item = &'static dyn Plugin> {
    PLUGINS.iter().map(|(plugin, _)| *plugin)
}

#[cfg(test)]
pub(crate) mod testing {
    use serde_json::Value;

    use super::Plugin;
    use crate::{
        cluster::Cluster,
        framework::{Ask, Filter},
        pod::pod,
    };

    /// Why a plugin rejects a pod on a node; empty if it does not.
    pub fn verdict(
        plugin: &dyn Plugin,
        cluster: &Cluster,
        value: Value,
        node: &str,
    ) -> Vec<String> {
        let (pod, args) = (pod(value), Default::default());
        let mut why = Vec::new();
        match plugin.filter(Ask {
            pod: &pod,
            cluster,
            args: &args,
        }) {
            Filter::Skip => {}
            Filter::Reject(rejection) => why.push(rejection),
            Filter::Check(check) | Filter::Among(_, check) => {
                check.check(
                    cluster.find_node(node).expect("the node is there"),
                    &mut why,
                );
            }
        }
        why.into_iter().map(|one| one.reason.into_owned()).collect()
    }
}
