//! service-lb-controller: gives Services of type LoadBalancer the address of a node, whose proxy answers there.
//!
//! A local cluster has no other balancer: every node forwards what comes to the address and port to the Service's
//! pods. Services share an address as long as their ports differ. A Service with a `loadBalancerClass` is somebody
//! else's.

use std::{sync::Arc, time::Duration};

use api::{
    r::{NODES, SERVICES},
    view::ObjectMeta,
};
use apimachinery::Value;
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    objects::{Condition, condition},
    writes::modify_status,
};

/// Index of Services by the addresses they have.
const BY_ADDRESS: &str = "address";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// Changes of nodes are gathered for so long.
const GATHER: Duration = Duration::from_secs(1);

pub struct ServiceLoadBalancers;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Service {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "type")]
    kind: String,
    load_balancer_class: Option<String>,
    ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Port {
    port: i64,
    protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    load_balancer: Balancer,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Balancer {
    ingress: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Node {
    metadata: ObjectMeta,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeStatus {
    addresses: Vec<Address>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl Service {
    fn is_ours(&self) -> bool {
        self.spec.kind == "LoadBalancer"
            && self.spec.load_balancer_class.is_none()
            && !self.metadata.is_deleting()
    }

    fn addresses(&self) -> Vec<String> {
        let ingress = self.status.load_balancer.ingress.iter();
        ingress
            .filter_map(|one| one["ip"].as_str().map(ToString::to_string))
            .collect()
    }

    /// Whether both want the same port of one address.
    fn clashes(&self, other: &Service) -> bool {
        let ports = &other.spec.ports;
        self.metadata.uid != other.metadata.uid
            && self.spec.ports.iter().any(|port| ports.contains(port))
    }
}

impl Node {
    fn address(&self) -> Option<&str> {
        let mut all = self.status.addresses.iter();
        all.find(|one| one.kind == "InternalIP")
            .map(|one| one.address.as_str())
    }

    fn serves(&self) -> bool {
        let ready =
            condition(&self.status.conditions, "Ready").is_some_and(|one| one.status == "True");
        ready && !self.metadata.is_deleting()
    }

    fn is_excluded(&self) -> bool {
        self.metadata.labels.contains_key(EXCLUDED)
    }
}

#[async_trait]
impl Controller for ServiceLoadBalancers {
    fn name(&self) -> &'static str {
        "service-lb-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["service"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let services: Informer<Service> = informers.informer(&SERVICES, "", Selectors::default());
        let nodes: Informer<Node> = informers.informer(&NODES, "", Selectors::default());
        services.add_index(BY_ADDRESS, Service::addresses);
        if !synced!(context, services, nodes) {
            return;
        }
        let recorder = context.recorder("service-controller");
        let queue = Queue::default();
        let (keys, all) = (queue.clone(), services.clone());
        services.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
            // An address' port may have come free.
            let waiting = |one: &Arc<Service>| one.is_ours() && one.addresses().is_empty();
            if change
                .old
                .as_ref()
                .is_some_and(|old| !old.addresses().is_empty())
                && !change.object().is_ours()
            {
                for one in all.list().iter().filter(|one| waiting(one)) {
                    keys.add(one.metadata.key());
                }
            }
        });
        let (keys, all) = (queue.clone(), services.clone());
        nodes.add_handler(move |change| {
            let told = |node: &Arc<Node>| {
                (
                    node.serves(),
                    node.is_excluded(),
                    node.address().map(ToString::to_string),
                )
            };
            if change.old.as_ref().map(told) != change.new.as_ref().map(told) {
                for one in all.list().iter().filter(|one| one.is_ours()) {
                    keys.add_after(one.metadata.key(), GATHER);
                }
            }
        });
        // One at a time: two Services must not choose the same port.
        workqueue::run("service-lb", &queue, 1, &context.shutdown, |key| {
            let (context, services, nodes, recorder) = (&context, &services, &nodes, &recorder);
            async move { reconcile(context, services, nodes, recorder, &key).await }
        })
        .await;
    }
}

async fn reconcile(
    context: &Context,
    services: &Informer<Service>,
    nodes: &Informer<Node>,
    recorder: &Recorder,
    key: &str,
) -> Result<Requeue, ClientError> {
    let Some(service) = services.get(key) else {
        return Ok(Requeue::No);
    };
    let all = nodes.list();
    let taken = |address: &str| {
        let others = services.by_index(BY_ADDRESS, address);
        others
            .iter()
            .any(|other| other.is_ours() && service.clashes(other))
    };
    let Some(wanted) = plan(&service, &all, taken) else {
        return Ok(Requeue::No);
    };
    let meta = &service.metadata;
    let object = ObjectReference {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: String::new(),
    };
    let written = modify_status(&context.client, &SERVICES, meta, |service| {
        service["status"]["loadBalancer"] = if wanted.is_empty() {
            json!({})
        } else {
            json!({"ingress": wanted})
        };
    });
    let version = written.await?;
    let (kind, reason, message) = if !wanted.is_empty() {
        (
            EventKind::Normal,
            "EnsuredLoadBalancer",
            "Ensured load balancer",
        )
    } else if service.is_ours() {
        (
            EventKind::Warning,
            "UnAvailableLoadBalancer",
            "There are no available nodes for LoadBalancer",
        )
    } else {
        (
            EventKind::Normal,
            "DeletedLoadBalancer",
            "Deleted load balancer",
        )
    };
    recorder.event(&object, kind, reason, message);
    // The next choice must see this one.
    if let Some(version) = version {
        while !services.has_seen(&version) && !context.shutdown.is_cancelled() {
            tokio::time::sleep(crate::context::LAG_RETRY).await;
        }
    }
    Ok(Requeue::No)
}

/// The ingress the Service should have, if it has another. An address it has stays while its node serves.
fn plan(
    service: &Service,
    nodes: &[Arc<Node>],
    taken: impl Fn(&str) -> bool,
) -> Option<Vec<Value>> {
    let present = &service.status.load_balancer.ingress;
    if !service.is_ours() {
        // What another balancer wrote is not ours to take.
        let was_ours =
            service.spec.load_balancer_class.is_none() && service.spec.kind != "LoadBalancer";
        return (was_ours && !present.is_empty()).then(Vec::new);
    }
    let mut serving: Vec<&Arc<Node>> = nodes.iter().filter(|node| node.serves()).collect();
    // A cluster of its control plane alone has no other.
    if serving.iter().any(|node| !node.is_excluded()) {
        serving.retain(|node| !node.is_excluded());
    }
    serving.sort_by_key(|node| {
        let control = node.metadata.labels.contains_key(CONTROL_PLANE);
        (control, node.metadata.name.clone())
    });
    let addresses = serving.into_iter().filter_map(|node| node.address());
    let free: Vec<&str> = addresses.filter(|address| !taken(address)).collect();
    let held = service.addresses();
    let kept = free
        .iter()
        .find(|address| held.iter().any(|one| one == *address));
    let wanted: Vec<Value> = kept
        .or(free.first())
        .map(|address| json!({"ip": address, "ipMode": "VIP"}))
        .into_iter()
        .collect();
    (wanted != *present).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(kind: &str, uid: &str, port: i64, ip: &str) -> Service {
        let ingress = if ip.is_empty() {
            vec![]
        } else {
            vec![json!({"ip": ip, "ipMode": "VIP"})]
        };
        serde_json::from_value(json!({
            "metadata": {"name": uid, "uid": uid}, "spec": {"type": kind, "ports": [{"port": port, "protocol": "TCP"}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        }))
        .unwrap()
    }

    fn node(name: &str, ip: &str, labels: Value, ready: &str) -> Arc<Node> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": labels},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}], "conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap(),
        )
    }

    fn nodes() -> Vec<Arc<Node>> {
        vec![
            node("a-control", "10.0.0.1", json!({CONTROL_PLANE: ""}), "True"),
            node("b", "10.0.0.2", json!({}), "True"),
            node("c", "10.0.0.3", json!({}), "True"),
            node("d", "10.0.0.4", json!({EXCLUDED: ""}), "True"),
        ]
    }

    #[track_caller]
    fn check(service: &Service, nodes: &[Arc<Node>], taken: &[&str], expected: Option<&str>) {
        let planned = plan(service, nodes, |address| taken.contains(&address));
        let expected = expected.map(|ip| {
            if ip.is_empty() {
                vec![]
            } else {
                vec![json!({"ip": ip, "ipMode": "VIP"})]
            }
        });
        assert_eq!(planned, expected);
    }

    #[test]
    fn a_service_gets_a_workers_address_with_its_port_free_and_keeps_it() {
        let new = service("LoadBalancer", "s", 80, "");
        check(&new, &nodes(), &[], Some("10.0.0.2"));
        check(&new, &nodes(), &["10.0.0.2"], Some("10.0.0.3"));
        check(&new, &nodes(), &["10.0.0.2", "10.0.0.3"], Some("10.0.0.1"));
        check(&new, &nodes(), &["10.0.0.1", "10.0.0.2", "10.0.0.3"], None);
        check(
            &service("LoadBalancer", "s", 80, "10.0.0.3"),
            &nodes(),
            &[],
            None,
        );
        let mut without_c = nodes();
        without_c[2] = node("c", "10.0.0.3", json!({}), "Unknown");
        check(
            &service("LoadBalancer", "s", 80, "10.0.0.3"),
            &without_c,
            &[],
            Some("10.0.0.2"),
        );
        check(
            &service("LoadBalancer", "s", 80, "10.0.0.3"),
            &[],
            &[],
            Some(""),
        );
        check(&new, &nodes()[3..], &[], Some("10.0.0.4"));
    }

    #[test]
    fn other_types_lose_it_and_other_classes_are_left_alone() {
        check(
            &service("ClusterIP", "s", 80, "10.0.0.3"),
            &nodes(),
            &[],
            Some(""),
        );
        check(&service("ClusterIP", "s", 80, ""), &nodes(), &[], None);
        let mut foreign = service("LoadBalancer", "s", 80, "1.2.3.4");
        foreign.spec.load_balancer_class = Some("example.com/lb".into());
        check(&foreign, &nodes(), &[], None);
    }

    #[test]
    fn only_the_same_port_clashes() {
        let one = service("LoadBalancer", "a", 80, "");
        assert!(one.clashes(&service("LoadBalancer", "b", 80, "")));
        assert!(!one.clashes(&service("LoadBalancer", "b", 81, "")));
        assert!(!one.clashes(&one));
    }
}
