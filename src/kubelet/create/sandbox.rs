//! The sandbox of a pod as the runtime is asked for it. Pure.

use std::collections::HashMap;

use super::security;
use crate::cri::{labels, v1};
use crate::k8s::Pod;
use crate::paths::PodPaths;
use crate::pod::spec::{self, Kind};

/// What beside the pod goes into its sandbox.
pub struct Input<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its folders.
    pub paths: &'a PodPaths,
    /// Its resolvers.
    pub dns: v1::DnsConfig,
    /// `cluster.local`.
    pub cluster_domain: &'a str,
    /// The cgroup its containers are put under; empty for the runtime's default.
    pub cgroup_parent: String,
    /// How many sandboxes it had before.
    pub attempt: u32,
}

/// Makes the configuration.
pub fn config(input: Input<'_>) -> v1::PodSandboxConfig {
    let Input {
        pod,
        paths,
        dns,
        cluster_domain,
        cgroup_parent,
        attempt,
    } = input;
    let (namespace, name, uid) = (spec::namespace(pod), spec::name(pod), spec::uid(pod));
    let own_labels = pod.metadata.labels.clone().unwrap_or_default();
    let host_network = spec::host_network(pod);
    let mut annotations: HashMap<_, _> = pod
        .metadata
        .annotations
        .clone()
        .unwrap_or_default()
        .into_iter()
        .collect();
    annotations
        .entry(labels::CONFIG_SOURCE.to_owned())
        .or_insert_with(|| "api".to_owned());
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt,
        }),
        hostname: match host_network {
            true => String::new(),
            false => super::dns::sandbox_hostname(pod, cluster_domain),
        },
        log_directory: paths.logs().display().to_string(),
        dns_config: Some(dns),
        port_mappings: if host_network {
            Vec::new()
        } else {
            port_mappings(pod)
        },
        labels: labels::sandbox_labels(&own_labels, namespace, name, uid),
        annotations,
        linux: Some(linux(pod, cgroup_parent)),
        windows: None,
    }
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let slots = spec::slots(pod);
    let running = slots
        .iter()
        .filter(|slot| matches!(slot.kind, Kind::Regular | Kind::Sidecar));
    let ports = running.flat_map(|slot| slot.container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let host_port = port.host_port.filter(|port| *port > 0)?;
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            };
            Some(v1::PortMapping {
                protocol: protocol as i32,
                container_port: port.container_port,
                host_port,
                host_ip: port.host_ip.clone().unwrap_or_default(),
            })
        })
        .collect()
}

fn linux(pod: &Pod, cgroup_parent: String) -> v1::LinuxPodSandboxConfig {
    let spec = spec::spec(pod);
    let context = spec.security_context.clone().unwrap_or_default();
    let sysctls = context.sysctls.iter().flatten();
    let privileged = spec::slots(pod).iter().any(|slot| {
        slot.container
            .security_context
            .as_ref()
            .and_then(|context| context.privileged)
            == Some(true)
    });
    v1::LinuxPodSandboxConfig {
        cgroup_parent,
        sysctls: sysctls
            .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
            .collect(),
        security_context: Some(v1::LinuxSandboxSecurityContext {
            namespace_options: Some(security::namespaces(pod, None)),
            run_as_user: context.run_as_user.map(|value| v1::Int64Value { value }),
            // The runtime refuses a group without a user.
            run_as_group: context
                .run_as_group
                .filter(|_| context.run_as_user.is_some())
                .map(|value| v1::Int64Value { value }),
            supplemental_groups: security::supplemental_groups(pod),
            privileged,
            seccomp: Some(security::seccomp_or_default(
                context.seccomp_profile.as_ref(),
            )),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    #[test]
    fn a_sandbox_carries_the_pods_identity_ports_and_sysctls() {
        let pod = mk_pod(json!({
            "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
            "containers": [{"name": "c", "ports": [
                {"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}, {"containerPort": 81},
            ]}],
        }));
        let paths = PodPaths::new(Path::new("/k"), Path::new("/l"), &pod);
        let config = config(Input {
            pod: &pod,
            paths: &paths,
            dns: v1::DnsConfig::default(),
            cluster_domain: "cluster.local",
            cgroup_parent: "/kubepods".to_owned(),
            attempt: 1,
        });
        assert_eq!(config.hostname, "p");
        assert_eq!(config.log_directory, "/l/ns_p_u-1");
        assert_eq!(config.labels[labels::POD_UID], "u-1");
        assert_eq!(config.port_mappings.len(), 1);
        let linux = config.linux.expect("linux");
        assert_eq!(linux.sysctls["net.ipv4.ip_unprivileged_port_start"], "0");
        let network = linux
            .security_context
            .and_then(|c| c.namespace_options)
            .expect("options")
            .network;
        assert_eq!(network, v1::NamespaceMode::Pod as i32);
    }
}
