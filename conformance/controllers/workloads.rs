//! CronJobs, disruption budgets and ReplicationControllers.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::cluster::{Space, controller, length, owners, pending, refused};

/// A minute comes, and what is done in it.
const TICK: Duration = Duration::from_secs(60 + 60);

fn cron(name: &str, policy: &str, suspended: bool) -> Value {
    let mut spec = pending();
    spec["restartPolicy"] = json!("OnFailure");
    json!({"metadata": {"name": name}, "spec": {
        "schedule": "*/1 * * * ?", "concurrencyPolicy": policy, "suspend": suspended,
        "jobTemplate": {"spec": {"parallelism": 1, "completions": 1, "template": {"spec": spec}}}}})
}

fn active(cron: Option<&Value>) -> usize {
    cron.and_then(|cron| cron["status"]["active"].as_array())
        .map_or(0, Vec::len)
}

/// Makes a CronJob that is due at once, since its last job was of the minute before the last.
async fn make(space: &Space, name: &str, policy: &str, suspended: bool) -> anyhow::Result<String> {
    let made = cron(name, policy, suspended);
    let path = space.group("batch/v1", "cronjobs");
    space.post(&path, made).await?;
    let path = format!("{path}/{name}");
    let before = k8s_openapi::jiff::Timestamp::now() - Duration::from_secs(60);
    let before =
        json!({"status": {"lastScheduleTime": before.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()}});
    space.patch(&format!("{path}/status"), before).await?;
    Ok(path)
}

/// Waits until an event of this reason is there.
async fn told(space: &Space, reason: &str) -> anyhow::Result<()> {
    let is_there = |list: Option<&Value>| length(list) > 0;
    let path = space.core(&format!("events?fieldSelector=reason={reason}"));
    space
        .until_within(TICK, reason, &path, is_there)
        .await
        .map(drop)
}

async fn jobs_of(space: &Space, name: &str) -> anyhow::Result<usize> {
    let jobs = space.items(&space.group("batch/v1", "jobs")).await?;
    Ok(jobs.iter().filter(|job| owners(job) == [name]).count())
}

pub async fn cron_allows(space: Space) -> anyhow::Result<()> {
    let path = make(&space, "c", "Allow", false).await?;
    space
        .until_within(TICK, "two active jobs", &path, |cron| active(cron) >= 2)
        .await?;
    let jobs = jobs_of(&space, "c").await?;
    ensure!(jobs >= 2, "there are {jobs}");
    space.delete(&path).await?;
    Ok(())
}

pub async fn cron_suspended(space: Space) -> anyhow::Result<()> {
    make(&space, "suspended", "Allow", true).await?;
    // Its like that is not suspended shows that a minute has come.
    let witness = make(&space, "witness", "Allow", false).await?;
    space
        .until_within(TICK, "two active jobs", &witness, |cron| active(cron) >= 2)
        .await?;
    let jobs = jobs_of(&space, "suspended").await?;
    ensure!(jobs == 0, "there are {jobs}");
    space.delete(&witness).await?;
    Ok(())
}

pub async fn cron_forbids(space: Space) -> anyhow::Result<()> {
    let path = make(&space, "c", "Forbid", false).await?;
    let first = space
        .until_within(TICK, "an active job", &path, |cron| active(cron) == 1)
        .await?;
    told(&space, "JobAlreadyActive").await?;
    let later = space.get(&path).await?;
    ensure!(
        later["status"]["active"] == first["status"]["active"],
        "{later}"
    );
    let jobs = jobs_of(&space, "c").await?;
    ensure!(jobs == 1, "there are {jobs}");
    space.delete(&path).await?;
    Ok(())
}

pub async fn cron_replaces(space: Space) -> anyhow::Result<()> {
    let path = make(&space, "c", "Replace", false).await?;
    let first = space
        .until_within(TICK, "an active job", &path, |cron| active(cron) == 1)
        .await?;
    let first = first["status"]["active"][0]["uid"].clone();
    let replaced = |cron: Option<&Value>| {
        cron.is_some_and(|cron| {
            active(Some(cron)) == 1 && cron["status"]["active"][0]["uid"] != first
        })
    };
    space
        .until_within(TICK, "another job", &path, replaced)
        .await?;
    space
        .until_count(&space.group("batch/v1", "jobs"), 1)
        .await?;
    space.delete(&path).await?;
    Ok(())
}

fn pdb(name: &str, set: &str, minimum: usize) -> Value {
    json!({"metadata": {"name": name, "labels": {"set": set}}, "spec": {"minAvailable": minimum, "selector": {"matchLabels": {"app": name}}}})
}

pub async fn budgets(space: Space) -> anyhow::Result<()> {
    let other = space.beside(&format!("{}-other", space.name));
    space
        .post(
            "/api/v1/namespaces",
            json!({"metadata": {"name": other.name}}),
        )
        .await?;
    let path = space.group("policy/v1", "poddisruptionbudgets");
    for name in ["one", "two"] {
        space.post(&path, pdb(name, &space.name, 1)).await?;
    }
    other
        .post(
            &other.group("policy/v1", "poddisruptionbudgets"),
            pdb("three", &space.name, 1),
        )
        .await?;
    let ours = format!("labelSelector=set={}", space.name);
    let everywhere = format!("/apis/policy/v1/poddisruptionbudgets?{ours}");
    ensure!(space.items(&everywhere).await?.len() == 3);
    space.delete(&format!("{path}?{ours}")).await?;
    space.until_count(&path, 0).await?;
    ensure!(space.items(&everywhere).await?.len() == 1);
    Ok(())
}

pub async fn budget(space: Space) -> anyhow::Result<()> {
    let path = space.group("policy/v1", "poddisruptionbudgets");
    let made = space.post(&path, pdb("web", &space.name, 1)).await?;
    let one = format!("{path}/web");
    let seen = |generation: i64| {
        move |pdb: Option<&Value>| {
            pdb.is_some_and(|pdb| pdb["status"]["observedGeneration"] == generation)
        }
    };
    space.until("observed budget", &one, seen(1)).await?;
    for name in ["a", "b"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        space.post(&space.core("pods"), pod).await?;
    }
    let healthy = |allowed: i64| {
        move |pdb: Option<&Value>| {
            pdb.is_some_and(|pdb| {
                pdb["status"]["currentHealthy"] == 2
                    && pdb["status"]["disruptionsAllowed"] == allowed
            })
        }
    };
    space
        .until("one disruption allowed", &one, healthy(1))
        .await?;
    let mut whole = space.get(&one).await?;
    whole["spec"]["minAvailable"] = json!(2);
    space.put(&one, whole).await?;
    space
        .until("no disruption allowed", &one, healthy(0))
        .await?;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    refused(
        space
            .post(&space.core("pods/a/eviction"), eviction.clone())
            .await,
        429,
    )?;
    space
        .patch(&one, json!({"spec": {"minAvailable": 1}}))
        .await?;
    space
        .until("one disruption allowed", &one, healthy(1))
        .await?;
    space.post(&space.core("pods/a/eviction"), eviction).await?;
    space.delete(&one).await?;
    space.until_gone(&one).await?;
    ensure!(made["metadata"]["uid"].is_string());
    Ok(())
}

pub async fn scale(space: Space) -> anyhow::Result<()> {
    space
        .post(&space.core("replicationcontrollers"), controller("rc", 1))
        .await?;
    space.until_count(&space.core("pods"), 1).await?;
    let path = space.core("replicationcontrollers/rc/scale");
    let mut scale = space.get(&path).await?;
    ensure!(
        scale["kind"] == "Scale" && scale["spec"]["replicas"] == 1,
        "{scale}"
    );
    scale["spec"]["replicas"] = json!(2);
    space.put(&path, scale).await?;
    space.until_count(&space.core("pods"), 2).await?;
    let told = |scale: Option<&Value>| scale.is_some_and(|scale| scale["status"]["replicas"] == 2);
    space.until("scale of 2", &path, told).await?;
    Ok(())
}

pub async fn release(space: Space) -> anyhow::Result<()> {
    space
        .post(&space.core("replicationcontrollers"), controller("rc", 1))
        .await?;
    let pods = space.until_count(&space.core("pods"), 1).await?;
    let path = space.core(&format!(
        "pods/{}",
        pods[0]["metadata"]["name"].as_str().unwrap_or("")
    ));
    space
        .patch(&path, json!({"metadata": {"labels": {"app": "other"}}}))
        .await?;
    space
        .until("released pod", &path, |pod| {
            pod.is_some_and(|pod| owners(pod).is_empty())
        })
        .await?;
    space
        .until_count(&space.core("pods?labelSelector=app=rc"), 1)
        .await?;
    Ok(())
}

pub async fn failure(space: Space) -> anyhow::Result<()> {
    space
        .post(
            &space.core("resourcequotas"),
            json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}}),
        )
        .await?;
    let counted =
        |quota: Option<&Value>| quota.is_some_and(|quota| quota["status"]["hard"].is_object());
    space
        .until("counted quota", &space.core("resourcequotas/q"), counted)
        .await?;
    space
        .post(&space.core("replicationcontrollers"), controller("rc", 3))
        .await?;
    let path = space.core("replicationcontrollers/rc");
    let failing = |rc: Option<&Value>| {
        rc.is_some_and(|rc| {
            rc["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one["type"] == "ReplicaFailure" && one["reason"] == "FailedCreate")
        })
    };
    space.until("failure", &path, failing).await?;
    space.patch(&path, json!({"spec": {"replicas": 2}})).await?;
    space
        .until("no failure", &path, |rc| rc.is_some() && !failing(rc))
        .await?;
    space.until_count(&space.core("pods"), 2).await?;
    Ok(())
}
