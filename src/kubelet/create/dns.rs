//! A pod's resolver configuration and its /etc/hosts. Pure: the node's own
//! files come in as text.

use std::net::IpAddr;

use crate::cri::v1::DnsConfig;
use crate::k8s::Pod;
use crate::pod::spec;

/// The C library's bounds, which upstream validates against.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Longest hostname the kernel takes.
const MAX_HOSTNAME: usize = 63;

/// What a cluster and a node resolve with.
#[derive(Clone, Debug, Default)]
pub struct Resolver<'a> {
    /// The cluster's DNS servers.
    pub cluster_dns: &'a [IpAddr],
    /// `cluster.local`.
    pub cluster_domain: &'a str,
    /// The node's resolv.conf.
    pub resolv_conf: &'a str,
}

/// The configuration by the pod's dnsPolicy and dnsConfig.
pub fn config(pod: &Pod, resolver: &Resolver<'_>) -> DnsConfig {
    let spec = spec::spec(pod);
    let host_network = spec.host_network.unwrap_or(false);
    let node = parse(resolver.resolv_conf);
    let cluster = !resolver.cluster_dns.is_empty();
    let mut config = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "None" => DnsConfig::default(),
        "ClusterFirst" if cluster && !host_network => in_cluster(pod, resolver, node),
        "ClusterFirstWithHostNet" if cluster => in_cluster(pod, resolver, node),
        _ => node,
    };
    if let Some(own) = &spec.dns_config {
        config
            .servers
            .extend(own.nameservers.iter().flatten().cloned());
        config
            .searches
            .extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            config
                .options
                .retain(|other| other.split(':').next() != Some(name));
            config.options.push(match &option.value {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name.clone(),
            });
        }
    }
    dedupe(&mut config.servers);
    dedupe(&mut config.searches);
    config.servers.truncate(MAX_NAMESERVERS);
    config.searches.truncate(MAX_SEARCHES);
    config
}

/// Services are found by short names; a name with fewer than five dots is
/// first looked up in the cluster.
fn in_cluster(pod: &Pod, resolver: &Resolver<'_>, node: DnsConfig) -> DnsConfig {
    let domain = resolver.cluster_domain;
    let mut searches = match domain {
        "" => Vec::new(),
        domain => vec![
            format!("{}.svc.{domain}", spec::namespace(pod)),
            format!("svc.{domain}"),
            domain.to_owned(),
        ],
    };
    searches.extend(node.searches);
    DnsConfig {
        servers: resolver.cluster_dns.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

fn dedupe(list: &mut Vec<String>) {
    let mut seen = Vec::new();
    list.retain(|entry| {
        let new = !seen.contains(entry);
        seen.push(entry.clone());
        new
    });
}

fn parse(resolv_conf: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in resolv_conf.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => config.servers.extend(words.next()),
            // The last such line counts.
            Some("search") => config.searches = words.filter(|domain| domain != ".").collect(),
            Some("options") => config.options = words.collect(),
            _ => {}
        }
    }
    config
}

/// The pod's hostname and, if it has a subdomain, its cluster domain.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = spec::spec(pod);
    if let Some(name) = &spec.hostname_override {
        return (name.clone(), String::new());
    }
    let name = spec.hostname.as_deref().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| spec::name(pod));
    let short = name.get(..name.len().min(MAX_HOSTNAME)).unwrap_or(name);
    let short = short.trim_end_matches(['-', '.']).to_owned();
    let subdomain = spec
        .subdomain
        .as_deref()
        .filter(|domain| !domain.is_empty());
    let domain = subdomain
        .map(|subdomain| format!("{subdomain}.{}.svc.{cluster_domain}", spec::namespace(pod)));
    (short, domain.unwrap_or_default())
}

/// What the sandbox's hostname is set to: the short name, or the whole one if
/// the pod asks for that.
pub fn sandbox_hostname(pod: &Pod, cluster_domain: &str) -> String {
    let (short, domain) = hostname(pod, cluster_domain);
    let whole = spec::spec(pod).set_hostname_as_fqdn.unwrap_or(false);
    if whole && !domain.is_empty() {
        format!("{short}.{domain}")
    } else {
        short
    }
}

/// The pod's /etc/hosts. `node_hosts` is the node's file, for pods on its network.
pub fn etc_hosts(pod: &Pod, ips: &[String], cluster_domain: &str, node_hosts: &str) -> String {
    let mut text = if spec::host_network(pod) {
        format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}")
    } else {
        let (short, domain) = hostname(pod, cluster_domain);
        let mut text = String::from(
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        for ip in ips {
            let names = if domain.is_empty() {
                short.clone()
            } else {
                format!("{short}.{domain}\t{short}")
            };
            text.push_str(&format!("{ip}\t{names}\n"));
        }
        text
    };
    let spec = spec::spec(pod);
    let mut aliases = spec.host_aliases.iter().flatten().peekable();
    if aliases.peek().is_some() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.clone().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    const NODE: &str = "nameserver 192.0.2.53\nsearch example.org\noptions edns0 trust-ad\n";

    fn mk_config(spec: Value) -> DnsConfig {
        let cluster_dns = ["10.96.0.10".parse().expect("an address")];
        let resolver = Resolver {
            cluster_dns: &cluster_dns,
            cluster_domain: "cluster.local",
            resolv_conf: NODE,
        };
        config(&mk_pod(spec), &resolver)
    }

    #[test]
    fn cluster_first_pods_look_in_the_cluster_first() {
        let config = mk_config(json!({"dnsPolicy": "ClusterFirst", "containers": []}));
        assert_eq!(config.servers, ["10.96.0.10"]);
        assert_eq!(
            config.searches,
            [
                "ns.svc.cluster.local",
                "svc.cluster.local",
                "cluster.local",
                "example.org"
            ]
        );
        assert_eq!(config.options, ["ndots:5"]);
    }

    #[test]
    fn pods_on_the_nodes_network_use_the_nodes_resolvers_unless_told_otherwise() {
        let node = mk_config(json!({"hostNetwork": true, "containers": []}));
        assert_eq!(
            (node.servers, node.options.len()),
            (vec!["192.0.2.53".to_owned()], 2)
        );
        let cluster = mk_config(
            json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet", "containers": []}),
        );
        assert_eq!(cluster.servers, ["10.96.0.10"]);
    }

    #[test]
    fn a_pods_own_configuration_is_added_and_overrides_options() {
        let own = json!({"nameservers": ["192.0.2.1"], "searches": ["a.b"], "options": [
            {"name": "ndots", "value": "2"}, {"name": "use-vc"},
        ]});
        let alone = mk_config(json!({"dnsPolicy": "None", "dnsConfig": own, "containers": []}));
        assert_eq!(alone.servers, ["192.0.2.1"]);
        assert_eq!(alone.options, ["ndots:2", "use-vc"]);
        let merged = mk_config(json!({"dnsConfig": own, "containers": []}));
        assert_eq!(merged.servers, ["10.96.0.10", "192.0.2.1"]);
        assert_eq!(merged.options, ["ndots:2", "use-vc"]);
    }

    #[test]
    fn a_subdomain_makes_a_full_name() {
        let pod = mk_pod(json!({"hostname": "web-0", "subdomain": "web", "containers": []}));
        assert_eq!(
            hostname(&pod, "cluster.local"),
            ("web-0".into(), "web.ns.svc.cluster.local".into())
        );
        let hosts = etc_hosts(&pod, &["10.244.0.5".to_owned()], "cluster.local", "");
        assert!(
            hosts.ends_with("10.244.0.5\tweb-0.web.ns.svc.cluster.local\tweb-0\n"),
            "{hosts}"
        );
    }

    #[test]
    fn long_names_are_cut_to_what_the_kernel_takes() {
        let mut pod = mk_pod(json!({"containers": []}));
        pod.metadata.name = Some(format!("{}-{}", "a".repeat(62), "b".repeat(10)));
        assert_eq!(hostname(&pod, "").0, "a".repeat(62));
    }

    #[test]
    fn host_aliases_are_added() {
        let pod = mk_pod(json!({"containers": [], "hostAliases": [
            {"ip": "192.0.2.9", "hostnames": ["a", "b"]},
        ]}));
        let hosts = etc_hosts(&pod, &[], "cluster.local", "");
        assert!(
            hosts.ends_with("\n# Entries added by HostAliases.\n192.0.2.9\ta\tb\n"),
            "{hosts}"
        );
    }
}
