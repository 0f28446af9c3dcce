//! The status a simulated kubelet writes for a pod, as strategic merge patches.

use apimachinery::{Value, time::now_text};
use serde_json::json;

use crate::{
    plan::Action,
    pod::{Container, Pod, RestartPolicy},
};

/// Pods get addresses of 100.64.0.0/11, nodes of 100.96.0.0/11: shared address space (RFC 6598), where nothing answers.
const PODS: u32 = 0x6440_0000;
const NODES: u32 = 0x6460_0000;
const MASK: u32 = 0x001f_ffff;

/// The address of the pod, or the node, of a number; after two million they repeat.
pub fn pod_address(number: u32) -> String {
    std::net::Ipv4Addr::from(PODS | (number & MASK)).to_string()
}

pub fn node_address(number: u32) -> String {
    std::net::Ipv4Addr::from(NODES | (number & MASK)).to_string()
}

/// The number of a pod's address, if it is one.
pub fn number_of(address: &str) -> Option<u32> {
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    let bits = u32::from(address);
    (bits & !MASK == PODS).then_some(bits & MASK)
}

/// Where a pod is.
pub struct Addresses {
    pub pod: String,
    pub node: String,
}

/// The patch of the pod's status for an action; `None` if that is no change of status.
pub fn patch(pod: &Pod, action: &Action, addresses: &Addresses) -> Option<Value> {
    let now = now_text();
    let status = match action {
        Action::Start { ready } => {
            let mut status = started(pod, addresses, &now);
            run(&mut status, pod, &now, *ready, None);
            status
        }
        Action::Ready => {
            let mut status = json!({});
            run(&mut status, pod, &now, true, None);
            status
        }
        Action::Restart { exit_code } => {
            let mut status = json!({});
            run(&mut status, pod, &now, false, Some(*exit_code));
            status
        }
        Action::Hang { reason } => hang(pod, addresses, &now, reason),
        Action::End { exit_code } => end(pod, &now, *exit_code),
        Action::Expire => {
            let mut status = end(pod, &now, 137);
            status["reason"] = json!("DeadlineExceeded");
            status["message"] =
                json!("Pod was active on the node longer than the specified deadline");
            status
        }
        // Whoever waits for it to end, as the Job controller does, must see that it did.
        Action::Delete if pod.has_finalizers => end(pod, &now, 143),
        Action::Delete => return None,
    };
    Some(json!({"metadata": {"uid": pod.uid}, "status": status}))
}

fn condition(pod: &Pod, kind: &str, holds: bool, reason: &str, now: &str) -> Value {
    let mut condition = json!({
        "type": kind, "status": if holds { "True" } else { "False" }, "lastProbeTime": null, "lastTransitionTime": now,
    });
    if pod.generation > 0 {
        condition["observedGeneration"] = json!(pod.generation);
    }
    if !reason.is_empty() {
        condition["reason"] = json!(reason);
        let unready: Vec<&str> = pod.containers.iter().map(|one| &*one.name).collect();
        if reason == "ContainersNotReady" {
            condition["message"] = json!(format!(
                "containers with unready status: [{}]",
                unready.join(" ")
            ));
        }
    }
    condition
}

fn started(pod: &Pod, addresses: &Addresses, now: &str) -> Value {
    let address = if pod.host_network {
        &addresses.node
    } else {
        &addresses.pod
    };
    json!({
        "phase": "Running", "startTime": now, "hostIP": addresses.node, "hostIPs": [{"ip": addresses.node}],
        "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [
            condition(pod, "PodReadyToStartContainers", true, "", now),
            condition(pod, "Initialized", true, "", now),
        ],
    })
}

fn add_conditions(status: &mut Value, more: [Value; 2]) {
    match status["conditions"].as_array_mut() {
        Some(all) => all.extend(more),
        None => status["conditions"] = Value::Array(more.into()),
    }
}

/// The containers run; `ended` is the exit code they had just before.
fn run(status: &mut Value, pod: &Pod, now: &str, ready: bool, ended: Option<i32>) {
    let reason = if ready { "" } else { "ContainersNotReady" };
    let all_ready = ready && !pod.closed_gates;
    let why = if ready && pod.closed_gates {
        "ReadinessGatesNotReady"
    } else {
        reason
    };
    let conditions = [
        condition(pod, "ContainersReady", ready, reason, now),
        condition(pod, "Ready", all_ready, why, now),
    ];
    add_conditions(status, conditions);
    let restarts = pod.restarts + u32::from(ended.is_some());
    let running = |container: &Container| {
        let mut one = container_status(pod, container, restarts);
        one["ready"] = json!(ready);
        one["started"] = json!(true);
        one["state"] = json!({"running": {"startedAt": now}});
        if let Some(exit_code) = ended {
            one["lastState"] = json!({"terminated": terminated(pod, exit_code, now)});
        }
        one
    };
    status["containerStatuses"] = pod.containers.iter().map(running).collect();
    if !pod.init_containers.is_empty() {
        let init = |container: &Container| {
            if container.is_sidecar {
                return running(container);
            }
            let mut one = container_status(pod, container, 0);
            one["ready"] = json!(true);
            one["started"] = json!(false);
            one["state"] = json!({"terminated": terminated(pod, 0, now)});
            one
        };
        status["initContainerStatuses"] = pod.init_containers.iter().map(init).collect();
    }
}

fn container_status(pod: &Pod, container: &Container, restarts: u32) -> Value {
    json!({
        "name": container.name, "image": container.image, "imageID": format!("simulated://{}", container.image),
        "containerID": format!("simulated://{}/{}/{restarts}", pod.uid, container.name),
        "restartCount": restarts, "lastState": {},
    })
}

fn terminated(pod: &Pod, exit_code: i32, now: &str) -> Value {
    let began = if pod.start_time.is_empty() {
        now
    } else {
        &pod.start_time
    };
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    json!({"exitCode": exit_code, "reason": reason, "startedAt": began, "finishedAt": now})
}

fn hang(pod: &Pod, addresses: &Addresses, now: &str, reason: &str) -> Value {
    let mut status = started(pod, addresses, now);
    status["phase"] = json!("Pending");
    let conditions = [
        condition(pod, "ContainersReady", false, "ContainersNotReady", now),
        condition(pod, "Ready", false, "ContainersNotReady", now),
    ];
    add_conditions(&mut status, conditions);
    let waiting = |container: &Container| {
        let mut one = container_status(pod, container, 0);
        one["imageID"] = json!("");
        one["ready"] = json!(false);
        one["started"] = json!(false);
        one["state"] = json!({"waiting": {"reason": reason, "message": "simulated"}});
        if let Some(object) = one.as_object_mut() {
            object.remove("containerID");
        }
        one
    };
    status["containerStatuses"] = pod.containers.iter().map(waiting).collect();
    status
}

fn end(pod: &Pod, now: &str, exit_code: i32) -> Value {
    let done = if exit_code == 0 {
        "PodCompleted"
    } else {
        "PodFailed"
    };
    let ended = |container: &Container| {
        let mut one = container_status(pod, container, pod.restarts);
        one["ready"] = json!(false);
        one["started"] = json!(false);
        one["state"] = json!({"terminated": terminated(pod, exit_code, now)});
        one
    };
    let succeeded = exit_code == 0 && pod.restart_policy != RestartPolicy::Always;
    json!({
        "phase": if succeeded { "Succeeded" } else { "Failed" },
        "conditions": [
            condition(pod, "Initialized", true, if succeeded { "PodCompleted" } else { "" }, now),
            condition(pod, "ContainersReady", false, done, now),
            condition(pod, "Ready", false, done, now),
        ],
        "containerStatuses": pod.containers.iter().map(ended).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_numbered_both_ways() {
        for number in [0, 1, 300, MASK] {
            assert_eq!(number_of(&pod_address(number)), Some(number));
        }
        assert_eq!(pod_address(257), "100.64.1.1");
        assert_eq!(number_of(&node_address(1)), None);
        assert_eq!(number_of("10.0.0.1"), None);
    }

    #[test]
    fn a_pod_with_an_open_readiness_gate_has_ready_containers_and_is_not() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "readinessGates": [{"conditionType": "x/y"}]},
        }))
        .unwrap();
        let addresses = Addresses {
            pod: pod_address(1),
            node: node_address(1),
        };
        let patch = patch(&pod, &Action::Start { ready: true }, &addresses).unwrap();
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        let of = |kind: &str| {
            conditions
                .iter()
                .find(|one| one["type"] == kind)
                .unwrap()
                .clone()
        };
        assert_eq!(of("ContainersReady")["status"], "True");
        assert_eq!(
            (&of("Ready")["status"], &of("Ready")["reason"]),
            (&json!("False"), &json!("ReadinessGatesNotReady"))
        );
        assert_eq!(patch["status"]["containerStatuses"][0]["ready"], true);
    }
}
