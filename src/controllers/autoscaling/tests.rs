//! An autoscaler against an API server in memory that has a metrics API.

use api::r::DEPLOYMENTS;
use client::fake::Server;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::dynamic;

fn metrics_pods() -> &'static api::Resource {
    dynamic::resource(&discovery::Served {
        group: "metrics.k8s.io".into(),
        version: "v1beta1".into(),
        resource: "pods".into(),
        kind: "PodMetrics".into(),
        is_namespaced: true,
        verbs: vec!["list".into()],
    })
    .unwrap()
}

fn use_cpu(server: &Server, name: &str, cpu: &str) {
    let now = now_text();
    server.put(
        &PODS,
        json!({
            "metadata": {"name": name, "namespace": "n", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}]},
        }),
    );
    server.put(metrics_pods(), json!({
        "metadata": {"name": name, "namespace": "n", "labels": {"app": "web"}}, "timestamp": now, "window": "30s",
        "containers": [{"name": "c", "usage": {"cpu": cpu}}],
    }));
}

fn start(server: &Server) -> tokio_util::sync::DropGuard {
    let deployments = json!({"resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced", "verbs": ["get"]});
    server.set_discovery(
        "/apis",
        json!({"items": [{"metadata": {"name": "apps"},
        "versions": [{"version": "v1", "resources": [deployments]}]}]}),
    );
    let config = crate::ControllersConfig {
        controllers: vec!["horizontal-pod-autoscaler-controller".into()],
        leader_elect: false,
        ..crate::ControllersConfig::default()
    };
    let shutdown = CancellationToken::new();
    tokio::spawn(crate::run(server.client(), config, shutdown.clone()));
    shutdown.drop_guard()
}

fn condition(server: &Server, kind: &str) -> Value {
    let stored = server.get(&HORIZONTALPODAUTOSCALERS, "n/web").unwrap();
    let conditions = stored["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions
        .into_iter()
        .find(|one| one["type"] == kind)
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_busy_deployment_grows_and_says_why() {
    let server = Server::default();
    let _guard = start(&server);
    server.put(
        &DEPLOYMENTS,
        json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": 2},
        "status": {"replicas": 2, "selector": "app=web"}}),
    );
    use_cpu(&server, "a", "900m");
    use_cpu(&server, "b", "700m");
    server.put(&HORIZONTALPODAUTOSCALERS, json!({
        "metadata": {"name": "web", "namespace": "n", "generation": 1}, "status": {"currentMetrics": null, "desiredReplicas": 0},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                 "minReplicas": 1, "maxReplicas": 3, "metrics": [{"type": "Resource", "resource": {
                     "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]},
    }));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        server.get(&DEPLOYMENTS, "n/web").unwrap()["spec"]["replicas"],
        3
    );
    let status = server.get(&HORIZONTALPODAUTOSCALERS, "n/web").unwrap()["status"].clone();
    assert_eq!(
        (&status["currentReplicas"], &status["desiredReplicas"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(
        status["currentMetrics"][0]["resource"],
        json!({"name": "cpu", "current": {"averageUtilization": 80, "averageValue": "800m"}})
    );
    assert_eq!(
        condition(&server, "AbleToScale")["reason"],
        "SucceededRescale"
    );
    assert_eq!(
        condition(&server, "ScalingActive")["reason"],
        "ValidMetricFound"
    );
    assert_eq!(
        condition(&server, "ScalingLimited")["reason"],
        "TooManyReplicas"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_target_or_metrics_nothing_changes_and_the_reason_is_told() {
    let server = Server::default();
    let _guard = start(&server);
    server.put(&HORIZONTALPODAUTOSCALERS, json!({
        "metadata": {"name": "web", "namespace": "n"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 3,
                 "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 50}}}]},
    }));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        condition(&server, "AbleToScale")["reason"],
        "FailedGetScale"
    );
    server.put(
        &DEPLOYMENTS,
        json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": 2},
        "status": {"replicas": 2, "selector": "app=web"}}),
    );
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(
        condition(&server, "AbleToScale")["reason"],
        "SucceededGetScale"
    );
    assert_eq!(
        condition(&server, "ScalingActive")["reason"],
        "FailedGetResourceMetric"
    );
    let message = condition(&server, "ScalingActive")["message"].clone();
    let why = "the HPA was unable to compute the replica count: failed to get cpu utilization: \
        unable to get metrics for resource cpu: ";
    assert!(
        message.as_str().is_some_and(|text| text.starts_with(why)),
        "{message}"
    );
    assert_eq!(
        server.get(&DEPLOYMENTS, "n/web").unwrap()["spec"]["replicas"],
        2
    );
}

#[tokio::test(start_paused = true)]
async fn the_metric_that_calls_for_most_replicas_decides() {
    let server = Server::default();
    let _guard = start(&server);
    let queue = dynamic::resource(&discovery::Served {
        group: "external.metrics.k8s.io".into(),
        version: "v1beta1".into(),
        resource: "queue".into(),
        kind: "ExternalMetricValueList".into(),
        is_namespaced: true,
        verbs: vec!["get".into()],
    })
    .unwrap();
    let put_queue = |length: &str| {
        let metadata = json!({"name": "q", "namespace": "n"});
        server.put(queue, json!({"metadata": metadata, "value": length}));
    };
    put_queue("900");
    server.put(
        &DEPLOYMENTS,
        json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": 2},
        "status": {"replicas": 2, "selector": "app=web"}}),
    );
    use_cpu(&server, "a", "100m");
    use_cpu(&server, "b", "100m");
    let goal = json!({"type": "AverageValue", "averageValue": "300"});
    server.put(&HORIZONTALPODAUTOSCALERS, json!({
        "metadata": {"name": "web", "namespace": "n"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 5, "metrics": [
            {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"averageUtilization": 50}}},
            {"type": "External", "external": {"metric": {"name": "queue"}, "target": goal}}]},
    }));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        server.get(&DEPLOYMENTS, "n/web").unwrap()["spec"]["replicas"],
        3
    );
    let status = server.get(&HORIZONTALPODAUTOSCALERS, "n/web").unwrap()["status"].clone();
    let container = json!({"name": "cpu", "container": "c", "current": {"averageUtilization": 10, "averageValue": "100m"}});
    assert_eq!(
        status["currentMetrics"],
        json!([
            {"type": "ContainerResource", "containerResource": container},
            {"type": "External", "external": {"metric": {"name": "queue"}, "current": {"averageValue": "450"}}},
        ])
    );
    assert!(status["observedGeneration"].is_null());
    let message = "New size: 3; reason: external metric queue(nil) above target";
    let events = server.list(&api::r::EVENTS);
    assert!(
        events.iter().any(|event| event["message"] == message),
        "{events:?}"
    );
}
