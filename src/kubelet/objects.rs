//! The ConfigMaps and Secrets that pods of this node refer to, each kept
//! current by a watch of just that object, from the first pod that needs it to
//! the last. **Invariant:** an object no pod of the node refers to is not read.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::Resource;
use client::Client;
use client::informer::{Factory, Informer, Selectors};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::create::environment;
use crate::k8s::{ConfigMap, Pod, Secret};
use crate::pod::spec;

/// How long a container's start waits for an object's first state.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// An object could not be read in time; whether it exists is not known.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to sync {kind} cache: timed out waiting for the condition")]
pub struct NotSynced {
    kind: &'static str,
}

/// Called with the uid of each pod that refers to a changed object.
type Wake = Arc<dyn Fn(&str) + Send + Sync>;

/// The watches of one kind.
struct Watches<T> {
    kind: &'static str,
    resource: &'static Resource,
    entries: Mutex<HashMap<String, Entry<T>>>,
}

struct Entry<T> {
    informer: Informer<T>,
    /// Uids of pods; shared with the watch's handler.
    users: Arc<Mutex<BTreeSet<String>>>,
    /// Dropping it ends the watch.
    _factory: Factory,
}

/// ConfigMaps and Secrets; clones share them.
#[derive(Clone)]
pub struct Objects(Arc<Shared>);

struct Shared {
    client: Client,
    shutdown: CancellationToken,
    wake: Wake,
    config_maps: Watches<ConfigMap>,
    secrets: Watches<Secret>,
}

impl Objects {
    /// `wake` is called from the watches and must not block.
    pub fn new(
        client: Client,
        shutdown: CancellationToken,
        wake: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            client,
            shutdown,
            wake: Arc::new(wake),
            config_maps: Watches::new("configmap", &api::r::CONFIGMAPS),
            secrets: Watches::new("secret", &api::r::SECRETS),
        }))
    }

    /// For objects that are read once and not followed.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Watches what `pod` refers to from now on, and no longer what it does not.
    pub fn follow(&self, pod: &Pod) {
        let (config_maps, secrets) = references(pod);
        self.0.config_maps.follow(&self.0, pod, config_maps);
        self.0.secrets.follow(&self.0, pod, secrets);
    }

    /// Forgets a pod.
    pub fn release(&self, pod_uid: &str) {
        self.0.config_maps.release(pod_uid, &BTreeSet::new());
        self.0.secrets.release(pod_uid, &BTreeSet::new());
    }

    /// A ConfigMap that a followed pod refers to; `None` if it does not exist.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, NotSynced> {
        self.0.config_maps.get(namespace, name).await
    }

    /// A Secret that a followed pod refers to; `None` if it does not exist.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, NotSynced> {
        self.0.secrets.get(namespace, name).await
    }
}

impl<T: DeserializeOwned + Any + Send + Sync> Watches<T> {
    fn new(kind: &'static str, resource: &'static Resource) -> Self {
        Self {
            kind,
            resource,
            entries: Mutex::default(),
        }
    }

    fn follow(&self, shared: &Shared, pod: &Pod, names: BTreeSet<String>) {
        let namespace = spec::namespace(pod);
        let keys: BTreeSet<_> = names
            .iter()
            .map(|name| format!("{namespace}/{name}"))
            .collect();
        let mut entries = self.entries.lock();
        for name in names {
            let key = format!("{namespace}/{name}");
            let entry = entries.entry(key).or_insert_with(|| {
                let factory = Factory::new(shared.client.clone(), shared.shutdown.clone());
                let selector = Selectors::fields(format!("metadata.name={name}"));
                let informer = factory.informer::<T>(self.resource, namespace, selector);
                let users = Arc::<Mutex<BTreeSet<String>>>::default();
                let (wake, woken) = (shared.wake.clone(), users.clone());
                informer.add_handler(move |_| woken.lock().iter().for_each(|user| wake(user)));
                Entry {
                    informer,
                    users,
                    _factory: factory,
                }
            });
            entry.users.lock().insert(spec::uid(pod).to_owned());
        }
        drop(entries);
        self.release(spec::uid(pod), &keys);
    }

    fn release(&self, pod_uid: &str, except: &BTreeSet<String>) {
        self.entries.lock().retain(|key, entry| {
            let mut users = entry.users.lock();
            if !except.contains(key) {
                users.remove(pod_uid);
            }
            !users.is_empty()
        });
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<T>>, NotSynced> {
        let key = format!("{namespace}/{name}");
        let informer = self
            .entries
            .lock()
            .get(&key)
            .map(|entry| entry.informer.clone());
        let not_synced = NotSynced { kind: self.kind };
        let informer = informer.ok_or_else(|| not_synced.clone())?;
        let synced = tokio::time::timeout(SYNC_TIMEOUT, informer.wait_synced()).await;
        synced.map_err(|_| not_synced)?;
        Ok(informer.get(&key))
    }
}

/// Names of the ConfigMaps and Secrets a pod refers to anywhere.
fn references(pod: &Pod) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut config_maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for slot in spec::slots(pod) {
        let (own_config_maps, own_secrets) = environment::references(&slot.container);
        config_maps.extend(own_config_maps);
        secrets.extend(own_secrets);
    }
    let spec = spec::spec(pod);
    secrets.extend(
        spec.image_pull_secrets
            .iter()
            .flatten()
            .map(|secret| secret.name.clone()),
    );
    for volume in spec.volumes.iter().flatten() {
        config_maps.extend(volume.config_map.iter().map(|source| source.name.clone()));
        secrets.extend(
            volume
                .secret
                .iter()
                .filter_map(|source| source.secret_name.clone()),
        );
        let projections = volume
            .projected
            .iter()
            .flat_map(|source| source.sources.iter().flatten());
        for projection in projections {
            config_maps.extend(
                projection
                    .config_map
                    .iter()
                    .map(|source| source.name.clone()),
            );
            secrets.extend(projection.secret.iter().map(|source| source.name.clone()));
        }
    }
    config_maps.remove("");
    secrets.remove("");
    (config_maps, secrets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    #[test]
    fn every_place_that_names_an_object_is_found() {
        let pod = mk_pod(json!({
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "from"}}]}],
            "containers": [{"name": "c", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}]}],
            "volumes": [
                {"name": "a", "configMap": {"name": "cm"}},
                {"name": "b", "secret": {"secretName": "se"}},
                {"name": "d", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "ps"}}]}},
            ],
        }));
        let (config_maps, secrets) = references(&pod);
        assert_eq!(
            config_maps,
            ["cm", "from", "kube-root-ca.crt"].map(str::to_owned).into()
        );
        assert_eq!(
            secrets,
            ["key", "ps", "pull", "se"].map(str::to_owned).into()
        );
    }
}
