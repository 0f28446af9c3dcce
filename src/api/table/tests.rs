//! Rows as upstream prints them, kind by kind; and every kind's row fits its columns.

use apimachinery::{Value, time};
use serde_json::json;

use super::{Cells, of_kind, row};
use crate::{RESOURCES, r};

fn mk_time() -> time::Time {
    time::parse("2026-10-31T14:35:00Z").expect("a time")
}

#[track_caller]
fn check(resource: &crate::Resource, object: &Value, cells: &Value) {
    assert_eq!(&Value::from(row(resource, object, mk_time())), cells);
}

fn mk_pod(status: Value) -> Value {
    json!({
        "metadata": {"name": "nginx-demo", "creationTimestamp": "2026-10-31T14:28:13Z"},
        "spec": {"containers": [{"name": "nginx-demo"}], "nodeName": "lab-worker"},
        "status": status,
    })
}

#[test]
fn every_kind_with_a_printer_fills_its_columns() {
    let object = json!({"metadata": {"name": "a"}});
    for resource in RESOURCES
        .iter()
        .filter(|resource| !resource.columns.is_empty())
    {
        let cells = Cells {
            object: &object,
            now: mk_time(),
        };
        if let Some(made) = of_kind(resource.kind, &cells) {
            assert_eq!(
                made.len(),
                resource.columns.len(),
                "{} {}",
                resource.api_version(),
                resource.kind
            );
        }
        // Upstream's cells do not all have their column's type; none is empty or nested.
        for (cell, column) in row(resource, &object, mk_time())
            .iter()
            .zip(resource.columns)
        {
            assert!(
                cell.is_string() || cell.is_number() || cell.is_boolean(),
                "{} {}: {cell}",
                resource.kind,
                column.name
            );
        }
    }
}

#[test]
fn a_running_pod_and_a_terminating_one() {
    let status = json!({
        "phase": "Running", "podIP": "10.244.1.6", "podIPs": [{"ip": "10.244.1.6"}],
        "containerStatuses": [{"name": "nginx-demo", "ready": true, "restartCount": 0, "state": {"running": {}}}],
    });
    let mut pod = mk_pod(status);
    check(
        &r::PODS,
        &pod,
        &json!([
            "nginx-demo",
            "1/1",
            "Running",
            "0",
            "6m47s",
            "10.244.1.6",
            "lab-worker",
            "<none>",
            "<none>"
        ]),
    );
    pod["metadata"]["deletionTimestamp"] = json!("2026-10-31T14:35:00Z");
    check(
        &r::PODS,
        &pod,
        &json!([
            "nginx-demo",
            "1/1",
            "Terminating",
            "0",
            "6m47s",
            "10.244.1.6",
            "lab-worker",
            "<none>",
            "<none>"
        ]),
    );
}

#[test]
fn a_pods_status_is_its_containers_trouble() {
    let word = |status: Value| {
        row(&r::PODS, &mk_pod(status), mk_time())[2]
            .as_str()
            .map(str::to_owned)
            .expect("text")
    };
    assert_eq!(word(json!({"phase": "Pending"})), "Pending");
    assert_eq!(
        word(
            json!({"phase": "Pending", "containerStatuses": [{"name": "nginx-demo", "state": {"waiting": {"reason": "ErrImagePull"}}}]})
        ),
        "ErrImagePull"
    );
    assert_eq!(
        word(
            json!({"phase": "Failed", "containerStatuses": [{"name": "nginx-demo", "state": {"terminated": {"exitCode": 3}}}]})
        ),
        "ExitCode:3"
    );
    assert_eq!(
        word(
            json!({"phase": "Succeeded", "containerStatuses": [{"name": "nginx-demo", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]})
        ),
        "Completed"
    );
    assert_eq!(
        word(json!({"phase": "Failed", "reason": "Evicted"})),
        "Evicted"
    );
    let restarted = json!({"phase": "Running", "containerStatuses": [{"name": "nginx-demo", "ready": true, "restartCount": 2, "state": {"running": {}}, "lastState": {"terminated": {"finishedAt": "2026-10-31T14:34:50Z"}}}]});
    assert_eq!(
        row(&r::PODS, &mk_pod(restarted), mk_time())[3],
        "2 (10s ago)"
    );
}

#[test]
fn init_containers_show_how_far_they_are() {
    let mut pod = mk_pod(json!({"phase": "Pending", "initContainerStatuses": [
        {"name": "one", "state": {"terminated": {"exitCode": 0}}}, {"name": "two", "state": {"running": {}}}]}));
    pod["spec"]["initContainers"] = json!([{"name": "one"}, {"name": "two"}]);
    assert_eq!(row(&r::PODS, &pod, mk_time())[2], "Init:1/2");
}

#[test]
fn services_nodes_and_events_read_as_upstreams() {
    let service = json!({"metadata": {"name": "web", "creationTimestamp": "2026-10-31T14:34:00Z"}, "spec": {
        "type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "selector": {"run": "web"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
    check(
        &r::SERVICES,
        &service,
        &json!([
            "web",
            "NodePort",
            "10.96.0.7",
            "<none>",
            "80:30080/TCP,53/UDP",
            "60s",
            "run=web"
        ]),
    );
    let node = json!({"metadata": {"name": "lab-worker", "creationTimestamp": "2026-10-25T07:00:00Z"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}], "nodeInfo": {"kubeletVersion": "v1.37.0"}}});
    let cells = row(&r::NODES, &node, mk_time());
    assert_eq!(
        Value::from(cells[..5].to_vec()),
        json!(["lab-worker", "NotReady", "<none>", "6d7h", "v1.37.0"])
    );
    let event = json!({"metadata": {"name": "web.1"}, "involvedObject": {"kind": "Pod", "name": "web"}, "reason": "Pulled",
        "type": "Normal", "message": "done ", "source": {"component": "kubelet", "host": "lab-worker"}, "count": 2,
        "firstTimestamp": "2026-10-31T14:34:00Z", "lastTimestamp": "2026-10-31T14:34:55Z"});
    check(
        &r::EVENTS,
        &event,
        &json!([
            "5s",
            "Normal",
            "Pulled",
            "pod/web",
            "",
            "kubelet, lab-worker",
            "done",
            "60s",
            2,
            "web.1"
        ]),
    );
}

#[test]
fn long_lists_of_addresses_are_cut() {
    let addresses: Vec<Value> = (1..=5)
        .map(|last| json!({"ip": format!("10.0.0.{last}")}))
        .collect();
    let endpoints = json!({"metadata": {"name": "web", "creationTimestamp": "2026-10-31T14:34:00Z"}, "subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]});
    check(
        &r::ENDPOINTS,
        &endpoints,
        &json!([
            "web",
            "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more...",
            "60s"
        ]),
    );
}

#[test]
fn a_component_is_healthy_or_says_why_not() {
    let status =
        |conditions: Value| json!({"metadata": {"name": "etcd-0"}, "conditions": conditions});
    let healthy = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    let ill = json!([{"type": "Healthy", "status": "False", "message": "no", "error": "refused"}]);
    for (conditions, cells) in [
        (healthy, json!(["etcd-0", "Healthy", "ok", ""])),
        (ill, json!(["etcd-0", "Unhealthy", "no", "refused"])),
        (json!([]), json!(["etcd-0", "Unknown", "", ""])),
    ] {
        check(&r::COMPONENTSTATUSES, &status(conditions), &cells);
    }
}
