//! The whole life of a cluster-wide kind of configuration: what policies, bindings and their like have in common.

use http::Method;
use serde_json::{Value, json};

use super::cluster::{Cluster, MERGE_PATCH, unique};

/// Makes, reads, lists, watches, patches, updates and deletes objects of `plural`, alone and together.
pub async fn whole_life(plural: &str, spec: Value, patch: Value, patched: (&str, Value)) {
    let cluster = Cluster::join().await;
    let group = "/apis/admissionregistration.k8s.io";
    let found = cluster.get("/apis").await;
    let has = |list: &Value, field: &str, name: &str| {
        list.as_array()
            .is_some_and(|items| items.iter().any(|item| item[field] == name))
    };
    assert!(has(
        &found["groups"],
        "name",
        "admissionregistration.k8s.io"
    ));
    assert!(has(&cluster.get(group).await["versions"], "version", "v1"));
    let resources = cluster.get(&format!("{group}/v1")).await;
    assert!(has(&resources["resources"], "name", plural));

    let path = format!("{group}/v1/{plural}");
    let label = unique("label");
    let selected = format!("{path}?labelSelector=life%3D{label}");
    let object =
        json!({"metadata": {"generateName": "life-", "labels": {"life": label}}, "spec": spec});
    let mut names = Vec::new();
    for _ in 0..3 {
        let made = cluster.create(&path, &object).await;
        names.push(
            made["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned(),
        );
    }
    let one = format!("{path}/{}", names[0]);
    let read = cluster.get(&one).await;
    assert_eq!(read["metadata"]["generation"], 1);
    assert_eq!(
        cluster.ask(Method::POST, &path, &read).await.0,
        500,
        "a version on creation"
    );
    let list = cluster.get(&selected).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(3));
    let revision = list["metadata"]["resourceVersion"].as_str().expect("one");
    let mut events = cluster
        .watch(&format!("{selected}&watch=true&resourceVersion={revision}"))
        .await;

    let mut change = json!({"metadata": {"annotations": {"patched": "true"}}});
    change["spec"] = patch;
    let after = cluster.patch(&one, MERGE_PATCH, &change).await;
    assert_eq!(after["metadata"]["annotations"]["patched"], "true");
    assert_eq!(after.pointer(patched.0), Some(&patched.1));
    assert_eq!(after["metadata"]["generation"], 2);
    let mut update = after.clone();
    update["metadata"]["annotations"]["updated"] = "true".into();
    update["metadata"]["resourceVersion"] = "".into();
    let unconditional = cluster.ask(Method::PUT, &one, &update).await;
    assert_eq!(
        unconditional.0, 422,
        "updates are conditional: {}",
        unconditional.1
    );
    let updated = loop {
        // A controller may write a status in between.
        let mut update = cluster.get(&one).await;
        update["metadata"]["annotations"]["updated"] = "true".into();
        let (code, answer) = cluster.ask(Method::PUT, &one, &update).await;
        if code != 409 {
            assert_eq!(code, 200, "{answer}");
            break answer;
        }
    };
    assert_eq!(updated["metadata"]["annotations"]["updated"], "true");
    assert_eq!(updated["metadata"]["generation"], 2, "only words changed");
    for field in ["patched", "updated"] {
        loop {
            let (kind, object) = events.next().await;
            assert_eq!(kind, "MODIFIED");
            if object["metadata"]["annotations"][field] == "true" {
                assert_eq!(object["metadata"]["name"], names[0].as_str());
                break;
            }
        }
    }

    cluster.delete(&one).await;
    cluster.gone(&one).await;
    loop {
        let (kind, object) = events.next().await;
        if kind == "DELETED" {
            assert_eq!(object["metadata"]["name"], names[0].as_str());
            break;
        }
    }
    let list = cluster.get(&selected).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    cluster.delete(&selected).await;
    let list = cluster.get(&selected).await;
    assert_eq!(list["items"], json!([]));
}
