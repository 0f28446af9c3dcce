//! Tables for the planner: a spec, what the runtime has, what must come next.

use serde_json::{Value, json};

use super::*;
use crate::pod::back_off::{BASE, SECOND};
use crate::pod::memory::{FailedProbe, ProbeState};
use crate::pod::spec::tests::mk_pod;

const NOW: Nanos = 1_000 * SECOND;

fn mk_sandbox(attempt: u32, ready: bool) -> SandboxView {
    SandboxView {
        id: format!("sandbox-{attempt}"),
        attempt,
        ready,
        created_at: Nanos::from(attempt) + 1,
        ips: vec!["10.244.1.2".to_owned()],
        host_network: false,
    }
}

fn mk_container(pod: &Pod, name: &str, restart_count: u32, state: State) -> ContainerView {
    let slot = spec::slot(pod, name).expect("the container is in the spec");
    ContainerView {
        id: format!("{name}-{restart_count}"),
        sandbox_id: "sandbox-0".to_owned(),
        name: name.to_owned(),
        restart_count,
        hash: spec::hash(&slot.container),
        state,
        created_at: Nanos::from(restart_count) + 1,
        finished_at: NOW - SECOND,
        ..ContainerView::default()
    }
}

fn mk_exited(pod: &Pod, name: &str, restart_count: u32, exit_code: i32) -> ContainerView {
    ContainerView {
        exit_code,
        ..mk_container(pod, name, restart_count, State::Exited)
    }
}

fn mk_view(sandboxes: Vec<SandboxView>, containers: Vec<ContainerView>) -> PodView {
    let mut view = PodView {
        sandboxes,
        containers,
    };
    view.sort();
    view
}

fn one(policy: &str) -> Pod {
    mk_pod(json!({"restartPolicy": policy, "containers": [{"name": "c", "image": "nginx"}]}))
}

fn with_init(init: Value) -> Pod {
    mk_pod(json!({
        "restartPolicy": "Always",
        "initContainers": init,
        "containers": [{"name": "c", "image": "nginx"}],
    }))
}

fn run(pod: &Pod, view: &PodView, memory: &Memory) -> Plan {
    plan(&Input {
        pod,
        view,
        memory,
        now: NOW,
    })
}

#[track_caller]
fn check(pod: &Pod, view: &PodView, expected: &[&str]) -> Plan {
    let plan = run(pod, view, &Memory::default());
    assert_eq!(brief(&plan), expected);
    plan
}

fn brief(plan: &Plan) -> Vec<String> {
    let actions = plan.actions.iter().map(|action| match action {
        Action::CreateSandbox { attempt, changed } => format!("sandbox {attempt} {changed}"),
        Action::StopSandboxes { ids } => format!("stop {}", ids.join(",")),
        Action::Start {
            name,
            restart_count,
            replaces,
            ..
        } => match replaces {
            None => format!("start {name} {restart_count}"),
            Some(id) => format!("start {name} {restart_count} for {id}"),
        },
        Action::Kill { id, .. } => format!("kill {id}"),
        Action::Resize { id, .. } => format!("resize {id}"),
    });
    actions
        .chain(plan.finished.then(|| "finished".to_owned()))
        .collect()
}

#[test]
fn a_new_pod_gets_a_sandbox_first() {
    check(&one("Always"), &PodView::default(), &["sandbox 0 false"]);
}

#[test]
fn all_containers_start_in_a_ready_sandbox() {
    let pod = mk_pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
    check(
        &pod,
        &mk_view(vec![mk_sandbox(0, true)], vec![]),
        &["start a 0", "start b 0"],
    );
}

#[test]
fn a_running_pod_needs_nothing() {
    let pod = one("Always");
    let view = mk_view(
        vec![mk_sandbox(0, true)],
        vec![mk_container(&pod, "c", 0, State::Running)],
    );
    let plan = check(&pod, &view, &[]);
    assert_eq!(plan.wake_at, None);
}

#[test]
fn a_dead_sandbox_is_cleared_and_replaced() {
    let pod = one("Always");
    let running = mk_container(&pod, "c", 0, State::Running);
    check(
        &pod,
        &mk_view(vec![mk_sandbox(0, false)], vec![running]),
        &["stop sandbox-0"],
    );
    let exited = mk_exited(&pod, "c", 0, 137);
    check(
        &pod,
        &mk_view(vec![mk_sandbox(0, false)], vec![exited.clone()]),
        &["sandbox 1 true"],
    );
    let both = vec![mk_sandbox(0, false), mk_sandbox(1, true)];
    check(&pod, &mk_view(both, vec![exited]), &["start c 1"]);
}

#[test]
fn a_sandbox_without_an_address_is_replaced_unless_it_has_the_hosts_network() {
    let pod = one("Always");
    let mut sandbox = mk_sandbox(0, true);
    sandbox.ips.clear();
    check(
        &pod,
        &mk_view(vec![sandbox.clone()], vec![]),
        &["stop sandbox-0"],
    );
    sandbox.host_network = true;
    check(&pod, &mk_view(vec![sandbox], vec![]), &["start c 0"]);
}

#[test]
fn ended_containers_follow_the_restart_policy() {
    let cases: [(&str, i32, &[&str]); 6] = [
        ("Always", 0, &["start c 1"]),
        ("Always", 1, &["start c 1"]),
        ("OnFailure", 0, &["finished"]),
        ("OnFailure", 1, &["start c 1"]),
        ("Never", 0, &["finished"]),
        ("Never", 1, &["finished"]),
    ];
    for (policy, exit_code, expected) in cases {
        let pod = one(policy);
        let exited = mk_exited(&pod, "c", 0, exit_code);
        check(
            &pod,
            &mk_view(vec![mk_sandbox(0, true)], vec![exited.clone()]),
            expected,
        );
    }
}

#[test]
fn a_finished_pod_stays_finished_without_its_sandbox() {
    let pod = one("Never");
    let exited = mk_exited(&pod, "c", 0, 1);
    check(
        &pod,
        &mk_view(vec![mk_sandbox(0, false)], vec![exited]),
        &["finished"],
    );
}

#[test]
fn a_crash_loop_waits_for_its_back_off() {
    let pod = one("Always");
    let view = mk_view(vec![mk_sandbox(0, true)], vec![mk_exited(&pod, "c", 3, 1)]);
    let mut memory = Memory::default();
    memory
        .container("c")
        .crash
        .fail(NOW - 20 * SECOND, NOW - 20 * SECOND);
    let plan = run(&pod, &view, &memory);
    assert_eq!(brief(&plan), Vec::<String>::new());
    assert_eq!(plan.wake_at, Some(NOW - SECOND + BASE));
    assert_eq!(plan.waiting[0].1.reason, "CrashLoopBackOff");
    assert_eq!(
        plan.waiting[0].1.message,
        "back-off 10s restarting failed container=c pod=p_ns(u-1)"
    );
}

#[test]
fn a_failed_creation_is_retried_only_when_its_time_has_come() {
    let pod = one("Always");
    let view = mk_view(vec![mk_sandbox(0, true)], vec![]);
    let mut memory = Memory::default();
    memory.container("c").retry_at = NOW + SECOND;
    assert_eq!(run(&pod, &view, &memory).wake_at, Some(NOW + SECOND));
    memory.container("c").retry_at = NOW;
    assert_eq!(brief(&run(&pod, &view, &memory)), ["start c 0"]);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let pod = with_init(json!([{"name": "i1"}, {"name": "i2"}]));
    let sandbox = || vec![mk_sandbox(0, true)];
    check(&pod, &mk_view(sandbox(), vec![]), &["start i1 0"]);
    let i1 = mk_container(&pod, "i1", 0, State::Running);
    check(&pod, &mk_view(sandbox(), vec![i1]), &[]);
    let i1 = mk_exited(&pod, "i1", 0, 0);
    check(&pod, &mk_view(sandbox(), vec![i1.clone()]), &["start i2 0"]);
    let failed = mk_exited(&pod, "i2", 0, 1);
    check(
        &pod,
        &mk_view(sandbox(), vec![i1.clone(), failed]),
        &["start i2 1"],
    );
    let i2 = mk_exited(&pod, "i2", 1, 0);
    check(&pod, &mk_view(sandbox(), vec![i1, i2]), &["start c 0"]);
}

#[test]
fn init_containers_run_again_in_a_new_sandbox() {
    let pod = with_init(json!([{"name": "i1"}]));
    let old = vec![mk_exited(&pod, "i1", 0, 0), mk_exited(&pod, "c", 0, 137)];
    let view = mk_view(vec![mk_sandbox(0, false), mk_sandbox(1, true)], old);
    check(&pod, &view, &["start i1 1"]);
}

#[test]
fn a_failed_init_container_of_a_pod_that_never_restarts_ends_it() {
    let pod = mk_pod(json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c"}],
    }));
    let view = mk_view(vec![mk_sandbox(0, true)], vec![mk_exited(&pod, "i", 0, 1)]);
    check(&pod, &view, &["finished"]);
}

#[test]
fn a_sidecar_lets_the_next_start_and_is_restarted_even_in_pods_that_never_restart() {
    let pod = mk_pod(json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "c"}],
    }));
    let sandbox = || vec![mk_sandbox(0, true)];
    check(&pod, &mk_view(sandbox(), vec![]), &["start s 0"]);
    let s = mk_container(&pod, "s", 0, State::Running);
    check(&pod, &mk_view(sandbox(), vec![s.clone()]), &["start c 0"]);
    let c = mk_container(&pod, "c", 0, State::Running);
    check(&pod, &mk_view(sandbox(), vec![s.clone(), c.clone()]), &[]);
    check(
        &pod,
        &mk_view(sandbox(), vec![mk_exited(&pod, "s", 0, 0), c]),
        &["start s 1"],
    );
    let ended = mk_exited(&pod, "c", 0, 0);
    check(&pod, &mk_view(sandbox(), vec![s, ended]), &["finished"]);
}

#[test]
fn a_sidecar_with_a_startup_probe_holds_the_rest_until_it_passes() {
    let pod = with_init(json!([{
        "name": "s", "restartPolicy": "Always",
        "startupProbe": {"tcpSocket": {"port": 80}},
    }]));
    let s = mk_container(&pod, "s", 0, State::Running);
    let view = mk_view(vec![mk_sandbox(0, true)], vec![s.clone()]);
    check(&pod, &view, &[]);
    let mut memory = Memory::default();
    memory.container("s").probes = ProbeState {
        container_id: s.id,
        started: true,
        ..ProbeState::default()
    };
    assert_eq!(brief(&run(&pod, &view, &memory)), ["start c 0"]);
}

#[test]
fn a_failed_liveness_probe_kills_its_own_instance_only() {
    let pod = one("Always");
    let running = mk_container(&pod, "c", 2, State::Running);
    let view = mk_view(vec![mk_sandbox(0, true)], vec![running]);
    let failed = Some(FailedProbe {
        kind: "liveness",
        grace_seconds: Some(5),
    });
    let mut memory = Memory::default();
    memory.container("c").probes = ProbeState {
        container_id: "c-1".to_owned(),
        failed: failed.clone(),
        ..Default::default()
    };
    assert!(
        run(&pod, &view, &memory).actions.is_empty(),
        "an older instance's verdict is void"
    );
    memory.container("c").probes = ProbeState {
        container_id: "c-2".to_owned(),
        failed,
        ..Default::default()
    };
    let plan = run(&pod, &view, &memory);
    let Action::Kill {
        message,
        grace_seconds,
        ..
    } = &plan.actions[0]
    else {
        panic!("expected a kill, got {plan:?}");
    };
    assert_eq!(
        message,
        "Container c failed liveness probe, will be restarted"
    );
    assert_eq!(*grace_seconds, Some(5));
}

#[test]
fn a_changed_image_replaces_the_container() {
    let old = one("Always");
    let running = mk_container(&old, "c", 0, State::Running);
    let new =
        mk_pod(json!({"restartPolicy": "Always", "containers": [{"name": "c", "image": "b"}]}));
    check(
        &new,
        &mk_view(vec![mk_sandbox(0, true)], vec![running]),
        &["kill c-0"],
    );
}

#[test]
fn a_container_left_created_by_a_killed_kubelet_is_replaced_without_counting() {
    let pod = one("Always");
    let created = mk_container(&pod, "c", 4, State::Created);
    let view = mk_view(vec![mk_sandbox(0, true)], vec![created]);
    check(&pod, &view, &["start c 4 for c-4"]);
}

#[test]
fn a_container_the_runtime_forgot_still_counts_as_restarted() {
    let pod = one("Always");
    let mut memory = Memory::default();
    memory.at_start = serde_json::from_value(json!({"containerStatuses": [{
        "name": "c", "image": "nginx", "imageID": "", "ready": true, "restartCount": 2,
        "containerID": "containerd://gone",
    }]}))
    .expect("a status");
    let plan = run(&pod, &mk_view(vec![mk_sandbox(0, true)], vec![]), &memory);
    assert_eq!(brief(&plan), ["start c 3"]);
}

#[test]
fn ephemeral_containers_start_once_and_never_again() {
    let pod = mk_pod(json!({
        "containers": [{"name": "c"}],
        "ephemeralContainers": [{"name": "e", "image": "busybox"}],
    }));
    let c = mk_container(&pod, "c", 0, State::Running);
    let sandbox = || vec![mk_sandbox(0, true)];
    check(&pod, &mk_view(sandbox(), vec![c.clone()]), &["start e 0"]);
    let e = mk_exited(&pod, "e", 0, 1);
    check(&pod, &mk_view(sandbox(), vec![c, e]), &[]);
}

#[test]
fn a_failed_sandbox_is_tried_again_later() {
    let mut memory = Memory::default();
    memory.sandbox_retry_at = NOW + SECOND;
    let plan = run(&one("Always"), &PodView::default(), &memory);
    assert_eq!((brief(&plan).len(), plan.wake_at), (0, Some(NOW + SECOND)));
}

#[test]
fn a_crash_whose_restart_is_under_way_is_not_waited_for() {
    let pod = one("Always");
    let crashed = mk_exited(&pod, "c", 0, 1);
    let mut memory = Memory::default();
    memory
        .container("c")
        .crash
        .fail(crashed.finished_at, crashed.finished_at);
    memory.container("c").starting = true;
    let view = mk_view(vec![mk_sandbox(0, true)], vec![crashed]);
    let plan = run(&pod, &view, &memory);
    assert_eq!((brief(&plan).len(), plan.waiting.len()), (0, 0));
}

#[test]
fn changed_resources_are_given_or_the_container_restarts_as_its_policy_says() {
    let mk = |cpu: &str, policy: &str| {
        mk_pod(json!({"containers": [{
            "name": "c", "resources": {"requests": {"cpu": cpu}},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}],
        }]}))
    };
    let cases: [(&str, &str, &[&str]); 3] = [
        ("1000m", "NotRequired", &[]),
        ("2", "NotRequired", &["resize c-0"]),
        ("2", "RestartContainer", &["kill c-0"]),
    ];
    for (cpu, policy, expected) in cases {
        let pod = mk(cpu, policy);
        let running = mk_container(&pod, "c", 0, State::Running);
        let mut memory = Memory::default();
        let has = serde_json::from_value(json!({"requests": {"cpu": "1"}})).expect("resources");
        memory.container("c").given = Some((running.id.clone(), has));
        let view = mk_view(vec![mk_sandbox(0, true)], vec![running]);
        assert_eq!(
            brief(&run(&pod, &view, &memory)),
            expected,
            "{cpu} {policy}"
        );
    }
}
