//! How fast decisions are made, over a synthetic cluster: `cargo test --release -p scheduler -- --ignored --nocapture
//! decisions_a_second`. Nothing is sent anywhere; what an API server adds is measured in `hack/bench`.

use std::{sync::Arc, time::Instant};

use serde_json::{Value, json};

use crate::{
    cluster::{
        Cluster,
        testing::{mk_node, mk_pod},
    },
    cycle::Scheduler,
    framework::Change,
    node::node,
    pod::pod,
    profile::Profile,
    queue::SchedulingQueue,
};

const ZONES: usize = 3;

/// Nodes in three zones, one in a hundred tainted as a control plane.
fn nodes(count: usize) -> Cluster {
    let mut cluster = Cluster::default();
    for number in 0..count {
        let mut value = mk_node(&format!("node-{number}"));
        value["metadata"]["labels"]["topology.kubernetes.io/zone"] =
            json!(format!("zone-{}", number % ZONES));
        for label in 0..6 {
            value["metadata"]["labels"][format!("example.com/label-{label}")] = json!("value");
        }
        value["status"]["allocatable"] =
            json!({"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"});
        if number % 100 == 0 {
            value["spec"]["taints"] =
                json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
        }
        cluster.set_node(Arc::new(node(value)));
    }
    cluster
}

fn workload(number: usize) -> Value {
    let mut pod = mk_pod(&format!("pod-{number}"));
    pod["metadata"]["labels"] =
        json!({"app": format!("app-{}", number % 10), "pod-template-hash": "x"});
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("app-{}", number % 10), "uid": "u",
        "controller": true,
    }]);
    pod["spec"]["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    pod["spec"]["containers"][0]["resources"]["requests"] =
        json!({"cpu": "100m", "memory": "128Mi"});
    pod
}

fn plain(number: usize) -> Value {
    let mut pod = workload(number);
    pod["metadata"]["ownerReferences"] = json!([]);
    pod
}

fn spread(number: usize) -> Value {
    let mut pod = workload(number);
    pod["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": format!("app-{}", number % 10)}},
    }]);
    pod
}

fn apart(number: usize) -> Value {
    let mut pod = workload(number);
    pod["metadata"]["labels"]["app"] = json!(format!("apart-{}", number % 100));
    pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
        "labelSelector": {"matchLabels": {"app": format!("apart-{}", number % 100)}},
        "topologyKey": "kubernetes.io/hostname",
    }]);
    pod
}

fn hopeless(number: usize) -> Value {
    let mut pod = workload(number);
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "64"});
    pod
}

fn measure(name: &str, node_count: usize, pods: usize, make: fn(usize) -> Value) {
    let mut cluster = nodes(node_count);
    for number in 0..10 {
        let selector = apimachinery::selector::LabelSelector::parse(&format!(
            "app=app-{number},pod-template-hash=x"
        ));
        cluster.set_workload(
            "ReplicaSet",
            &format!("default/app-{number}"),
            selector.ok(),
        );
    }
    let second = std::time::Duration::from_secs(1);
    let mut queue = SchedulingQueue::new(second, 10 * second, 300 * second, Default::default());
    let now = tokio::time::Instant::now();
    let waiting: Vec<_> = (0..pods)
        .map(|number| Arc::new(pod(make(number))))
        .collect();
    let mut scheduler = Scheduler::default();
    let profile = Profile::default();
    let begin = Instant::now();
    let mut bound = 0;
    for pod in waiting {
        queue.set(pod, now);
        let queued = queue.pop(now).expect("just added");
        match scheduler.schedule(&queued.pod, &profile, &mut cluster) {
            Ok(index) => {
                cluster.assume(queued.pod.clone(), index);
                queue.on_change(&Change::PodAdded(&queued.pod), now);
                bound += 1;
            }
            Err(failure) => {
                let pod = queued.pod.clone();
                queue.failed(queued, pod, &failure.error.plugins, now);
            }
        }
    }
    let each = begin.elapsed() / u32::try_from(pods).expect("few");
    println!(
        "{name:10} {node_count} nodes: {bound}/{pods} bound, {each:?} each, {:.0}/s",
        1.0 / each.as_secs_f64()
    );
}

#[test]
#[ignore = "a measurement"]
fn decisions_a_second() {
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, make) in [
        ("plain", plain as fn(usize) -> Value),
        ("workload", workload),
        ("spread", spread),
        ("apart", apart),
        ("hopeless", hopeless),
    ] {
        if only.is_empty() || only == name {
            measure(name, 5_000, 10_000, make);
        }
    }
}
