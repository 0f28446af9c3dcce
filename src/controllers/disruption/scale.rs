//! How many pods there should be: the replicas of the controllers that own them, the known kinds from the caches, all
//! others by their scale subresource.

use std::{collections::HashMap, sync::Arc};

use api::{
    r::{DEPLOYMENTS, REPLICASETS, REPLICATIONCONTROLLERS, STATEFULSETS},
    view::OwnerReference,
};
use apimachinery::{Value, meta::join_key};
use client::{Client, ClientError, Informer, Selectors};
use parking_lot::Mutex;

use crate::{
    Context, discovery,
    objects::Pod,
    workloads::{deployment::Deployment, replica_set::ReplicaSet, stateful_set::StatefulSet},
};

/// Kinds whose resource is remembered.
const MAX_KINDS: usize = 1000;

/// What the pods' controllers want.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub expected: i64,
    /// Pods without a controller.
    pub unmanaged: usize,
}

pub struct Scales {
    sets: Informer<ReplicaSet>,
    controllers: Informer<ReplicaSet>,
    deployments: Informer<Deployment>,
    stateful: Informer<StatefulSet>,
    /// The paths of other kinds' resources, by apiVersion and kind.
    others: Mutex<HashMap<(String, String), discovery::Served>>,
}

impl Scales {
    pub fn new(context: &Context) -> Self {
        let informers = &context.informers;
        let all = Selectors::default;
        Scales {
            sets: informers.informer(&REPLICASETS, "", all()),
            controllers: informers.informer(&REPLICATIONCONTROLLERS, "", all()),
            deployments: informers.informer(&DEPLOYMENTS, "", all()),
            stateful: informers.informer(&STATEFULSETS, "", all()),
            others: Mutex::default(),
        }
    }

    pub async fn wait_synced(&self) {
        self.sets.wait_synced().await;
        self.controllers.wait_synced().await;
        self.deployments.wait_synced().await;
        self.stateful.wait_synced().await;
    }

    /// The sum over the controllers of these pods, each once.
    pub async fn expected(
        &self,
        client: &Client,
        pods: &[Arc<Pod>],
    ) -> Result<Expected, ClientError> {
        let mut found = Expected::default();
        let mut scales: HashMap<String, i64> = HashMap::new();
        let mut seen: HashMap<&str, ()> = HashMap::new();
        for pod in pods {
            let Some(owner) = pod.metadata.controller() else {
                found.unmanaged += 1;
                continue;
            };
            if seen.insert(&owner.uid, ()).is_some() {
                continue;
            }
            let namespace = &pod.metadata.namespace;
            match self.known(namespace, owner) {
                Some(Some((uid, replicas))) => {
                    scales.insert(uid, replicas);
                }
                Some(None) => {}
                None => {
                    if let Some(replicas) = self.asked(client, namespace, owner).await? {
                        scales.insert(owner.uid.clone(), replicas);
                    }
                }
            }
        }
        found.expected = scales.values().sum();
        Ok(found)
    }

    /// The uid and replicas of a controller of a known kind (of the Deployment, for a ReplicaSet that has one); nothing
    /// within if it is gone, nothing at all if the kind is another.
    fn known(&self, namespace: &str, owner: &OwnerReference) -> Option<Option<(String, i64)>> {
        let key = join_key(namespace, &owner.name);
        let (group, _) = apimachinery::meta::group_version(&owner.api_version);
        let same = |uid: &str| uid == owner.uid;
        Some(match (group, owner.kind.as_str()) {
            ("", "ReplicationController") => {
                let found = self
                    .controllers
                    .get(&key)
                    .filter(|one| same(&one.metadata.uid));
                found.map(|one| (one.metadata.uid.clone(), one.replicas()))
            }
            ("apps", "StatefulSet") => {
                let found = self
                    .stateful
                    .get(&key)
                    .filter(|one| same(&one.metadata.uid));
                found.map(|one| (one.metadata.uid.clone(), one.replicas()))
            }
            ("apps", "ReplicaSet") => {
                let set = self.sets.get(&key).filter(|one| same(&one.metadata.uid));
                set.map(|set| self.set(namespace, &set))
            }
            _ => return None,
        })
    }

    fn set(&self, namespace: &str, set: &ReplicaSet) -> (String, i64) {
        let owner = set
            .metadata
            .controller()
            .filter(|owner| owner.kind == "Deployment");
        let deployment = owner.and_then(|owner| {
            let found = self.deployments.get(&join_key(namespace, &owner.name));
            found.filter(|one| one.metadata.uid == owner.uid)
        });
        match deployment {
            Some(one) => (one.metadata.uid.clone(), one.replicas()),
            None => (set.metadata.uid.clone(), set.replicas()),
        }
    }

    /// The replicas by the scale subresource; none if the controller is gone.
    async fn asked(
        &self,
        client: &Client,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<i64>, ClientError> {
        let kind = (owner.api_version.clone(), owner.kind.clone());
        let known = self.others.lock().get(&kind).cloned();
        let served = match known {
            Some(served) => served,
            None => {
                let (group, version) = apimachinery::meta::group_version(&owner.api_version);
                let (all, _) = discovery::preferred(client).await?;
                let found = all
                    .into_iter()
                    .find(|one| one.group == group && one.kind == owner.kind);
                let Some(mut served) = found else {
                    let why = format!("{} {} is not served", owner.api_version, owner.kind);
                    return Err(ClientError::Request(why));
                };
                served.version = version.into();
                let mut others = self.others.lock();
                if others.len() >= MAX_KINDS {
                    others.clear();
                }
                others.insert(kind, served.clone());
                served
            }
        };
        let path = format!("{}/{}/scale", served.path(namespace), owner.name);
        match client.get_path::<Value>(&path).await {
            Ok(scale) => Ok(Some(scale["spec"]["replicas"].as_i64().unwrap_or(0))),
            Err(error) if error.is_not_found() => {
                // The controller is gone, or its kind has no scale.
                let object = format!("{}/{}", served.path(namespace), owner.name);
                match client.get_path::<Value>(&object).await {
                    Err(gone) if gone.is_not_found() => Ok(None),
                    _ => {
                        let why =
                            format!("{} does not implement the scale subresource", owner.kind);
                        Err(ClientError::Request(why))
                    }
                }
            }
            Err(error) => Err(error),
        }
    }
}
