//! How a profile configures its plugins: the `pluginConfig` of KubeSchedulerConfiguration, with upstream's defaults.

use std::time::Duration;

use api::view::NodeAffinity;
use apimachinery::selector::LabelSelector;
use serde::Deserialize;

use crate::pod::SpreadConstraint;

/// The arguments of all plugins of one profile.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginArgs {
    pub fit: FitArgs,
    pub balanced: Vec<ResourceWeight>,
    /// `hardPodAffinityWeight` of InterPodAffinityArgs.
    pub hard_pod_affinity_weight: i64,
    /// `ignorePreferredTermsOfExistingPods` of InterPodAffinityArgs.
    pub ignore_preferred_terms_of_existing_pods: bool,
    /// `addedAffinity` of NodeAffinityArgs: what every pod of the profile requires and prefers besides its own.
    pub added_affinity: Option<NodeAffinity>,
    pub spread: SpreadDefaults,
    pub preemption: PreemptionArgs,
    /// `bindTimeoutSeconds` of VolumeBindingArgs.
    pub volume_bind_timeout: Duration,
    /// `bindingTimeout` of DynamicResourcesArgs.
    pub device_bind_timeout: Duration,
}

/// NodeResourcesFitArgs.
#[derive(Clone, Debug, PartialEq)]
pub struct FitArgs {
    pub ignored_resources: Vec<String>,
    pub ignored_resource_groups: Vec<String>,
    pub strategy: Strategy,
    pub resources: Vec<ResourceWeight>,
}

/// How NodeResourcesFit scores.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of utilization (0 to 100) and score (0 to 10), ascending.
    RequestedToCapacityRatio(Vec<ShapePoint>),
}

/// One point of a RequestedToCapacityRatio function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ShapePoint {
    pub utilization: i64,
    pub score: i64,
}

/// A resource and how much it counts, 1 to 100.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ResourceWeight {
    pub name: String,
    #[serde(default)]
    pub weight: i64,
}

/// How pods without constraints of their own are spread.
#[derive(Clone, Debug, PartialEq)]
pub enum SpreadDefaults {
    /// Softly over hosts and zones.
    System,
    /// By these, whose selectors are made from services and owners.
    List(Vec<SpreadConstraint>),
}

/// DefaultPreemptionArgs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionArgs {
    /// How many nodes are tried at least: this share of those where it may help, and this many.
    pub min_candidate_nodes_percentage: usize,
    pub min_candidate_nodes_absolute: usize,
}

impl Default for PluginArgs {
    fn default() -> Self {
        let both = || {
            ["cpu", "memory"]
                .map(|name| ResourceWeight {
                    name: name.into(),
                    weight: 1,
                })
                .to_vec()
        };
        PluginArgs {
            fit: FitArgs {
                ignored_resources: Vec::new(),
                ignored_resource_groups: Vec::new(),
                strategy: Strategy::LeastAllocated,
                resources: both(),
            },
            balanced: both(),
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
            added_affinity: None,
            spread: SpreadDefaults::System,
            preemption: PreemptionArgs {
                min_candidate_nodes_percentage: 10,
                min_candidate_nodes_absolute: 100,
            },
            volume_bind_timeout: Duration::from_secs(600),
            device_bind_timeout: Duration::from_secs(600),
        }
    }
}

/// Upstream's systemDefaultConstraints for a selector.
pub fn system_spread(selector: &LabelSelector) -> Vec<SpreadConstraint> {
    let constraint = |(key, max_skew): (&str, i64)| SpreadConstraint {
        max_skew,
        topology_key: key.into(),
        is_hard: false,
        selector: selector.clone(),
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
    };
    [
        ("kubernetes.io/hostname", 3),
        ("topology.kubernetes.io/zone", 5),
    ]
    .map(constraint)
    .to_vec()
}
