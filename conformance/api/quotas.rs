//! Resource quotas and limit ranges: their lives and what they do to pods.

use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, eventually, items, refused};
use crate::endpoint::version;
use crate::kinds::{LIMIT_RANGE, POD, RESOURCE_QUOTA};
use crate::lifecycle::Lifecycle;

fn gone(answer: &kube::Result<Value>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 404)
}

pub async fn a_quota_is_updated_and_deleted(cluster: &Cluster) {
    let quotas = cluster.within(&cluster.namespace().await, RESOURCE_QUOTA);
    let quota =
        json!({"metadata": {"name": "quota"}, "spec": {"hard": {"cpu": "1", "memory": "500Mi"}}});
    let made = quotas.create(&quota).await.expect("created");
    assert_contains(&made, &quota);
    let more = json!({"spec": {"hard": {"cpu": "2", "memory": "1Gi"}}});
    quotas.update("quota", "", &more).await.expect("updated");
    assert_contains(&quotas.get("quota").await.expect("got"), &more);
    eventually("the quota's status", async || {
        let got = quotas.get("quota").await.expect("got");
        got["status"]["hard"] == more["spec"]["hard"]
            && got["status"]["used"] == json!({"cpu": "0", "memory": "0"})
    })
    .await;
    quotas.delete("quota").await.expect("deleted");
    assert!(gone(&quotas.get("quota").await));
}

pub async fn quotas_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    Lifecycle::of(
        RESOURCE_QUOTA,
        json!({"spec": {"hard": {"memory": "500Mi", "pods": "5"}}}),
    )
    .changed_by(json!({"spec": {"hard": {"memory": "750Mi"}}}))
    .with_status(
        json!({"status": {"hard": {"pods": "4"}}}),
        json!({"status": {"used": {"pods": "3"}}}),
    )
    .live(cluster, Some(&namespace))
    .await;
}

fn limits(minimum: &str, maximum: &str) -> Value {
    json!({"spec": {"limits": [{
        "type": "Container",
        "min": {"cpu": minimum, "memory": "100Mi"},
        "max": {"cpu": maximum, "memory": "500Mi"},
        "default": {"cpu": "500m", "memory": "500Mi"},
        "defaultRequest": {"cpu": "100m", "memory": "200Mi"},
        "maxLimitRequestRatio": {},
    }]}})
}

fn pod(name: &str, resources: &Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "pause", "image": "pause", "resources": resources}]},
    })
}

pub async fn a_limit_range_gives_pods_their_defaults(cluster: &Cluster) {
    let namespace = cluster.namespace_for_pods().await;
    let (ranges, pods) = (
        cluster.within(&namespace, LIMIT_RANGE),
        cluster.within(&namespace, POD),
    );
    let from = version(&ranges.labelled("").await.expect("a list")).to_string();
    let mut watcher = ranges.watch("", &from).await;
    let mut range = limits("50m", "500m");
    range["metadata"] = json!({"name": "limits"});
    let made = ranges.create(&range).await.expect("created");
    assert_eq!(watcher.expect("ADDED").await, made);

    // A range that was just made may not have been seen by admission's cache yet.
    eventually("the defaults", async || {
        let made = pods.try_create(&pod("probe", &json!({}))).await;
        made.expect("allowed")["spec"]["containers"][0]["resources"]["limits"].is_object()
    })
    .await;
    let none = pods
        .create(&pod("none", &json!({})))
        .await
        .expect("created");
    assert_eq!(
        none["spec"]["containers"][0]["resources"],
        json!({
            "limits": {"cpu": "500m", "memory": "500Mi"},
            "requests": {"cpu": "100m", "memory": "200Mi"},
        })
    );
    let partial = json!({"requests": {"memory": "150Mi"}, "limits": {"cpu": "300m"}});
    let partial = pods.create(&pod("partial", &partial)).await;
    assert_eq!(
        partial.expect("created")["spec"]["containers"][0]["resources"],
        json!({
            "limits": {"cpu": "300m", "memory": "500Mi"},
            "requests": {"cpu": "300m", "memory": "150Mi"},
        })
    );
    for (name, resources, why) in [
        (
            "small",
            json!({"requests": {"cpu": "10m", "memory": "50Mi"}}),
            "minimum cpu usage per Container is 50m, but request is 10m",
        ),
        (
            "large",
            json!({"limits": {"cpu": "600m", "memory": "600Mi"}}),
            "maximum cpu usage per Container is 500m, but limit is 600m",
        ),
    ] {
        let message = refused(pods.create(&pod(name, &resources)).await, 403, "Forbidden");
        assert!(message.contains(why), "{message}");
    }

    let wider = limits("5m", "500m");
    let updated = ranges.update("limits", "", &wider).await.expect("updated");
    assert_eq!(watcher.expect("MODIFIED").await, updated);
    let small = json!({"requests": {"cpu": "10m", "memory": "100Mi"}});
    eventually("the new minimum", async || {
        pods.create(&pod("small", &small)).await.is_ok()
    })
    .await;
    ranges.delete("limits").await.expect("deleted");
    watcher.expect("DELETED").await;
    let large = json!({"limits": {"cpu": "600m", "memory": "600Mi"}});
    eventually("the end of the maximum", async || {
        pods.create(&pod("large", &large)).await.is_ok()
    })
    .await;
}

pub async fn limit_ranges_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    Lifecycle::of(
        LIMIT_RANGE,
        json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}}),
    )
    .changed_by(json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "400m"}}]}}))
    .live(cluster, Some(&namespace))
    .await;
    let ranges = cluster.within(&namespace, LIMIT_RANGE);
    assert!(items(&ranges.labelled("").await.expect("a list")).is_empty());
}
