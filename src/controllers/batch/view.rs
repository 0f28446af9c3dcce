//! batch/v1 Job and CronJob, as far as the controllers read them.

use api::view::ObjectMeta;
use apimachinery::{
    Value,
    time::{Time, parse},
};
use serde::{Deserialize, Serialize};

/// The label and annotation with a pod's index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// On pods that are not counted yet (KEP-2307).
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// How often the pod's index failed before it (KEP-3850).
pub const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// How often that was ignored by the pod failure policy.
pub const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    pub metadata: ObjectMeta,
    pub spec: JobSpec,
    pub status: JobStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    pub parallelism: Option<i64>,
    pub completions: Option<i64>,
    pub active_deadline_seconds: Option<i64>,
    pub pod_failure_policy: Option<PodFailurePolicy>,
    pub success_policy: Option<SuccessPolicy>,
    pub backoff_limit: Option<i64>,
    pub backoff_limit_per_index: Option<i64>,
    pub max_failed_indexes: Option<i64>,
    pub selector: Value,
    pub template: Value,
    pub ttl_seconds_after_finished: Option<i64>,
    pub completion_mode: String,
    pub suspend: bool,
    pub pod_replacement_policy: String,
    pub managed_by: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    pub rules: Vec<FailureRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRule {
    pub action: String,
    pub on_exit_codes: Option<ExitCodes>,
    pub on_pod_conditions: Vec<ConditionPattern>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExitCodes {
    pub container_name: Option<String>,
    pub operator: String,
    pub values: Vec<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConditionPattern {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    pub rules: Vec<SuccessRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRule {
    pub succeeded_indexes: Option<String>,
    pub succeeded_count: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub active: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed_indexes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_indexes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted_terminated_pods: Option<Uncounted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Pods that have ended and still have their finalizer, or just lost it: not in the numbers yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uncounted {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl JobStatus {
    /// The condition of this type if it is true.
    pub fn holding(&self, kind: &str) -> Option<&JobCondition> {
        let mut all = self.conditions.iter();
        all.find(|one| one.kind == kind && one.status == "True")
    }
}

impl Job {
    /// `Complete` or `Failed`, if it has ended.
    pub fn finished(&self) -> Option<&JobCondition> {
        let complete = self.status.holding("Complete");
        complete.or_else(|| self.status.holding("Failed"))
    }

    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode == "Indexed"
    }

    pub fn parallelism(&self) -> i64 {
        self.spec.parallelism.unwrap_or(1)
    }

    pub fn backoff_limit(&self) -> i64 {
        let unlimited = self.spec.backoff_limit_per_index.is_some();
        let default = if unlimited { i64::from(i32::MAX) } else { 6 };
        self.spec.backoff_limit.unwrap_or(default)
    }

    /// Whether a pod that is being deleted holds its place until it has ended.
    pub fn replaces_only_failed(&self) -> bool {
        self.spec.pod_replacement_policy == "Failed" || self.spec.pod_failure_policy.is_some()
    }

    /// Whether this controller, and no other, works on it (KEP-4368).
    pub fn is_ours(&self) -> bool {
        let manager = self.spec.managed_by.as_deref();
        manager.is_none_or(|manager| manager == "kubernetes.io/job-controller")
    }

    /// When it started.
    pub fn started_at(&self) -> Option<Time> {
        self.status.start_time.as_deref().and_then(parse)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CronJob {
    pub metadata: ObjectMeta,
    pub spec: CronJobSpec,
    pub status: CronJobStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpec {
    pub schedule: String,
    pub time_zone: Option<String>,
    pub starting_deadline_seconds: Option<i64>,
    pub concurrency_policy: String,
    pub suspend: bool,
    pub job_template: Value,
    pub successful_jobs_history_limit: Option<i64>,
    pub failed_jobs_history_limit: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<String>,
}

/// core/v1 ObjectReference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reference {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}
