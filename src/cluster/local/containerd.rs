//! The files that containerd and the CNI plugins of a node read.

use std::path::Path;

use serde_json::json;

use super::state::Mirror;
use crate::image;
use crate::netlink::Network;

/// Where distributions put the CNI plugins.
const PLUGIN_FOLDERS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];
/// What nodes cannot do without.
const PLUGINS: [&str; 4] = ["ptp", "host-local", "portmap", "loopback"];
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// The folder with every plugin that is needed.
pub fn plugin_folder() -> Option<&'static str> {
    let complete = |folder: &&str| {
        PLUGINS
            .iter()
            .all(|plugin| Path::new(folder).join(plugin).exists())
    };
    PLUGIN_FOLDERS.into_iter().find(complete)
}

/// `config.toml`, in the form that containerd 1.6 to 2.x read.
///
/// Cgroups are driven directly: there is no systemd inside a node. Without `lowers_oom_score` containers keep at least
/// the score of containerd: a kernel that refuses a lower one would refuse every sandbox.
pub fn config(plugin_folder: &str, snapshotter: &str, lowers_oom_score: bool) -> String {
    let pause = image::PAUSE;
    let restrict_oom_score = !lowers_oom_score;
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = {restrict_oom_score}
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugin_folder}"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
"#
    )
}

/// Whether this process may lower an OOM score (CAP_SYS_RESOURCE), which machines inside a sandbox may not.
pub fn lowers_oom_score() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| has_sys_resource(&status))
}

fn has_sys_resource(status: &str) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << CAP_SYS_RESOURCE) != 0)
}

/// `hosts.toml` of a registry: the mirror takes its place, the registry itself is never asked.
pub fn hosts(mirror: &Mirror) -> String {
    let url = &mirror.url;
    format!("server = \"{url}\"\n\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n")
}

/// How pods are wired: a link of its own to the node for each, so that all their traffic is routed by the node and a
/// service's rules see it, between two pods of one node too. (A bridge would need br_netfilter for that.)
pub fn network(pods: Network, mtu: u32) -> String {
    let configuration = json!({
        "cniVersion": "0.4.0",
        "name": "skiff",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "mtu": mtu,
                "ipam": {
                    "type": "host-local",
                    // Gone with the node's run folder: so are the pods that had the addresses.
                    "dataDir": "/run/cni-ipam-state",
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": pods.to_string()}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{configuration:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_to_lower_oom_scores_is_read_off_the_effective_capabilities() {
        assert!(has_sys_resource("CapInh:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_sys_resource(
            "CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n"
        ));
        assert!(!has_sys_resource(""));
        assert!(config("/p", "overlayfs", false).contains("restrict_oom_score_adj = true"));
    }

    #[test]
    fn the_mirror_takes_the_registrys_place() {
        let mirror = Mirror {
            registry: "docker.io".into(),
            url: "http://127.0.0.1:5000".into(),
        };
        let hosts = hosts(&mirror);
        assert!(hosts.starts_with("server = \"http://127.0.0.1:5000\"\n"));
        assert!(hosts.contains("[host.\"http://127.0.0.1:5000\"]"));
    }

    #[test]
    fn pods_get_their_addresses_from_the_nodes_range() {
        let pods = Network::new([10, 244, 1, 0].into(), 24);
        let parsed: serde_json::Value = serde_json::from_str(&network(pods, 1500)).expect("JSON");
        assert_eq!(
            parsed["plugins"][0]["ipam"]["ranges"][0][0]["subnet"],
            "10.244.1.0/24"
        );
    }
}
