//! resourceclaim-controller: makes the claims of pods' templates, takes pods that are done out of `reservedFor`, frees
//! what nobody uses, and deletes claims with the pod they were made for (KEP-4381).

use std::collections::BTreeSet;

use api::r::{PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES};
use apimachinery::{Value, meta, meta::join_key};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Patch, Selectors, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use super::view::{Consumer, FINALIZER, POD_CLAIM_NAME, ResourceClaim, ResourceClaimTemplate};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{Pod, PodClaim},
    writes::{modify, modify_status},
};

/// Keys looked at at a time (`--concurrent-resource-claim-syncs`).
const WORKERS: usize = 50;
/// As many pods may share a claim (ResourceClaimReservedForMaxSize).
const MAX_CONSUMERS: usize = 256;
/// The longest part of a generated name that is not random.
const MAX_BASE: usize = 253 - 5;
/// Index of claims by the uid of the pod they were made for.
const BY_OWNER: &str = "owner";
/// Index of pods by the claims they name, `namespace/name`.
const BY_RESOURCE_CLAIM: &str = "resource-claim";

pub struct ResourceClaims;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Pod(String),
    Claim(String),
}

struct Manager {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    recorder: Recorder,
    /// The last claim made for a pod, by the pod's key, until the cache has it. Pods that are gone leave it.
    made: parking_lot::Mutex<std::collections::HashMap<String, String>>,
}

#[async_trait]
impl Controller for ResourceClaims {
    fn name(&self) -> &'static str {
        "resourceclaim-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["resource-claim-controller"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let manager = Manager {
            pods: informers.informer(&PODS, "", Selectors::default()),
            claims: informers.informer(&RESOURCECLAIMS, "", Selectors::default()),
            templates: informers.informer(&RESOURCECLAIMTEMPLATES, "", Selectors::default()),
            recorder: context.recorder("resource_claim"),
            made: parking_lot::Mutex::default(),
            context: context.clone(),
        };
        let Manager {
            pods,
            claims,
            templates,
            ..
        } = &manager;
        claims.add_index(BY_OWNER, |claim| {
            owner(claim)
                .map(|owner| owner.uid.clone())
                .into_iter()
                .collect()
        });
        pods.add_index(BY_RESOURCE_CLAIM, names);
        if !synced!(context, pods, claims, templates) {
            return;
        }
        let queue = Queue::default();
        manager.follow(&queue);
        let name = "resource-claim";
        workqueue::run(name, &queue, WORKERS, &context.shutdown, |key| {
            let manager = &manager;
            async move {
                match key {
                    Key::Pod(key) => manager.sync_pod(&key).await,
                    Key::Claim(key) => manager.sync_claim(&key).await.map_err(SyncError::from),
                }
            }
        })
        .await;
    }
}

/// The pod a claim was made for.
fn owner(claim: &ResourceClaim) -> Option<&api::view::OwnerReference> {
    claim
        .metadata
        .controller()
        .filter(|owner| owner.kind == "Pod" && owner.api_version == "v1")
}

/// The name of the claim that stands for one of the pod's, once there is one.
fn name_of<'a>(pod: &'a Pod, claim: &'a PodClaim) -> Option<&'a str> {
    if let Some(name) = &claim.resource_claim_name {
        return Some(name);
    }
    let mut statuses = pod.status.resource_claim_statuses.iter();
    let status = statuses.find(|status| status.name == claim.name)?;
    status.resource_claim_name.as_deref()
}

/// The index value of `BY_RESOURCE_CLAIM`.
fn names(pod: &Pod) -> Vec<String> {
    let claims = pod.spec.resource_claims.iter();
    let special = pod.status.extended_resource_claim_status.as_ref();
    let special = special.map(|one| one.resource_claim_name.as_str());
    claims
        .filter_map(|claim| name_of(pod, claim))
        .chain(special)
        .map(|name| join_key(&pod.metadata.namespace, name))
        .collect()
}

/// Whether the pod needs no claim any more: it has ended, or never began and is going.
fn is_done(pod: &Pod) -> bool {
    pod.is_terminal() || (pod.metadata.is_deleting() && pod.spec.node_name.is_empty())
}

/// Why a pod did not get a claim.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("resource claim template {0:?}: resourceclaimtemplate.resource.k8s.io {0:?} not found")]
    NoTemplate(String),
    #[error("create ResourceClaim : {0}")]
    Create(ClientError),
}

/// Why a key has to come again.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// What becomes of a claim.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Those that stay reserved, and whether the allocation goes.
    Keep {
        consumers: Vec<Consumer>,
        deallocate: bool,
    },
    RemoveFinalizer,
    Delete,
}

/// What a claim needs next, given which consumers are pods that are done, and whether its owner still needs it.
fn plan(claim: &ResourceClaim, gone: &BTreeSet<String>, owner_is_done: bool) -> Vec<Step> {
    let status = &claim.status;
    let valid: Vec<Consumer> = status
        .reserved_for
        .iter()
        .filter(|one| !(one.is_pod() && gone.contains(&one.uid)))
        .cloned()
        .collect();
    let is_protected = claim.metadata.finalizers.iter().any(|one| one == FINALIZER);
    let deallocate = valid.is_empty() && is_protected && status.allocation.is_some();
    let mut steps = Vec::new();
    let is_free = valid.is_empty();
    if valid.len() < status.reserved_for.len() || deallocate {
        steps.push(Step::Keep {
            consumers: valid,
            deallocate,
        });
    }
    if is_free && is_protected && (deallocate || status.allocation.is_none()) {
        steps.push(Step::RemoveFinalizer);
    }
    if is_free && owner_is_done && !claim.metadata.is_deleting() {
        steps.push(Step::Delete);
    }
    steps
}

/// The claim that is made for a pod of a template.
fn from_template(pod: &Pod, claim: &PodClaim, template: &ResourceClaimTemplate) -> Value {
    let meta = &pod.metadata;
    let mut base = format!("{}-{}", meta.name, claim.name);
    base.truncate(MAX_BASE - 1);
    let mut annotations = template.spec.metadata.annotations.clone();
    annotations.insert(POD_CLAIM_NAME.into(), claim.name.clone());
    let mut made = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "generateName": format!("{base}-"), "namespace": meta.namespace, "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template.spec.spec,
    });
    if !template.spec.metadata.labels.is_empty() {
        made["metadata"]["labels"] = json!(template.spec.metadata.labels);
    }
    made
}

impl Manager {
    fn follow(&self, queue: &Queue<Key>) {
        let (keys, all) = (queue.clone(), self.claims.clone());
        self.pods.add_handler(move |change| {
            // One that is done, or another by now, holds its claims no more.
            let pod = change.object();
            let has_special = pod.status.extended_resource_claim_status.is_some();
            if pod.spec.resource_claims.is_empty() && !has_special {
                return;
            }
            keys.add(Key::Pod(change.key.to_string()));
            let replaced = change
                .old
                .iter()
                .filter(|old| old.metadata.uid != pod.metadata.uid);
            let ended = change.is_deleted() || is_done(pod);
            for one in replaced.chain(ended.then_some(pod)) {
                names(one)
                    .into_iter()
                    .for_each(|name| keys.add(Key::Claim(name)));
                for claim in all.by_index(BY_OWNER, &one.metadata.uid) {
                    keys.add(Key::Claim(claim.metadata.key()));
                }
            }
        });
        let (keys, pods) = (queue.clone(), self.pods.clone());
        self.claims.add_handler(move |change| {
            let claim = change.object();
            if !change.is_deleted() {
                keys.add(Key::Claim(change.key.to_string()));
            }
            if let Some(owner) = owner(claim) {
                keys.add(Key::Pod(join_key(&claim.metadata.namespace, &owner.name)));
            }
            // Pods with a node wait for it to be allocated.
            for pod in pods.by_index(BY_RESOURCE_CLAIM, &change.key) {
                keys.add(Key::Pod(pod.metadata.key()));
            }
        });
        let (keys, pods) = (queue.clone(), self.pods.clone());
        self.templates.add_handler(move |change| {
            if !change.is_added() {
                return;
            }
            let meta = &change.object().metadata;
            for pod in pods.list() {
                let mut claims = pod.spec.resource_claims.iter();
                let names = |claim: &PodClaim| {
                    claim.resource_claim_template_name.as_ref() == Some(&meta.name)
                };
                if pod.metadata.namespace == meta.namespace && claims.any(names) {
                    keys.add(Key::Pod(pod.metadata.key()));
                }
            }
        });
    }

    async fn sync_pod(&self, key: &str) -> Result<Requeue, SyncError> {
        let pod = self
            .pods
            .get(key)
            .filter(|pod| !is_done(pod) && !pod.metadata.is_deleting());
        let Some(pod) = pod else {
            self.made.lock().remove(key);
            return Ok(Requeue::No);
        };
        let made = self.made.lock().get(key).cloned();
        if made.is_some_and(|version| !self.claims.has_seen(&version)) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        self.made.lock().remove(key);
        let mut statuses = Vec::new();
        for claim in &pod.spec.resource_claims {
            match self.claim_for(&pod, claim).await {
                Ok(Some(name)) => {
                    statuses.push(json!({"name": claim.name, "resourceClaimName": name}))
                }
                Ok(None) => {}
                Err(error) => {
                    let message = format!("PodResourceClaim {}: {error}", claim.name);
                    self.event(&pod, message);
                    return Err(error.into());
                }
            }
        }
        if !statuses.is_empty() {
            let patch = Patch::Strategic(json!({
                "metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": statuses},
            }));
            let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
            let options = WriteOptions::default();
            let client = &self.context.client;
            let patched = client
                .patch::<Value>(&PODS, namespace, name, "status", &patch, &options)
                .await;
            if let Err(error) = patched
                && !error.is_not_found()
                && !error.is_conflict()
            {
                return Err(error.into());
            }
        }
        if !pod.spec.node_name.is_empty() {
            self.reserve(&pod).await?;
        }
        Ok(Requeue::No)
    }

    /// The name the pod's status lacks, of a claim that is there or is made now.
    async fn claim_for(&self, pod: &Pod, claim: &PodClaim) -> Result<Option<String>, MakeError> {
        let Some(template) = &claim.resource_claim_template_name else {
            return Ok(None);
        };
        let namespace = &pod.metadata.namespace;
        if let Some(name) = name_of(pod, claim) {
            let there = self.claims.get(&join_key(namespace, name));
            if there.is_some_and(|there| {
                owner(&there).is_some_and(|owner| owner.uid == pod.metadata.uid)
            }) {
                return Ok(None);
            }
        }
        let made = self.claims.by_index(BY_OWNER, &pod.metadata.uid);
        let mut made = made.iter().filter(|one| {
            one.metadata.annotations.get(POD_CLAIM_NAME) == Some(&claim.name)
                && !one.metadata.is_deleting()
        });
        if let Some(one) = made.next() {
            return Ok(Some(one.metadata.name.clone()));
        }
        let Some(template) = self.templates.get(&join_key(namespace, template)) else {
            return Err(MakeError::NoTemplate(template.clone()));
        };
        let object = from_template(pod, claim, &template);
        let options = WriteOptions::default();
        let created = self
            .context
            .client
            .create::<_, Value>(&RESOURCECLAIMS, namespace, &object, &options)
            .await;
        match created {
            Ok(created) => {
                let version = meta::resource_version(&created).to_string();
                self.made.lock().insert(pod.metadata.key(), version);
                Ok(Some(meta::name(&created).to_string()))
            }
            Err(error) if error.is_namespace_terminating() => Ok(None),
            Err(error) => Err(MakeError::Create(error)),
        }
    }

    /// A pod that got its node without the scheduler may use the claims that are allocated already.
    async fn reserve(&self, pod: &Pod) -> Result<(), ClientError> {
        for key in names(pod) {
            let Some(claim) = self.claims.get(&key) else {
                continue;
            };
            let consumers = &claim.status.reserved_for;
            if claim.status.allocation.is_none()
                || claim.metadata.is_deleting()
                || consumers.len() >= MAX_CONSUMERS
                || consumers.iter().any(|one| one.uid == pod.metadata.uid)
            {
                continue;
            }
            let consumer =
                json!({"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid});
            modify_status(
                &self.context.client,
                &RESOURCECLAIMS,
                &claim.metadata,
                |claim| {
                    let status = &mut claim["status"];
                    if status["allocation"].is_null() {
                        return;
                    }
                    match status["reservedFor"].as_array_mut() {
                        Some(all) if all.contains(&consumer) || all.len() >= MAX_CONSUMERS => {}
                        Some(all) => all.push(consumer),
                        None => status["reservedFor"] = json!([consumer]),
                    }
                },
            )
            .await?;
        }
        Ok(())
    }

    /// Whether the pod is done. One the cache does not know may only be too new for it, so the server is asked.
    async fn pod_is_done(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<bool, ClientError> {
        if let Some(pod) = self.pods.get(&join_key(namespace, name)) {
            if pod.metadata.uid == uid {
                return Ok(is_done(&pod));
            }
        }
        match self.context.client.get::<Pod>(&PODS, namespace, name).await {
            Ok(pod) => Ok(pod.metadata.uid != uid || is_done(&pod)),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn sync_claim(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(claim) = self.claims.get(key) else {
            return Ok(Requeue::No);
        };
        let namespace = &claim.metadata.namespace;
        let mut gone = BTreeSet::new();
        for one in claim.status.reserved_for.iter().filter(|one| one.is_pod()) {
            if self.pod_is_done(namespace, &one.name, &one.uid).await? {
                gone.insert(one.uid.clone());
            }
        }
        let owner_is_done = match owner(&claim) {
            Some(owner) => self.pod_is_done(namespace, &owner.name, &owner.uid).await?,
            None => false,
        };
        for step in plan(&claim, &gone, owner_is_done) {
            self.take(&claim, &step).await?;
        }
        Ok(Requeue::No)
    }

    async fn take(&self, claim: &ResourceClaim, step: &Step) -> Result<(), ClientError> {
        let (client, meta) = (&self.context.client, &claim.metadata);
        match step {
            // As of the version it was decided on: the scheduler may be reserving it for another pod.
            Step::Keep {
                consumers,
                deallocate,
            } => {
                let mut status = json!({"reservedFor": consumers});
                if consumers.is_empty() {
                    status["reservedFor"] = Value::Null;
                }
                if *deallocate {
                    status["allocation"] = Value::Null;
                    status["devices"] = Value::Null;
                }
                let patch = Patch::Merge(json!({
                    "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status,
                }));
                let options = WriteOptions::default();
                let resource = &RESOURCECLAIMS;
                client
                    .patch::<Value>(
                        resource,
                        &meta.namespace,
                        &meta.name,
                        "status",
                        &patch,
                        &options,
                    )
                    .await
                    .map(drop)
            }
            Step::RemoveFinalizer => {
                let removed = modify(client, &RESOURCECLAIMS, meta, |claim| {
                    let is_in_use = claim["status"]["allocation"].is_object()
                        || claim["status"]["reservedFor"]
                            .as_array()
                            .is_some_and(|all| !all.is_empty());
                    if !is_in_use {
                        let left: Vec<String> = meta::finalizers(claim)
                            .filter(|one| *one != FINALIZER)
                            .map(ToString::to_string)
                            .collect();
                        claim["metadata"]["finalizers"] = json!(left);
                    }
                });
                removed.await.map(drop)
            }
            Step::Delete => {
                let options = DeleteOptions::uid(&meta.uid);
                match client
                    .delete(&RESOURCECLAIMS, &meta.namespace, &meta.name, &options)
                    .await
                {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    fn event(&self, pod: &Pod, message: String) {
        let meta = &pod.metadata;
        let object = ObjectReference::pod(
            &meta.namespace,
            &meta.name,
            &meta.uid,
            &meta.resource_version,
        );
        let reason = "FailedResourceClaimCreation";
        self.recorder
            .event(&object, EventKind::Warning, reason, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{seconds, start};
    use client::fake::Server;

    fn claim(status: Value, finalizers: Value) -> ResourceClaim {
        serde_json::from_value(
            json!({"metadata": {"name": "c", "finalizers": finalizers}, "status": status}),
        )
        .unwrap()
    }

    #[test]
    fn a_claim_is_freed_when_its_last_pod_is_done() {
        let pod = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
        let other = json!({"apiGroup": "x", "resource": "jobs", "name": "a", "uid": "a"});
        let gone = BTreeSet::from(["a".to_string()]);
        let allocated = |consumers: Value| json!({"allocation": {}, "reservedFor": consumers});
        let consumer = |value: &Value| serde_json::from_value::<Consumer>(value.clone()).unwrap();
        for (status, protected, owner_is_done, expected) in [
            (allocated(json!([pod("b")])), true, false, vec![]),
            (
                allocated(json!([pod("a"), pod("b")])),
                true,
                true,
                vec![Step::Keep {
                    consumers: vec![consumer(&pod("b"))],
                    deallocate: false,
                }],
            ),
            (
                allocated(json!([pod("a"), other])),
                true,
                false,
                vec![Step::Keep {
                    consumers: vec![consumer(&other)],
                    deallocate: false,
                }],
            ),
            (
                allocated(json!([pod("a")])),
                true,
                true,
                vec![
                    Step::Keep {
                        consumers: vec![],
                        deallocate: true,
                    },
                    Step::RemoveFinalizer,
                    Step::Delete,
                ],
            ),
            // Somebody else's allocation is not taken away.
            (
                allocated(json!([pod("a")])),
                false,
                false,
                vec![Step::Keep {
                    consumers: vec![],
                    deallocate: false,
                }],
            ),
            (json!({}), true, false, vec![Step::RemoveFinalizer]),
            (json!({}), false, true, vec![Step::Delete]),
        ] {
            let finalizers = if protected {
                json!([FINALIZER])
            } else {
                json!([])
            };
            assert_eq!(
                plan(&claim(status.clone(), finalizers), &gone, owner_is_done),
                expected,
                "{status}"
            );
        }
    }

    fn put_pod(server: &Server, status: Value) {
        server.put(&PODS, json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"resourceClaims": [
            {"name": "gpu", "resourceClaimTemplateName": "t"}]}, "status": status}));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_gets_its_claim_once_and_takes_it_with_it() {
        let server = Server::default();
        server.set_lag(&RESOURCECLAIMS, std::time::Duration::from_millis(300));
        let _guard = start(&server, &["resourceclaim-controller"]);
        put_pod(&server, json!({}));
        seconds(2).await;
        let said = "PodResourceClaim gpu: resource claim template \"t\": resourceclaimtemplate.resource.k8s.io \"t\" not found";
        let events = server.list(&api::r::EVENTS);
        assert!(
            events.iter().any(|event| event["message"] == said
                && event["reason"] == "FailedResourceClaimCreation"),
            "{events:?}"
        );
        server.put(
            &RESOURCECLAIMTEMPLATES,
            json!({"metadata": {"name": "t", "namespace": "n"},
            "spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {"requests": []}}}}),
        );
        seconds(5).await;
        let claims = server.list(&RESOURCECLAIMS);
        assert_eq!(claims.len(), 1);
        assert_eq!(
            claims[0]["metadata"]["annotations"],
            json!({POD_CLAIM_NAME: "gpu"})
        );
        assert_eq!(claims[0]["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(claims[0]["spec"], json!({"devices": {"requests": []}}));
        let name = claims[0]["metadata"]["name"].as_str().unwrap().to_string();
        let pod = server.get(&PODS, "n/p").unwrap();
        assert_eq!(
            pod["status"]["resourceClaimStatuses"],
            json!([{"name": "gpu", "resourceClaimName": name}])
        );

        let mut claim = claims[0].clone();
        claim["metadata"]["finalizers"] = json!([FINALIZER]);
        claim["status"] = json!({"allocation": {"devices": {}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]});
        server.put(&RESOURCECLAIMS, claim);
        seconds(5).await;
        assert_eq!(
            server.list(&RESOURCECLAIMS)[0]["status"]["reservedFor"][0]["uid"],
            "u"
        );
        put_pod(
            &server,
            json!({"phase": "Succeeded", "resourceClaimStatuses": pod["status"]["resourceClaimStatuses"]}),
        );
        seconds(10).await;
        assert!(server.list(&RESOURCECLAIMS).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_came_with_its_node_may_use_what_is_allocated() {
        let server = Server::default();
        let _guard = start(&server, &["resourceclaim-controller"]);
        server.put(&RESOURCECLAIMS, json!({"metadata": {"name": "c", "namespace": "n", "uid": "c"}, "status": {"allocation": {}}}));
        server.put(&PODS, json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"nodeName": "w",
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}}));
        seconds(5).await;
        let claim = server.get(&RESOURCECLAIMS, "n/c").unwrap();
        assert_eq!(
            claim["status"]["reservedFor"],
            json!([{"resource": "pods", "name": "p", "uid": "u"}])
        );
        server.remove(&PODS, "n/p");
        seconds(5).await;
        let claim = server.get(&RESOURCECLAIMS, "n/c").unwrap();
        assert_eq!(claim["status"]["reservedFor"], Value::Null);
        assert!(
            claim["status"]["allocation"].is_object(),
            "it was not allocated for pods"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_made_for_extended_resources_goes_when_its_pod_is_done() {
        let server = Server::default();
        let _guard = start(&server, &["resourceclaim-controller"]);
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        server.put(&RESOURCECLAIMS, json!({
            "metadata": {"name": "x", "namespace": "n", "uid": "c", "finalizers": [FINALIZER], "ownerReferences": [owner]},
            "status": {"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]},
        }));
        let pod = |phase: &str| {
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"nodeName": "w"},
            "status": {"phase": phase, "extendedResourceClaimStatus": {"resourceClaimName": "x"}}})
        };
        server.put(&PODS, pod("Running"));
        seconds(5).await;
        let claim = server.get(&RESOURCECLAIMS, "n/x").unwrap();
        assert!(claim["status"]["allocation"].is_object());
        server.put(&PODS, pod("Succeeded"));
        seconds(10).await;
        assert!(server.list(&RESOURCECLAIMS).is_empty());
    }
}
