//! endpoints-controller: the Endpoints object of a Service, the older form of its EndpointSlices.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use api::{
    r::{ENDPOINTS, PODS, SERVICES},
    view::ObjectMeta,
};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    service::{
        BY_NAMESPACE, Service, address_of, gathering, may_be_endpoint, selected_pods, services_of,
    },
    slices::{HEADLESS, TargetReference},
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::Pod,
};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Addresses an Endpoints object holds (maxCapacity); the rest is left out and the object says so.
const CAPACITY: usize = 1000;
const WORKERS: usize = 5;

pub struct EndpointsController;

/// core/v1 Endpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoints {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<Subset>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subset {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<Address>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Address {
    pub ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub port: i32,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

struct Observed {
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Endpoints>,
    written: Mutex<HashMap<String, String>>,
    /// Services seen to go, whose Endpoints go with them whoever wrote these. Keys leave it when that is done.
    gone: Mutex<HashSet<String>>,
}

#[derive(Debug, PartialEq)]
enum Action {
    Create(Endpoints),
    Update(Endpoints),
}

#[async_trait]
impl Controller for EndpointsController {
    fn name(&self) -> &'static str {
        "endpoints-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["endpoint"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let observed = Arc::new(Observed {
            services: informers.informer(&SERVICES, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            endpoints: informers.informer(&ENDPOINTS, "", Selectors::default()),
            written: Mutex::default(),
            gone: Mutex::default(),
        });
        observed.services.add_index(BY_NAMESPACE, |service| {
            vec![service.metadata.namespace.clone()]
        });
        observed
            .pods
            .add_index(BY_NAMESPACE, |pod| vec![pod.metadata.namespace.clone()]);
        let Observed {
            services,
            pods,
            endpoints,
            ..
        } = &*observed;
        if !synced!(context, services, pods, endpoints) {
            return;
        }
        let queue = Queue::default();
        let (keys, to) = (queue.clone(), observed.clone());
        services.add_handler(move |change| {
            if change.is_deleted() {
                to.gone.lock().insert(change.key.to_string());
            }
            keys.add(change.key.to_string());
        });
        let (keys, to) = (queue.clone(), observed.clone());
        pods.add_handler(move |change| {
            services_of(&to.services, change, |key| {
                keys.add_after(key, gathering(&to.pods, change));
            });
        });
        let keys = queue.clone();
        endpoints.add_handler(move |change| keys.add(change.key.to_string()));
        workqueue::run("endpoints", &queue, WORKERS, &context.shutdown, |key| {
            let (context, observed) = (&context, &observed);
            async move { observed.reconcile(context, &key).await }
        })
        .await;
    }
}

impl Observed {
    async fn reconcile(&self, context: &Context, key: &str) -> Result<Requeue, ClientError> {
        let seen = self
            .written
            .lock()
            .get(key)
            .is_none_or(|version| self.endpoints.has_seen(version));
        if !seen {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let present = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            self.written.lock().remove(key);
            let is_gone = self.gone.lock().contains(key);
            // Those of a service that went while nobody looked are told by their label; others may wait for theirs.
            let left =
                present.filter(|one| is_gone || one.metadata.labels.contains_key(MANAGED_BY));
            if let Some(endpoints) = left {
                delete(context, &endpoints.metadata).await?;
            }
            self.gone.lock().remove(key);
            return Ok(Requeue::No);
        };
        self.gone.lock().remove(key);
        if !service.selects_pods() {
            return Ok(Requeue::No);
        }
        let pods = selected_pods(&service, &self.pods);
        let Some(action) = plan(&service, &pods, present.as_deref()) else {
            return Ok(Requeue::No);
        };
        if let Some(version) = apply(context, action).await? {
            self.written.lock().insert(key.into(), version);
        }
        Ok(Requeue::No)
    }
}

fn plan(service: &Service, pods: &[Arc<Pod>], present: Option<&Endpoints>) -> Option<Action> {
    let mut subsets = subsets(service, pods);
    let truncated = truncate(&mut subsets);
    let meta = &service.metadata;
    let mut new = present.cloned().unwrap_or_default();
    new.api_version = "v1".into();
    new.kind = "Endpoints".into();
    new.metadata.name = meta.name.clone();
    new.metadata.namespace = meta.namespace.clone();
    new.metadata.labels = meta.labels.clone();
    new.metadata
        .labels
        .insert(MANAGED_BY.into(), MANAGER.into());
    if service.is_headless() {
        new.metadata.labels.insert(HEADLESS.into(), String::new());
    }
    if truncated {
        new.metadata
            .annotations
            .insert(OVER_CAPACITY.into(), "truncated".into());
    } else {
        new.metadata.annotations.remove(OVER_CAPACITY);
    }
    new.subsets = subsets;
    match present {
        None => Some(Action::Create(new)),
        Some(old) if old.metadata == new.metadata && old.subsets == new.subsets => None,
        Some(_) => Some(Action::Update(new)),
    }
}

/// The subsets in upstream's canonical form (RepackSubsets): addresses that have the same ports share a subset;
/// everything is sorted.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Vec<Subset> {
    let family = service.families().into_iter().next().unwrap_or_default();
    let publish = service.spec.publish_not_ready_addresses;
    // Which ports each address has.
    let mut ports_of: BTreeMap<(String, String), (Address, bool, BTreeSet<EndpointPort>)> =
        BTreeMap::new();
    for pod in pods.iter().filter(|pod| may_be_endpoint(pod, publish)) {
        let Some(ip) = address_of(pod, &family) else {
            continue;
        };
        let ports = service.spec.ports.iter().filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone(),
                port: port.in_pod(pod)?,
                protocol: port.protocol().into(),
                app_protocol: port.app_protocol.clone(),
            })
        });
        let ports: BTreeSet<EndpointPort> = ports.collect();
        if ports.is_empty() && !service.spec.ports.is_empty() {
            continue;
        }
        let address = Address {
            ip: ip.clone(),
            hostname: service.hostname_of(pod).unwrap_or_default(),
            node_name: (!pod.spec.node_name.is_empty()).then(|| pod.spec.node_name.clone()),
            target_ref: Some(TargetReference {
                kind: "Pod".into(),
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        };
        ports_of.insert(
            (ip, pod.metadata.uid.clone()),
            (address, publish || pod.is_ready(), ports),
        );
    }
    let mut by_ports: BTreeMap<Vec<EndpointPort>, Subset> = BTreeMap::new();
    for (address, ready, ports) in ports_of.into_values() {
        let ports: Vec<EndpointPort> = ports.into_iter().collect();
        let subset = by_ports.entry(ports.clone()).or_insert_with(|| Subset {
            ports,
            ..Subset::default()
        });
        if ready {
            subset.addresses.push(address);
        } else {
            subset.not_ready_addresses.push(address);
        }
    }
    by_ports.into_values().collect()
}

/// Cuts to the capacity, ready addresses first; whether anything was cut.
fn truncate(subsets: &mut Vec<Subset>) -> bool {
    let count = |subset: &Subset| subset.addresses.len() + subset.not_ready_addresses.len();
    if subsets.iter().map(count).sum::<usize>() <= CAPACITY {
        return false;
    }
    let mut room = CAPACITY;
    for subset in subsets.iter_mut() {
        subset.addresses.truncate(room);
        room -= subset.addresses.len();
    }
    for subset in subsets.iter_mut() {
        subset.not_ready_addresses.truncate(room);
        room -= subset.not_ready_addresses.len();
    }
    subsets.retain(|subset| count(subset) > 0);
    true
}

async fn apply(context: &Context, action: Action) -> Result<Option<String>, ClientError> {
    let options = WriteOptions::default();
    let stored: Result<Endpoints, ClientError> = match &action {
        Action::Create(new) => {
            context
                .client
                .create(&ENDPOINTS, &new.metadata.namespace, new, &options)
                .await
        }
        Action::Update(new) => {
            let ObjectMeta {
                namespace, name, ..
            } = &new.metadata;
            context
                .client
                .update(&ENDPOINTS, namespace, name, new, &options)
                .await
        }
    };
    match stored {
        Ok(stored) => Ok(Some(stored.metadata.resource_version)),
        Err(error) if error.is_namespace_terminating() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn delete(context: &Context, meta: &ObjectMeta) -> Result<(), ClientError> {
    let options = DeleteOptions::uid(&meta.uid);
    match context
        .client
        .delete(&ENDPOINTS, &meta.namespace, &meta.name, &options)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{seconds, start};
    use client::fake::Server;
    use serde_json::json;

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "labels": {"l": "1"}},
            "spec": {"selector": {"app": "a"}, "clusterIP": "10.96.0.7", "ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .unwrap()
    }

    fn pod(name: &str, ip: &str, ready: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": "n1"},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn ready_and_unready_pods_share_a_subset_sorted_by_address() {
        let pods = [
            pod("b", "10.0.0.2", "True"),
            pod("a", "10.0.0.1", "True"),
            pod("c", "10.0.0.3", "False"),
        ];
        let Some(Action::Create(endpoints)) = plan(&service(), &pods, None) else {
            panic!("creates")
        };
        let subset = &endpoints.subsets[0];
        let ips = |addresses: &[Address]| {
            addresses
                .iter()
                .map(|one| one.ip.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(ips(&subset.addresses), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(ips(&subset.not_ready_addresses), ["10.0.0.3"]);
        assert_eq!(subset.ports[0].port, 8080);
        assert_eq!(endpoints.metadata.labels[MANAGED_BY], MANAGER);
        assert_eq!(plan(&service(), &pods, Some(&endpoints)), None);
        let fewer = plan(&service(), &pods[..1], Some(&endpoints));
        assert!(matches!(fewer, Some(Action::Update(_))));
    }

    #[test]
    fn more_than_a_thousand_addresses_are_cut_and_told() {
        let pods: Vec<_> = (0..1200)
            .map(|n| {
                pod(
                    &format!("p{n}"),
                    &format!("10.1.{}.{}", n / 250, n % 250),
                    if n < 900 { "True" } else { "False" },
                )
            })
            .collect();
        let Some(Action::Create(endpoints)) = plan(&service(), &pods, None) else {
            panic!("creates")
        };
        assert_eq!(endpoints.subsets[0].addresses.len(), 900);
        assert_eq!(endpoints.subsets[0].not_ready_addresses.len(), 100);
        assert_eq!(endpoints.metadata.annotations[OVER_CAPACITY], "truncated");
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_written_by_hand_wait_for_their_service_and_go_with_it() {
        let server = Server::default();
        let _guard = start(&server, &["endpoints-controller"]);
        let meta = || json!({"metadata": {"name": "m", "namespace": "n"}});
        server.put(&ENDPOINTS, meta());
        seconds(5).await;
        assert!(server.get(&ENDPOINTS, "n/m").is_some());
        server.put(&SERVICES, meta());
        seconds(5).await;
        assert!(server.get(&ENDPOINTS, "n/m").is_some());
        server.remove(&SERVICES, "n/m");
        seconds(5).await;
        assert!(server.get(&ENDPOINTS, "n/m").is_none());
        server.put(&ENDPOINTS, meta());
        seconds(5).await;
        assert!(server.get(&ENDPOINTS, "n/m").is_some());
    }
}
