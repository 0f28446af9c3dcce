//! What a node needs next: which volumes it gets, which it loses, what its status says. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::view::{Volume, VolumeAttachment};
use crate::objects::{Node, Pod, condition};

/// How long a volume that is still mounted is waited for on a node that is not healthy
/// (maxWaitForUnmountDuration, `--attach-detach-reconcile-max-wait-unmount-duration`).
pub const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);
/// The kubelet leaves attaching to this controller (ControllerManagedAttachAnnotation).
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Volumes of finished pods stay (KeepTerminatedPodVolumesAnnotation).
const KEEP_TERMINATED: &str = "volumes.kubernetes.io/keep-terminated-pod-volumes";
/// An operator's word that the node is off (TaintNodeOutOfService).
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// core/v1 AttachedVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    pub name: String,
    pub device_path: String,
}

/// A volume that a pod on the node needs.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub volume: Arc<Volume>,
    pub pods: Vec<Arc<Pod>>,
}

/// Another node that has a volume, and the pods there that use it.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    pub pods: Vec<Arc<Pod>>,
}

/// Everything about a node and its volumes.
pub struct Observed<'a> {
    /// None once it is gone.
    pub node: Option<&'a Node>,
    /// By the name of the PersistentVolume.
    pub wanted: &'a BTreeMap<String, Wanted>,
    /// Those of this node.
    pub attachments: &'a [Arc<VolumeAttachment>],
    /// PersistentVolumes of the attachments, by name.
    pub volumes: &'a BTreeMap<String, Arc<Volume>>,
    /// Volumes for one node at a time that another has, by name.
    pub elsewhere: &'a BTreeMap<String, Elsewhere>,
    /// How long each attachment has been unwanted, by name.
    pub unwanted_for: &'a BTreeMap<String, Duration>,
}

/// What becomes of a node's volumes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// PersistentVolumes to attach.
    pub attach: Vec<String>,
    /// Attachments to delete.
    pub detach: Vec<Detach>,
    /// `status.volumesAttached`, sorted; None when the node does not leave attaching to this controller.
    pub attached: Option<Vec<AttachedVolume>>,
    /// PersistentVolumes that wait for another node to let go.
    pub blocked: Vec<String>,
    /// When to look again at attachments that are unwanted but mounted.
    pub again: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Detach {
    /// The attachment's name.
    pub attachment: String,
    /// As `volumesInUse` would name it.
    pub unique: String,
    /// Whether it goes even if it is mounted.
    pub force: bool,
}

/// The name by which nodes know a volume (GetUniqueVolumeName).
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The name of an attachment, which the kubelet reckons too (getAttachmentName).
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

/// Whether this controller made the attachment: it has the name that one gets here. Others' are nobody's to delete.
pub fn is_ours(attachment: &VolumeAttachment, volume: Option<&Volume>) -> bool {
    let name = &attachment.metadata.name;
    match volume.and_then(|volume| volume.spec.csi["volumeHandle"].as_str()) {
        Some(handle) => {
            let spec = &attachment.spec;
            *name == attachment_name(&spec.attacher, handle, &spec.node_name)
        }
        // Its volume is gone, and the handle with it.
        None => name.strip_prefix("csi-").is_some_and(|digest| {
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            digest.len() == 2 * Sha256::output_size() && digest.bytes().all(is_hex)
        }),
    }
}

/// Whether pods of this node get their volumes attached here.
pub fn is_managed(node: &Node) -> bool {
    node.metadata.annotations.get(MANAGED).map(String::as_str) == Some("true")
}

/// Whether the pod's volumes belong on its node.
pub fn holds_volumes(pod: &Pod, node: &Node) -> bool {
    let keep = node.metadata.annotations.get(KEEP_TERMINATED);
    !pod.is_terminal() || keep.map(String::as_str) == Some("true")
}

/// Whether the volume may be on one node only (the opposite of isMultiAttachAllowed).
pub fn is_exclusive(volume: &Volume) -> bool {
    let modes = &volume.spec.access_modes;
    !modes.is_empty()
        && !modes
            .iter()
            .any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let mut plan = Plan::default();
    let in_use: BTreeSet<&str> = observed
        .node
        .iter()
        .flat_map(|node| &node.status.volumes_in_use)
        .map(String::as_str)
        .collect();
    let mut reported = BTreeSet::new();
    let mut present = BTreeSet::new();
    for attachment in observed.attachments {
        let name = attachment.volume();
        let unique = unique_of(observed, attachment);
        present.insert(name);
        let is_wanted = observed.wanted.contains_key(name);
        // One that is going is reported again only if that failed.
        let is_going =
            attachment.metadata.is_deleting() && attachment.status.detach_error.is_none();
        if is_wanted || attachment.metadata.is_deleting() {
            if attachment.status.attached && !is_going {
                reported.insert(attached(&unique));
            }
            continue;
        }
        match may_go(observed, attachment, in_use.contains(unique.as_str())) {
            Verdict::Now { force } => plan.detach.push(Detach {
                attachment: attachment.metadata.name.clone(),
                unique,
                force,
            }),
            Verdict::Later(left) => {
                plan.again = Some(plan.again.map_or(left, |again| again.min(left)));
                if attachment.status.attached {
                    reported.insert(attached(&unique));
                }
            }
        }
    }
    for (name, wanted) in observed.wanted {
        if present.contains(name.as_str()) {
            continue;
        }
        if is_exclusive(&wanted.volume) && observed.elsewhere.contains_key(name) {
            plan.blocked.push(name.clone());
        } else {
            plan.attach.push(name.clone());
        }
    }
    let is_managed = observed.node.is_some_and(is_managed);
    plan.attached = is_managed.then(|| reported.into_iter().collect());
    plan
}

fn attached(unique: &str) -> AttachedVolume {
    AttachedVolume {
        name: unique.into(),
        device_path: String::new(),
    }
}

/// By the volume's handle; a volume that is gone is not in use by that name any more.
fn unique_of(observed: &Observed<'_>, attachment: &VolumeAttachment) -> String {
    let driver = &attachment.spec.attacher;
    let volume = observed.volumes.get(attachment.volume());
    let handle = volume.map_or("", |volume| {
        volume.spec.csi["volumeHandle"].as_str().unwrap_or("")
    });
    unique_name(driver, handle)
}

enum Verdict {
    Now { force: bool },
    Later(Duration),
}

/// When an attachment nobody wants may go: unmounted, on a node that is gone or out of service, or waited for long
/// enough on one that is not healthy.
fn may_go(observed: &Observed<'_>, attachment: &VolumeAttachment, is_mounted: bool) -> Verdict {
    let Some(node) = observed.node else {
        return Verdict::Now { force: true };
    };
    if !is_mounted {
        return Verdict::Now { force: false };
    }
    if node
        .spec
        .taints
        .iter()
        .any(|taint| taint.key == OUT_OF_SERVICE)
    {
        return Verdict::Now { force: true };
    }
    let unwanted_for = observed.unwanted_for.get(&attachment.metadata.name);
    let left = MAX_WAIT_FOR_UNMOUNT.saturating_sub(unwanted_for.copied().unwrap_or_default());
    let is_healthy =
        condition(&node.status.conditions, "Ready").is_some_and(|ready| ready.status == "True");
    if left.is_zero() && !is_healthy {
        return Verdict::Now { force: true };
    }
    // A healthy node tells when it has unmounted, or when it is healthy no more.
    Verdict::Later(if left.is_zero() {
        MAX_WAIT_FOR_UNMOUNT
    } else {
        left
    })
}

/// Why a volume cannot be attached yet, as told to a pod (reportMultiAttachError).
pub fn multi_attach_message(volume: &str, pod: &Pod, elsewhere: &Elsewhere) -> String {
    let (ours, others): (Vec<_>, Vec<_>) = elsewhere
        .pods
        .iter()
        .partition(|other| other.metadata.namespace == pod.metadata.namespace);
    let names: Vec<&str> = ours.iter().map(|pod| pod.metadata.name.as_str()).collect();
    let why = match (names.is_empty(), others.len()) {
        (true, 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another"
                .to_string()
        }
        (true, count) => {
            format!("Volume is already used by {count} pod(s) in different namespaces")
        }
        (false, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
        (false, count) => format!(
            "Volume is already used by pod(s) {} and {count} pod(s) in different namespaces",
            names.join(", ")
        ),
    };
    format!("Multi-Attach error for volume {volume:?} {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, mode: &str) -> Arc<Volume> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
                "accessModes": [mode], "csi": {"driver": "d", "volumeHandle": format!("h-{name}")}}}))
            .unwrap(),
        )
    }

    fn attachment(volume: &str, status: Value, extra: Value) -> Arc<VolumeAttachment> {
        let mut value = json!({"metadata": {"name": format!("va-{volume}")}, "spec": {
            "attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": volume}}, "status": status});
        for (key, field) in extra.as_object().into_iter().flatten() {
            value["metadata"][key] = field.clone();
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn node(in_use: &[&str], ready: &str, taints: Value) -> Node {
        let in_use: Vec<String> = in_use
            .iter()
            .map(|name| unique_name("d", &format!("h-{name}")))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {MANAGED: "true"}}, "spec": {"taints": taints},
            "status": {"volumesInUse": in_use, "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    struct Case {
        node: Option<Node>,
        wanted: Vec<&'static str>,
        attachments: Vec<Arc<VolumeAttachment>>,
        elsewhere: Vec<&'static str>,
        waited: u64,
    }

    impl Case {
        fn plan(&self) -> Plan {
            let all: BTreeMap<String, Arc<Volume>> = ["a", "b"]
                .iter()
                .map(|name| ((*name).to_string(), volume(name, "ReadWriteOnce")))
                .collect();
            let wanted = self.wanted.iter().map(|name| {
                let wanted = Wanted {
                    volume: all[*name].clone(),
                    pods: Vec::new(),
                };
                ((*name).to_string(), wanted)
            });
            let elsewhere = self
                .elsewhere
                .iter()
                .map(|name| ((*name).to_string(), Elsewhere { pods: Vec::new() }));
            let waited = self
                .attachments
                .iter()
                .map(|one| (one.metadata.name.clone(), Duration::from_secs(self.waited)));
            plan(&Observed {
                node: self.node.as_ref(),
                wanted: &wanted.collect(),
                attachments: &self.attachments,
                volumes: &all,
                elsewhere: &elsewhere.collect(),
                unwanted_for: &waited.collect(),
            })
        }
    }

    fn case(node: Option<Node>) -> Case {
        Case {
            node,
            wanted: vec![],
            attachments: vec![],
            elsewhere: vec![],
            waited: 0,
        }
    }

    fn detach(name: &str, force: bool) -> Vec<Detach> {
        vec![Detach {
            attachment: format!("va-{name}"),
            unique: unique_name("d", &format!("h-{name}")),
            force,
        }]
    }

    fn reported(names: &[&str]) -> Option<Vec<AttachedVolume>> {
        Some(
            names
                .iter()
                .map(|name| attached(&unique_name("d", &format!("h-{name}"))))
                .collect(),
        )
    }

    #[test]
    fn what_is_wanted_is_attached_unless_another_node_has_it() {
        let healthy = || Some(node(&[], "True", json!([])));
        let plan = Case {
            wanted: vec!["a", "b"],
            elsewhere: vec!["b"],
            ..case(healthy())
        }
        .plan();
        assert_eq!(
            (plan.attach, plan.blocked),
            (vec!["a".to_string()], vec!["b".to_string()])
        );
        // One that is there already is reported once its driver has said so.
        for (attached, expected) in [(false, reported(&[])), (true, reported(&["a"]))] {
            let there = attachment("a", json!({"attached": attached}), json!({}));
            let plan = Case {
                wanted: vec!["a"],
                attachments: vec![there],
                ..case(healthy())
            }
            .plan();
            assert_eq!(
                (plan.attach.len(), plan.detach.len(), plan.attached),
                (0, 0, expected)
            );
        }
    }

    #[test]
    fn what_nobody_wants_goes_when_it_is_unmounted_or_cannot_be_waited_for() {
        let there = || vec![attachment("a", json!({"attached": true}), json!({}))];
        let taint =
            json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        for (node, waited, expected) in [
            (Some(node(&[], "True", json!([]))), 0, Ok(false)),
            (None, 0, Ok(true)),
            (Some(node(&["a"], "True", json!([]))), 0, Err(minutes(6))),
            (
                Some(node(&["a"], "Unknown", json!([]))),
                120,
                Err(minutes(4)),
            ),
            (Some(node(&["a"], "Unknown", json!([]))), 360, Ok(true)),
            // A healthy node is never forced.
            (Some(node(&["a"], "True", json!([]))), 3600, Err(minutes(6))),
            (Some(node(&["a"], "Unknown", taint)), 0, Ok(true)),
        ] {
            let plan = Case {
                attachments: there(),
                waited,
                ..case(node)
            }
            .plan();
            match expected {
                Ok(force) => assert_eq!((plan.detach, plan.again), (detach("a", force), None)),
                Err(again) => assert_eq!((plan.detach, plan.again), (vec![], Some(again))),
            }
        }
    }

    #[test]
    fn an_uncertain_attachment_nobody_wants_goes_too_and_one_that_is_going_is_waited_for() {
        let healthy = || Some(node(&[], "True", json!([])));
        let failed = attachment(
            "a",
            json!({"attached": false, "attachError": {"message": "timeout"}}),
            json!({}),
        );
        assert_eq!(
            Case {
                attachments: vec![failed],
                ..case(healthy())
            }
            .plan()
            .detach,
            detach("a", false)
        );
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (status, expected) in [
            (json!({"attached": true}), reported(&[])),
            (
                json!({"attached": true, "detachError": {"message": "no"}}),
                reported(&["a"]),
            ),
        ] {
            let there = attachment("a", status, going.clone());
            let plan = Case {
                wanted: vec!["a"],
                attachments: vec![there],
                ..case(healthy())
            }
            .plan();
            assert_eq!(
                (plan.attach.len(), plan.detach.len(), plan.attached),
                (0, 0, expected)
            );
        }
    }

    #[test]
    fn attachments_have_the_name_the_kubelet_looks_for() {
        let name = attachment_name("d", "h", "n");
        assert_eq!(name.len(), 4 + 64);
        // echo -n hdn | sha256sum
        let digest = Sha256::digest(b"hdn");
        assert!(name.ends_with(&format!("{:02x}", digest[31])));
    }

    #[test]
    fn an_attachment_is_ours_by_its_name() {
        let volume = volume("a", "ReadWriteOnce");
        let ours = attachment_name("d", "h-a", "n");
        let others = attachment_name("d", "h-b", "n");
        for (name, volume, expected) in [
            (ours.as_str(), Some(&*volume), true),
            (&others, Some(&*volume), false),
            ("va-a", Some(&*volume), false),
            (&others, None, true),
            ("csi-a", None, false),
            ("va-a", None, false),
        ] {
            let one = attachment("a", json!({}), json!({"name": name}));
            assert_eq!(is_ours(&one, volume), expected, "{name}");
        }
    }

    #[test]
    fn a_pod_is_told_who_has_its_volume() {
        let pod = |namespace: &str, name: &str| -> Arc<Pod> {
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name, "namespace": namespace}}))
                    .unwrap(),
            )
        };
        let asking = pod("x", "p");
        for (pods, why) in [
            (
                vec![],
                "Volume is already exclusively attached to one node and can't be attached to another",
            ),
            (
                vec![pod("x", "a"), pod("x", "b")],
                "Volume is already used by pod(s) a, b",
            ),
            (
                vec![pod("y", "a")],
                "Volume is already used by 1 pod(s) in different namespaces",
            ),
        ] {
            let message = multi_attach_message("pv", &asking, &Elsewhere { pods });
            assert_eq!(
                message,
                format!("Multi-Attach error for volume \"pv\" {why}")
            );
        }
    }
}
