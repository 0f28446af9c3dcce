//! `skiff kubelet`: the kubelet and its flags.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgAction;
use cluster::kubelet::{self, KubeletConfig, Taint};

use super::runtime::{self, ClientFlags, Common};
use crate::flags;

#[derive(clap::Args, Debug)]
pub struct Kubelet {
    #[command(flatten)]
    client: ClientFlags,
    /// If non-empty, will use this string as identification instead of the actual hostname.
    #[arg(long)]
    hostname_override: Option<String>,
    /// IP address (or comma-separated dual-stack IP addresses) of the node.
    #[arg(long, value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// The endpoint of container runtime service.
    #[arg(long)]
    container_runtime_endpoint: Option<String>,
    /// The IP address for the kubelet to serve on.
    #[arg(long)]
    address: Option<IpAddr>,
    /// The port for the kubelet to serve on.
    #[arg(long)]
    port: Option<u16>,
    /// Comma-separated list of DNS server IP addresses for pods with "dnsPolicy=ClusterFirst".
    #[arg(long, value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// Domain for this cluster.
    #[arg(long)]
    cluster_domain: Option<String>,
    /// Resolver configuration file used as the basis for the container DNS resolution configuration.
    #[arg(long)]
    resolv_conf: Option<PathBuf>,
    /// If set, any request presenting a client certificate signed by one of the authorities is authenticated.
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// File containing x509 Certificate used for serving HTTPS.
    #[arg(long)]
    tls_cert_file: Option<PathBuf>,
    /// File containing x509 private key matching --tls-cert-file.
    #[arg(long)]
    tls_private_key_file: Option<PathBuf>,
    /// Directory path for managing kubelet files.
    #[arg(long)]
    root_dir: Option<PathBuf>,
    /// Register the node with the apiserver.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    register_node: Option<bool>,
    /// Register the node with the given list of taints (key=value:effect).
    #[arg(long, value_delimiter = ',', value_parser = taint)]
    register_with_taints: Vec<Taint>,
    /// Labels to add when registering the node in the cluster.
    #[arg(long, value_delimiter = ',', value_parser = flags::pair)]
    node_labels: Vec<(String, String)>,
    /// Unique identifier for identifying the node in a machine database.
    #[arg(long)]
    provider_id: Option<String>,
    /// The CIDR to use for pod IP addresses, until the node has one.
    #[arg(long)]
    pod_cidr: Option<String>,
    /// Number of Pods that can run on this kubelet.
    #[arg(long)]
    max_pods: Option<u32>,
    /// Optional root cgroup to use for pods.
    #[arg(long)]
    cgroup_root: Option<String>,
    /// Path to the directory containing static pod files to run.
    #[arg(long)]
    pod_manifest_path: Option<PathBuf>,
    /// Resources reserved for the system: cpu=200m,memory=500Mi.
    #[arg(long, value_delimiter = ',', value_parser = flags::pair)]
    system_reserved: Vec<(String, String)>,
    /// Pulls images one at a time.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    serialize_image_pulls: Option<bool>,
    /// The percent of disk usage after which image garbage collection is always run.
    #[arg(long)]
    image_gc_high_threshold: Option<u64>,
    /// The percent of disk usage before which image garbage collection is never run.
    #[arg(long)]
    image_gc_low_threshold: Option<u64>,
    /// A set of eviction thresholds (e.g. memory.available<1Gi) under which the node is under pressure.
    #[arg(long, value_delimiter = ',')]
    eviction_hard: Vec<String>,
    /// How often the node's state is looked at.
    #[arg(long, value_parser = flags::duration)]
    node_status_update_frequency: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

impl Kubelet {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            client,
            hostname_override,
            node_ip,
            container_runtime_endpoint,
            address,
            port,
            cluster_dns,
            cluster_domain,
            resolv_conf,
            client_ca_file,
            tls_cert_file,
            tls_private_key_file,
            root_dir,
            register_node,
            register_with_taints,
            node_labels,
            provider_id,
            pod_cidr,
            max_pods,
            cgroup_root,
            pod_manifest_path,
            system_reserved,
            serialize_image_pulls,
            image_gc_high_threshold,
            image_gc_low_threshold,
            eviction_hard,
            node_status_update_frequency,
            common,
        } = self;
        let default =
            KubeletConfig::new(hostname_override.unwrap_or_else(cluster::process::host_name));
        let mut config = KubeletConfig {
            node_ips: node_ip,
            cri_socket: container_runtime_endpoint.unwrap_or(default.cri_socket),
            address: address.unwrap_or(default.address),
            port: port.unwrap_or(default.port),
            cluster_dns,
            cluster_domain: cluster_domain.unwrap_or(default.cluster_domain),
            resolv_conf: resolv_conf.unwrap_or(default.resolv_conf),
            client_ca_file: client_ca_file.unwrap_or(default.client_ca_file),
            tls_cert_file: tls_cert_file.unwrap_or(default.tls_cert_file),
            tls_private_key_file: tls_private_key_file.unwrap_or(default.tls_private_key_file),
            root_dir: root_dir.unwrap_or(default.root_dir),
            register_node: register_node.unwrap_or(default.register_node),
            register_with_taints,
            node_labels: node_labels.into_iter().collect(),
            provider_id,
            pod_cidr,
            max_pods: max_pods.unwrap_or(default.max_pods),
            cgroup_root: cgroup_root.unwrap_or(default.cgroup_root),
            static_pod_path: pod_manifest_path,
            system_reserved: system_reserved.into_iter().collect(),
            serialize_image_pulls: serialize_image_pulls.unwrap_or(default.serialize_image_pulls),
            image_gc_high_threshold_percent: image_gc_high_threshold
                .unwrap_or(default.image_gc_high_threshold_percent),
            image_gc_low_threshold_percent: image_gc_low_threshold
                .unwrap_or(default.image_gc_low_threshold_percent),
            node_status_update_frequency: node_status_update_frequency
                .unwrap_or(default.node_status_update_frequency),
            ..default
        };
        for threshold in &eviction_hard {
            config.set_eviction_hard(threshold)?;
        }
        runtime::run(&common, |shutdown| async move {
            let client = client.client("kubelet")?;
            Ok(kubelet::run(client, config, shutdown).await?)
        })
    }
}

/// `key=value:effect` or `key:effect`.
fn taint(text: &str) -> Result<Taint, String> {
    let invalid = || format!("invalid taint spec: {text}");
    let (rest, effect) = text.rsplit_once(':').ok_or_else(invalid)?;
    if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(format!(
            "invalid taint effect: {effect}, unsupported taint effect"
        ));
    }
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    if key.is_empty() {
        return Err(invalid());
    }
    Ok(Taint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_have_a_key_and_an_effect_and_maybe_a_value() {
        let parsed = taint("node-role.kubernetes.io/control-plane=:NoSchedule").expect("a taint");
        assert_eq!(
            (
                parsed.key.as_str(),
                parsed.value.as_str(),
                parsed.effect.as_str()
            ),
            ("node-role.kubernetes.io/control-plane", "", "NoSchedule")
        );
        assert_eq!(taint("a=b:NoExecute").expect("a taint").value, "b");
        for bad in ["", "a", "a=b", "a:Never", ":NoSchedule"] {
            assert!(taint(bad).is_err(), "{bad}");
        }
    }
}
