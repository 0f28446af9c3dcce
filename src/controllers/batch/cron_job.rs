//! cronjob-controller: makes a Job each time a schedule says so.
//!
//! `plan` is pure; a Job's name has its time in it, so that none is made twice for the same.

use std::{sync::Arc, time::Duration};

use api::r::{CRONJOBS, JOBS};
use apimachinery::{
    Value,
    time::{Time, format, now, parse},
};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Propagation, Selectors, WriteOptions,
    events::{EventKind, Recorder},
    workqueue::{self, Queue, Requeue},
};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;

use super::{
    schedule::{MAX_MISSED, Schedule},
    view::{CronJob, CronJobStatus, Job, Reference},
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    workloads::{ledger::Ledger, pods::Kind},
    writes::write_status,
};

/// CronJobs reconciled at a time (`--concurrent-cron-job-syncs`).
const WORKERS: usize = 5;
/// Index of Jobs by the uid of their controller.
const BY_CONTROLLER: &str = "controller";
/// Looked at a little after the time, so that a clock's tick earlier does not look too early (nextScheduleDelta).
const LATE: Duration = Duration::from_millis(100);

pub struct CronJobs;

struct Observed {
    crons: Informer<CronJob>,
    jobs: Informer<Job>,
    client: client::Client,
    recorder: Recorder,
    kind: Kind,
    ledger: Ledger,
}

#[async_trait]
impl Controller for CronJobs {
    fn name(&self) -> &'static str {
        "cronjob-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["cronjob"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let observed = Arc::new(Observed {
            crons: informers.informer(&CRONJOBS, "", Selectors::default()),
            jobs: informers.informer(&JOBS, "", Selectors::default()),
            client: context.client.clone(),
            recorder: context.recorder("cronjob-controller"),
            kind: Kind {
                resource: &CRONJOBS,
                api_version: "batch/v1",
                finalizer: None,
            },
            ledger: Ledger::default(),
        });
        let Observed { crons, jobs, .. } = &*observed;
        jobs.add_index(BY_CONTROLLER, |job| {
            let owner = job.metadata.controller();
            owner.map(|owner| owner.uid.clone()).into_iter().collect()
        });
        if !synced!(context, crons, jobs) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        crons.add_handler(move |change| keys.add(change.key.to_string()));
        let (keys, to) = (queue.clone(), observed.clone());
        jobs.add_handler(move |change| {
            let sides =
                [&change.old, &change.new].map(|side| side.as_ref().map(|job| &job.metadata));
            to.kind
                .owners_in(sides)
                .into_iter()
                .for_each(|key| keys.add(key));
        });
        workqueue::run("cronjob", &queue, WORKERS, &context.shutdown, |key| {
            let observed = &observed;
            async move { observed.reconcile(&key).await }
        })
        .await;
    }
}

impl Observed {
    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(cron) = self.crons.get(key) else {
            self.ledger.forget(key);
            return Ok(Requeue::No);
        };
        self.ledger.settle(key, &self.client, &JOBS).await?;
        if !self.ledger.is_seen(key, &self.jobs) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let meta = &cron.metadata;
        let jobs = self.jobs.by_index(BY_CONTROLLER, &meta.uid);
        let mut plan = plan(&cron, &jobs, now());
        let object = self.kind.object(meta);
        let event = |(kind, reason, message): Event| {
            self.recorder.event(&object, kind, reason, message);
        };
        plan.events.into_iter().for_each(event);
        for job in &plan.delete {
            self.delete(&cron, job).await?;
        }
        let mut failed = None;
        if let Some(time) = plan.create {
            match self.create(&cron, time).await {
                Ok(Some(reference)) => {
                    plan.status.active.push(reference);
                    plan.status.last_schedule_time = Some(format(time));
                }
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        if plan.status != cron.status {
            write_status(&self.client, &CRONJOBS, meta, &plan.status).await?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(plan
            .again
            .map_or(Requeue::No, |again| Requeue::After(again + LATE)))
    }

    async fn create(&self, cron: &CronJob, time: Time) -> Result<Option<Reference>, ClientError> {
        let meta = &cron.metadata;
        let job = job_for(cron, time, &self.kind);
        let options = WriteOptions::default();
        let object = self.kind.object(meta);
        let created = self
            .client
            .create::<_, Job>(&JOBS, &meta.namespace, &job, &options)
            .await;
        match created {
            Ok(stored) => {
                let version = &stored.metadata.resource_version;
                self.ledger.wrote(&meta.key(), version);
                let message = format!("Created job {}", stored.metadata.name);
                self.recorder
                    .event(&object, EventKind::Normal, "SuccessfulCreate", message);
                Ok(Some(reference(&stored)))
            }
            Err(error) if error.is_namespace_terminating() => Ok(None),
            // Made before, though the cache does not show it; if it is another's, there is none for this time.
            Err(error) if error.is_already_exists() => {
                let name = apimachinery::meta::name(&job);
                let found: Job = self.client.get(&JOBS, &meta.namespace, name).await?;
                let owner = found.metadata.controller();
                if owner.is_some_and(|owner| owner.uid == meta.uid) {
                    return Ok(Some(reference(&found)));
                }
                Err(error)
            }
            Err(error) => {
                self.ledger.failed(&meta.key(), &error);
                let message = format!("Error creating job: {error}");
                self.recorder
                    .event(&object, EventKind::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    async fn delete(&self, cron: &CronJob, job: &Job) -> Result<(), ClientError> {
        let object = self.kind.object(&cron.metadata);
        let (namespace, name) = (&job.metadata.namespace, &job.metadata.name);
        let options = DeleteOptions::uid(&job.metadata.uid).propagation(Propagation::Background);
        match self.client.delete(&JOBS, namespace, name, &options).await {
            Ok(_) => {
                let message = format!("Deleted job {name}");
                self.recorder
                    .event(&object, EventKind::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                let message = format!("Deleted job: {error}");
                self.recorder
                    .event(&object, EventKind::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }
}

type Event = (EventKind, &'static str, String);

#[derive(Default)]
struct Plan {
    delete: Vec<Arc<Job>>,
    /// The time for which to make a Job.
    create: Option<Time>,
    status: CronJobStatus,
    events: Vec<Event>,
    /// Until the next time.
    again: Option<Duration>,
}

impl Plan {
    fn normal(&mut self, reason: &'static str, message: String) {
        self.events.push((EventKind::Normal, reason, message));
    }

    fn warn(&mut self, reason: &'static str, message: String) {
        self.events.push((EventKind::Warning, reason, message));
    }
}

fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: Time) -> Plan {
    let mut plan = Plan {
        status: cron.status.clone(),
        ..Plan::default()
    };
    watch_over(cron, jobs, &mut plan);
    if cron.metadata.is_deleting() {
        return plan;
    }
    clean_up(cron, jobs, &mut plan);
    if cron.spec.suspend {
        return plan;
    }
    let zone = match zone(cron) {
        Ok(zone) => zone,
        Err(why) => {
            let name = cron.spec.time_zone.as_deref().unwrap_or("");
            plan.warn(
                "UnknownTimeZone",
                format!("invalid timeZone: {name:?}: {why}"),
            );
            return plan;
        }
    };
    let schedule = match Schedule::parse(&cron.spec.schedule) {
        Ok(schedule) => schedule,
        Err(why) => {
            let text = &cron.spec.schedule;
            plan.warn(
                "UnparseableSchedule",
                format!("unparseable schedule: {text:?} : {why}"),
            );
            return plan;
        }
    };
    if let Some(next) = schedule.next(stamp(now), &zone) {
        let left = unstamp(next) - now;
        plan.again = Some(Duration::try_from(left).unwrap_or_default());
    }
    start(cron, jobs, now, (&schedule, &zone), &mut plan);
    plan
}

/// Keeps the list of active Jobs: what has ended or gone leaves it.
fn watch_over(cron: &CronJob, jobs: &[Arc<Job>], plan: &mut Plan) {
    for job in jobs {
        let meta = &job.metadata;
        let listed = plan
            .status
            .active
            .iter()
            .position(|one| one.uid == meta.uid);
        match (job.finished(), listed) {
            (Some(condition), Some(index)) => {
                plan.status.active.remove(index);
                let message = format!(
                    "Saw completed job: {}, condition: {}",
                    meta.name, condition.kind
                );
                plan.normal("SawCompletedJob", message);
            }
            (None, None) if !meta.is_deleting() => {
                // Its status could not be written when it was made.
                if is_made_by(cron, job) {
                    plan.status.active.push(reference(job));
                } else {
                    let message = format!(
                        "Saw a job that the controller did not create or forgot: {}",
                        meta.name
                    );
                    plan.warn("UnexpectedJob", message);
                }
            }
            _ => {}
        }
        if job.status.holding("Complete").is_some()
            && job.status.completion_time > plan.status.last_successful_time
        {
            plan.status.last_successful_time = job.status.completion_time.clone();
        }
    }
    let gone: Vec<Reference> = plan
        .status
        .active
        .iter()
        .filter(|one| !jobs.iter().any(|job| job.metadata.uid == one.uid))
        .cloned()
        .collect();
    for one in gone {
        plan.status.active.retain(|other| other.uid != one.uid);
        plan.normal(
            "MissingJob",
            format!("Active job went missing: {}", one.name),
        );
    }
}

/// Finished Jobs beyond the limits of the history go, the oldest first.
fn clean_up(cron: &CronJob, jobs: &[Arc<Job>], plan: &mut Plan) {
    let spec = &cron.spec;
    for (kind, limit) in [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ] {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
            continue;
        };
        let mut ended: Vec<&Arc<Job>> = jobs
            .iter()
            .filter(|job| job.status.holding(kind).is_some() && !job.metadata.is_deleting())
            .collect();
        ended.sort_by_key(|job| (job.started_at(), job.metadata.name.clone()));
        let surplus = ended.len().saturating_sub(limit);
        plan.delete.extend(ended.into_iter().take(surplus).cloned());
    }
}

/// Decides whether a Job is to be made now.
fn start(
    cron: &CronJob,
    jobs: &[Arc<Job>],
    now: Time,
    (schedule, zone): (&Schedule, &TimeZone),
    plan: &mut Plan,
) {
    let last = plan.status.last_schedule_time.as_deref().and_then(parse);
    let created = cron.metadata.creation_timestamp.as_deref().and_then(parse);
    let mut earliest = last.or(created).unwrap_or(now);
    let deadline = cron.spec.starting_deadline_seconds;
    let deadline = deadline.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    if let Some(deadline) = deadline {
        earliest = earliest.max(now - deadline);
    }
    let Some((time, missed)) = schedule.latest(stamp(earliest), stamp(now), zone) else {
        return;
    };
    if missed > MAX_MISSED {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.warn("TooManyMissedTimes", message.into());
    }
    let time = unstamp(time);
    if deadline.is_some_and(|deadline| time + deadline < now) {
        let message = format!("Missed scheduled time to start a job: {}", format(time));
        plan.warn("MissSchedule", message);
        return;
    }
    let name = name_for(cron, time);
    if jobs.iter().any(|job| job.metadata.name == name) {
        // Made before, and the status could not be written.
        plan.status.last_schedule_time = Some(format(time));
        return;
    }
    match cron.spec.concurrency_policy.as_str() {
        "Forbid" if !plan.status.active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.normal("JobAlreadyActive", message.into());
            return;
        }
        "Replace" => {
            let active = std::mem::take(&mut plan.status.active);
            let is_active = |job: &&Arc<Job>| active.iter().any(|one| one.uid == job.metadata.uid);
            plan.delete.extend(jobs.iter().filter(is_active).cloned());
        }
        _ => {}
    }
    plan.create = Some(time);
}

/// The zone of the schedule; that of upstream's process is UTC in a container.
fn zone(cron: &CronJob) -> Result<TimeZone, String> {
    let Some(name) = cron.spec.time_zone.as_deref() else {
        return Ok(TimeZone::UTC);
    };
    TimeZone::get(name).map_err(|_| format!("unknown time zone {name}"))
}

fn stamp(time: Time) -> Timestamp {
    Timestamp::from_second(time.unix_timestamp()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn unstamp(time: Timestamp) -> Time {
    Time::from_unix_timestamp(time.as_second()).unwrap_or(Time::UNIX_EPOCH)
}

/// The name of the Job for a time (getJobName).
fn name_for(cron: &CronJob, time: Time) -> String {
    format!("{}-{}", cron.metadata.name, time.unix_timestamp() / 60)
}

fn is_made_by(cron: &CronJob, job: &Job) -> bool {
    let minutes = job.metadata.name.strip_prefix(&cron.metadata.name);
    let minutes = minutes.and_then(|rest| rest.strip_prefix('-'));
    minutes.is_some_and(|minutes| minutes.parse::<u64>().is_ok())
}

fn reference(job: &Job) -> Reference {
    Reference {
        kind: "Job".into(),
        namespace: job.metadata.namespace.clone(),
        name: job.metadata.name.clone(),
        uid: job.metadata.uid.clone(),
        api_version: "batch/v1".into(),
        resource_version: job.metadata.resource_version.clone(),
    }
}

fn job_for(cron: &CronJob, time: Time, kind: &Kind) -> Value {
    let template = &cron.spec.job_template;
    let mut meta = json!({
        "name": name_for(cron, time), "namespace": cron.metadata.namespace,
        "ownerReferences": [kind.reference(&cron.metadata)],
        "annotations": template["metadata"]["annotations"],
    });
    if !meta["annotations"].is_object() {
        meta["annotations"] = json!({});
    }
    let zone = zone(cron).unwrap_or(TimeZone::UTC);
    let local = stamp(time).to_zoned(zone.clone());
    let text = if zone == TimeZone::UTC {
        format(time)
    } else {
        local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    };
    meta["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] = json!(text);
    if template["metadata"]["labels"].is_object() {
        meta["labels"] = template["metadata"]["labels"].clone();
    }
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": template["spec"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(spec: Value, last: &str) -> CronJob {
        let mut value = json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "cron", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedule": "0 * * * *"},
        });
        for (key, one) in spec.as_object().into_iter().flatten() {
            value["spec"][key] = one.clone();
        }
        if !last.is_empty() {
            value["status"]["lastScheduleTime"] = json!(last);
        }
        serde_json::from_value(value).unwrap()
    }

    fn job(name: &str, condition: &str) -> Arc<Job> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "uid": name},
                "status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:05:00Z",
                           "conditions": [{"type": condition, "status": "True"}]},
            }))
            .unwrap(),
        )
    }

    fn at(text: &str) -> Time {
        parse(text).unwrap()
    }

    fn reasons(plan: &Plan) -> Vec<&str> {
        plan.events.iter().map(|(_, reason, _)| *reason).collect()
    }

    #[test]
    fn a_job_is_made_once_for_each_time_and_the_last_missed_one() {
        let first = plan(&cron(json!({}), ""), &[], at("2026-01-01T03:20:00Z"));
        assert_eq!(first.create, Some(at("2026-01-01T03:00:00Z")));
        assert_eq!(first.again, Some(Duration::from_secs(40 * 60)));
        let again = plan(
            &cron(json!({}), "2026-01-01T03:00:00Z"),
            &[],
            at("2026-01-01T03:20:00Z"),
        );
        assert_eq!(again.create, None);
        let name = name_for(&cron(json!({}), ""), at("2026-01-01T03:00:00Z"));
        let made = plan(
            &cron(json!({}), ""),
            &[job(&name, "X")],
            at("2026-01-01T03:20:00Z"),
        );
        assert_eq!(made.create, None);
        assert_eq!(
            made.status.last_schedule_time.as_deref(),
            Some("2026-01-01T03:00:00Z")
        );
        assert_eq!(made.status.active.len(), 1);
    }

    #[test]
    fn suspension_bad_schedules_and_unknown_zones_make_nothing() {
        let late = at("2026-01-01T03:20:00Z");
        for (spec, expected) in [
            (json!({"suspend": true}), vec![]),
            (json!({"schedule": "bad"}), vec!["UnparseableSchedule"]),
            (json!({"timeZone": "Mars/Base"}), vec!["UnknownTimeZone"]),
        ] {
            let plan = plan(&cron(spec, ""), &[], late);
            assert_eq!((plan.create, reasons(&plan)), (None, expected));
        }
    }

    #[test]
    fn a_deadline_leaves_out_what_is_too_late_and_many_misses_are_told() {
        let spec = json!({"startingDeadlineSeconds": 60});
        assert_eq!(
            plan(&cron(spec.clone(), ""), &[], at("2026-01-01T03:20:00Z")).create,
            None
        );
        let soon = plan(&cron(spec, ""), &[], at("2026-01-01T03:00:30Z"));
        assert_eq!(soon.create, Some(at("2026-01-01T03:00:00Z")));
        let many = plan(&cron(json!({}), ""), &[], at("2026-02-01T00:30:00Z"));
        assert_eq!(reasons(&many), ["TooManyMissedTimes"]);
        assert!(many.create.is_some());
    }

    #[test]
    fn concurrency_is_allowed_forbidden_or_replaces() {
        let running = job("run", "X");
        let observed = |policy: &str| {
            let mut cron = cron(json!({"concurrencyPolicy": policy}), "2026-01-01T02:00:00Z");
            cron.status.active = vec![reference(&running)];
            plan(
                &cron,
                std::slice::from_ref(&running),
                at("2026-01-01T03:20:00Z"),
            )
        };
        let allowed = observed("Allow");
        assert!(allowed.create.is_some() && allowed.delete.is_empty());
        let forbidden = observed("Forbid");
        assert_eq!(
            (forbidden.create, reasons(&forbidden)),
            (None, vec!["JobAlreadyActive"])
        );
        let replaced = observed("Replace");
        assert!(replaced.create.is_some());
        assert_eq!(replaced.delete[0].metadata.name, "run");
        assert!(replaced.status.active.is_empty());
    }

    #[test]
    fn ended_and_missing_jobs_leave_the_list_and_old_ones_the_history() {
        let spec =
            json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0, "suspend": true});
        let mut cron = cron(spec, "");
        let jobs = [
            job("a", "Complete"),
            job("b", "Complete"),
            job("f", "Failed"),
        ];
        cron.status.active = vec![reference(&jobs[1]), reference(&job("gone", "X"))];
        let plan = plan(&cron, &jobs, at("2026-01-01T03:20:00Z"));
        assert!(plan.status.active.is_empty());
        assert_eq!(reasons(&plan), ["SawCompletedJob", "MissingJob"]);
        let deleted: Vec<&str> = plan
            .delete
            .iter()
            .map(|job| job.metadata.name.as_str())
            .collect();
        assert_eq!(deleted, ["a", "f"]);
        assert_eq!(
            plan.status.last_successful_time.as_deref(),
            Some("2026-01-01T00:05:00Z")
        );
    }

    #[test]
    fn a_job_has_its_time_in_its_name_and_in_an_annotation() {
        let kind = Kind {
            resource: &CRONJOBS,
            api_version: "batch/v1",
            finalizer: None,
        };
        let spec = json!({"timeZone": "Europe/Berlin", "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}});
        let job = job_for(&cron(spec, ""), at("2026-01-01T03:00:00Z"), &kind);
        assert_eq!(job["metadata"]["name"], "c-29453940");
        let annotation =
            &job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"];
        assert_eq!(annotation, "2026-01-01T04:00:00+01:00");
        assert_eq!(
            (&job["spec"], &job["metadata"]["labels"]),
            (&json!({"x": 1}), &json!({"a": "b"}))
        );
    }
}
