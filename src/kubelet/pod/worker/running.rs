//! What a worker does for a pod that is to run: admission, volumes, the plan's
//! actions, probes, and what each operation's end means.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Busy, Done, Worker};
use crate::clock;
use crate::create::fields::Addresses;
use crate::images::ImageError;
use crate::k8s::ResourceRequirements;
use crate::pod::admission;
use crate::pod::back_off::SECOND;
use crate::pod::kill;
use crate::pod::memory::{ProbeState, Verdict, Waiting};
use crate::pod::plan::{self, Action, Input, Plan};
use crate::pod::sandbox::{self, SandboxError};
use crate::pod::spec::{self, Kind};
use crate::pod::start::{self, StartError};
use crate::pod::view::Nanos;
use crate::probes::{Purpose, Subject};
use crate::resources;
use crate::static_pods;
use crate::text;
use crate::volumes::{self, Ready, VolumeError};

/// Upstream tries failed pods again about so often.
const RESYNC: Nanos = 10 * SECOND;
/// How long `ErrImagePull` is shown before it becomes `ImagePullBackOff`.
const SHOW_PULL_ERROR: Nanos = 3 * SECOND;
/// Volumes that failed are tried again after half a second, doubled up to two
/// minutes (upstream's `exponentialbackoff`).
const VOLUME_RETRY: Nanos = SECOND / 2;
const MAX_VOLUME_RETRY: Nanos = 122 * SECOND;
/// A sandbox that failed is tried again after a second, doubled up to half a minute.
const SANDBOX_RETRY: Nanos = SECOND;
const MAX_SANDBOX_RETRY: Nanos = 30 * SECOND;

fn doubled(base: Nanos, failures: u32, most: Nanos) -> Nanos {
    base.saturating_mul(1i64.checked_shl(failures).unwrap_or(i64::MAX))
        .min(most)
}

impl Worker {
    pub(super) fn admit(&mut self) {
        if self.facts.admitted || !self.exists || spec::is_deleting(&self.pod) {
            return;
        }
        let pod = self.pod.clone();
        let node = self.shared.node.node();
        if node.metadata.name.is_none() && !static_pods::is_static(&pod) {
            // Without labels and capacity nothing can be judged.
            return self.retry_later();
        }
        // A pod that this node took before is not judged again.
        let taken_before = !self.view.is_empty() || spec::is_terminal(&pod);
        let judge = |others: &_| admission::admit(&pod, &node, others);
        let taken = || admission::Taken::of(&pod);
        let admitted = &self.shared.admitted;
        let verdict = admitted.admit(spec::uid(&pod), taken_before, judge, taken);
        match verdict {
            Ok(()) => self.facts.admitted = true,
            Err(verdict) => {
                let reason = verdict.reason.clone();
                // Upstream's event has the message without its prefix.
                let message = verdict
                    .message
                    .trim_start_matches("Pod was rejected: ")
                    .to_owned();
                self.reporter.warning(&reason, message);
                self.memory.verdict = Some(verdict);
            }
        }
    }

    pub(super) fn keep_running(&mut self) {
        self.check_deadline();
        if self.memory.verdict.is_some() {
            return;
        }
        if spec::is_terminal(&self.pod) && self.view.is_stopped() {
            // It ended under a kubelet before this one.
            self.facts.finished = true;
            return;
        }
        let plan = self.plan();
        self.facts.finished = plan.finished;
        if plan.finished {
            return;
        }
        self.keep_volumes();
        self.show_image_back_offs();
        self.announce_crash_loops(&plan);
        if let Some(at) = plan.wake_at {
            self.wake(at);
        }
        for action in plan.actions {
            self.apply(action);
        }
        self.keep_probes();
        self.collect();
    }

    fn plan(&self) -> Plan {
        plan::plan(&Input {
            pod: &self.pod,
            view: &self.view,
            memory: &self.memory,
            now: clock::now(),
        })
    }

    fn check_deadline(&mut self) {
        let spec = self.pod.spec.as_ref();
        let Some(seconds) = spec.and_then(|spec| spec.active_deadline_seconds) else {
            return;
        };
        let started = self.api.status().start_time.as_ref().map(clock::nanos);
        let Some(started) = started else { return };
        let deadline = started.saturating_add(seconds.saturating_mul(SECOND));
        if deadline > clock::now() {
            return self.wake(deadline);
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.reporter.normal("DeadlineExceeded", message);
        self.memory.verdict = Some(Verdict {
            reason: "DeadlineExceeded".to_owned(),
            message: message.to_owned(),
            disruption: None,
            rejected: false,
        });
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::CreateSandbox { attempt, changed } => {
                if self.volumes.is_none() || self.is_busy(&Busy::Sandbox) {
                    return;
                }
                if changed {
                    let message = "Pod sandbox changed, it will be killed and re-created.";
                    self.reporter.normal("SandboxChanged", message);
                }
                let create = sandbox::create(
                    self.shared.clone(),
                    self.pod.clone(),
                    attempt,
                    self.reporter.clone(),
                );
                self.begin_making(Busy::Sandbox, async move { Done::Sandbox(create.await) });
            }
            Action::StopSandboxes { ids } => self.stop_sandboxes(ids),
            Action::Start {
                name,
                restart_count,
                replaces,
                crashed_at,
            } => {
                self.begin_start(name, restart_count, replaces, crashed_at);
            }
            Action::Resize { id, name } => self.begin_resize(id, &name),
            Action::Kill {
                id,
                name: _,
                message,
                grace_seconds,
            } => {
                self.begin_kill(id, Some(message), grace_seconds);
            }
        }
    }

    fn stop_sandboxes(&mut self, ids: Vec<String>) {
        if self.is_busy(&Busy::StopSandboxes) || !self.may_retry() {
            return;
        }
        let job = self.pod_job(self.view.alive().cloned().collect(), self.grace_seconds());
        let runtime = self.shared.runtime.clone();
        self.begin(Busy::StopSandboxes, async move {
            let mut result = kill::kill_pod(job).await;
            for id in ids {
                result = result.and(runtime.stop_sandbox(&id).await);
            }
            Done::StopSandboxes(result)
        });
    }

    fn begin_start(
        &mut self,
        name: String,
        restart_count: u32,
        replaces: Option<String>,
        crashed_at: Option<Nanos>,
    ) {
        let Some(volumes) = self.volumes.clone().filter(|_| !self.is_busy(&Busy::Start)) else {
            return;
        };
        let Some(sandbox) = self.view.ready_sandbox().cloned() else {
            return;
        };
        if let Some(at) = crashed_at {
            self.memory.container(&name).crash.fail(at, clock::now());
        }
        let pod = self.pod.clone();
        let slot = spec::slot(&pod, &name);
        let resources = slot
            .as_ref()
            .and_then(|slot| slot.container.resources.clone());
        let memory = self.memory.container(&name);
        memory.starting = true;
        memory.starting_with = resources.unwrap_or_default();
        let target = slot.as_ref().and_then(|slot| slot.target);
        let target = target.and_then(|target| self.view.latest_in(&sandbox.id, target));
        let (mailbox, hooked) = (self.mailbox.clone(), name.clone());
        let job = start::Job {
            shared: self.shared.clone(),
            pod: self.pod.clone(),
            name: name.clone(),
            restart_count,
            replaces,
            sandbox_id: sandbox.id,
            sandbox_attempt: sandbox.attempt,
            pod_ips: self.pod_ips(),
            volumes,
            target: target.map(|target| target.id.clone()),
            hook_begins: Box::new(move |id| {
                let hook_of = (hooked.clone(), id.to_owned());
                mailbox.post(|inbox| inbox.hook_of = Some(hook_of));
            }),
            reporter: self.reporter.clone(),
        };
        self.begin_making(Busy::Start, async move {
            Done::Start {
                name,
                result: start::start(job).await,
            }
        });
    }

    fn begin_resize(&mut self, id: String, name: &str) {
        let busy = Busy::Resize(id.clone());
        let Some(slot) = spec::slot(&self.pod, name).filter(|_| !self.is_busy(&busy)) else {
            return;
        };
        if !self.may_retry() {
            return;
        }
        let given = slot.container.resources.clone().unwrap_or_default();
        let linux = resources::resizable(&self.pod, &slot.container);
        let (shared, pod, name) = (self.shared.clone(), self.pod.clone(), name.to_owned());
        self.begin(busy, async move {
            // The pod's own limits first: what grows must fit, and what shrinks is checked by the kernel.
            let result = match shared.cgroups.ensure(&pod) {
                Ok(()) => shared
                    .runtime
                    .update_resources(&id, linux)
                    .await
                    .map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            Done::Resize {
                name,
                id,
                given,
                result,
            }
        });
    }

    pub(super) fn resize_done(
        &mut self,
        name: &str,
        id: String,
        given: ResourceRequirements,
        result: Result<(), String>,
    ) {
        match result {
            Ok(()) => {
                self.memory.container(name).given = Some((id, given));
                self.shared
                    .admitted
                    .take(spec::uid(&self.pod), admission::Taken::of(&self.pod));
            }
            Err(error) => {
                self.reporter.warning(
                    "ResizeError",
                    format!("Error resizing container {name}: {error}"),
                );
                self.retry_later();
            }
        }
    }

    fn begin_kill(&mut self, id: String, message: Option<String>, grace_seconds: Option<i64>) {
        let busy = Busy::Kill(id.clone());
        let Some(container) = self.view.by_id(&id).cloned() else {
            return;
        };
        if self.is_busy(&busy) || !self.may_retry() {
            return;
        }
        let job = kill::Job {
            shared: self.shared.clone(),
            pod: self.pod.clone(),
            container,
            message,
            grace_seconds: grace_seconds.unwrap_or_else(|| self.grace_seconds()),
            pod_ip: self.pod_ips().into_iter().next().unwrap_or_default(),
            reporter: self.reporter.clone(),
        };
        self.begin(busy, async move {
            Done::Kill {
                id,
                result: kill::kill(job).await,
            }
        });
    }

    pub(super) fn sandbox_done(&mut self, result: Result<String, SandboxError>) {
        match result {
            Ok(_) => {
                self.memory.sandbox_failures = 0;
                // Addresses that a volume shows are known only now.
                self.volumes_stale = true;
            }
            Err(error) => {
                let failures = self.memory.sandbox_failures;
                let delay = match error {
                    // It mostly comes within a moment of the node's start.
                    SandboxError::Network(_) => SANDBOX_RETRY,
                    _ => doubled(SANDBOX_RETRY, failures, MAX_SANDBOX_RETRY),
                };
                self.memory.sandbox_failures = failures.saturating_add(1);
                self.memory.sandbox_retry_at = clock::now() + delay;
                self.wake(self.memory.sandbox_retry_at);
            }
        }
    }

    pub(super) fn start_done(&mut self, name: &str, result: Result<String, StartError>) {
        let now = clock::now();
        let memory = self.memory.container(name);
        memory.starting = false;
        let error = match result {
            Ok(id) => {
                memory.waiting = None;
                memory.pull_error = None;
                memory.retry_at = 0;
                memory.given = Some((id.clone(), memory.starting_with.clone()));
                if memory.probes.container_id == id {
                    memory.probes.post_start_pending = false;
                }
                return;
            }
            Err(error) => error,
        };
        memory.waiting = Some(Waiting {
            reason: error.reason().to_owned(),
            message: error.to_string(),
        });
        match error {
            StartError::Image(ImageError::Pull(message)) => {
                memory.pull.fail(now, now);
                memory.retry_at = now + memory.pull.delay();
                memory.pull_error = Some((now + SHOW_PULL_ERROR, message));
            }
            StartError::Image(_) => {
                memory.pull.fail(now, now);
                memory.retry_at = now + memory.pull.delay();
            }
            StartError::Config(_) | StartError::Create(_) | StartError::Unknown(_) => {
                memory.retry_at = now + RESYNC;
            }
            // The container ended, and its crash is backed off from.
            StartError::Run(_) => {}
            StartError::PostStart { id, .. } => {
                self.begin_kill(id, Some("FailedPostStartHook".to_owned()), None);
            }
        }
    }

    /// Configurations that were missing an object may be complete now.
    pub(super) fn retry_configs(&mut self) {
        for memory in self.memory.containers.values_mut() {
            let reason = memory
                .waiting
                .as_ref()
                .map(|waiting| waiting.reason.as_str());
            if reason == Some("CreateContainerConfigError") {
                memory.retry_at = 0;
            }
        }
    }

    /// A failed pull is first shown as the error it was, then as the wait it is.
    fn show_image_back_offs(&mut self) {
        let now = clock::now();
        let mut wakes = Vec::new();
        for slot in spec::slots(&self.pod) {
            let memory = self.memory.container(slot.name());
            let Some((show_at, error)) = memory.pull_error.clone() else {
                continue;
            };
            if show_at > now {
                wakes.push(show_at);
                continue;
            }
            memory.pull_error = None;
            let image = text::quoted(slot.container.image.as_deref().unwrap_or_default());
            let message = format!("Back-off pulling image {image}");
            memory.waiting = Some(Waiting {
                reason: "ImagePullBackOff".to_owned(),
                message: format!("{message}: ErrImagePull: {error}"),
            });
            let events = self.reporter.container(slot.field_path());
            events.normal("BackOff", message);
            events.warning("Failed", "Error: ImagePullBackOff");
        }
        wakes.into_iter().for_each(|at| self.wake(at));
    }

    /// One event for each time a container has to wait.
    fn announce_crash_loops(&mut self, plan: &Plan) {
        for (name, _) in &plan.waiting {
            let Some(latest) = self.view.latest(name) else {
                continue;
            };
            if self.announced.get(name) == Some(&latest.id) {
                continue;
            }
            self.announced.insert(name.clone(), latest.id.clone());
            let Some(slot) = spec::slot(&self.pod, name) else {
                continue;
            };
            self.reporter.container(slot.field_path()).warning(
                "BackOff",
                format!(
                    "Back-off restarting failed container {name} in pod {}",
                    spec::describe(&self.pod)
                ),
            );
        }
    }

    /// Makes the volumes, and again when what they show may have changed.
    fn keep_volumes(&mut self) {
        let now = clock::now();
        let ready = self.volumes.iter().flat_map(|volumes| volumes.values());
        let refresh_at = ready.filter_map(|volume| volume.refresh_at).min();
        let due =
            self.volumes.is_none() || self.volumes_stale || refresh_at.is_some_and(|at| at <= now);
        if !due || self.is_busy(&Busy::Volumes) {
            return refresh_at.into_iter().for_each(|at| self.wake(at));
        }
        if self.volumes_retry_at > now {
            return self.wake(self.volumes_retry_at);
        }
        self.volumes_stale = false;
        let (shared, pod, pod_ips) = (self.shared.clone(), self.pod.clone(), self.pod_ips());
        self.begin_making(Busy::Volumes, async move {
            let paths = shared.paths(&pod);
            let node = shared.node.node();
            let host = shared.host_ips();
            let context = volumes::Context {
                pod: &pod,
                paths: &paths,
                node: &node,
                addresses: Addresses {
                    host: &host,
                    pod: &pod_ips,
                },
                objects: &shared.objects,
                tokens: &shared.tokens,
            };
            Done::Volumes(volumes::set_up_all(&context).await)
        });
    }

    pub(super) fn volumes_done(
        &mut self,
        result: Result<BTreeMap<String, Ready>, (String, VolumeError)>,
    ) {
        match result {
            Ok(volumes) => {
                self.volumes = Some(Arc::new(volumes));
                self.volume_failures = 0;
                self.volumes_retry_at = 0;
            }
            Err((volume, error)) => {
                let message = format!(
                    "MountVolume.SetUp failed for volume {} : {error}",
                    text::quoted(&volume)
                );
                self.reporter.warning("FailedMount", message);
                let delay = doubled(VOLUME_RETRY, self.volume_failures, MAX_VOLUME_RETRY);
                self.volume_failures = self.volume_failures.saturating_add(1);
                self.volumes_stale = true;
                self.volumes_retry_at = clock::now() + delay;
                self.wake(self.volumes_retry_at);
            }
        }
    }

    /// Probes run for the running instances, and for no others.
    fn keep_probes(&mut self) {
        let pod_ip = self.pod_ips().into_iter().next().unwrap_or_default();
        let pod = self.pod.clone();
        for slot in spec::slots(&pod) {
            let container = self
                .view
                .latest(slot.name())
                .filter(|container| container.is_running());
            let Some(container) =
                container.filter(|_| matches!(slot.kind, Kind::Regular | Kind::Sidecar))
            else {
                self.probes.end(slot.name());
                continue;
            };
            let started = self
                .memory
                .probes(slot.name(), &container.id)
                .is_some_and(|p: &ProbeState| p.started);
            let purposes: &[Purpose] = match slot.container.startup_probe.is_some() && !started {
                true => &[Purpose::Startup],
                false => &[Purpose::Liveness, Purpose::Readiness],
            };
            let made = || Subject {
                container: slot.container.clone().into_owned(),
                container_id: container.id.clone(),
                pod_ip: pod_ip.clone(),
                runtime: self.shared.runtime.clone(),
                reporter: self.reporter.container(slot.field_path()),
            };
            let mailbox = self.mailbox.clone();
            let tell = move |report: crate::probes::Report| {
                let key = (report.container.clone(), report.purpose);
                mailbox.post(|inbox| drop(inbox.reports.insert(key, report)));
            };
            self.probes.keep(&slot, &container.id, purposes, made, tell);
        }
    }
}
