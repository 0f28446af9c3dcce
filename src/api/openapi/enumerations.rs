//! Which fields take one of a few words, as documents publish it (upstream's types marked `+enum`, KEP-2887), and which
//! have a default that upstream's types declare (`+default`).

/// The values of a field of a type, sorted; of a list the items', of a map the values'.
pub(crate) fn values(definition: &str, field: &str) -> Option<&'static [&'static str]> {
    let (group, name) = split(definition)?;
    FIELDS
        .iter()
        .find(|(of, ty, of_field, _)| *of == group && *ty == name && *of_field == field)
        .map(|(.., values)| *values)
}

/// The declared default of a field: a text, or else a flag that is false.
pub(crate) fn default(definition: &str, field: &str) -> Option<&'static str> {
    let (group, name) = split(definition)?;
    DEFAULTS
        .iter()
        .find(|(of, ty, of_field, _)| *of == group && *ty == name && *of_field == field)
        .map(|(.., text)| *text)
}

/// Group and type of `io.k8s.api.<group>.<version>.<type>`.
fn split(definition: &str) -> Option<(&str, &str)> {
    let mut parts = definition.strip_prefix("io.k8s.api.")?.split('.');
    let (group, _version, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some((group, name))
}

const ACCESS: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const ALLOCATION: &[&str] = &["All", "ExactCount"];
const CLAIM_RESIZE: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];
const CLUSTER_OR_LOCAL: &[&str] = &["Cluster", "Local"];
const CONFINED: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const EXISTENCE: &[&str] = &["DoesNotExist", "Exists", "In", "NotIn"];
const FAIL_OR_IGNORE: &[&str] = &["Fail", "Ignore"];
const HONOR: &[&str] = &["Honor", "Ignore"];
const HOST_PATH: &[&str] = &[
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
const KEY_USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const MATCH: &[&str] = &["Equivalent", "Exact"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const PREEMPTION: &[&str] = &["Never", "PreemptLowerPriority"];
const PROTOCOL: &[&str] = &["SCTP", "TCP", "UDP"];
const PULL: &[&str] = &["Always", "IfNotPresent", "Never"];
const QUOTA_SCOPE: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
const RECLAIM: &[&str] = &["Delete", "Recycle", "Retain"];
const REINVOCATION: &[&str] = &["IfNeeded", "Never"];
const SCOPE: &[&str] = &["*", "Cluster", "Namespaced"];
const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];
const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
const TAINT: &[&str] = &["NoExecute", "NoSchedule", "PreferNoSchedule"];
const TERMINATION_MESSAGE: &[&str] = &["FallbackToLogsOnError", "File"];
const UPDATE: &[&str] = &["OnDelete", "RollingUpdate"];
const VOLUME_MODE: &[&str] = &["Block", "Filesystem"];

/// Group, type, field, values.
type Enumeration = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

#[rustfmt::skip]
const FIELDS: &[Enumeration] = &[
    ("admissionregistration", "MatchResources", "matchPolicy", MATCH),
    ("admissionregistration", "MutatingAdmissionPolicySpec", "failurePolicy", FAIL_OR_IGNORE),
    ("admissionregistration", "MutatingAdmissionPolicySpec", "reinvocationPolicy", REINVOCATION),
    ("admissionregistration", "MutatingWebhook", "failurePolicy", FAIL_OR_IGNORE),
    ("admissionregistration", "MutatingWebhook", "matchPolicy", MATCH),
    ("admissionregistration", "MutatingWebhook", "reinvocationPolicy", REINVOCATION),
    ("admissionregistration", "MutatingWebhook", "sideEffects", SIDE_EFFECTS),
    ("admissionregistration", "Mutation", "patchType", &["ApplyConfiguration", "JSONPatch"]),
    ("admissionregistration", "NamedRuleWithOperations", "operations", OPERATIONS),
    ("admissionregistration", "NamedRuleWithOperations", "scope", SCOPE),
    ("admissionregistration", "ParamRef", "parameterNotFoundAction", &["Allow", "Deny"]),
    ("admissionregistration", "RuleWithOperations", "operations", OPERATIONS),
    ("admissionregistration", "RuleWithOperations", "scope", SCOPE),
    ("admissionregistration", "ValidatingAdmissionPolicyBindingSpec", "validationActions", &["Audit", "Deny", "Warn"]),
    ("admissionregistration", "ValidatingAdmissionPolicySpec", "failurePolicy", FAIL_OR_IGNORE),
    ("admissionregistration", "ValidatingWebhook", "failurePolicy", FAIL_OR_IGNORE),
    ("admissionregistration", "ValidatingWebhook", "matchPolicy", MATCH),
    ("admissionregistration", "ValidatingWebhook", "sideEffects", SIDE_EFFECTS),
    ("apps", "DaemonSetUpdateStrategy", "type", UPDATE),
    ("apps", "DeploymentStrategy", "type", &["Recreate", "RollingUpdate"]),
    ("apps", "StatefulSetSpec", "podManagementPolicy", &["OrderedReady", "Parallel"]),
    ("apps", "StatefulSetUpdateStrategy", "type", &["OnDelete", "Recreate", "RollingUpdate"]),
    ("batch", "CronJobSpec", "concurrencyPolicy", &["Allow", "Forbid", "Replace"]),
    ("batch", "JobSpec", "completionMode", &["Indexed", "NonIndexed"]),
    ("batch", "JobSpec", "podReplacementPolicy", &["Failed", "TerminatingOrFailed"]),
    ("batch", "PodFailurePolicyOnExitCodesRequirement", "operator", &["In", "NotIn"]),
    ("batch", "PodFailurePolicyRule", "action", &["Count", "FailIndex", "FailJob", "Ignore"]),
    ("certificates", "CertificateSigningRequestSpec", "usages", KEY_USAGES),
    ("core", "AppArmorProfile", "type", CONFINED),
    ("core", "AzureDiskVolumeSource", "cachingMode", &["None", "ReadOnly", "ReadWrite"]),
    ("core", "AzureDiskVolumeSource", "kind", &["Dedicated", "Managed", "Shared"]),
    ("core", "Container", "imagePullPolicy", PULL),
    ("core", "Container", "terminationMessagePolicy", TERMINATION_MESSAGE),
    ("core", "ContainerPort", "protocol", PROTOCOL),
    ("core", "ContainerStatus", "stopSignal", SIGNALS),
    ("core", "EndpointPort", "protocol", PROTOCOL),
    ("core", "EphemeralContainer", "imagePullPolicy", PULL),
    ("core", "EphemeralContainer", "terminationMessagePolicy", TERMINATION_MESSAGE),
    ("core", "GRPCAction", "mode", &["Plaintext", "TLS"]),
    ("core", "HTTPGetAction", "scheme", &["HTTP", "HTTPS"]),
    ("core", "HostPathVolumeSource", "type", HOST_PATH),
    ("core", "ImageVolumeSource", "pullPolicy", PULL),
    ("core", "Lifecycle", "stopSignal", SIGNALS),
    ("core", "ModifyVolumeStatus", "status", &["InProgress", "Infeasible", "Pending"]),
    ("core", "NamespaceStatus", "phase", &["Active", "Terminating"]),
    ("core", "NodeSelectorRequirement", "operator", &["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"]),
    ("core", "NodeStatus", "phase", &["Pending", "Running", "Terminated"]),
    ("core", "PersistentVolumeClaimSpec", "accessModes", ACCESS),
    ("core", "PersistentVolumeClaimSpec", "volumeMode", VOLUME_MODE),
    ("core", "PersistentVolumeClaimStatus", "accessModes", ACCESS),
    ("core", "PersistentVolumeClaimStatus", "allocatedResourceStatuses", CLAIM_RESIZE),
    ("core", "PersistentVolumeClaimStatus", "phase", &["Bound", "Lost", "Pending"]),
    ("core", "PersistentVolumeSpec", "accessModes", ACCESS),
    ("core", "PersistentVolumeSpec", "persistentVolumeReclaimPolicy", RECLAIM),
    ("core", "PersistentVolumeSpec", "volumeMode", VOLUME_MODE),
    ("core", "PersistentVolumeStatus", "phase", &["Available", "Bound", "Failed", "Pending", "Released"]),
    ("core", "PodSecurityContext", "fsGroupChangePolicy", &["Always", "OnRootMismatch"]),
    ("core", "PodSecurityContext", "supplementalGroupsPolicy", &["Merge", "Strict"]),
    ("core", "PodSpec", "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ("core", "PodSpec", "preemptionPolicy", PREEMPTION),
    ("core", "PodSpec", "restartPolicy", &["Always", "Never", "OnFailure"]),
    ("core", "PodStatus", "phase", &["Failed", "Pending", "Running", "Succeeded", "Unknown"]),
    ("core", "PodStatus", "qosClass", &["BestEffort", "Burstable", "Guaranteed"]),
    ("core", "PortStatus", "protocol", PROTOCOL),
    ("core", "ResourceQuotaSpec", "scopes", QUOTA_SCOPE),
    ("core", "ScopedResourceSelectorRequirement", "operator", EXISTENCE),
    ("core", "ScopedResourceSelectorRequirement", "scopeName", QUOTA_SCOPE),
    ("core", "SeccompProfile", "type", CONFINED),
    ("core", "SecurityContext", "procMount", &["Default", "Unmasked"]),
    ("core", "ServicePort", "protocol", PROTOCOL),
    ("core", "ServiceSpec", "externalTrafficPolicy", CLUSTER_OR_LOCAL),
    ("core", "ServiceSpec", "internalTrafficPolicy", CLUSTER_OR_LOCAL),
    ("core", "ServiceSpec", "ipFamilies", &["", "IPv4", "IPv6"]),
    ("core", "ServiceSpec", "ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"]),
    ("core", "ServiceSpec", "sessionAffinity", &["ClientIP", "None"]),
    ("core", "ServiceSpec", "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
    ("core", "Taint", "effect", TAINT),
    ("core", "Toleration", "effect", TAINT),
    ("core", "Toleration", "operator", &["Equal", "Exists", "Gt", "Lt"]),
    ("core", "TopologySpreadConstraint", "nodeAffinityPolicy", HONOR),
    ("core", "TopologySpreadConstraint", "nodeTaintsPolicy", HONOR),
    ("core", "TopologySpreadConstraint", "whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]),
    ("core", "VolumeMount", "mountPropagation", &["Bidirectional", "HostToContainer", "None"]),
    ("discovery", "EndpointPort", "protocol", PROTOCOL),
    ("discovery", "EndpointSlice", "addressType", &["FQDN", "IPv4", "IPv6"]),
    ("networking", "HTTPIngressPath", "pathType", &["Exact", "ImplementationSpecific", "Prefix"]),
    ("networking", "IngressPortStatus", "protocol", PROTOCOL),
    ("networking", "NetworkPolicyPort", "protocol", PROTOCOL),
    ("networking", "NetworkPolicySpec", "policyTypes", &["Egress", "Ingress"]),
    ("policy", "PodDisruptionBudgetSpec", "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]),
    ("resource", "DeviceAllocationConfiguration", "source", &["FromClaim", "FromClass"]),
    ("resource", "DeviceRequest", "allocationMode", ALLOCATION),
    ("resource", "DeviceSubRequest", "allocationMode", ALLOCATION),
    ("resource", "DeviceTaint", "effect", &["NoExecute", "NoSchedule", "None"]),
    ("resource", "DeviceToleration", "effect", &["NoExecute", "NoSchedule", "None"]),
    ("resource", "DeviceToleration", "operator", &["Equal", "Exists"]),
    ("resource", "ExactDeviceRequest", "allocationMode", ALLOCATION),
    ("scheduling", "CompositePodGroupSpec", "preemptionPolicy", PREEMPTION),
    ("scheduling", "CompositePodGroupTemplate", "preemptionPolicy", PREEMPTION),
    ("scheduling", "PodGroupSpec", "preemptionPolicy", PREEMPTION),
    ("scheduling", "PodGroupTemplate", "preemptionPolicy", PREEMPTION),
    ("scheduling", "PriorityClass", "preemptionPolicy", PREEMPTION),
    ("storage", "StorageClass", "reclaimPolicy", RECLAIM),
    ("storage", "StorageClass", "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]),
];

#[rustfmt::skip]
const DEFAULTS: &[(&str, &str, &str, &str)] = &[
    ("core", "AzureDiskVolumeSource", "cachingMode", "ReadWrite"),
    ("core", "AzureDiskVolumeSource", "fsType", "ext4"),
    ("core", "AzureDiskVolumeSource", "kind", "Shared"),
    ("core", "ContainerPort", "protocol", "TCP"),
    ("core", "GRPCAction", "service", ""),
    ("core", "ISCSIPersistentVolumeSource", "iscsiInterface", "default"),
    ("core", "ISCSIVolumeSource", "iscsiInterface", "default"),
    ("core", "RBDPersistentVolumeSource", "keyring", "/etc/ceph/keyring"),
    ("core", "RBDPersistentVolumeSource", "pool", "rbd"),
    ("core", "RBDPersistentVolumeSource", "user", "admin"),
    ("core", "RBDVolumeSource", "keyring", "/etc/ceph/keyring"),
    ("core", "RBDVolumeSource", "pool", "rbd"),
    ("core", "RBDVolumeSource", "user", "admin"),
    ("core", "ScaleIOPersistentVolumeSource", "fsType", "xfs"),
    ("core", "ScaleIOPersistentVolumeSource", "storageMode", "ThinProvisioned"),
    ("core", "ScaleIOVolumeSource", "fsType", "xfs"),
    ("core", "ScaleIOVolumeSource", "storageMode", "ThinProvisioned"),
    ("core", "ServicePort", "protocol", "TCP"),
    ("resource", "DeviceToleration", "operator", "Equal"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use apimachinery::schema::Type;

    use super::*;
    use crate::schema::MESSAGES;

    #[test]
    fn devices_probes_and_sets_say_their_words() {
        let all = |definition, field| values(definition, field).unwrap_or_default().join(" ");
        let claim = "io.k8s.api.resource.v1.DeviceAllocationConfiguration";
        assert_eq!(all(claim, "source"), "FromClaim FromClass");
        let request = "io.k8s.api.resource.v1.ExactDeviceRequest";
        assert_eq!(all(request, "allocationMode"), "All ExactCount");
        let probe = "io.k8s.api.core.v1.GRPCAction";
        assert_eq!(all(probe, "mode"), "Plaintext TLS");
        let set = "io.k8s.api.apps.v1.StatefulSetUpdateStrategy";
        assert_eq!(all(set, "type"), "OnDelete Recreate RollingUpdate");
        let daemons = "io.k8s.api.apps.v1.DaemonSetUpdateStrategy";
        assert_eq!(all(daemons, "type"), "OnDelete RollingUpdate");
    }

    #[test]
    fn every_entry_names_a_field_that_takes_text() {
        let takes_text = |group: &str, name: &str, field: &str| {
            MESSAGES.iter().any(|message| {
                split(&message.name) == Some((group, name))
                    && message.field(field).is_some_and(|field| match &field.ty {
                        Type::String => true,
                        Type::List(list) => matches!(list.item, Type::String),
                        Type::Map(map) => matches!(map.value, Type::String),
                        _ => false,
                    })
            })
        };
        for (group, name, field, values) in FIELDS {
            assert!(takes_text(group, name, field), "{group} {name} {field}");
            let sorted: BTreeSet<&str> = values.iter().copied().collect();
            assert_eq!(sorted.len(), values.len(), "{name} {field}");
        }
        for (group, name, field, default) in DEFAULTS {
            assert!(takes_text(group, name, field), "{group} {name} {field}");
            let known = FIELDS
                .iter()
                .find(|(of, ty, of_field, _)| of == group && ty == name && of_field == field);
            assert!(known.is_none_or(|(.., values)| values.contains(default)));
        }
    }
}
