//! What pod failures mean (KEP-3329), when an indexed Job has succeeded early (KEP-3998), and how long to wait before
//! the next attempt. Pure.

use std::{sync::Arc, time::Duration};

use apimachinery::time::{Time, parse};

use super::{super::view::Job, intervals::Intervals};
use crate::objects::{ContainerStatus, Pod, Terminated, condition};

/// Pause after the first failure; it doubles with each further one (DefaultJobPodFailureBackOff).
const BACKOFF: Duration = Duration::from_secs(10);
/// The longest pause (MaxJobPodFailureBackOff).
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// What a failed pod leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole Job fails, for this reason.
    FailJob(String),
    FailIndex,
    /// The failure does not count.
    Ignore,
    Count,
}

/// What the Job's policy makes of a failed pod: the first rule that matches decides.
pub fn outcome(job: &Job, pod: &Pod) -> Outcome {
    let rules = job.spec.pod_failure_policy.iter();
    for (index, rule) in rules.flat_map(|policy| &policy.rules).enumerate() {
        let meta = &pod.metadata;
        let matched = if let Some(codes) = &rule.on_exit_codes {
            exit_code(pod, codes).map(|(container, code)| {
                format!(
                    "Container {container} for pod {}/{} failed with exit code {code} matching {} rule at index {index}",
                    meta.namespace, meta.name, rule.action
                )
            })
        } else {
            let conditions = &pod.status.conditions;
            let mut patterns = rule.on_pod_conditions.iter();
            let found = patterns.find(|pattern| {
                let status = if pattern.status.is_empty() {
                    "True"
                } else {
                    &pattern.status
                };
                condition(conditions, &pattern.kind).is_some_and(|one| one.status == status)
            });
            found.map(|pattern| {
                format!(
                    "Pod {}/{} has condition {} matching {} rule at index {index}",
                    meta.namespace, meta.name, pattern.kind, rule.action
                )
            })
        };
        let Some(message) = matched else { continue };
        return match rule.action.as_str() {
            "FailJob" => Outcome::FailJob(message),
            "FailIndex" if job.spec.backoff_limit_per_index.is_some() => Outcome::FailIndex,
            "Ignore" => Outcome::Ignore,
            _ => Outcome::Count,
        };
    }
    Outcome::Count
}

/// The first container that failed as the rule says, and how.
fn exit_code<'a>(pod: &'a Pod, rule: &super::super::view::ExitCodes) -> Option<(&'a str, i64)> {
    let fits = |status: &&'a ContainerStatus| {
        let named = rule.container_name.as_ref();
        if named.is_some_and(|name| *name != status.name) {
            return None;
        }
        let code = ended(status)?.exit_code;
        let among = rule.values.contains(&code);
        let fits = code != 0
            && if rule.operator == "NotIn" {
                !among
            } else {
                among
            };
        fits.then_some((status.name.as_str(), code))
    };
    let mut all = containers(pod);
    all.find_map(|status| fits(&status))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let init = &pod.status.init_container_statuses;
    pod.status.container_statuses.iter().chain(init)
}

fn ended(status: &ContainerStatus) -> Option<&Terminated> {
    status.state.terminated.as_deref()
}

/// The message of the first rule that is met: enough of some, or of all, indexes succeeded.
pub fn early_success(job: &Job, succeeded: &Intervals) -> Option<String> {
    let completions = job.spec.completions.unwrap_or(0);
    let rules = &job.spec.success_policy.as_ref()?.rules;
    let met = rules.iter().position(|rule| {
        let (total, wanted) = match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = Intervals::parse(text, completions);
                (succeeded.common(&wanted), wanted.total())
            }
            None => (succeeded.total(), completions),
        };
        total >= rule.succeeded_count.unwrap_or(wanted)
    })?;
    Some(format!("Matched rules at index {met}"))
}

/// When a pod ended, as far as it tells (getFinishedTime).
pub fn finished_at(pod: &Pod) -> Option<Time> {
    let ends = containers(pod).filter_map(ended);
    let ends = ends.filter_map(|end| parse(end.finished_at.as_deref()?));
    let ready = condition(&pod.status.conditions, "Ready")
        .filter(|ready| ready.status == "False")
        .and_then(|ready| ready.last_transition_time.as_deref());
    ends.max()
        .or_else(|| parse(pod.metadata.deletion_timestamp.as_deref()?))
        .or_else(|| parse(ready?))
        .or_else(|| parse(pod.metadata.creation_timestamp.as_deref()?))
}

/// How long after `now` the next pod may be made: it doubles with each failure since the last success.
pub fn pause<'a>(
    finished: impl Iterator<Item = (&'a Arc<Pod>, bool)>,
    now: Time,
) -> Option<Duration> {
    let mut ends: Vec<(Time, bool)> = finished
        .filter_map(|(pod, failed)| Some((finished_at(pod)?, failed)))
        .collect();
    ends.sort_unstable();
    let failures = ends.iter().rev().take_while(|(_, failed)| *failed).count();
    let (last, _) = ends.last().filter(|_| failures > 0)?;
    pause_after(failures, *last, now)
}

/// The rest of the pause after this many failures, the last of them at `last`.
pub fn pause_after(failures: usize, last: Time, now: Time) -> Option<Duration> {
    let doublings = u32::try_from(failures.checked_sub(1)?).unwrap_or(u32::MAX);
    let factor = 2u32.checked_pow(doublings).unwrap_or(u32::MAX);
    let due = last + BACKOFF.saturating_mul(factor).min(MAX_BACKOFF);
    Duration::try_from(due - now)
        .ok()
        .filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(spec: Value) -> Job {
        serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec})).unwrap()
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n"}, "status": status}),
        )
        .unwrap()
    }

    fn ended_with(container: &str, code: i64) -> Value {
        json!({"containerStatuses": [{"name": container, "state": {"terminated": {"exitCode": code}}}]})
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let job = job(
            json!({"backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
                {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
            ]}}),
        );
        let message =
            "Container main for pod n/p failed with exit code 42 matching FailJob rule at index 1";
        let evicted = json!({"conditions": [{"type": "DisruptionTarget", "status": "True"}]});
        for (status, expected) in [
            (ended_with("main", 42), Outcome::FailJob(message.into())),
            (ended_with("side", 42), Outcome::FailIndex),
            (ended_with("main", 1), Outcome::Count),
            (ended_with("main", 0), Outcome::Count),
            (evicted, Outcome::Ignore),
        ] {
            assert_eq!(outcome(&job, &pod(status.clone())), expected, "{status}");
        }
    }

    #[test]
    fn success_is_early_when_enough_of_the_named_indexes_succeeded() {
        let job = job(json!({"completions": 10, "successPolicy": {"rules": [
            {"succeededIndexes": "0-2", "succeededCount": 2}, {"succeededCount": 5}]}}));
        let met = |text: &str| early_success(&job, &Intervals::parse(text, 10));
        assert_eq!(met("0,5,6"), None);
        assert_eq!(met("0,2").as_deref(), Some("Matched rules at index 0"));
        assert_eq!(met("3-7").as_deref(), Some("Matched rules at index 1"));
    }

    #[test]
    fn the_pause_doubles_and_a_success_ends_it() {
        let start = parse("2026-01-01T00:00:00Z").unwrap();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let end = |seconds: u64| {
            let time = apimachinery::time::format(at(seconds));
            Arc::new(pod(json!({"containerStatuses": [
                {"state": {"terminated": {"exitCode": 1, "finishedAt": time}}}]})))
        };
        let (first, second) = (end(0), end(20));
        let left = |ends: &[(&Arc<Pod>, bool)], now: u64| {
            pause(ends.iter().copied(), at(now)).map(|left| left.as_secs())
        };
        assert_eq!(left(&[(&first, true)], 4), Some(6));
        assert_eq!(left(&[(&first, true)], 10), None);
        assert_eq!(left(&[(&second, true), (&first, true)], 30), Some(10));
        assert_eq!(left(&[(&first, true), (&second, false)], 21), None);
        assert_eq!(pause_after(100, at(0), at(0)), Some(MAX_BACKOFF));
    }
}
