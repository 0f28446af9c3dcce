//! Runs the scheduler: one cycle after the other, bindings, evictions and status writes beside them.

mod devices;
mod extend;
mod volumes;
mod writes;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::r::NODES;
use api::view::ObjectMeta;
use apimachinery::Value;
use client::{
    Client, ClientError, Factory, Selectors,
    events::{EventKind, ObjectReference, Recorder, Source},
    leader::{LeaderConfig, LeaderElector},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    config::SchedulerConfig,
    cycle::{Failure, Scheduler},
    extender::Extender,
    fit_error::FitError,
    framework::Change,
    metrics::{Metrics, Outcome, Point, ProfileSeries},
    plugins::{
        dynamic_resources::{self, ClaimPlan, ForExtended, Release},
        volume_binding::{self, VolumePlan},
    },
    pod::Pod,
    preemption::{Candidate, Nomination},
    profile::Profile,
    queue::{QueuedPod, SchedulingQueue, Sizes},
    watch::Informers,
};
use extend::{Surveyed, Unfit};
use volumes::VolumeError;
use writes::ClaimError;

/// Writes under way at a time; more pods wait for one to end. As many as the streams of a few connections.
const MAX_WRITES: usize = 256;
/// Pods that wait for their volumes beside them.
const MAX_WAITING: usize = 5_000;
/// Pause before everything is started anew after losing the lease.
const RESTART: Duration = Duration::from_secs(1);

/// Why the scheduler cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Config(String),
}

/// What the informers' handlers and the cycle share.
pub struct Shared {
    pub state: Mutex<State>,
    /// Told when `pop` may have a pod.
    pub wake: Notify,
    /// Told with every change of a claim, a volume, or a pod that may have waited for them.
    pub storage_changes: watch::Sender<()>,
    /// By name.
    pub profiles: HashMap<String, Arc<Served>>,
    pub metrics: Arc<Metrics>,
}

/// A profile with who records its events, and counts its attempts.
pub struct Served {
    profile: Profile,
    recorder: Recorder,
    series: Arc<ProfileSeries>,
}

/// Held for one change or one cycle at a time, so that no change falls between looking and putting back.
pub struct State {
    pub cluster: Cluster,
    pub queue: SchedulingQueue,
    scheduler: Scheduler,
}

impl Shared {
    /// Changes the state and puts forward the pods that this may help.
    pub fn change(&self, apply: impl FnOnce(&mut State), change: &Change<'_>) {
        let mut state = self.state.lock();
        apply(&mut state);
        state.queue.on_change(change, Instant::now());
        drop(state);
        self.wake.notify_one();
    }

    /// How many pods wait where, how many each plugin turned down, and how many nodes, pods and assumed pods are known.
    #[allow(clippy::type_complexity)]
    pub fn sizes(&self) -> (Sizes, BTreeMap<(String, &'static str), usize>, [usize; 3]) {
        let state = self.state.lock();
        let cluster = &state.cluster;
        let known = [
            cluster.node_count(),
            cluster.pod_count(),
            cluster.assumed_count(),
        ];
        (state.queue.sizes(), state.queue.stuck_by_plugin(), known)
    }
}

/// Schedules until `shutdown`; if `config.leader_elect`, only while holding the lease `kube-system/kube-scheduler`,
/// which is sought again when lost.
pub async fn run(
    client: Client,
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let client = client.with_user_agent("kube-scheduler");
    let mut profiles = HashMap::new();
    for profile in &config.profiles {
        if profile.name.is_empty() {
            return Err(Error::Config("a profile needs a scheduler name".into()));
        }
        let source = Source {
            component: profile.name.clone(),
            host: String::new(),
        };
        let served = Served {
            profile: profile.clone(),
            recorder: Recorder::new(client.clone(), source),
            series: config.metrics.profile(&profile.name),
        };
        if profiles
            .insert(profile.name.clone(), Arc::new(served))
            .is_some()
        {
            return Err(Error::Config(format!(
                "two profiles are named {:?}",
                profile.name
            )));
        }
    }
    let Some(first) = config
        .profiles
        .first()
        .and_then(|profile| profiles.get(&profile.name))
    else {
        return Err(Error::Config("there is no profile".into()));
    };
    let recorder = first.recorder.clone();
    let extenders = config.extenders.iter().cloned().map(Extender::new);
    let extenders = extenders.collect::<Result<Vec<_>, _>>();
    let extenders: Arc<[Extender]> = extenders
        .map_err(|error| Error::Config(error.to_string()))?
        .into();
    while !shutdown.is_cancelled() {
        let lead = |leading| {
            let (client, config) = (client.clone(), config.clone());
            lead(client, config, profiles.clone(), extenders.clone(), leading)
        };
        if config.leader_elect {
            let mut lease = LeaderConfig::new(&config.leader_name, &config.host);
            lease.namespace.clone_from(&config.leader_namespace);
            lease.lease_duration = config.leader_lease_duration;
            lease.renew_deadline = config.leader_renew_deadline;
            lease.retry_period = config.leader_retry_period;
            let mut elector =
                LeaderElector::new(client.clone(), lease).with_recorder(recorder.clone());
            elector.run(&shutdown, lead).await;
        } else {
            lead(shutdown.child_token()).await;
        }
        let _ = tokio::time::timeout(RESTART, shutdown.cancelled()).await;
    }
    Ok(())
}

/// One term of leadership, with informers of its own.
async fn lead(
    client: Client,
    config: SchedulerConfig,
    profiles: HashMap<String, Arc<Served>>,
    extenders: Arc<[Extender]>,
    leading: CancellationToken,
) {
    let factory = Factory::new(client.clone(), leading.clone());
    let informers = Informers::new(&factory);
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            cluster: Cluster::default(),
            queue: SchedulingQueue::new(
                config.pod_initial_backoff,
                config.pod_max_backoff,
                config.pod_max_unschedulable,
                config.metrics.incoming.clone(),
            ),
            scheduler: Scheduler::default(),
        }),
        wake: Notify::new(),
        storage_changes: watch::Sender::new(()),
        profiles,
        metrics: config.metrics.clone(),
    });
    config.metrics.leads(&shared);
    let mut worker = Worker {
        shared: shared.clone(),
        pods: informers.pods.clone(),
        client,
        whole_nodes: extenders
            .iter()
            .any(Extender::needs_nodes)
            .then(|| factory.informer(&NODES, "", Selectors::default())),
        extenders,
        writes: JoinSet::new(),
        waits: JoinSet::new(),
    };
    let work = async {
        informers.synced().await;
        if let Some(nodes) = &worker.whole_nodes {
            nodes.wait_synced().await;
        }
        informers.feed(&shared);
        shared.metrics.synced();
        worker.run().await;
    };
    tokio::select! {
        () = leading.cancelled() => {}
        () = work => {}
        ended = factory.join() => if let Err(error) = ended {
            tracing::error!(%error, "restarting the scheduler");
        },
    }
    leading.cancel();
    // Those that wait for volumes are told again by the next leader, which finds what was written.
    worker.waits.shutdown().await;
    // What was sent is waited for, so that nothing is written after the lease is given up.
    while worker.writes.join_next().await.is_some() {}
}

/// The loop and what it writes with.
struct Worker {
    shared: Arc<Shared>,
    pods: client::Informer<Pod>,
    client: Client,
    extenders: Arc<[Extender]>,
    /// For extenders that want them.
    whole_nodes: Option<client::Informer<Value>>,
    writes: JoinSet<Written>,
    /// Pods whose volumes are being bound, which may take minutes.
    waits: JoinSet<Written>,
}

/// How a write ended.
enum Written {
    Bound {
        decided: Decided,
        result: Result<(), NotBound>,
    },
    Evicted {
        pod: Arc<Pod>,
        has_failed: bool,
    },
    Status,
}

/// A pod with the node it is to be bound to.
struct Decided {
    queued: QueuedPod,
    node: String,
    volumes: Option<VolumePlan>,
    /// Resource claims to be reserved for the pod, and given devices.
    claims: Vec<ClaimPlan>,
    /// Who binds it instead of us, by its place.
    binder: Option<usize>,
    served: Arc<Served>,
}

/// Why a decision could not be carried out.
#[derive(Debug, thiserror::Error)]
enum NotBound {
    #[error("running PreBind plugin \"VolumeBinding\": {0}")]
    Volumes(#[from] VolumeError),
    #[error("running PreBind plugin \"DynamicResources\": {0}")]
    Claims(writes::ClaimError),
    #[error("{0}")]
    Extender(String),
    #[error("running Bind plugin \"DefaultBinder\": {0}")]
    Binding(#[from] ClientError),
}

/// What a cycle came to.
enum Step {
    Bind(Decided),
    Failed(Failed),
    Idle(Option<Instant>),
    /// Extenders have a say.
    Surveyed(Box<Surveyed>),
    Unfit(Box<Unfit>),
    /// Nothing came of it.
    Again,
}

/// A pod that fits nowhere, and what is done about it.
struct Failed {
    pod: Arc<Pod>,
    error: FitError,
    /// What `status.nominatedNodeName` becomes; `None` leaves it.
    nominated: Option<String>,
    evictions: Option<Evictions>,
    /// A claim whose devices are given up, or that is deleted.
    released: Option<Release>,
    served: Arc<Served>,
}

/// Pods to be evicted from a node, and waiting ones that are no longer expected there.
struct Evictions {
    node: String,
    victims: Vec<Arc<Pod>>,
    unnominated: Vec<Arc<Pod>>,
}

impl Worker {
    async fn run(&mut self) {
        loop {
            while let Some(written) = self.writes.try_join_next() {
                self.written(written);
            }
            while let Some(written) = self.waits.try_join_next() {
                self.written(written);
            }
            if self.waits.len() >= MAX_WAITING {
                if let Some(written) = self.waits.join_next().await {
                    self.written(written);
                }
                continue;
            }
            if self.writes.len() >= MAX_WRITES {
                if let Some(written) = self.writes.join_next().await {
                    self.written(written);
                }
                continue;
            }
            let mut step = self.step();
            if let Step::Surveyed(surveyed) = step {
                step = self.extend(*surveyed).await;
            }
            match step {
                Step::Bind(decided) => self.bind(decided),
                Step::Failed(failed) => self.failed(failed),
                Step::Unfit(unfit) => {
                    let failed = self.give_up(*unfit).await;
                    self.failed(failed);
                }
                Step::Idle(due) => self.idle(due).await,
                Step::Again | Step::Surveyed(_) => {}
            }
            tokio::task::consume_budget().await;
        }
    }

    fn bind(&mut self, decided: Decided) {
        let (client, shared) = (self.client.clone(), self.shared.clone());
        let extenders = self.extenders.clone();
        // Devices are mostly ready at once; some need minutes, as volumes do.
        let into = if decided.volumes.is_some()
            || !decided.claims.is_empty()
            || !decided.queued.pod.resource_claims.is_empty()
        {
            &mut self.waits
        } else {
            &mut self.writes
        };
        into.spawn(async move {
            let result = carry_out(&client, &shared, &extenders, &decided).await;
            Written::Bound { decided, result }
        });
    }

    /// Takes the next pod and decides.
    fn step(&self) -> Step {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let (queued, served) = loop {
            let Some(queued) = state.queue.pop(now) else {
                return Step::Idle(state.queue.next_due());
            };
            // The queue has only pods of known profiles.
            if let Some(served) = self.shared.profiles.get(&queued.pod.scheduler_name) {
                break (queued, served.clone());
            }
        };
        if self.is_extended(&queued.pod) {
            return self.survey(&mut state, queued, served);
        }
        let State {
            cluster, scheduler, ..
        } = &mut *state;
        let decision = scheduler.schedule(&queued.pod, &served.profile, cluster);
        self.shared
            .count_decision(&served, &scheduler.times, &queued, decision.as_ref());
        match decision {
            Ok(index) => Step::Bind(decide(
                &mut state,
                queued,
                index,
                served,
                &self.extenders,
                now,
            )),
            Err(failure) => {
                let Failure { error, nomination } = *failure;
                Step::Failed(conclude(&mut state, queued, error, nomination, served, now))
            }
        }
    }

    /// Waits for a change, a due back-off, or the end of a write.
    async fn idle(&mut self, due: Option<Instant>) {
        let due = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shared.wake.notified() => {}
            () = due => {}
            Some(written) = self.writes.join_next() => self.written(written),
            Some(written) = self.waits.join_next() => self.written(written),
        }
    }

    /// Evicts, and tells why the pod has no node.
    fn failed(&mut self, failed: Failed) {
        let Failed {
            pod,
            error,
            nominated,
            evictions,
            released,
            served,
        } = failed;
        if let Some(released) = released {
            let (client, pod) = (self.client.clone(), pod.clone());
            self.writes.spawn(async move {
                match released {
                    Release::Devices(claim) => writes::release(&client, &claim).await,
                    Release::Claim(claim) => writes::unmake(&client, &pod, &claim.metadata).await,
                }
                Written::Status
            });
        }
        if let Some(evictions) = evictions {
            self.shared.metrics.victims(evictions.victims.len());
            let (client, recorder, pod) =
                (self.client.clone(), served.recorder.clone(), pod.clone());
            self.writes.spawn(async move {
                let has_failed = writes::evict(&client, &recorder, &pod, &evictions)
                    .await
                    .is_err();
                Written::Evicted { pod, has_failed }
            });
        }
        self.report(
            &served,
            &pod,
            "Unschedulable",
            &error.to_string(),
            nominated,
        );
    }

    fn written(&mut self, written: Result<Written, tokio::task::JoinError>) {
        match written {
            Ok(Written::Bound {
                decided,
                result: Ok(()),
            }) => {
                self.forget_volumes(&decided);
                self.shared.count_bound(&decided);
                let pod = &decided.queued.pod;
                let message = format!(
                    "Successfully assigned {}/{} to {}",
                    pod.namespace, pod.name, decided.node
                );
                let recorder = &decided.served.recorder;
                recorder.event(&reference(pod), EventKind::Normal, "Scheduled", message);
            }
            Ok(Written::Bound {
                decided,
                result: Err(error),
            }) => {
                self.forget_volumes(&decided);
                self.not_bound(decided, &error);
            }
            Ok(Written::Evicted { pod, has_failed }) => {
                let mut state = self.shared.state.lock();
                state.queue.release(&pod.uid, has_failed, Instant::now());
            }
            Ok(Written::Status) => {}
            Err(error) => tracing::error!(%error, "a write of the scheduler failed"),
        }
    }

    /// Takes the decision back. If the Binding was accepted after all, the watch will show the pod's node.
    fn not_bound(&mut self, decided: Decided, error: &NotBound) {
        let Decided {
            queued,
            node,
            claims,
            served,
            ..
        } = decided;
        let pod = queued.pod.clone();
        let now = Instant::now();
        served.count_attempt(Outcome::Error, &queued);
        // Read before the state is locked: the informer may be waiting for it.
        let newest = self.pods.get(&pod.key());
        let mut state = self.shared.state.lock();
        if !state.cluster.forget(&pod.uid) {
            return;
        }
        for plan in &claims {
            let storage = &mut state.cluster.storage;
            match plan.extended {
                Some(_) => storage.forget_special(&pod.uid),
                None => storage.forget_claim(&plan.claim.metadata.key()),
            }
        }
        if !claims.is_empty() {
            state.queue.on_change(&Change::Devices, now);
        }
        state.queue.on_change(&Change::PodDeleted(&pod), now);
        let newest = newest.filter(|newest| {
            newest.uid == pod.uid && newest.node_name.is_empty() && !newest.is_deleting
        });
        let Some(newest) = newest.filter(|_| !error.is_for_good()) else {
            return;
        };
        state.queue.retry_later(queued, newest, now);
        drop(state);
        self.shared.wake.notify_one();
        tracing::warn!(pod = pod.key(), node, %error, "the binding failed, will be retried");
        self.report(&served, &pod, "SchedulerError", &error.to_string(), None);
    }

    /// What was promised to a pod's claims is in the API by now, or is free again.
    fn forget_volumes(&self, decided: &Decided) {
        let Some(plan) = &decided.volumes else { return };
        let mut state = self.shared.state.lock();
        for claim in &plan.claims {
            state.cluster.storage.forget(claim);
        }
        state.queue.on_change(&Change::Storage, Instant::now());
    }

    /// Tells in an event and in the pod's status why it has no node, and which it is expected on.
    fn report(
        &mut self,
        served: &Served,
        pod: &Arc<Pod>,
        reason: &'static str,
        message: &str,
        nominated: Option<String>,
    ) {
        served.recorder.event(
            &reference(pod),
            EventKind::Warning,
            "FailedScheduling",
            message,
        );
        let Some(patch) = writes::status_patch(pod, reason, message, nominated.as_deref()) else {
            return;
        };
        let (client, pod) = (self.client.clone(), pod.clone());
        self.writes.spawn(async move {
            writes::patch_status(&client, &pod, &patch).await;
            Written::Status
        });
    }
}

impl NotBound {
    /// The pod is gone.
    fn is_for_good(&self) -> bool {
        match self {
            NotBound::Volumes(error) => matches!(error, VolumeError::PodGone),
            NotBound::Claims(_) | NotBound::Extender(_) => false,
            NotBound::Binding(error) => error.is_not_found(),
        }
    }
}

impl Served {
    /// An attempt ended now.
    pub(crate) fn count_attempt(&self, outcome: Outcome, queued: &QueuedPod) {
        let took = queued
            .last_attempt
            .map_or(Duration::ZERO, |at| at.elapsed());
        self.series.attempt(outcome, took);
    }
}

impl Shared {
    /// A decision was made.
    fn count_decision<T>(
        &self,
        served: &Served,
        times: &crate::cycle::Times,
        queued: &QueuedPod,
        decision: Result<T, &Box<Failure>>,
    ) {
        let preempts = match &decision {
            Err(failure) => matches!(failure.nomination, Nomination::Set { .. }),
            Ok(_) => false,
        };
        served.series.decision(times, decision.is_ok(), preempts);
        if decision.is_ok() {
            let took = queued
                .last_attempt
                .map_or(Duration::ZERO, |at| at.elapsed());
            self.metrics.decided(took);
        } else if times.post_filter.is_some() && served.profile.preempts {
            self.metrics.preemption();
        }
    }

    fn count_bound(&self, decided: &Decided) {
        let Decided { queued, served, .. } = decided;
        served.count_attempt(Outcome::Scheduled, queued);
        let since = queued
            .first_attempt
            .map_or(Duration::ZERO, |at| at.elapsed());
        self.metrics.bound(queued.attempts, since);
    }
}

/// Assumes the pod on its node, with what it needs there.
fn decide(
    state: &mut State,
    queued: QueuedPod,
    index: usize,
    served: Arc<Served>,
    extenders: &[Extender],
    now: Instant,
) -> Decided {
    let State { cluster, queue, .. } = state;
    let node = cluster.node(index).name.clone();
    let volumes = volume_binding::reserve(&queued.pod, cluster, index);
    let claims = dynamic_resources::reserve(&queued.pod, cluster, index);
    let binder = extenders
        .iter()
        .position(|one| one.binds() && one.is_interested(&queued.pod));
    cluster.assume(queued.pod.clone(), index);
    let series = &served.series;
    series.point(Point::Reserve, Outcome::Scheduled, now.elapsed());
    queue.on_change(&Change::PodAdded(&queued.pod), now);
    Decided {
        queued,
        node,
        volumes,
        claims,
        binder,
        served,
    }
}

/// Puts a pod that fits nowhere back, and notes where it is expected.
fn conclude(
    state: &mut State,
    queued: QueuedPod,
    mut error: FitError,
    nomination: Nomination,
    served: Arc<Served>,
    now: Instant,
) -> Failed {
    let State { cluster, queue, .. } = state;
    let pod = queued.pod.clone();
    served.count_attempt(Outcome::Unschedulable, &queued);
    let released = dynamic_resources::release(&pod, cluster, &error.plugins);
    if let Some(released) = &released {
        error.claims = released.told();
    }
    let (nominated, evictions) = nominate(cluster, &pod, nomination);
    if evictions
        .as_ref()
        .is_some_and(|evictions| !evictions.victims.is_empty())
    {
        queue.hold(pod.uid.clone());
    }
    queue.failed(queued, pod.clone(), &error.plugins, now);
    let is_unnominated = evictions
        .as_ref()
        .is_some_and(|one| !one.unnominated.is_empty());
    if nominated.as_deref() == Some("") || is_unnominated {
        queue.on_change(&Change::NominationGone, now);
    }
    Failed {
        pod,
        error,
        nominated,
        evictions,
        released,
        served,
    }
}

/// Gives the pod its volumes, then its node.
async fn carry_out(
    client: &Client,
    shared: &Shared,
    extenders: &[Extender],
    decided: &Decided,
) -> Result<(), NotBound> {
    let Decided {
        queued,
        node,
        binder,
        served,
        ..
    } = decided;
    let mut clock = Instant::now();
    let mut ended = |point, is_good| {
        let outcome = match is_good {
            true => Outcome::Scheduled,
            false => Outcome::Error,
        };
        served.series.point(point, outcome, clock.elapsed());
        clock = Instant::now();
    };
    let mut made = None;
    let prepared = prepare(client, shared, decided, &mut made).await;
    ended(Point::PreBind, prepared.is_ok());
    if let Err(error) = prepared {
        undo(client, &queued.pod, made).await;
        return Err(error);
    }
    let bound = match binder.and_then(|place| extenders.get(place)) {
        Some(extender) => {
            let bound = extender.bind(&queued.pod, node).await;
            bound.map_err(NotBound::Extender)
        }
        None => writes::bind(client, &queued.pod, node)
            .await
            .map_err(NotBound::Binding),
    };
    ended(Point::Bind, bound.is_ok());
    if bound.is_err() {
        undo(client, &queued.pod, made).await;
    }
    bound
}

/// Deletes the claim that was made for a pod's extended resources (Unreserve).
async fn undo(client: &Client, pod: &Pod, made: Option<ObjectMeta>) {
    if let Some(made) = made {
        writes::unmake(client, pod, &made).await;
    }
}

/// Gives the pod its devices and volumes. The claim for its extended resources, as soon as there is one, is `made`.
async fn prepare(
    client: &Client,
    shared: &Shared,
    decided: &Decided,
    made: &mut Option<ObjectMeta>,
) -> Result<(), NotBound> {
    let Decided {
        queued,
        node,
        volumes,
        claims,
        served,
        ..
    } = decided;
    for plan in claims {
        let pod = &queued.pod;
        let given = match &plan.extended {
            Some(extended) => give_extended(client, pod, plan, extended, made).await,
            None => writes::reserve(client, pod, plan).await,
        };
        let version = given.map_err(NotBound::Claims)?;
        let mut state = shared.state.lock();
        let storage = &mut state.cluster.storage;
        match (&plan.extended, &*made) {
            (Some(_), Some(made)) => storage.special_written(&pod.uid, &made.key(), &version),
            _ => storage.claim_written(&plan.claim.metadata.key(), &version),
        }
        state.queue.on_change(&Change::Devices, Instant::now());
        drop(state);
        shared.wake.notify_one();
    }
    if !queued.pod.resource_claims.is_empty() || made.is_some() {
        let ready = devices::ready(client, shared, served, &queued.pod, node).await;
        ready.map_err(NotBound::Claims)?;
    }
    if let Some(plan) = volumes {
        volumes::bind(client, shared, served, &queued.pod, node, plan).await?;
    }
    if let Some(made) = made {
        writes::still_there(client, made)
            .await
            .map_err(NotBound::Claims)?;
    }
    Ok(())
}

/// Makes the claim for a pod's extended resources, gives it its devices, and tells the pod. Returns the claim's version.
async fn give_extended(
    client: &Client,
    pod: &Pod,
    plan: &ClaimPlan,
    extended: &ForExtended,
    made: &mut Option<ObjectMeta>,
) -> Result<String, ClaimError> {
    let claim = writes::make(client, pod, extended).await?;
    *made = Some(claim.metadata.clone());
    let name = claim.metadata.name.clone();
    let plan = ClaimPlan {
        claim: Arc::new(claim),
        allocation: plan.allocation.clone(),
        extended: None,
    };
    let version = writes::reserve(client, pod, &plan).await?;
    writes::tell(client, pod, &name, extended).await?;
    Ok(version)
}

/// Notes where the pod is expected from now on. Returns what its status is to say about it, and whom to evict.
fn nominate(
    cluster: &mut Cluster,
    pod: &Arc<Pod>,
    nomination: Nomination,
) -> (Option<String>, Option<Evictions>) {
    match nomination {
        Nomination::Keep => (None, None),
        Nomination::Clear => {
            let was_nominated =
                cluster.forget_nomination(&pod.uid) || !pod.nominated_node.is_empty();
            (was_nominated.then(String::new), None)
        }
        Nomination::Set { best, .. } => {
            let Candidate {
                node, mut victims, ..
            } = best;
            let node = cluster.node(node).name.clone();
            let lower = cluster
                .nominated_on(&node)
                .iter()
                .filter(|other| other.priority < pod.priority);
            let unnominated: Vec<_> = lower.cloned().collect();
            for other in &unnominated {
                cluster.forget_nomination(&other.uid);
            }
            cluster.nominate(pod.clone(), &node);
            victims.retain(|victim| !victim.is_deleting);
            let evictions = Evictions {
                node: node.clone(),
                victims,
                unnominated,
            };
            (Some(node), Some(evictions))
        }
    }
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference::pod(&pod.namespace, &pod.name, &pod.uid, &pod.resource_version)
}

#[cfg(test)]
mod tests;
