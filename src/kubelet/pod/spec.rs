//! Reading a pod's spec: its containers as one ordered list of [`Slot`]s, its
//! policies with their defaults. Pure accessors; decisions are in `plan`.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::k8s::{Container, EphemeralContainer, Pod, PodSpec};

/// Upstream's `DefaultTerminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What part a container plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: started in turn, kept running (KEP-753).
    Sidecar,
    /// One of `spec.containers`.
    Regular,
    /// Put into a running pod for debugging; never restarted.
    Ephemeral,
}

/// One container of a pod and the part it plays.
#[derive(Clone, Debug)]
pub struct Slot<'a> {
    /// Its part.
    pub kind: Kind,
    /// Its spec; an ephemeral container's is converted.
    pub container: Cow<'a, Container>,
    /// Whose process namespace an ephemeral container joins.
    pub target: Option<&'a str>,
}

impl Slot<'_> {
    /// The container's name.
    pub fn name(&self) -> &str {
        &self.container.name
    }

    /// `spec.containers{nginx}`: what events point at.
    pub fn field_path(&self) -> String {
        let list = match self.kind {
            Kind::Init | Kind::Sidecar => "initContainers",
            Kind::Regular => "containers",
            Kind::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.name())
    }
}

/// The pod's spec; an object without one is treated as an empty spec.
pub fn spec(pod: &Pod) -> Cow<'_, PodSpec> {
    pod.spec
        .as_ref()
        .map_or_else(|| Cow::Owned(PodSpec::default()), Cow::Borrowed)
}

/// metadata.uid.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// metadata.name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// metadata.namespace.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// `name_namespace(uid)`, as upstream prints a pod in messages (`format.Pod`).
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// Whether deletion was asked for.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the API already has the pod's end.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Seconds between asking containers to stop and killing them. A deletion's
/// own grace period goes before the spec's.
pub fn grace_seconds(pod: &Pod) -> i64 {
    let spec_grace = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    let deletion = pod.metadata.deletion_grace_period_seconds;
    let deletion = deletion.filter(|_| is_deleting(pod));
    deletion.or(spec_grace).unwrap_or(DEFAULT_GRACE_SECONDS)
}

/// Every container in starting order: init, regular, ephemeral.
pub fn slots(pod: &Pod) -> Vec<Slot<'_>> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten().map(|container| {
        let kind = if is_sidecar(container) {
            Kind::Sidecar
        } else {
            Kind::Init
        };
        (kind, container)
    });
    let regular = spec
        .containers
        .iter()
        .map(|container| (Kind::Regular, container));
    let ordinary = init.chain(regular).map(|(kind, container)| Slot {
        kind,
        container: Cow::Borrowed(container),
        target: None,
    });
    let ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|container| Slot {
            kind: Kind::Ephemeral,
            container: Cow::Owned(as_container(container)),
            target: container.target_container_name.as_deref(),
        });
    ordinary.chain(ephemeral).collect()
}

/// The slot of this name.
pub fn slot<'a>(pod: &'a Pod, name: &str) -> Option<Slot<'a>> {
    slots(pod).into_iter().find(|slot| slot.name() == name)
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let ephemeral = ephemeral.clone();
    Container {
        args: ephemeral.args,
        command: ephemeral.command,
        env: ephemeral.env,
        env_from: ephemeral.env_from,
        image: ephemeral.image,
        image_pull_policy: ephemeral.image_pull_policy,
        name: ephemeral.name,
        security_context: ephemeral.security_context,
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        termination_message_path: ephemeral.termination_message_path,
        termination_message_policy: ephemeral.termination_message_policy,
        tty: ephemeral.tty,
        volume_devices: ephemeral.volume_devices,
        volume_mounts: ephemeral.volume_mounts,
        working_dir: ephemeral.working_dir,
        ..Container::default()
    }
}

/// Whether an instance that ended with `exit_code` is to be followed by another:
/// the container's own rules first (KEP-5307), then its policy, then the pod's.
pub fn restarts_after(pod: &Pod, slot: &Slot<'_>, exit_code: i32) -> bool {
    for rule in slot.container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else {
            continue;
        };
        let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
        let matches = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        if matches {
            return rule.action == "Restart";
        }
    }
    let policy = slot
        .container
        .restart_policy
        .as_deref()
        .or(restart_policy(pod));
    match (slot.kind, policy.unwrap_or("Always")) {
        (Kind::Ephemeral, _) | (_, "Never") => false,
        (Kind::Init, _) | (_, "OnFailure") => exit_code != 0,
        _ => true,
    }
}

/// The pod's restartPolicy.
pub fn restart_policy(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.restart_policy.as_deref())
}

/// What of a container calls for a restart when it changes: name and image, as
/// upstream's `HashContainer` has it since resources can be resized in place.
pub fn hash(container: &Container) -> String {
    let mut digest = Sha256::new();
    digest.update(&container.name);
    digest.update([0]);
    digest.update(container.image.as_deref().unwrap_or_default());
    digest
        .finalize()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Whether the pod shares the node's network.
pub fn host_network(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.host_network)
        .unwrap_or(false)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod of these fields of spec, named `p` in namespace `ns`.
    pub(crate) fn mk_pod(spec: Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u-1", "generation": 1},
            "spec": spec,
        });
        serde_json::from_value(pod).expect("a test's pod is well formed")
    }

    #[test]
    fn slots_keep_the_starting_order_and_tell_sidecars_apart() {
        let pod = mk_pod(json!({
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "c"}],
            "ephemeralContainers": [{"name": "e", "image": "busybox", "targetContainerName": "c"}],
        }));
        let seen: Vec<_> = slots(&pod)
            .iter()
            .map(|slot| (slot.kind, slot.field_path()))
            .collect();
        assert_eq!(
            seen,
            [
                (Kind::Init, "spec.initContainers{i}".to_owned()),
                (Kind::Sidecar, "spec.initContainers{s}".to_owned()),
                (Kind::Regular, "spec.containers{c}".to_owned()),
                (Kind::Ephemeral, "spec.ephemeralContainers{e}".to_owned()),
            ]
        );
    }

    #[test]
    fn restart_policies_are_applied_per_part_and_exit_code() {
        let cases = [
            ("Always", 0, true),
            ("Always", 1, true),
            ("OnFailure", 0, false),
            ("OnFailure", 1, true),
            ("Never", 1, false),
        ];
        for (policy, code, expected) in cases {
            let pod = mk_pod(json!({"restartPolicy": policy, "containers": [{"name": "c"}]}));
            let slot = slot(&pod, "c").expect("c exists");
            assert_eq!(
                restarts_after(&pod, &slot, code),
                expected,
                "{policy} {code}"
            );
        }
    }

    #[test]
    fn a_containers_own_rules_go_before_the_pods_policy() {
        let pod = mk_pod(json!({"restartPolicy": "Never", "containers": [{
            "name": "c", "restartPolicy": "Never",
            "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
            ],
        }]}));
        let slot = slot(&pod, "c").expect("c exists");
        assert!(restarts_after(&pod, &slot, 42));
        assert!(!restarts_after(&pod, &slot, 1));
    }

    #[test]
    fn an_init_container_that_succeeded_is_not_run_again() {
        let pod = mk_pod(json!({
            "restartPolicy": "Always", "initContainers": [{"name": "i"}], "containers": [{"name": "c"}],
        }));
        let slot = slot(&pod, "i").expect("i exists");
        assert!(!restarts_after(&pod, &slot, 0));
        assert!(restarts_after(&pod, &slot, 1));
    }

    #[test]
    fn a_deletions_grace_period_goes_before_the_specs() {
        let mut pod = mk_pod(json!({"containers": [], "terminationGracePeriodSeconds": 7}));
        assert_eq!(grace_seconds(&pod), 7);
        pod.metadata.deletion_grace_period_seconds = Some(1);
        assert_eq!(grace_seconds(&pod), 7, "no deletion was asked for");
        pod.metadata.deletion_timestamp = Some(crate::k8s::Time(crate::k8s::Timestamp::UNIX_EPOCH));
        assert_eq!(grace_seconds(&pod), 1);
    }

    #[test]
    fn the_hash_follows_the_image_and_nothing_else() {
        let mut container = Container {
            name: "c".into(),
            image: Some("a".into()),
            ..Default::default()
        };
        let before = hash(&container);
        container.args = Some(vec!["x".into()]);
        assert_eq!(hash(&container), before);
        container.image = Some("b".into());
        assert_ne!(hash(&container), before);
    }
}
