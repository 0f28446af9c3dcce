//! Policies that objects are held to.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::cluster::{Cluster, unique};
use super::life::whole_life;
use super::mutating::deployment;

const ROOT: &str = "/apis/admissionregistration.k8s.io/v1";

fn spec(extra: Value) -> Value {
    let mut spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"],
        "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}]}});
    for (key, value) in extra.as_object().expect("a map") {
        spec[key] = value.clone();
    }
    spec
}

/// A policy bound in a namespace; its name.
async fn bound(cluster: &Cluster, namespace: &str, extra: Value) -> String {
    let name = unique("vap.policy.example.com");
    let policy = json!({"metadata": {"name": name}, "spec": spec(extra)});
    cluster
        .create(&format!("{ROOT}/validatingadmissionpolicies"), &policy)
        .await;
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"own": namespace}}}}});
    cluster
        .create(
            &format!("{ROOT}/validatingadmissionpolicybindings"),
            &binding,
        )
        .await;
    name
}

/// The refusal of a deployment with so many replicas, once the policy is seen.
async fn until_refused(cluster: &Cluster, path: &str, replicas: i64) -> Value {
    let mut object = deployment("probe");
    object["spec"]["replicas"] = replicas.into();
    for _ in 0..500 {
        let dry = format!("{path}?dryRun=All");
        let (code, answer) = cluster.ask(Method::POST, &dry, &object).await;
        if code != 201 {
            assert_eq!(code, 422, "{answer}");
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the policy was never seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_is_held_to_a_policy() {
    let cluster = Cluster::join().await;
    let namespace = cluster.namespace().await;
    let validations = json!({"validations": [
        {"expression": "object.spec.replicas > 1", "messageExpression": "'wants replicas, got ' + string(object.spec.replicas)"},
        {"expression": "namespaceObject.metadata.name == request.namespace", "message": "wrong namespace"}]});
    let name = bound(&cluster, &namespace, validations).await;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let refused = until_refused(&cluster, &path, 1).await;
    let told = format!(
        "ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: wants replicas, got 1"
    );
    assert_eq!(
        refused["message"],
        format!("deployments.apps \"probe\" is forbidden: {told}")
    );
    assert_eq!(refused["reason"], "Invalid");
    assert_eq!(refused["details"]["causes"], json!([{"message": told}]));
    let mut good = deployment("good");
    good["spec"]["replicas"] = 2.into();
    cluster.create(&path, &good).await;
    let one = format!("{path}/good");
    let patch = json!({"spec": {"replicas": 1}}).to_string();
    let headers = [("content-type", super::cluster::MERGE_PATCH)];
    let (code, _) = cluster.send(Method::PATCH, &one, &headers, &patch).await;
    assert_eq!(code, 422, "updates are held to it too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_refer_to_variables() {
    let cluster = Cluster::join().await;
    let namespace = cluster.namespace().await;
    let extra = json!({"variables": [{"name": "replicas", "expression": "object.spec.replicas"},
            {"name": "oddReplicas", "expression": "variables.replicas % 2 == 1"},
            {"name": "unused", "expression": "object.spec.nothing.of.the.kind"}],
        "validations": [{"expression": "variables.replicas > 1"}, {"expression": "variables.oddReplicas"}]});
    let name = bound(&cluster, &namespace, extra).await;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    for (replicas, expression) in [(1, "variables.replicas > 1"), (2, "variables.oddReplicas")] {
        let refused = until_refused(&cluster, &path, replicas).await;
        let message = refused["message"].as_str().expect("a message");
        let expect = format!(
            "ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: failed expression: {expression}"
        );
        assert!(message.ends_with(&expect), "{message}");
    }
    let mut good = deployment("good");
    good["spec"]["replicas"] = 3.into();
    cluster.create(&path, &good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_live_their_whole_life() {
    let validations = json!({"validations": [{"expression": "object.spec.replicas <= 100"}],
        "matchConstraints": {"resourceRules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}]}});
    whole_life(
        "validatingadmissionpolicies",
        spec(validations),
        json!({"failurePolicy": "Ignore"}),
        ("/spec/failurePolicy", json!("Ignore")),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_policy_is_read_patched_and_updated() {
    let cluster = Cluster::join().await;
    let name = unique("status.example.com");
    let path = format!("{ROOT}/validatingadmissionpolicies");
    let extra = json!({"validations": [{"expression": "object.spec.replicas <= 100"}]});
    let policy = json!({"metadata": {"name": name}, "spec": spec(extra)});
    cluster.create(&path, &policy).await;
    let one = format!("{path}/{name}/status");
    let condition = json!({"type": "Patched", "status": "True", "reason": "E2E", "message": "Set from a test", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patched = cluster
        .patch(
            &one,
            super::cluster::MERGE_PATCH,
            &json!({"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"conditions": [condition]}}),
        )
        .await;
    assert_eq!(patched["status"]["conditions"], json!([condition]));
    assert_eq!(
        cluster.get(&one).await["status"]["conditions"],
        json!([condition])
    );
    cluster.delete(&format!("{path}/{name}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_live_their_whole_life() {
    whole_life(
        "validatingadmissionpolicybindings",
        json!({"policyName": "nothing.example.com", "validationActions": ["Deny"]}),
        json!({"validationActions": ["Audit"]}),
        ("/spec/validationActions", json!(["Audit"])),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_told_of_fields_its_kind_does_not_have() {
    let cluster = Cluster::join().await;
    let name = unique("typed.example.com");
    let path = format!("{ROOT}/validatingadmissionpolicies");
    let extra = json!({"validations": [{"expression": "object.spec.replicas <= 100"}, {"expression": "object.replicas > 1"}]});
    let policy = json!({"metadata": {"name": name}, "spec": spec(extra)});
    cluster.create(&path, &policy).await;
    let one = format!("{path}/{name}");
    let told = cluster
        .eventually(&one, |policy| policy["status"]["observedGeneration"] == 1)
        .await;
    assert_eq!(
        told["status"]["typeChecking"]["expressionWarnings"],
        json!([{"fieldRef": "spec.validations[1].expression",
            "warning": "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"}])
    );
    cluster.delete(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_ask_the_authorizer_of_the_user_and_of_others() {
    let cluster = Cluster::join().await;
    let namespace = cluster.namespace().await;
    let extra = json!({
        "matchConditions": [{"name": "not-all-powerful", "expression": "!authorizer.group('*').resource('*').check('*').allowed()"}],
        "validations": [{"expression": "authorizer.requestResource.check('create').allowed() && !authorizer.serviceAccount(request.namespace, 'default').group('').resource('secrets').namespace(request.namespace).check('get').allowed()", "message": "first"},
            {"expression": "authorizer.group('example.com').resource('deployments').subresource('approval').namespace(request.namespace).name(object.metadata.name).check('approve').allowed()", "message": "may not approve"}]});
    let name = bound(&cluster, &namespace, extra).await;
    let root = "/apis/rbac.authorization.k8s.io/v1";
    let subjects =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "writer"}]);
    let reference = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let bindings = format!("{root}/namespaces/{namespace}/rolebindings");
    let edit = json!({"metadata": {"name": "edit"}, "subjects": subjects, "roleRef": reference("ClusterRole", "edit")});
    cluster.create(&bindings, &edit).await;
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments?dryRun=All");
    let headers = [
        ("content-type", "application/json"),
        ("impersonate-user", "writer"),
    ];
    let body = deployment("wanted").to_string();
    let until = async |good: &dyn Fn(u16, &Value) -> bool| {
        for _ in 0..500 {
            let (code, answer) = cluster.send(Method::POST, &path, &headers, &body).await;
            if good(code, &answer) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never came to that");
    };
    let told = format!("binding '{name}' denied request: may not approve");
    until(&|code, answer| {
        let message = answer["message"].as_str().unwrap_or_default();
        code == 422 && message.ends_with(&told)
    })
    .await;
    cluster
        .create(path.trim_end_matches("?dryRun=All"), &deployment("mighty"))
        .await;
    let role = json!({"metadata": {"name": "approve"}, "rules": [{"apiGroups": ["example.com"], "resources": ["deployments/approval"], "verbs": ["approve"]}]});
    let roles = format!("{root}/namespaces/{namespace}/roles");
    cluster.create(&roles, &role).await;
    let approve = json!({"metadata": {"name": "approve"}, "subjects": subjects, "roleRef": reference("Role", "approve")});
    cluster.create(&bindings, &approve).await;
    until(&|code, _| code == 201).await;
}
