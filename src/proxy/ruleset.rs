//! The nftables table that carries out a plan.
//!
//! Pure: `[PortPlan]` → [`Table`], a picture of chains and sets as text; `nft` brings the kernel's table to it.
//!
//! ```text
//! nat prerouting ┐            ┌ service-ips[daddr.proto.dport] ┬ service-…   ─ dnat to a random endpoint
//! nat output     ┴ services ──┤                                ├ local-…     ─ the same among the node's own
//!                             │                                ├ external-…  ─ mark, then service-… or local-…
//!                             │                                ├ firewall-…  ─ source ranges, then external-…
//!                             │                                └ no-endpoints
//!                             ├ cluster-ips → no-endpoints (a port that the Service has not)
//!                             └ service-nodeports[proto.dport], if daddr is the node's ─ external-… or no-endpoints
//! nat postrouting ─ masquerade what was marked, and endpoints that reached themselves
//! ```
//!
//! A packet costs one map look-up however many Services there are, and only the first packet of a connection
//! is looked at: conntrack does the rest. A Service with ClientIP affinity has one more chain and one dynamic
//! set per endpoint; the sets' contents belong to the kernel and survive updates and restarts of the proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::endpoints::Endpoint;
use crate::model::{Cidr, Family};
use crate::plan::PortPlan;

/// Name of the proxy's table, as upstream's `kubeProxyTable`.
pub const TABLE: &str = "kube-proxy";
/// Bit of the packet mark that asks for masquerading (upstream's `--iptables-masquerade-bit` default, 14).
pub const MASQUERADE_MARK: u32 = 1 << 14;
/// Clients remembered per endpoint of a Service with ClientIP affinity; 64 Ki × ~100 B is 6 MB of kernel memory.
const AFFINITY_CLIENTS: u32 = 65_536;

/// Up to so many endpoints are a list of rules; more are a map. Maps within rules make the kernel's transactions
/// quadratic: rewriting 5,000 of them takes 5.6 s of a core, the same as two rules each 0.1 s.
const LISTED_TARGETS: usize = 8;

const NO_ENDPOINTS: &str = "no-endpoints";
const MARK: &str = "mark-for-masquerade";
const SERVICES: &str = "services";

/// A table as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Family of the table.
    pub family: Family,
    /// Chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// Sets and maps by name.
    pub sets: BTreeMap<String, Set>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// `type … hook … priority …` of a base chain.
    pub hook: Option<&'static str>,
    /// Rules in order.
    pub rules: Vec<String>,
}

/// A set or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// True for a map.
    pub is_map: bool,
    /// What stands between the braces of its declaration.
    pub spec: String,
    /// Key → value (empty for sets). None: the kernel fills it.
    pub elements: Option<BTreeMap<String, String>>,
}

/// What does not come from the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Ranges of the cluster's pods. Traffic to cluster addresses from elsewhere is masqueraded.
    pub cluster_cidrs: Vec<Cidr>,
    /// Masquerade all traffic to cluster addresses.
    pub masquerade_all: bool,
    /// Node addresses that node ports listen on; empty is all.
    pub nodeport_cidrs: Vec<Cidr>,
}

/// Makes the table of one family.
pub fn table<'a>(
    family: Family,
    ports: impl IntoIterator<Item = &'a PortPlan>,
    options: &Options,
) -> Table {
    let mut builder = Builder::new(family, options);
    for port in ports {
        builder.add(port);
    }
    builder.finish()
}

struct Builder<'o> {
    family: Family,
    options: &'o Options,
    chains: BTreeMap<String, Chain>,
    affinity: BTreeMap<String, Set>,
    service_ips: BTreeMap<String, String>,
    node_ports: BTreeMap<String, String>,
    cluster_ips: BTreeSet<IpAddr>,
    hairpins: BTreeSet<IpAddr>,
}

impl<'o> Builder<'o> {
    fn new(family: Family, options: &'o Options) -> Self {
        Self {
            family,
            options,
            chains: BTreeMap::new(),
            affinity: BTreeMap::new(),
            service_ips: BTreeMap::new(),
            node_ports: BTreeMap::new(),
            cluster_ips: BTreeSet::new(),
            hairpins: BTreeSet::new(),
        }
    }

    fn add(&mut self, port: &PortPlan) {
        self.cluster_ips.insert(port.cluster_ip);
        self.hairpins.extend(&port.endpoints.on_node);
        let key = |ip: &IpAddr| format!("{ip} . {} . {}", port.protocol.keyword(), port.port);
        let unserved = port.endpoints.cluster.is_empty() && port.endpoints.local.is_empty();
        let internal = if unserved {
            format!("goto {NO_ENDPOINTS}")
        } else if port.internal_local {
            self.spread("local", port, &port.endpoints.local)
        } else {
            self.spread("service", port, &port.endpoints.cluster)
        };
        self.service_ips.insert(key(&port.cluster_ip), internal);

        let is_external = port.node_port != 0
            || !port.external_ips.is_empty()
            || !port.load_balancer_ips.is_empty();
        if !is_external {
            return;
        }
        let external = if unserved {
            format!("goto {NO_ENDPOINTS}")
        } else {
            self.external(port)
        };
        for ip in &port.external_ips {
            self.service_ips
                .entry(key(ip))
                .or_insert_with(|| external.clone());
        }
        if !port.load_balancer_ips.is_empty() {
            let target = self.firewall(port, &external);
            for ip in &port.load_balancer_ips {
                self.service_ips
                    .entry(key(ip))
                    .or_insert_with(|| target.clone());
            }
        }
        if port.node_port != 0 {
            self.node_ports.insert(
                format!("{} . {}", port.protocol.keyword(), port.node_port),
                external,
            );
        }
    }

    /// A verdict that sends a connection to one of `endpoints`; dropping is upstream's answer when the policy
    /// Local finds none while other nodes have some.
    fn spread(&mut self, kind: &str, port: &PortPlan, endpoints: &BTreeSet<Endpoint>) -> String {
        if endpoints.is_empty() {
            return "drop".to_owned();
        }
        let name = format!("{kind}-{}", port.name);
        let verdict = format!("goto {name}");
        if self.chains.contains_key(&name) {
            return verdict;
        }
        let rules = match port.affinity_seconds {
            Some(seconds) => self.sticky_rules(port, endpoints, seconds),
            None => self.random_rules(port, endpoints),
        };
        self.chains.insert(name, Chain { hook: None, rules });
        verdict
    }

    fn random_rules(&self, port: &PortPlan, endpoints: &BTreeSet<Endpoint>) -> Vec<String> {
        if endpoints.len() <= LISTED_TARGETS {
            return one_of(endpoints.iter().map(|e| self.dnat(port, e)).collect());
        }
        let entries: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(i, e)| format!("{i} : {} . {}", e.ip, e.port))
            .collect();
        vec![format!(
            "meta l4proto {} dnat {} to numgen random mod {} map {{ {} }}",
            port.protocol.keyword(),
            self.family.keyword(),
            entries.len(),
            entries.join(", ")
        )]
    }

    fn dnat(&self, port: &PortPlan, endpoint: &Endpoint) -> String {
        let target = SocketAddr::new(endpoint.ip, endpoint.port);
        format!(
            "meta l4proto {} dnat {} to {target}",
            port.protocol.keyword(),
            self.family.keyword()
        )
    }

    fn sticky_rules(
        &mut self,
        port: &PortPlan,
        endpoints: &BTreeSet<Endpoint>,
        seconds: u32,
    ) -> Vec<String> {
        let ip = self.family.keyword();
        let mut rules = Vec::with_capacity(endpoints.len() + 1);
        let mut targets = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            // A colon cannot be part of a name.
            let suffix = format!(
                "{}__{}/{}",
                port.name,
                endpoint.ip.to_string().replace(':', "."),
                endpoint.port
            );
            let set = format!("affinity-{seconds}-{suffix}");
            let chain = format!("endpoint-{seconds}-{suffix}");
            rules.push(format!("{ip} saddr @{set} goto {chain}"));
            targets.push(format!("goto {chain}"));
            let remember = format!("update @{set} {{ {ip} saddr }}");
            let chain_rules = vec![remember, self.dnat(port, endpoint)];
            self.chains.insert(
                chain,
                Chain {
                    hook: None,
                    rules: chain_rules,
                },
            );
            let spec = format!(
                "type {}; size {AFFINITY_CLIENTS}; flags dynamic,timeout; timeout {seconds}s;",
                self.family.address_type()
            );
            self.affinity.insert(
                set,
                Set {
                    is_map: false,
                    spec,
                    elements: None,
                },
            );
        }
        if targets.len() <= LISTED_TARGETS {
            rules.extend(one_of(targets));
        } else {
            let entries: Vec<_> = targets
                .iter()
                .enumerate()
                .map(|(i, verdict)| format!("{i} : {verdict}"))
                .collect();
            rules.push(format!(
                "numgen random mod {} vmap {{ {} }}",
                entries.len(),
                entries.join(", ")
            ));
        }
        rules
    }

    fn external(&mut self, port: &PortPlan) -> String {
        let ip = self.family.keyword();
        let rules = if port.external_local {
            let anywhere = self.spread("service", port, &port.endpoints.cluster);
            let local = self.spread("local", port, &port.endpoints.local);
            let mut rules = Vec::new();
            // Pods and the node itself are inside: for them the address is a short cut to the cluster address.
            if let Some(pods) = self.cluster_cidrs() {
                rules.push(format!("{ip} saddr {pods} {anywhere}"));
            }
            rules.push(format!("fib saddr type local jump {MARK}"));
            rules.push(format!("fib saddr type local {anywhere}"));
            rules.push(local);
            rules
        } else {
            vec![
                format!("jump {MARK}"),
                self.spread("service", port, &port.endpoints.cluster),
            ]
        };
        let name = format!("external-{}", port.name);
        let verdict = format!("goto {name}");
        self.chains.insert(name, Chain { hook: None, rules });
        verdict
    }

    fn firewall(&mut self, port: &PortPlan, external: &str) -> String {
        if port.source_ranges.is_empty() {
            return external.to_owned();
        }
        let ranges = braces(&port.source_ranges);
        let rules = vec![
            format!("{} saddr != {ranges} drop", self.family.keyword()),
            external.to_owned(),
        ];
        let name = format!("firewall-{}", port.name);
        let verdict = format!("goto {name}");
        self.chains.insert(name, Chain { hook: None, rules });
        verdict
    }

    fn cluster_cidrs(&self) -> Option<String> {
        of_family(&self.options.cluster_cidrs, self.family)
    }

    fn finish(self) -> Table {
        let mut chains = self.fixed_chains();
        let mut sets = self.affinity;
        let address = self.family.address_type();
        let verdicts = |spec: String, elements| Set {
            is_map: true,
            spec,
            elements: Some(elements),
        };
        sets.insert(
            "service-ips".into(),
            verdicts(
                format!("type {address} . inet_proto . inet_service : verdict;"),
                self.service_ips,
            ),
        );
        sets.insert(
            "service-nodeports".into(),
            verdicts(
                "type inet_proto . inet_service : verdict;".into(),
                self.node_ports,
            ),
        );
        let keys = |keys: BTreeMap<String, String>, spec: String| Set {
            is_map: false,
            spec,
            elements: Some(keys),
        };
        let cluster_ips = self
            .cluster_ips
            .iter()
            .map(|ip| (ip.to_string(), String::new()))
            .collect();
        sets.insert(
            "cluster-ips".into(),
            keys(cluster_ips, format!("type {address};")),
        );
        let hairpins = self
            .hairpins
            .iter()
            .map(|ip| (format!("{ip} . {ip}"), String::new()))
            .collect();
        sets.insert(
            "hairpin".into(),
            keys(hairpins, format!("type {address} . {address};")),
        );
        chains.extend(self.chains);
        Table {
            family: self.family,
            chains,
            sets,
        }
    }

    fn fixed_chains(&self) -> BTreeMap<String, Chain> {
        let ip = self.family.keyword();
        let mut services = Vec::new();
        if self.options.masquerade_all {
            services.push(format!("{ip} daddr @cluster-ips jump {MARK}"));
        } else if let Some(pods) = self.cluster_cidrs() {
            services.push(format!(
                "{ip} daddr @cluster-ips {ip} saddr != {pods} jump {MARK}"
            ));
        }
        services.push(format!(
            "{ip} daddr . meta l4proto . th dport vmap @service-ips"
        ));
        services.push(format!("{ip} daddr @cluster-ips goto {NO_ENDPOINTS}"));
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1",
        };
        let mut node_ports = format!("fib daddr type local {ip} daddr != {loopback}");
        if let Some(ranges) = of_family(&self.options.nodeport_cidrs, self.family) {
            node_ports.push_str(&format!(" {ip} daddr {ranges}"));
        }
        services.push(format!(
            "{node_ports} meta l4proto . th dport vmap @service-nodeports"
        ));

        let masquerade = vec![
            format!("ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade fully-random"),
            format!("meta mark & {MASQUERADE_MARK:#x} == 0x0 return"),
            // Cleared, so that a tunnel's outer packet, which inherits the mark, is left alone.
            format!("meta mark set meta mark ^ {MASQUERADE_MARK:#x}"),
            "masquerade fully-random".to_owned(),
        ];
        let jump = || vec![format!("jump {SERVICES}")];
        let refuse = vec![
            "meta l4proto tcp reject with tcp reset".to_owned(),
            "reject".to_owned(),
        ];
        let chain = |hook, rules| Chain { hook, rules };
        BTreeMap::from([
            (
                "nat-prerouting".into(),
                chain(Some("type nat hook prerouting priority -100;"), jump()),
            ),
            (
                "nat-output".into(),
                chain(Some("type nat hook output priority -100;"), jump()),
            ),
            (
                "nat-postrouting".into(),
                chain(Some("type nat hook postrouting priority 100;"), masquerade),
            ),
            (SERVICES.into(), chain(None, services)),
            (
                MARK.into(),
                chain(
                    None,
                    vec![format!("meta mark set meta mark | {MASQUERADE_MARK:#x}")],
                ),
            ),
            (NO_ENDPOINTS.into(), chain(None, refuse)),
        ])
    }
}

/// Rules that carry out one of `verdicts`, each with the same chance: the first of n with one in n, and so on.
fn one_of(verdicts: Vec<String>) -> Vec<String> {
    let count = verdicts.len();
    let rule = |(i, verdict)| match count - i {
        1 => verdict,
        left => format!("numgen random mod {left} == 0 {verdict}"),
    };
    verdicts.into_iter().enumerate().map(rule).collect()
}

fn of_family(cidrs: &[Cidr], family: Family) -> Option<String> {
    let cidrs: Vec<_> = cidrs
        .iter()
        .copied()
        .filter(|c| c.family() == family)
        .collect();
    (!cidrs.is_empty()).then(|| braces(&cidrs))
}

/// An anonymous set of ranges. Ranges within others are left out, for an interval set refuses overlaps.
fn braces(cidrs: &[Cidr]) -> String {
    let widest: Vec<_> = cidrs
        .iter()
        .filter(|c| !cidrs.iter().any(|o| o != *c && o.contains(c)))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let texts: Vec<_> = widest.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::NodeInfo;
    use crate::model::{EndpointSlice, Service};
    use serde_json::{Value, json};

    fn make(spec: Value, endpoints: Value) -> Table {
        let service: Service = serde_json::from_value(
            json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec}),
        )
        .unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "", "port": 8080}], "endpoints": endpoints,
        }))
        .unwrap();
        let node = NodeInfo {
            name: "n1".into(),
            zone: None,
        };
        let plan = crate::plan::plan([&service], [&slice], &node);
        let options = Options {
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            ..Options::default()
        };
        table(Family::V4, plan.of(Family::V4), &options)
    }

    fn rules<'t>(table: &'t Table, chain: &str) -> &'t [String] {
        &table
            .chains
            .get(chain)
            .unwrap_or_else(|| panic!("no chain {chain}"))
            .rules
    }

    fn verdict<'t>(table: &'t Table, map: &str, key: &str) -> &'t str {
        &table.sets[map].elements.as_ref().unwrap()[key]
    }

    #[test]
    fn a_cluster_address_spreads_over_its_endpoints() {
        let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]});
        let table = make(
            spec,
            json!([{"addresses": ["10.244.1.2"], "nodeName": "n1"}, {"addresses": ["10.244.2.2"]}]),
        );
        assert_eq!(
            verdict(&table, "service-ips", "10.96.0.7 . tcp . 80"),
            "goto service-default/web/tcp/"
        );
        assert_eq!(
            rules(&table, "service-default/web/tcp/"),
            [
                "numgen random mod 2 == 0 meta l4proto tcp dnat ip to 10.244.1.2:8080",
                "meta l4proto tcp dnat ip to 10.244.2.2:8080",
            ]
        );
        let hairpins: Vec<_> = table.sets["hairpin"]
            .elements
            .as_ref()
            .unwrap()
            .keys()
            .collect();
        assert_eq!(hairpins, ["10.244.1.2 . 10.244.1.2"]);
    }

    #[test]
    fn a_service_without_endpoints_is_refused_everywhere() {
        let spec = json!({"clusterIP": "10.96.0.7", "externalIPs": ["192.0.2.1"],
                          "ports": [{"port": 80, "nodePort": 30080}]});
        let table = make(spec, json!([]));
        for key in ["10.96.0.7 . tcp . 80", "192.0.2.1 . tcp . 80"] {
            assert_eq!(verdict(&table, "service-ips", key), "goto no-endpoints");
        }
        assert_eq!(
            verdict(&table, "service-nodeports", "tcp . 30080"),
            "goto no-endpoints"
        );
    }

    #[test]
    fn outside_traffic_is_masqueraded_unless_the_policy_is_local() {
        let ports = json!([{"port": 80, "nodePort": 30080}]);
        let endpoints =
            json!([{"addresses": ["10.244.1.2"], "nodeName": "n1"}, {"addresses": ["10.244.2.2"]}]);
        let table = make(
            json!({"clusterIP": "10.96.0.7", "ports": ports}),
            endpoints.clone(),
        );
        assert_eq!(
            rules(&table, "external-default/web/tcp/"),
            ["jump mark-for-masquerade", "goto service-default/web/tcp/"]
        );
        let spec =
            json!({"clusterIP": "10.96.0.7", "ports": ports, "externalTrafficPolicy": "Local"});
        let table = make(spec, endpoints);
        assert_eq!(
            rules(&table, "external-default/web/tcp/"),
            [
                "ip saddr { 10.244.0.0/16 } goto service-default/web/tcp/",
                "fib saddr type local jump mark-for-masquerade",
                "fib saddr type local goto service-default/web/tcp/",
                "goto local-default/web/tcp/",
            ]
        );
        assert_eq!(
            rules(&table, "local-default/web/tcp/"),
            ["meta l4proto tcp dnat ip to 10.244.1.2:8080"]
        );
    }

    #[test]
    fn a_local_policy_without_local_endpoints_drops() {
        let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80, "nodePort": 30080}],
                          "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"});
        let table = make(
            spec,
            json!([{"addresses": ["10.244.2.2"], "nodeName": "n2"}]),
        );
        assert_eq!(
            verdict(&table, "service-ips", "10.96.0.7 . tcp . 80"),
            "drop"
        );
        assert_eq!(
            rules(&table, "external-default/web/tcp/").last().unwrap(),
            "drop"
        );
    }

    #[test]
    fn affinity_remembers_clients_per_endpoint() {
        let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}], "sessionAffinity": "ClientIP"});
        let table = make(
            spec,
            json!([{"addresses": ["10.244.1.2"]}, {"addresses": ["10.244.2.2"]}]),
        );
        assert_eq!(
            rules(&table, "service-default/web/tcp/"),
            [
                "ip saddr @affinity-10800-default/web/tcp/__10.244.1.2/8080 goto endpoint-10800-default/web/tcp/__10.244.1.2/8080",
                "ip saddr @affinity-10800-default/web/tcp/__10.244.2.2/8080 goto endpoint-10800-default/web/tcp/__10.244.2.2/8080",
                "numgen random mod 2 == 0 goto endpoint-10800-default/web/tcp/__10.244.1.2/8080",
                "goto endpoint-10800-default/web/tcp/__10.244.2.2/8080",
            ]
        );
        assert_eq!(
            table.sets["affinity-10800-default/web/tcp/__10.244.1.2/8080"].elements,
            None
        );
    }

    #[test]
    fn many_endpoints_are_a_map() {
        let many: Vec<_> = (1..=9)
            .map(|i| json!({"addresses": [format!("10.244.1.{i}")]}))
            .collect();
        for affinity in ["None", "ClientIP"] {
            let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}], "sessionAffinity": affinity});
            let table = make(spec, json!(many));
            let last = rules(&table, "service-default/web/tcp/").last().unwrap();
            assert!(
                last.contains("numgen random mod 9") && last.contains("8 : "),
                "{last}"
            );
        }
    }

    #[test]
    fn ranges_within_ranges_are_left_out() {
        let cidrs: Vec<Cidr> = ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24", "192.0.2.0/24"]
            .iter()
            .map(|c| c.parse().unwrap())
            .collect();
        assert_eq!(braces(&cidrs), "{ 10.0.0.0/8, 192.0.2.0/24 }");
    }
}
