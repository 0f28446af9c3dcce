//! What is next for a pod, and when. Pure: the pod as it is, the rules, and a hash of its uid that stands for chance.

use std::time::Duration;

use crate::{
    config::{Config, Match, Rule, Stage},
    pod::{Phase, Pod, RestartPolicy},
};

/// How long pods of Jobs run if no rule says so.
const JOB_TIME: Duration = Duration::from_secs(1);
/// Shares are told apart to this many parts.
const PARTS: u64 = 1_000_000;

/// What to do with a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// It starts to run; with `ready`, it is ready at the same time.
    Start {
        ready: bool,
    },
    /// It cannot start, with this reason.
    Hang {
        reason: String,
    },
    Ready,
    /// Its containers end and start again.
    Restart {
        exit_code: i32,
    },
    /// Its containers end for good.
    End {
        exit_code: i32,
    },
    /// It ran for longer than it may.
    Expire,
    Delete,
}

/// A place in a pod's life: the time to the next step counts from when it got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Bound,
    Started,
    Running { restarts: u32 },
    Leaving,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub place: Place,
    /// After having got to `place`.
    pub after: Duration,
    pub action: Action,
}

impl Match {
    fn holds(&self, pod: &Pod) -> bool {
        let among =
            |list: &[String], value: &str| list.is_empty() || list.iter().any(|one| one == value);
        let prefixes = &self.node_prefixes;
        among(&self.namespaces, &pod.namespace)
            && among(&self.owner_kinds, &pod.owner_kind)
            && (prefixes.is_empty()
                || prefixes
                    .iter()
                    .any(|prefix| pod.node.starts_with(prefix.as_str())))
            && self
                .labels
                .as_ref()
                .is_none_or(|labels| labels.matches(&pod.labels))
    }
}

/// The rule a pod follows; `None` is the default one.
fn rule<'a>(pod: &Pod, config: &'a Config) -> Option<&'a Rule> {
    config.rules.iter().find(|rule| rule.r#match.holds(pod))
}

/// What is next for the pod; `None` if nothing, until it changes.
pub fn next(pod: &Pod, config: &Config) -> Option<Step> {
    let default = Rule::default();
    let rule = rule(pod, config).unwrap_or(&default);
    if pod.is_deleting {
        let grace = Duration::from_secs(pod.grace.into());
        let after = chance(pod, "delete", 0).delay(&rule.delete).min(grace);
        return Some(Step {
            place: Place::Leaving,
            after,
            action: Action::Delete,
        });
    }
    match pod.phase {
        Phase::Ended => None,
        Phase::Pending if pod.is_stuck => None,
        Phase::Pending => Some(start(pod, rule)),
        Phase::Running => first(ends(pod, rule), expires(pod)),
    }
}

fn start(pod: &Pod, rule: &Rule) -> Step {
    let luck = chance(pod, "start", 0);
    let action = if luck.fails(&rule.start) {
        let reason = if rule.start.reason.is_empty() {
            "ImagePullBackOff"
        } else {
            &rule.start.reason
        };
        Action::Hang {
            reason: reason.into(),
        }
    } else {
        // One write less where nothing happens between.
        let luck = chance(pod, "ready", 0);
        Action::Start {
            ready: luck.delay(&rule.ready).is_zero() && !luck.fails(&rule.ready),
        }
    };
    Step {
        place: Place::Bound,
        after: luck.delay(&rule.start),
        action,
    }
}

/// Becoming ready, then ending.
fn ends(pod: &Pod, rule: &Rule) -> Option<Step> {
    if !pod.is_ready {
        let luck = chance(pod, "ready", 0);
        let after = luck.delay(&rule.ready);
        return (!luck.fails(&rule.ready)).then_some(Step {
            place: Place::Started,
            after,
            action: Action::Ready,
        });
    }
    let of_job = Stage::after(JOB_TIME);
    let is_job = &*pod.owner_kind == "Job" && pod.restart_policy != RestartPolicy::Always;
    let stage = rule.finish.as_ref().or(is_job.then_some(&of_job))?;
    let luck = chance(pod, "finish", pod.restarts);
    let exit_code = if luck.fails(stage) {
        stage.exit_code
    } else {
        0
    };
    let again = match pod.restart_policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    };
    let action = if again {
        Action::Restart { exit_code }
    } else {
        Action::End { exit_code }
    };
    Some(Step {
        place: Place::Running {
            restarts: pod.restarts,
        },
        after: luck.delay(stage),
        action,
    })
}

/// The deadline counts from the start, whatever restarts.
fn expires(pod: &Pod) -> Option<Step> {
    let after = Duration::from_secs(pod.deadline?.into());
    Some(Step {
        place: Place::Started,
        after,
        action: Action::Expire,
    })
}

/// The earlier of the two. A pod that gets ready or restarts is looked at anew.
fn first(step: Option<Step>, deadline: Option<Step>) -> Option<Step> {
    match (step, deadline) {
        (Some(step), Some(deadline)) if deadline.after < step.after => Some(deadline),
        (step, deadline) => step.or(deadline),
    }
}

/// Chance, the same each time it is asked about a pod's step.
#[derive(Clone, Copy)]
struct Luck(u64);

fn chance(pod: &Pod, step: &str, round: u32) -> Luck {
    // FNV-1a, with a finish that spreads the last bytes over all bits.
    let bytes = pod
        .uid
        .bytes()
        .chain(step.bytes())
        .chain(round.to_le_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    Luck(hash ^ (hash >> 33))
}

impl Luck {
    fn fails(self, stage: &Stage) -> bool {
        let part = self.0 % PARTS;
        (part as f64) < stage.failures * PARTS as f64
    }

    fn delay(self, stage: &Stage) -> Duration {
        let share = (self.0 / PARTS % PARTS) as f64 / PARTS as f64;
        stage.after + stage.jitter.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut value = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"app": "web"}},
            "spec": {"nodeName": "simulated-0", "restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Pending"},
        });
        change(&mut value);
        serde_json::from_value(value).expect("a pod")
    }

    fn running(value: &mut Value) {
        value["status"] =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    }

    fn of_job(value: &mut Value) {
        value["metadata"]["ownerReferences"] =
            json!([{"kind": "Job", "name": "j", "controller": true}]);
        value["spec"]["restartPolicy"] = json!("Never");
    }

    fn config(text: &str) -> Config {
        Config::read(text).expect("a configuration")
    }

    #[track_caller]
    fn check(pod: &Pod, config: &Config, expected: Option<(u64, Action)>) {
        let step = next(pod, config)
            .map(|step| (u64::try_from(step.after.as_millis()).unwrap(), step.action));
        assert_eq!(step, expected);
    }

    #[test]
    fn without_rules_pods_run_at_once_and_jobs_end_after_a_second() {
        let none = Config::default();
        check(
            &pod(|_| {}),
            &none,
            Some((0, Action::Start { ready: true })),
        );
        check(&pod(running), &none, None);
        let job = |value: &mut Value| {
            of_job(value);
            running(value);
        };
        check(&pod(job), &none, Some((1000, Action::End { exit_code: 0 })));
        check(
            &pod(|value| value["status"]["phase"] = json!("Succeeded")),
            &none,
            None,
        );
        let deleting = pod(|value| {
            running(value);
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        check(&deleting, &none, Some((0, Action::Delete)));
    }

    #[test]
    fn the_first_rule_that_matches_holds() {
        let config = config(
            "
rules:
- match: {labels: app=web, namespaces: [other]}
  start: {after: 9s}
- match: {labels: app=web}
  start: {after: 2s}
  ready: {after: 3s}
  finish: {after: 4s, failures: 1, exitCode: 7}
  delete: {after: 60s}
- start: {failures: 1, reason: ErrImagePull}
",
        );
        check(
            &pod(|_| {}),
            &config,
            Some((2000, Action::Start { ready: false })),
        );
        check(
            &pod(|value| value["status"]["phase"] = json!("Running")),
            &config,
            Some((3000, Action::Ready)),
        );
        check(
            &pod(running),
            &config,
            Some((4000, Action::Restart { exit_code: 7 })),
        );
        let never = pod(|value| {
            of_job(value);
            running(value);
        });
        check(&never, &config, Some((4000, Action::End { exit_code: 7 })));
        let leaving = pod(|value| {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            value["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        });
        check(&leaving, &config, Some((30_000, Action::Delete)));
        let other = pod(|value| value["metadata"]["labels"] = json!({}));
        check(
            &other,
            &config,
            Some((
                0,
                Action::Hang {
                    reason: "ErrImagePull".into(),
                },
            )),
        );
    }

    #[test]
    fn a_deadline_ends_what_runs_for_longer() {
        let deadline = |seconds: u32| {
            pod(move |value| {
                of_job(value);
                running(value);
                value["spec"]["activeDeadlineSeconds"] = json!(seconds);
            })
        };
        let slow = config("rules: [{finish: {after: 1m}}]");
        check(&deadline(5), &slow, Some((5000, Action::Expire)));
        check(
            &deadline(90),
            &slow,
            Some((60_000, Action::End { exit_code: 0 })),
        );
    }

    #[test]
    fn chance_is_the_same_each_time_and_even_over_many() {
        let config = config("rules: [{start: {failures: 0.25, after: 1s, jitter: 2s}}]");
        let (mut failed, mut total) = (0, Duration::ZERO);
        for number in 0..4000 {
            let pod = pod(|value| value["metadata"]["uid"] = json!(format!("uid-{number}")));
            let step = next(&pod, &config).unwrap();
            assert_eq!(next(&pod, &config), Some(step.clone()));
            assert!(step.after >= Duration::from_secs(1) && step.after < Duration::from_secs(3));
            failed += u32::from(matches!(step.action, Action::Hang { .. }));
            total += step.after;
        }
        assert!((900..1100).contains(&failed), "{failed}");
        let mean = total / 4000;
        assert!((1900..2100).contains(&mean.as_millis()), "{mean:?}");
    }
}
