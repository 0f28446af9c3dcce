//! The scheduler against an API server in memory.

use std::time::Duration;

use api::r::{
    DEVICECLASSES, EVENTS, LEASES, NODES, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS,
    RESOURCECLAIMS, RESOURCESLICES, STORAGECLASSES,
};
use apimachinery::status::Status;
use client::fake::Server;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    SchedulerConfig,
    cluster::testing::{mk_node, mk_pod, on},
};

fn start(server: &Server) -> CancellationToken {
    let shutdown = CancellationToken::new();
    let config = SchedulerConfig::default();
    tokio::spawn(super::run(server.client(), config, shutdown.clone()));
    shutdown
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn node_of(server: &Server, pod: &str) -> String {
    let pod = server.get(&PODS, &format!("default/{pod}")).unwrap();
    pod["spec"]["nodeName"].as_str().unwrap_or("").into()
}

fn events(server: &Server, reason: &str) -> Vec<Value> {
    server
        .list(&EVENTS)
        .into_iter()
        .filter(|event| event["reason"] == reason)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_and_told_in_an_event() {
    let server = Server::default();
    server.put(&NODES, mk_node("lab-worker"));
    let shutdown = start(&server);
    seconds(1).await;
    server.put(&PODS, mk_pod("nginx-demo"));
    seconds(1).await;
    assert_eq!(node_of(&server, "nginx-demo"), "lab-worker");
    let bindings = server.requests_of("POST", "/binding");
    assert_eq!(bindings.len(), 1);
    assert_eq!(bindings[0].body["metadata"]["uid"], "nginx-demo");
    let event = events(&server, "Scheduled").remove(0);
    assert_eq!(
        event["message"],
        "Successfully assigned default/nginx-demo to lab-worker"
    );
    assert_eq!(event["source"], json!({"component": "default-scheduler"}));
    assert_eq!(event["type"], "Normal");
    shutdown.cancel();
    seconds(1).await;
    let lease = server.get(&LEASES, "kube-system/kube-scheduler").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_waits_for_a_node_without_being_tried_again() {
    let server = Server::default();
    let mut cordoned = mk_node("a");
    cordoned["spec"]["unschedulable"] = json!(true);
    server.put(&NODES, cordoned);
    let _shutdown = start(&server).drop_guard();
    seconds(1).await;
    server.put(&PODS, mk_pod("p"));
    seconds(60).await;
    assert_eq!(node_of(&server, "p"), "");
    let failed = events(&server, "FailedScheduling");
    assert_eq!((failed.len(), &failed[0]["count"]), (1, &json!(1)));
    let pod = server.get(&PODS, "default/p").unwrap();
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(condition["reason"], "Unschedulable");
    assert_eq!(condition["message"], failed[0]["message"]);
    server.put(&NODES, mk_node("b"));
    seconds(2).await;
    assert_eq!(node_of(&server, "p"), "b");
}

#[tokio::test(start_paused = true)]
async fn pods_with_a_node_of_another_scheduler_or_being_deleted_are_left_alone() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    let _shutdown = start(&server).drop_guard();
    let mut other = mk_pod("other");
    other["spec"]["schedulerName"] = json!("mine");
    let mut dying = mk_pod("dying");
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for pod in [on(mk_pod("placed"), "gone"), other, dying] {
        server.put(&PODS, pod);
    }
    seconds(30).await;
    assert_eq!(node_of(&server, "placed"), "gone");
    assert!(server.requests_of("POST", "/binding").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failed_binding_is_taken_back_and_tried_again() {
    let server = Server::default();
    let mut small = mk_node("a");
    small["status"]["allocatable"]["pods"] = json!("1");
    server.put(&NODES, small);
    server.fail_next(
        http::Method::POST,
        "/binding",
        Status::internal("etcd is away"),
    );
    let _shutdown = start(&server).drop_guard();
    server.put(&PODS, mk_pod("p"));
    seconds(10).await;
    assert_eq!(node_of(&server, "p"), "a");
    assert_eq!(server.requests_of("POST", "/binding").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_away_changes_nothing_about_the_end() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    server.put(&NODES, mk_node("b"));
    let _shutdown = start(&server).drop_guard();
    seconds(1).await;
    server.set_down(true);
    for number in 0..10 {
        server.put(&PODS, mk_pod(&format!("p{number}")));
    }
    seconds(5).await;
    server.set_down(false);
    seconds(20).await;
    let on_a = (0..10)
        .filter(|number| node_of(&server, &format!("p{number}")) == "a")
        .count();
    assert_eq!(on_a, 5);
}

fn asks(name: &str, priority: i32, cpu: &str) -> Value {
    let mut pod = mk_pod(name);
    pod["spec"]["priority"] = json!(priority);
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_evicts_lesser_ones_waits_for_them_and_takes_their_place() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    for name in ["low1", "low2"] {
        server.put(&PODS, on(asks(name, 1, "1500m"), "a"));
    }
    let _shutdown = start(&server).drop_guard();
    seconds(1).await;
    server.put(&PODS, asks("high", 100, "3"));
    seconds(1).await;
    let high = server.get(&PODS, "default/high").unwrap();
    assert_eq!(high["status"]["nominatedNodeName"], "a");
    let message = &high["status"]["conditions"][0]["message"];
    assert_eq!(message, "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(
        events(&server, "FailedScheduling")[0]["message"],
        "0/1 nodes are available: 1 Insufficient cpu."
    );
    for name in ["low1", "low2"] {
        let victim = server.get(&PODS, &format!("default/{name}")).unwrap();
        assert_eq!(
            victim["metadata"]["deletionGracePeriodSeconds"], 30,
            "its own grace period"
        );
        let condition = &victim["status"]["conditions"][0];
        assert_eq!(condition["type"], "DisruptionTarget");
        assert_eq!(condition["reason"], "PreemptionByScheduler");
        assert_eq!(
            condition["message"],
            "default-scheduler: preempting to accommodate a higher priority pod"
        );
    }
    assert_eq!(events(&server, "Preempted").len(), 2);
    assert_eq!(
        events(&server, "Preempted")[0]["message"],
        "Preempted by pod high on node a"
    );
    // A lesser pod does not slip in.
    server.remove(&PODS, "default/low1");
    server.remove(&PODS, "default/low2");
    server.put(&PODS, asks("late", 1, "2"));
    seconds(2).await;
    assert_eq!(node_of(&server, "high"), "a");
    assert_eq!(node_of(&server, "late"), "");
    assert_eq!(server.requests_of("DELETE", "/pods/").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_fails_is_tried_again() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    server.put(&PODS, on(asks("low", 1, "3"), "a"));
    server.fail_next(
        http::Method::DELETE,
        "/pods/low",
        Status::internal("etcd is away"),
    );
    let _shutdown = start(&server).drop_guard();
    server.put(&PODS, asks("high", 100, "3"));
    seconds(5).await;
    let low = server.get(&PODS, "default/low").unwrap();
    assert!(low["metadata"]["deletionTimestamp"].is_string());
}

/// A class and a claim of it, and a pod that uses the claim.
fn put_storage(server: &Server, provisioner: &str) -> Value {
    server.put(
        &STORAGECLASSES,
        json!({"metadata": {"name": "local"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    server.put(
        &PERSISTENTVOLUMECLAIMS,
        json!({
            "metadata": {"name": "c", "namespace": "default", "uid": "c"},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}},
        }),
    );
    let mut pod = mk_pod("p");
    pod["spec"]["volumes"] = json!([{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]);
    pod
}

/// What the volume controller does once a volume names the claim.
fn complete(server: &Server, volume: &str) {
    let mut claim = server.get(&PERSISTENTVOLUMECLAIMS, "default/c").unwrap();
    claim["spec"]["volumeName"] = json!(volume);
    claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    server.put(&PERSISTENTVOLUMECLAIMS, claim);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_claim_waits_for_it_brings_volume_and_node_together() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    server.put(&NODES, mk_node("b"));
    let pod = put_storage(&server, "kubernetes.io/no-provisioner");
    server.put(
        &PERSISTENTVOLUMES,
        json!({
            "metadata": {"name": "v"},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}},
            "status": {"phase": "Available"},
        }),
    );
    let _shutdown = start(&server).drop_guard();
    server.put(&PODS, pod);
    seconds(2).await;
    let volume = server.get(&PERSISTENTVOLUMES, "v").unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], "c");
    assert_eq!(
        volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"],
        "yes"
    );
    assert_eq!(
        node_of(&server, "p"),
        "",
        "it waits for the volume controller"
    );
    complete(&server, "v");
    seconds(1).await;
    assert_eq!(node_of(&server, "p"), "b");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_provisioned_for_the_chosen_node_and_again_elsewhere_if_that_fails() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    let pod = put_storage(&server, "example.com/csi");
    let _shutdown = start(&server).drop_guard();
    server.put(&PODS, pod);
    seconds(1).await;
    let selected = |server: &Server| {
        let claim = server.get(&PERSISTENTVOLUMECLAIMS, "default/c").unwrap();
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].clone()
    };
    assert_eq!(selected(&server), "a");
    // The provisioner cannot: it takes the annotation back.
    let mut claim = server.get(&PERSISTENTVOLUMECLAIMS, "default/c").unwrap();
    claim["metadata"]["annotations"] = json!({});
    let mut cordoned = mk_node("a");
    cordoned["spec"]["unschedulable"] = json!(true);
    server.put(&NODES, cordoned);
    server.put(&NODES, mk_node("b"));
    server.put(&PERSISTENTVOLUMECLAIMS, claim);
    seconds(5).await;
    assert_eq!(selected(&server), "b");
    let failed = events(&server, "FailedScheduling").remove(0);
    assert_eq!(
        failed["message"],
        "running PreBind plugin \"VolumeBinding\": binding volumes: selectedNode annotation reset for PVC \
         \"default/c\""
    );
    server.put(
        &PERSISTENTVOLUMES,
        json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "default", "name": "c", "uid": "c"}}}),
    );
    complete(&server, "v");
    seconds(1).await;
    assert_eq!(node_of(&server, "p"), "b");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_gets_no_volume_in_time_is_tried_anew() {
    let server = Server::default();
    server.put(&NODES, mk_node("a"));
    let pod = put_storage(&server, "example.com/csi");
    let _shutdown = start(&server).drop_guard();
    server.put(&PODS, pod);
    seconds(605).await;
    let failed = events(&server, "FailedScheduling").remove(0);
    assert_eq!(
        failed["message"],
        "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded"
    );
    let deleted = server.get(&PODS, "default/p").unwrap();
    assert_eq!(deleted["status"]["nominatedNodeName"], "a");
}

/// A node with a device that must be made ready, and a pod that wants it.
fn with_unready_device(server: &Server) {
    server.put(&NODES, mk_node("a"));
    server.put(
        &DEVICECLASSES,
        json!({"metadata": {"name": "any"}, "spec": {}}),
    );
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.io", "nodeName": "a",
        "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d1",
            "bindingConditions": ["d.io/attached"], "bindingFailureConditions": ["d.io/broken"]}]}});
    server.put(&RESOURCESLICES, slice);
    let request = json!({"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}});
    let claim = json!({"metadata": {"name": "c", "namespace": "default", "uid": "c"},
        "spec": {"devices": {"requests": [request]}}});
    server.put(&RESOURCECLAIMS, claim);
    let mut pod = mk_pod("p");
    pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"}]);
    server.put(&PODS, pod);
}

fn say(server: &Server, condition: &str) {
    let mut claim = server.get(&RESOURCECLAIMS, "default/c").unwrap();
    claim["status"]["devices"] = json!([{"driver": "d.io", "pool": "a", "device": "d1",
        "conditions": [{"type": condition, "status": "True"}]}]);
    server.put(&RESOURCECLAIMS, claim);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_its_device_is_said_to_be_ready() {
    let server = Server::default();
    with_unready_device(&server);
    let shutdown = start(&server);
    seconds(5).await;
    let claim = server.get(&RESOURCECLAIMS, "default/c").unwrap();
    let result = &claim["status"]["allocation"]["devices"]["results"][0];
    assert_eq!(result["bindingConditions"], json!(["d.io/attached"]));
    assert_eq!(result["bindingFailureConditions"], json!(["d.io/broken"]));
    assert_eq!(node_of(&server, "p"), "");
    let pod = server.get(&PODS, "default/p").unwrap();
    assert_eq!(pod["status"]["nominatedNodeName"], "a");
    say(&server, "d.io/attached");
    seconds(1).await;
    assert_eq!(node_of(&server, "p"), "a");
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_device_that_fails_to_be_made_ready_or_is_not_in_time_is_given_up_and_tried_anew() {
    for waits in [1, 700] {
        let server = Server::default();
        with_unready_device(&server);
        let shutdown = start(&server);
        seconds(5).await;
        if waits == 1 {
            say(&server, "d.io/broken");
        }
        seconds(waits).await;
        let told = events(&server, "FailedScheduling");
        let message = told[0]["message"].as_str().unwrap();
        let expected = if waits == 1 {
            "ResourceClaim default/c: a device's binding failed"
        } else {
            "device binding timeout: default/p"
        };
        assert!(message.ends_with(expected), "{message}");
        seconds(60).await;
        // It was given up and, being the only one, taken again.
        let claim = server.get(&RESOURCECLAIMS, "default/c").unwrap();
        assert!(claim["status"]["allocation"].is_object(), "{claim}");
        say(&server, "d.io/attached");
        seconds(1).await;
        assert_eq!(node_of(&server, "p"), "a", "{waits}");
        shutdown.cancel();
    }
}

/// A node with one device, of a class that stands for `example.com/gpu`, and a pod that asks for one.
fn with_extended_resource(server: &Server) {
    server.put(&NODES, mk_node("a"));
    let class =
        json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    server.put(&DEVICECLASSES, class);
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.io", "nodeName": "a",
        "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d1"}]}});
    server.put(&RESOURCESLICES, slice);
    server.put(&PODS, pod_with_gpu("p"));
}

fn pod_with_gpu(name: &str) -> Value {
    let mut pod = mk_pod(name);
    pod["spec"]["containers"][0] = json!({"name": "c", "image": "i",
        "resources": {"requests": {"example.com/gpu": "1"}}});
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_given_a_claim_for_what_devices_stand_for() {
    let server = Server::default();
    with_extended_resource(&server);
    server.set_lag(&RESOURCECLAIMS, Duration::from_millis(300));
    let shutdown = start(&server);
    server.put(&PODS, pod_with_gpu("q"));
    seconds(5).await;
    let claims = server.list(&RESOURCECLAIMS);
    assert_eq!(claims.len(), 1, "{claims:?}");
    let claim = &claims[0];
    let meta = &claim["metadata"];
    let owner = meta["ownerReferences"][0]["name"].as_str().unwrap();
    let other = if owner == "p" { "q" } else { "p" };
    assert_eq!(
        (node_of(&server, owner), node_of(&server, other)),
        ("a".into(), String::new())
    );
    assert_eq!(
        meta["annotations"],
        json!({"resource.kubernetes.io/extended-resource-claim": "true"})
    );
    let named = meta["name"].as_str().unwrap();
    assert!(
        named.starts_with(&format!("{owner}-extended-resources-")),
        "{named}"
    );
    assert_eq!(
        meta["finalizers"],
        json!(["resource.kubernetes.io/delete-protection"])
    );
    let request = json!({"name": "container-0-request-0", "exactly": {
        "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}});
    assert_eq!(claim["spec"], json!({"devices": {"requests": [request]}}));
    assert_eq!(claim["status"]["reservedFor"][0]["name"], owner);
    assert_eq!(
        claim["status"]["allocation"]["devices"]["results"][0]["device"],
        "d1"
    );
    let pod = server.get(&PODS, &format!("default/{owner}")).unwrap();
    let mapping = json!({"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"});
    assert_eq!(
        pod["status"]["extendedResourceClaimStatus"],
        json!({"resourceClaimName": named, "requestMappings": [mapping]})
    );
    let told = events(&server, "FailedScheduling");
    let message = told[0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("0/1 nodes are available: 1 cannot allocate all claims."),
        "{message}"
    );
    // With the pod and its claim gone the other is given the device.
    let key = format!("default/{named}");
    server.remove(&PODS, &format!("default/{owner}"));
    server.remove(&RESOURCECLAIMS, &key);
    seconds(5).await;
    assert_eq!(node_of(&server, other), "a");
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_binding_that_failed_or_was_never_made_is_deleted() {
    let server = Server::default();
    with_extended_resource(&server);
    server.fail_next(http::Method::POST, "/binding", Status::internal("no"));
    let shutdown = start(&server);
    seconds(5).await;
    assert_eq!(node_of(&server, "p"), "a");
    let made = server.requests_of("POST", "/resourceclaims").len();
    let deleted = server.requests_of("DELETE", "/resourceclaims/").len();
    assert_eq!(
        (made, deleted, server.list(&RESOURCECLAIMS).len()),
        (2, 1, 1)
    );
    shutdown.cancel();

    // As a scheduler that ended between both leaves it.
    let server = Server::default();
    with_extended_resource(&server);
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true});
    let request =
        json!({"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu", "count": 1}});
    let result =
        json!({"request": "container-0-request-0", "driver": "d.io", "pool": "a", "device": "d1"});
    server.put(&RESOURCECLAIMS, json!({
        "metadata": {"name": "old", "namespace": "default", "uid": "old", "ownerReferences": [owner],
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }));
    let shutdown = start(&server);
    seconds(10).await;
    let told = events(&server, "FailedScheduling");
    assert_eq!(
        told[0]["message"],
        "0/1 nodes are available: 1 cannot schedule extended resource claim. deletion of ResourceClaim completed, \
         preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    );
    assert!(server.get(&RESOURCECLAIMS, "default/old").is_none());
    assert_eq!(node_of(&server, "p"), "a");
    shutdown.cancel();
}
