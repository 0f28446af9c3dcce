//! `skiff kubelet`: the kubelet and its flags.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

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
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock")]
    container_runtime_endpoint: String,
    /// Comma-separated list of DNS server IP addresses for pods with "dnsPolicy=ClusterFirst".
    #[arg(long, value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// Domain for this cluster.
    #[arg(long)]
    cluster_domain: Option<String>,
    /// Resolver configuration file used as the basis for the container DNS resolution configuration.
    #[arg(long, default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
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
    #[arg(long, default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Register the node with the given list of taints.
    #[arg(long, value_delimiter = ',')]
    register_with_taints: Vec<String>,
    /// Labels to add when registering the node in the cluster.
    #[arg(long, value_delimiter = ',', value_parser = flags::pair)]
    node_labels: Vec<(String, String)>,
    #[command(flatten)]
    common: Common,
}

impl Kubelet {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let common = Common {
            verbosity: self.common.verbosity,
        };
        runtime::run(&common, |shutdown| async move {
            let _ = (self.client.client("kubelet")?, shutdown);
            anyhow::bail!("the kubelet is not built in yet")
        })
    }
}
