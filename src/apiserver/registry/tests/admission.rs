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

#[tokio::test]
async fn a_quota_is_charged_and_refuses_what_does_not_fit() {
    let server = Harness::start().await;
    let quotas = "/api/v1/namespaces/test/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "1", "requests.cpu": "1"}}});
    let made = server.post(quotas, &quota).await.expect(201);
    let maps = "/api/v1/namespaces/test/configmaps";
    let map = |name: &str| json!({"metadata": {"name": name}});
    settle(&server, quotas, |list| !list["items"][0].is_null()).await;
    // Nobody has counted yet.
    let message = server.post(maps, &map("a")).await.message(403);
    assert_eq!(
        message,
        "configmaps \"a\" is forbidden: status unknown for quota: q, resources: configmaps"
    );
    let mut counted = made.clone();
    counted["status"] = json!({"hard": {"configmaps": "1", "requests.cpu": "1"}, "used": {"configmaps": "0", "requests.cpu": "0"}});
    server
        .put(&format!("{quotas}/q/status"), &counted)
        .await
        .expect(200);
    // At once: whether the cache has seen that does not matter.
    let dry = format!("{maps}?dryRun=All");
    server.post(&dry, &map("a")).await.expect(201);
    server.post(maps, &map("a")).await.expect(201);
    let used = server.get(&format!("{quotas}/q")).await.expect(200);
    assert_eq!(used["status"]["used"]["configmaps"], "1");
    let message = server.post(maps, &map("b")).await.message(403);
    assert_eq!(
        message,
        "configmaps \"b\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=1, limited: configmaps=1"
    );
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let message = server
        .post("/api/v1/namespaces/test/pods", &pod)
        .await
        .message(403);
    assert_eq!(
        message,
        "pods \"p\" is forbidden: failed quota: q: must specify requests.cpu for: c"
    );
}

#[tokio::test]
async fn a_namespaces_labels_say_what_its_pods_may_do() {
    let server = Harness::start().await;
    let strict = json!({"metadata": {"name": "strict", "labels": {"pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/warn": "restricted"}}});
    server.post("/api/v1/namespaces", &strict).await.expect(201);
    let account = json!({"metadata": {"name": "default"}});
    server
        .post("/api/v1/namespaces/strict/serviceaccounts", &account)
        .await
        .expect(201);
    let pods = "/api/v1/namespaces/strict/pods";
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}});
    let message = server.post(pods, &pod).await.message(403);
    assert_eq!(
        message,
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    pod["spec"]["hostNetwork"] = false.into();
    let answer = server.post(pods, &pod).await;
    let warnings = answer.warnings();
    answer.expect(201);
    assert!(
        warnings[0].contains(
            "would violate PodSecurity \\\"restricted:latest\\\": allowPrivilegeEscalation != false"
        ),
        "{warnings:?}"
    );
    let odd =
        json!({"metadata": {"name": "odd", "labels": {"pod-security.kubernetes.io/enforce": "x"}}});
    server.post("/api/v1/namespaces", &odd).await.message(422);
}

/// Waits until a cached list is as it should be.
async fn settle(server: &Harness, path: &str, done: impl Fn(&Value) -> bool) {
    for _ in 0..1000 {
        let path = format!("{path}?resourceVersion=0");
        if done(&server.get(&path).await.expect(200)) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{path} never came to be as expected");
}

#[tokio::test]
async fn what_a_gate_guards_is_dropped_while_it_is_off_and_kept_once_it_was_there() {
    const PODS: &str = "/api/v1/namespaces/test/pods";
    let pod = json!({"metadata": {"name": "a"}, "spec": {
        "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGUSR1"}}],
        "os": {"name": "linux"},
        "volumes": [{"name": "v", "emptyDir": {"mode": 448}}]}});
    let off = Harness::start().await;
    let made = off.post(PODS, &pod).await.expect(201);
    assert_eq!(made["spec"]["volumes"][0]["emptyDir"], json!({}));
    assert!(made["spec"]["containers"][0].get("lifecycle").is_none());

    let on = Harness::with(|options| {
        for gate in ["ContainerStopSignals", "EmptyDirVolumeMode"] {
            options.feature_gates.insert(gate.to_owned(), true);
        }
    })
    .await;
    let made = on.post(PODS, &pod).await.expect(201);
    assert_eq!(made["spec"]["volumes"][0]["emptyDir"]["mode"], 448);
    assert_eq!(
        made["spec"]["containers"][0]["lifecycle"]["stopSignal"],
        "SIGUSR1"
    );
}
