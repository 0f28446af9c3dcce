//! The ReplicaSets of a Deployment over time: which one has the present template, their revisions, which ones go.

use std::collections::BTreeMap;

use api::view::OwnerReference;
use apimachinery::Value;
use serde_json::{Map, json};

use super::{Action, Deployment, hash_label, rollout};
use crate::workloads::{hash, replica_set::ReplicaSet};

pub const HASH: &str = "pod-template-hash";
pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// Old ReplicaSets that are kept if `revisionHistoryLimit` is absent.
const DEFAULT_LIMIT: i64 = 10;
/// Longest `revision-history` annotation in characters (maxRevHistoryLengthInChars).
const MAX_HISTORY: usize = 2000;

/// The index of the ReplicaSet with the Deployment's template; the oldest if there are several.
pub fn new_set(deployment: &Deployment, sets: &[&ReplicaSet]) -> Option<usize> {
    let wanted = &deployment.spec.template;
    let same = sets
        .iter()
        .enumerate()
        .filter(|(_, set)| same_template(&set.spec.template, wanted));
    let oldest = same.min_by_key(|(_, set)| {
        (
            set.metadata.creation_timestamp.clone(),
            set.metadata.name.clone(),
        )
    });
    oldest.map(|(index, _)| index)
}

/// Whether two templates are equal but for the hash label.
fn same_template(a: &Value, b: &Value) -> bool {
    let stripped = |template: &Value| {
        let mut template = template.clone();
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove(HASH);
        }
        if let Some(meta) = template["metadata"].as_object_mut() {
            meta.remove("creationTimestamp");
            meta.retain(|_, value| {
                !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty())
            });
        }
        template
    };
    stripped(a) == stripped(b)
}

/// The number in the revision annotation.
pub fn revision(set: &ReplicaSet) -> i64 {
    let text = set.metadata.annotations.get(REVISION);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The revision the present template gets: one more than the highest of the others.
fn next_revision(sets: &[&ReplicaSet], new: Option<usize>) -> i64 {
    let others = sets
        .iter()
        .enumerate()
        .filter(|(index, _)| Some(*index) != new);
    others.map(|(_, set)| revision(set)).max().unwrap_or(0) + 1
}

/// Annotations of the Deployment that go over to its ReplicaSets.
fn copied(deployment: &Deployment) -> BTreeMap<String, String> {
    let skipped = [
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        REVISION_HISTORY,
        DESIRED,
        MAX,
        "deprecated.deployment.rollback.to",
    ];
    let all = deployment.metadata.annotations.iter();
    all.filter(|(key, _)| !skipped.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Brings the new ReplicaSet's annotations and the Deployment's revision up to date.
pub fn annotate(deployment: &Deployment, sets: &[&ReplicaSet], new: usize) -> Vec<Action> {
    let set = sets[new];
    let mut annotations = set.metadata.annotations.clone();
    annotations.extend(copied(deployment));
    let current = revision(set);
    let wanted = next_revision(sets, Some(new));
    // A template that comes back gets a new number, and its old ones are remembered.
    if current < wanted {
        if current > 0 {
            let mut history = annotations
                .get(REVISION_HISTORY)
                .cloned()
                .unwrap_or_default();
            if !history.is_empty() {
                history.push(',');
            }
            history.push_str(&current.to_string());
            let excess = history.len().saturating_sub(MAX_HISTORY);
            if excess > 0 {
                let cut = history[excess..]
                    .find(',')
                    .map_or(history.len(), |comma| excess + comma + 1);
                history.drain(..cut);
            }
            annotations.insert(REVISION_HISTORY.into(), history);
        }
        annotations.insert(REVISION.into(), wanted.to_string());
    }
    let revision = annotations.get(REVISION).cloned().unwrap_or_default();
    let mut actions = Vec::new();
    let min_ready_seconds = deployment.spec.min_ready_seconds;
    if annotations != set.metadata.annotations || set.spec.min_ready_seconds != min_ready_seconds {
        actions.push(Action::Annotate {
            set: new,
            annotations,
            min_ready_seconds,
        });
    }
    if deployment.metadata.annotations.get(REVISION) != Some(&revision) {
        actions.push(Action::SetRevision(revision));
    }
    actions
}

/// Old ReplicaSets beyond the limit, the oldest revisions first; only those that have and want no pods.
pub fn clean_up(deployment: &Deployment, sets: &[&ReplicaSet], new: Option<usize>) -> Vec<Action> {
    let limit = deployment
        .spec
        .revision_history_limit
        .unwrap_or(DEFAULT_LIMIT);
    let alive = sets
        .iter()
        .enumerate()
        .filter(|(index, set)| Some(*index) != new && !set.metadata.is_deleting());
    let mut old: Vec<(usize, &ReplicaSet)> = alive.map(|(index, set)| (index, *set)).collect();
    let surplus = old
        .len()
        .saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.sort_by_key(|(_, set)| revision(set));
    let idle = |set: &ReplicaSet| {
        set.status.replicas == 0
            && set.replicas() == 0
            && set.metadata.generation <= set.status.observed_generation
    };
    let surplus = old.into_iter().take(surplus).filter(|(_, set)| idle(set));
    surplus.map(|(set, _)| Action::Delete { set }).collect()
}

/// The ReplicaSet for the present template.
pub fn make(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    replicas: i64,
    owner: OwnerReference,
) -> Value {
    let meta = &deployment.metadata;
    let hash = hash(&deployment.spec.template, deployment.status.collision_count);
    let mut template = deployment.spec.template.clone();
    if !template["metadata"]["labels"].is_object() {
        template["metadata"]["labels"] = Value::Object(Map::new());
    }
    template["metadata"]["labels"][HASH] = json!(hash);
    let mut selector = deployment.spec.selector.clone();
    selector["matchLabels"][HASH] = json!(hash);
    let mut annotations = copied(deployment);
    annotations.insert(REVISION.into(), next_revision(sets, None).to_string());
    annotations.insert(DESIRED.into(), deployment.replicas().to_string());
    annotations.insert(
        MAX.into(),
        (deployment.replicas() + rollout::max_surge(deployment)).to_string(),
    );
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", meta.name), "namespace": meta.namespace,
            "labels": template["metadata"]["labels"], "annotations": annotations, "ownerReferences": [owner],
        },
        "spec": {
            "replicas": replicas, "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector, "template": template,
        },
    })
}

/// ReplicaSets ordered by age, without the new one.
pub fn old_sets(sets: &[&ReplicaSet], new: Option<usize>) -> Vec<usize> {
    let mut old: Vec<usize> = (0..sets.len())
        .filter(|index| Some(*index) != new)
        .collect();
    old.sort_by_key(|index| {
        let meta = &sets[*index].metadata;
        (
            meta.creation_timestamp.clone(),
            hash_label(sets[*index]).cloned(),
            meta.name.clone(),
        )
    });
    old
}
