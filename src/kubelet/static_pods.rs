//! Static pods: manifests in a folder, run whether there is an API server or
//! not. `read` is what the folder says; each pod is shown in the API by a mirror.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::codec::yaml;
use nix::sys::inotify::AddWatchFlags;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cri::labels::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE};
use crate::file_watch::FolderWatch;
use crate::k8s::Pod;
use crate::pod::spec;

/// How often a folder that cannot be watched, or is not there, is read
/// (upstream's `fileCheckFrequency`).
const INTERVAL: Duration = Duration::from_secs(20);
/// A manifest being written is read when it has been left alone for so long.
const SETTLED: Duration = Duration::from_millis(200);
/// Larger files are no manifests (upstream's `maxConfigLength`), bytes.
const MAX_MANIFEST: u64 = 10 << 20;

/// Whether the kubelet read the pod from a manifest itself.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE) == Some("file") && annotation(pod, CONFIG_MIRROR).is_none()
}

/// Whether the pod only shows a static pod of this node.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Whether `mirror` shows this very version of `pod`.
pub fn shows(mirror: &Pod, pod: &Pod) -> bool {
    annotation(mirror, CONFIG_MIRROR) == annotation(pod, CONFIG_HASH)
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The mirror of a static pod as it is created; `node_uid` makes the node own it.
pub fn mirror(pod: &Pod, node_name: &str, node_uid: &str) -> Value {
    let mut mirror = serde_json::to_value(pod).unwrap_or_default();
    let hash = annotation(pod, CONFIG_HASH).unwrap_or_default();
    if let Some(object) = mirror.as_object_mut() {
        object.remove("status");
    }
    let metadata = &mut mirror["metadata"];
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("uid");
    }
    metadata["annotations"][CONFIG_MIRROR] = json!(hash);
    metadata["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": true,
    }]);
    mirror
}

/// Reads the folder whenever it changes, and sends all pods of it.
pub async fn run(
    folder: &Path,
    node_name: &str,
    pods: mpsc::Sender<Vec<Arc<Pod>>>,
    shutdown: CancellationToken,
) {
    let mut before: Option<BTreeMap<String, Arc<Pod>>> = None;
    loop {
        let watch = watch(folder).ok();
        let now = read(folder, node_name);
        if before
            .as_ref()
            .is_none_or(|before| !before.keys().eq(now.keys()))
        {
            if pods.send(now.values().cloned().collect()).await.is_err() {
                return;
            }
            before = Some(now);
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changed(watch.as_ref()) => tokio::time::sleep(SETTLED).await,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

fn watch(folder: &Path) -> io::Result<FolderWatch> {
    let flags = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE;
    FolderWatch::new(folder, flags)
}

async fn changed(watch: Option<&FolderWatch>) {
    match watch {
        Some(watch) if watch.changed().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

/// The pods of the folder by uid. What is no pod is left out, and said so.
fn read(folder: &Path, node_name: &str) -> BTreeMap<String, Arc<Pod>> {
    let mut pods = BTreeMap::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let Ok(metadata) = std::fs::metadata(&path) else {
            continue;
        };
        if hidden || !metadata.is_file() || metadata.len() > MAX_MANIFEST {
            continue;
        }
        let pod = std::fs::read(&path).map_err(|error| error.to_string());
        match pod.and_then(|bytes| parse(&bytes, node_name)) {
            Ok(pod) => drop(pods.insert(spec::uid(&pod).to_owned(), Arc::new(pod))),
            Err(error) => {
                tracing::error!(error, manifest = %path.display(), "cannot read a static pod")
            }
        }
    }
    pods
}

/// A manifest as the pod that runs: with the node's name, and a uid that is the
/// hash of what it says, so that a changed manifest is another pod.
fn parse(bytes: &[u8], node_name: &str) -> Result<Pod, String> {
    let mut value = yaml::decode(bytes)
        .map_err(|error| error.to_string())?
        .value;
    if value["kind"] != "Pod" {
        return Err(format!("kind {} is not Pod", value["kind"]));
    }
    let name = value["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() || !value["spec"]["containers"].is_array() {
        return Err("a pod needs a name and containers".to_owned());
    }
    let mut digest = Sha256::new();
    digest.update(node_name);
    digest.update(value.to_string());
    let hash: String = digest
        .finalize()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let metadata = &mut value["metadata"];
    metadata["name"] = json!(format!("{name}-{node_name}"));
    metadata["uid"] = json!(hash);
    if metadata["namespace"]
        .as_str()
        .unwrap_or_default()
        .is_empty()
    {
        metadata["namespace"] = json!("default");
    }
    metadata["annotations"][CONFIG_HASH] = json!(hash);
    metadata["annotations"][CONFIG_SOURCE] = json!("file");
    let pod_spec = &mut value["spec"];
    pod_spec["nodeName"] = json!(node_name);
    // Taints do not evict what the node itself wants.
    let toleration = json!({"operator": "Exists", "effect": "NoExecute"});
    match pod_spec["tolerations"].as_array_mut() {
        Some(tolerations) => tolerations.push(toleration),
        None => pod_spec["tolerations"] = json!([toleration]),
    }
    for (field, default) in [("restartPolicy", "Always"), ("dnsPolicy", "ClusterFirst")] {
        if pod_spec[field].is_null() {
            pod_spec[field] = json!(default);
        }
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: nginx\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node() {
        let pod = parse(MANIFEST.as_bytes(), "n1").expect("a pod");
        assert_eq!(
            (spec::name(&pod), spec::namespace(&pod)),
            ("web-n1", "default")
        );
        assert!(is_static(&pod) && !is_mirror(&pod));
        assert_eq!(
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()),
            Some("n1")
        );
        let again = parse(MANIFEST.as_bytes(), "n1").expect("a pod");
        assert_eq!(spec::uid(&pod), spec::uid(&again));
        let changed = parse(MANIFEST.replace("nginx", "nginx:2").as_bytes(), "n1").expect("a pod");
        assert_ne!(spec::uid(&pod), spec::uid(&changed));
    }

    #[test]
    fn a_mirror_shows_its_version_and_belongs_to_the_node() {
        let pod = parse(MANIFEST.as_bytes(), "n1").expect("a pod");
        let value = mirror(&pod, "n1", "node-uid");
        assert_eq!(value["metadata"].get("uid"), None);
        assert_eq!(value["metadata"]["ownerReferences"][0]["uid"], "node-uid");
        let mirror: Pod = serde_json::from_value(value).expect("a pod");
        assert!(is_mirror(&mirror) && shows(&mirror, &pod));
        let changed = parse(MANIFEST.replace("nginx", "nginx:2").as_bytes(), "n1").expect("a pod");
        assert!(!shows(&mirror, &changed));
    }

    #[test]
    fn what_is_no_pod_is_refused() {
        assert!(parse(b"kind: Service\nmetadata: {name: a}\n", "n").is_err());
        assert!(parse(b"kind: Pod\nmetadata: {}\n", "n").is_err());
        assert!(parse(b"{", "n").is_err());
    }
}
