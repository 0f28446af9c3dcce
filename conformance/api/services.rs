//! Services, their endpoints in both forms, and the server's own.

use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, items, text};
use crate::endpoint::version;
use crate::kinds::{ENDPOINT_SLICE, ENDPOINTS, SERVICE};
use crate::lifecycle::{Lifecycle, served};

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"test-service": "lifecycle"}}, "spec": spec})
}

pub async fn a_services_status_is_written(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let services = cluster.within(&namespace, SERVICE);
    let mut watcher = services.watch("test-service=lifecycle", "").await;
    let spec = json!({
        "type": "LoadBalancer", "loadBalancerClass": "example.com/internal-vip",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}],
    });
    let made = services.create(&service("web", spec.clone())).await;
    let made = made.expect("created");
    assert_eq!(watcher.expect("ADDED").await, made);
    assert!(made["spec"]["ports"][0]["nodePort"].is_u64());
    let read = services.get_sub("web", "status").await.expect("a status");
    assert_eq!(read["status"], json!({"loadBalancer": {}}));

    let patch = json!({
        "metadata": {"annotations": {"patchedstatus": "true"}},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
    });
    let patched = services.merge("web", "status", &patch).await;
    let patched = patched.expect("status patched");
    assert_contains(&patched, &patch);
    assert_eq!(
        text(&patched, "/status/loadBalancer/ingress/0/ipMode"),
        "VIP",
        "the mode's default"
    );
    assert_eq!(watcher.expect("MODIFIED").await, patched);
    let update = json!({"status": {"conditions": [{
        "type": "StatusUpdate", "status": "True", "reason": "Checklist", "message": "set by a test",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let updated = services.update("web", "status", &update).await;
    let updated = updated.expect("status updated");
    assert_contains(&updated, &update);
    assert_eq!(watcher.expect("MODIFIED").await, updated);
    let label = json!({"metadata": {"labels": {"test-service": "lifecycle", "patched": "true"}}});
    let labelled = services.strategic("web", &label).await.expect("patched");
    assert_contains(&labelled, &label);
    assert_eq!(labelled["status"], updated["status"]);
    assert_eq!(watcher.expect("MODIFIED").await, labelled);
    services.delete("web").await.expect("deleted");
    watcher.expect("DELETED").await;

    let other = cluster.namespace().await;
    Lifecycle::of(SERVICE, json!({"spec": spec}))
        .changed_by(json!({"spec": {"sessionAffinity": "ClientIP"}}))
        .with_status(patch_of("203.0.113.2"), patch_of("203.0.113.3"))
        .live(cluster, Some(&other))
        .await;
}

fn patch_of(address: &str) -> Value {
    json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}})
}

pub async fn a_collection_of_services_is_deleted(cluster: &Cluster) {
    let services = cluster.within(&cluster.namespace().await, SERVICE);
    let port = json!([{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}]);
    let mut kept = service("kept", json!({"type": "ClusterIP", "ports": port}));
    kept["metadata"]["labels"] = json!({"keep": "me"});
    services.create(&kept).await.expect("created");
    let kinds = [
        json!({"type": "ClusterIP", "ports": port}),
        json!({"type": "NodePort", "ports": port}),
        json!({"type": "ExternalName", "externalName": "example.com"}),
    ];
    for (number, spec) in kinds.into_iter().enumerate() {
        let made = service(&format!("service-{number}"), spec);
        services.create(&made).await.expect("created");
    }
    let found = services.labelled("test-service=lifecycle").await;
    assert_eq!(items(&found.expect("a list")).len(), 3);
    services
        .delete_labelled("test-service=lifecycle")
        .await
        .expect("the collection deleted");
    let left = services.labelled("").await.expect("a list");
    assert_eq!(items(&left).len(), 1);
    assert_eq!(text(&left, "/items/0/metadata/name"), "kept");
}

pub async fn the_servers_service_is_found_in_all_namespaces(cluster: &Cluster) {
    let all = cluster.all(SERVICE).labelled("").await.expect("a list");
    let wanted = json!({"items": [{"metadata": {"name": "kubernetes", "namespace": "default"}}]});
    assert_contains(&all, &wanted);
}

pub async fn the_servers_service_is_secure(cluster: &Cluster) {
    let own = cluster.within("default", SERVICE).get("kubernetes").await;
    let own = own.expect("the service");
    let ports = json!({"spec": {"type": "ClusterIP", "ports": [{"name": "https", "port": 443, "protocol": "TCP"}]}});
    assert_contains(&own, &ports);
    assert_eq!(own["spec"].get("selector"), None);
}

pub async fn the_servers_endpoints_are_told_in_both_forms(cluster: &Cluster) {
    let endpoints = cluster.within("default", ENDPOINTS);
    let endpoints = endpoints.get("kubernetes").await.expect("endpoints");
    let slices = cluster.within("default", ENDPOINT_SLICE);
    let named = slices
        .labelled("kubernetes.io/service-name=kubernetes")
        .await;
    let named = named.expect("a list");
    assert_eq!(items(&named).len(), 1, "{named}");
    let slice = slices.get("kubernetes").await.expect("a slice");
    assert_eq!(slice, {
        let mut item = items(&named)[0].clone();
        item["apiVersion"] = "discovery.k8s.io/v1".into();
        item["kind"] = "EndpointSlice".into();
        item
    });
    let subset = &endpoints["subsets"][0];
    assert_eq!(endpoints["subsets"].as_array().map(Vec::len), Some(1));
    let addresses: Vec<&Value> = subset["addresses"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|address| &address["ip"])
        .collect();
    assert!(!addresses.is_empty());
    let sliced: Vec<&Value> = slice["endpoints"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|endpoint| &endpoint["addresses"][0])
        .collect();
    assert_eq!(addresses, sliced);
    assert_eq!(subset["ports"][0]["name"], "https");
    assert_eq!(subset["ports"][0]["port"], slice["ports"][0]["port"]);
    assert_eq!(text(&slice, "/addressType"), "IPv4");
}

pub async fn endpoint_slices_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let slice = json!({
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["1.2.3.4"], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    });
    Lifecycle::of(ENDPOINT_SLICE, slice)
        .changed_by(json!({"endpoints": [{"addresses": ["1.2.3.4", "5.6.7.8"]}]}))
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn endpoints_live(cluster: &Cluster) {
    served(cluster, ENDPOINTS, &[]).await;
    let namespace = cluster.namespace().await;
    let endpoints = cluster.within(&namespace, ENDPOINTS);
    let selector = format!("test-endpoint-static={namespace}");
    let mut watcher = endpoints.watch(&selector, "").await;
    let object = json!({
        "metadata": {"name": "testservice", "labels": {"test-endpoint-static": namespace}},
        "subsets": [{"addresses": [{"ip": "10.0.0.24"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}],
    });
    let made = endpoints.create(&object).await.expect("created");
    assert_eq!(watcher.expect("ADDED").await, made);
    let found = cluster.all(ENDPOINTS).labelled(&selector).await;
    assert_eq!(items(&found.expect("a list")).len(), 1);
    let update = json!({"metadata": {"labels": {"test-service": "updated"}}});
    let updated = endpoints.update("testservice", "", &update).await;
    let updated = updated.expect("updated");
    assert_contains(&updated, &update);
    assert_eq!(watcher.expect("MODIFIED").await, updated);
    let patch = json!({
        "metadata": {"labels": {"test-service": "patched"}},
        "subsets": [{"addresses": [{"ip": "10.0.0.25"}], "ports": [{"name": "http-test", "port": 8080}]}],
    });
    let patched = endpoints.strategic("testservice", &patch).await;
    let patched = patched.expect("patched");
    assert_contains(&patched, &patch);
    assert_eq!(patched["subsets"].as_array().map(Vec::len), Some(1));
    assert!(version(&patched) > version(&updated));
    assert_eq!(watcher.expect("MODIFIED").await, patched);
    assert_eq!(endpoints.get("testservice").await.expect("got"), patched);
    endpoints
        .delete_labelled(&selector)
        .await
        .expect("the collection deleted");
    watcher.expect("DELETED").await;
    let left = endpoints.labelled(&selector).await.expect("a list");
    assert!(items(&left).is_empty());
}
