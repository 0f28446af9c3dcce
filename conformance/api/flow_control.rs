//! Flow schemas and priority levels.

use serde_json::json;

use crate::cluster::Cluster;
use crate::kinds::{FLOW_SCHEMA, PRIORITY_LEVEL};
use crate::lifecycle::Lifecycle;

fn condition(kind: &str) -> serde_json::Value {
    json!({"status": {"conditions": [
        {"type": kind, "status": "True", "reason": "Checklist", "message": "set by a test"},
    ]}})
}

pub async fn flow_schemas_live(cluster: &Cluster) {
    let schema = json!({"spec": {
        "matchingPrecedence": 9500,
        "priorityLevelConfiguration": {"name": "global-default"},
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "checklist"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }],
    }});
    Lifecycle::of(FLOW_SCHEMA, schema)
        .changed_by(json!({"spec": {"matchingPrecedence": 9501}}))
        .with_bare_status(condition("Patched"), condition("Updated"))
        .live(cluster, None)
        .await;
}

pub async fn priority_levels_live(cluster: &Cluster) {
    let level = json!({"spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 2, "limitResponse": {"type": "Reject"},
    }}});
    Lifecycle::of(PRIORITY_LEVEL, level)
        .changed_by(json!({"spec": {"limited": {"nominalConcurrencyShares": 4}}}))
        .with_bare_status(condition("Patched"), condition("Updated"))
        .live(cluster, None)
        .await;
}
