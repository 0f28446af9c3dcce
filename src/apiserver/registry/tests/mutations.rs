//! Mutating admission policies over the registry: configurations and patches, in order, once more where asked for, and
//! their errors in upstream's words.

use serde_json::{Value, json};

use super::harness::Harness;

const MAPS: &str = "/api/v1/namespaces/test/configmaps";
const ROOT: &str = "/apis/admissionregistration.k8s.io/v1";

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// A policy for a core resource, bound everywhere under its own name.
async fn bound(server: &Harness, name: &str, resource: &str, spec: Value) {
    let mut whole = json!({"reinvocationPolicy": "Never", "matchConstraints": {"resourceRules": [{
        "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}]}});
    for (key, value) in spec.as_object().expect("a map") {
        whole[key] = value.clone();
    }
    let policy = json!({"metadata": {"name": name}, "spec": whole});
    server
        .post(&format!("{ROOT}/mutatingadmissionpolicies"), &policy)
        .await
        .expect(201);
    let mut spec = json!({"policyName": name});
    if policy["spec"]["paramKind"].is_object() {
        spec["paramRef"] = json!({"name": "params", "parameterNotFoundAction": "Deny"});
    }
    let binding = json!({"metadata": {"name": name}, "spec": spec});
    server
        .post(&format!("{ROOT}/mutatingadmissionpolicybindings"), &binding)
        .await
        .expect(201);
}

/// What becomes of a map once the policies are seen: of a new one each time, until `seen`.
async fn until(server: &Harness, map: &Value, seen: impl Fn(&Value) -> bool) -> Value {
    for number in 0..2000 {
        let mut map = map.clone();
        map["metadata"]["name"] = format!("probe-{number}").into();
        let answer = server.post(MAPS, &map).await;
        if seen(&answer.value) {
            return answer.value;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the policies were never seen");
}

#[tokio::test]
async fn configurations_and_patches_change_in_the_order_of_names() {
    let server = Harness::start().await;
    bound(&server, "b", "configmaps", json!({"mutations": [patch(
        "[JSONPatch{op: 'test', path: '/data/first', value: 'a'}, JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('x.io/y'), value: object.data.first + 'b'}]")]})).await;
    bound(
        &server,
        "a",
        "configmaps",
        json!({"variables": [{"name": "who", "expression": "request.userInfo.username"}],
        "matchConditions": [{"name": "wanted", "expression": "'first' in object.data || has(object.data)"}],
        "mutations": [apply("Object{data: {'first': 'a'}, metadata: Object.metadata{labels: {'by': variables.who}}}"),
            apply("Object{data: {'second': object.data.first}}")]}),
    )
    .await;
    let map = json!({"metadata": {"labels": {"own": "1"}, "annotations": {"z": "1"}}, "data": {"z": "1"}});
    let made = until(&server, &map, |made| {
        made["metadata"]["annotations"]["x.io/y"] == "ab"
    })
    .await;
    assert_eq!(made["data"], json!({"z": "1", "first": "a", "second": "a"}));
    assert_eq!(
        made["metadata"]["labels"],
        json!({"own": "1", "by": "admin"})
    );
    let fields = made["metadata"]["managedFields"].to_string();
    assert!(
        !fields.contains("f:first"),
        "policies own nothing: {fields}"
    );
    let name = made["metadata"]["name"].as_str().expect("a name");
    let updated = server
        .patch(
            &format!("{MAPS}/{name}"),
            "merge",
            &json!({"data": {"first": "mine"}}),
        )
        .await
        .expect(200);
    assert_eq!(updated["data"]["first"], "a", "updates are changed too");
}

#[tokio::test]
async fn who_asks_for_it_sees_later_changes() {
    let server = Harness::start().await;
    let count = "Object{data: {'count': string(int(object.?data[?'count'].orValue('0')) + 1)}}";
    bound(
        &server,
        "a",
        "configmaps",
        json!({"reinvocationPolicy": "IfNeeded", "mutations": [apply(count)]}),
    )
    .await;
    bound(
        &server,
        "b",
        "configmaps",
        json!({"mutations": [apply("Object{data: {'last': object.data.count}}")]}),
    )
    .await;
    let made = until(&server, &json!({"metadata": {}}), |made| {
        made["data"]["last"].is_string()
    })
    .await;
    assert_eq!(made["data"], json!({"count": "2", "last": "1"}));
}

#[tokio::test]
async fn parameters_are_used_and_missed() {
    let server = Harness::start().await;
    bound(
        &server,
        "p",
        "configmaps",
        json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"},
            "mutations": [apply("Object{data: {'from': params.metadata.name}}")]}),
    )
    .await;
    let denied = until(&server, &json!({"metadata": {}}), |made| {
        made["kind"] == "Status"
    })
    .await;
    assert_eq!(
        denied["message"],
        "policy 'p' with binding 'p' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    );
    assert_eq!(
        (&denied["code"], &denied["reason"]),
        (&json!(403), &json!("Forbidden"))
    );
    let secret = json!({"metadata": {"name": "params"}});
    server
        .post("/api/v1/namespaces/test/secrets", &secret)
        .await
        .expect(201);
    let made = until(&server, &json!({"metadata": {}}), |made| {
        made["kind"] == "ConfigMap"
    })
    .await;
    assert_eq!(made["data"]["from"], "params");
}

#[tokio::test]
async fn what_fails_refuses_or_is_let_pass() {
    let server = Harness::start().await;
    let bad = [apply("Object{data: {'a': object.data.none}}")];
    bound(
        &server,
        "bad",
        "configmaps",
        json!({"mutations": bad, "matchConditions": [{"name": "ask", "expression": "'ask' in object.?metadata.labels.orValue({})"}]}),
    )
    .await;
    let asks = json!({"metadata": {"labels": {"ask": ""}}, "data": {"z": "1"}});
    let denied = until(&server, &asks, |made| made["kind"] == "Status").await;
    let message = "policy 'bad' with binding 'bad' denied request: expression 'Object{data: {'a': object.data.none}}' resulted in error: no such key: none";
    assert_eq!(denied["message"], message);
    assert_eq!(
        (&denied["code"], &denied["reason"]),
        (&json!(403), &json!("Invalid"))
    );
    assert_eq!(denied["details"]["causes"], json!([{"message": message}]));
    let other = json!({"metadata": {"name": "other"}});
    server.post(MAPS, &other).await.expect(201);
    let let_pass = json!({"spec": {"failurePolicy": "Ignore"}});
    server
        .patch(
            &format!("{ROOT}/mutatingadmissionpolicies/bad"),
            "merge",
            &let_pass,
        )
        .await
        .expect(200);
    until(&server, &asks, |made| made["kind"] == "ConfigMap").await;
}

#[tokio::test]
async fn the_changed_object_is_defaulted_and_validated() {
    let server = Harness::start().await;
    let services = "/api/v1/namespaces/test/services";
    bound(&server, "svc", "services", json!({"mutations": [apply(
        "Object{spec: Object.spec{ports: [Object.spec.ports{port: 80, name: 'added'}]}}")],
        "matchConditions": [{"name": "n", "expression": "object.metadata.name.startsWith('good')"}]})).await;
    bound(
        &server,
        "wrong",
        "services",
        json!({"mutations": [patch("[JSONPatch{op: 'add', path: '/spec/type', value: 'Nonsense'}]")],
        "matchConditions": [{"name": "n", "expression": "object.metadata.name.startsWith('wrong')"}]}),
    )
    .await;
    let service = |name: String| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 8080, "name": "own"}]}});
    let mut seen = (false, false);
    for number in 0..1000 {
        let made = server
            .post(services, &service(format!("good-{number}")))
            .await
            .value;
        if made["spec"]["ports"][1].is_object() {
            assert_eq!(made["spec"]["ports"][1]["protocol"], "TCP", "{made}");
            assert_eq!(made["spec"]["ports"][1]["targetPort"], 80);
            seen.0 = true;
        }
        let answer = server
            .post(services, &service(format!("wrong-{number}")))
            .await;
        if answer.code != 201 {
            let message = answer.message(422);
            assert!(
                message.contains("spec.type: Unsupported value: \"Nonsense\""),
                "{message}"
            );
            seen.1 = true;
        }
        if seen == (true, true) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the policies were never seen: {seen:?}");
}

#[tokio::test]
async fn permissions_are_asked_of_the_authorizer() {
    let server = Harness::start().await;
    bound(&server, "perm", "configmaps", json!({"mutations": [apply(
        "Object{data: {'me': string(authorizer.requestResource.check('create').allowed()), 'nobody': string(authorizer.serviceAccount('test', 'nobody').group('').resource('secrets').namespace('test').check('get').allowed())}}")]})).await;
    let made = until(&server, &json!({"metadata": {}}), |made| {
        made["data"]["me"].is_string() || made["kind"] == "Status"
    })
    .await;
    assert_eq!(made["data"], json!({"me": "true", "nobody": "false"}));
}
