//! Tables for the status: what the runtime shows, what the API is told.

use serde_json::{Value, json};

use super::*;
use crate::pod::back_off::SECOND;
use crate::pod::spec::tests::mk_pod;
use crate::pod::view::SandboxView;

const NOW: Nanos = 1_800_000_000 * SECOND;

fn mk_view(containers: Vec<ContainerView>) -> PodView {
    let sandbox = SandboxView {
        id: "s".to_owned(),
        ready: true,
        ips: vec!["10.244.1.6".to_owned()],
        ..SandboxView::default()
    };
    let mut view = PodView {
        sandboxes: vec![sandbox],
        containers,
    };
    view.sort();
    view
}

fn mk_container(name: &str, restart_count: u32, state: State, exit_code: i32) -> ContainerView {
    ContainerView {
        id: format!("{name}{restart_count}"),
        sandbox_id: "s".to_owned(),
        name: name.to_owned(),
        restart_count,
        state,
        exit_code,
        created_at: Nanos::from(restart_count),
        started_at: NOW - SECOND,
        reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
        ..ContainerView::default()
    }
}

struct Case {
    pod: Pod,
    view: PodView,
    memory: Memory,
    waiting: Vec<(String, Waiting)>,
    previous: PodStatus,
    over: bool,
}

impl Case {
    fn new(policy: &str, view: PodView) -> Self {
        let pod = mk_pod(
            json!({"restartPolicy": policy, "containers": [{"name": "c", "image": "nginx"}]}),
        );
        Self {
            pod,
            view,
            memory: Memory::default(),
            waiting: vec![],
            previous: PodStatus::default(),
            over: false,
        }
    }

    fn status(&self) -> Value {
        let status = status(&Input {
            pod: &self.pod,
            view: &self.view,
            memory: &self.memory,
            waiting: &self.waiting,
            previous: &self.previous,
            host_ips: &["172.30.0.2".to_owned()],
            runtime_name: "containerd",
            over: self.over,
            now: NOW,
        });
        serde_json::to_value(status).expect("a status is JSON")
    }
}

fn condition(status: &Value, kind: &str) -> String {
    let conditions = status["conditions"].as_array().expect("conditions");
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .expect(kind);
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    [text("status"), text("reason"), text("message")].join("|")
}

#[test]
fn a_pod_being_created_says_so() {
    let status = Case::new("Always", PodView::default()).status();
    assert_eq!(status["phase"], "Pending");
    assert_eq!(
        status["containerStatuses"][0]["state"]["waiting"],
        json!({"reason": "ContainerCreating"})
    );
    assert_eq!(condition(&status, "PodReadyToStartContainers"), "False||");
    assert_eq!(condition(&status, "Initialized"), "True||");
    assert_eq!(
        condition(&status, "Ready"),
        "False|ContainersNotReady|containers with unready status: [c]"
    );
    assert_eq!(status["hostIP"], "172.30.0.2");
    assert_eq!(status.get("podIP"), None);
    let types: Vec<_> = status["conditions"]
        .as_array()
        .expect("conditions")
        .iter()
        .map(|condition| condition["type"].as_str().expect("a type"))
        .collect();
    assert_eq!(
        types,
        [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled"
        ]
    );
}

#[test]
fn a_running_pod_is_ready_and_has_its_address() {
    let status = Case::new(
        "Always",
        mk_view(vec![mk_container("c", 0, State::Running, 0)]),
    )
    .status();
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], "10.244.1.6");
    assert_eq!(status["podIPs"], json!([{"ip": "10.244.1.6"}]));
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(condition(&status, "Ready"), "True||");
    let container = &status["containerStatuses"][0];
    assert_eq!(container["containerID"], "containerd://c0");
    assert_eq!(container["lastState"], json!({}));
    assert_eq!(
        (&container["ready"], &container["started"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(container["resources"], json!({}));
}

#[test]
fn phases_follow_policy_and_exit_codes() {
    let cases = [
        ("Always", State::Exited, 0, "Running"),
        ("OnFailure", State::Exited, 1, "Running"),
        ("OnFailure", State::Exited, 0, "Succeeded"),
        ("Never", State::Exited, 0, "Succeeded"),
        ("Never", State::Exited, 1, "Failed"),
        ("Never", State::Running, 0, "Running"),
    ];
    for (policy, state, code, expected) in cases {
        let case = Case::new(policy, mk_view(vec![mk_container("c", 0, state, code)]));
        assert_eq!(
            case.status()["phase"],
            expected,
            "{policy} {state:?} {code}"
        );
    }
}

#[test]
fn a_completed_pod_keeps_its_address_and_is_not_ready() {
    let mut case = Case::new(
        "Never",
        PodView {
            containers: vec![mk_container("c", 0, State::Exited, 0)],
            ..PodView::default()
        },
    );
    case.previous.pod_ips = Some(vec![PodIP {
        ip: "10.244.1.9".to_owned(),
    }]);
    let status = case.status();
    assert_eq!(status["podIP"], "10.244.1.9");
    assert_eq!(condition(&status, "Ready"), "False|PodCompleted|");
    assert_eq!(condition(&status, "Initialized"), "True|PodCompleted|");
    assert_eq!(condition(&status, "ContainersReady"), "False|PodCompleted|");
}

#[test]
fn a_crash_loop_waits_and_shows_how_it_ended() {
    let mut case = Case::new(
        "Always",
        mk_view(vec![mk_container("c", 2, State::Exited, 3)]),
    );
    let reason = "CrashLoopBackOff".to_owned();
    case.waiting = vec![(
        "c".to_owned(),
        Waiting {
            reason,
            message: "back-off".to_owned(),
        },
    )];
    let status = case.status();
    let container = &status["containerStatuses"][0];
    assert_eq!(status["phase"], "Running");
    assert_eq!(container["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(container["restartCount"], 2);
}

#[test]
fn a_deleted_pod_that_never_started_has_failed() {
    let mut case = Case::new("Always", PodView::default());
    case.over = true;
    assert_eq!(case.status()["phase"], "Failed");
}

#[test]
fn a_deleted_pod_ends_as_its_containers_did() {
    for (code, expected) in [(0, "Succeeded"), (137, "Failed")] {
        let mut case = Case::new(
            "Always",
            mk_view(vec![mk_container("c", 0, State::Exited, code)]),
        );
        case.over = true;
        assert_eq!(case.status()["phase"], expected);
    }
}

#[test]
fn a_terminal_phase_is_not_taken_back() {
    let mut case = Case::new(
        "Always",
        mk_view(vec![mk_container("c", 0, State::Running, 0)]),
    );
    case.previous.phase = Some("Failed".to_owned());
    assert_eq!(case.status()["phase"], "Failed");
}

#[test]
fn a_transition_time_stays_while_the_status_does() {
    let mut case = Case::new(
        "Always",
        mk_view(vec![mk_container("c", 0, State::Running, 0)]),
    );
    case.previous = serde_json::from_value(json!({"conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "example.com/gate", "status": "True"},
    ]}))
    .expect("a status");
    let status = case.status();
    let time = |kind: &str| {
        let conditions = status["conditions"].as_array().expect("conditions");
        conditions.iter().find(|c| c["type"] == kind).expect(kind)["lastTransitionTime"].clone()
    };
    assert_eq!(time("PodScheduled"), "2026-01-01T00:00:00Z");
    assert_eq!(time("Ready"), "2027-01-15T08:00:00Z");
    assert_eq!(condition(&status, "example.com/gate"), "True||");
}

#[test]
fn readiness_gates_hold_the_pod_back() {
    let mut case = Case::new(
        "Always",
        mk_view(vec![mk_container("c", 0, State::Running, 0)]),
    );
    case.pod = mk_pod(json!({
        "containers": [{"name": "c"}], "readinessGates": [{"conditionType": "example.com/gate"}],
    }));
    let status = case.status();
    assert_eq!(condition(&status, "ContainersReady"), "True||");
    assert_eq!(
        condition(&status, "Ready"),
        "False|ReadinessGatesNotReady|corresponding condition of pod readiness gate \"example.com/gate\" does not exist."
    );
}

#[test]
fn init_containers_hold_the_phase_and_are_named() {
    let mut case = Case::new(
        "Always",
        mk_view(vec![mk_container("i", 0, State::Running, 0)]),
    );
    case.pod = mk_pod(json!({
        "initContainers": [{"name": "i"}], "containers": [{"name": "c"}],
    }));
    let status = case.status();
    assert_eq!(status["phase"], "Pending");
    assert_eq!(
        status["containerStatuses"][0]["state"]["waiting"]["reason"],
        "PodInitializing"
    );
    assert_eq!(
        condition(&status, "Initialized"),
        "False|ContainersNotInitialized|containers with incomplete status: [i]"
    );
}

#[test]
fn a_verdict_fails_the_pod_with_its_reason() {
    let mut case = Case::new("Always", PodView::default());
    case.memory.verdict = Some(Verdict {
        reason: "OutOfcpu".to_owned(),
        message: "Pod was rejected".to_owned(),
        disruption: None,
        rejected: true,
    });
    let status = case.status();
    assert_eq!(
        status.get("containerStatuses"),
        None,
        "nothing of it ever ran"
    );
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("OutOfcpu"))
    );
}

#[test]
fn a_pod_out_of_time_ends_with_its_last_container() {
    let mut case = Case::new(
        "Always",
        mk_view(vec![mk_container("c", 0, State::Running, 0)]),
    );
    case.previous.phase = Some("Running".to_owned());
    case.memory.verdict = Some(Verdict {
        reason: "DeadlineExceeded".to_owned(),
        message: "too long".to_owned(),
        disruption: Some(("TerminationByKubelet".to_owned(), "low".to_owned())),
        rejected: false,
    });
    let status = case.status();
    assert_eq!(status["phase"], "Running");
    assert_eq!(status.get("reason"), None);
    assert_eq!(condition(&status, "Ready"), "True||");
    let types = status["conditions"].as_array().expect("conditions");
    assert!(types.iter().all(|c| c["type"] != "DisruptionTarget"));

    case.view = mk_view(vec![mk_container("c", 0, State::Exited, 137)]);
    let status = case.status();
    assert_eq!(
        (&status["phase"], &status["reason"], &status["message"]),
        (
            &json!("Failed"),
            &json!("DeadlineExceeded"),
            &json!("too long")
        )
    );
    assert_eq!(
        condition(&status, "DisruptionTarget"),
        "True|TerminationByKubelet|low"
    );
}

#[test]
fn a_pod_is_not_done_while_a_sidecar_runs() {
    let containers = vec![
        mk_container("c", 0, State::Exited, 0),
        mk_container("s", 0, State::Running, 0),
    ];
    let mut case = Case::new("Never", mk_view(containers));
    case.pod = mk_pod(json!({
        "restartPolicy": "Never", "containers": [{"name": "c"}],
        "initContainers": [{"name": "s", "restartPolicy": "Always"}],
    }));
    case.previous.phase = Some("Running".to_owned());
    assert_eq!(case.status()["phase"], "Running");
    case.view = mk_view(vec![
        mk_container("c", 0, State::Exited, 0),
        mk_container("s", 0, State::Exited, 0),
    ]);
    assert_eq!(case.status()["phase"], "Succeeded");
}
