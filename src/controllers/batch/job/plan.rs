//! What a Job does next. Pure.
//!
//! `Tally` sorts the pods and settles which of them are counted: an ended pod keeps its finalizer until the status
//! that counts it is stored, so none is lost and none counted twice (KEP-2307). `verdict` decides whether the Job has
//! ended, `manage` which pods are missing or too many, `finish` puts all of it into the status.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use apimachinery::time::{Time, format};
use client::events::EventKind;

use super::{
    super::view::{FAILURES, IGNORED, INDEX, Job, JobCondition, JobStatus, TRACKING, Uncounted},
    intervals::Intervals,
    policy::{self, Outcome},
};
use crate::{
    objects::Pod,
    workloads::pods::{BURST, sort_for_deletion},
};

/// Pods counted in one status (MaxUncountedPods).
const MAX_UNCOUNTED: usize = 500;

/// A pod, and whether it is being deleted, which the cache may not show yet.
#[derive(Clone)]
pub struct Seen {
    pub pod: Arc<Pod>,
    pub deleting: bool,
}

pub struct Observed<'a> {
    pub job: &'a Job,
    pub pods: &'a [Seen],
    pub now: Time,
}

/// A pod to be made; the counts are those of its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPod {
    pub index: Option<i64>,
    pub failures: i64,
    pub ignored: i64,
}

#[derive(Default)]
pub struct Plan {
    pub create: Vec<NewPod>,
    pub delete: Vec<Arc<Pod>>,
    pub status: JobStatus,
    /// Pods that lose their finalizer once the status is stored.
    pub release: Vec<Arc<Pod>>,
    pub events: Vec<(EventKind, String, String)>,
    /// When to plan again though nothing changes.
    pub again: Option<Duration>,
}

/// How the Job ended: its pods go, and when they are gone it says so.
struct Verdict {
    succeeded: bool,
    reason: String,
    message: String,
}

impl Verdict {
    fn failed(reason: &str, message: impl Into<String>) -> Option<Self> {
        Some(Verdict {
            succeeded: false,
            reason: reason.into(),
            message: message.into(),
        })
    }

    fn succeeded(reason: &str, message: impl Into<String>) -> Option<Self> {
        Some(Verdict {
            succeeded: true,
            reason: reason.into(),
            message: message.into(),
        })
    }

    fn condition(&self, kind: &str, now: Time) -> JobCondition {
        JobCondition {
            kind: kind.into(),
            status: "True".into(),
            last_probe_time: Some(format(now)),
            last_transition_time: Some(format(now)),
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }

    fn from(succeeded: bool, condition: &JobCondition) -> Self {
        Verdict {
            succeeded,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }
    }
}

/// The completion index of a pod, if it has one.
pub fn index_of(pod: &Pod) -> Option<i64> {
    let text = pod.metadata.annotations.get(INDEX)?;
    text.parse().ok().filter(|index| *index >= 0)
}

fn number(pod: &Pod, annotation: &str) -> i64 {
    let text = pod.metadata.annotations.get(annotation);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether the pod has the finalizer that keeps it until it is counted.
pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().any(|one| one == TRACKING)
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let job = observed.job;
    let mut plan = Plan {
        status: job.status.clone(),
        ..Plan::default()
    };
    if job.finished().is_some() || job.metadata.is_deleting() {
        let tracked = observed.pods.iter().filter(|seen| is_tracked(&seen.pod));
        plan.release = tracked.map(|seen| seen.pod.clone()).collect();
        return plan;
    }
    start(observed, &mut plan);
    let mut tally = Tally::new(observed);
    tally.count(&mut plan);
    let verdict = tally.verdict(&plan.status, &mut plan.again);
    let verdict = match verdict {
        Some(verdict) => {
            plan.delete = tally.active.iter().map(|pod| Arc::clone(pod)).collect();
            Some(verdict)
        }
        None => {
            tally.manage(&mut plan);
            tally.completed(&plan)
        }
    };
    tally.finish(verdict, &mut plan);
    plan
}

/// Sets the start time, and says when a suspension begins or ends.
fn start(observed: &Observed<'_>, plan: &mut Plan) {
    let (job, now) = (observed.job, format(observed.now));
    let status = &mut plan.status;
    if status.start_time.is_none() && !job.spec.suspend {
        status.start_time = Some(now.clone());
    }
    let was_suspended = status.holding("Suspended").is_some();
    if job.spec.suspend == was_suspended {
        return;
    }
    let (truth, reason, event, message) = if job.spec.suspend {
        ("True", "JobSuspended", "Suspended", "Job suspended")
    } else {
        status.start_time = Some(now.clone());
        ("False", "JobResumed", "Resumed", "Job resumed")
    };
    status.conditions.retain(|one| one.kind != "Suspended");
    status.conditions.push(JobCondition {
        kind: "Suspended".into(),
        status: truth.into(),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now),
        reason: reason.into(),
        message: message.into(),
    });
    plan.events
        .push((EventKind::Normal, event.into(), message.into()));
}

/// The Job's pods, sorted and counted.
struct Tally<'a> {
    observed: &'a Observed<'a>,
    job: &'a Job,
    active: Vec<&'a Arc<Pod>>,
    /// Being deleted, and not ended yet.
    terminating: Vec<&'a Arc<Pod>>,
    succeeded: Vec<&'a Arc<Pod>>,
    failed: Vec<&'a Arc<Pod>>,
    /// Indexes that succeeded, and that failed for good.
    completed: Intervals,
    lost: Intervals,
    /// The last failed pod of each index: it tells how often the index failed, so it stays until it has a successor.
    last_failed: HashMap<i64, &'a Arc<Pod>>,
    succeeded_total: i64,
    failed_total: i64,
    /// Ended pods for which this status has no room.
    left_over: bool,
}

impl<'a> Tally<'a> {
    fn new(observed: &'a Observed<'a>) -> Self {
        let job = observed.job;
        let mut tally = Tally {
            observed,
            job,
            active: Vec::new(),
            terminating: Vec::new(),
            succeeded: Vec::new(),
            failed: Vec::new(),
            completed: Intervals::default(),
            lost: Intervals::default(),
            last_failed: HashMap::new(),
            succeeded_total: 0,
            failed_total: 0,
            left_over: false,
        };
        let only_failed = job.replaces_only_failed();
        for Seen { pod, deleting } in observed.pods {
            match pod.status.phase.as_str() {
                "Succeeded" => tally.succeeded.push(pod),
                "Failed" => tally.failed.push(pod),
                _ if *deleting => {
                    tally.terminating.push(pod);
                    if !only_failed {
                        tally.failed.push(pod);
                    }
                }
                _ => tally.active.push(pod),
            }
        }
        if job.is_indexed() {
            tally.sort_indexes();
        }
        tally
    }

    fn completions(&self) -> i64 {
        self.job.spec.completions.unwrap_or(0)
    }

    fn valid_index(&self, pod: &Pod) -> Option<i64> {
        index_of(pod).filter(|index| *index < self.completions())
    }

    fn sort_indexes(&mut self) {
        let status = &self.job.status;
        self.completed = Intervals::parse(&status.completed_indexes, self.completions());
        for pod in &self.succeeded {
            if let Some(index) = self.valid_index(pod) {
                self.completed.insert(index);
            }
        }
        let Some(limit) = self.job.spec.backoff_limit_per_index else {
            return;
        };
        let before = status.failed_indexes.as_deref().unwrap_or("");
        self.lost = Intervals::parse(before, self.completions());
        for pod in &self.failed {
            let Some(index) = self.valid_index(pod) else {
                continue;
            };
            let (failures, ignored) = self.failures_after(pod);
            let fatal = policy::outcome(self.job, pod) == Outcome::FailIndex;
            if (failures > limit || fatal) && !self.completed.contains(index) {
                self.lost.insert(index);
            }
            let total = |pod: &Pod| {
                let (failures, ignored) = self.failures_after(pod);
                failures + ignored
            };
            let later = self.last_failed.get(&index).copied();
            if later.is_none_or(|later| total(later) < failures + ignored) {
                self.last_failed.insert(index, pod);
            }
        }
    }

    /// How often the index of a failed pod has failed, that pod included: what counts, and what was ignored.
    fn failures_after(&self, pod: &Pod) -> (i64, i64) {
        let ignored = policy::outcome(self.job, pod) == Outcome::Ignore;
        (
            number(pod, FAILURES) + i64::from(!ignored),
            number(pod, IGNORED) + i64::from(ignored),
        )
    }

    /// Whether the pod is the last failed one of an index that gets another pod.
    fn waits_for_successor(&self, pod: &Arc<Pod>, verdict_stands: bool) -> bool {
        if self.job.spec.backoff_limit_per_index.is_none() || verdict_stands {
            return false;
        }
        let Some(index) = self.valid_index(pod) else {
            return false;
        };
        let is_last = self
            .last_failed
            .get(&index)
            .is_some_and(|last| last.metadata.uid == pod.metadata.uid);
        let has_successor = self.active.iter().any(|one| index_of(one) == Some(index));
        is_last && !has_successor && !self.lost.contains(index) && !self.completed.contains(index)
    }

    /// Counts what has lost its finalizer, and notes what has ended since.
    fn count(&mut self, plan: &mut Plan) {
        let status = &mut plan.status;
        let before = status.uncounted_terminated_pods.take().unwrap_or_default();
        let tracked: HashMap<&str, &Arc<Pod>> = self
            .observed
            .pods
            .iter()
            .filter(|seen| is_tracked(&seen.pod))
            .map(|seen| (seen.pod.metadata.uid.as_str(), &seen.pod))
            .collect();
        let mut uncounted = Uncounted::default();
        for (uids, left, number) in [
            (
                &before.succeeded,
                &mut uncounted.succeeded,
                &mut status.succeeded,
            ),
            (&before.failed, &mut uncounted.failed, &mut status.failed),
        ] {
            for uid in uids {
                match tracked.get(uid.as_str()) {
                    Some(pod) => {
                        left.push(uid.clone());
                        plan.release.push(Arc::clone(pod));
                    }
                    None => *number += 1,
                }
            }
        }
        let noted: HashSet<&str> = before
            .succeeded
            .iter()
            .chain(&before.failed)
            .map(String::as_str)
            .collect();
        let is_new = |pod: &Arc<Pod>| is_tracked(pod) && !noted.contains(pod.metadata.uid.as_str());
        let mut room = MAX_UNCOUNTED.saturating_sub(noted.len());
        for pod in self.succeeded.iter().copied().filter(|pod| is_new(pod)) {
            if room == 0 {
                self.left_over = true;
                break;
            }
            room -= 1;
            // An index that succeeded is in the intervals, which count.
            if !self.job.is_indexed() {
                uncounted.succeeded.push(pod.metadata.uid.clone());
            }
            plan.release.push(Arc::clone(pod));
        }
        let verdict_stands = status.holding("FailureTarget").is_some()
            || status.holding("SuccessCriteriaMet").is_some();
        let mut waiting = 0;
        for pod in self.failed.iter().copied().filter(|pod| is_new(pod)) {
            let ignored = policy::outcome(self.job, pod) == Outcome::Ignore;
            if self.waits_for_successor(pod, verdict_stands) {
                waiting += i64::from(!ignored);
                continue;
            }
            if room == 0 {
                self.left_over = true;
                break;
            }
            room -= 1;
            let counts = !self.job.is_indexed() || self.valid_index(pod).is_some();
            if counts && !ignored {
                uncounted.failed.push(pod.metadata.uid.clone());
            }
            plan.release.push(Arc::clone(pod));
        }
        let length = |uids: &[String]| i64::try_from(uids.len()).unwrap_or(i64::MAX);
        self.succeeded_total = status.succeeded + length(&uncounted.succeeded);
        if self.job.is_indexed() {
            status.succeeded = self.completed.total();
            self.succeeded_total = status.succeeded;
            status.completed_indexes = self.completed.to_string();
        }
        if self.job.spec.backoff_limit_per_index.is_some() {
            status.failed_indexes = Some(self.lost.to_string());
        }
        self.failed_total = status.failed + length(&uncounted.failed) + waiting;
        status.uncounted_terminated_pods = Some(uncounted);
    }

    /// Whether the Job has ended, but for having enough completions.
    fn verdict(&self, status: &JobStatus, again: &mut Option<Duration>) -> Option<Verdict> {
        if let Some(condition) = status.holding("FailureTarget") {
            return Some(Verdict::from(false, condition));
        }
        if let Some(condition) = status.holding("SuccessCriteriaMet") {
            return Some(Verdict::from(true, condition));
        }
        let job = self.job;
        if job.spec.pod_failure_policy.is_some() {
            for pod in &self.failed {
                if let Outcome::FailJob(message) = policy::outcome(job, pod) {
                    return Verdict::failed("PodFailurePolicy", message);
                }
            }
        }
        if self.failed_total > job.backoff_limit() || self.restarted_too_often() {
            let message = "Job has reached the specified backoff limit";
            return Verdict::failed("BackoffLimitExceeded", message);
        }
        if let Some(seconds) = job
            .spec
            .active_deadline_seconds
            .filter(|_| !job.spec.suspend)
        {
            let started = status
                .start_time
                .as_deref()
                .and_then(apimachinery::time::parse);
            let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            let due = started.unwrap_or(self.observed.now) + limit;
            if due <= self.observed.now {
                let message = "Job was active longer than specified deadline";
                return Verdict::failed("DeadlineExceeded", message);
            }
            sooner(again, Duration::try_from(due - self.observed.now).ok());
        }
        if !job.is_indexed() {
            return None;
        }
        let lost = self.lost.total();
        if job.spec.max_failed_indexes.is_some_and(|max| lost > max) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Verdict::failed("MaxFailedIndexesExceeded", message);
        }
        if lost > 0 && self.completed.total() + lost >= self.completions() {
            return Verdict::failed("FailedIndexes", "Job has failed indexes");
        }
        let message = policy::early_success(job, &self.completed)?;
        Verdict::succeeded("SuccessPolicy", message)
    }

    /// With restartPolicy OnFailure containers restart within their pod, and that counts (pastBackoffLimitOnFailure).
    fn restarted_too_often(&self) -> bool {
        if self.job.spec.template["spec"]["restartPolicy"] != "OnFailure" {
            return false;
        }
        let restarts = |pod: &Pod| -> i64 {
            let status = &pod.status;
            let all = status
                .container_statuses
                .iter()
                .chain(&status.init_container_statuses);
            all.map(|one| one.restart_count).sum()
        };
        let total: i64 = self.active.iter().map(|pod| restarts(pod)).sum();
        let limit = self.job.backoff_limit();
        if limit == 0 {
            total > 0
        } else {
            total >= limit
        }
    }

    /// Which pods are too many, or missing.
    fn manage(&self, plan: &mut Plan) {
        let job = self.job;
        if job.spec.suspend {
            plan.delete = self.active.iter().map(|pod| Arc::clone(pod)).collect();
            return;
        }
        let count = |pods: &[&Arc<Pod>]| i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let active = count(&self.active);
        let wanted = match job.spec.completions {
            // A queue of work: the first success tells that no more pods are needed.
            None if self.succeeded_total > 0 => active.min(job.parallelism()),
            None => job.parallelism(),
            Some(completions) => {
                let left = completions - self.succeeded_total - self.lost.total();
                left.min(job.parallelism()).max(0)
            }
        };
        self.remove(active - wanted, plan);
        if !plan.delete.is_empty() {
            return;
        }
        let mut missing = wanted - active;
        if job.replaces_only_failed() {
            missing -= count(&self.terminating);
        }
        if missing <= 0 {
            return;
        }
        let missing = usize::try_from(missing).unwrap_or(0).min(BURST);
        if job.spec.backoff_limit_per_index.is_none() {
            let failed = self.failed.iter().map(|pod| (*pod, true));
            let ended = self.succeeded.iter().map(|pod| (*pod, false)).chain(failed);
            if let Some(left) = policy::pause(ended, self.observed.now) {
                sooner(&mut plan.again, Some(left));
                return;
            }
        }
        if job.is_indexed() {
            self.create_indexes(missing, plan);
        } else {
            plan.create = vec![NewPod::default(); missing];
        }
    }

    /// Pods beyond what is wanted go, first those without a place among the indexes.
    fn remove(&self, surplus: i64, plan: &mut Plan) {
        let mut surplus = usize::try_from(surplus).unwrap_or(0);
        let mut candidates: Vec<Arc<Pod>> = self.active.iter().map(|pod| Arc::clone(pod)).collect();
        let related = candidates.clone();
        sort_for_deletion(&mut candidates, &related, self.observed.now);
        if self.job.is_indexed() {
            // Of two pods of an index, the better one comes last.
            let mut taken = HashSet::new();
            candidates.reverse();
            candidates.retain(|pod| {
                let keeps = self.valid_index(pod).is_some_and(|index| {
                    !self.completed.contains(index)
                        && !self.lost.contains(index)
                        && taken.insert(index)
                });
                if !keeps {
                    plan.delete.push(pod.clone());
                    surplus = surplus.saturating_sub(1);
                }
                keeps
            });
            candidates.reverse();
        }
        plan.delete.extend(candidates.into_iter().take(surplus));
        plan.delete.truncate(BURST);
    }

    fn create_indexes(&self, missing: usize, plan: &mut Plan) {
        let mut occupied: HashSet<i64> =
            self.active.iter().filter_map(|pod| index_of(pod)).collect();
        if self.job.replaces_only_failed() {
            occupied.extend(self.terminating.iter().filter_map(|pod| index_of(pod)));
        }
        for index in 0..self.completions() {
            if plan.create.len() == missing {
                return;
            }
            if occupied.contains(&index)
                || self.completed.contains(index)
                || self.lost.contains(index)
            {
                continue;
            }
            let mut new = NewPod {
                index: Some(index),
                ..NewPod::default()
            };
            if let Some(last) = self.last_failed.get(&index) {
                (new.failures, new.ignored) = self.failures_after(last);
                let failures = usize::try_from(new.failures + new.ignored).unwrap_or(0);
                let end = policy::finished_at(last).unwrap_or(self.observed.now);
                if let Some(left) = policy::pause_after(failures, end, self.observed.now) {
                    sooner(&mut plan.again, Some(left));
                    continue;
                }
            }
            plan.create.push(new);
        }
    }

    /// Whether as many pods succeeded as should, and nothing runs any more.
    fn completed(&self, plan: &Plan) -> Option<Verdict> {
        let enough = match self.job.spec.completions {
            None => self.succeeded_total > 0,
            Some(completions) => self.succeeded_total >= completions,
        };
        if !enough || !self.active.is_empty() || !plan.create.is_empty() {
            return None;
        }
        let message = "Reached expected number of succeeded pods";
        Verdict::succeeded("CompletionsReached", message)
    }

    fn finish(&self, verdict: Option<Verdict>, plan: &mut Plan) {
        let gone: HashSet<&str> = plan
            .delete
            .iter()
            .map(|pod| pod.metadata.uid.as_str())
            .collect();
        let stays = |pod: &&&Arc<Pod>| !gone.contains(pod.metadata.uid.as_str());
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let staying = self.active.iter().filter(stays);
        let ready = staying.clone().filter(|pod| pod.is_ready()).count();
        let status = &mut plan.status;
        status.active = count(staying.count() + plan.create.len());
        status.ready = Some(count(ready));
        status.terminating = Some(count(self.terminating.len() + plan.delete.len()));
        let Some(verdict) = verdict else { return };
        let (target, end) = if verdict.succeeded {
            ("SuccessCriteriaMet", "Complete")
        } else {
            ("FailureTarget", "Failed")
        };
        if status.holding(target).is_none() {
            status
                .conditions
                .push(verdict.condition(target, self.observed.now));
        }
        // It says that it has ended when all its pods have, and are counted, so that nothing is left of it.
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let all_counted = plan.release.is_empty()
            && !self.left_over
            && uncounted.is_none_or(|left| left.succeeded.is_empty() && left.failed.is_empty())
            && !self.failed.iter().any(|pod| is_tracked(pod));
        if !self.active.is_empty() || !self.terminating.is_empty() || !all_counted {
            return;
        }
        status
            .conditions
            .push(verdict.condition(end, self.observed.now));
        status.terminating = Some(0);
        if verdict.succeeded {
            status.completion_time = Some(format(self.observed.now));
            let event = (
                EventKind::Normal,
                "Completed".into(),
                "Job completed".into(),
            );
            plan.events.push(event);
        } else {
            let event = (EventKind::Warning, verdict.reason, verdict.message);
            plan.events.push(event);
        }
    }
}

/// The earlier of two times to look again.
fn sooner(again: &mut Option<Duration>, other: Option<Duration>) {
    if let Some(other) = other {
        *again = Some(again.map_or(other, |again| again.min(other)));
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
