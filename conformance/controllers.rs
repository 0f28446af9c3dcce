//! Upstream's conformance tests that need controllers or a scheduler, each as a test of our own: `TESTS` has them by
//! upstream's names. They run side by side, each in a namespace of its own, against one server with simulated nodes.

#[path = "controllers/cluster.rs"]
mod cluster;
#[path = "controllers/garbage.rs"]
mod garbage;
#[path = "controllers/network.rs"]
mod network;
#[path = "controllers/quota.rs"]
mod quota;
#[path = "controllers/scheduling.rs"]
mod scheduling;
#[path = "controllers/storage.rs"]
mod storage;
#[path = "controllers/workloads.rs"]
mod workloads;

use std::collections::BTreeSet;

use cluster::{Cluster, Outcome, Space};
use futures::future::join_all;

/// Where upstream's names and their categories are, where they are.
const FACTS: &str = "../../shared/facts/conformance-tests.tsv";

type Test = fn(Space) -> Outcome;

/// Upstream's name without its tags, and ours.
static TESTS: &[(&str, Test)] = &[
    (
        "Garbage collector should delete RS created by deployment when not orphaning",
        |s| Box::pin(garbage::background(s)),
    ),
    (
        "Garbage collector should delete pods created by rc when not orphaning",
        |s| Box::pin(garbage::background_pods(s)),
    ),
    (
        "Garbage collector should keep the rc around until all its pods are deleted if the deleteOptions says so",
        |s| Box::pin(garbage::foreground(s)),
    ),
    (
        "Garbage collector should not be blocked by dependency circle",
        |s| Box::pin(garbage::circle(s)),
    ),
    (
        "Garbage collector should not delete dependents that have both valid owner and owner that's waiting for dependents to be deleted",
        |s| Box::pin(garbage::two_owners(s)),
    ),
    (
        "Garbage collector should orphan RS created by deployment when deleteOptions.PropagationPolicy is Orphan",
        |s| Box::pin(garbage::orphans(s)),
    ),
    (
        "Garbage collector should orphan pods created by rc if delete options say so",
        |s| Box::pin(garbage::orphan_pods(s)),
    ),
    (
        "Namespaces should ensure that all services are removed when a namespace is deleted",
        |s| Box::pin(garbage::namespace(s)),
    ),
    (
        "ResourceQuota should apply changes to a resourcequota status",
        |s| Box::pin(quota::status(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a configMap.",
        |s| Box::pin(quota::config_map(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a pod.",
        |s| Box::pin(quota::pod(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a replica set.",
        |s| Box::pin(quota::replica_set(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a replication controller.",
        |s| Box::pin(quota::replication_controller(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a secret.",
        |s| Box::pin(quota::secret(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and capture the life of a service.",
        |s| Box::pin(quota::service(s)),
    ),
    (
        "ResourceQuota should create a ResourceQuota and ensure its status is promptly calculated.",
        |s| Box::pin(quota::prompt(s)),
    ),
    (
        "ResourceQuota should verify ResourceQuota with best effort scope.",
        |s| Box::pin(quota::best_effort(s)),
    ),
    (
        "ResourceQuota should verify ResourceQuota with terminating scopes.",
        |s| Box::pin(quota::terminating(s)),
    ),
    ("CronJob should not schedule jobs when suspended", |s| {
        Box::pin(workloads::cron_suspended(s))
    }),
    (
        "CronJob should not schedule new jobs when ForbidConcurrent",
        |s| Box::pin(workloads::cron_forbids(s)),
    ),
    ("CronJob should replace jobs when ReplaceConcurrent", |s| {
        Box::pin(workloads::cron_replaces(s))
    }),
    ("CronJob should schedule multiple jobs concurrently", |s| {
        Box::pin(workloads::cron_allows(s))
    }),
    (
        "DisruptionController Listing PodDisruptionBudgets for all namespaces should list and delete a collection of PodDisruptionBudgets",
        |s| Box::pin(workloads::budgets(s)),
    ),
    (
        "DisruptionController should create a PodDisruptionBudget",
        |s| Box::pin(workloads::budget(s)),
    ),
    (
        "ReplicationController should get and update a ReplicationController scale",
        |s| Box::pin(workloads::scale(s)),
    ),
    (
        "ReplicationController should release no longer matching pods",
        |s| Box::pin(workloads::release(s)),
    ),
    (
        "ReplicationController should surface a failure condition on a common issue like exceeded quota",
        |s| Box::pin(workloads::failure(s)),
    ),
    (
        "ServiceAccounts should guarantee kube-root-ca.crt exist in any namespace",
        |s| Box::pin(garbage::root_ca(s)),
    ),
    (
        "EndpointSlice should create and delete EndpointSlices for a Service with a selector that matches no pods",
        |s| Box::pin(network::empty_slices(s)),
    ),
    (
        "EndpointSliceMirroring should mirror a custom Endpoints resource through create update and delete",
        |s| Box::pin(network::mirror(s)),
    ),
    (
        "EndpointsController should create and delete Endpoints for a Service with a selector that matches no pods",
        |s| Box::pin(network::empty_endpoints(s)),
    ),
    (
        "RuntimeClass should schedule a Pod requesting a RuntimeClass and initialize its Overhead",
        |s| Box::pin(scheduling::overhead(s)),
    ),
    (
        "RuntimeClass should schedule a Pod requesting a RuntimeClass without PodOverhead",
        |s| Box::pin(scheduling::no_overhead(s)),
    ),
    (
        "SchedulerPredicates validates that NodeSelector is respected if not matching",
        |s| Box::pin(scheduling::node_selector(s)),
    ),
    (
        "PersistentVolumes CSI Conformance should run through the lifecycle of a PV and a PVC",
        |s| Box::pin(storage::volume(s)),
    ),
    (
        "VolumeAttributesClass should run through the lifecycle of a VolumeAttributesClass",
        |s| Box::pin(storage::attributes_class(s)),
    ),
];

/// A name without `[sig-…]`, `[Conformance]` and the like.
fn plain(name: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for letter in name.chars() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_test_upstream_marks_for_controllers_or_scheduler_has_ours() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FACTS);
    let Ok(text) = std::fs::read_to_string(&file) else {
        println!("skipped: the list of conformance tests is not there");
        return;
    };
    let rows = text
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let marked =
        rows.filter(|row| matches!(row.get(3), Some(&"ii-api+controllers" | &"iii-scheduler")));
    let wanted: BTreeSet<String> = marked.map(|row| plain(row[0])).collect();
    let ours: BTreeSet<String> = TESTS.iter().map(|(name, _)| (*name).to_string()).collect();
    assert_eq!(ours, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_controllers_and_scheduler_promise_is_kept() {
    let cluster = Cluster::start(2).await;
    let only = std::env::var("SKIFF_ONLY").unwrap_or_default();
    let selected = TESTS
        .iter()
        .enumerate()
        .filter(|(_, (name, _))| name.contains(&only));
    let runs = selected.map(|(number, (name, test))| {
        let cluster = &cluster;
        async move {
            let space = cluster.space(&format!("t{number}")).await;
            (*name, test(space).await)
        }
    });
    let mut failures = Vec::new();
    for (name, outcome) in join_all(runs).await {
        if let Err(error) = outcome {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
