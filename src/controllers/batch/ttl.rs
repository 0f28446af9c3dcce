//! ttl-after-finished-controller: deletes Jobs some time after they have ended (KEP-592).

use std::{sync::Arc, time::Duration};

use api::r::JOBS;
use apimachinery::time::{Time, now, parse};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Propagation, Selectors,
    workqueue::{self, Queue, Requeue},
};

use super::view::Job;
use crate::{Context, Controller, context::synced};

/// Jobs looked at at a time (`--concurrent-ttl-after-finished-syncs`).
const WORKERS: usize = 5;

pub struct TtlAfterFinished;

#[async_trait]
impl Controller for TtlAfterFinished {
    fn name(&self) -> &'static str {
        "ttl-after-finished-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["ttl-after-finished"]
    }

    async fn run(&self, context: Context) {
        let jobs: Informer<Job> = context.informers.informer(&JOBS, "", Selectors::default());
        if !synced!(context, jobs) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        jobs.add_handler(move |change| {
            if change.new.as_ref().is_some_and(|job| expiry(job).is_some()) {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run(
            "ttl-after-finished",
            &queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let (context, jobs) = (&context, &jobs);
                async move { reconcile(context, jobs.get(&key)).await }
            },
        )
        .await;
    }
}

/// When the Job is to be deleted, if it is.
fn expiry(job: &Job) -> Option<Time> {
    if job.metadata.is_deleting() {
        return None;
    }
    let seconds = u64::try_from(job.spec.ttl_seconds_after_finished?).ok()?;
    let end = parse(job.finished()?.last_transition_time.as_deref()?)?;
    Some(end + Duration::from_secs(seconds))
}

/// How long to wait, if the Job is to be deleted; zero is now.
fn wait(job: &Job, now: Time) -> Option<Duration> {
    Some(Duration::try_from(expiry(job)? - now).unwrap_or_default())
}

async fn reconcile(context: &Context, job: Option<Arc<Job>>) -> Result<Requeue, ClientError> {
    let Some(job) = job else {
        return Ok(Requeue::No);
    };
    match wait(&job, now()) {
        None => return Ok(Requeue::No),
        Some(left) if !left.is_zero() => return Ok(Requeue::After(left)),
        Some(_) => {}
    }
    // The time to live may have been raised, which the cache may not show yet.
    let (namespace, name) = (&job.metadata.namespace, &job.metadata.name);
    let fresh: Job = match context.client.get(&JOBS, namespace, name).await {
        Ok(fresh) => fresh,
        Err(error) if error.is_not_found() => return Ok(Requeue::No),
        Err(error) => return Err(error),
    };
    match wait(&fresh, now()) {
        None => return Ok(Requeue::No),
        Some(left) if !left.is_zero() => return Ok(Requeue::After(left)),
        Some(_) => {}
    }
    let mut options = DeleteOptions::uid(&fresh.metadata.uid).propagation(Propagation::Foreground);
    options.preconditions.resource_version = Some(fresh.metadata.resource_version.clone());
    match context
        .client
        .delete(&JOBS, namespace, name, &options)
        .await
    {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(Requeue::No),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::time::format;
    use client::fake::Server;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    fn job(name: &str, ttl: Value, ended: Time) -> Value {
        json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"ttlSecondsAfterFinished": ttl},
               "status": {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": format(ended)}]}})
    }

    #[test]
    fn only_ended_jobs_with_a_time_to_live_expire() {
        let end = now();
        let parsed = |value: Value| serde_json::from_value::<Job>(value).unwrap();
        let left = wait(&parsed(job("a", json!(60), end)), end);
        assert!(left.is_some_and(|left| left.as_secs() <= 60 && left.as_secs() >= 59));
        let later = end + Duration::from_secs(61);
        assert_eq!(
            wait(&parsed(job("a", json!(60), end)), later),
            Some(Duration::ZERO)
        );
        assert_eq!(wait(&parsed(job("a", Value::Null, end)), later), None);
        let mut running = job("a", json!(0), end);
        running["status"] = json!({});
        assert_eq!(wait(&parsed(running), later), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_job_is_deleted_with_its_pods_first() {
        let server = Server::default();
        let config = crate::ControllersConfig {
            controllers: vec!["ttl-after-finished-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        let long_ago = now() - Duration::from_secs(600);
        server.put(&JOBS, job("expired", json!(60), long_ago));
        server.put(&JOBS, job("kept", json!(6000), long_ago));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.get(&JOBS, "n/expired").is_none());
        assert!(server.get(&JOBS, "n/kept").is_some());
        let deletion = &server.requests_of("DELETE", "/jobs/expired")[0];
        assert_eq!(deletion.body["propagationPolicy"], "Foreground");
    }
}
