//! Who a container runs as and what it may: a pod's and a container's
//! securityContext turned into CRI's. Pure.

use crate::cri::v1;
use crate::k8s::{Container, Pod, SeccompProfile, SecurityContext};
use crate::pod::spec::{self, Slot};

/// What of /proc and /sys no unprivileged container sees (`securitycontext.defaultMaskedPaths`).
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// And what it cannot write (`securitycontext.defaultReadonlyPaths`).
const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Why a container must not be created as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// runAsNonRoot with a user of zero in the spec.
    #[error(
        "container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})"
    )]
    UserIsRoot {
        /// The pod, as upstream prints it.
        pod: String,
        /// The container's name.
        container: String,
    },
    /// runAsNonRoot and an image that runs as root.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})"
    )]
    ImageIsRoot {
        /// The pod.
        pod: String,
        /// The container's name.
        container: String,
    },
    /// runAsNonRoot and an image whose user is a name.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    UserIsAName {
        /// The image's user.
        user: String,
        /// The pod.
        pod: String,
        /// The container's name.
        container: String,
    },
}

/// The user an image wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    /// Its number, if it is one.
    pub uid: Option<i64>,
    /// Its name, if that is what the image has.
    pub name: String,
}

/// The namespaces of a sandbox, or of a container in it. `target` is the id of
/// the container whose processes an ephemeral one joins.
pub fn namespaces(pod: &Pod, target: Option<&str>) -> v1::NamespaceOption {
    use v1::NamespaceMode::{Container, Node, Pod, Target};
    let spec = spec::spec(pod);
    let on_node = |host: Option<bool>, other| if host == Some(true) { Node } else { other };
    let shared = spec.share_process_namespace == Some(true);
    let pid = match target {
        Some(_) => Target,
        None => on_node(spec.host_pid, if shared { Pod } else { Container }),
    };
    v1::NamespaceOption {
        network: on_node(spec.host_network, Pod) as i32,
        pid: pid as i32,
        ipc: on_node(spec.host_ipc, Pod) as i32,
        target_id: target.unwrap_or_default().to_owned(),
        userns_options: None,
    }
}

/// Groups every process of the pod is in.
pub fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    let context = spec::spec(pod).security_context.clone().unwrap_or_default();
    context
        .fs_group
        .into_iter()
        .chain(context.supplemental_groups.into_iter().flatten())
        .collect()
}

/// A profile as CRI has it; none is the runtime's default.
pub fn seccomp_or_default(profile: Option<&SeccompProfile>) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let (kind, localhost) = match profile.map(|profile| profile.type_.as_str()) {
        Some("Unconfined") => (Unconfined, None),
        Some("Localhost") => (Localhost, profile.and_then(|p| p.localhost_profile.clone())),
        _ => (RuntimeDefault, None),
    };
    v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: localhost.unwrap_or_default(),
    }
}

/// The security context of one container.
pub fn container(
    pod: &Pod,
    slot: &Slot<'_>,
    image_user: &ImageUser,
    target: Option<&str>,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    let own = slot.container.security_context.clone().unwrap_or_default();
    let of_pod = spec::spec(pod).security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(of_pod.run_as_user);
    if own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true) {
        verify_non_root(pod, &slot.container, run_as_user, image_user)?;
    }
    let uid = run_as_user.or(image_user.uid);
    let group = own.run_as_group.or(of_pod.run_as_group);
    let privileged = own.privileged.unwrap_or(false);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked") || privileged;
    let paths = |paths: &[&str]| match unmasked {
        true => Vec::new(),
        false => paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    // A container without a profile is unconfined, unless seccompDefault says otherwise.
    let seccomp = own
        .seccomp_profile
        .as_ref()
        .or(of_pod.seccomp_profile.as_ref());
    let seccomp = match seccomp {
        Some(profile) if !privileged => seccomp_or_default(Some(profile)),
        _ => v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::Unconfined as i32,
            localhost_ref: String::new(),
        },
    };
    let strict = of_pod.supplemental_groups_policy.as_deref() == Some("Strict");
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: Some(capabilities(&own)),
        privileged,
        namespace_options: Some(namespaces(pod, target)),
        run_as_user: uid.map(|value| v1::Int64Value { value }),
        run_as_username: if uid.is_none() {
            image_user.name.clone()
        } else {
            String::new()
        },
        // A group needs a user; root is what the container would have been.
        run_as_group: group.map(|value| v1::Int64Value { value }),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: i32::from(strict),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(seccomp),
        apparmor: apparmor(&own, pod),
        ..Default::default()
    })
}

fn apparmor(own: &SecurityContext, pod: &Pod) -> Option<v1::SecurityProfile> {
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let of_pod = spec::spec(pod)
        .security_context
        .clone()
        .and_then(|c| c.app_armor_profile);
    let profile = own.app_armor_profile.clone().or(of_pod)?;
    let kind = match profile.type_.as_str() {
        "Unconfined" => Unconfined,
        "Localhost" => Localhost,
        _ => RuntimeDefault,
    };
    let localhost_ref = profile.localhost_profile.unwrap_or_default();
    Some(v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref,
    })
}

fn capabilities(own: &SecurityContext) -> v1::Capability {
    let capabilities = own.capabilities.clone().unwrap_or_default();
    v1::Capability {
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    }
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    run_as_user: Option<i64>,
    image_user: &ImageUser,
) -> Result<(), SecurityError> {
    let (pod, container) = (spec::describe(pod), container.name.clone());
    match (run_as_user, image_user) {
        (Some(0), _) => Err(SecurityError::UserIsRoot { pod, container }),
        (Some(_), _) | (None, ImageUser { uid: Some(1..), .. }) => Ok(()),
        (None, ImageUser { uid: None, name }) if !name.is_empty() => {
            Err(SecurityError::UserIsAName {
                user: name.clone(),
                pod,
                container,
            })
        }
        (None, _) => Err(SecurityError::ImageIsRoot { pod, container }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    fn mk(
        pod: Value,
        own: Value,
        user: &ImageUser,
    ) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
        let pod = mk_pod(
            json!({"securityContext": pod, "containers": [{"name": "c", "securityContext": own}]}),
        );
        let slot = spec::slot(&pod, "c").expect("c exists");
        container(&pod, &slot, user, None)
    }

    #[test]
    fn a_container_goes_before_its_pod_and_the_pod_before_the_image() {
        let image = ImageUser {
            uid: Some(7),
            name: String::new(),
        };
        let user = |pod: Value, own: Value| {
            mk(pod, own, &image)
                .expect("allowed")
                .run_as_user
                .expect("a user")
                .value
        };
        assert_eq!(user(json!({}), json!({})), 7);
        assert_eq!(user(json!({"runAsUser": 8}), json!({})), 8);
        assert_eq!(user(json!({"runAsUser": 8}), json!({"runAsUser": 9})), 9);
    }

    #[test]
    fn non_root_is_verified() {
        let root = ImageUser {
            uid: Some(0),
            name: String::new(),
        };
        let named = ImageUser {
            uid: None,
            name: "nginx".to_owned(),
        };
        let non_root = json!({"runAsNonRoot": true});
        let error = mk(json!({}), non_root.clone(), &root).expect_err("the image is root's");
        assert_eq!(
            error.to_string(),
            "container has runAsNonRoot and image will run as root (pod: \"p_ns(u-1)\", container: c)"
        );
        assert!(matches!(
            mk(non_root.clone(), json!({}), &named),
            Err(SecurityError::UserIsAName { .. })
        ));
        assert!(mk(non_root.clone(), json!({"runAsUser": 5}), &root).is_ok());
        assert!(mk(non_root, json!({"runAsUser": 0}), &named).is_err());
    }

    #[test]
    fn privileged_containers_see_everything() {
        let image = ImageUser::default();
        let plain = mk(json!({}), json!({}), &image).expect("allowed");
        assert!(!plain.masked_paths.is_empty() && !plain.privileged);
        let privileged = mk(json!({}), json!({"privileged": true}), &image).expect("allowed");
        assert!(privileged.masked_paths.is_empty() && privileged.privileged);
    }

    #[test]
    fn the_file_system_group_is_a_group_of_every_process() {
        let context = mk(
            json!({"fsGroup": 3, "supplementalGroups": [4]}),
            json!({}),
            &ImageUser::default(),
        );
        assert_eq!(context.expect("allowed").supplemental_groups, [3, 4]);
    }
}
