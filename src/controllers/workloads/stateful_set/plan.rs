//! What a StatefulSet does next about its pods. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apimachinery::time::Time;

use super::{StatefulSet, StatefulSetStatus};
use crate::{objects::Pod, workloads::revisions::HASH};

pub struct Observed<'a> {
    pub set: &'a StatefulSet,
    pub pods: &'a [Arc<Pod>],
    /// Hash labels of the pods' revisions: the one rolled out last, and the one wanted.
    pub current: &'a str,
    pub update: &'a str,
    pub now: Time,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the pod of this ordinal; of the wanted revision, or still of the current one.
    Create {
        ordinal: i64,
        updated: bool,
    },
    Delete(Arc<Pod>),
}

pub struct Plan {
    pub actions: Vec<Action>,
    pub status: StatefulSetStatus,
    /// When to plan again though nothing changes.
    pub again: Option<Duration>,
}

/// The number at the end of a pod's name.
pub fn ordinal(set: &str, pod: &Pod) -> Option<i64> {
    let number = pod.metadata.name.strip_prefix(set)?.strip_prefix('-')?;
    number.parse().ok().filter(|ordinal| *ordinal >= 0)
}

fn is_of(pod: &Pod, hash: &str) -> bool {
    pod.metadata
        .labels
        .get(HASH)
        .is_some_and(|label| label == hash)
}

impl Observed<'_> {
    fn available(&self, pod: &Pod) -> bool {
        let at = pod.available_at(self.set.spec.min_ready_seconds);
        pod.status.phase == "Running" && at.is_some_and(|at| at <= self.now)
    }

    /// Running, available, and to stay.
    fn healthy(&self, pod: &Pod) -> bool {
        self.available(pod) && !pod.metadata.is_deleting()
    }
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let set = observed.set;
    let range = set.start()..set.start() + set.replicas();
    let by_ordinal: BTreeMap<i64, &Arc<Pod>> = observed
        .pods
        .iter()
        .filter_map(|pod| Some((ordinal(&set.metadata.name, pod)?, pod)))
        .collect();
    let waits = observed
        .pods
        .iter()
        .filter(|pod| pod.is_ready() && !observed.available(pod));
    let again = waits
        .filter_map(|pod| pod.available_at(set.spec.min_ready_seconds))
        .min();
    Plan {
        actions: actions(observed, range, &by_ordinal),
        status: status(observed),
        again: again.and_then(|at| Duration::try_from(at - observed.now).ok()),
    }
}

fn actions(
    observed: &Observed<'_>,
    range: std::ops::Range<i64>,
    pods: &BTreeMap<i64, &Arc<Pod>>,
) -> Vec<Action> {
    let set = observed.set;
    let ordered = set.spec.pod_management_policy != "Parallel";
    let mut actions = Vec::new();
    let mut all_healthy = true;
    for ordinal in range.clone() {
        let action = match pods.get(&ordinal) {
            None => Some(Action::Create {
                ordinal,
                updated: ordinal >= set.start() + set.partition(),
            }),
            Some(pod) if pod.metadata.is_deleting() => None,
            Some(pod) if pod.is_terminal() => Some(Action::Delete(Arc::clone(pod))),
            Some(pod) if observed.healthy(pod) => continue,
            Some(_) => None,
        };
        all_healthy = false;
        actions.extend(action);
        // In order: one that is not there yet, or not well, holds up the rest.
        if ordered {
            return actions;
        }
    }
    for (_, pod) in pods
        .iter()
        .rev()
        .filter(|(ordinal, _)| !range.contains(ordinal))
    {
        if !pod.metadata.is_deleting() {
            actions.push(Action::Delete(Arc::clone(pod)));
        }
        if ordered {
            return actions;
        }
    }
    if set.spec.update_strategy.kind == "OnDelete"
        || !(all_healthy || ordered || actions.is_empty())
    {
        return actions;
    }
    // From the last one down; each must be well before the next goes.
    for ordinal in range
        .rev()
        .take_while(|ordinal| *ordinal >= set.start() + set.partition())
    {
        let Some(pod) = pods.get(&ordinal) else { break };
        if !is_of(pod, observed.update) && !pod.metadata.is_deleting() {
            actions.push(Action::Delete(Arc::clone(pod)));
            break;
        }
        if !observed.healthy(pod) {
            break;
        }
    }
    actions
}

fn status(observed: &Observed<'_>) -> StatefulSetStatus {
    let set = observed.set;
    let count = |fits: &dyn Fn(&Pod) -> bool| {
        let fitting = observed
            .pods
            .iter()
            .filter(|pod| !pod.is_terminal() && fits(pod));
        i64::try_from(fitting.count()).unwrap_or(i64::MAX)
    };
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: count(&|pod| pod.status.phase == "Running" && pod.is_ready()),
        available_replicas: count(&|pod| observed.available(pod)),
        current_replicas: count(&|pod| !pod.metadata.is_deleting() && is_of(pod, observed.current)),
        updated_replicas: count(&|pod| !pod.metadata.is_deleting() && is_of(pod, observed.update)),
        current_revision: observed.current.into(),
        update_revision: observed.update.into(),
        collision_count: set.status.collision_count,
        conditions: set.status.conditions.clone(),
    };
    let rolled_out = set.spec.update_strategy.kind != "OnDelete"
        && status.updated_replicas == status.replicas
        && status.ready_replicas == status.replicas
        && status.replicas == set.replicas();
    if rolled_out {
        status.current_revision = observed.update.into();
        status.current_replicas = status.updated_replicas;
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(spec: Value) -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    }

    fn pod(ordinal: i64, hash: &str, ready: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": format!("web-{ordinal}"), "labels": {HASH: hash}},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn texts(set: &StatefulSet, pods: &[Arc<Pod>]) -> Vec<String> {
        let plan = plan(&Observed {
            set,
            pods,
            current: "old",
            update: "new",
            now: apimachinery::time::now(),
        });
        let text = |action: &Action| match action {
            Action::Create { ordinal, updated } => {
                format!("+{ordinal}{}", if *updated { "" } else { " old" })
            }
            Action::Delete(pod) => format!("-{}", pod.metadata.name),
        };
        plan.actions.iter().map(text).collect()
    }

    #[test]
    fn pods_come_in_order_and_go_in_reverse() {
        let three = set(json!({"replicas": 3}));
        assert_eq!(texts(&three, &[]), ["+0"]);
        assert!(texts(&three, &[pod(0, "new", "False")]).is_empty());
        assert_eq!(texts(&three, &[pod(0, "new", "True")]), ["+1"]);
        let one = set(json!({"replicas": 1}));
        let pods = [
            pod(0, "new", "True"),
            pod(1, "new", "True"),
            pod(2, "new", "True"),
        ];
        assert_eq!(texts(&one, &pods), ["-web-2"]);
        let parallel = set(json!({"replicas": 3, "podManagementPolicy": "Parallel"}));
        assert_eq!(texts(&parallel, &[]), ["+0", "+1", "+2"]);
    }

    #[test]
    fn an_update_goes_from_the_last_down_to_the_partition() {
        let pods = [
            pod(0, "old", "True"),
            pod(1, "old", "True"),
            pod(2, "new", "True"),
        ];
        assert_eq!(texts(&set(json!({"replicas": 3})), &pods), ["-web-1"]);
        let held =
            set(json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}}));
        assert!(texts(&held, &pods).is_empty());
        assert_eq!(texts(&held, &[]), ["+0 old"]);
        let starting = [
            pod(0, "old", "True"),
            pod(1, "old", "True"),
            pod(2, "new", "False"),
        ];
        assert!(texts(&set(json!({"replicas": 3})), &starting).is_empty());
    }

    #[test]
    fn a_rollout_that_is_done_makes_the_update_the_current_revision() {
        let done = set(json!({"replicas": 1}));
        let pods = [pod(0, "new", "True")];
        let plan = plan(&Observed {
            set: &done,
            pods: &pods,
            current: "old",
            update: "new",
            now: apimachinery::time::now(),
        });
        assert_eq!(
            (
                plan.status.current_revision.as_str(),
                plan.status.current_replicas
            ),
            ("new", 1)
        );
    }

    #[test]
    fn ordinals_begin_where_they_are_told() {
        let later = set(json!({"replicas": 2, "ordinals": {"start": 5}}));
        assert_eq!(texts(&later, &[pod(0, "new", "True")]), ["+5"]);
    }
}
