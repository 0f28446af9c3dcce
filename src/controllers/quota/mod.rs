//! resourcequota-controller: counts what a namespace uses of its quotas.
//!
//! Admission adds what a new object uses when it lets it in; this controller counts anew when something went, or the
//! quota changed, and from time to time. Counting waits a little after a change, so that the caches have what
//! admission counted already.
//!
//! **Invariant:** whatever changes `used`, it is counted once more after `SETTLE`. An object that admission let in may
//! never be written (its name is taken, who asked is gone), and one that is counted may be written a moment later.

mod usage;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::{
    Resource,
    r::{PERSISTENTVOLUMECLAIMS, PODS, RESOURCEQUOTAS, SERVICES},
    view::ObjectMeta,
};
use apimachinery::{
    Value,
    quantity::{Format, Quantity},
    time::now,
};
use async_trait::async_trait;
use client::{
    ClientError, Factory, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    discovery, dynamic,
    endpoints::BY_NAMESPACE,
    objects::{Metadata, Pod},
    pod_resources::{Amounts, add},
    storage::view::Claim,
    writes::modify_status,
};

/// Quotas counted at a time (`--concurrent-resource-quota-syncs`).
const WORKERS: usize = 5;
/// How often all is counted anew (`--resource-quota-sync-period`).
const RESYNC: Duration = Duration::from_secs(5 * 60);
/// How long after a change it is counted.
const GATHER: Duration = Duration::from_millis(500);
/// How long after its use changed a quota is counted once more; a busy one so often at most.
const SETTLE: Duration = Duration::from_secs(5);
/// How long the objects of a resource may take to be listed; a quota that counts them is tried again later.
const PATIENCE: Duration = Duration::from_secs(10);
/// Resources that are counted by their bare name too.
const BARE: [&str; 4] = [
    "configmaps",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
];

pub struct ResourceQuotas;

/// core/v1 ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct QuotaObject {
    metadata: ObjectMeta,
    spec: QuotaSpec,
    status: QuotaStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct QuotaSpec {
    hard: BTreeMap<String, String>,
    scopes: Vec<String>,
    scope_selector: ScopeSelector,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScopeSelector {
    match_expressions: Vec<Scope>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Scope {
    #[serde(rename = "scopeName")]
    name: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct QuotaStatus {
    hard: BTreeMap<String, String>,
    used: BTreeMap<String, String>,
}

impl Scope {
    /// Whether a value is as the scope wants it.
    fn takes(&self, value: &str) -> bool {
        let among = self.values.iter().any(|one| one == value);
        match self.operator.as_str() {
            "In" => among,
            "NotIn" => !among,
            "DoesNotExist" => value.is_empty(),
            _ => !value.is_empty(),
        }
    }
}

impl QuotaObject {
    fn scopes(&self) -> Vec<Scope> {
        let named = self.spec.scopes.iter().map(|name| Scope {
            name: name.clone(),
            operator: "Exists".into(),
            values: Vec::new(),
        });
        let selected = self.spec.scope_selector.match_expressions.iter().cloned();
        named.chain(selected).collect()
    }
}

/// core/v1 Service; what is counted of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ServiceObject {
    metadata: ObjectMeta,
    spec: Value,
}

struct Observed {
    quotas: Informer<QuotaObject>,
    pods: Informer<Pod>,
    claims: Informer<Claim>,
    services: Informer<ServiceObject>,
    /// Informers of resources that are only counted.
    counted: Factory,
    /// Those of them that have their handler.
    known: Mutex<HashSet<(&'static str, &'static str)>>,
    context: Context,
    queue: Queue<String>,
}

#[async_trait]
impl Controller for ResourceQuotas {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["resourcequota"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let all = Selectors::default;
        let counted = Factory::new(context.client.metadata_only(), context.shutdown.clone());
        let observed = Arc::new(Observed {
            quotas: informers.informer(&RESOURCEQUOTAS, "", all()),
            pods: informers.informer(&PODS, "", all()),
            claims: informers.informer(&PERSISTENTVOLUMECLAIMS, "", all()),
            services: informers.informer(&SERVICES, "", all()),
            counted,
            known: Mutex::default(),
            queue: Queue::default(),
            context: context.clone(),
        });
        let Observed {
            quotas,
            pods,
            claims,
            services,
            ..
        } = &*observed;
        quotas.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        pods.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        claims.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        services.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        if !synced!(context, quotas, pods, claims, services) {
            return;
        }
        observed.feed();
        let work = workqueue::run(
            "resourcequota",
            &observed.queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let observed = &observed;
                async move { observed.reconcile(&key).await }
            },
        );
        tokio::select! {
            () = work => {}
            ended = observed.counted.join() => if let Err(error) = ended {
                tracing::error!(%error, "the quota controller lost an informer");
            },
        }
    }
}

impl Observed {
    fn feed(self: &Arc<Self>) {
        let to = self.clone();
        self.quotas.add_handler(move |change| {
            let Some(new) = &change.new else { return };
            let key = change.key.to_string();
            match &change.old {
                Some(old) if old.spec == new.spec && new.status.hard == new.spec.hard => {
                    if old.status.used != new.status.used {
                        to.queue.add_after(key, SETTLE);
                    }
                }
                _ => to.queue.add(key),
            }
        });
        let to = self.clone();
        self.pods.add_handler(move |change| {
            let ended = match (&change.old, &change.new) {
                (Some(old), Some(new)) => {
                    (new.is_terminal() && !old.is_terminal()) || resources(old) != resources(new)
                }
                (Some(_), None) => true,
                _ => false,
            };
            if ended {
                to.recount(&change.object().metadata.namespace);
            }
        });
        let to = self.clone();
        self.claims.add_handler(move |change| {
            let differs = |new: &Arc<Claim>| {
                change
                    .old
                    .as_ref()
                    .is_some_and(|old| old.spec.resources != new.spec.resources)
            };
            if change.new.as_ref().is_none_or(differs) {
                to.recount(&change.object().metadata.namespace);
            }
        });
        let to = self.clone();
        self.services.add_handler(move |change| {
            let differs = |new: &Arc<ServiceObject>| {
                change.old.as_ref().is_some_and(|old| {
                    old.spec["type"] != new.spec["type"] || old.spec["ports"] != new.spec["ports"]
                })
            };
            if change.new.as_ref().is_none_or(differs) {
                to.recount(&change.object().metadata.namespace);
            }
        });
    }

    /// Counts the quotas of a namespace soon.
    fn recount(&self, namespace: &str) {
        for quota in self.quotas.by_index(BY_NAMESPACE, namespace) {
            self.queue.add_after(quota.metadata.key(), GATHER);
        }
    }

    async fn reconcile(self: &Arc<Self>, key: &str) -> Result<Requeue, ClientError> {
        let Some(quota) = self
            .quotas
            .get(key)
            .filter(|quota| !quota.metadata.is_deleting())
        else {
            return Ok(Requeue::No);
        };
        let used = self.count(&quota).await?;
        let status = plan(&quota.spec.hard, &used);
        let same = status.hard == quota.status.hard && equal(&status.used, &quota.status.used);
        if !same {
            let (client, meta) = (&self.context.client, &quota.metadata);
            let version = meta.resource_version.clone();
            let written = modify_status(client, &RESOURCEQUOTAS, meta, |object| {
                // What admission counted since is not overwritten.
                if apimachinery::meta::resource_version(object) == version {
                    object["status"] = json!(status);
                }
            });
            if written.await?.is_none() {
                return Ok(Requeue::After(GATHER));
            }
        }
        Ok(Requeue::After(RESYNC))
    }

    /// Everything in the quota's namespace that its scopes take in.
    async fn count(self: &Arc<Self>, quota: &QuotaObject) -> Result<Amounts, ClientError> {
        let namespace = &quota.metadata.namespace;
        let scopes = quota.scopes();
        let mut used = Amounts::new();
        let time = now();
        for pod in self.pods.by_index(BY_NAMESPACE, namespace) {
            if usage::takes_pod(&scopes, &pod) {
                add(&mut used, &usage::of_pod(&pod, time));
            }
        }
        for claim in self.claims.by_index(BY_NAMESPACE, namespace) {
            if usage::takes_claim(&scopes, &claim) {
                add(&mut used, &usage::of_claim(&claim));
            }
        }
        // Scopes are of pods and claims alone.
        if !scopes.is_empty() {
            return Ok(used);
        }
        for service in self.services.by_index(BY_NAMESPACE, namespace) {
            add(&mut used, &usage::of_service(&service.spec));
        }
        for name in quota.spec.hard.keys() {
            if let Some(count) = self.objects(name, namespace).await? {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                used.insert(name.clone(), Quantity::from_units(count, Format::DecimalSi));
            }
        }
        Ok(used)
    }

    /// The number of objects a quota's resource stands for, if it is one that only counts.
    async fn objects(
        self: &Arc<Self>,
        name: &str,
        namespace: &str,
    ) -> Result<Option<usize>, ClientError> {
        let text = match name.strip_prefix("count/") {
            Some(text) => text,
            None if BARE.contains(&name) => name,
            None => return Ok(None),
        };
        if matches!(text, "pods" | "services" | "persistentvolumeclaims") {
            return Ok(None);
        }
        let (plural, group) = text.split_once('.').unwrap_or((text, ""));
        let Some(resource) = self.find(group, plural).await? else {
            return Ok(Some(0));
        };
        let informer: Informer<Metadata> =
            self.counted.informer(resource, "", Selectors::default());
        informer.add_index(BY_NAMESPACE, |one| vec![one.metadata.namespace.clone()]);
        let synced = tokio::time::timeout(PATIENCE, informer.wait_synced()).await;
        synced.map_err(|_| ClientError::Timeout(PATIENCE))?;
        self.follow(resource, &informer);
        Ok(Some(informer.count_by_index(BY_NAMESPACE, namespace)))
    }

    /// Counts anew when an object of a counted resource goes.
    fn follow(self: &Arc<Self>, resource: &'static Resource, informer: &Informer<Metadata>) {
        // Held until the handler is there: who finds the resource known counts on being told of what goes after.
        let mut known = self.known.lock();
        if known.insert((resource.group, resource.plural)) {
            let to = self.clone();
            informer.add_handler(move |change| {
                if change.is_deleted() {
                    to.recount(&change.object().metadata.namespace);
                }
            });
        }
    }

    async fn find(
        &self,
        group: &str,
        plural: &str,
    ) -> Result<Option<&'static Resource>, ClientError> {
        let known = api::RESOURCES.iter().find(|one| {
            one.group == group && one.plural == plural && one.default_on && one.namespaced
        });
        if let Some(known) = known {
            return Ok(Some(known));
        }
        let (served, _) = discovery::preferred(&self.context.client).await?;
        let found = served.iter().find(|one| {
            one.group == group && one.resource == plural && one.is_namespaced && one.has("watch")
        });
        Ok(found.and_then(dynamic::resource))
    }
}

/// What of a pod may change and is counted.
fn resources(pod: &Pod) -> Vec<&crate::objects::Resources> {
    pod.spec
        .containers
        .iter()
        .map(|container| &container.resources)
        .collect()
}

/// The status: as much of each resource as is used.
fn plan(hard: &BTreeMap<String, String>, used: &Amounts) -> QuotaStatus {
    let text = |name: &String| {
        let amount = used.get(name).copied().unwrap_or(Quantity::ZERO);
        (name.clone(), amount.to_string())
    };
    QuotaStatus {
        hard: hard.clone(),
        used: hard.keys().map(text).collect(),
    }
}

/// Whether two lists are of the same amounts, however they are written.
fn equal(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> bool {
    let value = |text: &String| text.parse::<Quantity>().ok();
    a.len() == b.len()
        && a.iter()
            .all(|(name, text)| b.get(name).is_some_and(|other| value(other) == value(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;
    use tokio_util::sync::CancellationToken;

    fn start(server: &Server) -> tokio_util::sync::DropGuard {
        let config = crate::ControllersConfig {
            controllers: vec!["resourcequota-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        tokio::spawn(crate::run(server.client(), config, shutdown.clone()));
        shutdown.drop_guard()
    }

    #[tokio::test(start_paused = true)]
    async fn what_admission_counted_and_nobody_wrote_is_given_back() {
        let server = Server::default();
        let _guard = start(&server);
        let map = json!({"metadata": {"name": "m", "namespace": "n"}});
        server.put(&api::r::CONFIGMAPS, map);
        let quota = |used: &str| json!({"hard": {"count/configmaps": "9"}, "used": {"count/configmaps": used}});
        let mut object = json!({"metadata": {"name": "q", "namespace": "n"}});
        object["spec"] = json!({"hard": {"count/configmaps": "9"}});
        server.put(&RESOURCEQUOTAS, object.clone());
        tokio::time::sleep(Duration::from_secs(20)).await;
        let status = || server.get(&RESOURCEQUOTAS, "n/q").unwrap()["status"].clone();
        assert_eq!(status(), quota("1"));
        // Let in by admission, and then its name was taken.
        object["status"] = quota("2");
        server.put(&RESOURCEQUOTAS, object);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(status(), quota("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_counts_what_its_namespace_uses_and_what_goes_is_given_back() {
        let server = Server::default();
        let _guard = start(&server);
        for name in ["a", "b"] {
            server.put(
                &PODS,
                json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"containers": [
                {"resources": {"requests": {"cpu": "500m"}}}]}}),
            );
            server.put(
                &api::r::SECRETS,
                json!({"metadata": {"name": name, "namespace": "n"}}),
            );
        }
        server.put(
            &PODS,
            json!({"metadata": {"name": "c", "namespace": "other"}}),
        );
        server.put(&RESOURCEQUOTAS, json!({"metadata": {"name": "q", "namespace": "n"},
            "spec": {"hard": {"pods": "5", "requests.cpu": "2", "count/secrets": "9", "services": "3"}}}));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let status = server.get(&RESOURCEQUOTAS, "n/q").unwrap()["status"].clone();
        assert_eq!(
            status["used"],
            json!({"pods": "2", "requests.cpu": "1", "count/secrets": "2", "services": "0"})
        );
        assert_eq!(status["hard"]["pods"], "5");
        server.remove(&PODS, "n/a");
        server.remove(&api::r::SECRETS, "n/b");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let status = server.get(&RESOURCEQUOTAS, "n/q").unwrap()["status"].clone();
        assert_eq!(
            (&status["used"]["pods"], &status["used"]["count/secrets"]),
            (&json!("1"), &json!("1"))
        );
    }
}
