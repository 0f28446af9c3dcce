//! Namespaces: metadata, status, finalizers and what they hold up.

use serde_json::json;

use crate::cluster::{Cluster, assert_contains, eventually, refused, text};
use crate::kinds::{CONFIG_MAP, NAMESPACE};

pub async fn a_namespace_takes_an_update(cluster: &Cluster) {
    let (name, all) = (cluster.namespace().await, cluster.all(NAMESPACE));
    let label = json!({"metadata": {"labels": {"testing": "updated"}}});
    all.update(&name, "", &label).await.expect("updated");
    let got = all.get(&name).await.expect("got");
    assert_contains(&got, &label);
    assert_eq!(
        got["metadata"]["labels"]["kubernetes.io/metadata.name"],
        name.as_str(),
        "the server's own label stays"
    );
}

pub async fn a_namespace_is_patched(cluster: &Cluster) {
    let (name, all) = (cluster.namespace().await, cluster.all(NAMESPACE));
    let label = json!({"metadata": {"labels": {"testing": "patched"}}});
    all.strategic(&name, &label).await.expect("patched");
    assert_contains(&all.get(&name).await.expect("got"), &label);
    let gone = json!({"metadata": {"labels": {"kubernetes.io/metadata.name": null}}});
    let kept = all.merge(&name, "", &gone).await.expect("patched");
    assert_eq!(
        kept["metadata"]["labels"]["kubernetes.io/metadata.name"],
        name.as_str()
    );
}

pub async fn a_namespaces_status_is_written(cluster: &Cluster) {
    let (name, all) = (cluster.namespace().await, cluster.all(NAMESPACE));
    let read = all.get_sub(&name, "status").await.expect("a status");
    assert_eq!(text(&read, "/status/phase"), "Active");
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Checklist", "message": "set by a test"});
    let patch = json!({
        "metadata": {"annotations": {"patched-status": "yes"}},
        "status": {"conditions": [condition("StatusPatch")]},
    });
    let patched = all.merge(&name, "status", &patch).await.expect("patched");
    assert_contains(&patched, &patch);
    let update =
        json!({"status": {"conditions": [condition("StatusPatch"), condition("StatusUpdate")]}});
    let updated = all.update(&name, "status", &update).await.expect("updated");
    assert_eq!(
        updated["status"]["conditions"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(text(&updated, "/status/phase"), "Active");
}

pub async fn a_namespace_waits_for_its_finalizers(cluster: &Cluster) {
    const FINALIZER: &str = "checklist.example.com/hold";
    let (name, all) = (cluster.namespace().await, cluster.all(NAMESPACE));
    let held = json!({"spec": {"finalizers": ["kubernetes", FINALIZER]}});
    let ignored = all.update(&name, "", &held).await.expect("updated");
    assert_eq!(
        ignored["spec"]["finalizers"],
        json!(["kubernetes"]),
        "an update of the object leaves its finalizers alone"
    );
    all.update(&name, "finalize", &held)
        .await
        .expect("finalizers set");
    let got = all.get(&name).await.expect("got");
    assert_eq!(got["spec"]["finalizers"], held["spec"]["finalizers"]);

    all.delete(&name).await.expect("deleted");
    eventually(
        "the namespace without the controller's finalizer",
        async || {
            let got = all.get(&name).await.expect("it is held");
            text(&got, "/status/phase") == "Terminating"
                && got["spec"]["finalizers"] == json!([FINALIZER])
        },
    )
    .await;
    let late = cluster.within(&name, CONFIG_MAP);
    let late = late.create(&json!({"metadata": {"name": "late"}})).await;
    let message = refused(late, 403, "Forbidden");
    assert!(
        message.contains("because it is being terminated"),
        "{message}"
    );

    let free = json!({"spec": {"finalizers": []}});
    all.update(&name, "finalize", &free).await.expect("freed");
    eventually("the end of the namespace", async || {
        matches!(all.get(&name).await, Err(kube::Error::Api(status)) if status.code == 404)
    })
    .await;
}
