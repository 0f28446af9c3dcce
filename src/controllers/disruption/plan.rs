//! The status of a PodDisruptionBudget. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apimachinery::{
    Value,
    time::{Time, format, parse},
};
use serde::{Deserialize, Serialize};

use super::{Budget, BudgetSpec};
use crate::objects::Pod;

/// How long an eviction may take until the pod counts again (DeletionTimeout).
const DELETION_TIMEOUT: Duration = Duration::from_secs(2 * 60);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    pub observed_generation: i64,
    /// Pods that were evicted, and when: the cache may still show them as healthy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub disrupted_pods: BTreeMap<String, String>,
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub expected_pods: i64,
    pub conditions: Vec<BudgetCondition>,
}

/// metav1.Condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub observed_generation: i64,
    pub last_transition_time: String,
    pub reason: String,
    pub message: String,
}

pub struct Plan {
    pub status: BudgetStatus,
    /// Pods that were evicted and stayed.
    pub not_deleted: Vec<String>,
    pub again: Option<Duration>,
}

/// Whether the pods there should be count, and not those there are.
pub fn needs_scale(spec: &BudgetSpec) -> bool {
    !spec.max_unavailable.is_null() || spec.min_available.is_string()
}

/// The status, given how many pods there should be if that was asked for.
pub fn plan(budget: &Budget, pods: &[Arc<Pod>], scale: Option<i64>, now: Time) -> Plan {
    let spec = &budget.spec;
    let present = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let expected = scale.unwrap_or(present);
    let desired = if spec.max_unavailable.is_null() {
        portion(&spec.min_available, expected)
    } else {
        (expected - portion(&spec.max_unavailable, expected)).max(0)
    };
    let mut plan = Plan {
        status: budget.status.clone(),
        not_deleted: Vec::new(),
        again: None,
    };
    let disrupted = disrupted(budget, pods, now, &mut plan);
    let healthy = pods.iter().filter(|pod| {
        let gone = pod.metadata.is_deleting() || disrupted.contains_key(&pod.metadata.name);
        !gone && pod.is_ready()
    });
    let healthy = i64::try_from(healthy.count()).unwrap_or(i64::MAX);
    let allowed = if expected > 0 {
        (healthy - desired).max(0)
    } else {
        0
    };
    let status = &mut plan.status;
    status.observed_generation = budget.metadata.generation;
    status.disrupted_pods = disrupted;
    status.disruptions_allowed = allowed;
    status.current_healthy = healthy;
    status.desired_healthy = desired;
    status.expected_pods = expected;
    let (truth, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    set_condition(budget, status, truth, reason, "", now);
    plan
}

/// The status when it could not be computed: nothing may be evicted.
pub fn failed(budget: &Budget, why: &str, now: Time) -> BudgetStatus {
    let mut status = budget.status.clone();
    status.disruptions_allowed = 0;
    status.observed_generation = budget.metadata.generation;
    set_condition(budget, &mut status, "False", "SyncFailed", why, now);
    status
}

/// The evictions under way: those of pods that are there, not deleted yet, and not for too long.
fn disrupted(
    budget: &Budget,
    pods: &[Arc<Pod>],
    now: Time,
    plan: &mut Plan,
) -> BTreeMap<String, String> {
    let mut left = BTreeMap::new();
    for (name, since) in &budget.status.disrupted_pods {
        let pod = pods.iter().find(|pod| pod.metadata.name == *name);
        let Some(at) = parse(since) else { continue };
        if pod.is_none_or(|pod| pod.metadata.is_deleting()) {
            continue;
        }
        let due = at + DELETION_TIMEOUT;
        if due < now {
            plan.not_deleted.push(name.clone());
            continue;
        }
        let wait = Duration::try_from(due - now).unwrap_or_default();
        plan.again = Some(plan.again.map_or(wait, |again| again.min(wait)));
        left.insert(name.clone(), since.clone());
    }
    left
}

fn set_condition(
    budget: &Budget,
    status: &mut BudgetStatus,
    truth: &str,
    reason: &str,
    message: &str,
    now: Time,
) {
    let old = status
        .conditions
        .iter()
        .position(|one| one.kind == "DisruptionAllowed");
    let since = old
        .map(|index| &status.conditions[index])
        .filter(|one| one.status == truth)
        .map(|one| one.last_transition_time.clone());
    let condition = BudgetCondition {
        kind: "DisruptionAllowed".into(),
        status: truth.into(),
        observed_generation: budget.metadata.generation,
        last_transition_time: since.unwrap_or_else(|| format(now)),
        reason: reason.into(),
        message: message.into(),
    };
    match old {
        Some(index) => status.conditions[index] = condition,
        None => status.conditions.push(condition),
    }
}

/// A number, or a percentage of `of` rounded up.
fn portion(value: &Value, of: i64) -> i64 {
    let Some(text) = value.as_str() else {
        return value.as_i64().unwrap_or(0);
    };
    let percent = text
        .strip_suffix('%')
        .and_then(|text| text.parse::<i64>().ok());
    percent.map_or(0, |percent| (of * percent + 99) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pods(ready: usize, unready: usize) -> Vec<Arc<Pod>> {
        let pod = |index: usize| {
            let status = if index < ready { "True" } else { "False" };
            let value = json!({"metadata": {"name": format!("p{index}")},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        (0..ready + unready).map(pod).collect()
    }

    fn budget(spec: Value) -> Budget {
        serde_json::from_value(json!({"metadata": {"name": "b", "generation": 2}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn as_many_may_go_as_are_healthy_beyond_what_is_wanted() {
        for (spec, scale, ready, unready, expected) in [
            (json!({"minAvailable": 2}), None, 3, 1, (1, 3, 2, 4)),
            (json!({"minAvailable": 3}), None, 2, 0, (0, 2, 3, 2)),
            (json!({"minAvailable": "50%"}), Some(5), 5, 0, (2, 5, 3, 5)),
            (json!({"maxUnavailable": 1}), Some(3), 3, 0, (1, 3, 2, 3)),
            (
                json!({"maxUnavailable": "34%"}),
                Some(3),
                2,
                0,
                (1, 2, 1, 3),
            ),
            (json!({"maxUnavailable": 9}), Some(3), 3, 0, (3, 3, 0, 3)),
            (json!({"maxUnavailable": 1}), Some(0), 0, 0, (0, 0, 0, 0)),
        ] {
            let budget = budget(spec.clone());
            assert_eq!(needs_scale(&budget.spec), scale.is_some());
            let status = plan(
                &budget,
                &pods(ready, unready),
                scale,
                apimachinery::time::now(),
            )
            .status;
            let found = (
                status.disruptions_allowed,
                status.current_healthy,
                status.desired_healthy,
                status.expected_pods,
            );
            assert_eq!(found, expected, "{spec}");
            let reason = if expected.0 > 0 {
                "SufficientPods"
            } else {
                "InsufficientPods"
            };
            assert_eq!(status.conditions[0].reason, reason);
        }
    }

    #[test]
    fn an_evicted_pod_does_not_count_until_it_has_stayed_too_long() {
        let mut budget = budget(json!({"minAvailable": 1}));
        let start = apimachinery::time::parse("2026-01-01T00:00:00Z").unwrap();
        budget.status.disrupted_pods = [("p0", start), ("gone", start)]
            .map(|(name, at)| (name.to_string(), format(at)))
            .into();
        let soon = plan(&budget, &pods(2, 0), None, start + Duration::from_secs(10));
        assert_eq!(soon.status.current_healthy, 1);
        assert_eq!(soon.status.disrupted_pods.len(), 1);
        assert_eq!(soon.again, Some(Duration::from_secs(110)));
        let late = plan(&budget, &pods(2, 0), None, start + Duration::from_secs(121));
        assert_eq!(
            (late.status.current_healthy, late.not_deleted.len()),
            (2, 1)
        );
    }

    #[test]
    fn a_failure_forbids_and_its_reason_is_told() {
        let mut budget = budget(json!({"maxUnavailable": 1}));
        budget.status.disruptions_allowed = 5;
        let status = failed(&budget, "no scale", apimachinery::time::now());
        assert_eq!(status.disruptions_allowed, 0);
        assert_eq!(
            (
                status.conditions[0].reason.as_str(),
                status.conditions[0].message.as_str()
            ),
            ("SyncFailed", "no scale")
        );
    }
}
