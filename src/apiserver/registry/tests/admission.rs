//! What admission adds to and refuses of real requests.

use serde_json::{Value, json};

use super::harness::{Harness, pod};

const PODS: &str = "/api/v1/namespaces/test/pods";

#[tokio::test]
async fn a_namespaces_limits_fill_in_and_bound_containers() {
    let server = Harness::start().await;
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}}]}});
    server
        .post("/api/v1/namespaces/test/limitranges", &range)
        .await
        .expect(201);
    let made = eventually(&server, "a").await;
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(
        *resources,
        json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}})
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    let mut big = pod("b");
    big["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
    let message = server.post(PODS, &big).await.message(403);
    assert!(
        message.contains("maximum cpu usage per Container is 1, but limit is 2"),
        "{message}"
    );
}

/// Admission reads caches: what was made a moment ago may be seen by the next request only.
async fn eventually(server: &Harness, name: &str) -> Value {
    for _ in 0..100 {
        let made = server
            .post(&format!("{PODS}?dryRun=All"), &pod(name))
            .await
            .expect(201);
        if !made["spec"]["containers"][0]["resources"]["limits"].is_null() {
            return made;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("the limits are not seen");
}

#[tokio::test]
async fn priorities_come_from_classes() {
    let server = Harness::start().await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    server
        .post("/apis/scheduling.k8s.io/v1/priorityclasses", &class)
        .await
        .expect(201);
    let mut important = pod("a");
    important["spec"]["priorityClassName"] = "high".into();
    let made = server.post(PODS, &important).await.expect(201);
    assert_eq!(made["spec"]["priority"], 1000);
    assert_eq!(made["spec"]["preemptionPolicy"], "PreemptLowerPriority");
    let mut unknown = pod("b");
    unknown["spec"]["priorityClassName"] = "none".into();
    assert_eq!(
        server.post(PODS, &unknown).await.message(403),
        "pods \"b\" is forbidden: no PriorityClass with name none was found"
    );
    let system = json!({"metadata": {"name": "system-x"}, "value": 1});
    let refused = server
        .post("/apis/scheduling.k8s.io/v1/priorityclasses", &system)
        .await;
    assert_eq!(refused.code, 422);
}

#[tokio::test]
async fn a_pod_without_an_account_to_run_as_is_refused() {
    let server = Harness::start().await;
    let mut somebody = pod("a");
    somebody["spec"]["serviceAccountName"] = "nobody".into();
    assert_eq!(
        server.post(PODS, &somebody).await.message(403),
        "pods \"a\" is forbidden: error looking up service account test/nobody: serviceaccount \"nobody\" not found"
    );
    let made = server.post(PODS, &pod("b")).await.expect(201);
    let volume = &made["spec"]["volumes"][0];
    assert!(
        volume["name"]
            .as_str()
            .unwrap()
            .starts_with("kube-api-access-")
    );
    assert_eq!(volume["projected"]["sources"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn disabled_plugins_do_nothing() {
    let server = Harness::with(|options| {
        options.admission.disable = vec![
            "ServiceAccount".to_owned(),
            "DefaultTolerationSeconds".to_owned(),
        ];
    })
    .await;
    let made = server.post(PODS, &pod("a")).await.expect(201);
    assert!(made["spec"].get("volumes").is_none());
    assert!(made["spec"].get("tolerations").is_none());
}
