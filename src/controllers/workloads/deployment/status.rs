//! What a Deployment says of itself: counts, and whether it is available and progresses. Pure.

use std::time::Duration;

use apimachinery::time::{Time, format, parse};
use client::ClientError;

use super::{Deployment, DeploymentCondition, DeploymentStatus, history, rollout};
use crate::{objects::Condition, workloads::replica_set::ReplicaSet};

/// `progressDeadlineSeconds` that stands for none (NoProgressDeadline).
const NO_DEADLINE: i64 = i32::MAX as i64;
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const COMPLETE: &str = "NewReplicaSetAvailable";
const PAUSED: &str = "DeploymentPaused";

/// What this reconcile did that the status tells of.
#[derive(Default)]
pub struct Done {
    /// The new ReplicaSet's name.
    pub created: Option<String>,
    /// Another ReplicaSet has the name of the new one.
    pub collided: bool,
    /// Why there is no new ReplicaSet.
    pub create_error: Option<String>,
    pub failed: Option<ClientError>,
}

/// The status, and when to look again for the progress deadline.
pub fn status(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    done: &Done,
    now: Time,
) -> (DeploymentStatus, Option<Duration>) {
    let new = history::new_set(deployment, sets);
    let sum = |of: &dyn Fn(&ReplicaSet) -> i64| sets.iter().map(|set| of(set)).sum::<i64>();
    let total = sum(&ReplicaSet::replicas);
    let available = sum(&|set| set.status.available_replicas);
    let terminating: Option<i64> = sets.iter().map(|set| set.status.terminating_replicas).sum();
    let collisions = deployment.status.collision_count;
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: sum(&|set| set.status.replicas),
        updated_replicas: new.map_or(0, |new| sets[new].status.replicas),
        ready_replicas: sum(&|set| set.status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: (total - available).max(0),
        terminating_replicas: terminating,
        collision_count: if done.collided {
            Some(collisions.unwrap_or(0) + 1)
        } else {
            collisions
        },
        conditions: deployment.status.conditions.clone(),
    };
    let enough = available >= deployment.replicas() - rollout::max_unavailable(deployment);
    let condition = if enough {
        Said {
            kind: "Available",
            status: "True",
            reason: "MinimumReplicasAvailable",
            message: "Deployment has minimum availability.".into(),
        }
    } else {
        Said {
            kind: "Available",
            status: "False",
            reason: "MinimumReplicasUnavailable",
            message: "Deployment does not have minimum availability.".into(),
        }
    };
    condition.put(&mut status.conditions, now);
    let retry = progress(deployment, sets, new, done, &mut status, now);
    failure(sets, &mut status.conditions, now);
    (status, retry)
}

fn progress(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    new: Option<usize>,
    done: &Done,
    status: &mut DeploymentStatus,
    now: Time,
) -> Option<Duration> {
    let deadline = deployment.spec.progress_deadline_seconds;
    let Some(deadline) = deadline.filter(|seconds| *seconds != NO_DEADLINE) else {
        status.conditions.retain(|one| !one.is("Progressing"));
        return None;
    };
    pause(deployment, status, now);
    if deployment.spec.paused {
        return None;
    }
    found(sets, new, done, status, now);
    let new = new.map(|new| &sets[new].metadata.name);
    let subject = match new.or(done.created.as_ref()) {
        Some(name) => format!("ReplicaSet {name:?}"),
        None => format!("Deployment {:?}", deployment.metadata.name),
    };
    let reason = reason_of(&status.conditions);
    // Nothing is progressing: what was rolled out is all there is, however many of it are available.
    let rolled_out = status.replicas == status.updated_replicas && reason == Some(COMPLETE);
    let complete = is_complete(deployment, status);
    if !rolled_out {
        if complete {
            Said::progressing(
                "True",
                COMPLETE,
                format!("{subject} has successfully progressed."),
            )
            .put(&mut status.conditions, now);
        } else if moved(&deployment.status, status) {
            restart(&subject, status, now);
        } else if is_timed_out(status, deadline, now) {
            Said::progressing(
                "False",
                TIMED_OUT,
                format!("{subject} has timed out progressing."),
            )
            .put(&mut status.conditions, now);
        }
    }
    let condition = status.conditions.iter().find(|one| one.is("Progressing"))?;
    if complete || [TIMED_OUT, COMPLETE].contains(&condition.condition.reason.as_str()) {
        return None;
    }
    let left = due(condition, deadline)? - now;
    Some(Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1))
}

/// All replicas are of the present template and available, and no old ones are left (DeploymentComplete).
fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let replicas = deployment.replicas();
    status.updated_replicas == replicas
        && status.replicas == replicas
        && status.available_replicas == replicas
}

/// Whether there are more new, fewer old, more ready or more available pods than before (DeploymentProgressing).
fn moved(before: &DeploymentStatus, status: &DeploymentStatus) -> bool {
    status.updated_replicas > before.updated_replicas
        || (status.replicas - status.updated_replicas) < (before.replicas - before.updated_replicas)
        || status.ready_replicas > before.ready_replicas
        || status.available_replicas > before.available_replicas
}

/// Says that a pause begins or ends; the time paused does not count against the deadline.
fn pause(deployment: &Deployment, status: &mut DeploymentStatus, now: Time) {
    let reason = reason_of(&status.conditions);
    if reason == Some(TIMED_OUT) {
        return;
    }
    let was_paused = reason == Some(PAUSED);
    let (reason, message) = match (deployment.spec.paused, was_paused) {
        (true, false) => (PAUSED, "Deployment is paused"),
        (false, true) => ("DeploymentResumed", "Deployment is resumed"),
        _ => return,
    };
    Said::progressing("Unknown", reason, message.into()).put(&mut status.conditions, now);
}

/// Says that the new ReplicaSet was made, found, or could not be made.
fn found(
    sets: &[&ReplicaSet],
    new: Option<usize>,
    done: &Done,
    status: &mut DeploymentStatus,
    now: Time,
) {
    let said = if let Some(name) = &done.created {
        let message = format!("Created new replica set {name:?}");
        Said::progressing("True", "NewReplicaSetCreated", message)
    } else if let Some(error) = &done.create_error {
        Said::progressing("False", "ReplicaSetCreateError", error.clone())
    } else if let (Some(new), None) = (new, reason_of(&status.conditions)) {
        let message = format!("Found new replica set {:?}", sets[new].metadata.name);
        Said::progressing("True", "FoundNewReplicaSet", message)
    } else {
        return;
    };
    said.put(&mut status.conditions, now);
}

/// Says that it progresses, and counts the deadline anew.
fn restart(subject: &str, status: &mut DeploymentStatus, now: Time) {
    let message = format!("{subject} is progressing.");
    let mut condition = Said::progressing("True", "ReplicaSetUpdated", message).at(now);
    let old = status.conditions.iter().find(|one| one.is("Progressing"));
    if let Some(old) = old.filter(|old| old.condition.status == "True") {
        condition.condition.last_transition_time = old.condition.last_transition_time.clone();
    }
    status.conditions.retain(|one| !one.is("Progressing"));
    status.conditions.push(condition);
}

fn is_timed_out(status: &DeploymentStatus, deadline: i64, now: Time) -> bool {
    let Some(condition) = status.conditions.iter().find(|one| one.is("Progressing")) else {
        return false;
    };
    match condition.condition.reason.as_str() {
        COMPLETE => false,
        TIMED_OUT => true,
        _ => due(condition, deadline).is_some_and(|due| due < now),
    }
}

fn due(condition: &DeploymentCondition, deadline: i64) -> Option<Time> {
    let since = parse(condition.last_update_time.as_deref()?)?;
    Some(since + Duration::from_secs(u64::try_from(deadline).unwrap_or(0)))
}

fn reason_of(conditions: &[DeploymentCondition]) -> Option<&str> {
    let progressing = conditions.iter().find(|one| one.is("Progressing"))?;
    Some(progressing.condition.reason.as_str())
}

/// A ReplicaSet that cannot make its pods shows in the Deployment.
fn failure(sets: &[&ReplicaSet], conditions: &mut Vec<DeploymentCondition>, now: Time) {
    let mut all = sets.iter().flat_map(|set| &set.status.conditions);
    match all.find(|one| one.kind == "ReplicaFailure" && one.status == "True") {
        Some(failed) => Said {
            kind: "ReplicaFailure",
            status: "True",
            reason: &failed.reason,
            message: failed.message.clone(),
        }
        .put(conditions, now),
        None => conditions.retain(|one| !one.is("ReplicaFailure")),
    }
}

impl DeploymentCondition {
    fn is(&self, kind: &str) -> bool {
        self.condition.kind == kind
    }
}

/// A condition to be put.
struct Said<'a> {
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: String,
}

impl<'a> Said<'a> {
    fn progressing(status: &'a str, reason: &'a str, message: String) -> Self {
        Said {
            kind: "Progressing",
            status,
            reason,
            message,
        }
    }

    fn at(self, now: Time) -> DeploymentCondition {
        DeploymentCondition {
            condition: Condition {
                kind: self.kind.into(),
                status: self.status.into(),
                reason: self.reason.into(),
                message: self.message,
                last_transition_time: Some(format(now)),
                ..Condition::default()
            },
            last_update_time: Some(format(now)),
        }
    }

    /// Puts it unless it says nothing new; while the status stays, so does the transition time.
    fn put(self, conditions: &mut Vec<DeploymentCondition>, now: Time) {
        let mut new = self.at(now);
        if let Some(index) = conditions
            .iter()
            .position(|one| one.is(&new.condition.kind))
        {
            let old = &conditions[index].condition;
            if (&old.status, &old.reason) == (&new.condition.status, &new.condition.reason) {
                return;
            }
            if old.status == new.condition.status {
                new.condition.last_transition_time = old.last_transition_time.clone();
            }
            conditions.remove(index);
        }
        conditions.push(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::time::now;
    use serde_json::{Value, json};

    fn deployment(status: Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "progressDeadlineSeconds": 60, "template": {"v": 1}},
            "status": status,
        }))
        .unwrap()
    }

    fn set(replicas: i64, available: i64) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1"},
            "spec": {"replicas": replicas, "template": {"v": 1}},
            "status": {"replicas": replicas, "availableReplicas": available, "terminatingReplicas": 1},
        }))
        .unwrap()
    }

    #[track_caller]
    fn check(
        deployment: &Deployment,
        set: &ReplicaSet,
        now: Time,
        expected: (&str, &str),
    ) -> DeploymentStatus {
        let (status, _) = status(deployment, &[set], &Done::default(), now);
        let progressing = status
            .conditions
            .iter()
            .find(|one| one.is("Progressing"))
            .unwrap();
        let progressing = &progressing.condition;
        assert_eq!(
            (progressing.status.as_str(), progressing.reason.as_str()),
            expected
        );
        status
    }

    #[test]
    fn a_rollout_of_no_pods_is_complete_at_once_and_names_the_set_it_made() {
        let mut web = deployment(json!({}));
        web.spec.replicas = Some(0);
        let done = Done {
            created: Some("web-1".into()),
            ..Done::default()
        };
        let (status, _) = status(&web, &[], &done, now());
        let progressing = status.conditions.iter().find(|one| one.is("Progressing"));
        assert_eq!(
            progressing.unwrap().condition.message,
            r#"ReplicaSet "web-1" has successfully progressed."#
        );
    }

    #[test]
    fn a_rollout_is_found_moves_and_is_complete_or_late() {
        let start = now();
        let mut web = deployment(json!({}));
        web.status = check(&web, &set(2, 0), start, ("True", "ReplicaSetUpdated"));
        web.status = check(&web, &set(2, 1), start, ("True", "ReplicaSetUpdated"));
        let late = start + Duration::from_secs(62);
        let timed_out = check(&web, &set(2, 1), late, ("False", TIMED_OUT));
        assert_eq!(timed_out.terminating_replicas, Some(1));
        web.status = check(&web, &set(2, 2), late, ("True", COMPLETE));
        // A pod that dies later is no rollout.
        web.status = check(&web, &set(2, 1), late, ("True", COMPLETE));
        let later = late + Duration::from_secs(600);
        check(&web, &set(2, 1), later, ("True", COMPLETE));
    }

    #[test]
    fn a_pause_stops_the_deadline_and_its_end_starts_it_anew() {
        let start = now();
        let mut web = deployment(json!({}));
        web.status = check(&web, &set(2, 0), start, ("True", "ReplicaSetUpdated"));
        web.spec.paused = true;
        let late = start + Duration::from_secs(600);
        web.status = check(&web, &set(2, 0), late, ("Unknown", PAUSED));
        web.spec.paused = false;
        web.status = check(&web, &set(2, 0), late, ("Unknown", "DeploymentResumed"));
        check(
            &web,
            &set(2, 0),
            late + Duration::from_secs(62),
            ("False", TIMED_OUT),
        );
    }

    #[test]
    fn a_set_that_cannot_make_pods_and_a_set_that_cannot_be_made_are_told() {
        let web = deployment(json!({}));
        let mut failing = set(2, 0);
        failing.status.conditions = vec![Condition {
            kind: "ReplicaFailure".into(),
            status: "True".into(),
            reason: "FailedCreate".into(),
            ..Condition::default()
        }];
        let told = check(&web, &failing, now(), ("True", "ReplicaSetUpdated"));
        assert!(told.conditions.iter().any(|one| one.is("ReplicaFailure")));
        let done = Done {
            collided: true,
            create_error: Some("no".into()),
            ..Done::default()
        };
        let (status, _) = status(&web, &[], &done, now());
        assert_eq!(status.collision_count, Some(1));
        assert_eq!(reason_of(&status.conditions), Some("ReplicaSetCreateError"));
    }
}
