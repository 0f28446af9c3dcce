//! What this node must do for each Service port, before any thought of nftables.
//!
//! Pure: `plan(services, slices, node)` → one [`PortPlan`] per Service port and family. `ruleset` turns plans
//! into a table, `conntrack` into the set of flows that may live on, `health` into per-Service health.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::endpoints::{Choice, NodeInfo, choose};
use crate::model::{
    Cidr, DEFAULT_AFFINITY_SECONDS, EndpointSlice, Family, LABEL_SERVICE_NAME, Protocol, Service,
    ServicePort, is_plain_name,
};

/// One Service port in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// `namespace/service/protocol/port-name`: unique within a family, and safe inside a chain's name.
    pub name: String,
    /// Address family.
    pub family: Family,
    /// Protocol.
    pub protocol: Protocol,
    /// Port on cluster, external and load balancer addresses.
    pub port: u16,
    /// The cluster address.
    pub cluster_ip: IpAddr,
    /// Addresses routed to the node by someone else.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of the load balancer, as far as packets arrive with them.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may reach the load balancer's addresses; empty is everyone.
    pub source_ranges: Vec<Cidr>,
    /// Port on the node's own addresses; 0 is none.
    pub node_port: u16,
    /// Seconds a client sticks to an endpoint.
    pub affinity_seconds: Option<u32>,
    /// internalTrafficPolicy is Local.
    pub internal_local: bool,
    /// externalTrafficPolicy is Local.
    pub external_local: bool,
    /// Endpoints.
    pub endpoints: Choice,
}

/// What a load balancer's health check is told about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceHealth {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Number of local endpoints that take traffic.
    pub local_endpoints: usize,
}

/// Everything this node does for Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One entry per Service port and family, sorted by name.
    pub ports: Vec<PortPlan>,
    /// Health check ports by number.
    pub health: BTreeMap<u16, ServiceHealth>,
}

impl Plan {
    /// The ports of one family.
    pub fn of(&self, family: Family) -> impl Iterator<Item = &PortPlan> {
        self.ports.iter().filter(move |p| p.family == family)
    }
}

/// Makes the plan of a node out of all Services and EndpointSlices.
pub fn plan<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    node: &NodeInfo,
) -> Plan {
    let mut by_service: HashMap<(&str, &str), Vec<&EndpointSlice>> = HashMap::new();
    for slice in slices {
        if let Some(service) = slice.metadata.labels.get(LABEL_SERVICE_NAME) {
            by_service
                .entry((&slice.metadata.namespace, service))
                .or_default()
                .push(slice);
        }
    }
    let mut plan = Plan::default();
    for service in services {
        let meta = &service.metadata;
        let plain = is_plain_name(&meta.name) && is_plain_name(&meta.namespace);
        if !plain || service.spec.r#type == "ExternalName" {
            continue;
        }
        let slices = by_service
            .get(&(meta.namespace.as_str(), meta.name.as_str()))
            .map_or(&[][..], Vec::as_slice);
        plan_service(service, slices, node, &mut plan);
    }
    plan.ports
        .sort_by(|a, b| (&a.name, a.family).cmp(&(&b.name, b.family)));
    plan
}

fn plan_service(service: &Service, slices: &[&EndpointSlice], node: &NodeInfo, plan: &mut Plan) {
    let spec = &service.spec;
    let mut cluster_ips = addresses(spec.cluster_ips.iter());
    if cluster_ips.is_empty() {
        cluster_ips = addresses([&spec.cluster_ip].into_iter());
    }
    let external_local = spec.external_traffic_policy == "Local";
    let mut local = BTreeSet::new();
    for cluster_ip in cluster_ips {
        let family = Family::of(&cluster_ip);
        for port in spec
            .ports
            .iter()
            .filter(|p| p.port != 0 && is_plain_name(&p.name))
        {
            let Some(protocol) = Protocol::parse(&port.protocol) else {
                continue;
            };
            let endpoints = choose(slices, family, &port.name, protocol, node);
            local.extend(endpoints.local.iter().map(|e| e.ip));
            plan.ports
                .push(port_plan(service, port, protocol, cluster_ip, endpoints));
        }
    }
    if external_local && spec.health_check_node_port != 0 && spec.r#type == "LoadBalancer" {
        let health = ServiceHealth {
            namespace: service.metadata.namespace.clone(),
            name: service.metadata.name.clone(),
            local_endpoints: local.len(),
        };
        plan.health.insert(spec.health_check_node_port, health);
    }
}

fn port_plan(
    service: &Service,
    port: &ServicePort,
    protocol: Protocol,
    cluster_ip: IpAddr,
    endpoints: Choice,
) -> PortPlan {
    let spec = &service.spec;
    let family = Family::of(&cluster_ip);
    let of_family = |ips: Vec<IpAddr>| {
        ips.into_iter()
            .filter(|ip| Family::of(ip) == family)
            .collect::<Vec<_>>()
    };
    let vips = service
        .status
        .load_balancer
        .ingress
        .iter()
        .filter(|i| i.ip_mode.is_empty() || i.ip_mode == "VIP");
    let is_load_balancer = spec.r#type == "LoadBalancer";
    let affinity = (spec.session_affinity == "ClientIP").then(|| {
        let configured = spec
            .session_affinity_config
            .as_ref()
            .and_then(|c| c.client_ip.timeout_seconds);
        configured.unwrap_or(DEFAULT_AFFINITY_SECONDS).max(1)
    });
    PortPlan {
        name: format!(
            "{}/{}/{}/{}",
            service.metadata.namespace,
            service.metadata.name,
            protocol.keyword(),
            port.name
        ),
        family,
        protocol,
        port: port.port,
        cluster_ip,
        external_ips: of_family(addresses(spec.external_ips.iter())),
        load_balancer_ips: if is_load_balancer {
            of_family(addresses(vips.map(|i| &i.ip)))
        } else {
            Vec::new()
        },
        source_ranges: spec
            .load_balancer_source_ranges
            .iter()
            .filter_map(|r| r.parse::<Cidr>().ok())
            .filter(|r| r.family() == family)
            .collect(),
        node_port: port.node_port,
        affinity_seconds: affinity,
        internal_local: spec.internal_traffic_policy == "Local",
        external_local: spec.external_traffic_policy == "Local",
        endpoints,
    }
}

fn addresses<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<IpAddr> {
    // `None` and the empty string are no addresses: headless Services have no plan.
    texts.filter_map(|t| t.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(spec: Value) -> Service {
        serde_json::from_value(
            json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec}),
        )
        .unwrap()
    }

    fn plan_of(service: &Service) -> Plan {
        plan([service], [], &NodeInfo::default())
    }

    #[test]
    fn headless_and_external_name_services_have_no_plan() {
        let ports = json!([{"port": 80}]);
        for spec in [
            json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
            json!({"type": "ExternalName", "externalName": "example.org", "ports": ports}),
            json!({"type": "ClusterIP", "clusterIP": "", "ports": ports}),
        ] {
            assert_eq!(plan_of(&service(spec)), Plan::default());
        }
    }

    #[test]
    fn a_dual_stack_service_has_a_plan_per_family_and_port() {
        let plan = plan_of(&service(json!({
            "type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"],
            "externalIPs": ["192.0.2.1", "2001:db8::1"],
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
        })));
        let names: Vec<_> = plan
            .ports
            .iter()
            .map(|p| (p.name.as_str(), p.family))
            .collect();
        assert_eq!(
            names,
            [
                ("default/web/tcp/dns-tcp", Family::V4),
                ("default/web/tcp/dns-tcp", Family::V6),
                ("default/web/udp/dns", Family::V4),
                ("default/web/udp/dns", Family::V6),
            ]
        );
        assert_eq!(
            plan.ports[1].external_ips,
            ["2001:db8::1".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn a_balancer_in_proxy_mode_keeps_its_address() {
        let mut service = service(
            json!({"type": "LoadBalancer", "clusterIP": "10.96.0.7", "ports": [{"port": 80}]}),
        );
        service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [
            {"ip": "192.0.2.1", "ipMode": "Proxy"}, {"ip": "192.0.2.2"}, {"hostname": "lb.example.org"}]}}))
        .unwrap();
        assert_eq!(
            plan_of(&service).ports[0].load_balancer_ips,
            ["192.0.2.2".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn affinity_defaults_to_three_hours() {
        let spec = |config: Value| {
            json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}], "sessionAffinity": "ClientIP",
                   "sessionAffinityConfig": config})
        };
        assert_eq!(
            plan_of(&service(spec(Value::Null))).ports[0].affinity_seconds,
            Some(10_800)
        );
        let short = spec(json!({"clientIP": {"timeoutSeconds": 5}}));
        assert_eq!(plan_of(&service(short)).ports[0].affinity_seconds, Some(5));
    }
}
