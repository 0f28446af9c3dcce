//! endpointslice-controller: EndpointSlices of the pods a Service selects.

use std::{collections::HashMap, sync::Arc};

use api::{
    r::{ENDPOINTSLICES, NODES, PODS, SERVICES},
    view::OwnerReference,
};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;

use super::{
    service::{
        BY_NAMESPACE, Service, address_of, gathering, may_be_endpoint, selected_pods, services_of,
    },
    slices::{
        self, Action, Conditions, Desired, Endpoint, EndpointSlice, Hints, Named, Owner, Port,
        TargetReference,
    },
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    objects::{Node, Pod},
};

pub const MANAGER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Services reconciled at a time (`--concurrent-service-endpoint-syncs`).
const WORKERS: usize = 5;

pub struct EndpointSlices;

/// What the controller reads, and the newest version of each service's slices it wrote.
struct Observed {
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    written: Mutex<HashMap<String, String>>,
}

#[async_trait]
impl Controller for EndpointSlices {
    fn name(&self) -> &'static str {
        "endpointslice-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["endpointslice"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let observed = Arc::new(Observed {
            services: informers.informer(&SERVICES, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            nodes: informers.informer(&NODES, "", Selectors::default()),
            slices: informers.informer(&ENDPOINTSLICES, "", Selectors::default()),
            written: Mutex::default(),
        });
        observed.services.add_index(BY_NAMESPACE, |service| {
            vec![service.metadata.namespace.clone()]
        });
        observed
            .pods
            .add_index(BY_NAMESPACE, |pod| vec![pod.metadata.namespace.clone()]);
        observed.slices.add_index(slices::SERVICE_NAME, service_of);
        let Observed {
            services,
            pods,
            nodes,
            slices,
            ..
        } = &*observed;
        if !synced!(context, services, pods, nodes, slices) {
            return;
        }
        let queue = Queue::default();
        observed.feed(&queue);
        workqueue::run("endpointslice", &queue, WORKERS, &context.shutdown, |key| {
            let (context, observed) = (&context, &observed);
            async move { observed.reconcile(context, &key).await }
        })
        .await;
    }
}

/// The index value of a slice of this controller: its service's key.
fn service_of(slice: &EndpointSlice) -> Vec<String> {
    let labels = &slice.metadata.labels;
    match (
        labels.get(slices::MANAGED_BY),
        labels.get(slices::SERVICE_NAME),
    ) {
        (Some(manager), Some(service)) if manager == MANAGER => {
            vec![format!("{}/{service}", slice.metadata.namespace)]
        }
        _ => Vec::new(),
    }
}

impl Observed {
    fn feed(self: &Arc<Self>, queue: &Queue<String>) {
        let keys = queue.clone();
        self.services
            .add_handler(move |change| keys.add(change.key.to_string()));
        let (keys, to) = (queue.clone(), self.clone());
        self.pods.add_handler(move |change| {
            services_of(&to.services, change, |key| {
                keys.add_after(key, gathering(&to.pods, change));
            });
        });
        let keys = queue.clone();
        self.slices.add_handler(move |change| {
            let sides = [&change.old, &change.new];
            let services = sides
                .into_iter()
                .flatten()
                .flat_map(|slice| service_of(slice));
            services.for_each(|key| keys.add(key));
        });
    }

    async fn reconcile(&self, context: &Context, key: &str) -> Result<Requeue, ClientError> {
        // One's own last write must be in the cache, or the same slice would be made twice.
        let seen = self
            .written
            .lock()
            .get(key)
            .is_none_or(|version| self.slices.has_seen(version));
        if !seen {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let existing = self.slices.by_index(slices::SERVICE_NAME, key);
        let existing: Vec<&EndpointSlice> = existing.iter().map(AsRef::as_ref).collect();
        let Some(service) = self.services.get(key) else {
            self.written.lock().remove(key);
            let (namespace, _) = apimachinery::meta::split_key(key);
            for slice in existing {
                delete(context, namespace, &slice.metadata.name).await?;
            }
            return Ok(Requeue::No);
        };
        if !service.selects_pods() || service.metadata.is_deleting() {
            return Ok(Requeue::No);
        }
        let pods = selected_pods(&service, &self.pods);
        let zone = |name: &str| self.nodes.get(name)?.metadata.labels.get(ZONE).cloned();
        let desired = desired(&service, &pods, zone);
        let max = context.config.max_endpoints_per_slice;
        for action in slices::plan(&owner(&service), &existing, desired, max) {
            if let Some(version) = apply(context, &service.metadata.namespace, action).await? {
                self.written.lock().insert(key.into(), version);
            }
        }
        Ok(Requeue::No)
    }
}

fn owner(service: &Service) -> Owner {
    let meta = &service.metadata;
    Owner {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        reference: OwnerReference {
            api_version: "v1".into(),
            kind: "Service".into(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        },
        labels: slices::labels(meta, &meta.name, MANAGER, service.is_headless()),
        annotations: Default::default(),
    }
}

/// The endpoints of a service, by address type and the ports they have.
fn desired(service: &Service, pods: &[Arc<Pod>], zone: impl Fn(&str) -> Option<String>) -> Desired {
    let mut desired = Desired::new();
    for family in service.families() {
        for pod in pods.iter().filter(|pod| may_be_endpoint(pod, true)) {
            let Some(address) = address_of(pod, &family) else {
                continue;
            };
            let ports = ports(service, pod);
            // A pod that has none of the ports is no endpoint of a service with ports.
            if ports.is_empty() && !service.spec.ports.is_empty() {
                continue;
            }
            let endpoint = endpoint(service, pod, address, &zone);
            desired
                .entry((family.clone(), ports))
                .or_default()
                .push(endpoint);
        }
        if !desired
            .keys()
            .any(|(address_type, _)| *address_type == family)
        {
            desired.insert((family, Vec::new()), Vec::new());
        }
    }
    desired
}

fn ports(service: &Service, pod: &Pod) -> Vec<Port> {
    let port = |port: &super::service::ServicePort| {
        Some(Port {
            name: port.name.clone(),
            protocol: port.protocol().into(),
            port: Some(port.in_pod(pod)?),
            app_protocol: port.app_protocol.clone(),
        })
    };
    let mut ports: Vec<Port> = service.spec.ports.iter().filter_map(port).collect();
    ports.sort();
    ports
}

fn endpoint(
    service: &Service,
    pod: &Pod,
    address: String,
    zone: impl Fn(&str) -> Option<String>,
) -> Endpoint {
    let serving = pod.is_ready();
    let terminating = pod.metadata.is_deleting();
    let zone = zone(&pod.spec.node_name);
    Endpoint {
        addresses: vec![address],
        conditions: Conditions {
            ready: Some(service.spec.publish_not_ready_addresses || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        },
        hostname: service.hostname_of(pod),
        target_ref: Some(TargetReference {
            kind: "Pod".into(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        }),
        hints: hints(service, pod, zone.as_deref()),
        zone,
        node_name: (!pod.spec.node_name.is_empty()).then(|| pod.spec.node_name.clone()),
    }
}

/// The Service's wish for traffic to stay near (KEP-4444, KEP-3015): each endpoint is for its own zone, or its own node
/// with its zone beside it. Those that are not ready have none.
fn hints(service: &Service, pod: &Pod, zone: Option<&str>) -> Option<Hints> {
    let named = |name: &str| vec![Named { name: name.into() }];
    let near = match service.spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => false,
        "PreferSameNode" => true,
        _ => return None,
    };
    if !pod.is_ready() || pod.metadata.is_deleting() {
        return None;
    }
    let node = &pod.spec.node_name;
    let hints = Hints {
        for_zones: zone.map(named).unwrap_or_default(),
        for_nodes: if near && !node.is_empty() {
            named(node)
        } else {
            Vec::new()
        },
    };
    (hints != Hints::default()).then_some(hints)
}

/// Carries out one action; the resourceVersion it left, if it wrote something.
pub(super) async fn apply(
    context: &Context,
    namespace: &str,
    action: Action,
) -> Result<Option<String>, ClientError> {
    let client = &context.client;
    let options = WriteOptions::default();
    let stored: Result<EndpointSlice, ClientError> = match action {
        Action::Create(slice) => {
            client
                .create(&ENDPOINTSLICES, namespace, &slice, &options)
                .await
        }
        Action::Update(slice) => {
            client
                .update(
                    &ENDPOINTSLICES,
                    namespace,
                    &slice.metadata.name,
                    &slice,
                    &options,
                )
                .await
        }
        Action::Delete(name) => {
            delete(context, namespace, &name).await?;
            return Ok(None);
        }
    };
    match stored {
        Ok(stored) => Ok(Some(stored.metadata.resource_version)),
        Err(error) if error.is_namespace_terminating() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) async fn delete(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<(), ClientError> {
    let options = DeleteOptions::default();
    match context
        .client
        .delete(&ENDPOINTSLICES, namespace, name, &options)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(extra: Value) -> Service {
        let mut value = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "s"},
            "spec": {"selector": {"app": "a"}, "clusterIP": "10.96.0.7",
                     "ports": [{"name": "http", "port": 80, "targetPort": "web"}]},
        });
        for (key, extra) in extra.as_object().into_iter().flatten() {
            value["spec"][key] = extra.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn pod(name: &str, port: i32, ready: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "a"}},
            "spec": {"nodeName": "n1", "hostname": "h", "subdomain": "web",
                     "containers": [{"ports": [{"name": "web", "containerPort": port}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                       "conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn zone(_: &str) -> Option<String> {
        Some("z".into())
    }

    #[test]
    fn a_ready_pod_is_an_endpoint_with_its_named_port() {
        let desired = desired(&service(json!({})), &[pod("p", 8080, "True")], zone);
        let ((family, ports), endpoints) = desired.into_iter().next().unwrap();
        assert_eq!((family.as_str(), ports[0].port), ("IPv4", Some(8080)));
        assert_eq!(
            serde_json::to_value(&endpoints[0]).unwrap(),
            json!({
                "addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
                "hostname": "h", "nodeName": "n1", "zone": "z",
                "targetRef": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "p"},
            })
        );
    }

    #[test]
    fn conditions_tell_ready_serving_and_terminating_apart() {
        let state = |service: &Service, pod: &Pod| {
            let Conditions {
                ready,
                serving,
                terminating,
            } = endpoint(service, pod, String::new(), zone).conditions;
            (ready.unwrap(), serving.unwrap(), terminating.unwrap())
        };
        let plain = service(json!({}));
        let early = service(json!({"publishNotReadyAddresses": true}));
        let mut dying = (*pod("p", 1, "True")).clone();
        dying.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
        assert_eq!(state(&plain, &pod("p", 1, "False")), (false, false, false));
        assert_eq!(state(&early, &pod("p", 1, "False")), (true, false, false));
        assert_eq!(state(&plain, &dying), (false, true, true));
        assert_eq!(state(&early, &dying), (true, true, true));
    }

    #[test]
    fn endpoints_are_for_their_own_zone_or_node_when_traffic_is_to_stay_near() {
        let told = |wish: &str, ready: &str| {
            let service = service(json!({"trafficDistribution": wish}));
            let endpoint = endpoint(&service, &pod("p", 1, ready), String::new(), zone);
            serde_json::to_value(endpoint.hints).unwrap()
        };
        assert_eq!(
            told("PreferClose", "True"),
            json!({"forZones": [{"name": "z"}]})
        );
        assert_eq!(
            told("PreferSameNode", "True"),
            json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]})
        );
        assert_eq!(told("PreferSameZone", "False"), Value::Null);
        let service = service(json!({}));
        assert_eq!(
            endpoint(&service, &pod("p", 1, "True"), String::new(), zone).hints,
            None
        );
    }

    #[test]
    fn pods_with_other_ports_go_into_other_groups_and_both_families_are_served() {
        let both = service(json!({"ipFamilies": ["IPv4", "IPv6"]}));
        let desired = desired(&both, &[pod("p", 1, "True"), pod("q", 2, "True")], zone);
        assert_eq!(desired.len(), 4);
    }

    #[test]
    fn a_service_nobody_serves_has_an_empty_group_for_each_family() {
        let mut finished = (*pod("p", 1, "True")).clone();
        finished.status.phase = "Succeeded".into();
        let mut nameless = (*pod("q", 1, "True")).clone();
        nameless.spec.containers.clear();
        let desired = desired(
            &service(json!({})),
            &[Arc::new(finished), Arc::new(nameless)],
            zone,
        );
        assert_eq!(
            desired,
            Desired::from([(("IPv4".to_string(), Vec::new()), Vec::new())])
        );
    }
}
