//! Policies that change objects.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::cluster::{Cluster, unique};
use super::life::whole_life;

const ROOT: &str = "/apis/admissionregistration.k8s.io/v1";

fn rules(group: &str, resource: &str) -> Value {
    json!([{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}])
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

/// A policy for deployments, bound in a namespace.
async fn bound(cluster: &Cluster, namespace: &str, mutation: Value) {
    let name = unique("map.policy.example.com");
    let policy = json!({"metadata": {"name": name}, "spec": {"reinvocationPolicy": "Never", "mutations": [mutation],
        "matchConstraints": {"resourceRules": rules("apps", "deployments"), "namespaceSelector": {"matchLabels": {"own": namespace}}}}});
    cluster
        .create(&format!("{ROOT}/mutatingadmissionpolicies"), &policy)
        .await;
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name,
        "matchResources": {"namespaceSelector": {"matchLabels": {"own": namespace}}}}});
    cluster
        .create(&format!("{ROOT}/mutatingadmissionpolicybindings"), &binding)
        .await;
}

pub fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}})
}

/// What becomes of new deployments once the policy is seen.
async fn until(cluster: &Cluster, namespace: &str, seen: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments?dryRun=All");
    for _ in 0..500 {
        let (_, made) = cluster.ask(Method::POST, &path, &deployment("probe")).await;
        if seen(&made) {
            return made;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the policy was never seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_is_changed_by_a_configuration() {
    let cluster = Cluster::join().await;
    let namespace = cluster.namespace().await;
    let expression = "Object{spec: Object.spec{replicas: object.spec.replicas + 100, template: Object.spec.template{
        spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'side', image: 'x'}]}}}}";
    bound(&cluster, &namespace, apply(expression)).await;
    let made = until(&cluster, &namespace, |made| made["spec"]["replicas"] == 101).await;
    let containers = &made["spec"]["template"]["spec"]["containers"];
    let names: Vec<&Value> = containers
        .as_array()
        .expect("containers")
        .iter()
        .map(|container| &container["name"])
        .collect();
    assert_eq!(names, ["web", "side"]);
    assert_eq!(
        containers[1]["imagePullPolicy"], "Always",
        "what is added has defaults"
    );
    let elsewhere = cluster.namespace().await;
    let path = format!("/apis/apps/v1/namespaces/{elsewhere}/deployments");
    let kept = cluster.create(&path, &deployment("kept")).await;
    assert_eq!(
        kept["spec"]["replicas"], 1,
        "other namespaces are left alone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_is_annotated_by_a_patch() {
    let cluster = Cluster::join().await;
    let namespace = cluster.namespace().await;
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression":
        "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}, JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('example.com/by'), value: request.userInfo.username}]"}});
    bound(&cluster, &namespace, mutation).await;
    let made = until(&cluster, &namespace, |made| {
        made["metadata"]["annotations"].is_object()
    })
    .await;
    let user = &made["metadata"]["annotations"]["example.com/by"];
    assert!(user.as_str().is_some_and(|user| !user.is_empty()), "{made}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_live_their_whole_life() {
    let spec = json!({"reinvocationPolicy": "Never", "failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules("example.com", "nothings")},
        "mutations": [apply("Object{metadata: Object.metadata{annotations: {'my-foo-annotation': 'myAnnotationValue'}}}")]});
    whole_life(
        "mutatingadmissionpolicies",
        spec,
        json!({"failurePolicy": "Ignore"}),
        ("/spec/failurePolicy", json!("Ignore")),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_live_their_whole_life() {
    whole_life(
        "mutatingadmissionpolicybindings",
        json!({"policyName": "nothing.example.com"}),
        json!({"policyName": "other.example.com"}),
        ("/spec/policyName", json!("other.example.com")),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_do_not_compile_are_refused_with_the_place() {
    let cluster = Cluster::join().await;
    let policy = json!({"metadata": {"name": unique("bad.example.com")}, "spec": {"reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": rules("", "pods")}, "mutations": [apply("Object{spec: foo}")]}});
    let path = format!("{ROOT}/mutatingadmissionpolicies");
    let (code, status) = cluster.ask(Method::POST, &path, &policy).await;
    assert_eq!(code, 422, "{status}");
    let cause = &status["details"]["causes"][0];
    assert_eq!(
        cause["field"],
        "spec.mutations[0].applyConfiguration.expression"
    );
    let message = cause["message"].as_str().expect("a message");
    assert!(
        message.ends_with("compilation failed: ERROR: <input>:1:14: undeclared reference to 'foo' (in container '')\n | Object{spec: foo}\n | .............^"),
        "{message}"
    );
}
