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
