//! What each component has to tell about itself: its checks, its series, its configuration.

use std::time::Duration;

use apimachinery::Value;
use client::metrics;
use controllers::ControllersConfig;
use scheduler::SchedulerConfig;
use serde_json::json;

use super::{Check, ComponentConfig, Serving, Source};

/// A holder this late with renewing its lease is stuck (`leaderElectionHealthzAdaptor`'s timeout).
const LEASE_TOLERANCE: Duration = Duration::from_secs(20);

/// kube-scheduler.
pub fn scheduler(config: &SchedulerConfig, serving: Serving) -> ComponentConfig {
    let counted = config.metrics.clone();
    let series: Source = Box::new(move |text| counted.write(text));
    let state = config.metrics.clone();
    let synced = move || match state.is_waiting() {
        true => Err("waiting for handlers to sync".into()),
        false => Ok(()),
    };
    ComponentConfig {
        name: "kube-scheduler",
        serving,
        health: lease_check(config.leader_elect, config.leader_name.clone()),
        ready: vec![("sched-handler-sync", Box::new(synced))],
        metrics: vec![series, Box::new(metrics::write)],
        configuration: ("componentconfig", scheduler_configuration(config)),
    }
}

/// kube-controller-manager.
pub fn controller_manager(config: &ControllersConfig, serving: Serving) -> ComponentConfig {
    ComponentConfig {
        name: "kube-controller-manager",
        serving,
        health: lease_check(config.leader_elect, "kube-controller-manager".into()),
        ready: Vec::new(),
        metrics: vec![Box::new(metrics::write)],
        configuration: (
            "kubecontrollermanager.config.k8s.io",
            controllers_configuration(config),
        ),
    }
}

fn lease_check(elects: bool, name: String) -> Vec<Check> {
    let check = move || match metrics::lease_overdue(&name) {
        late if late > LEASE_TOLERANCE => Err(format!(
            "failed election to renew leadership on lease {name}"
        )),
        _ => Ok(()),
    };
    match elects {
        true => vec![("leaderElection", Box::new(check))],
        false => Vec::new(),
    }
}

/// A duration as Go prints it, to the second.
fn seconds(duration: Duration) -> String {
    let (minutes, seconds) = (duration.as_secs() / 60, duration.as_secs() % 60);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// The names are those of upstream's internal type, which has no others.
fn scheduler_configuration(config: &SchedulerConfig) -> Value {
    let profiles = config.profiles.iter().map(|profile| {
        let enabled = |names: Vec<&str>| -> Vec<Value> {
            names.iter().map(|name| json!({"Name": name})).collect()
        };
        let scores = profile.scorers.iter();
        let scores: Vec<Value> = scores
            .map(|(plugin, weight)| json!({"Name": plugin.name(), "Weight": weight}))
            .collect();
        let filters = profile.filters.iter().map(|plugin| plugin.name()).collect();
        json!({
            "SchedulerName": profile.name,
            "PercentageOfNodesToScore": profile.percentage_of_nodes_to_score,
            "Plugins": {
                "Filter": {"Enabled": enabled(filters)},
                "PostFilter": {"Enabled": enabled(profile.preempts.then_some("DefaultPreemption").into_iter().collect())},
                "Score": {"Enabled": scores},
            },
        })
    });
    json!({
        "LeaderElection": leader_election(
            config.leader_elect,
            [config.leader_lease_duration, config.leader_renew_deadline, config.leader_retry_period],
            &config.leader_namespace,
            &config.leader_name,
        ),
        "PodInitialBackoffSeconds": config.pod_initial_backoff.as_secs(),
        "PodMaxBackoffSeconds": config.pod_max_backoff.as_secs(),
        "Profiles": profiles.collect::<Vec<_>>(),
    })
}

fn controllers_configuration(config: &ControllersConfig) -> Value {
    let controllers = match config.controllers.as_slice() {
        [] => vec!["*".to_string()],
        some => some.to_vec(),
    };
    json!({
        "Generic": {
            "Controllers": controllers,
            "LeaderElection": leader_election(
                config.leader_elect,
                [config.leader_lease_duration, config.leader_renew_deadline, config.leader_retry_period],
                "kube-system",
                "kube-controller-manager",
            ),
        },
        "KubeCloudShared": {
            "AllocateNodeCIDRs": config.allocate_node_cidrs,
            "ClusterCIDR": config.cluster_cidrs.join(","),
        },
        "CSRSigningController": {
            "ClusterSigningDuration": seconds(config.cluster_signing_duration),
        },
        "EndpointSliceController": {"MaxEndpointsPerSlice": config.max_endpoints_per_slice},
        "NodeIPAMController": {
            "ServiceCIDR": config.service_cidrs.first().cloned().unwrap_or_default(),
            "SecondaryServiceCIDR": config.service_cidrs.get(1).cloned().unwrap_or_default(),
            "NodeCIDRMaskSizeIPv4": config.node_cidr_mask_size_ipv4,
            "NodeCIDRMaskSizeIPv6": config.node_cidr_mask_size_ipv6,
        },
        "NodeLifecycleController": {
            "NodeEvictionRate": config.node_eviction_rate,
            "SecondaryNodeEvictionRate": config.secondary_node_eviction_rate,
            "NodeStartupGracePeriod": seconds(config.node_startup_grace_period),
            "NodeMonitorGracePeriod": seconds(config.node_monitor_grace_period),
            "LargeClusterSizeThreshold": config.large_cluster_size_threshold,
            "UnhealthyZoneThreshold": config.unhealthy_zone_threshold,
        },
        "PodGCController": {"TerminatedPodGCThreshold": config.terminated_pod_gc_threshold},
    })
}

fn leader_election(elects: bool, times: [Duration; 3], namespace: &str, name: &str) -> Value {
    let [lease, renew, retry] = times.map(seconds);
    json!({
        "LeaderElect": elects,
        "LeaseDuration": lease,
        "RenewDeadline": renew,
        "RetryPeriod": retry,
        "ResourceLock": "leases",
        "ResourceName": name,
        "ResourceNamespace": namespace,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_prints_them() {
        for (given, expected) in [(15, "15s"), (300, "5m0s"), (365 * 24 * 3600, "8760h0m0s")] {
            assert_eq!(seconds(Duration::from_secs(given)), expected);
        }
    }

    #[test]
    fn a_component_tells_its_configuration_under_upstreams_names() {
        let told = scheduler_configuration(&SchedulerConfig::default());
        assert_eq!(told["LeaderElection"]["ResourceName"], "kube-scheduler");
        let scores = &told["Profiles"][0]["Plugins"]["Score"]["Enabled"];
        assert_eq!(scores[0], json!({"Name": "TaintToleration", "Weight": 3}));
        let told = controllers_configuration(&ControllersConfig::default());
        assert_eq!(
            told["NodeLifecycleController"]["NodeMonitorGracePeriod"],
            "40s"
        );
    }
}
