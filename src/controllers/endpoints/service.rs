//! Services as the endpoint controllers read them, and which of a service's ports and addresses a pod has.

use std::{collections::BTreeMap, time::Duration};

use api::view::ObjectMeta;
use apimachinery::Value;
use client::{Delta, Informer};
use serde::Deserialize;

use crate::{
    context::gather,
    objects::{Pod, condition},
};

/// Index of services and pods by namespace.
pub const BY_NAMESPACE: &str = "namespace";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: ObjectMeta,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub selector: BTreeMap<String, String>,
    pub ports: Vec<ServicePort>,
    pub ip_families: Vec<String>,
    pub publish_not_ready_addresses: bool,
    /// `PreferSameZone` (or `PreferClose`), `PreferSameNode`; absent is anywhere.
    pub traffic_distribution: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    /// A number or a name of a container's port; absent is `port`.
    pub target_port: Value,
    pub app_protocol: Option<String>,
}

impl Service {
    /// Whether its endpoints are the pods it selects.
    pub fn selects_pods(&self) -> bool {
        !self.spec.selector.is_empty() && self.spec.kind != "ExternalName"
    }

    pub fn selects(&self, pod: &Pod) -> bool {
        let mut selector = self.spec.selector.iter();
        selector.all(|(key, value)| pod.metadata.labels.get(key) == Some(value))
    }

    pub fn is_headless(&self) -> bool {
        self.spec.cluster_ip == "None"
    }

    /// `IPv4`, `IPv6`, or both, the first one first.
    pub fn families(&self) -> Vec<String> {
        if !self.spec.ip_families.is_empty() {
            return self.spec.ip_families.clone();
        }
        let family = if self.spec.cluster_ip.contains(':') {
            "IPv6"
        } else {
            "IPv4"
        };
        vec![family.into()]
    }

    /// The hostname a pod has within this service (its subdomain's records).
    pub fn hostname_of(&self, pod: &Pod) -> Option<String> {
        let ours = pod.spec.subdomain == self.metadata.name
            && pod.metadata.namespace == self.metadata.namespace;
        (ours && !pod.spec.hostname.is_empty()).then(|| pod.spec.hostname.clone())
    }
}

impl ServicePort {
    /// The number this port has in a pod (podutil.FindPort); `None` if the pod names no such port.
    pub fn in_pod(&self, pod: &Pod) -> Option<i32> {
        match &self.target_port {
            Value::String(name) if !name.is_empty() => {
                let sidecars = pod
                    .spec
                    .init_containers
                    .iter()
                    .filter(|one| one.restart_policy == "Always");
                let mut ports = pod
                    .spec
                    .containers
                    .iter()
                    .chain(sidecars)
                    .flat_map(|one| &one.ports);
                let found = ports.find(|port| {
                    port.name == *name && same_protocol(&port.protocol, &self.protocol)
                });
                // A number in quotes is a number.
                found
                    .map(|port| port.container_port)
                    .or_else(|| name.parse().ok())
            }
            Value::Number(number) if number.as_i64() != Some(0) => {
                i32::try_from(number.as_i64()?).ok()
            }
            _ => Some(self.port),
        }
    }

    pub fn protocol(&self) -> &str {
        protocol(&self.protocol)
    }
}

fn protocol(text: &str) -> &str {
    if text.is_empty() { "TCP" } else { text }
}

fn same_protocol(a: &str, b: &str) -> bool {
    protocol(a) == protocol(b)
}

/// The pod's address of a family.
pub fn address_of(pod: &Pod, family: &str) -> Option<String> {
    let of_family = |ip: &str| !ip.is_empty() && (ip.contains(':') == (family == "IPv6"));
    let listed = pod.status.pod_ips.iter().map(|one| one.ip.as_str());
    listed
        .chain([pod.status.pod_ip.as_str()])
        .find(|ip| of_family(ip))
        .map(ToString::to_string)
}

/// Whether the pod can be an endpoint at all (ShouldPodBeInEndpoints).
pub fn may_be_endpoint(pod: &Pod, with_terminating: bool) -> bool {
    let has_address = !pod.status.pod_ip.is_empty() || !pod.status.pod_ips.is_empty();
    !pod.is_terminal() && has_address && (with_terminating || !pod.metadata.is_deleting())
}

/// Hands `add` the keys of the services whose endpoints a pod's change may change.
pub fn services_of(services: &Informer<Service>, change: &Delta<Pod>, add: impl Fn(String)) {
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && relevant(old) == relevant(new)
    {
        return;
    }
    let namespace = &change.object().metadata.namespace;
    for service in services.by_index(BY_NAMESPACE, namespace) {
        let selected = |pod: &Option<std::sync::Arc<Pod>>| {
            pod.as_ref().is_some_and(|pod| service.selects(pod))
        };
        if service.selects_pods() && (selected(&change.old) || selected(&change.new)) {
            add(service.metadata.key());
        }
    }
}

/// How long to gather changes of a namespace's pods, all of which a reconcile looks through.
pub fn gathering(pods: &Informer<Pod>, change: &Delta<Pod>) -> Duration {
    let namespace = &change.object().metadata.namespace;
    gather(pods.count_by_index(BY_NAMESPACE, namespace))
}

/// What of a pod shows in endpoints.
fn relevant(pod: &Pod) -> impl PartialEq + '_ {
    let ready = condition(&pod.status.conditions, "Ready").map(|ready| ready.status.as_str());
    let state = (ready, pod.is_terminal(), pod.metadata.is_deleting());
    let address = (&pod.status.pod_ip, &pod.status.pod_ips, &pod.spec.node_name);
    (
        &pod.metadata.uid,
        &pod.metadata.labels,
        state,
        address,
        (&pod.spec.hostname, &pod.spec.subdomain),
    )
}

/// The pods a service selects.
pub fn selected_pods(service: &Service, pods: &Informer<Pod>) -> Vec<std::sync::Arc<Pod>> {
    let all = pods
        .by_index(BY_NAMESPACE, &service.metadata.namespace)
        .into_iter();
    all.filter(|pod| service.selects(pod)).collect()
}
