//! Answers about the cluster's own names. Pure over [`Cluster`].
//!
//! ```text
//! <service>.<ns>.svc.<domain>                  A, AAAA: cluster addresses, or the endpoints of a headless Service
//!                                              SRV: every port; CNAME: an ExternalName's target
//! _<port>._<protocol>.<service>.<ns>.svc.…     SRV: that port
//! <hostname or 10-0-0-1>.<service>.<ns>.svc.…  A, AAAA: one endpoint
//! <10-0-0-1>.<ns>.pod.<domain>                 A: the address in the name, if the namespace exists
//! dns-version.<domain>                         TXT: version of the specification
//! 1.0.0.10.in-addr.arpa, ….ip6.arpa            PTR: Services' and endpoints' names; others are not ours
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::cluster::Cluster;

/// Version of the specification, served under `dns-version`.
const SPECIFICATION: &str = "1.1.0";
/// Where the DNS server's own Service is (its name is a contract with every pod's resolv.conf generator).
const OWN_SERVICE: (&str, &str) = ("kube-system", "kube-dns");
/// Sum of the weights of a name's SRV records.
const WEIGHTS: usize = 100;

/// The cluster's domain.
#[derive(Clone, Debug)]
pub struct Zone {
    origin: Name,
    labels: Vec<String>,
    ttl: u32,
    serial: u32,
}

/// What the zone has to say to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// NOERROR, NXDOMAIN or SERVFAIL.
    pub code: ResponseCode,
    /// Answer section.
    pub answers: Vec<Record>,
    /// Authority section: the SOA of negative answers.
    pub authorities: Vec<Record>,
    /// Additional section: addresses of SRV targets.
    pub additionals: Vec<Record>,
    /// A name to resolve in addition, for an alias was found in its stead.
    pub follow: Option<Name>,
}

/// A thing that a name stands for.
struct Host {
    ip: IpAddr,
    port: Option<u16>,
    /// Labels below the domain of the name that has this address alone.
    target: String,
}

enum Found {
    /// There is no such name.
    Nothing,
    /// The name exists, for there are names below it.
    Empty,
    Hosts(Vec<Host>),
    Alias(Name),
}

/// The domain is no DNS name.
#[derive(Debug, thiserror::Error)]
#[error("invalid cluster domain {0:?}")]
pub struct BadDomain(String);

impl Zone {
    /// A zone for `domain` (with or without the final dot), whose records may be cached for `ttl` seconds.
    ///
    /// # Errors
    /// `domain` is no DNS name.
    pub fn new(domain: &str, ttl: u32, serial: u32) -> Result<Self, BadDomain> {
        let bad = || BadDomain(domain.to_owned());
        let mut origin = Name::from_ascii(domain).map_err(|_| bad())?.to_lowercase();
        origin.set_fqdn(true);
        let labels = labels(&origin).filter(|l| !l.is_empty()).ok_or_else(bad)?;
        Ok(Self {
            origin,
            labels,
            ttl,
            serial,
        })
    }

    /// Answers, or says that the name is none of the cluster's.
    pub fn answer(&self, cluster: &dyn Cluster, query: &Query) -> Option<Answer> {
        let Some(labels) = labels(query.name()) else {
            return self
                .origin
                .zone_of(query.name())
                .then(|| self.negative(ResponseCode::NXDomain));
        };
        if let Some(below) = labels.strip_suffix(self.labels.as_slice()) {
            if !cluster.is_synced() {
                return Some(failure());
            }
            return Some(self.answer_below(cluster, query, below));
        }
        let ip = reverse_address(&labels)?;
        if !cluster.is_synced() {
            return Some(failure());
        }
        self.answer_reverse(cluster, query, ip)
    }

    fn answer_below(&self, cluster: &dyn Cluster, query: &Query, below: &[String]) -> Answer {
        let below: Vec<_> = below.iter().map(String::as_str).collect();
        let found = match below.as_slice() {
            [] => return self.apex(cluster, query),
            ["dns-version"] => return self.version(query),
            ["ns", "dns"] => services(cluster, OWN_SERVICE.0, OWN_SERVICE.1, Part::Whole),
            ["dns"] | ["svc"] | ["pod"] => Found::Empty,
            [namespace, "svc" | "pod"] if cluster.has_namespace(namespace) => Found::Empty,
            [pod, namespace, "pod"] if cluster.has_namespace(namespace) => {
                pod_address(pod, namespace)
            }
            [service, namespace, "svc"] => services(cluster, namespace, service, Part::Whole),
            [endpoint, service, namespace, "svc"] => {
                services(cluster, namespace, service, Part::Endpoint(endpoint))
            }
            [port, protocol, service, namespace, "svc"] => {
                match (port.strip_prefix('_'), protocol.strip_prefix('_')) {
                    (Some(port), Some(protocol)) => {
                        services(cluster, namespace, service, Part::Port { port, protocol })
                    }
                    _ => Found::Nothing,
                }
            }
            _ => Found::Nothing,
        };
        match found {
            Found::Nothing => self.negative(ResponseCode::NXDomain),
            Found::Empty => self.negative(ResponseCode::NoError),
            Found::Alias(target) => self.alias(query, target),
            Found::Hosts(hosts) => self.hosts(query, &hosts),
        }
    }

    fn hosts(&self, query: &Query, hosts: &[Host]) -> Answer {
        let mut answer = empty();
        match query.query_type() {
            kind @ (RecordType::A | RecordType::AAAA) => {
                let addresses: BTreeSet<_> = hosts.iter().map(|h| h.ip).collect();
                answer.answers = addresses
                    .into_iter()
                    .map(|ip| self.address(query.name().clone(), ip))
                    .filter(|r| r.record_type() == kind)
                    .collect();
            }
            RecordType::SRV => self.srv(query, hosts, &mut answer),
            _ => {}
        }
        if answer.answers.is_empty() {
            self.negative(ResponseCode::NoError)
        } else {
            answer
        }
    }

    fn srv(&self, query: &Query, hosts: &[Host], answer: &mut Answer) {
        let targets: BTreeSet<_> = hosts
            .iter()
            .filter_map(|h| Some((h.target.as_str(), h.port?)))
            .collect();
        let weight = u16::try_from(WEIGHTS / targets.len().max(1))
            .unwrap_or(1)
            .max(1);
        for (target, port) in &targets {
            let Some(target) = self.name(target) else {
                continue;
            };
            let data = RData::SRV(SRV::new(0, weight, *port, target));
            answer
                .answers
                .push(Record::from_rdata(query.name().clone(), self.ttl, data));
        }
        let addresses: BTreeSet<_> = hosts
            .iter()
            .filter(|h| h.port.is_some())
            .map(|h| (h.target.as_str(), h.ip))
            .collect();
        for (target, ip) in addresses {
            answer
                .additionals
                .extend(self.name(target).map(|name| self.address(name, ip)));
        }
    }

    fn alias(&self, query: &Query, target: Name) -> Answer {
        let mut answer = empty();
        let data = match query.query_type() {
            RecordType::SRV => RData::SRV(SRV::new(0, 100, 0, target)),
            RecordType::CNAME => RData::CNAME(CNAME(target)),
            _ => {
                answer.follow = Some(target.clone());
                RData::CNAME(CNAME(target))
            }
        };
        answer
            .answers
            .push(Record::from_rdata(query.name().clone(), self.ttl, data));
        answer
    }

    fn apex(&self, cluster: &dyn Cluster, query: &Query) -> Answer {
        let mut answer = empty();
        match query.query_type() {
            RecordType::SOA => answer.answers.push(self.soa()),
            RecordType::NS => {
                let (namespace, name) = OWN_SERVICE;
                let own = match cluster.service(namespace, name) {
                    Some(_) => format!("{name}.{namespace}.svc"),
                    None => "ns.dns".to_owned(),
                };
                let Some(target) = self.name(&own) else {
                    return self.negative(ResponseCode::NoError);
                };
                if let Found::Hosts(hosts) = services(cluster, namespace, name, Part::Whole) {
                    let addresses: BTreeSet<_> = hosts.iter().map(|h| h.ip).collect();
                    answer.additionals = addresses
                        .into_iter()
                        .map(|ip| self.address(target.clone(), ip))
                        .collect();
                }
                answer.answers.push(Record::from_rdata(
                    query.name().clone(),
                    self.ttl,
                    RData::NS(NS(target)),
                ));
            }
            _ => return self.negative(ResponseCode::NoError),
        }
        answer
    }

    fn version(&self, query: &Query) -> Answer {
        if query.query_type() != RecordType::TXT {
            return self.negative(ResponseCode::NoError);
        }
        let data = RData::TXT(TXT::new(vec![SPECIFICATION.to_owned()]));
        let mut answer = empty();
        answer
            .answers
            .push(Record::from_rdata(query.name().clone(), self.ttl, data));
        answer
    }

    fn answer_reverse(&self, cluster: &dyn Cluster, query: &Query, ip: IpAddr) -> Option<Answer> {
        let mut names: BTreeSet<String> = cluster
            .services_at(ip)
            .iter()
            .map(|s| format!("{}.{}.svc", s.metadata.name, s.metadata.namespace))
            .collect();
        if names.is_empty() {
            for slice in cluster.slices_at(ip) {
                let Some(key) = slice.service_key() else {
                    continue;
                };
                let Some((namespace, service)) = key.split_once('/') else {
                    continue;
                };
                let here = slice
                    .named_endpoints()
                    .filter(|(address, _)| *address == ip);
                names.extend(
                    here.map(|(ip, e)| format!("{}.{service}.{namespace}.svc", e.label(ip))),
                );
            }
        }
        if names.is_empty() {
            return None;
        }
        if query.query_type() != RecordType::PTR {
            return Some(self.negative(ResponseCode::NoError));
        }
        let mut answer = empty();
        for name in names.iter().filter_map(|n| self.name(n)) {
            answer.answers.push(Record::from_rdata(
                query.name().clone(),
                self.ttl,
                RData::PTR(PTR(name)),
            ));
        }
        Some(answer)
    }

    fn negative(&self, code: ResponseCode) -> Answer {
        Answer {
            code,
            authorities: vec![self.soa()],
            ..empty()
        }
    }

    fn soa(&self) -> Record {
        let name = |prefix: &str| self.name(prefix).unwrap_or_else(|| self.origin.clone());
        let minimum = self.ttl;
        let soa = SOA::new(
            name("ns.dns"),
            name("hostmaster"),
            self.serial,
            7200,
            1800,
            86400,
            minimum,
        );
        Record::from_rdata(self.origin.clone(), self.ttl, RData::SOA(soa))
    }

    fn address(&self, name: Name, ip: IpAddr) -> Record {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
        };
        Record::from_rdata(name, self.ttl, data)
    }

    /// The name of `below` (dotted) in this zone; None if that would be longer than names can be.
    fn name(&self, below: &str) -> Option<Name> {
        let labels = below
            .split('.')
            .map(str::as_bytes)
            .chain(self.labels.iter().map(String::as_bytes));
        let mut name = Name::from_labels(labels).ok()?;
        name.set_fqdn(true);
        Some(name)
    }
}

/// Which part of a Service a name asks for.
#[derive(Clone, Copy)]
enum Part<'a> {
    Whole,
    Endpoint(&'a str),
    Port { port: &'a str, protocol: &'a str },
}

impl Part<'_> {
    fn takes_port(&self, name: &str, protocol: &str) -> bool {
        let protocol = if protocol.is_empty() { "TCP" } else { protocol };
        match self {
            Part::Port {
                port,
                protocol: wanted,
            } => name.eq_ignore_ascii_case(port) && protocol.eq_ignore_ascii_case(wanted),
            _ => true,
        }
    }
}

fn services(cluster: &dyn Cluster, namespace: &str, name: &str, part: Part<'_>) -> Found {
    let Some(service) = cluster.service(namespace, name) else {
        return Found::Nothing;
    };
    if service.spec.r#type == "ExternalName" {
        return match (part, external_name(&service.spec.external_name)) {
            (Part::Whole | Part::Port { .. }, Some(target)) => Found::Alias(target),
            _ => Found::Nothing,
        };
    }
    let hosts = if service.is_headless() || matches!(part, Part::Endpoint(_)) {
        endpoints(cluster, namespace, name, part)
    } else {
        let target = format!("{name}.{namespace}.svc");
        let ports: Vec<_> = service
            .spec
            .ports
            .iter()
            .filter(|p| part.takes_port(&p.name, &p.protocol))
            .collect();
        let host = |ip, port| Host {
            ip,
            port: Some(port),
            target: target.clone(),
        };
        service
            .cluster_addresses()
            .iter()
            .flat_map(|ip| ports.iter().map(move |p| (*ip, p.port)))
            .map(|(ip, port)| host(ip, port))
            .collect()
    };
    if hosts.is_empty() {
        Found::Nothing
    } else {
        Found::Hosts(hosts)
    }
}

fn endpoints(cluster: &dyn Cluster, namespace: &str, service: &str, part: Part<'_>) -> Vec<Host> {
    let mut hosts = Vec::new();
    for slice in cluster.slices(namespace, service) {
        let ports: Vec<_> = slice
            .ports
            .iter()
            .filter(|p| {
                part.takes_port(
                    p.name.as_deref().unwrap_or(""),
                    p.protocol.as_deref().unwrap_or(""),
                )
            })
            .filter_map(|p| p.port)
            .collect();
        for (ip, endpoint) in slice.named_endpoints() {
            let label = endpoint.label(ip);
            if matches!(part, Part::Endpoint(wanted) if !wanted.eq_ignore_ascii_case(&label)) {
                continue;
            }
            let target = format!("{label}.{service}.{namespace}.svc");
            hosts.extend(ports.iter().map(|port| Host {
                ip,
                port: Some(*port),
                target: target.clone(),
            }));
            if ports.is_empty() && !matches!(part, Part::Port { .. }) {
                hosts.push(Host {
                    ip,
                    port: None,
                    target,
                });
            }
        }
    }
    hosts
}

fn external_name(name: &str) -> Option<Name> {
    // An address is no name; upstream's DNS servers leave such Services out.
    if name.is_empty() || name.parse::<IpAddr>().is_ok() {
        return None;
    }
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    Some(name)
}

fn pod_address(label: &str, namespace: &str) -> Found {
    let is_v4 = label.matches('-').count() == 3 && !label.contains("--");
    let ip = label.replace('-', if is_v4 { "." } else { ":" });
    match ip.parse() {
        Ok(ip) => Found::Hosts(vec![Host {
            ip,
            port: None,
            target: format!("{label}.{namespace}.pod"),
        }]),
        Err(_) => Found::Nothing,
    }
}

/// Lower-case labels, outermost last; None if one is not text.
fn labels(name: &Name) -> Option<Vec<String>> {
    name.iter()
        .map(|l| Some(std::str::from_utf8(l).ok()?.to_ascii_lowercase()))
        .collect()
}

/// The address a name in in-addr.arpa or ip6.arpa stands for, if it stands for a single one.
fn reverse_address(labels: &[String]) -> Option<IpAddr> {
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    match labels.as_slice() {
        [d, c, b, a, "in-addr", "arpa"] => format!("{a}.{b}.{c}.{d}").parse().ok().map(IpAddr::V4),
        [nibbles @ .., "ip6", "arpa"] if nibbles.len() == 32 => {
            let mut value: u128 = 0;
            for nibble in nibbles.iter().rev() {
                if nibble.len() != 1 {
                    return None;
                }
                value = value << 4 | u128::from_str_radix(nibble, 16).ok()?;
            }
            Some(IpAddr::V6(value.into()))
        }
        _ => None,
    }
}

fn empty() -> Answer {
    Answer {
        code: ResponseCode::NoError,
        answers: Vec::new(),
        authorities: Vec::new(),
        additionals: Vec::new(),
        follow: None,
    }
}

fn failure() -> Answer {
    Answer {
        code: ResponseCode::ServFail,
        ..empty()
    }
}
