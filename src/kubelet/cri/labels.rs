//! The labels and annotations that mark sandboxes and containers as a pod's.
//! They are upstream's (`pkg/kubelet/types`), because crictl, log shippers and
//! CNI plugins read them, and because a kubelet rebuilds its state from them.

use std::collections::{BTreeMap, HashMap};

/// Label: name of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: uid of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: name of the container.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: what of the container's spec calls for a restart when it changes.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Annotation: how many instances of the container came before.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: the file whose content explains the end.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: the pod's grace period, seconds; read when its spec is gone.
pub const POD_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Annotation: the preStop hook as JSON; read when the spec is gone.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: the container's ports as JSON.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// Annotation of a static pod: `file`, `http` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation of a static pod and its mirror: which version of the file it is.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation of a mirror pod: the hash of the static pod it shows.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation: when the kubelet first saw the pod.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

/// The labels of a pod's sandbox: the pod's own and the three that name it.
pub fn sandbox_labels(
    own: &BTreeMap<String, String>,
    namespace: &str,
    name: &str,
    uid: &str,
) -> HashMap<String, String> {
    let own = own.iter().map(|(key, value)| (key.clone(), value.clone()));
    own.chain(pod_identity(namespace, name, uid)).collect()
}

/// The labels of one container.
pub fn container_labels(
    container: &str,
    namespace: &str,
    name: &str,
    uid: &str,
) -> HashMap<String, String> {
    pod_identity(namespace, name, uid)
        .into_iter()
        .chain([(CONTAINER_NAME.to_owned(), container.to_owned())])
        .collect()
}

/// A selector for all that belongs to one pod.
pub fn of_pod(uid: &str) -> HashMap<String, String> {
    HashMap::from([(POD_UID.to_owned(), uid.to_owned())])
}

fn pod_identity(namespace: &str, name: &str, uid: &str) -> [(String, String); 3] {
    [
        (POD_NAME.to_owned(), name.to_owned()),
        (POD_NAMESPACE.to_owned(), namespace.to_owned()),
        (POD_UID.to_owned(), uid.to_owned()),
    ]
}
