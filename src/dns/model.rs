//! The few fields of Services, EndpointSlices and Namespaces that names are made of.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

/// Label that names an EndpointSlice's Service (`discovery.LabelServiceName`).
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// metadata, as far as names need it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Object name.
    pub name: String,
    /// Object namespace; empty for namespaces.
    pub namespace: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A v1 Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Object metadata; nothing else counts.
    pub metadata: NameOnly,
}

/// metadata with the name alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NameOnly {
    /// Object name.
    pub name: String,
}

/// A v1 Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Object metadata.
    pub metadata: Meta,
    /// Desired state.
    pub spec: ServiceSpec,
}

/// The part of `v1.ServiceSpec` that names are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// ClusterIP, NodePort, LoadBalancer or ExternalName.
    pub r#type: String,
    /// The first cluster address, or `None` for headless.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// All cluster addresses, one per family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// Target of an ExternalName Service.
    pub external_name: String,
    /// Exposed ports.
    pub ports: Vec<ServicePort>,
}

/// `v1.ServicePort`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServicePort {
    /// Port name, empty when the Service has one port.
    pub name: String,
    /// TCP, UDP or SCTP; empty is TCP.
    pub protocol: String,
    /// Port number.
    pub port: u16,
}

/// A discovery.k8s.io/v1 EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointSlice {
    /// Object metadata.
    pub metadata: Meta,
    /// The endpoints.
    #[serde(deserialize_with = "null_as_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Ports that all endpoints of the slice share.
    #[serde(deserialize_with = "null_as_empty")]
    pub ports: Vec<EndpointPort>,
}

/// `discovery.Endpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Addresses; consumers use the first.
    pub addresses: Vec<String>,
    /// Readiness.
    pub conditions: Conditions,
    /// Name of the endpoint below its Service's name.
    pub hostname: Option<String>,
}

/// `discovery.EndpointConditions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Absent counts as ready. Always true for Services with publishNotReadyAddresses.
    pub ready: Option<bool>,
}

/// `discovery.EndpointPort`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Port name.
    pub name: Option<String>,
    /// Absent counts as TCP.
    pub protocol: Option<String>,
    /// Port number.
    pub port: Option<u16>,
}

impl Service {
    /// Whether the Service has no address of its own.
    pub fn is_headless(&self) -> bool {
        self.spec.cluster_ip == "None"
    }

    /// The Service's addresses.
    pub fn cluster_addresses(&self) -> Vec<IpAddr> {
        let all: Vec<_> = self
            .spec
            .cluster_ips
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .collect();
        if all.is_empty() {
            self.spec.cluster_ip.parse().into_iter().collect()
        } else {
            all
        }
    }
}

impl EndpointSlice {
    /// `namespace/name` of the slice's Service.
    pub fn service_key(&self) -> Option<String> {
        let name = self.metadata.labels.get(LABEL_SERVICE_NAME)?;
        Some(format!("{}/{name}", self.metadata.namespace))
    }

    /// Endpoints that get names, with their addresses.
    pub fn named_endpoints(&self) -> impl Iterator<Item = (IpAddr, &Endpoint)> {
        self.endpoints
            .iter()
            .filter(|e| e.conditions.ready != Some(false))
            .filter_map(|e| {
                let ip = e.addresses.first()?.parse().ok()?;
                Some((ip, e))
            })
    }
}

impl Endpoint {
    /// The label of the endpoint below its Service: its hostname, or its address with dashes.
    pub fn label(&self, ip: IpAddr) -> String {
        match &self.hostname {
            Some(hostname) if !hostname.is_empty() => hostname.clone(),
            _ => ip.to_string().replace(['.', ':'], "-"),
        }
    }
}

fn null_as_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}
