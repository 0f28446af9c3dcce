//! What a pod may ask for and this node cannot give, whatever else runs on it: another operating system, sysctls that
//! reach beyond the pod, groups that the runtime does not keep apart. Pure.

use api::declared_features;

use super::memory::Verdict;
use super::spec;
use crate::k8s::{Node, Pod};

/// Kernel settings that a pod may have: each is its own network's or its own IPC's (upstream's `SafeSysctlAllowlist`).
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Says what of `pod` the node cannot give.
pub fn check(pod: &Pod, node: &Node) -> Result<(), Verdict> {
    sysctls(pod)?;
    let spec = spec::spec(pod);
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Err(super::admission::rejected(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    let context = spec.security_context.as_ref();
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !keeps_groups_apart(node) {
        return Err(super::admission::rejected(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    features(pod, node)
}

/// The features that the pod needs are among those that this kubelet declares.
fn features(pod: &Pod, node: &Node) -> Result<(), Verdict> {
    let spec = spec::spec(pod);
    let inits = spec.init_containers.iter().flatten();
    let rules = inits.chain(&spec.containers);
    let rules = rules.flat_map(|container| container.restart_policy_rules.iter().flatten());
    let actions = rules.map(|rule| rule.action.as_str());
    let host_network = spec.host_network == Some(true);
    let needed = declared_features::of_pod(actions, host_network, spec.host_users);
    let status = node.status.as_ref();
    let declared = status.and_then(|status| status.declared_features.as_deref());
    let declared = declared.unwrap_or_default();
    let missing = needed
        .into_iter()
        .filter(|name| !declared.iter().any(|one| one == name));
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(super::admission::rejected(
        "PodFeatureUnsupported",
        &format!("Pod requires node features that are not available: {missing}"),
    ))
}

fn keeps_groups_apart(node: &Node) -> bool {
    let status = node.status.as_ref();
    let features = status.and_then(|status| status.features.as_ref());
    features.and_then(|features| features.supplemental_groups_policy) == Some(true)
}

fn sysctls(pod: &Pod) -> Result<(), Verdict> {
    let spec = spec::spec(pod);
    let context = spec.security_context.as_ref();
    let wanted = context.and_then(|context| context.sysctls.as_ref());
    for sysctl in wanted.into_iter().flatten() {
        // Both spellings name the same setting.
        let name = sysctl.name.replace('/', ".");
        let problem = if !SAFE_SYSCTLS.contains(&name.as_str()) {
            "not allowlisted"
        } else if name.starts_with("net.") && spec.host_network == Some(true) {
            "not allowed with host net enabled"
        } else if name.starts_with("kernel.") && spec.host_ipc == Some(true) {
            "not allowed with host ipc enabled"
        } else {
            continue;
        };
        return Err(super::admission::rejected(
            "SysctlForbidden",
            &format!("forbidden sysctl: {name:?} {problem}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    fn verdict(mut spec: Value, node: Value) -> Option<(String, String)> {
        spec["containers"] = json!([{"name": "c"}]);
        let node = serde_json::from_value(node).expect("a node");
        let verdict = check(&mk_pod(spec), &node).err()?;
        assert!(verdict.rejected);
        let message = verdict.message.strip_prefix("Pod was rejected: ");
        Some((
            verdict.reason.clone(),
            message.expect("a prefix").to_owned(),
        ))
    }

    #[test]
    fn what_reaches_beyond_the_pod_or_is_not_there_is_refused() {
        let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
        let forbidden = |text: &str| Some(("SysctlForbidden", format!("forbidden sysctl: {text}")));
        let cases = [
            (json!({}), None),
            (json!({"os": {"name": "linux"}}), None),
            (
                json!({"securityContext": sysctl("net.ipv4.tcp_syncookies")}),
                None,
            ),
            (
                json!({"securityContext": sysctl("net/ipv4/tcp_syncookies")}),
                None,
            ),
            (
                json!({"securityContext": sysctl("kernel.msgmax")}),
                forbidden("\"kernel.msgmax\" not allowlisted"),
            ),
            (
                json!({"securityContext": sysctl("net.ipv4.tcp_syncookies"), "hostNetwork": true}),
                forbidden("\"net.ipv4.tcp_syncookies\" not allowed with host net enabled"),
            ),
            (
                json!({"securityContext": sysctl("kernel.shm_rmid_forced"), "hostIPC": true}),
                forbidden("\"kernel.shm_rmid_forced\" not allowed with host ipc enabled"),
            ),
            (
                json!({"os": {"name": "windows"}}),
                Some((
                    "PodOSNotSupported",
                    "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
                )),
            ),
        ];
        for (spec, expected) in cases {
            let expected = expected.map(|(reason, message)| (reason.to_owned(), message));
            assert_eq!(verdict(spec.clone(), json!({})), expected, "{spec}");
        }
    }

    #[test]
    fn strict_groups_take_a_node_that_has_them() {
        let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
        let merge = json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}});
        let able = json!({"status": {"features": {"supplementalGroupsPolicy": true}}});
        assert_eq!(verdict(strict.clone(), able), None);
        assert_eq!(verdict(merge, json!({})), None);
        let (reason, message) = verdict(strict, json!({})).expect("refused");
        assert_eq!(reason, "SupplementalGroupsPolicyNotSupported");
        assert_eq!(
            message,
            "SupplementalGroupsPolicy=Strict is not supported in this node"
        );
    }

    #[test]
    fn a_feature_that_is_not_declared_is_not_given() {
        let pod = |action: &str| {
            let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [42]}});
            mk_pod(json!({"containers": [{"name": "c", "restartPolicyRules": [rule]}]}))
        };
        let node = |declared: Value| {
            let node = json!({"status": {"declaredFeatures": declared}});
            serde_json::from_value::<Node>(node).expect("a node")
        };
        let plain = node(json!(["GuaranteedQoSPodCPUResize"]));
        assert_eq!(check(&pod("Restart"), &plain), Ok(()));
        let refused = check(&pod("RestartAllContainers"), &plain).expect_err("refused");
        assert_eq!(refused.reason, "PodFeatureUnsupported");
        assert_eq!(
            refused.message,
            "Pod was rejected: Pod requires node features that are not available: RestartAllContainersOnContainerExits"
        );
        let able = node(json!(["RestartAllContainersOnContainerExits"]));
        assert_eq!(check(&pod("RestartAllContainers"), &able), Ok(()));
    }
}
