//! Dynamic resources: classes of devices, claims, their templates, and slices.

use serde_json::{Value, json};

use crate::cluster::{Cluster, refused};
use crate::kinds::{DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, RESOURCE_SLICE};
use crate::lifecycle::Lifecycle;

fn claim() -> Value {
    json!({"devices": {"requests": [
        {"name": "req-0", "exactly": {"deviceClassName": "checklist", "allocationMode": "ExactCount", "count": 1}},
    ]}})
}

pub async fn device_classes_live(cluster: &Cluster) {
    let selector =
        |driver: &str| json!([{"cel": {"expression": format!("device.driver == '{driver}'")}}]);
    Lifecycle::of(
        DEVICE_CLASS,
        json!({"spec": {"selectors": selector("one.example.com")}}),
    )
    .changed_by(json!({"spec": {"selectors": selector("two.example.com")}}))
    .live(cluster, None)
    .await;
}

pub async fn resource_claims_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let result = json!({"request": "req-0", "driver": "one.example.com", "pool": "worker", "device": "dev-0"});
    Lifecycle::of(RESOURCE_CLAIM, json!({"spec": claim()}))
        .with_bare_status(
            json!({"status": {"allocation": {"devices": {"results": [result]}}}}),
            json!({"status": {"devices": [{
                "driver": "one.example.com", "pool": "worker", "device": "dev-0",
                "data": {"some": "thing"},
            }]}}),
        )
        .live(cluster, Some(&namespace))
        .await;
    let claims = cluster.within(&namespace, RESOURCE_CLAIM);
    let object = json!({"metadata": {"name": "claim"}, "spec": claim()});
    claims.create(&object).await.expect("created");
    let other = json!({"spec": {"devices": {"requests": [{"name": "other"}]}}});
    let message = refused(claims.merge("claim", "", &other).await, 422, "Invalid");
    assert!(message.contains("field is immutable"), "{message}");
}

pub async fn resource_claim_templates_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    Lifecycle::of(RESOURCE_CLAIM_TEMPLATE, json!({"spec": {"spec": claim()}}))
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn resource_slices_live(cluster: &Cluster) {
    let slice = json!({"spec": {
        "driver": "one.example.com", "nodeName": "worker",
        "pool": {"name": "worker", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "dev-0", "attributes": {"model": {"string": "a"}}, "capacity": {"memory": {"value": "1Gi"}}}],
    }});
    Lifecycle::of(RESOURCE_SLICE, slice)
        .changed_by(json!({"spec": {"pool": {"generation": 2}}}))
        .live(cluster, None)
        .await;
    let slices = cluster.all(RESOURCE_SLICE);
    let by_node =
        kube::api::ListParams::default().fields("spec.nodeName=worker,spec.driver=one.example.com");
    slices.list(&by_node).await.expect("the slices of a node");
}
