//! Validating admission policies over the registry: bound, parametrised, denying in upstream's words.

use serde_json::{Value, json};

use super::harness::Harness;

const MAPS: &str = "/api/v1/namespaces/test/configmaps";
const ROOT: &str = "/apis/admissionregistration.k8s.io/v1";

fn policy() -> Value {
    json!({"metadata": {"name": "sizes"}, "spec": {"failurePolicy": "Fail", "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]},
        "matchConditions": [{"name": "not-kept", "expression": "!has(object.metadata.labels) || !('keep' in object.metadata.labels)"}],
        "variables": [{"name": "size", "expression": "has(object.data) ? size(object.data) : 0"}],
        "validations": [{"expression": "variables.size <= 1", "messageExpression": "'too many: ' + string(variables.size)"},
            {"expression": "object.metadata.name != params.metadata.name", "reason": "Forbidden"}]}})
}

fn binding() -> Value {
    json!({"metadata": {"name": "here"}, "spec": {"policyName": "sizes", "validationActions": ["Deny"],
        "paramRef": {"name": "p", "namespace": "test", "parameterNotFoundAction": "Deny"}}})
}

/// Creates maps that break the policy until it is seen to act.
async fn until_denied(server: &Harness) -> String {
    for number in 0..2000 {
        let map =
            json!({"metadata": {"name": format!("probe-{number}")}, "data": {"a": "1", "b": "2"}});
        let answer = server.post(MAPS, &map).await;
        if answer.code != 201 {
            return answer.message(422);
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the policy never denied anything");
}

#[tokio::test]
async fn a_bound_policy_denies_what_breaks_its_rules() {
    let server = Harness::start().await;
    let secret = json!({"metadata": {"name": "p"}});
    server
        .post("/api/v1/namespaces/test/secrets", &secret)
        .await
        .expect(201);
    server
        .post(&format!("{ROOT}/validatingadmissionpolicies"), &policy())
        .await
        .expect(201);
    server
        .post(
            &format!("{ROOT}/validatingadmissionpolicybindings"),
            &binding(),
        )
        .await
        .expect(201);
    let message = until_denied(&server).await;
    assert!(
        message.ends_with("is forbidden: ValidatingAdmissionPolicy 'sizes' with binding 'here' denied request: too many: 2"),
        "{message}"
    );
    let kept = json!({"metadata": {"name": "kept", "labels": {"keep": "x"}}, "data": {"a": "1", "b": "2"}});
    server.post(MAPS, &kept).await.expect(201);
    let named = json!({"metadata": {"name": "p"}});
    let message = server.post(MAPS, &named).await.message(403);
    assert!(
        message.ends_with(
            "denied request: failed expression: object.metadata.name != params.metadata.name"
        ),
        "{message}"
    );
    server
        .post(MAPS, &json!({"metadata": {"name": "fine"}}))
        .await
        .expect(201);
}
