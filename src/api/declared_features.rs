//! The features that nodes declare in `status.declaredFeatures` (KEP-5328), by name: those whose gate is on by default
//! in 1.37, or that a pod may ask for. Who needs one must not run where it is not declared, nor be changed there.

/// CPU of guaranteed pods changes in place. Of updates.
pub const GUARANTEED_CPU_RESIZE: &str = "GuaranteedQoSPodCPUResize";
/// What a pod asks for as a whole changes in place. Of updates.
pub const POD_LEVEL_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";
/// Init containers that are not sidecars are resized. Of updates.
pub const INIT_CONTAINER_RESIZE: &str = "InPlacePodVerticalScalingInitContainers";
/// The restart rule `RestartAllContainers`.
pub const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";
/// A user namespace of its own in the host's network.
pub const USER_NAMESPACE_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// The action of a container's restart rule that needs `RESTART_ALL_CONTAINERS`.
const RESTART_ALL: &str = "RestartAllContainers";

/// What a pod needs of the node it runs on, sorted (`InferForPodScheduling`): by the actions of all its containers'
/// restart rules and its `hostNetwork` and `hostUsers`.
pub fn of_pod<'a>(
    mut actions: impl Iterator<Item = &'a str>,
    host_network: bool,
    host_users: Option<bool>,
) -> Vec<&'static str> {
    let mut needed = Vec::new();
    if actions.any(|action| action == RESTART_ALL) {
        needed.push(RESTART_ALL_CONTAINERS);
    }
    if host_network && host_users == Some(false) {
        needed.push(USER_NAMESPACE_ON_HOST_NETWORK);
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_needs_what_its_rules_and_namespaces_say() {
        let needs =
            |actions: &[&str], network, users| of_pod(actions.iter().copied(), network, users);
        assert!(needs(&["Restart"], true, None).is_empty());
        assert!(needs(&[], false, Some(false)).is_empty());
        assert_eq!(
            needs(&["Restart", "RestartAllContainers"], true, Some(false)),
            [RESTART_ALL_CONTAINERS, USER_NAMESPACE_ON_HOST_NETWORK]
        );
    }
}
