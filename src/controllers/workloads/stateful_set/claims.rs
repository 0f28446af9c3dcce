//! The claims of a StatefulSet's pods: what they are called, how they are made, and who owns them. Pure.

use api::view::{ObjectMeta, OwnerReference};
use apimachinery::Value;
use serde_json::json;

use super::StatefulSet;
use crate::objects::Pod;

/// The name of a pod's claim.
pub fn name(template: &Value, pod: &str) -> String {
    format!("{}-{pod}", apimachinery::meta::name(template))
}

/// A pod's claim.
pub fn make(set: &StatefulSet, template: &Value, pod: &str) -> Value {
    let mut claim = template.clone();
    claim["apiVersion"] = json!("v1");
    claim["kind"] = json!("PersistentVolumeClaim");
    claim["metadata"]["name"] = json!(name(template, pod));
    claim["metadata"]["namespace"] = json!(set.metadata.namespace);
    let selected = set.spec.selector["matchLabels"].as_object();
    for (key, value) in selected.into_iter().flatten() {
        claim["metadata"]["labels"][key] = value.clone();
    }
    if let Some(fields) = claim.as_object_mut() {
        fields.remove("status");
    }
    claim
}

/// The owners a claim should have: the set if it goes with the set, the pod if it goes with the pod and the pod is
/// beyond the replicas (KEP-1847); others' references are left alone.
pub fn owners(
    set: &StatefulSet,
    reference: &OwnerReference,
    pod: &Pod,
    ordinal: i64,
    claim: &ObjectMeta,
) -> Vec<OwnerReference> {
    let policy = &set.spec.persistent_volume_claim_retention_policy;
    let with_set = policy.when_deleted == "Delete";
    let beyond = !(set.start()..set.start() + set.replicas()).contains(&ordinal);
    let with_pod = policy.when_scaled == "Delete" && beyond;
    let present = &claim.owner_references;
    // Somebody else's claim of the same name is not touched.
    let foreign = present.iter().any(|owner| {
        owner.controller == Some(true)
            && owner.uid != set.metadata.uid
            && owner.uid != pod.metadata.uid
    });
    if foreign {
        return present.clone();
    }
    let mine = |owner: &&OwnerReference| {
        owner.uid == set.metadata.uid || (owner.kind == "Pod" && owner.name == pod.metadata.name)
    };
    let mut wanted = Vec::new();
    if with_pod {
        wanted.push(OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            controller: None,
            block_owner_deletion: None,
        });
    } else if with_set {
        wanted.push(OwnerReference {
            controller: Some(true),
            block_owner_deletion: Some(true),
            ..reference.clone()
        });
    }
    let has = |one: &OwnerReference| present.iter().any(|owner| owner.uid == one.uid);
    let count = present.iter().filter(mine).count();
    if count == wanted.len() && wanted.iter().all(has) {
        return present.clone();
    }
    let others = present.iter().filter(|owner| !mine(owner)).cloned();
    others.chain(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(policy: Value) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "n", "uid": "s"},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "db"}},
                     "persistentVolumeClaimRetentionPolicy": policy},
        }))
        .unwrap()
    }

    #[track_caller]
    fn check(policy: Value, ordinal: i64, expected: &[&str]) {
        let set = set(policy);
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": format!("db-{ordinal}"), "uid": "p"}}),
        )
        .unwrap();
        let reference = OwnerReference {
            kind: "StatefulSet".into(),
            uid: "s".into(),
            ..OwnerReference::default()
        };
        let other = OwnerReference {
            uid: "x".into(),
            ..OwnerReference::default()
        };
        let mut claim = ObjectMeta {
            owner_references: vec![other],
            ..ObjectMeta::default()
        };
        claim.owner_references = owners(&set, &reference, &pod, ordinal, &claim);
        let uids: Vec<&str> = claim
            .owner_references
            .iter()
            .map(|one| one.uid.as_str())
            .collect();
        assert_eq!(uids, expected);
        let again = owners(&set, &reference, &pod, ordinal, &claim);
        assert_eq!(again, claim.owner_references, "it settles");
    }

    #[test]
    fn claims_go_with_the_set_or_with_a_pod_that_is_not_needed() {
        check(json!({}), 0, &["x"]);
        check(json!({"whenDeleted": "Delete"}), 0, &["x", "s"]);
        check(json!({"whenScaled": "Delete"}), 0, &["x"]);
        check(json!({"whenScaled": "Delete"}), 1, &["x", "p"]);
        check(
            json!({"whenDeleted": "Delete", "whenScaled": "Delete"}),
            1,
            &["x", "p"],
        );
    }

    #[test]
    fn a_claim_takes_the_selectors_labels_and_keeps_its_own() {
        let template = json!({"metadata": {"name": "data", "labels": {"a": "b"}}, "status": {}});
        let claim = make(&set(json!({})), &template, "db-0");
        assert_eq!(claim["metadata"]["name"], "data-db-0");
        assert_eq!(claim["metadata"]["labels"], json!({"a": "b", "app": "db"}));
        assert!(claim.get("status").is_none());
    }
}
