//! Pods as an API server alone sees them: quality of service, what is refused, volumes; and pod templates.

use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, items, refused, text};
use crate::endpoint::version;
use crate::kinds::{POD, POD_TEMPLATE};
use crate::lifecycle::Lifecycle;

fn pod(name: &str, containers: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": containers}})
}

pub async fn a_pod_has_its_quality_of_service(cluster: &Cluster) {
    let pods = cluster.within(&cluster.namespace_for_pods().await, POD);
    let all = json!({"cpu": "100m", "memory": "100Mi"});
    let container = |name: &str, resources: Value| json!({"name": name, "image": "pause", "resources": resources});
    for (name, containers, class) in [
        (
            "guaranteed",
            json!([container("a", json!({"requests": all, "limits": all}))]),
            "Guaranteed",
        ),
        (
            "limits-only",
            json!([container("a", json!({"limits": all}))]),
            "Guaranteed",
        ),
        (
            "one-of-two",
            json!([
                container("a", json!({"requests": all, "limits": all})),
                container("b", json!({})),
            ]),
            "Burstable",
        ),
        (
            "requests-only",
            json!([container("a", json!({"requests": {"cpu": "1m"}}))]),
            "Burstable",
        ),
        ("nothing", json!([container("a", json!({}))]), "BestEffort"),
    ] {
        let made = pods.create(&pod(name, containers)).await.expect("created");
        assert_eq!(text(&made, "/status/qosClass"), class, "{name}");
        assert_eq!(text(&made, "/status/phase"), "Pending");
        let stored = pods.get(name).await.expect("got");
        assert_eq!(text(&stored, "/status/qosClass"), class);
    }
}

pub async fn malformed_sysctls_are_refused(cluster: &Cluster) {
    let pods = cluster.within(&cluster.namespace_for_pods().await, POD);
    let mut refusing = pod("sysctls", json!([{"name": "pause", "image": "pause"}]));
    let names = ["foo-", "kernel.shmmax", "safe-and-unsafe", "bar.."];
    refusing["spec"]["securityContext"] = json!({
        "sysctls": names.map(|name| json!({"name": name, "value": "100000000"})),
    });
    let message = refused(pods.create(&refusing).await, 422, "Invalid");
    for (index, name) in [(0, "foo-"), (3, "bar..")] {
        let why = format!(
            "spec.securityContext.sysctls[{index}].name: Invalid value: \"{name}\": must have at most 253 characters and match regex"
        );
        assert!(message.contains(&why), "{message}");
    }
    for name in ["kernel.shmmax", "safe-and-unsafe"] {
        assert!(!message.contains(name), "{message}");
    }
}

pub async fn a_pod_may_have_a_volume_of_its_own(cluster: &Cluster) {
    let pods = cluster.within(&cluster.namespace_for_pods().await, POD);
    let mut object = pod(
        "inline",
        json!([{"name": "pause", "image": "pause", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]),
    );
    object["metadata"]["labels"] = json!({"checklist": "inline"});
    object["spec"]["volumes"] = json!([{"name": "data", "csi": {
        "driver": "e2e.example.com", "readOnly": false, "fsType": "xfs",
        "volumeAttributes": {"key": "value"},
        "nodePublishSecretRef": {"name": "secret"},
    }}]);
    let made = pods.create(&object).await.expect("created");
    assert_contains(&made, &object);
    let read = pods.get("inline").await.expect("got");
    assert_contains(&read, &object);
    let listed = pods.labelled("checklist=inline").await.expect("a list");
    assert_contains(&items(&listed)[0]["spec"], &object["spec"]);
    pods.delete_now("inline").await.expect("deleted");
    refused(pods.get("inline").await, 404, "NotFound");
}

fn template(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"podtemplate-set": "true"}},
        "template": {"spec": {"containers": [{"name": "nginx", "image": "nginx"}]}},
    })
}

pub async fn pod_templates_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let templates = cluster.within(&namespace, POD_TEMPLATE);
    let made = templates.create(&template("nginx")).await.expect("created");
    assert_contains(&made, &template("nginx"));
    assert_eq!(
        text(&made, "/template/spec/restartPolicy"),
        "Always",
        "a template gets a pod's defaults"
    );
    let all = cluster
        .all(POD_TEMPLATE)
        .labelled("podtemplate-set=true")
        .await;
    assert_contains(
        &all.expect("a list"),
        &json!({"items": [{"metadata": {"name": "nginx", "namespace": namespace}}]}),
    );
    let patch = json!({"metadata": {"labels": {"podtemplate": "patched"}}});
    let patched = templates.strategic("nginx", &patch).await;
    assert_contains(&patched.expect("patched"), &patch);
    assert_contains(&templates.get("nginx").await.expect("got"), &patch);
    templates.delete("nginx").await.expect("deleted");
    assert!(items(&templates.labelled("").await.expect("a list")).is_empty());
    let mut object = template("");
    object["metadata"] = json!({});
    Lifecycle::of(POD_TEMPLATE, object)
        .changed_by(json!({"template": {"metadata": {"labels": {"name": "other"}}}}))
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn a_pod_template_is_replaced(cluster: &Cluster) {
    let templates = cluster.within(&cluster.namespace().await, POD_TEMPLATE);
    let made = templates.create(&template("one")).await.expect("created");
    let change = json!({
        "metadata": {"annotations": {"updated": "true"}},
        "template": {"spec": {"containers": [{"name": "nginx", "image": "other"}]}},
    });
    let updated = templates.update("one", "", &change).await.expect("updated");
    assert_contains(&updated, &change);
    assert!(version(&updated) > version(&made));
}

pub async fn a_collection_of_pod_templates_is_deleted(cluster: &Cluster) {
    let templates = cluster.within(&cluster.namespace().await, POD_TEMPLATE);
    for name in ["one", "two", "three"] {
        templates.create(&template(name)).await.expect("created");
    }
    let found = templates.labelled("podtemplate-set=true").await;
    assert_eq!(items(&found.expect("a list")).len(), 3);
    templates
        .delete_labelled("podtemplate-set=true")
        .await
        .expect("the collection deleted");
    let left = templates.labelled("podtemplate-set=true").await;
    assert!(items(&left.expect("a list")).is_empty());
}
