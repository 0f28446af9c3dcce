//! RBAC, the Node authorizer and service-account tokens over the real registry.

use apimachinery::Value;
use serde_json::json;

use super::Harness;
use super::harness::{Answer, Client};

const DEFAULT: &str = "/api/v1/namespaces/default";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn post(client: &Client, path: &str, object: Value) -> Answer {
    client.send("POST", path, &[], object.to_string()).await
}

async fn made(client: &Client, path: &str, object: Value) -> Value {
    let answer = post(client, path, object).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    answer.json()
}

async fn as_bearer(client: &Client, token: &str, path: &str) -> Answer {
    let header = format!("Bearer {token}");
    client
        .send("GET", path, &[("authorization", header.as_str())], "")
        .await
}

#[tokio::test]
async fn a_service_account_may_what_its_bindings_say_and_ends_with_its_objects() {
    let harness = Harness::real().await;
    let admin = harness.client(Some(&harness.admin())).await;
    let nobody = harness.client(None).await;
    made(
        &admin,
        &format!("{DEFAULT}/serviceaccounts"),
        json!({"metadata": {"name": "sa"}}),
    )
    .await;
    let path = format!("{DEFAULT}/serviceaccounts/sa/token");
    let answer = post(&admin, &path, json!({"spec": {"expirationSeconds": 10}})).await;
    answer.is_status(
        422,
        "Invalid",
        "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes",
    );
    let issued = made(&admin, &path, json!({"spec": {}})).await;
    assert_eq!(issued["spec"]["expirationSeconds"], 3600);
    let token = issued["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let pods = format!("{DEFAULT}/pods");
    let answer = as_bearer(&nobody, &token, &pods).await;
    answer.is_status(
        403,
        "Forbidden",
        "pods is forbidden: User \"system:serviceaccount:default:sa\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
    );
    let binding = json!({"metadata": {"name": "view"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kube-scheduler"},
        "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "default"}]});
    made(
        &admin,
        &format!("{RBAC}/namespaces/default/rolebindings"),
        binding,
    )
    .await;
    // The authorizer follows the registry's cache, which follows the store.
    let mut code = 0;
    for _ in 0..100 {
        code = as_bearer(&nobody, &token, &pods).await.code;
        if code == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(code, 200);
    assert_eq!(
        as_bearer(&nobody, &token, "/api/v1/namespaces/kube-system/pods")
            .await
            .code,
        403
    );
    assert_eq!(as_bearer(&nobody, &token, "/api").await.code, 200);
}

#[tokio::test]
async fn upstreams_first_users_have_upstreams_rights() {
    let harness = Harness::real().await;
    let scheduler = harness
        .client(Some(
            &harness.authority.client("system:kube-scheduler", "x"),
        ))
        .await;
    assert_eq!(scheduler.get("/api/v1/pods").await.code, 200);
    assert_eq!(scheduler.get("/api/v1/secrets").await.code, 403);
    let manager = harness
        .client(Some(
            &harness
                .authority
                .client("system:kube-controller-manager", "x"),
        ))
        .await;
    assert_eq!(manager.get("/apis/apps/v1/replicasets").await.code, 200);
    let proxy = harness
        .client(Some(&harness.authority.client("system:kube-proxy", "x")))
        .await;
    assert_eq!(
        proxy
            .get("/apis/discovery.k8s.io/v1/endpointslices")
            .await
            .code,
        200
    );
    let nobody = harness.client(None).await;
    for (path, code) in [
        ("/livez", 200),
        ("/readyz", 200),
        ("/version", 200),
        ("/api", 403),
        ("/metrics", 403),
    ] {
        assert_eq!(nobody.get(path).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn nobody_can_grant_more_than_they_have() {
    let harness = Harness::real().await;
    let admin = harness.client(Some(&harness.admin())).await;
    let role = json!({"metadata": {"name": "roles"}, "rules": [
        {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles", "clusterrolebindings"]}]});
    made(&admin, &format!("{RBAC}/clusterroles"), role).await;
    let binding = |name: &str, role: &str| {
        json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]})
    };
    made(
        &admin,
        &format!("{RBAC}/clusterrolebindings"),
        binding("jane", "roles"),
    )
    .await;
    let jane = harness
        .client(Some(&harness.authority.client("jane", "x")))
        .await;
    let path = format!("{RBAC}/clusterroles");
    let wanted = json!({"metadata": {"name": "more"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]});
    let mut answer = post(&jane, &path, wanted.clone()).await;
    for _ in 0..100 {
        if answer.text().contains("attempting to grant") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        answer = post(&jane, &path, wanted.clone()).await;
    }
    assert_eq!(answer.code, 403, "{}", answer.text());
    assert!(
        answer
            .text()
            .contains("attempting to grant RBAC permissions not currently held"),
        "{}",
        answer.text()
    );
    let answer = post(
        &jane,
        &format!("{RBAC}/clusterrolebindings"),
        binding("master", "cluster-admin"),
    )
    .await;
    assert!(
        (answer.code, answer.text().contains("not currently held")) == (403, true),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_node_writes_its_own_objects_only() {
    let harness = Harness::real().await;
    let node = harness
        .client(Some(
            &harness.authority.client("system:node:n1", "system:nodes"),
        ))
        .await;
    made(&node, "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let answer = post(&node, "/api/v1/nodes", json!({"metadata": {"name": "n2"}})).await;
    answer.is_status(
        403,
        "Forbidden",
        "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"",
    );
    let lease = |name: &str| json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": name}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    made(&node, leases, lease("n1")).await;
    assert_eq!(post(&node, leases, lease("n2")).await.code, 403);
    assert_eq!(
        node.get("/api/v1/namespaces/kube-system/secrets")
            .await
            .code,
        403
    );
    assert_eq!(
        node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
            .await
            .code,
        200
    );
}

fn node(labels: Value) -> Value {
    json!({"metadata": {"name": "n1", "labels": labels}})
}

async fn patched(client: &Client, path: &str, change: Value) -> Answer {
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    client
        .send("PATCH", path, &headers, change.to_string())
        .await
}

#[tokio::test]
async fn a_node_labels_itself_with_what_is_a_kubelets_alone() {
    let harness = Harness::real().await;
    let admin = harness.client(Some(&harness.admin())).await;
    let identity = harness.authority.client("system:node:n1", "system:nodes");
    let kubelet = harness.client(Some(&identity)).await;
    let refused = post(
        &kubelet,
        "/api/v1/nodes",
        node(json!({"node-role.kubernetes.io/control-plane": "", "a.k8s.io/b": "", "kubernetes.io/os": "linux"})),
    )
    .await;
    refused.is_status(
        403,
        "Forbidden",
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to set the following labels: a.k8s.io/b, node-role.kubernetes.io/control-plane",
    );
    made(
        &kubelet,
        "/api/v1/nodes",
        node(json!({"kubernetes.io/os": "linux", "example.com/mine": "1", "node.kubernetes.io/x": "1"})),
    )
    .await;
    let path = "/api/v1/nodes/n1";
    let label = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "1"}}});
    patched(&kubelet, path, label.clone()).await.is_status(
        403,
        "Forbidden",
        "nodes \"n1\" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/a",
    );
    assert_eq!(patched(&admin, path, label).await.code, 200);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let why = "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify taints";
    for path in [path, "/api/v1/nodes/n1/status"] {
        let refused = patched(&kubelet, path, taint.clone()).await;
        refused.is_status(403, "Forbidden", why);
    }
    let owner = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]}});
    patched(&kubelet, path, owner).await.is_status(
        403,
        "Forbidden",
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify ownerReferences",
    );
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let path = "/api/v1/nodes/n1/status";
    assert_eq!(patched(&kubelet, path, status).await.code, 200);
}

#[tokio::test]
async fn a_node_makes_mirrors_of_its_own_pods_alone() {
    let harness = Harness::real().await;
    let admin = harness.client(Some(&harness.admin())).await;
    let account = json!({"metadata": {"name": "default"}});
    made(&admin, &format!("{DEFAULT}/serviceaccounts"), account).await;
    let identity = harness.authority.client("system:node:n1", "system:nodes");
    let kubelet = harness.client(Some(&identity)).await;
    let node = made(&kubelet, "/api/v1/nodes", node(json!({}))).await;
    let uid = node["metadata"]["uid"].clone();
    let mirror = json!({
        "metadata": {"name": "p-n1", "annotations": {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    });
    let altered = |change: &dyn Fn(&mut Value)| {
        let mut pod = mirror.clone();
        change(&mut pod);
        pod
    };
    let path = "/api/v1/namespaces/default/pods";
    let cases = [
        (
            altered(&|pod| pod["metadata"]["annotations"] = json!({})),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (
            altered(&|pod| pod["spec"]["nodeName"] = "n2".into()),
            "node \"n1\" can only create pods with spec.nodeName set to itself",
        ),
        (
            altered(&|pod| pod["metadata"]["ownerReferences"] = json!([])),
            "node \"n1\" can only create pods with an owner reference set to itself",
        ),
        (
            altered(&|pod| pod["metadata"]["ownerReferences"][0]["controller"] = false.into()),
            "node \"n1\" can only create pods with a controller owner reference set to itself",
        ),
        (
            altered(&|pod| {
                pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into()
            }),
            "node \"n1\" must not set blockOwnerDeletion on an owner reference",
        ),
        (
            altered(&|pod| {
                pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "x"}}])
            }),
            "a mirror pod may not reference secrets",
        ),
        (
            altered(&|pod| {
                pod["spec"]["volumes"] = json!([{"name": "s", "configMap": {"name": "x"}}])
            }),
            "node \"n1\" can not create pods that reference configmaps",
        ),
        (
            altered(&|pod| {
                pod["spec"]["volumes"] =
                    json!([{"name": "s", "persistentVolumeClaim": {"claimName": "x"}}])
            }),
            "node \"n1\" can not create pods that reference persistentvolumeclaims",
        ),
    ];
    for (pod, why) in cases {
        let refused = post(&kubelet, path, pod).await;
        let message = format!("pods \"p-n1\" is forbidden: {why}");
        refused.is_status(403, "Forbidden", &message);
    }
    made(&kubelet, path, mirror).await;
    let status = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}});
    let refused = patched(&kubelet, &format!("{path}/p-n1/status"), status).await;
    refused.is_status(
        403,
        "Forbidden",
        "pods \"p-n1\" is forbidden: node \"n1\" cannot update labels through pod status",
    );
    let status = json!({"status": {"phase": "Running"}});
    let answer = patched(&kubelet, &format!("{path}/p-n1/status"), status).await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    let now = json!({"gracePeriodSeconds": 0});
    let headers = [("content-type", "application/json")];
    let deleted = kubelet
        .send("DELETE", &format!("{path}/p-n1"), &headers, now.to_string())
        .await;
    assert_eq!(deleted.code, 200, "{}", deleted.text());
}

#[tokio::test]
async fn a_request_for_a_certificate_is_signed_by_its_own_key_and_a_nodes_is_for_itself() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let harness = Harness::real().await;
    let identity = harness.authority.client("system:node:n1", "system:nodes");
    let kubelet = harness.client(Some(&identity)).await;
    let der = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let request = params.serialize_request(&key).expect("a request");
        request.der().to_vec()
    };
    let asked = |der: &[u8]| {
        let body = STANDARD.encode(der);
        let pem = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"
        );
        json!({"metadata": {"name": "csr"}, "spec": {"request": STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]}})
    };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let refused = post(&kubelet, path, asked(&der("system:node:n2"))).await;
    refused.is_status(
        403,
        "Forbidden",
        "certificatesigningrequests.certificates.k8s.io \"csr\" is forbidden: can only create a node CSR with CN=system:node:n1",
    );
    let mut forged = der("system:node:n3");
    let at = forged
        .windows(2)
        .position(|two| two == b"n3")
        .expect("a name");
    forged[at + 1] = b'1';
    let refused = post(&kubelet, path, asked(&forged)).await;
    assert_eq!(refused.code, 422);
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.request");
    let message = cause["message"].as_str().unwrap_or_default();
    assert!(
        message.ends_with(": x509: ECDSA verification failure"),
        "{message}"
    );
    made(&kubelet, path, asked(&der("system:node:n1"))).await;
}
