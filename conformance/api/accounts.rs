//! Service accounts, their tokens, and what they may.

use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, eventually, items, refused, text};
use crate::endpoint::version;
use crate::kinds::{
    ACCESS_REVIEW, CONFIG_MAP, LOCAL_ACCESS_REVIEW, POD, ROLE, ROLE_BINDING, SELF_ACCESS_REVIEW,
    SERVICE_ACCOUNT, TOKEN_REVIEW,
};
use crate::lifecycle::Lifecycle;

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub async fn a_pod_may_refuse_the_token(cluster: &Cluster) {
    let namespace = cluster.namespace_for_pods().await;
    let accounts = cluster.within(&namespace, SERVICE_ACCOUNT);
    let pods = cluster.within(&namespace, POD);
    let choices = [None, Some(true), Some(false)];
    for of_account in choices {
        let name = format!("account-{of_account:?}")
            .to_lowercase()
            .replace(['(', ')'], "");
        let mut account = json!({"metadata": {"name": name}});
        if let Some(choice) = of_account {
            account["automountServiceAccountToken"] = choice.into();
        }
        accounts.create(&account).await.expect("an account");
        for of_pod in choices {
            let mut pod = json!({
                "metadata": {"generateName": "pod-"},
                "spec": {"serviceAccountName": name, "containers": [{"name": "pause", "image": "pause"}]},
            });
            if let Some(choice) = of_pod {
                pod["spec"]["automountServiceAccountToken"] = choice.into();
            }
            let pod = created(&pods, &pod).await;
            let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array();
            let mounted = mounts
                .into_iter()
                .flatten()
                .any(|mount| mount["mountPath"] == MOUNT);
            assert_eq!(
                mounted,
                of_pod.or(of_account).unwrap_or(true),
                "the account says {of_account:?}, the pod {of_pod:?}"
            );
            assert_eq!(pod["spec"]["volumes"].is_array(), mounted);
        }
    }
}

/// Admission may not have seen the account yet.
async fn created(pods: &crate::endpoint::Endpoint, pod: &Value) -> Value {
    let made = std::cell::RefCell::new(Value::Null);
    eventually("the account in admission's eyes", async || {
        match pods.create(pod).await {
            Ok(pod) => *made.borrow_mut() = pod,
            Err(kube::Error::Api(status)) if status.message.contains("serviceaccount") => {
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        true
    })
    .await;
    made.into_inner()
}

pub async fn a_token_is_made_and_reviewed(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let accounts = cluster.within(&namespace, SERVICE_ACCOUNT);
    let account = json!({"metadata": {"name": "reviewed"}});
    let account = accounts.create(&account).await.expect("an account");
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = accounts.create_sub("reviewed", "token", &request).await;
    let token = token.expect("a token");
    assert_eq!(token["spec"]["expirationSeconds"], 3600);
    assert!(!text(&token, "/status/expirationTimestamp").is_empty());
    let review = json!({"spec": {"token": text(&token, "/status/token")}});
    let review = cluster.all(TOKEN_REVIEW).create(&review).await;
    let review = review.expect("a review");
    assert_contains(
        &review,
        &json!({"status": {"authenticated": true, "user": {
            "username": format!("system:serviceaccount:{namespace}:reviewed"),
            "uid": account["metadata"]["uid"],
            "groups": [
                "system:serviceaccounts",
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated",
            ],
        }}}),
    );
    assert_eq!(review["status"].get("error"), None);
    // Of an account that is gone, it says nothing.
    accounts.delete("reviewed").await.expect("deleted");
    let review = json!({"spec": {"token": text(&token, "/status/token")}});
    let review = cluster.all(TOKEN_REVIEW).create(&review).await;
    let review = review.expect("a review");
    assert_eq!(review["status"].get("authenticated"), None, "{review}");
    assert!(review["status"]["error"].is_string());
}

pub async fn service_accounts_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let accounts = cluster.within(&namespace, SERVICE_ACCOUNT);
    let selector = format!("testserviceaccount={namespace}");
    let mut watcher = accounts.watch(&selector, "").await;
    let account = json!({"metadata": {"name": "testserviceaccount", "labels": {"testserviceaccount": namespace}}});
    let made = accounts.create(&account).await.expect("created");
    assert_eq!(watcher.expect("ADDED").await, made);
    let patch = json!({"automountServiceAccountToken": false});
    let patched = accounts.strategic("testserviceaccount", &patch).await;
    let patched = patched.expect("patched");
    assert_eq!(watcher.expect("MODIFIED").await, patched);
    assert_eq!(patched["automountServiceAccountToken"], false);
    let all = cluster.all(SERVICE_ACCOUNT).labelled(&selector).await;
    assert_eq!(items(&all.expect("a list")).len(), 1);
    accounts.delete_labelled(&selector).await.expect("deleted");
    watcher.expect("DELETED").await;

    Lifecycle::of(
        SERVICE_ACCOUNT,
        json!({"automountServiceAccountToken": false}),
    )
    .changed_by(json!({"automountServiceAccountToken": true}))
    .live(cluster, Some(&namespace))
    .await;
}

pub async fn a_service_account_is_updated(cluster: &Cluster) {
    let accounts = cluster.within(&cluster.namespace().await, SERVICE_ACCOUNT);
    let account = json!({"metadata": {"name": "account"}, "automountServiceAccountToken": false});
    let made = accounts.create(&account).await.expect("created");
    let change = json!({"automountServiceAccountToken": true});
    let updated = accounts.update("account", "", &change).await;
    let updated = updated.expect("updated");
    assert_eq!(updated["automountServiceAccountToken"], true);
    assert!(version(&updated) > version(&made));
}

pub async fn reviews_tell_what_an_account_may(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let accounts = cluster.within(&namespace, SERVICE_ACCOUNT);
    let account = json!({"metadata": {"name": "reader"}});
    accounts.create(&account).await.expect("an account");
    let user = format!("system:serviceaccount:{namespace}:reader");
    let asks =
        json!({"verb": "list", "resource": "configmaps", "namespace": namespace, "version": "v1"});
    let review = json!({"spec": {"user": user, "resourceAttributes": asks}});
    let mut local = review.clone();
    local["metadata"] = json!({"namespace": namespace});
    let maps = cluster.within(&namespace, CONFIG_MAP).seen_by(&user);
    let locally = cluster.within(&namespace, LOCAL_ACCESS_REVIEW);
    let selfish = cluster.all(SELF_ACCESS_REVIEW).seen_by(&user);

    let answer = cluster.all(ACCESS_REVIEW).create(&review).await;
    let answer = answer.expect("a review");
    assert_contains(&answer["spec"], &review["spec"]);
    assert_eq!(answer["status"]["allowed"], false);
    let answer = locally.create(&local).await.expect("a local review");
    assert_eq!(answer["status"]["allowed"], false);
    let message = refused(maps.list(&ListParams::default()).await, 403, "Forbidden");
    assert_eq!(
        message,
        format!(
            "configmaps is forbidden: User \"{user}\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"{namespace}\""
        )
    );

    let role = json!({"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let roles = cluster.within(&namespace, ROLE);
    roles.create(&role).await.expect("a role");
    let binding = json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    });
    let bindings = cluster.within(&namespace, ROLE_BINDING);
    bindings.create(&binding).await.expect("a binding");
    eventually("what the role allows", async || {
        let answer = cluster.all(ACCESS_REVIEW).create(&review).await;
        answer.expect("a review")["status"]["allowed"] == true
    })
    .await;
    let answer = locally.create(&local).await.expect("a local review");
    assert_eq!(answer["status"]["allowed"], true);
    let own = json!({"spec": {"resourceAttributes": asks}});
    let answer = selfish.create(&own).await.expect("a review of oneself");
    assert_eq!(answer["status"]["allowed"], true, "{answer}");
    maps.list(&ListParams::default()).await.expect("allowed");

    local["spec"]["resourceAttributes"]["namespace"] = "elsewhere".into();
    let message = refused(locally.create(&local).await, 400, "BadRequest");
    assert_eq!(
        message,
        format!("spec.resourceAttributes.namespace must match namespace: {namespace}")
    );
}
