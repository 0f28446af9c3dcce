//! One pod's worker: an actor that looks at the runtime, decides by `stage` and
//! `plan`, and keeps the operations under way. It never waits for one: a pull,
//! a hook or a slow stop leaves it able to see a deletion.
//!
//! Data flow: mailbox and finished operations → [`Worker::turn`] → new operations
//! and a status for the API. What is done in which stage is in `running` and
//! `ending`; `report` sends the status.
//!
//! **Invariant:** only this task writes the pod's memory, view and stage.

mod ending;
mod mirror;
mod report;
mod running;

pub use mirror::delete_mirror;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;

use super::mailbox::Mailbox;
use super::memory::{Memory, ProbeState};
use super::observe;
use super::reporter::Reporter;
use super::sandbox::SandboxError;
use super::shared::Shared;
use super::spec;
use super::stage::{self, Facts, Stage};
use super::start::StartError;
use super::view::{Nanos, PodView};
use crate::clock;
use crate::cri::CriError;
use crate::k8s::{Pod, PodStatus, ResourceRequirements};
use crate::probes::{Probes, Purpose, Report};
use crate::volumes::{Ready, VolumeError};
use report::Reported;

/// How soon a failed look at the runtime, or a failed operation that has no
/// back-off of its own, is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What an operation is, so that it is not begun twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Busy {
    Volumes,
    Sandbox,
    Start,
    Kill(String),
    KillPod,
    StopSandboxes,
    Clean,
    Status,
    Delete,
    Remove,
    Collect,
    Mirror,
    Resize(String),
}

/// How an operation ended.
enum Done {
    Volumes(Result<BTreeMap<String, Ready>, (String, VolumeError)>),
    Sandbox(Result<String, SandboxError>),
    Start {
        name: String,
        result: Result<String, StartError>,
    },
    Kill {
        id: String,
        result: Result<(), CriError>,
    },
    KillPod(Result<(), CriError>),
    StopSandboxes(Result<(), CriError>),
    Clean(Result<(), String>),
    Status(Reported),
    Delete(Result<(), client::ClientError>),
    Remove(Result<(), String>),
    Mirror(Result<Pod, client::ClientError>),
    Resize {
        name: String,
        id: String,
        given: ResourceRequirements,
        result: Result<(), String>,
    },
    Collect,
    /// The pod is to stop, so what was being made is not wanted any more.
    Cancelled,
}

/// The worker of one pod.
pub struct Worker {
    shared: Arc<Shared>,
    mailbox: Mailbox,
    pod: Arc<Pod>,
    exists: bool,
    /// Of a static pod: what shows it in the API.
    mirror: Option<Arc<Pod>>,
    stage: Stage,
    view: PodView,
    view_stale: bool,
    memory: Memory,
    reporter: Reporter,
    probes: Probes,
    volumes: Option<Arc<BTreeMap<String, Ready>>>,
    volumes_stale: bool,
    volumes_retry_at: Nanos,
    volume_failures: u32,
    /// Ends operations that make something, when the pod is to stop.
    making: CancellationToken,
    operations: FuturesUnordered<BoxFuture<'static, (Busy, Done)>>,
    busy: BTreeSet<Busy>,
    retry_at: Nanos,
    wake_at: Option<Nanos>,
    api: report::Known,
    /// The pod and status that the kubelet's server shows.
    shown: Option<(Arc<Pod>, PodStatus)>,
    /// The grace period the containers are being killed with.
    killing_with: Option<i64>,
    /// Instances whose back-off was announced.
    announced: BTreeMap<String, String>,
    facts: Facts,
}

impl Worker {
    /// A worker for `pod`; `exists` says whether the API has it.
    pub fn new(shared: Arc<Shared>, mailbox: Mailbox, pod: Arc<Pod>, exists: bool) -> Self {
        let reporter = Reporter::new(shared.recorder.clone(), &pod);
        let memory = Memory {
            at_start: pod.status.clone().unwrap_or_default(),
            ..Memory::default()
        };
        Self {
            api: report::Known::new(&pod),
            shown: None,
            shared,
            mailbox,
            pod,
            exists,
            mirror: None,
            stage: Stage::Admitting,
            view: PodView::default(),
            view_stale: true,
            memory,
            reporter,
            probes: Probes::default(),
            volumes: None,
            volumes_stale: false,
            volumes_retry_at: 0,
            volume_failures: 0,
            making: CancellationToken::new(),
            operations: FuturesUnordered::new(),
            busy: BTreeSet::new(),
            retry_at: 0,
            wake_at: None,
            killing_with: None,
            announced: BTreeMap::new(),
            facts: Facts::default(),
        }
    }

    /// Works until nothing of the pod is left on the node.
    pub async fn run(mut self) {
        if self.exists {
            self.shared.objects.follow(&self.pod);
        }
        loop {
            self.read_mail();
            if self.view_stale {
                self.look().await;
            }
            self.turn();
            if self.stage == Stage::Gone {
                break;
            }
            let wake = self.wake_at.map(clock::until);
            tokio::select! {
                Some((busy, done)) = self.operations.next(), if !self.operations.is_empty() => {
                    self.busy.remove(&busy);
                    self.take(done);
                }
                () = self.mailbox.wait() => {}
                () = async { tokio::time::sleep(wake.unwrap_or(Duration::MAX)).await }, if wake.is_some() => {}
            }
        }
        self.shared.objects.release(spec::uid(&self.pod));
        self.shared.tokens.forget(spec::uid(&self.pod));
    }

    fn read_mail(&mut self) {
        let inbox = self.mailbox.take();
        if let Some(pod) = inbox.pod {
            self.take_pod(pod);
        }
        self.exists &= !inbox.gone;
        if let Some(mirror) = inbox.mirror {
            self.take_mirror(mirror);
        }
        self.view_stale |= inbox.runtime || inbox.hook_of.is_some();
        if inbox.network {
            self.memory.sandbox_retry_at = 0;
        }
        if inbox.objects {
            self.volumes_stale = true;
            self.volumes_retry_at = 0;
            self.retry_configs();
        }
        if let Some((name, id)) = inbox.hook_of {
            let probes = &mut self.memory.container(&name).probes;
            *probes = ProbeState {
                container_id: id,
                post_start_pending: true,
                ..ProbeState::default()
            };
        }
        for report in inbox.reports.into_values() {
            self.take_report(report);
        }
    }

    fn take_pod(&mut self, pod: Arc<Pod>) {
        let before = std::mem::replace(&mut self.pod, pod);
        self.api.take(&self.pod);
        self.reporter = Reporter::new(self.shared.recorder.clone(), &self.pod);
        if before.spec != self.pod.spec && !matches!(self.stage, Stage::Removing | Stage::Gone) {
            self.shared.objects.follow(&self.pod);
        }
        // Labels and annotations are what a downwardAPI volume may show.
        let (old, new) = (&before.metadata, &self.pod.metadata);
        self.volumes_stale |= old.labels != new.labels || old.annotations != new.annotations;
    }

    fn take_report(&mut self, report: Report) {
        let probes = &mut self.memory.container(&report.container).probes;
        if probes.container_id != report.container_id {
            return;
        }
        let failed = |kind| {
            Some(super::memory::FailedProbe {
                kind,
                grace_seconds: report.grace_seconds,
            })
        };
        match (report.purpose, report.passed) {
            (Purpose::Readiness, passed) => probes.ready = passed,
            (Purpose::Startup, true) => probes.started = true,
            (Purpose::Startup, false) => probes.failed = failed("startup"),
            (Purpose::Liveness, false) => probes.failed = failed("liveness"),
            (Purpose::Liveness, true) => {}
        }
    }

    /// Looks at the runtime; without an answer, again in a second.
    async fn look(&mut self) {
        let uid = spec::uid(&self.pod);
        match observe::observe(&self.shared.runtime, uid, &self.view).await {
            Ok(view) => {
                self.view = view;
                self.view_stale = false;
                self.settle_probe_states();
            }
            Err(error) => {
                tracing::warn!(%error, pod = spec::describe(&self.pod), "cannot look at a pod in the runtime, will be retried");
                self.retry_later();
            }
        }
    }

    /// A new instance starts with nothing probed; one that a kubelet before
    /// this one knew keeps its standing, so that a restart takes no pod out of
    /// service.
    fn settle_probe_states(&mut self) {
        for slot in spec::slots(&self.pod) {
            let Some(container) = self.view.latest(slot.name()) else {
                continue;
            };
            let runtime = &self.shared.runtime_name;
            let known = format!("{runtime}://{}", container.id);
            let at_start = &self.memory.at_start;
            let init = at_start
                .init_container_statuses
                .as_deref()
                .unwrap_or_default();
            let regular = at_start.container_statuses.as_deref().unwrap_or_default();
            let before = init.iter().chain(regular);
            let before = before
                .filter(|status| status.container_id.as_ref() == Some(&known))
                .last();
            let ready = before.is_some_and(|before| before.ready);
            let started = before.is_some_and(|before| before.started == Some(true));
            let given = before.and_then(|before| before.resources.clone());
            let id = container.id.clone();
            let memory = self.memory.container(slot.name());
            if memory.given.as_ref().is_none_or(|(of, _)| *of != id) {
                memory.given = given.map(|given| (id.clone(), given));
            }
            let probes = &mut memory.probes;
            if probes.container_id != id {
                *probes = ProbeState {
                    container_id: id,
                    ready,
                    started,
                    ..ProbeState::default()
                };
            }
        }
    }

    /// Decides what follows from all that is known, and begins it.
    fn turn(&mut self) {
        self.wake_at = (self.retry_at > clock::now()).then_some(self.retry_at);
        if self.view_stale {
            // Nothing is decided on an old view.
            return;
        }
        loop {
            self.act();
            self.facts.exists = self.exists;
            self.facts.deleting = spec::is_deleting(&self.pod);
            self.facts.doomed = self.memory.verdict.is_some();
            self.facts.stopped = self.view.alive().next().is_none()
                && !self.is_busy(&Busy::Start)
                && !self.is_busy(&Busy::Sandbox);
            let next = stage::next(self.stage, &self.facts);
            if next == self.stage {
                break;
            }
            tracing::debug!(pod = spec::describe(&self.pod), from = ?self.stage, to = ?next, "a pod's stage");
            self.stage = next;
            self.enter();
        }
        self.report();
    }

    fn enter(&mut self) {
        match self.stage {
            Stage::Stopping => {
                self.making.cancel();
                self.probes.end_all_but_readiness();
            }
            Stage::Cleaning => self.probes.end_all(),
            _ => {}
        }
    }

    fn act(&mut self) {
        match self.stage {
            Stage::Admitting => self.admit(),
            Stage::Running => self.keep_running(),
            Stage::Stopping => self.kill_all(),
            Stage::Cleaning => self.clean(),
            Stage::Ended | Stage::Gone => {}
            Stage::Deleting => self.delete(),
            Stage::Removing => self.remove(),
        }
    }

    fn take(&mut self, done: Done) {
        // Every operation on the runtime is followed by a look at it.
        self.view_stale |= !matches!(
            done,
            Done::Volumes(_) | Done::Status(_) | Done::Delete(_) | Done::Mirror(_)
        );
        match done {
            Done::Volumes(result) => self.volumes_done(result),
            Done::Sandbox(result) => self.sandbox_done(result),
            Done::Start { name, result } => self.start_done(&name, result),
            Done::Kill {
                id,
                result: Err(error),
            } => {
                tracing::warn!(%error, container = id, "cannot kill a container, will be retried");
                self.retry_later();
            }
            Done::KillPod(Err(error)) | Done::StopSandboxes(Err(error)) => {
                let message = format!("error killing pod: {error}");
                self.reporter.warning("FailedKillPod", message);
                self.killing_with = None;
                self.retry_later();
            }
            Done::Clean(result) => self.clean_done(result),
            Done::Status(reported) => self.status_done(reported),
            Done::Delete(result) => self.delete_done(result),
            Done::Remove(result) => self.remove_done(result),
            Done::Mirror(result) => self.mirror_done(result),
            Done::Resize {
                name,
                id,
                given,
                result,
            } => self.resize_done(&name, id, given, result),
            Done::Kill { .. }
            | Done::KillPod(Ok(()))
            | Done::StopSandboxes(Ok(()))
            | Done::Collect
            | Done::Cancelled => {}
        }
    }

    fn is_busy(&self, what: &Busy) -> bool {
        self.busy.contains(what)
    }

    fn begin(&mut self, what: Busy, operation: impl Future<Output = Done> + Send + 'static) {
        self.busy.insert(what.clone());
        self.operations
            .push(Box::pin(async move { (what, operation.await) }));
    }

    /// Begins what is only wanted while the pod is to run.
    fn begin_making(&mut self, what: Busy, operation: impl Future<Output = Done> + Send + 'static) {
        let making = self.making.clone();
        self.begin(what, async move {
            tokio::select! {
                () = making.cancelled() => Done::Cancelled,
                done = operation => done,
            }
        });
    }

    fn retry_later(&mut self) {
        self.retry_at = clock::now() + i64::try_from(RETRY.as_nanos()).unwrap_or(0);
        self.wake(self.retry_at);
    }

    fn may_retry(&self) -> bool {
        self.retry_at <= clock::now()
    }

    fn wake(&mut self, at: Nanos) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    /// The pod's addresses: the sandbox's, or the node's.
    fn pod_ips(&self) -> Vec<String> {
        if spec::host_network(&self.pod) {
            return self.shared.host_ips();
        }
        self.view
            .ready_sandbox()
            .map(|sandbox| sandbox.ips.clone())
            .unwrap_or_default()
    }
}
