//! Writes the files that a node finds when it starts, and says what it is.

use std::path::Path;

use apimachinery::codec::yaml;

use super::containerd;
use super::identity::{self, Identities, IdentityError};
use super::services::{self, API_PORT, PAUSE_ARCHIVE, UPSTREAM_RESOLV_CONF};
use super::state::{
    Cluster, DNS_SERVICE, KUBERNETES_SERVICE, NodeState, PODS, StoreKind, link_name,
};
use super::static_pods;
use crate::files::{self, FileError};
use crate::image;
use crate::node::mounts;
use crate::node::spec::{NodeNetwork, NodeSpec, Route};
use crate::paths::NodePaths;
use crate::pki::{self, Hosts, Pki, PkiError};

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "the CNI plugins ptp, host-local, portmap and loopback are not installed (Debian: containernetworking-plugins)"
    )]
    NoPlugins,
}

/// Where systemd-resolved keeps the resolvers behind its own address, which no other namespace reaches.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// Makes the cluster's certificates.
pub fn certificates(cluster: &Cluster) -> Result<Pki, PrepareError> {
    let control_plane = cluster.control_plane();
    let hosts = Hosts {
        node: control_plane
            .map(|node| node.name.clone())
            .unwrap_or_default(),
        addresses: control_plane
            .map(|node| node.address.into())
            .into_iter()
            .collect(),
        service_address: Some(KUBERNETES_SERVICE.into()),
        extra: Vec::new(),
    };
    let pki = pki::ensure(&cluster.paths().pki(), &hosts)?;
    if let StoreKind::Etcd {
        authority,
        certificate,
        key,
        ..
    } = &cluster.settings.store
    {
        // Servers that others run have certificates of their own; they take the places of ours.
        let given = [
            (authority, pki.certificate("etcd/ca")),
            (certificate, pki.certificate("apiserver-etcd-client")),
            (key, pki.key("apiserver-etcd-client")),
        ];
        for (from, to) in given {
            let Some(from) = from else { continue };
            let content =
                std::fs::read(from).map_err(|source| FileError::new("read", from, source))?;
            files::write_if_changed(&to, &content, 0o600)?;
        }
    }
    Ok(pki)
}

/// Writes everything in the node's folder and returns what its first process is told.
pub fn node(cluster: &Cluster, node: &NodeState, pki: &Pki) -> Result<NodeSpec, PrepareError> {
    let paths = cluster.paths().node(&node.name);
    mounts::prepare(&paths)?;
    write_identity(cluster, node, pki, &paths)?;
    write_names(cluster, node, &paths)?;
    write_runtime(cluster, node, &paths)?;
    Ok(spec(cluster, node, pki, &paths))
}

fn spec(cluster: &Cluster, node: &NodeState, pki: &Pki, paths: &NodePaths) -> NodeSpec {
    let others = cluster.nodes.iter().filter(|other| other.name != node.name);
    let mut forwarded_ports: Vec<u16> = cluster
        .settings
        .mirrors
        .iter()
        .filter_map(super::state::Mirror::loopback_port)
        .collect();
    forwarded_ports.sort_unstable();
    forwarded_ports.dedup();
    NodeSpec {
        cluster: cluster.name.clone(),
        name: node.name.clone(),
        directory: paths.root().into(),
        network: NodeNetwork {
            bridge: cluster.bridge(),
            link: link_name(&cluster.name, &node.name),
            address: node.address,
            prefix: cluster.subnet.prefix,
            gateway: cluster.gateway(),
            mtu: cluster.mtu,
            pods: PODS,
            routes: others
                .map(|other| Route {
                    to: other.pods,
                    via: other.address,
                })
                .collect(),
        },
        pki: node.control_plane.then(|| pki.directory().into()),
        forwarded_ports,
        listen_port: node.control_plane.then_some(cluster.port),
        services: services::of(cluster, node),
    }
}

fn write_identity(
    cluster: &Cluster,
    node: &NodeState,
    pki: &Pki,
    paths: &NodePaths,
) -> Result<(), PrepareError> {
    let authority = pki.authority("ca")?;
    let api = cluster
        .control_plane()
        .map(|node| node.address.to_string())
        .unwrap_or_default();
    let identities = Identities {
        authority: &authority,
        server: format!("https://{api}:{API_PORT}"),
    };
    let kubernetes = paths.own_etc("kubernetes");
    identities.for_node(node, &kubernetes, &paths.var().join("lib/kubelet/pki"))?;
    if node.control_plane {
        files::create_directory(&kubernetes.join("pki"), 0o755)?;
        identities.for_control_plane(&kubernetes)?;
        write_manifests(cluster, node, &kubernetes)?;
        if let Some(simulation) = &cluster.settings.simulation {
            files::write_if_changed(
                &kubernetes.join("simulation.yaml"),
                simulation.as_bytes(),
                0o644,
            )?;
        }
    } else {
        identity::share_authority(pki, &kubernetes)?;
    }
    Ok(())
}

/// The static pods of the control-plane node.
fn write_manifests(
    cluster: &Cluster,
    node: &NodeState,
    kubernetes: &Path,
) -> Result<(), FileError> {
    let folder = kubernetes.join("manifests");
    files::create_directory(&folder, 0o700)?;
    let manifest = folder.join("etcd.yaml");
    match static_pods::etcd(cluster, node) {
        Some(pod) => files::write_if_changed(&manifest, &yaml::encode(&pod), 0o600).map(drop),
        None => files::remove(&manifest),
    }
}

fn write_names(cluster: &Cluster, node: &NodeState, paths: &NodePaths) -> Result<(), PrepareError> {
    let etc = paths.etc();
    let mut hosts =
        String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for other in &cluster.nodes {
        hosts.push_str(&format!("{}\t{}\n", other.address, other.name));
    }
    let upstream = resolvers();
    files::write_if_changed(&etc.join("hosts"), hosts.as_bytes(), 0o644)?;
    files::write_if_changed(
        &etc.join("hostname"),
        format!("{}\n", node.name).as_bytes(),
        0o644,
    )?;
    files::write_if_changed(
        &etc.join("resolv.conf"),
        node_resolv_conf(&upstream).as_bytes(),
        0o644,
    )?;
    let machine_id = etc.join("machine-id");
    if !machine_id.exists() {
        let id = (rand::random::<u128>())
            .to_be_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        files::write(&machine_id, format!("{id}\n").as_bytes(), 0o444)?;
    }
    write_inside(&etc, UPSTREAM_RESOLV_CONF, upstream.as_bytes())?;
    Ok(())
}

fn write_runtime(
    cluster: &Cluster,
    node: &NodeState,
    paths: &NodePaths,
) -> Result<(), PrepareError> {
    let plugins = containerd::plugin_folder().ok_or(PrepareError::NoPlugins)?;
    let folder = paths.own_etc("containerd");
    let config = containerd::config(plugins, "overlayfs", containerd::lowers_oom_score());
    files::write_if_changed(&folder.join("config.toml"), config.as_bytes(), 0o644)?;
    // A mirror that is no longer asked for must not stay.
    files::remove(&folder.join("certs.d"))?;
    for mirror in &cluster.settings.mirrors {
        let registry = folder.join("certs.d").join(&mirror.registry);
        files::create_directory(&registry, 0o755)?;
        files::write(
            &registry.join("hosts.toml"),
            containerd::hosts(mirror).as_bytes(),
            0o644,
        )?;
    }
    let network = paths.own_etc("cni").join("net.d");
    files::create_directory(&network, 0o755)?;
    let conflist = containerd::network(node.pods, cluster.mtu);
    files::write_if_changed(
        &network.join("10-skiff.conflist"),
        conflist.as_bytes(),
        0o644,
    )?;
    write_inside(&paths.etc(), PAUSE_ARCHIVE, &image::pause().archive())?;
    Ok(())
}

/// Writes the file that the node sees as `inside`, which is under `/etc`.
fn write_inside(etc: &Path, inside: &str, content: &[u8]) -> Result<(), FileError> {
    let path = etc.join(inside.trim_start_matches("/etc/"));
    if let Some(parent) = path.parent() {
        files::create_directory(parent, 0o755)?;
    }
    files::write_if_changed(&path, content, 0o644)?;
    Ok(())
}

/// The machine's resolvers, without those on its loopback address.
fn resolvers() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let own = reachable_resolvers(&read("/etc/resolv.conf"));
    if own.contains("nameserver") {
        own
    } else {
        reachable_resolvers(&read(RESOLVED))
    }
}

fn reachable_resolvers(text: &str) -> String {
    let loopback = |line: &str| {
        let address = line.strip_prefix("nameserver").map(str::trim);
        address
            .and_then(|address| address.parse::<std::net::IpAddr>().ok())
            .is_some_and(|address| address.is_loopback())
    };
    text.lines()
        .filter(|line| !line.starts_with(['#', ';']) && !loopback(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// A node resolves services' names too, as a pod of namespace `default` does. While the cluster's DNS is down the
/// machine's resolvers answer.
fn node_resolv_conf(upstream: &str) -> String {
    /// glibc reads no more.
    const MAX_SERVERS: usize = 3;
    let mut text = format!(
        "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver {DNS_SERVICE}\n"
    );
    for line in upstream
        .lines()
        .filter(|line| line.starts_with("nameserver"))
        .take(MAX_SERVERS - 1)
    {
        text.push_str(line);
        text.push('\n');
    }
    text + "options timeout:1 attempts:2\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_on_the_machines_loopback_are_left_out() {
        let text = "# made by hand\nnameserver 127.0.0.53\nnameserver 10.0.0.1\nsearch example\n";
        assert_eq!(
            reachable_resolvers(text),
            "nameserver 10.0.0.1\nsearch example\n"
        );
    }

    #[test]
    fn a_node_asks_the_clusters_dns_first() {
        let text = node_resolv_conf(
            "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nsearch example\n",
        );
        let servers: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("nameserver "))
            .collect();
        assert_eq!(servers, ["10.96.0.10", "10.0.0.1", "10.0.0.2"]);
    }
}
