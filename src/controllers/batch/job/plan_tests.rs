//! Tables of what a Job does next.

use super::*;
use apimachinery::time::now;
use serde_json::{Value, json};

fn job(spec: Value, status: Value) -> Job {
    serde_json::from_value(json!({
        "metadata": {"name": "j", "namespace": "n", "uid": "job"}, "spec": spec, "status": status,
    }))
    .unwrap()
}

fn indexed(mut spec: Value, status: Value) -> Job {
    spec["completionMode"] = json!("Indexed");
    job(spec, status)
}

/// A tracked pod; `index` below 0 is none. Failed pods failed long ago.
fn pod(name: &str, index: i64, phase: &str) -> Seen {
    let mut value = json!({
        "metadata": {"name": name, "uid": name, "finalizers": [TRACKING], "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": phase},
    });
    if index >= 0 {
        value["metadata"]["annotations"] = json!({INDEX: index.to_string()});
    }
    Seen {
        pod: Arc::new(serde_json::from_value(value).unwrap()),
        deleting: false,
    }
}

fn changed(seen: Seen, change: impl FnOnce(&mut Pod)) -> Seen {
    let mut pod = (*seen.pod).clone();
    change(&mut pod);
    Seen {
        pod: Arc::new(pod),
        ..seen
    }
}

fn untracked(seen: Seen) -> Seen {
    changed(seen, |pod| pod.metadata.finalizers.clear())
}

fn with(seen: Seen, annotation: &str, value: &str) -> Seen {
    changed(seen, |pod| {
        let annotations = &mut pod.metadata.annotations;
        annotations.insert(annotation.into(), value.into());
    })
}

fn planned(job: &Job, pods: &[Seen]) -> Plan {
    plan(&Observed {
        job,
        pods,
        now: now(),
    })
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| pod.metadata.name.as_str()).collect()
}

fn indexes(plan: &Plan) -> Vec<i64> {
    plan.create.iter().filter_map(|new| new.index).collect()
}

fn holds(plan: &Plan) -> Vec<(&str, &str)> {
    let conditions = plan.status.conditions.iter();
    conditions
        .filter(|one| one.status == "True")
        .map(|one| (one.kind.as_str(), one.reason.as_str()))
        .collect()
}

#[test]
fn as_many_pods_are_made_as_may_run_and_are_still_needed() {
    let three = job(json!({"parallelism": 2, "completions": 3}), json!({}));
    assert_eq!(planned(&three, &[]).create.len(), 2);
    let one_done = [pod("a", -1, "Succeeded"), pod("b", -1, "Running")];
    assert_eq!(planned(&three, &one_done).create.len(), 1);
    let two_done = job(
        json!({"parallelism": 2, "completions": 3}),
        json!({"succeeded": 2}),
    );
    assert_eq!(planned(&two_done, &[]).create.len(), 1);
    let queue = job(json!({"parallelism": 2}), json!({}));
    let plan = planned(&queue, &one_done);
    assert!(plan.create.is_empty() && plan.delete.is_empty());
    let fewer = job(json!({"parallelism": 1, "completions": 3}), json!({}));
    let both = [pod("pending", -1, "Pending"), pod("running", -1, "Running")];
    assert_eq!(names(&planned(&fewer, &both).delete), ["pending"]);
}

#[test]
fn an_ended_pod_is_noted_then_let_go_then_counted() {
    let one = job(
        json!({"completions": 1}),
        json!({"uncountedTerminatedPods": {}}),
    );
    let first = planned(&one, &[pod("a", -1, "Succeeded")]);
    let uncounted = first.status.uncounted_terminated_pods.clone().unwrap();
    assert_eq!((first.status.succeeded, uncounted.succeeded.len()), (0, 1));
    assert_eq!(names(&first.release), ["a"]);
    assert_eq!(
        holds(&first),
        [("SuccessCriteriaMet", "CompletionsReached")]
    );

    let mut noted = one.clone();
    noted.status = first.status;
    let again = planned(&noted, &[pod("a", -1, "Succeeded")]);
    assert_eq!(again.status, noted.status);
    assert_eq!(names(&again.release), ["a"]);

    for pods in [vec![untracked(pod("a", -1, "Succeeded"))], vec![]] {
        let last = planned(&noted, &pods);
        assert_eq!(last.status.succeeded, 1);
        assert_eq!(
            last.status.uncounted_terminated_pods,
            Some(Uncounted::default())
        );
        assert_eq!(holds(&last)[1], ("Complete", "CompletionsReached"));
        assert!(last.status.completion_time.is_some());
        assert_eq!(last.events.len(), 1);
    }
}

#[test]
fn a_failure_is_replaced_after_a_pause_until_there_are_too_many() {
    let patient = job(json!({"completions": 1, "backoffLimit": 1}), json!({}));
    let old = planned(&patient, &[pod("a", -1, "Failed")]);
    assert_eq!(old.create.len(), 1);
    let fresh = changed(pod("a", -1, "Failed"), |pod| {
        pod.metadata.creation_timestamp = Some(apimachinery::time::now_text());
    });
    let waiting = planned(&patient, &[fresh]);
    assert!(waiting.create.is_empty() && waiting.again.is_some());

    let counted = job(
        json!({"completions": 1, "backoffLimit": 1}),
        json!({"failed": 1}),
    );
    let pods = [pod("b", -1, "Failed"), pod("c", -1, "Running")];
    let over = planned(&counted, &pods);
    assert_eq!(holds(&over), [("FailureTarget", "BackoffLimitExceeded")]);
    assert_eq!(names(&over.delete), ["c"]);
    assert_eq!(over.status.terminating, Some(1));
    let mut ending = counted.clone();
    ending.status = over.status;
    let last = planned(&ending, &[untracked(pod("b", -1, "Failed"))]);
    assert_eq!(holds(&last)[1], ("Failed", "BackoffLimitExceeded"));
    assert_eq!(last.status.failed, 2);
}

#[test]
fn a_deadline_ends_the_job_and_is_waited_for() {
    let spec = json!({"completions": 1, "activeDeadlineSeconds": 60});
    let late = job(spec.clone(), json!({"startTime": "2026-01-01T00:00:00Z"}));
    assert_eq!(
        holds(&planned(&late, &[])),
        [
            ("FailureTarget", "DeadlineExceeded"),
            ("Failed", "DeadlineExceeded"),
        ]
    );
    let early = planned(&job(spec, json!({})), &[]);
    assert!(early.again.is_some_and(|again| again.as_secs() <= 60));
}

#[test]
fn a_suspended_job_has_no_pods_and_starts_anew_when_resumed() {
    let held = job(json!({"completions": 1, "suspend": true}), json!({}));
    let plan = planned(&held, &[pod("a", -1, "Running")]);
    assert_eq!(names(&plan.delete), ["a"]);
    assert_eq!(holds(&plan), [("Suspended", "JobSuspended")]);
    assert!(plan.status.start_time.is_none());
    let mut resumed = job(json!({"completions": 1}), json!({}));
    resumed.status = plan.status;
    let plan = planned(&resumed, &[]);
    assert!(plan.status.start_time.is_some() && holds(&plan).is_empty());
    assert_eq!(plan.create.len(), 1);
    assert_eq!(plan.events[0].1, "Resumed");
}

#[test]
fn indexes_are_made_once_and_completed_ones_are_remembered() {
    let spec = json!({"parallelism": 3, "completions": 5});
    let four = indexed(spec, json!({"completedIndexes": "0"}));
    let pods = [
        pod("b", 1, "Running"),
        pod("b2", 1, "Pending"),
        pod("x", 9, "Running"),
    ];
    let surplus = planned(&four, &pods);
    assert_eq!(names(&surplus.delete), ["x", "b2"]);
    let plan = planned(&four, &[pod("b", 1, "Running"), pod("c", 2, "Succeeded")]);
    assert_eq!(plan.status.completed_indexes, "0,2");
    assert_eq!(plan.status.succeeded, 2);
    assert_eq!(indexes(&plan), [3, 4]);
}

#[test]
fn an_index_fails_by_itself_and_its_last_pod_tells_how_often() {
    let spec = json!({"parallelism": 2, "completions": 2, "backoffLimitPerIndex": 1});
    let limited = indexed(spec.clone(), json!({}));
    let first = planned(&limited, &[pod("a", 0, "Failed"), pod("b", 1, "Running")]);
    assert_eq!(
        first.create,
        [NewPod {
            index: Some(0),
            failures: 1,
            ignored: 0
        }]
    );
    assert!(
        first.release.is_empty(),
        "it tells the count until it has a successor"
    );
    let successor = with(pod("a2", 0, "Running"), FAILURES, "1");
    let second = planned(
        &limited,
        &[pod("a", 0, "Failed"), successor, pod("b", 1, "Running")],
    );
    assert_eq!(names(&second.release), ["a"]);
    let again = with(pod("a2", 0, "Failed"), FAILURES, "1");
    let third = planned(&limited, &[again, pod("b", 1, "Succeeded")]);
    assert_eq!(third.status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(holds(&third), [("FailureTarget", "FailedIndexes")]);
    let mut strict = spec;
    strict["maxFailedIndexes"] = json!(0);
    let over = planned(&indexed(strict, json!({"failedIndexes": "1"})), &[]);
    assert_eq!(
        holds(&over)[0],
        ("FailureTarget", "MaxFailedIndexesExceeded")
    );
}

#[test]
fn failures_a_policy_ignores_do_not_count_and_fatal_ones_end_the_job() {
    let spec = |action: &str| {
        json!({"completions": 1, "backoffLimit": 0, "podFailurePolicy": {"rules": [
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}})
    };
    let evicted = changed(pod("a", -1, "Failed"), |pod| {
        pod.status.conditions = vec![crate::objects::Condition {
            kind: "DisruptionTarget".into(),
            status: "True".into(),
            ..Default::default()
        }];
    });
    let ignoring = planned(
        &job(spec("Ignore"), json!({})),
        std::slice::from_ref(&evicted),
    );
    assert!(holds(&ignoring).is_empty());
    assert_eq!(
        (ignoring.create.len(), names(&ignoring.release)),
        (1, vec!["a"])
    );
    let fatal = planned(
        &job(spec("FailJob"), json!({})),
        std::slice::from_ref(&evicted),
    );
    assert_eq!(holds(&fatal), [("FailureTarget", "PodFailurePolicy")]);
    let counting = planned(
        &job(spec("Count"), json!({})),
        std::slice::from_ref(&evicted),
    );
    assert_eq!(
        holds(&counting),
        [("FailureTarget", "BackoffLimitExceeded")]
    );
}

#[test]
fn a_pod_that_is_being_deleted_is_replaced_at_once_or_when_it_has_ended() {
    let going = Seen {
        deleting: true,
        ..pod("a", -1, "Running")
    };
    let spec = json!({"completions": 1, "podReplacementPolicy": "Failed"});
    let strict = planned(&job(spec, json!({})), std::slice::from_ref(&going));
    assert!(strict.create.is_empty());
    assert_eq!(strict.status.terminating, Some(1));
    let fresh = planned(
        &job(json!({"completions": 1}), json!({})),
        std::slice::from_ref(&going),
    );
    assert_eq!(fresh.create.len(), 1);
    assert_eq!(names(&fresh.release), ["a"]);
}

#[test]
fn an_early_success_ends_the_rest() {
    let spec = json!({"parallelism": 3, "completions": 3, "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    let pods = [pod("a", 0, "Succeeded"), pod("b", 1, "Running")];
    let plan = planned(&indexed(spec, json!({})), &pods);
    assert_eq!(holds(&plan), [("SuccessCriteriaMet", "SuccessPolicy")]);
    assert_eq!(names(&plan.delete), ["b"]);
}

#[test]
fn restarts_within_a_pod_count_against_the_limit() {
    let spec = json!({"completions": 1, "backoffLimit": 2, "template": {"spec": {"restartPolicy": "OnFailure"}}});
    let restarted = changed(pod("a", -1, "Running"), |pod| {
        pod.status.container_statuses = vec![crate::objects::ContainerStatus {
            restart_count: 2,
            ..Default::default()
        }];
    });
    let plan = planned(&job(spec, json!({})), &[restarted]);
    assert_eq!(holds(&plan), [("FailureTarget", "BackoffLimitExceeded")]);
}

#[test]
fn a_finished_or_deleted_job_lets_its_pods_go() {
    let done = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let plan = planned(
        &job(json!({"completions": 9}), done),
        &[pod("a", -1, "Failed")],
    );
    assert_eq!(names(&plan.release), ["a"]);
    assert!(plan.create.is_empty());
}
