//! What a kubelet is told: a plain struct that the command line fills. Names
//! and defaults are those of upstream's KubeletConfiguration v1beta1.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use apimachinery::quantity::Quantity;

/// The version a node shows.
pub const KUBELET_VERSION: &str = "v1.37.0";

/// A taint the node is registered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, mostly empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Settings of one kubelet. Start from [`KubeletConfig::new`].
#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// Name of the Node (`--hostname-override`).
    pub node_name: String,
    /// The node's addresses, the primary one first (`--node-ip`). Empty: the
    /// address of the interface with the default route.
    pub node_ips: Vec<IpAddr>,
    /// Volumes and state of pods (`--root-dir`).
    pub root_dir: PathBuf,
    /// Logs of containers (`podLogsDir`).
    pub pod_logs_dir: PathBuf,
    /// Links to the logs for log shippers; upstream's fixed `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// The runtime's socket (`--container-runtime-endpoint`), with or without `unix://`.
    pub cri_socket: String,
    /// Where the HTTPS server listens (`--address`).
    pub address: IpAddr,
    /// And on which port (`--port`).
    pub port: u16,
    /// PEM files of the serving certificate (`--tls-cert-file`, `--tls-private-key-file`).
    pub tls_cert_file: PathBuf,
    /// See `tls_cert_file`.
    pub tls_private_key_file: PathBuf,
    /// PEM bundle that client certificates are checked against (`--client-ca-file`).
    pub client_ca_file: PathBuf,
    /// Resolvers of ClusterFirst pods (`--cluster-dns`).
    pub cluster_dns: Vec<IpAddr>,
    /// `cluster.local` (`--cluster-domain`).
    pub cluster_domain: String,
    /// The node's resolver configuration (`--resolv-conf`); empty for none.
    pub resolv_conf: PathBuf,
    /// Whether to create the Node (`--register-node`).
    pub register_node: bool,
    /// Labels given at registration (`--node-labels`).
    pub node_labels: BTreeMap<String, String>,
    /// Taints given at registration (`--register-with-taints`).
    pub register_with_taints: Vec<Taint>,
    /// spec.providerID (`--provider-id`).
    pub provider_id: Option<String>,
    /// Pod CIDR told to the runtime until the Node has one (`--pod-cidr`).
    pub pod_cidr: Option<String>,
    /// Most pods at a time (`--max-pods`).
    pub max_pods: u32,
    /// Cgroup under which `kubepods` is made (`--cgroup-root`); empty leaves
    /// cgroups to the runtime's default parent.
    pub cgroup_root: String,
    /// Folder of static pods (`--pod-manifest-path`).
    pub static_pod_path: Option<PathBuf>,
    /// Reserved for the system, taken off allocatable: `cpu`, `memory`, … (`--system-reserved`).
    pub system_reserved: BTreeMap<String, String>,
    /// Below so much memory the node is under pressure, bytes (`evictionHard memory.available`).
    pub eviction_memory_available: u64,
    /// Below so much of the disk free the node is under pressure, percent (`nodefs.available`).
    pub eviction_disk_available_percent: u64,
    /// Disk use above which unused images are removed, percent; 100 is never.
    pub image_gc_high_threshold_percent: u64,
    /// Disk use down to which they are removed, percent.
    pub image_gc_low_threshold_percent: u64,
    /// Size at which a container's log is rotated, bytes.
    pub container_log_max_size: u64,
    /// Files of one container's log, rotated ones included.
    pub container_log_max_files: usize,
    /// Pull one image at a time.
    pub serialize_image_pulls: bool,
    /// How often the node's state is looked at.
    pub node_status_update_frequency: Duration,
    /// How often an unchanged status is sent all the same.
    pub node_status_report_frequency: Duration,
    /// How long the node's lease lasts; renewed four times in it.
    pub node_lease_duration: Duration,
}

/// An eviction threshold that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid eviction threshold {0:?}")]
pub struct InvalidThreshold(String);

impl KubeletConfig {
    /// Takes one threshold of `--eviction-hard`, such as `memory.available<100Mi`
    /// or `nodefs.available<10%`. Signals that this kubelet does not look at are
    /// accepted and have no effect.
    pub fn set_eviction_hard(&mut self, threshold: &str) -> Result<(), InvalidThreshold> {
        let invalid = || InvalidThreshold(threshold.to_owned());
        let (signal, value) = threshold.split_once('<').ok_or_else(invalid)?;
        let percent = |value: &str| value.strip_suffix('%').and_then(|value| value.parse().ok());
        match signal {
            "memory.available" => {
                let amount = value.parse::<Quantity>().map_err(|_| invalid())?;
                self.eviction_memory_available =
                    u64::try_from(amount.value()).map_err(|_| invalid())?;
            }
            "nodefs.available" => {
                self.eviction_disk_available_percent = percent(value).ok_or_else(invalid)?;
            }
            "nodefs.inodesFree" | "imagefs.available" | "imagefs.inodesFree" | "pid.available" => {}
            _ => return Err(invalid()),
        }
        Ok(())
    }

    /// Upstream's defaults for a node of this name.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            node_ips: Vec::new(),
            root_dir: PathBuf::from("/var/lib/kubelet"),
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            container_logs_dir: PathBuf::from("/var/log/containers"),
            cri_socket: "unix:///run/containerd/containerd.sock".to_owned(),
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 10250,
            tls_cert_file: PathBuf::from("/var/lib/kubelet/pki/kubelet.crt"),
            tls_private_key_file: PathBuf::from("/var/lib/kubelet/pki/kubelet.key"),
            client_ca_file: PathBuf::from("/etc/kubernetes/pki/ca.crt"),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            register_node: true,
            node_labels: BTreeMap::new(),
            register_with_taints: Vec::new(),
            provider_id: None,
            pod_cidr: None,
            max_pods: 110,
            cgroup_root: "/".to_owned(),
            static_pod_path: None,
            system_reserved: BTreeMap::new(),
            eviction_memory_available: 100 << 20,
            eviction_disk_available_percent: 10,
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            container_log_max_size: 10 << 20,
            container_log_max_files: 5,
            serialize_image_pulls: false,
            node_status_update_frequency: Duration::from_secs(10),
            node_status_report_frequency: Duration::from_secs(300),
            node_lease_duration: Duration::from_secs(40),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_thresholds_are_amounts_or_percentages() {
        let mut config = KubeletConfig::new("n");
        config
            .set_eviction_hard("memory.available<1Gi")
            .expect("understood");
        config
            .set_eviction_hard("nodefs.available<0%")
            .expect("understood");
        config
            .set_eviction_hard("imagefs.available<15%")
            .expect("accepted");
        assert_eq!(config.eviction_memory_available, 1 << 30);
        assert_eq!(config.eviction_disk_available_percent, 0);
        for bad in [
            "",
            "memory.available",
            "memory.available<x",
            "foo<1%",
            "nodefs.available<1Gi",
        ] {
            assert!(config.set_eviction_hard(bad).is_err(), "{bad}");
        }
    }
}
