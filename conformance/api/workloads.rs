//! Cron jobs, and the classes of priority that pods name.

use serde_json::json;

use crate::cluster::{Cluster, assert_contains, refused};
use crate::kinds::{CRON_JOB, PRIORITY_CLASS};
use crate::lifecycle::Lifecycle;

pub async fn cron_jobs_live(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    // At New Year, so that no test sees a job begin.
    let job = json!({"spec": {
        "schedule": "0 0 1 1 *", "concurrencyPolicy": "Allow",
        "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "OnFailure",
            "containers": [{"name": "c", "image": "busybox", "command": ["sleep", "300"]}],
        }}}},
    }});
    Lifecycle::of(CRON_JOB, job)
        .changed_by(json!({"spec": {"suspend": true}}))
        .with_status(
            json!({"status": {"lastScheduleTime": "2026-11-30T00:00:00Z"}}),
            json!({"status": {"lastScheduleTime": "2026-11-30T00:01:00Z"}}),
        )
        .live(cluster, Some(&namespace))
        .await;
}

pub async fn priority_classes_live(cluster: &Cluster) {
    let class = json!({"value": 100, "description": "one", "preemptionPolicy": "PreemptLowerPriority", "globalDefault": false});
    Lifecycle::of(PRIORITY_CLASS, json!({"value": 100, "description": "one"}))
        .changed_by(json!({"description": "two"}))
        .live(cluster, None)
        .await;
    let classes = cluster.all(PRIORITY_CLASS);
    let mut named = class.clone();
    named["metadata"] = json!({"name": "checklist"});
    let made = classes.create(&named).await.expect("created");
    assert_eq!(made["preemptionPolicy"], class["preemptionPolicy"]);
    let value = json!([{"op": "replace", "path": "/value", "value": 7}]);
    let message = refused(
        classes.json_patch("checklist", &value).await,
        422,
        "Invalid",
    );
    assert!(
        message.contains("value: Forbidden: may not be changed in an update."),
        "{message}"
    );
    let update = json!({"value": 7});
    refused(
        classes.update("checklist", "", &update).await,
        422,
        "Invalid",
    );
    let description = json!({"description": "another"});
    let updated = classes.update("checklist", "", &description).await;
    assert_contains(&updated.expect("updated"), &description);
    classes.delete("checklist").await.expect("deleted");
}
