//! Create, read, update, patch, delete.

use apimachinery::Value;
use http::Method;
use serde_json::json;

use super::harness::{Harness, config_map, pod};

const MAPS: &str = "/api/v1/namespaces/test/configmaps";
const PODS: &str = "/api/v1/namespaces/test/pods";

#[tokio::test]
async fn a_pod_is_created_with_defaults_and_read_back() {
    let server = Harness::start().await;
    let created = server.post(PODS, &pod("a")).await.expect(201);
    assert_eq!(
        created["status"],
        json!({"phase": "Pending", "qosClass": "BestEffort"})
    );
    assert_eq!(created["spec"]["restartPolicy"], "Always");
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    assert_eq!(created["spec"]["tolerations"][0]["tolerationSeconds"], 300);
    assert_eq!(created["spec"]["priority"], 0);
    let read = server.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(read, created);
    assert!(!read["metadata"]["uid"].as_str().unwrap().is_empty());
    assert_eq!(read["metadata"]["namespace"], "test");
}

#[tokio::test]
async fn what_does_not_exist_or_exists_twice_is_refused_in_upstreams_words() {
    let server = Harness::start().await;
    let missing = server.get(&format!("{PODS}/x")).await;
    assert_eq!(missing.message(404), "pods \"x\" not found");
    server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let twice = server.post(MAPS, &config_map("a", json!({}))).await;
    assert_eq!(twice.message(409), "configmaps \"a\" already exists");
    let nowhere = server
        .post(
            "/api/v1/namespaces/no/configmaps",
            &config_map("a", json!({})),
        )
        .await;
    assert_eq!(nowhere.message(404), "namespaces \"no\" not found");
    let elsewhere = json!({"metadata": {"name": "a", "namespace": "other"}});
    assert_eq!(
        server.post(MAPS, &elsewhere).await.message(400),
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

#[tokio::test]
async fn a_stale_version_conflicts_and_no_version_does_not() {
    let server = Harness::start().await;
    let path = format!("{MAPS}/a");
    let first = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let mut newer = first.clone();
    newer["data"]["k"] = "2".into();
    let second = server.put(&path, &newer).await.expect(200);
    assert_ne!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let mut stale = first.clone();
    stale["data"]["k"] = "3".into();
    assert_eq!(
        server.put(&path, &stale).await.message(409),
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    server
        .put(&path, &config_map("a", json!({})))
        .await
        .expect(200);
}

#[tokio::test]
async fn an_update_that_changes_nothing_writes_nothing() {
    let server = Harness::start().await;
    let first = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let again = server.put(&format!("{MAPS}/a"), &first).await.expect(200);
    assert_eq!(again, first);
}

#[tokio::test]
async fn every_patch_changes_the_object() {
    let server = Harness::start().await;
    let path = format!("{PODS}/a");
    server.post(PODS, &pod("a")).await.expect(201);
    let merged = server
        .patch(&path, "merge", &json!({"metadata": {"labels": {"a": "1"}}}))
        .await
        .expect(200);
    assert_eq!(merged["metadata"]["labels"]["a"], "1");
    let patch = json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}]);
    let patched = server.patch(&path, "json", &patch).await.expect(200);
    assert_eq!(patched["metadata"]["labels"], json!({"a": "1", "b": "2"}));
    let patch = json!({"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}});
    let strategic = server.patch(&path, "strategic", &patch).await.expect(200);
    assert_eq!(strategic["spec"]["containers"][0]["image"], "nginx:2");
    assert_eq!(
        strategic["spec"]["containers"][0]["imagePullPolicy"],
        "Always"
    );
    assert_eq!(strategic["metadata"]["generation"], 2);
    let odd = server
        .ask(
            Method::PATCH,
            &path,
            &[("content-type", "text/plain")],
            "{}",
        )
        .await;
    assert_eq!(odd.code, 415);
}

#[tokio::test]
async fn status_is_its_own_endpoint() {
    let server = Harness::start().await;
    let mut made = server.post(PODS, &pod("a")).await.expect(201);
    made["status"] = json!({"phase": "Running"});
    made["metadata"]["labels"] = json!({"x": "y"});
    let spec_only = server.put(&format!("{PODS}/a"), &made).await.expect(200);
    assert_eq!(spec_only["status"]["phase"], "Pending");
    assert_eq!(spec_only["metadata"]["labels"]["x"], "y");
    let mut status = spec_only.clone();
    status["status"] = json!({"phase": "Running"});
    status["spec"]["restartPolicy"] = "Never".into();
    let updated = server
        .put(&format!("{PODS}/a/status"), &status)
        .await
        .expect(200);
    assert_eq!(updated["status"]["phase"], "Running");
    assert_eq!(updated["spec"]["restartPolicy"], "Always");
}

#[tokio::test]
async fn what_is_answered_and_not_stored_has_no_table() {
    let server = Harness::start().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review =
        json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}).to_string();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let ask = |accept: String| {
        let review = review.clone();
        let server = &server;
        async move {
            let headers = [("accept", accept.as_str())];
            server.ask(Method::POST, path, &headers, review).await
        }
    };
    assert_eq!(
        ask(table.to_owned()).await.message(406),
        "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
    );
    let answer = ask(format!("{table},application/json")).await.expect(201);
    assert_eq!(answer["kind"], "SelfSubjectAccessReview");
}

#[tokio::test]
async fn deleting_answers_with_a_status_and_the_object_is_gone() {
    let server = Harness::start().await;
    let made = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let path = format!("{MAPS}/a");
    let wrong = json!({"preconditions": {"uid": "other"}});
    assert!(
        server
            .delete_with(&path, &wrong)
            .await
            .message(409)
            .contains("does not match the UID in record")
    );
    // Nothing is deleted on conditions that are not understood.
    let misfit = json!({"preconditions": {"uid": 5}});
    let message = server.delete_with(&path, &misfit).await.message(400);
    assert!(
        message.contains("cannot unmarshal number into"),
        "{message}"
    );
    let status = server.delete(&path).await.expect(200);
    assert_eq!(
        status,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}})
    );
    server.get(&path).await.message(404);
    server.delete(&path).await.message(404);
}

#[tokio::test]
async fn finalizers_keep_an_object_until_the_last_is_taken_off() {
    let server = Harness::start().await;
    let mut map = config_map("a", json!({}));
    map["metadata"]["finalizers"] = json!(["example.com/x"]);
    server.post(MAPS, &map).await.expect(201);
    let path = format!("{MAPS}/a");
    let marked = server.delete(&path).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let patch = json!({"metadata": {"finalizers": null}});
    server.patch(&path, "merge", &patch).await.expect(200);
    server.get(&path).await.message(404);
}

#[tokio::test]
async fn foreground_deletion_adds_a_finalizer_and_answers_accepted() {
    let server = Harness::start().await;
    server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let options = json!({"propagationPolicy": "Foreground"});
    let marked = server
        .delete_with(&format!("{MAPS}/a"), &options)
        .await
        .expect(202);
    assert_eq!(
        marked["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let server = Harness::start().await;
    for name in ["a", "b", "c"] {
        let labels = json!({"keep": (name == "c").to_string()});
        server
            .post(MAPS, &config_map(name, labels))
            .await
            .expect(201);
    }
    let deleted = server
        .delete(&format!("{MAPS}?labelSelector=keep%3Dfalse"))
        .await
        .expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    let left = server.get(MAPS).await.expect(200);
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    let server = Harness::start().await;
    let made = server
        .post(&format!("{MAPS}?dryRun=All"), &config_map("a", json!({})))
        .await
        .expect(201);
    assert!(made["metadata"]["resourceVersion"].is_null());
    server.get(&format!("{MAPS}/a")).await.message(404);
    let first = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let mut next = first.clone();
    next["data"]["k"] = "2".into();
    let would = server
        .put(&format!("{MAPS}/a?dryRun=All"), &next)
        .await
        .expect(200);
    assert_eq!(would["data"]["k"], "2");
    server
        .delete(&format!("{MAPS}/a?dryRun=All"))
        .await
        .expect(200);
    assert_eq!(server.get(&format!("{MAPS}/a")).await.expect(200), first);
    assert_eq!(
        server.post(&format!("{MAPS}?dryRun=x"), &first).await.code,
        422
    );
}

#[tokio::test]
async fn names_are_generated() {
    let server = Harness::start().await;
    let map = json!({"metadata": {"generateName": "web-"}});
    let made = server.post(MAPS, &map).await.expect(201);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
}

#[tokio::test]
async fn bad_bodies_get_upstreams_answers() {
    let server = Harness::start().await;
    let ask = |body: &'static str| server.ask(Method::POST, PODS, &[], body);
    assert!(
        ask("{")
            .await
            .message(400)
            .contains("unexpected end of JSON input")
    );
    let other = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"}}"#;
    assert_eq!(
        ask(other).await.message(400),
        "the API version in the data (apps/v1) does not match the expected API version (v1)"
    );
    let unknown = r#"{"apiVersion":"v1","kind":"Nothing"}"#;
    assert!(
        ask(unknown).await.message(400).starts_with(
            "Nothing in version \"v1\" cannot be handled as a Pod: no kind \"Nothing\""
        )
    );
    let strict =
        r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}],"foo":1}}"#;
    let answer = server
        .ask(
            Method::POST,
            &format!("{PODS}?fieldValidation=Strict"),
            &[],
            strict,
        )
        .await;
    assert_eq!(
        answer.message(400),
        "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.foo\""
    );
    let warned = server.ask(Method::POST, PODS, &[], strict).await;
    assert_eq!(
        warned.warnings(),
        ["299 - \"unknown field \\\"spec.foo\\\"\""]
    );
    let media = server
        .ask(Method::POST, PODS, &[("content-type", "text/plain")], "{}")
        .await;
    assert_eq!(media.code, 415);
    let accept = server
        .ask(Method::GET, PODS, &[("accept", "text/html")], "")
        .await;
    assert_eq!(accept.code, 406);
}

#[tokio::test]
async fn paths_that_are_not_served_are_refused() {
    let server = Harness::start().await;
    assert_eq!(server.get("/api/v1/nothings").await.code, 404);
    assert_eq!(server.get("/api/v1/pods/a").await.code, 404);
    assert_eq!(server.post("/api/v1/pods", &pod("a")).await.code, 405);
    assert_eq!(server.get(&format!("{PODS}/a/nothing")).await.code, 404);
    assert_eq!(server.delete("/api/v1/pods").await.code, 405);
}

#[tokio::test]
async fn a_namespace_is_deleted_in_two_phases() {
    let server = Harness::start().await;
    let path = "/api/v1/namespaces/test";
    let dying = server.delete(path).await.expect(200);
    assert_eq!(dying["status"]["phase"], "Terminating");
    let refused = server.post(MAPS, &config_map("late", json!({}))).await;
    assert_eq!(
        refused.message(403),
        "configmaps \"late\" is forbidden: unable to create new content in namespace test because it is being terminated"
    );
    let mut finalized: Value = dying.clone();
    finalized["spec"]["finalizers"] = json!([]);
    server
        .put(&format!("{path}/finalize"), &finalized)
        .await
        .expect(200);
    server.get(path).await.message(404);
    let immortal = server.delete("/api/v1/namespaces/default").await;
    assert!(matches!(immortal.code, 403 | 404));
}

#[tokio::test]
async fn every_writer_owns_what_it_set() {
    let server = Harness::start().await;
    let made = server
        .post(&format!("{PODS}?fieldManager=kubectl-run"), &pod("a"))
        .await
        .expect(201);
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["manager"], &entry["operation"]),
        (&json!("kubectl-run"), &json!("Update"))
    );
    let spec = &entry["fieldsV1"]["f:spec"];
    assert_eq!(spec["f:dnsPolicy"], json!({}));
    assert!(
        spec.get("f:tolerations").is_none(),
        "admission owns nothing"
    );
    let patch = json!({"status": {"phase": "Running"}});
    let headers = [
        ("content-type", "application/merge-patch+json"),
        ("user-agent", "kubelet/v1.37.0"),
    ];
    let path = format!("{PODS}/a/status");
    let patched = server
        .ask(Method::PATCH, &path, &headers, patch.to_string())
        .await
        .expect(200);
    let entry = &patched["metadata"]["managedFields"][1];
    assert_eq!(
        (&entry["manager"], &entry["subresource"]),
        (&json!("kubelet"), &json!("status"))
    );
    assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

#[tokio::test]
async fn applying_creates_merges_prunes_and_conflicts() {
    let server = Harness::start().await;
    let path = |manager: &str, more: &str| format!("{MAPS}/a?fieldManager={manager}{more}");
    let config = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let made = server
        .patch(
            &path("one", ""),
            "apply",
            &config(json!({"a": "1", "b": "1"})),
        )
        .await
        .expect(201);
    assert_eq!(made["data"], json!({"a": "1", "b": "1"}));
    let same = server
        .patch(
            &path("one", ""),
            "apply",
            &config(json!({"a": "1", "b": "1"})),
        )
        .await
        .expect(200);
    assert_eq!(same, made);
    let refused = server
        .patch(&path("two", ""), "apply", &config(json!({"a": "2"})))
        .await;
    assert_eq!(
        refused.message(409),
        "Apply failed with 1 conflict: conflict with \"one\": .data.a"
    );
    let forced = server
        .patch(
            &path("two", "&force=true"),
            "apply",
            &config(json!({"a": "2"})),
        )
        .await
        .expect(200);
    assert_eq!(forced["data"], json!({"a": "2", "b": "1"}));
    let pruned = server
        .patch(&path("one", ""), "apply", &config(json!({})))
        .await
        .expect(200);
    assert_eq!(pruned["data"], json!({"a": "2"}));
    let nameless = server
        .patch(&format!("{MAPS}/a"), "apply", &config(json!({})))
        .await;
    assert_eq!(nameless.code, 422);
}

#[tokio::test]
async fn services_get_addresses_and_ports_once_each() {
    let server = Harness::start().await;
    let services = "/api/v1/namespaces/test/services";
    let service = |name: &str, more: Value| {
        let mut spec = json!({"ports": [{"port": 80}], "selector": {"a": "b"}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let plain = server
        .post(services, &service("a", json!({})))
        .await
        .expect(201);
    let address = plain["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.96."), "{address}");
    assert_eq!(plain["spec"]["clusterIPs"], json!([address]));
    assert_eq!(plain["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(plain["status"], json!({"loadBalancer": {}}));
    let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
    let taken = server.get(&path).await.expect(200);
    assert_eq!(taken["spec"]["parentRef"]["name"], "a");
    let again = server
        .post(services, &service("b", json!({"clusterIP": address})))
        .await;
    let message = again.message(422);
    assert!(
        message.contains("failed to allocate IP")
            && message.contains("provided IP is already allocated"),
        "{message}"
    );
    let outside = server
        .post(services, &service("b", json!({"clusterIP": "192.168.0.1"})))
        .await;
    assert!(outside.message(422).contains("is not in the valid range"));
    let node = server
        .post(services, &service("n", json!({"type": "NodePort"})))
        .await
        .expect(201);
    let port = node["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert!((30_086..=32_767).contains(&port));
    let clash = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let clash = server
        .post(services, &service("m", clash))
        .await
        .message(422);
    assert!(
        clash.contains("spec.ports[0].nodePort: Invalid value: ")
            && clash.ends_with("provided port is already allocated"),
        "{clash}"
    );
    server.delete(&format!("{services}/n")).await.expect(200);
    let free = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    server.post(services, &service("m", free)).await.expect(201);
    let headless = server
        .post(services, &service("h", json!({"clusterIP": "None"})))
        .await
        .expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let gone = server.delete(&format!("{services}/a")).await.expect(200);
    assert_eq!(gone["kind"], "Service");
    server.get(&path).await.message(404);
    let external = json!({"type": "ExternalName", "externalName": "example.com", "ports": []});
    let external = server
        .post(services, &service("x", external))
        .await
        .expect(201);
    assert!(external["spec"].get("clusterIP").is_none());
}

#[tokio::test]
async fn a_first_start_makes_the_boot_objects_and_a_second_writes_none() {
    let server = Harness::start().await;
    for path in [
        "/api/v1/namespaces/kube-node-lease",
        "/api/v1/namespaces/default/services/kubernetes",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller:storage-version-migrator-controller",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
        "/apis/networking.k8s.io/v1/ipaddresses/10.96.0.1",
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/exempt",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    ] {
        server.get(path).await.expect(200);
    }
    let service = server
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await
        .expect(200);
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    let role = server
        .get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view")
        .await
        .expect(200);
    let options = crate::Options::new(server.store.clone());
    let other = crate::Server::start(options).await.expect("starts");
    while !other.backend().is_synced() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let other = Harness::around(other, server.store.clone());
    assert_eq!(
        other
            .get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view")
            .await
            .expect(200),
        role
    );
    let mut slice = json!(null);
    for _ in 0..200 {
        let answer = other
            .get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
            .await;
        if answer.code == 200 {
            slice = answer.value;
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["127.0.0.1"]));
}

#[tokio::test]
async fn what_a_cluster_cannot_be_without_is_made_again_when_it_is_deleted() {
    let server = Harness::start().await;
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    server.delete(role).await.expect(200);
    for path in [
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
    ] {
        let before = server.eventually(path, |_| true).await;
        server.delete(path).await.expect(200);
        let again = |object: &Value| object["metadata"]["uid"] != before["metadata"]["uid"];
        let after = server.eventually(path, again).await;
        for field in ["spec", "subsets", "endpoints"] {
            assert_eq!(after[field], before[field], "{path}");
        }
    }
    let key = "/registry/namespaces/kube-node-lease";
    let deleted = store::Op::Delete {
        key: key.into(),
        range_end: None,
        prev_kv: false,
    };
    let txn = store::Txn {
        success: vec![deleted],
        ..store::Txn::default()
    };
    let namespace = "/api/v1/namespaces/kube-node-lease";
    let before = server.get(namespace).await.expect(200);
    store::Store::txn(&*server.store, txn)
        .await
        .expect("deleted");
    let again = |object: &Value| object["metadata"]["uid"] != before["metadata"]["uid"];
    server.eventually(namespace, again).await;
    server.get(role).await.message(404);
}

#[tokio::test]
async fn a_pod_is_bound_once_and_deleted_gracefully() {
    let server = Harness::start().await;
    let mut made = pod("a");
    made["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "wrong", "app": "a"});
    server.post(PODS, &made).await.expect(201);
    let labels = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "x"});
    let node = json!({"metadata": {"name": "n1", "labels": labels}});
    server.post("/api/v1/nodes", &node).await.expect(201);
    let binding = json!({"target": {"kind": "Node", "name": "n1"}});
    let path = format!("{PODS}/a/binding");
    let status = server.post(&path, &binding).await.expect(201);
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&json!("Status"), &json!("Success"))
    );
    let bound = server.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(
        bound["metadata"]["labels"],
        json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "app": "a"})
    );
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(
        server.post(&path, &binding).await.message(409),
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\""
    );
    let dying = server.delete(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(dying["metadata"]["deletionGracePeriodSeconds"], 30);
    let again = server.delete(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(again, dying);
    let sooner = json!({"gracePeriodSeconds": 5});
    let sooner = server
        .delete_with(&format!("{PODS}/a"), &sooner)
        .await
        .expect(200);
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    let now = json!({"gracePeriodSeconds": 0});
    server
        .delete_with(&format!("{PODS}/a"), &now)
        .await
        .expect(200);
    server.get(&format!("{PODS}/a")).await.message(404);
}

#[tokio::test]
async fn a_pod_is_validated_with_upstreams_causes() {
    let server = Harness::start().await;
    let bad = json!({"metadata": {"name": "a"}, "spec": {"restartPolicy": "Maybe", "containers": [
        {"name": "C", "image": "i", "ports": [{"containerPort": 0}], "volumeMounts": [{"name": "v", "mountPath": "/x"}]}]}});
    let status = server.post(PODS, &bad).await.expect(422);
    let causes: Vec<(&str, &str)> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| {
            (
                cause["field"].as_str().unwrap(),
                cause["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        causes,
        [
            ("spec.containers[0].name", "FieldValueInvalid"),
            (
                "spec.containers[0].ports[0].containerPort",
                "FieldValueRequired"
            ),
            (
                "spec.containers[0].volumeMounts[0].name",
                "FieldValueNotFound"
            ),
            ("spec.restartPolicy", "FieldValueNotSupported"),
        ]
    );
    let none = json!({"metadata": {"name": "a"}, "spec": {}});
    let message = server.post(PODS, &none).await.message(422);
    assert_eq!(
        message,
        "Pod \"a\" is invalid: spec.containers: Required value"
    );
    server.post(PODS, &pod("a")).await.expect(201);
    let patch = json!({"spec": {"dnsPolicy": "Default"}});
    let message = server
        .patch(&format!("{PODS}/a"), "merge", &patch)
        .await
        .message(422);
    assert!(
        message.starts_with(
            "Pod \"a\" is invalid: spec: Forbidden: pod updates may not change fields other than"
        ),
        "{message}"
    );
}

#[tokio::test]
async fn a_budget_without_room_refuses_an_eviction() {
    let server = Harness::start().await;
    let mut object = pod("a");
    object["metadata"]["labels"] = json!({"app": "x"});
    server.post(PODS, &object).await.expect(201);
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    server
        .patch(&format!("{PODS}/a/status"), "merge", &running)
        .await
        .expect(200);
    let budgets = "/apis/policy/v1/namespaces/test/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    let budget = server.post(budgets, &budget).await.expect(201);
    let observed = json!({"status": {"observedGeneration": budget["metadata"]["generation"], "disruptionsAllowed": 0,
        "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    server
        .patch(&format!("{budgets}/b/status"), "merge", &observed)
        .await
        .expect(200);
    let eviction = json!({"metadata": {"name": "a"}});
    let refused = server.post(&format!("{PODS}/a/eviction"), &eviction).await;
    assert_eq!(
        refused.message(429),
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    let more = json!({"status": {"disruptionsAllowed": 1}});
    server
        .patch(&format!("{budgets}/b/status"), "merge", &more)
        .await
        .expect(200);
    server
        .post(&format!("{PODS}/a/eviction"), &eviction)
        .await
        .expect(201);
    server.get(&format!("{PODS}/a")).await.message(404);
}
