//! statefulset-controller: pods with a number, a name and storage of their own, made and updated in order.
//!
//! `plan` decides the next step; this file observes, makes claims before pods, and keeps the revisions.

mod claims;
mod plan;

use std::sync::Arc;

use api::{
    r::{CONTROLLERREVISIONS, PERSISTENTVOLUMECLAIMS, PODS, STATEFULSETS},
    view::ObjectMeta,
};
use apimachinery::{Value, selector::LabelSelector, time::now};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors, WriteOptions,
    events::EventKind,
    workqueue::{self, Queue, Requeue},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::{
    pods::{Kind, PodControl, from_template, sides},
    revisions::{ControllerRevision, Current, HASH, Revisions},
    selector_of,
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{Condition, Metadata, Pod},
    writes::{modify, write_status},
};
use plan::Action;

/// StatefulSets reconciled at a time (`--concurrent-statefulset-syncs`).
const WORKERS: usize = 5;

pub struct StatefulSets;

/// apps/v1 StatefulSet; the templates are kept as they are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    pub metadata: ObjectMeta,
    pub spec: StatefulSetSpec,
    pub status: StatefulSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetSpec {
    pub replicas: Option<i64>,
    pub service_name: String,
    pub selector: Value,
    pub template: Value,
    pub volume_claim_templates: Vec<Value>,
    pub pod_management_policy: String,
    pub update_strategy: UpdateStrategy,
    pub revision_history_limit: Option<i64>,
    pub min_ready_seconds: i64,
    pub ordinals: Ordinals,
    pub persistent_volume_claim_retention_policy: Retention,
}

/// `Retain` or `Delete`; empty is `Retain` (KEP-1847).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retention {
    pub when_deleted: String,
    pub when_scaled: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    #[serde(rename = "type")]
    pub kind: String,
    pub rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RollingUpdate {
    pub partition: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Ordinals {
    pub start: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    pub observed_generation: i64,
    pub replicas: i64,
    pub ready_replicas: i64,
    pub available_replicas: i64,
    pub current_replicas: i64,
    pub updated_replicas: i64,
    pub current_revision: String,
    pub update_revision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    pub conditions: Vec<Condition>,
}

impl StatefulSet {
    /// `spec.replicas`, 1 if it is absent.
    pub fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    pub fn start(&self) -> i64 {
        self.spec.ordinals.start
    }

    pub fn partition(&self) -> i64 {
        self.spec.update_strategy.rolling_update.partition
    }

    fn selector(&self) -> LabelSelector {
        selector_of(&self.spec.selector)
    }
}

struct Observed {
    sets: Informer<StatefulSet>,
    claims: Informer<Metadata>,
    control: PodControl,
    revisions: Revisions,
}

#[async_trait]
impl Controller for StatefulSets {
    fn name(&self) -> &'static str {
        "statefulset-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["statefulset"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let pods: Informer<Pod> = informers.informer(&PODS, "", Selectors::default());
        let history: Informer<ControllerRevision> =
            informers.informer(&CONTROLLERREVISIONS, "", Selectors::default());
        let observed = Arc::new(Observed {
            sets: informers.informer(&STATEFULSETS, "", Selectors::default()),
            claims: informers.informer(&PERSISTENTVOLUMECLAIMS, "", Selectors::default()),
            control: PodControl::new(
                &context,
                "statefulset-controller",
                Kind {
                    resource: &STATEFULSETS,
                    api_version: "apps/v1",
                    finalizer: None,
                },
                &pods,
            ),
            revisions: Revisions::new(context.client.clone(), history.clone()),
        });
        let sets = &observed.sets;
        if !synced!(context, sets, pods, history, observed.claims) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        sets.add_handler(move |change| keys.add(change.key.to_string()));
        let (keys, to) = (queue.clone(), observed.clone());
        pods.add_handler(move |change| {
            let delay = to.control.gather(change);
            for key in to.control.kind.owners_in(sides(change)) {
                keys.add_after(key, delay);
            }
        });
        workqueue::run("statefulset", &queue, WORKERS, &context.shutdown, |key| {
            let observed = &observed;
            async move { observed.reconcile(&key).await }
        })
        .await;
    }
}

impl Observed {
    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let control = &self.control;
        let Some(set) = self.sets.get(key) else {
            control.ledger.forget(key);
            self.revisions.forget(key);
            return Ok(Requeue::No);
        };
        if set.metadata.is_deleting() {
            return Ok(Requeue::No);
        }
        if !control.has_seen(key).await? || !self.revisions.is_seen(key) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let meta = &set.metadata;
        let reference = control.kind.reference(meta);
        let (template, collisions) = (&set.spec.template, set.status.collision_count);
        let update = match self
            .revisions
            .current(meta, reference, template, collisions)
            .await?
        {
            Current::Is(revision) => revision,
            Current::Collides => {
                // Another template with the same hash: the next attempt hashes with a higher count.
                let mut status = set.status.clone();
                status.collision_count = Some(collisions.unwrap_or(0) + 1);
                write_status(&control.client, &STATEFULSETS, meta, &status).await?;
                return Ok(Requeue::After(LAG_RETRY));
            }
        };
        // Without a record of what was rolled out last, it is what is wanted now.
        let recorded = self
            .revisions
            .of(meta)
            .into_iter()
            .find(|one| one.metadata.name == set.status.current_revision);
        let current = recorded.unwrap_or_else(|| update.clone());
        // Of orphans only those with a name of this set may be its own.
        let is_member = |pod: &Pod| plan::ordinal(&meta.name, pod).is_some();
        let claimed = control.claim(meta, &set.selector(), is_member).await?;
        let pods = control.without_deleted(key, claimed);
        self.keep_claims(&set, &pods).await?;
        let (now_name, next_name) = (&current.metadata.name, &update.metadata.name);
        let plan = plan::plan(&plan::Observed {
            set: &set,
            pods: &pods,
            current: now_name,
            update: next_name,
            now: now(),
        });
        for action in plan.actions {
            match action {
                Action::Create { ordinal, updated } => {
                    let revision = if updated { &update } else { &current };
                    self.create(&set, revision, ordinal).await?;
                }
                Action::Delete(pod) => {
                    if pod.is_terminal() {
                        self.recreating(&set, &pod);
                    }
                    self.delete(&set, &pod).await?;
                }
            }
        }
        if plan.status != set.status {
            write_status(&control.client, &STATEFULSETS, meta, &plan.status).await?;
        }
        let in_use = |one: &ControllerRevision| {
            let name = &one.metadata.name;
            name == now_name
                || name == next_name
                || pods
                    .iter()
                    .any(|pod| pod.metadata.labels.get(HASH) == Some(name))
        };
        self.revisions
            .clean_up(meta, set.spec.revision_history_limit, in_use)
            .await?;
        Ok(plan.again.map_or(Requeue::No, Requeue::After))
    }

    async fn create(
        &self,
        set: &StatefulSet,
        revision: &ControllerRevision,
        ordinal: i64,
    ) -> Result<(), ClientError> {
        let control = &self.control;
        let meta = &set.metadata;
        let name = format!("{}-{ordinal}", meta.name);
        for template in &set.spec.volume_claim_templates {
            self.create_claim(set, template, &name).await?;
        }
        let mut template = revision.data["spec"]["template"].clone();
        if let Some(fields) = template.as_object_mut() {
            fields.remove("$patch");
        }
        let pod = pod_for(
            set,
            &template,
            &revision.metadata.name,
            &name,
            ordinal,
            &control.kind.reference(meta),
        );
        let options = WriteOptions::default();
        let object = control.kind.object(meta);
        let created = control
            .client
            .create::<_, Pod>(&PODS, &meta.namespace, &pod, &options)
            .await;
        let set_name = &meta.name;
        match created {
            Ok(stored) => {
                control
                    .ledger
                    .wrote(&meta.key(), &stored.metadata.resource_version);
                let message = format!("create Pod {name} in StatefulSet {set_name} successful");
                control
                    .recorder
                    .event(&object, EventKind::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_namespace_terminating() => Ok(()),
            // The cache is behind, or the name is another's; no event tells of it, as upstream.
            Err(error) if error.is_already_exists() => Err(error),
            Err(error) => {
                let message =
                    format!("create Pod {name} in StatefulSet {set_name} failed error: {error}");
                control
                    .recorder
                    .event(&object, EventKind::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Makes the claims of pods that wait for one, and lets the claims' owners follow the retention policy.
    async fn keep_claims(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<(), ClientError> {
        if set.spec.volume_claim_templates.is_empty() {
            return Ok(());
        }
        for pod in pods {
            let Some(ordinal) = plan::ordinal(&set.metadata.name, pod) else {
                continue;
            };
            for template in &set.spec.volume_claim_templates {
                let name = claims::name(template, &pod.metadata.name);
                let key = apimachinery::meta::join_key(&set.metadata.namespace, &name);
                let Some(claim) = self.claims.get(&key) else {
                    if pod.status.phase == "Pending" && !pod.metadata.is_deleting() {
                        self.create_claim(set, template, &pod.metadata.name).await?;
                    }
                    continue;
                };
                let owner = self.control.kind.reference(&set.metadata);
                let owners = claims::owners(set, &owner, pod, ordinal, &claim.metadata);
                if owners != claim.metadata.owner_references && !claim.metadata.is_deleting() {
                    let client = &self.control.client;
                    modify(client, &PERSISTENTVOLUMECLAIMS, &claim.metadata, |claim| {
                        claim["metadata"]["ownerReferences"] = json!(owners);
                    })
                    .await?;
                }
            }
        }
        Ok(())
    }

    fn recreating(&self, set: &StatefulSet, pod: &Pod) {
        let failed = pod.status.phase == "Failed";
        let (kind, reason, what) = if failed {
            (EventKind::Warning, "RecreatingFailedPod", "failed")
        } else {
            (EventKind::Normal, "RecreatingTerminatedPod", "terminated")
        };
        let meta = &set.metadata;
        let message = format!(
            "StatefulSet {}/{} is recreating {what} Pod {}",
            meta.namespace, meta.name, pod.metadata.name
        );
        let object = self.control.kind.object(meta);
        self.control.recorder.event(&object, kind, reason, message);
    }

    async fn create_claim(
        &self,
        set: &StatefulSet,
        template: &Value,
        pod: &str,
    ) -> Result<(), ClientError> {
        let control = &self.control;
        let namespace = &set.metadata.namespace;
        let claim = claims::make(set, template, pod);
        let name = apimachinery::meta::name(&claim).to_string();
        if self
            .claims
            .get(&apimachinery::meta::join_key(namespace, &name))
            .is_some()
        {
            return Ok(());
        }
        let options = WriteOptions::default();
        let created = control
            .client
            .create::<_, Metadata>(&PERSISTENTVOLUMECLAIMS, namespace, &claim, &options)
            .await;
        let object = control.kind.object(&set.metadata);
        let set_name = &set.metadata.name;
        match created {
            Ok(_) => {
                let message =
                    format!("create Claim {name} Pod {pod} in StatefulSet {set_name} success");
                control
                    .recorder
                    .event(&object, EventKind::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_already_exists() || error.is_namespace_terminating() => Ok(()),
            Err(error) => {
                let message = format!(
                    "create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: {error}"
                );
                control
                    .recorder
                    .event(&object, EventKind::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod) -> Result<(), ClientError> {
        let control = &self.control;
        let options = client::DeleteOptions::uid(&pod.metadata.uid);
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        match control
            .client
            .delete(&PODS, namespace, name, &options)
            .await
        {
            Ok(_) => {
                control
                    .ledger
                    .deleted(&set.metadata.key(), &pod.metadata.uid);
                let message = format!(
                    "delete Pod {name} in StatefulSet {} successful",
                    set.metadata.name
                );
                control.recorder.event(
                    &control.kind.object(&set.metadata),
                    EventKind::Normal,
                    "SuccessfulDelete",
                    message,
                );
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The pod of one ordinal: its name is its hostname, its claims are its own.
fn pod_for(
    set: &StatefulSet,
    template: &Value,
    revision: &str,
    name: &str,
    ordinal: i64,
    owner: &api::view::OwnerReference,
) -> Value {
    let mut pod = from_template(template, &set.metadata, owner);
    let meta = &mut pod["metadata"];
    if let Some(fields) = meta.as_object_mut() {
        fields.remove("generateName");
    }
    meta["name"] = json!(name);
    if !meta["labels"].is_object() {
        meta["labels"] = Value::Object(Map::new());
    }
    meta["labels"][HASH] = json!(revision);
    meta["labels"]["statefulset.kubernetes.io/pod-name"] = json!(name);
    meta["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
    pod["spec"]["hostname"] = json!(name);
    pod["spec"]["subdomain"] = json!(set.spec.service_name);
    let claims = set
        .spec
        .volume_claim_templates
        .iter()
        .map(apimachinery::meta::name);
    let claims: Vec<&str> = claims.collect();
    let mut volumes = pod["spec"]["volumes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    volumes.retain(|volume| !claims.iter().any(|claim| volume["name"] == *claim));
    for claim in claims {
        volumes.push(json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{name}")}}));
    }
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = Value::Array(volumes);
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    #[tokio::test(start_paused = true)]
    async fn pods_get_names_claims_and_their_turn() {
        let server = Server::default();
        let config = crate::ControllersConfig {
            controllers: vec!["statefulset-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        server.put(&STATEFULSETS, json!({
            "metadata": {"name": "db", "namespace": "default", "uid": "s", "generation": 1},
            "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                     "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
                     "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}}},
        }));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(server.list(&PODS).len(), 1);
        let mut first = server.get(&PODS, "default/db-0").unwrap();
        assert_eq!(
            (&first["spec"]["hostname"], &first["spec"]["subdomain"]),
            (&json!("db-0"), &json!("db"))
        );
        let claim = &first["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"];
        assert_eq!(claim, "data-db-0");
        assert!(
            server
                .get(&PERSISTENTVOLUMECLAIMS, "default/data-db-0")
                .is_some()
        );
        first["status"] = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        server.put(&PODS, first);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.get(&PODS, "default/db-1").is_some());
        let set = server.get(&STATEFULSETS, "default/db").unwrap();
        assert_eq!(set["status"]["readyReplicas"], 1);
        assert_eq!(server.list(&CONTROLLERREVISIONS).len(), 1);
    }
}
