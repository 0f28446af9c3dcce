//! The static pods of the control-plane node: etcd's, as kubeadm makes it.
//!
//! With a real etcd the pod runs it. The embedded store lives in the API server's process, so there the pod is what
//! stands at etcd's address. Either way `kubectl exec` into it finds etcdctl and the certificates.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::machine::find_program;
use super::services::{self, PKI, STORE_ETCD};
use super::state::{Cluster, NodeState, StoreKind};
use crate::image;
use crate::node::mounts::BIN;

/// The node's folder of manifests.
pub const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// Where the machine's programs and their libraries are; a pod whose image holds nothing borrows them.
const PROGRAMS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// What to run as the pod `etcd`; `None` if the store is others' to run.
pub fn etcd(cluster: &Cluster, node: &NodeState) -> Option<Value> {
    match &cluster.settings.store {
        StoreKind::Embedded => Some(gateway(node)),
        StoreKind::Etcd { servers, .. } if servers.is_empty() => Some(own_etcd(cluster, node)),
        StoreKind::Etcd { .. } => None,
    }
}

fn gateway(node: &NodeState) -> Value {
    let command = [
        format!("{BIN}/skiff"),
        "etcd-gateway".into(),
        format!("--listen-addr=127.0.0.1:2379,{}:2379", node.address),
        format!("--endpoint={STORE_ETCD}"),
    ];
    let answers = json!({"tcpSocket": {"host": "127.0.0.1", "port": 2379}});
    let mut pod = pod(node, &command, &answers);
    mount(&mut pod, "skiff", Path::new(BIN), true);
    pod
}

fn own_etcd(cluster: &Cluster, node: &NodeState) -> Value {
    let etcd = services::with_flags(cluster, services::etcd(node));
    let command: Vec<String> = std::iter::once(etcd.program)
        .chain(etcd.arguments)
        .collect();
    let answers = json!({"httpGet": {"host": "127.0.0.1", "path": "/health?exclude=NOSPACE&serializable=true", "port": 2381, "scheme": "HTTP"}});
    let mut pod = pod(node, &command, &answers);
    mount(&mut pod, "etcd-data", Path::new("/var/lib/etcd"), false);
    pod
}

/// A pod on the node's network with etcd's certificates and the machine's programs, restarted when it does not answer.
fn pod(node: &NodeState, command: &[String], answers: &Value) -> Value {
    let mut probe = answers.clone();
    for (field, value) in [
        ("periodSeconds", 10),
        ("timeoutSeconds", 15),
        ("failureThreshold", 8),
    ] {
        probe[field] = json!(value);
    }
    let client = format!("https://{}:2379", node.address);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "etcd", "namespace": "kube-system",
            "annotations": {"kubeadm.kubernetes.io/etcd.advertise-client-urls": client},
            "labels": {"component": "etcd", "tier": "control-plane"},
        },
        "spec": {
            "hostNetwork": true, "priority": 2_000_001_000, "priorityClassName": "system-node-critical",
            "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "etcd", "image": image::PAUSE, "imagePullPolicy": "IfNotPresent",
                "command": command, "livenessProbe": probe,
                "env": [{"name": "PATH", "value": search_path()}],
                "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}},
            }],
        },
    });
    mount(&mut pod, "etcd-certs", &Path::new(PKI).join("etcd"), true);
    let present = PROGRAMS.iter().filter(|folder| Path::new(folder).is_dir());
    let folders = present.map(PathBuf::from).chain(elsewhere());
    for (nth, folder) in folders.enumerate() {
        mount(&mut pod, &format!("programs-{nth}"), &folder, true);
    }
    pod
}

/// The folders of etcd's programs that are not where programs are.
fn elsewhere() -> Vec<PathBuf> {
    let found = ["etcd", "etcdctl"].into_iter().filter_map(find_program);
    let mut folders: Vec<PathBuf> = found
        .filter_map(|program| Some(program.parent()?.to_path_buf()))
        .filter(|folder| !PROGRAMS.iter().any(|known| folder.starts_with(known)))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

fn search_path() -> String {
    let mut path = String::from("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    for folder in elsewhere() {
        path.push(':');
        path.push_str(&folder.to_string_lossy());
    }
    path
}

/// Shows a folder of the node in the pod, at the same path.
fn mount(pod: &mut Value, name: &str, folder: &Path, read_only: bool) {
    let path = folder.to_string_lossy();
    let push = |list: &mut Value, item: Value| match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    };
    let kind = if read_only {
        "Directory"
    } else {
        "DirectoryOrCreate"
    };
    push(
        &mut pod["spec"]["volumes"],
        json!({"name": name, "hostPath": {"path": path, "type": kind}}),
    );
    push(
        &mut pod["spec"]["containers"][0]["volumeMounts"],
        json!({"name": name, "mountPath": path, "readOnly": read_only}),
    );
}
