//! replicaset-controller and replicationcontroller-controller: keep as many pods of a template as is said. The two
//! differ in their kind and in how the selector is written, in nothing else.

use std::{sync::Arc, time::Duration};

use api::{
    r::{PODS, REPLICASETS, REPLICATIONCONTROLLERS},
    view::ObjectMeta,
};
use apimachinery::{
    Value,
    selector::LabelSelector,
    time::{Time, now, now_text},
};
use async_trait::async_trait;
use client::{
    ClientError, Delta, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};
use serde::{Deserialize, Serialize};

use super::{
    pods::{BURST, BY_CONTROLLER, Kind, PodControl, from_template, sides, sort_for_deletion},
    selector_of,
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{Condition, Pod, condition},
    writes::write_status,
};

/// Objects reconciled at a time (`--concurrent-replicaset-syncs`, `--concurrent-rc-syncs`).
const WORKERS: usize = 5;
/// Index of ReplicaSets by namespace.
const BY_NAMESPACE: &str = "namespace";
/// Index of ReplicaSets by the uid of their controller, or by `orphan/<namespace>`.
pub const BY_OWNER: &str = "owner";

pub struct ReplicaSets;
pub struct ReplicationControllers;

/// apps/v1 ReplicaSet and core/v1 ReplicationController; the template is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    pub metadata: ObjectMeta,
    pub spec: ReplicaSetSpec,
    pub status: ReplicaSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    pub replicas: Option<i64>,
    pub min_ready_seconds: i64,
    pub selector: Value,
    pub template: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetStatus {
    pub replicas: i64,
    pub fully_labeled_replicas: i64,
    pub ready_replicas: i64,
    pub available_replicas: i64,
    /// Of ReplicaSets only (KEP-3973).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i64>,
    pub observed_generation: i64,
    pub conditions: Vec<Condition>,
}

impl ReplicaSet {
    /// `spec.replicas`, 1 if it is absent.
    pub fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    pub fn selector(&self) -> LabelSelector {
        selector_of(&self.spec.selector)
    }
}

/// The index value of `BY_OWNER`.
pub fn by_owner(set: &ReplicaSet) -> Vec<String> {
    vec![match set.metadata.controller() {
        Some(owner) => owner.uid.clone(),
        None => format!("orphan/{}", set.metadata.namespace),
    }]
}

struct Observed {
    sets: Informer<ReplicaSet>,
    control: PodControl,
}

#[derive(Debug, PartialEq)]
enum Action {
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

#[async_trait]
impl Controller for ReplicaSets {
    fn name(&self) -> &'static str {
        "replicaset-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["replicaset"]
    }

    async fn run(&self, context: Context) {
        let kind = Kind {
            resource: &REPLICASETS,
            api_version: "apps/v1",
            finalizer: None,
        };
        run(context, kind, "replicaset-controller").await;
    }
}

#[async_trait]
impl Controller for ReplicationControllers {
    fn name(&self) -> &'static str {
        "replicationcontroller-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["replicationcontroller"]
    }

    async fn run(&self, context: Context) {
        let kind = Kind {
            resource: &REPLICATIONCONTROLLERS,
            api_version: "v1",
            finalizer: None,
        };
        run(context, kind, "replication-controller").await;
    }
}

async fn run(context: Context, kind: Kind, component: &'static str) {
    let informers = &context.informers;
    let pods: Informer<Pod> = informers.informer(&PODS, "", Selectors::default());
    let observed = Arc::new(Observed {
        sets: informers.informer(kind.resource, "", Selectors::default()),
        control: PodControl::new(&context, component, kind, &pods),
    });
    let sets = &observed.sets;
    sets.add_index(BY_NAMESPACE, |set| vec![set.metadata.namespace.clone()]);
    sets.add_index(BY_OWNER, by_owner);
    if !synced!(context, pods, sets) {
        return;
    }
    let queue = Queue::default();
    let keys = queue.clone();
    sets.add_handler(move |change| keys.add(change.key.to_string()));
    let (keys, to) = (queue.clone(), observed.clone());
    pods.add_handler(move |change| to.pod_changed(change, &keys));
    workqueue::run(component, &queue, WORKERS, &context.shutdown, |key| {
        let observed = &observed;
        async move { observed.reconcile(&key).await }
    })
    .await;
}

impl Observed {
    fn pod_changed(&self, change: &Delta<Pod>, queue: &Queue<String>) {
        let delay = self.control.gather(change);
        for key in self.control.kind.owners_in(sides(change)) {
            queue.add_after(key, delay);
        }
        // An orphan may be adopted.
        let orphan = change.new.as_ref();
        let Some(pod) = orphan.filter(|pod| pod.metadata.controller().is_none()) else {
            return;
        };
        if change.old.as_ref().is_some_and(|old| {
            old.metadata.labels == pod.metadata.labels && old.metadata.controller().is_none()
        }) {
            return;
        }
        for set in self.sets.by_index(BY_NAMESPACE, &pod.metadata.namespace) {
            if set.selector().matches(&pod.metadata.labels) {
                queue.add(set.metadata.key());
            }
        }
    }

    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let control = &self.control;
        let Some(set) = self.sets.get(key) else {
            control.ledger.forget(key);
            return Ok(Requeue::No);
        };
        if !control.has_seen(key).await? {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let claimed = control
            .claim(&set.metadata, &set.selector(), Pod::is_active)
            .await?;
        let terminating = claimed
            .iter()
            .filter(|pod| pod.metadata.is_deleting() && !pod.is_terminal())
            .count();
        let claimed = control.without_deleted(key, claimed);
        let active: Vec<Arc<Pod>> = claimed.into_iter().filter(|pod| pod.is_active()).collect();
        let mut failure = None;
        if !set.metadata.is_deleting() {
            let related = || self.related(&set, &active);
            if let Some(action) = plan(set.replicas(), &active, related, now()) {
                failure = self.apply(&set, action).await;
            }
        }
        let mut status = status(&set, &active, failure.as_ref(), now());
        if control.kind.resource.plural == REPLICASETS.plural {
            status.terminating_replicas = i64::try_from(terminating).ok();
        }
        if status != set.status {
            let resource = control.kind.resource;
            write_status(&control.client, resource, &set.metadata, &status).await?;
        }
        if let Some((_, error)) = failure {
            return Err(error);
        }
        Ok(next_available(&set, &active, now()))
    }

    /// The pods of all sets of the same owner: on nodes where many of them are, one is needed least.
    fn related(&self, set: &ReplicaSet, active: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let mut related = active.to_vec();
        if let Some(owner) = set.metadata.controller() {
            for other in self.sets.by_index(BY_OWNER, &owner.uid) {
                if other.metadata.uid != set.metadata.uid {
                    let pods = self
                        .control
                        .pods
                        .by_index(BY_CONTROLLER, &other.metadata.uid);
                    related.extend(pods.into_iter().filter(|pod| pod.is_active()));
                }
            }
        }
        related
    }

    /// Carries out the action; what failed and why.
    async fn apply(&self, set: &ReplicaSet, action: Action) -> Option<(&'static str, ClientError)> {
        match action {
            Action::Create(count) => {
                let owner = self.control.kind.reference(&set.metadata);
                let pod = from_template(&set.spec.template, &set.metadata, &owner);
                let (_, error) = self.control.create(&set.metadata, vec![pod; count]).await;
                let error = error.filter(|error| !error.is_namespace_terminating());
                error.map(|error| ("FailedCreate", error))
            }
            Action::Delete(pods) => {
                let result = self.control.delete(&set.metadata, &pods).await;
                result.err().map(|error| ("FailedDelete", error))
            }
        }
    }
}

fn plan(
    replicas: i64,
    active: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Time,
) -> Option<Action> {
    let wanted = usize::try_from(replicas).unwrap_or(0);
    match active.len().cmp(&wanted) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Less => Some(Action::Create((wanted - active.len()).min(BURST))),
        std::cmp::Ordering::Greater => {
            let mut pods = active.to_vec();
            sort_for_deletion(&mut pods, &related(), now);
            pods.truncate((active.len() - wanted).min(BURST));
            Some(Action::Delete(pods))
        }
    }
}

fn status(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    failure: Option<&(&'static str, ClientError)>,
    now: Time,
) -> ReplicaSetStatus {
    let template_labels = LabelSelector::from_labels(
        set.spec.template["metadata"]["labels"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string()))),
    );
    let count = |fits: &dyn Fn(&Pod) -> bool| {
        i64::try_from(active.iter().filter(|pod| fits(pod)).count()).unwrap_or(i64::MAX)
    };
    let available = |pod: &Pod| {
        pod.available_at(set.spec.min_ready_seconds)
            .is_some_and(|at| at <= now)
    };
    let mut conditions = set.status.conditions.clone();
    let had = condition(&conditions, "ReplicaFailure").is_some();
    match failure {
        Some((reason, error)) if !had => conditions.push(Condition {
            kind: "ReplicaFailure".into(),
            status: "True".into(),
            reason: reason.to_string(),
            message: error.to_string(),
            last_heartbeat_time: None,
            last_transition_time: Some(now_text()),
        }),
        None if had => conditions.retain(|one| one.kind != "ReplicaFailure"),
        _ => {}
    }
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: count(&|pod| template_labels.matches(&pod.metadata.labels)),
        ready_replicas: count(&Pod::is_ready),
        available_replicas: count(&available),
        terminating_replicas: None,
        observed_generation: set.metadata.generation,
        conditions,
    }
}

/// When the next ready pod will have been so for `minReadySeconds`.
fn next_available(set: &ReplicaSet, active: &[Arc<Pod>], now: Time) -> Requeue {
    let times = active
        .iter()
        .filter_map(|pod| pod.available_at(set.spec.min_ready_seconds));
    let next = times.filter(|at| *at > now).min();
    next.map_or(Requeue::No, |at| {
        let left = Duration::try_from(at - now).unwrap_or_default();
        Requeue::After(left + Duration::from_millis(10))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seconds;
    use client::fake::Server;
    use serde_json::json;

    fn set(replicas: i64) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "web", "namespace": "default", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                     "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"image": "nginx"}]}}},
        })
    }

    fn start(server: &Server) -> tokio_util::sync::DropGuard {
        crate::testing::start(
            server,
            &["replicaset-controller", "replicationcontroller-controller"],
        )
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_made_replaced_and_deleted_until_there_are_as_many_as_wanted() {
        let server = Server::default();
        let _guard = start(&server);
        server.put(&REPLICASETS, set(7));
        seconds(2).await;
        let pods = server.list(&PODS);
        assert_eq!(pods.len(), 7);
        assert_eq!(server.requests_of("POST", "/pods").len(), 7);
        assert_eq!(pods[0]["metadata"]["ownerReferences"][0]["name"], "web");
        let stored = server.get(&REPLICASETS, "default/web").unwrap();
        assert_eq!(
            (
                &stored["status"]["replicas"],
                &stored["status"]["readyReplicas"]
            ),
            (&json!(7), &json!(0))
        );

        server.remove(&PODS, &apimachinery::meta::key(&pods[0]));
        seconds(2).await;
        assert_eq!(server.list(&PODS).len(), 7);
        let mut fewer = server.get(&REPLICASETS, "default/web").unwrap();
        fewer["spec"]["replicas"] = json!(2);
        server.put(&REPLICASETS, fewer);
        seconds(2).await;
        assert_eq!(server.list(&PODS).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn matching_orphans_are_adopted_and_pods_that_match_no_longer_are_released() {
        let server = Server::default();
        let labelled = |name: &str| json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}, "spec": {}});
        server.put(&PODS, labelled("orphan"));
        let _guard = start(&server);
        server.put(&REPLICASETS, set(1));
        seconds(2).await;
        assert_eq!(server.list(&PODS).len(), 1);
        let mut adopted = server.get(&PODS, "default/orphan").unwrap();
        assert_eq!(
            adopted["metadata"]["ownerReferences"][0]["kind"],
            "ReplicaSet"
        );
        adopted["metadata"]["labels"] = json!({"app": "other"});
        server.put(&PODS, adopted);
        seconds(2).await;
        assert_eq!(server.list(&PODS).len(), 2);
        let released = server.get(&PODS, "default/orphan").unwrap();
        assert_eq!(released["metadata"]["ownerReferences"], json!([]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_makes_no_second_pod() {
        let server = Server::default();
        let _guard = start(&server);
        seconds(1).await;
        // The pod is made, but its maker is told that this took too long.
        server.lose_next(http::Method::POST, "/pods");
        server.put(&REPLICASETS, set(1));
        seconds(5).await;
        assert_eq!(server.requests_of("POST", "/pods").len(), 1);
        assert_eq!(server.list(&PODS).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_pod_shows_as_a_condition_until_one_can_be_made() {
        let server = Server::default();
        let _guard = start(&server);
        seconds(1).await;
        let refusal =
            apimachinery::status::Status::forbidden("", "pods", "web-1", "exceeded quota");
        server.fail_next(http::Method::POST, "/pods", refusal.clone());
        server.fail_next(http::Method::POST, "/pods", refusal);
        server.put(&REPLICASETS, set(3));
        tokio::time::sleep(Duration::from_millis(2)).await;
        let stored = server.get(&REPLICASETS, "default/web").unwrap();
        assert_eq!(stored["status"]["conditions"][0]["type"], "ReplicaFailure");
        assert_eq!(stored["status"]["conditions"][0]["reason"], "FailedCreate");
        seconds(2).await;
        let stored = server.get(&REPLICASETS, "default/web").unwrap();
        assert_eq!(stored["status"]["conditions"], json!([]));
        assert_eq!(stored["status"]["replicas"], 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replication_controller_selects_by_plain_labels() {
        let server = Server::default();
        let _guard = start(&server);
        let mut controller = set(2);
        controller["kind"] = json!("ReplicationController");
        controller["spec"]["selector"] = json!({"app": "web"});
        server.put(&REPLICATIONCONTROLLERS, controller);
        seconds(2).await;
        let pods = server.list(&PODS);
        assert_eq!(pods.len(), 2);
        let owner = &pods[0]["metadata"]["ownerReferences"][0];
        assert_eq!(owner["kind"], "ReplicationController");
        assert_eq!(owner["apiVersion"], "v1");
    }
}
