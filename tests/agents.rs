//! What upstream's kubelet and proxy need of an API server, asked as they ask: in protobuf, by watches with selectors.

use http::Method;
use integration::asking::{LIST_BY_WATCH, MAPS, ask, initial, map, mk_server, next, patch, watch};
use integration::connection::Connection;
use integration::process::Server;
use serde_json::{Value, json};

const NODE: &str = "n1";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A node's own user, and the node.
async fn mk_node(server: &Server) -> Connection {
    let kubelet = server
        .connect_as(&format!("system:node:{NODE}"), Some("system:nodes"))
        .await;
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}});
    ask(&kubelet, Method::POST, "/api/v1/nodes", node.clone())
        .await
        .expect(201);
    // After a restart it is there already.
    let again = ask(&kubelet, Method::POST, "/api/v1/nodes", node)
        .await
        .expect(409);
    assert_eq!(again["reason"], "AlreadyExists");
    kubelet
}

#[tokio::test]
async fn a_kubelet_keeps_its_node_and_its_lease() {
    let Some(server) = mk_server().await else {
        return;
    };
    let kubelet = mk_node(&server).await;
    let path = format!("/api/v1/nodes/{NODE}");
    let node = ask(
        &kubelet,
        Method::GET,
        &format!("{path}?resourceVersion=0"),
        Value::Null,
    )
    .await
    .expect(200);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        "$setElementOrder/conditions": [{"type": "Ready"}], "capacity": {"cpu": "2", "memory": "1Gi", "pods": "10"}}});
    let ready = patch(&kubelet, &format!("{path}/status"), status)
        .await
        .expect(200);
    assert_eq!(ready["status"]["conditions"][0]["type"], "Ready");
    let other = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n2"}});
    ask(&kubelet, Method::POST, "/api/v1/nodes", other)
        .await
        .expect(403);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    ask(
        &kubelet,
        Method::GET,
        &format!("{leases}/{NODE}"),
        Value::Null,
    )
    .await
    .expect(404);
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": NODE, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"]}]},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let mut held = ask(&kubelet, Method::POST, leases, lease).await.expect(201);
    held["spec"]["renewTime"] = "2026-01-01T00:00:10.000000Z".into();
    ask(&kubelet, Method::PUT, &format!("{leases}/{NODE}"), held)
        .await
        .expect(200);
    let csi = json!({"kind": "CSINode", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": NODE}, "spec": {"drivers": []}});
    ask(
        &kubelet,
        Method::POST,
        "/apis/storage.k8s.io/v1/csinodes",
        csi,
    )
    .await
    .expect(201);
    let slices =
        format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName={NODE}");
    ask(&kubelet, Method::DELETE, &slices, Value::Null)
        .await
        .expect(200);
    for watched in [
        format!("/api/v1/nodes?fieldSelector=metadata.name={NODE}&{LIST_BY_WATCH}"),
        format!("/api/v1/services?fieldSelector=spec.clusterIP!=None&{LIST_BY_WATCH}"),
        format!("/apis/node.k8s.io/v1/runtimeclasses?{LIST_BY_WATCH}"),
        format!("/apis/storage.k8s.io/v1/csidrivers?{LIST_BY_WATCH}"),
    ] {
        let mut frames = watch(&kubelet, &watched).await;
        initial(&mut frames).await;
    }
}

#[tokio::test]
async fn a_kubelet_runs_the_pods_of_its_node() {
    let Some(server) = mk_server().await else {
        return;
    };
    let kubelet = mk_node(&server).await;
    let admin = server.connect().await;
    let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default", "namespace": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    ask(&admin, Method::POST, accounts, account)
        .await
        .expect(201);
    ask(&admin, Method::POST, MAPS, map("mounted", "1"))
        .await
        .expect(201);
    ask(&admin, Method::POST, MAPS, map("other", "1"))
        .await
        .expect(201);

    let mut frames = watch(
        &kubelet,
        &format!("/api/v1/pods?fieldSelector=spec.nodeName={NODE}&{LIST_BY_WATCH}"),
    )
    .await;
    assert!(initial(&mut frames).await.0.is_empty());
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "mounted"}}]}]}});
    let pod = ask(&admin, Method::POST, PODS, pod).await.expect(201);
    let uid = pod["metadata"]["uid"].clone();
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "default", "uid": uid},
        "target": {"kind": "Node", "name": NODE}});
    let scheduler = server.connect_as("system:kube-scheduler", None).await;
    ask(
        &scheduler,
        Method::POST,
        &format!("{PODS}/p/binding"),
        binding,
    )
    .await
    .expect(201);
    let (kind, bound) = next(&mut frames).await;
    assert_eq!(
        (kind.as_str(), &bound["spec"]["nodeName"]),
        ("ADDED", &json!(NODE))
    );

    // What its pods mention it may read, and nothing else.
    let mut mounted = watch(
        &kubelet,
        &format!("{MAPS}?fieldSelector=metadata.name=mounted&{LIST_BY_WATCH}"),
    )
    .await;
    assert_eq!(initial(&mut mounted).await.0.len(), 1);
    ask(&kubelet, Method::GET, &format!("{MAPS}/other"), Value::Null)
        .await
        .expect(403);
    let bound_to = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid});
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "spec": {"expirationSeconds": 3607, "audiences": ["https://kubernetes.default.svc.cluster.local"], "boundObjectRef": bound_to}});
    let token = ask(
        &kubelet,
        Method::POST,
        &format!("{accounts}/default/token"),
        request,
    )
    .await
    .expect(201);
    assert!(token["status"]["token"].is_string(), "{token}");

    let status = json!({"metadata": {"uid": uid}, "status": {"phase": "Running", "$setElementOrder/conditions": [{"type": "Ready"}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let running = patch(&kubelet, &format!("{PODS}/p/status"), status.clone())
        .await
        .expect(200);
    assert_eq!(running["status"]["phase"], "Running");
    // It is another pod by now.
    let mut stale = status;
    stale["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    patch(&kubelet, &format!("{PODS}/p/status"), stale)
        .await
        .expect(422);
    let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "p.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default", "uid": uid}, "reason": "Started",
        "message": "Container started", "type": "Normal", "count": 1, "source": {"component": "kubelet", "host": NODE}});
    ask(
        &kubelet,
        Method::POST,
        "/api/v1/namespaces/default/events",
        event,
    )
    .await
    .expect(201);
    let again = patch(
        &kubelet,
        "/api/v1/namespaces/default/events/p.1",
        json!({"count": 2}),
    )
    .await
    .expect(200);
    assert_eq!(again["count"], 2);

    let marked = ask(&admin, Method::DELETE, &format!("{PODS}/p"), Value::Null)
        .await
        .expect(200);
    assert!(
        marked["metadata"]["deletionTimestamp"].is_string(),
        "{marked}"
    );
    let options = |uid: &Value| json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    let other = json!("00000000-0000-4000-8000-000000000000");
    ask(
        &kubelet,
        Method::DELETE,
        &format!("{PODS}/p"),
        options(&other),
    )
    .await
    .expect(409);
    ask(
        &kubelet,
        Method::DELETE,
        &format!("{PODS}/p"),
        options(&uid),
    )
    .await
    .expect(200);
    ask(&admin, Method::GET, &format!("{PODS}/p"), Value::Null)
        .await
        .expect(404);

    let node = ask(
        &kubelet,
        Method::GET,
        &format!("/api/v1/nodes/{NODE}"),
        Value::Null,
    )
    .await
    .expect(200);
    let mirror = json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "static-n1", "namespace": "default", "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": true}]},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}});
    ask(&kubelet, Method::POST, PODS, mirror).await.expect(201);
}

#[tokio::test]
async fn a_proxy_watches_services_and_writes_events() {
    let Some(server) = mk_server().await else {
        return;
    };
    let proxy = server.connect_as("system:kube-proxy", None).await;
    for watched in [
        format!("/api/v1/nodes?fieldSelector=metadata.name={NODE}&{LIST_BY_WATCH}"),
        format!(
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name&{LIST_BY_WATCH}"
        ),
        format!("/apis/networking.k8s.io/v1/servicecidrs?{LIST_BY_WATCH}"),
    ] {
        let mut frames = watch(&proxy, &watched).await;
        initial(&mut frames).await;
    }
    let services = format!(
        "/api/v1/services?labelSelector=!service.kubernetes.io/service-proxy-name&fieldSelector=spec.clusterIP!=None&{LIST_BY_WATCH}"
    );
    let mut frames = watch(&proxy, &services).await;
    assert_eq!(initial(&mut frames).await.0.len(), 1, "the server's own");
    let admin = server.connect().await;
    let service = |name: &str, address: Value| {
        json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
    };
    let path = "/api/v1/namespaces/default/services";
    ask(
        &admin,
        Method::POST,
        path,
        service("headless", json!("None")),
    )
    .await
    .expect(201);
    ask(
        &admin,
        Method::POST,
        path,
        service("with-address", Value::Null),
    )
    .await
    .expect(201);
    assert_eq!(
        next(&mut frames).await.1["metadata"]["name"],
        "with-address"
    );
    let event = json!({"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "n1.1", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-n1",
        "action": "StartKubeProxy", "reason": "Starting", "regarding": {"kind": "Node", "name": NODE}, "type": "Normal"});
    ask(
        &proxy,
        Method::POST,
        "/apis/events.k8s.io/v1/namespaces/default/events",
        event,
    )
    .await
    .expect(201);
    let core = ask(
        &admin,
        Method::GET,
        "/api/v1/namespaces/default/events/n1.1",
        Value::Null,
    )
    .await
    .expect(200);
    assert_eq!(core["involvedObject"]["name"], NODE);
    assert_eq!(core["reportingComponent"], "kube-proxy");
}
