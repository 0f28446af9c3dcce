//! The processes of each node and their flags, which are upstream's where upstream has such a process.

use std::net::{Ipv4Addr, SocketAddr};

use super::containerd::SOCKET;
use super::state::{Cluster, DNS_SERVICE, NodeState, PODS, SERVICES, StoreKind};
use super::static_pods;
use crate::image;
use crate::node::spec::{Condition, Readiness, Service};

/// Where the API server listens inside its node.
pub const API_PORT: u16 = 6443;
/// The cluster's certificates inside the control-plane node.
pub const PKI: &str = "/etc/kubernetes/pki";
/// Where the API server serves etcd's API inside its node; what stands at etcd's own address is a pod (`static_pods`).
pub const STORE_ETCD: &str = "127.0.0.1:12379";
/// The machine's resolvers, as pods with `dnsPolicy: Default` and the cluster's DNS use them. (The node's own
/// `/etc/resolv.conf` asks the cluster's DNS first.)
pub const UPSTREAM_RESOLV_CONF: &str = "/etc/skiff/resolv.conf";
/// The archive of the sandbox image inside a node.
pub const PAUSE_ARCHIVE: &str = "/etc/skiff/pause.tar";
/// The taint that keeps other pods off the control-plane node, as kubeadm sets it.
pub const CONTROL_PLANE_TAINT: &str = "node-role.kubernetes.io/control-plane=:NoSchedule";

/// The simulation file inside the control-plane node.
const SIMULATION: &str = "/etc/kubernetes/simulation.yaml";

/// All of a node's services.
pub fn of(cluster: &Cluster, node: &NodeState) -> Vec<Service> {
    let api = cluster
        .control_plane()
        .map_or(Ipv4Addr::LOCALHOST, |node| node.address);
    let reachable = Condition::Reachable(SocketAddr::from((api, API_PORT)));
    let mut services = Vec::new();
    if node.control_plane {
        services.extend(control_plane(cluster, node));
    }
    services.extend([
        containerd(),
        sandbox_image(),
        kubelet(cluster, node, &reachable),
        proxy(node, &reachable),
    ]);
    services
        .into_iter()
        .map(|service| with_flags(cluster, service))
        .collect()
}

/// The service with the flags that its program was given besides.
pub fn with_flags(cluster: &Cluster, mut service: Service) -> Service {
    let flags = cluster.settings.flags.iter();
    let more = flags.filter(|(component, _)| *component == service.program);
    service.arguments.extend(more.map(|(_, flag)| flag.clone()));
    service
}

fn containerd() -> Service {
    Service::new("containerd", "containerd")
        .argument("--config")
        .argument("/etc/containerd/config.toml")
        .ready_when(Readiness::Notified)
}

fn sandbox_image() -> Service {
    let import = Service::new("sandbox-image", "ctr")
        .argument("--address")
        .argument(SOCKET);
    let import = ["--namespace", "k8s.io", "images", "import"]
        .into_iter()
        .fold(import, Service::argument);
    let import = import.argument("--digests=false").argument(PAUSE_ARCHIVE);
    debug_assert!(image::PAUSE.contains('/'));
    import.after("containerd").ready_when(Readiness::Ended)
}

fn kubelet(cluster: &Cluster, node: &NodeState, reachable: &Condition) -> Service {
    let mut kubelet = Service::new("kubelet", "kubelet")
        .argument("--kubeconfig=/etc/kubernetes/kubelet.conf")
        .argument(format!("--hostname-override={}", node.name))
        .argument(format!("--node-ip={}", node.address))
        .argument(format!("--container-runtime-endpoint=unix://{SOCKET}"))
        .argument(format!("--cluster-dns={DNS_SERVICE}"))
        .argument("--cluster-domain=cluster.local")
        .argument(format!("--resolv-conf={UPSTREAM_RESOLV_CONF}"))
        .argument(format!("--client-ca-file={PKI}/ca.crt"))
        .argument("--tls-cert-file=/var/lib/kubelet/pki/kubelet.crt")
        .argument("--tls-private-key-file=/var/lib/kubelet/pki/kubelet.key")
        // The disk is the machine's, shared with all else on it: how full it is says nothing of the node (as in kind).
        .argument("--eviction-hard=nodefs.available<0%")
        .argument("--image-gc-high-threshold=100");
    if node.control_plane {
        kubelet = kubelet
            .argument(format!("--register-with-taints={CONTROL_PLANE_TAINT}"))
            .argument(format!("--pod-manifest-path={}", static_pods::MANIFESTS));
    }
    // The API server waits for an etcd that this kubelet runs.
    if !(node.control_plane && runs_etcd(cluster)) {
        kubelet.after.push(reachable.clone());
    }
    kubelet.after("containerd").after("sandbox-image")
}

fn proxy(node: &NodeState, reachable: &Condition) -> Service {
    let mut proxy = Service::new("kube-proxy", "kube-proxy")
        .argument("--kubeconfig=/etc/kubernetes/kube-proxy.conf")
        .argument(format!("--hostname-override={}", node.name))
        .argument("--proxy-mode=nftables")
        .argument(format!("--cluster-cidr={PODS}"));
    proxy.after.push(reachable.clone());
    proxy
}

fn control_plane(cluster: &Cluster, node: &NodeState) -> Vec<Service> {
    let mut services = Vec::new();
    services.push(api_server(cluster, node));
    services.push(scheduler());
    services.push(controller_manager());
    services.push(dns(node));
    services.extend(simulator(cluster));
    services
}

/// Whether the cluster's store is an etcd of its own.
fn runs_etcd(cluster: &Cluster) -> bool {
    matches!(&cluster.settings.store, StoreKind::Etcd { servers, .. } if servers.is_empty())
}

/// A real etcd, with the flags of kubeadm's static pod.
pub fn etcd(node: &NodeState) -> Service {
    let NodeState { name, address, .. } = node;
    let etcd = Service::new("etcd", "etcd")
        .argument(format!("--name={name}"))
        .argument("--data-dir=/var/lib/etcd")
        .argument(format!(
            "--listen-client-urls=https://127.0.0.1:2379,https://{address}:2379"
        ))
        .argument(format!("--advertise-client-urls=https://{address}:2379"))
        .argument(format!("--listen-peer-urls=https://{address}:2380"))
        .argument(format!(
            "--initial-advertise-peer-urls=https://{address}:2380"
        ))
        .argument(format!("--initial-cluster={name}=https://{address}:2380"))
        .argument("--listen-metrics-urls=http://127.0.0.1:2381")
        .argument("--client-cert-auth=true")
        .argument("--peer-client-cert-auth=true");
    let files = [
        ("cert-file", "server.crt"),
        ("key-file", "server.key"),
        ("trusted-ca-file", "ca.crt"),
        ("peer-cert-file", "peer.crt"),
        ("peer-key-file", "peer.key"),
        ("peer-trusted-ca-file", "ca.crt"),
    ];
    files.into_iter().fold(etcd, |etcd, (flag, file)| {
        etcd.argument(format!("--{flag}={PKI}/etcd/{file}"))
    })
}

fn api_server(cluster: &Cluster, node: &NodeState) -> Service {
    let server = Service::new("kube-apiserver", "kube-apiserver")
        .argument(format!("--advertise-address={}", node.address))
        .argument(format!("--secure-port={API_PORT}"))
        .argument(format!("--service-cluster-ip-range={SERVICES}"))
        .argument("--authorization-mode=Node,RBAC")
        .argument("--enable-admission-plugins=NodeRestriction")
        .argument("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .argument("--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname")
        .argument("--requestheader-allowed-names=front-proxy-client")
        .argument("--requestheader-username-headers=X-Remote-User")
        .argument("--requestheader-group-headers=X-Remote-Group")
        .argument("--requestheader-extra-headers-prefix=X-Remote-Extra-");
    let files = [
        ("client-ca-file", "ca.crt"),
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("kubelet-certificate-authority", "ca.crt"),
        ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
    ];
    let mut server = files.into_iter().fold(server, |server, (flag, file)| {
        server.argument(format!("--{flag}={PKI}/{file}"))
    });
    match &cluster.settings.store {
        StoreKind::Embedded => {
            server = server
                .argument("--store=embedded")
                .argument("--data-dir=/var/lib/etcd")
                .argument(format!("--etcd-listen={STORE_ETCD}"))
                .argument(format!("--etcd-serving-cert-file={PKI}/etcd/server.crt"))
                .argument(format!("--etcd-serving-key-file={PKI}/etcd/server.key"))
                .argument(format!("--etcd-serving-client-ca-file={PKI}/etcd/ca.crt"));
        }
        StoreKind::Etcd { servers, .. } => {
            let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 2379));
            let servers = if runs_etcd(cluster) {
                server.after.push(Condition::Reachable(own));
                format!("https://{own}")
            } else {
                servers.join(",")
            };
            server = server
                .argument(format!("--etcd-servers={servers}"))
                .argument(format!("--etcd-cafile={PKI}/etcd/ca.crt"))
                .argument(format!("--etcd-certfile={PKI}/apiserver-etcd-client.crt"))
                .argument(format!("--etcd-keyfile={PKI}/apiserver-etcd-client.key"));
        }
    }
    server.listener = true;
    server = server.argument("--listen-stdin");
    server.ready_when(Readiness::Notified)
}

fn scheduler() -> Service {
    Service::new("kube-scheduler", "kube-scheduler")
        .argument("--kubeconfig=/etc/kubernetes/scheduler.conf")
        .argument("--authentication-kubeconfig=/etc/kubernetes/scheduler.conf")
        .argument("--authorization-kubeconfig=/etc/kubernetes/scheduler.conf")
        .argument("--bind-address=127.0.0.1")
        .after("kube-apiserver")
}

fn controller_manager() -> Service {
    Service::new("kube-controller-manager", "kube-controller-manager")
        .argument("--kubeconfig=/etc/kubernetes/controller-manager.conf")
        .argument("--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf")
        .argument("--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf")
        .argument("--bind-address=127.0.0.1")
        .argument(format!("--client-ca-file={PKI}/ca.crt"))
        .argument(format!("--cluster-cidr={PODS}"))
        .argument(format!("--service-cluster-ip-range={SERVICES}"))
        .argument(format!("--root-ca-file={PKI}/ca.crt"))
        .argument(format!("--cluster-signing-cert-file={PKI}/ca.crt"))
        .argument(format!("--cluster-signing-key-file={PKI}/ca.key"))
        .argument("--controllers=*,bootstrap-signer-controller,token-cleaner-controller")
        .after("kube-apiserver")
}

/// Nodes without containers, if any are wanted.
fn simulator(cluster: &Cluster) -> Option<Service> {
    let settings = &cluster.settings;
    if settings.simulated_nodes == 0 && settings.simulation.is_none() {
        return None;
    }
    let mut simulator = Service::new("simulator", "skiff")
        .argument("simulate")
        .argument("--kubeconfig=/etc/kubernetes/admin.conf")
        .argument(format!("--nodes={}", settings.simulated_nodes))
        .argument(format!("--prefix={}-simulated", cluster.name))
        .after("kube-apiserver");
    if settings.simulation.is_some() {
        simulator = simulator.argument(format!("--config={SIMULATION}"));
    }
    Some(simulator)
}

fn dns(node: &NodeState) -> Service {
    Service::new("dns", "skiff")
        .argument("dns")
        .argument("--kubeconfig=/etc/kubernetes/dns.conf")
        .argument(format!("--listen={}:53", node.address))
        .argument("--cluster-domain=cluster.local")
        .argument(format!("--resolv-conf={UPSTREAM_RESOLV_CONF}"))
        .after("kube-apiserver")
}
