//! What a worker does for a pod that is to end: kill, give back, delete, remove;
//! and the removal of old instances while it runs.

use std::path::PathBuf;

use client::options::DeleteOptions;

use super::mirror::delete_mirror;
use super::{Busy, Done, Worker};
use crate::pod::kill::{self, PodJob};
use crate::pod::spec;
use crate::pod::view::{ContainerView, State};
use crate::server::logs::rotate;
use crate::volumes;

/// Instances of a container that are kept: the newest and the one before, for
/// `lastState` and `kubectl logs --previous`.
const KEPT_INSTANCES: usize = 2;

impl Worker {
    /// Seconds the containers are given now.
    pub(super) fn grace_seconds(&self) -> i64 {
        spec::grace_seconds(&self.pod).max(0)
    }

    pub(super) fn pod_job(&self, containers: Vec<ContainerView>, grace_seconds: i64) -> PodJob {
        PodJob {
            shared: self.shared.clone(),
            pod: self.pod.clone(),
            containers,
            grace_seconds,
            pod_ip: self.pod_ips().into_iter().next().unwrap_or_default(),
            reporter: self.reporter.clone(),
        }
    }

    /// Kills all containers; again with less grace if a later deletion gives less.
    pub(super) fn kill_all(&mut self) {
        let grace = self.grace_seconds();
        let running: Vec<_> = self.view.alive().cloned().collect();
        let shorter = self.killing_with.is_some_and(|with| grace < with);
        let wanted = !self.is_busy(&Busy::KillPod) || shorter;
        if running.is_empty() || !wanted || !self.may_retry() {
            return;
        }
        self.killing_with = Some(grace);
        let job = self.pod_job(running, grace);
        self.begin(Busy::KillPod, async move {
            Done::KillPod(kill::kill_pod(job).await)
        });
    }

    /// Stops the sandboxes and gives back volumes and cgroup.
    pub(super) fn clean(&mut self) {
        if self.facts.cleaned || self.is_busy(&Busy::Clean) || !self.may_retry() {
            return;
        }
        let sandboxes: Vec<_> = self.view.sandboxes.iter().map(|s| s.id.clone()).collect();
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        self.begin(Busy::Clean, async move {
            for id in &sandboxes {
                if let Err(error) = shared.runtime.stop_sandbox(id).await {
                    return Done::Clean(Err(error.to_string()));
                }
            }
            let released = volumes::release(&shared.paths(&pod));
            shared.cgroups.remove(spec::uid(&pod));
            Done::Clean(released.map_err(|error| error.to_string()))
        });
    }

    pub(super) fn clean_done(&mut self, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.facts.cleaned = true;
                let uid = spec::uid(&self.pod);
                self.shared.admitted.release(uid);
                self.shared.objects.release(uid);
                self.shared.tokens.forget(uid);
            }
            Err(error) => {
                self.reporter
                    .warning("FailedKillPod", format!("error killing pod: {error}"));
                self.retry_later();
            }
        }
    }

    /// Deletes the object once the API has the pod's last status.
    pub(super) fn delete(&mut self) {
        let told = self.is_reported();
        if !told || self.facts.deleted || self.is_busy(&Busy::Delete) || !self.may_retry() {
            return;
        }
        let (client, pod) = (self.shared.client.clone(), self.pod.clone());
        self.begin(Busy::Delete, async move {
            let options = DeleteOptions::uid(spec::uid(&pod)).grace(0);
            let (namespace, name) = (spec::namespace(&pod), spec::name(&pod));
            let deleted = client
                .delete(&api::r::PODS, namespace, name, &options)
                .await;
            Done::Delete(deleted.map(drop))
        });
    }

    pub(super) fn delete_done(&mut self, result: Result<(), client::ClientError>) {
        match result {
            Ok(()) => self.facts.deleted = true,
            // Gone already, or another pod of the same name by now.
            Err(error) if error.is_not_found() || error.is_conflict() => self.facts.deleted = true,
            Err(error) => {
                tracing::warn!(%error, pod = spec::describe(&self.pod), "cannot delete a stopped pod, will be retried");
                self.retry_later();
            }
        }
    }

    /// Removes everything of the pod from runtime and disk.
    pub(super) fn remove(&mut self) {
        if self.facts.removed || self.is_busy(&Busy::Remove) || !self.may_retry() {
            return;
        }
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let (view, mirror) = (self.view.clone(), self.mirror.clone());
        self.begin(Busy::Remove, async move {
            let runtime = &shared.runtime;
            if let Some(mirror) = mirror {
                if let Err(error) = delete_mirror(&shared.client, &mirror).await {
                    return Done::Remove(Err(error.to_string()));
                }
            }
            for container in &view.containers {
                if let Err(error) = runtime.remove_container(&container.id).await {
                    return Done::Remove(Err(error.to_string()));
                }
                remove_logs(container, &shared.config.container_logs_dir, &pod);
            }
            for sandbox in &view.sandboxes {
                if let Err(error) = runtime.remove_sandbox(&sandbox.id).await {
                    return Done::Remove(Err(error.to_string()));
                }
            }
            let paths = shared.paths(&pod);
            let result = volumes::tear_down(&paths).map_err(|error| error.to_string());
            let _ = std::fs::remove_dir_all(paths.logs());
            shared.cgroups.remove(spec::uid(&pod));
            Done::Remove(result)
        });
    }

    pub(super) fn remove_done(&mut self, result: Result<(), String>) {
        match result {
            Ok(()) => self.facts.removed = true,
            Err(error) => {
                tracing::warn!(
                    error,
                    pod = spec::describe(&self.pod),
                    "cannot remove what is left of a pod, will be retried"
                );
                self.retry_later();
            }
        }
    }

    /// Removes instances and sandboxes that nothing refers to any more.
    pub(super) fn collect(&mut self) {
        if self.is_busy(&Busy::Collect) || !self.may_retry() {
            return;
        }
        let mut old = Vec::new();
        for slot in spec::slots(&self.pod) {
            let instances = self
                .view
                .containers
                .iter()
                .filter(|c| c.name == slot.name());
            let extra = instances
                .skip(KEPT_INSTANCES)
                .filter(|c| c.state == State::Exited);
            old.extend(extra.cloned());
        }
        let unused = |id: &str| {
            self.view
                .containers
                .iter()
                .filter(|c| c.sandbox_id == id)
                .all(|c| old.contains(c))
        };
        let sandboxes = self.view.sandboxes.iter().skip(1);
        let sandboxes: Vec<_> = sandboxes
            .filter(|sandbox| !sandbox.ready && unused(&sandbox.id))
            .map(|sandbox| sandbox.id.clone())
            .collect();
        if old.is_empty() && sandboxes.is_empty() {
            return;
        }
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        self.begin(Busy::Collect, async move {
            for container in &old {
                match shared.runtime.remove_container(&container.id).await {
                    Ok(()) => remove_logs(container, &shared.config.container_logs_dir, &pod),
                    Err(error) => tracing::debug!(%error, container = container.id, "cannot remove an old container"),
                }
            }
            for id in &sandboxes {
                if let Err(error) = shared.runtime.remove_sandbox(id).await {
                    tracing::debug!(%error, sandbox = id, "cannot remove an old sandbox");
                }
            }
            Done::Collect
        });
    }
}

/// Removes the logs of an instance, the link to them, and its termination message.
fn remove_logs(container: &ContainerView, links: &std::path::Path, pod: &crate::k8s::Pod) {
    let link = format!(
        "{}_{}_{}-{}.log",
        spec::name(pod),
        spec::namespace(pod),
        container.name,
        container.id
    );
    let mut files = vec![links.join(link)];
    files.extend(container.termination_log.iter().map(PathBuf::from));
    if !container.log_path.is_empty() {
        files.extend(rotate::files(std::path::Path::new(&container.log_path)));
    }
    for file in files {
        let _ = std::fs::remove_file(file);
    }
}
