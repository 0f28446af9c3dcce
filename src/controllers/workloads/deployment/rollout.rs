//! How many replicas each ReplicaSet of a Deployment should have now. Pure.

use apimachinery::Value;

use super::{Action, Deployment, history};
use crate::workloads::replica_set::ReplicaSet;

/// The actions that bring the Deployment one step further.
pub fn plan(deployment: &Deployment, sets: &[&ReplicaSet], old_pods_run: bool) -> Vec<Action> {
    let new = history::new_set(deployment, sets);
    let mut actions = Vec::new();
    if let Some(new) = new {
        actions.extend(history::annotate(deployment, sets, new));
        if !actions.is_empty() {
            // Each write carries the version it was planned on; the rest is planned on the next one.
            return actions;
        }
    }
    if deployment.spec.paused || is_scaling(deployment, sets) {
        actions.extend(scale(deployment, sets, new));
        if deployment.spec.paused {
            actions.extend(history::clean_up(deployment, sets, new));
        }
        return actions;
    }
    let old = history::old_sets(sets, new);
    if deployment.recreates() {
        let stop: Vec<Action> = old
            .iter()
            .filter(|set| sets[**set].replicas() > 0)
            .map(|set| Action::Scale {
                set: *set,
                replicas: 0,
            })
            .collect();
        if !stop.is_empty() {
            return stop;
        }
        if old_pods_run {
            return actions;
        }
    }
    match new {
        None => {
            let replicas = new_replicas(deployment, sets, None);
            return vec![Action::CreateNew { replicas }];
        }
        Some(index) => {
            let replicas = new_replicas(deployment, sets, new);
            if replicas != sets[index].replicas() {
                return vec![Action::Scale {
                    set: index,
                    replicas,
                }];
            }
        }
    }
    if !deployment.recreates() {
        actions.extend(scale_down_old(deployment, sets, new, &old));
    }
    if actions.is_empty() && is_complete(deployment) {
        actions.extend(history::clean_up(deployment, sets, new));
    }
    actions
}

/// Whether the Deployment's replicas were changed since its ReplicaSets were last scaled.
fn is_scaling(deployment: &Deployment, sets: &[&ReplicaSet]) -> bool {
    let mut active = sets.iter().filter(|set| set.replicas() > 0);
    active.any(|set| {
        let desired = set.metadata.annotations.get(history::DESIRED);
        let desired = desired.and_then(|text| text.parse::<i64>().ok());
        desired.is_some_and(|desired| desired != deployment.replicas())
    })
}

/// Takes a change of the replicas to the ReplicaSets: to the only active one, or in proportion.
fn scale(deployment: &Deployment, sets: &[&ReplicaSet], new: Option<usize>) -> Vec<Action> {
    let replicas = deployment.replicas();
    let active: Vec<usize> = (0..sets.len())
        .filter(|index| sets[*index].replicas() > 0)
        .collect();
    let only = match active.as_slice() {
        [] => new.or_else(|| history::old_sets(sets, new).last().copied()),
        [only] => Some(*only),
        _ => None,
    };
    if let Some(only) = only {
        return vec![Action::Scale {
            set: only,
            replicas,
        }];
    }
    if active.is_empty() {
        return Vec::new();
    }
    let saturated = new.is_some_and(|new| {
        let set = sets[new];
        set.replicas() == replicas && set.status.available_replicas == replicas
    });
    if saturated {
        let old = active.into_iter().filter(|index| Some(*index) != new);
        return old.map(|set| Action::Scale { set, replicas: 0 }).collect();
    }
    if deployment.recreates() {
        return Vec::new();
    }
    proportionally(deployment, sets, active)
}

/// Shares the replicas to add or take among the active ReplicaSets by their size, the largest (newest) first.
fn proportionally(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    mut active: Vec<usize>,
) -> Vec<Action> {
    let total: i64 = active.iter().map(|index| sets[*index].replicas()).sum();
    let allowed = if deployment.replicas() > 0 {
        deployment.replicas() + max_surge(deployment)
    } else {
        0
    };
    let to_add = allowed - total;
    let newest =
        |index: &usize| std::cmp::Reverse(sets[*index].metadata.creation_timestamp.clone());
    let size = |index: &usize| sets[*index].replicas();
    if to_add > 0 {
        active.sort_by_key(|index| (std::cmp::Reverse(size(index)), newest(index)));
    } else {
        active.sort_by_key(|index| {
            (
                std::cmp::Reverse(size(index)),
                sets[*index].metadata.creation_timestamp.clone(),
            )
        });
    }
    let mut added = 0;
    let mut sizes: Vec<(usize, i64)> = Vec::new();
    for index in active {
        let set = sets[index];
        let max = set
            .metadata
            .annotations
            .get(history::MAX)
            .and_then(|text| text.parse::<i64>().ok());
        let before = max
            .filter(|max| *max > 0)
            .unwrap_or(deployment.status.replicas)
            .max(1);
        let share = (set.replicas() as f64 * allowed as f64 / before as f64).round() as i64
            - set.replicas();
        let left = to_add - added;
        let part = if to_add > 0 {
            share.min(left).max(0)
        } else {
            share.max(left).min(0)
        };
        added += part;
        sizes.push((index, set.replicas() + part));
    }
    // What rounding left over goes to the first.
    if let Some((_, first)) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    sizes
        .into_iter()
        .map(|(set, replicas)| Action::Scale { set, replicas })
        .collect()
}

/// How many replicas the new ReplicaSet may have now (NewRSNewReplicas).
fn new_replicas(deployment: &Deployment, sets: &[&ReplicaSet], new: Option<usize>) -> i64 {
    let replicas = deployment.replicas();
    let present = new.map_or(0, |new| sets[new].replicas());
    if deployment.recreates() || present >= replicas {
        return replicas;
    }
    let total: i64 = sets.iter().map(|set| set.replicas()).sum();
    let room = replicas + max_surge(deployment) - total;
    present + room.max(0).min(replicas - present)
}

/// Takes replicas from old ReplicaSets: first those that are not available anyway, then as many as may be missing.
fn scale_down_old(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    new: Option<usize>,
    old: &[usize],
) -> Vec<Action> {
    if old.iter().all(|index| sets[*index].replicas() == 0) {
        return Vec::new();
    }
    let total: i64 = sets.iter().map(|set| set.replicas()).sum();
    let min_available = deployment.replicas() - max_unavailable(deployment);
    let new_unavailable = new.map_or(0, |new| {
        sets[new].replicas() - sets[new].status.available_replicas
    });
    let mut may_go = total - min_available - new_unavailable;
    if may_go <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<(usize, i64)> = old
        .iter()
        .map(|index| (*index, sets[*index].replicas()))
        .collect();
    for (index, size) in &mut sizes {
        let unhealthy = (*size - sets[*index].status.available_replicas).clamp(0, may_go);
        *size -= unhealthy;
        may_go -= unhealthy;
    }
    let available: i64 = sets.iter().map(|set| set.status.available_replicas).sum();
    let mut healthy = (available - min_available).max(0);
    for (_, size) in &mut sizes {
        let part = (*size).min(healthy);
        *size -= part;
        healthy -= part;
    }
    let changed = sizes
        .into_iter()
        .filter(|(index, size)| *size != sets[*index].replicas());
    changed
        .map(|(set, replicas)| Action::Scale { set, replicas })
        .collect()
}

/// All replicas are of the present template and available, and no old ones are left (DeploymentComplete).
pub fn is_complete(deployment: &Deployment) -> bool {
    let (status, replicas) = (&deployment.status, deployment.replicas());
    status.updated_replicas == replicas
        && status.replicas == replicas
        && status.available_replicas == replicas
        && status.observed_generation >= deployment.metadata.generation
}

pub fn max_surge(deployment: &Deployment) -> i64 {
    fenceposts(deployment).0
}

pub fn max_unavailable(deployment: &Deployment) -> i64 {
    fenceposts(deployment).1.min(deployment.replicas())
}

/// Surge rounded up and unavailability rounded down; not both 0, or nothing would ever move (ResolveFenceposts).
fn fenceposts(deployment: &Deployment) -> (i64, i64) {
    if deployment.recreates() || deployment.replicas() == 0 {
        return (0, 0);
    }
    let update = &deployment.spec.strategy.rolling_update;
    let surge = portion(&update.max_surge, deployment.replicas(), true);
    let unavailable = portion(&update.max_unavailable, deployment.replicas(), false);
    if surge == 0 && unavailable == 0 {
        (0, 1)
    } else {
        (surge, unavailable)
    }
}

/// A number, or a percentage of `of`.
fn portion(value: &Value, of: i64, up: bool) -> i64 {
    if let Some(number) = value.as_i64() {
        return number;
    }
    let text = value.as_str().unwrap_or("25%");
    let Some(percent) = text
        .strip_suffix('%')
        .and_then(|text| text.parse::<i64>().ok())
    else {
        return text.parse().unwrap_or(0);
    };
    let exact = of * percent;
    if up { (exact + 99) / 100 } else { exact / 100 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(replicas: i64, surge: Value, unavailable: Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "annotations": {(history::REVISION): "2"}},
            "spec": {"replicas": replicas, "template": {"spec": {"v": 2}},
                     "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}},
        }))
        .unwrap()
    }

    fn set(version: i64, replicas: i64, available: i64, desired: i64) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": format!("web-{version}"), "creationTimestamp": format!("2026-01-0{version}T00:00:00Z"),
                         "annotations": {(history::REVISION): version.to_string(), (history::DESIRED): desired.to_string(),
                                         (history::MAX): (desired + 1).to_string()}},
            "spec": {"replicas": replicas, "template": {"spec": {"v": version}}},
            "status": {"replicas": replicas, "availableReplicas": available},
        }))
        .unwrap()
    }

    #[track_caller]
    fn check(deployment: &Deployment, sets: &[ReplicaSet], expected: &[Action]) {
        let sets: Vec<&ReplicaSet> = sets.iter().collect();
        assert_eq!(plan(deployment, &sets, false), expected);
    }

    fn to(set: usize, replicas: i64) -> Action {
        Action::Scale { set, replicas }
    }

    #[test]
    fn a_rolling_update_moves_step_by_step_within_its_bounds() {
        let web = deployment(4, json!(1), json!(1));
        check(
            &web,
            &[set(1, 4, 4, 4)],
            &[Action::CreateNew { replicas: 1 }],
        );
        check(&web, &[set(1, 4, 4, 4), set(2, 1, 0, 4)], &[to(0, 3)]);
        check(&web, &[set(1, 3, 3, 4), set(2, 1, 0, 4)], &[to(1, 2)]);
        check(&web, &[set(1, 3, 3, 4), set(2, 2, 0, 4)], &[]);
        check(&web, &[set(1, 3, 3, 4), set(2, 2, 2, 4)], &[to(0, 1)]);
        check(&web, &[set(1, 1, 1, 4), set(2, 4, 3, 4)], &[to(0, 0)]);
        check(&web, &[set(1, 0, 0, 4), set(2, 4, 4, 4)], &[]);
    }

    #[test]
    fn unhealthy_old_pods_go_first() {
        let web = deployment(4, json!(0), json!(2));
        check(&web, &[set(1, 4, 1, 4), set(2, 0, 0, 4)], &[to(0, 2)]);
    }

    #[test]
    fn recreate_stops_the_old_before_it_starts_the_new() {
        let mut web = deployment(2, json!(0), json!(0));
        web.spec.strategy.kind = "Recreate".into();
        check(&web, &[set(1, 2, 2, 2)], &[to(0, 0)]);
        let old = set(1, 0, 0, 2);
        assert_eq!(plan(&web, &[&old], true), []);
        assert_eq!(
            plan(&web, &[&old], false),
            [Action::CreateNew { replicas: 2 }]
        );
    }

    #[test]
    fn a_change_of_replicas_goes_to_the_only_active_set_or_is_shared() {
        let web = deployment(10, json!(0), json!(1));
        check(&web, &[set(2, 4, 4, 4)], &[to(0, 10)]);
        let shared = plan(&web, &[&set(1, 3, 3, 5), &set(2, 2, 2, 5)], false);
        let total: i64 = shared
            .iter()
            .map(|action| {
                if let Action::Scale { replicas, .. } = action {
                    *replicas
                } else {
                    0
                }
            })
            .sum();
        assert_eq!((shared.len(), total), (2, 10));
    }

    #[test]
    fn percentages_round_surge_up_and_unavailability_down() {
        let web = deployment(5, json!("25%"), json!("25%"));
        assert_eq!((max_surge(&web), max_unavailable(&web)), (2, 1));
        let stuck = deployment(3, json!(0), json!("10%"));
        assert_eq!((max_surge(&stuck), max_unavailable(&stuck)), (0, 1));
    }
}
