//! Priority and fairness over real sockets: what a level takes, what it refuses, and what schemas say of their levels.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::Harness;
use super::harness::Client;
use crate::options::Limits;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const TYPE: &[(&str, &str)] = &[("content-type", "application/json")];
/// Looks at something that happens soon, and the pause between them.
const LOOKS: usize = 500;
const PAUSE: Duration = Duration::from_millis(20);

async fn make(client: &Client, path: &str, object: &Value) -> Value {
    let made = client.send("POST", path, TYPE, object.to_string()).await;
    assert_eq!(made.code, 201, "{}", made.text());
    made.json()
}

fn level(name: &str) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": name},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "lendablePercent": 0,
            "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}}})
}

fn schema(name: &str, level: &str, user: &str) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
        "spec": {"matchingPrecedence": 500, "priorityLevelConfiguration": {"name": level}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": user}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                "clusterScope": true}]}]}})
}

/// The condition of a schema, as soon as its reason is this one.
async fn dangling(client: &Client, name: &str, reason: &str) -> Value {
    let path = format!("{FLOW}/flowschemas/{name}");
    for _ in 0..LOOKS {
        let schema = client.get(&path).await.json();
        let condition = &schema["status"]["conditions"][0];
        if condition["reason"] == reason {
            return condition.clone();
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("{name} is not {reason}");
}

async fn may_do_all(client: &Client, user: &str) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    make(client, path, &binding).await;
}

#[tokio::test]
async fn a_level_takes_what_its_shares_say_and_refuses_the_rest() {
    let harness = Harness::real().await;
    let admin = harness.client(Some(&harness.admin())).await;
    may_do_all(&admin, "jane").await;
    let path = format!("{FLOW}/flowschemas");
    let schema = make(&admin, &path, &schema("tight", "tight", "jane")).await;
    let condition = dangling(&admin, "tight", "NotFound").await;
    assert_eq!(condition["type"], "Dangling");
    assert_eq!(condition["status"], "True");
    assert_eq!(
        condition["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"tight\" but there is no such object"
    );
    let path = format!("{FLOW}/prioritylevelconfigurations");
    let level = make(&admin, &path, &level("tight")).await;
    let condition = dangling(&admin, "tight", "Found").await;
    assert_eq!(condition["status"], "False");
    // Of 600 seats by 246 shares: one share is three.
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = harness.connect(Some(&harness.admin()), "http/1.1").await;
        let head = format!(
            "POST {MAPS} HTTP/1.1\r\nHost: x\r\nImpersonate-User: jane\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        held.push(stream);
    }
    let running = r#"apiserver_flowcontrol_current_executing_requests{priority_level="tight"} 3"#;
    let mut seated = false;
    for _ in 0..LOOKS {
        seated = admin.get("/metrics").await.text().contains(running);
        if seated {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    assert!(seated, "three run");
    let jane = [("impersonate-user", "jane")];
    let refused = admin.send("GET", MAPS, &jane, "").await;
    assert_eq!(refused.code, 429);
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(
        refused.text().trim_end(),
        "Too many requests, please try again later."
    );
    let uid = |object: &Value| {
        object["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(
        refused.header("x-kubernetes-pf-flowschema-uid"),
        uid(&schema)
    );
    assert_eq!(
        refused.header("x-kubernetes-pf-prioritylevel-uid"),
        uid(&level)
    );
    // Others are not affected, and neither is the one who is, once the held ones are gone.
    assert_eq!(admin.get(MAPS).await.code, 200);
    drop(held);
    let mut code = 0;
    for _ in 0..LOOKS {
        code = admin.send("GET", MAPS, &jane, "").await.code;
        if code == 200 {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(code, 200, "the seats come back");
    let metrics = admin.get("/metrics").await.text();
    for line in [
        r#"apiserver_flowcontrol_rejected_requests_total{flow_schema="tight",priority_level="tight",reason="concurrency-limit"}"#,
        r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="tight"} 3"#,
        r#"apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"}"#,
        r#"apiserver_storage_objects{resource="flowschemas.flowcontrol.apiserver.k8s.io"} 12"#,
        r#"etcd_request_duration_seconds_count{group="flowcontrol.apiserver.k8s.io",operation="create",resource="flowschemas"}"#,
        r#"apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="false",type="admit"}"#,
        r#"authentication_duration_seconds_count{result="success"}"#,
        r#"authorization_duration_seconds_count{result="allowed"}"#,
        "apiserver_client_certificate_expiration_seconds_count",
        r#"apiserver_response_sizes_count{component="apiserver",group="flowcontrol.apiserver.k8s.io""#,
        r#"apiserver_watch_cache_events_received_total{group="flowcontrol.apiserver.k8s.io",resource="flowschemas"}"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
}

#[tokio::test]
async fn a_server_that_is_told_to_end_says_so_before_it_ends_anything() {
    let limits = Limits {
        shutdown_delay: Duration::from_secs(2),
        ..Limits::default()
    };
    let harness = Harness::start_with(limits).await;
    let client = harness.client(Some(&harness.admin())).await;
    assert_eq!(client.get("/readyz/shutdown").await.code, 200);
    let watch = client
        .open("GET", "/api/v1/namespaces/default/pods?watch=1", &[], "")
        .await;
    let server = harness.server.clone();
    let ending = tokio::spawn(async move { server.shutdown().await });
    let mut code = 0;
    for _ in 0..LOOKS {
        code = client.get("/readyz/shutdown").await.code;
        if code == 500 {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(code, 500);
    assert_eq!(client.get("/livez").await.code, 200, "it serves on");
    assert!(!harness.server.draining().is_cancelled());
    let all = http_body_util::BodyExt::collect(watch.into_body()).await;
    assert!(all.is_ok(), "an end, not a break");
    ending.await.expect("no panic");
}
