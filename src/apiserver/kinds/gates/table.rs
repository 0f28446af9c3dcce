//! The fields that gates guard which are off by default in 1.37, by gate.

use super::Place::{Object, PodSpec};
use super::Stage::{Alpha, Beta};
use super::{Place, Row, Stage};

const fn row(
    gate: &'static str,
    stage: Stage,
    place: Place,
    fields: &'static [&'static str],
) -> Row {
    Row {
        gate,
        stage,
        place,
        fields,
        when: "",
    }
}

const DEVICES: &str = "resource.k8s.io";
const SCHEDULING: &str = "scheduling.k8s.io";

/// Every guarded field.
pub(super) const ROWS: &[Row] = &[
    row(
        "AtomicWriteVolumeUserFields",
        Alpha,
        PodSpec,
        &[
            "volumes[].configMap.defaultUser",
            "volumes[].configMap.items[].user",
            "volumes[].downwardAPI.defaultUser",
            "volumes[].downwardAPI.items[].user",
            "volumes[].projected.defaultUser",
            "volumes[].projected.sources[].clusterTrustBundle.user",
            "volumes[].projected.sources[].configMap.items[].user",
            "volumes[].projected.sources[].downwardAPI.items[].user",
            "volumes[].projected.sources[].podCertificate.user",
            "volumes[].projected.sources[].secret.items[].user",
            "volumes[].projected.sources[].serviceAccountToken.user",
            "volumes[].secret.defaultUser",
            "volumes[].secret.items[].user",
        ],
    ),
    row(
        "CRDObservedGenerationTracking",
        Beta,
        Object("apiextensions.k8s.io", "customresourcedefinitions"),
        &[
            "status.conditions[].observedGeneration",
            "status.observedGeneration",
        ],
    ),
    row(
        "CSIVolumeHealth",
        Alpha,
        Object("", "persistentvolumeclaims"),
        &["status.healthStatus"],
    ),
    row(
        "CSIVolumeHealth",
        Alpha,
        Object("", "pods"),
        &["status.volumeHealth"],
    ),
    row(
        "CompositePodGroup",
        Alpha,
        Object(SCHEDULING, "compositepodgroups"),
        &["spec.parentCompositePodGroupName"],
    ),
    row(
        "CompositePodGroup",
        Alpha,
        Object(SCHEDULING, "podgroups"),
        &["spec.parentCompositePodGroupName"],
    ),
    row(
        "CompositePodGroup",
        Alpha,
        Object(SCHEDULING, "workloads"),
        &["spec.compositePodGroupTemplates"],
    ),
    row(
        "ContainerStopSignals",
        Alpha,
        PodSpec,
        &["(containers).lifecycle?.stopSignal"],
    ),
    row(
        "CoordinatedLeaderElection",
        Beta,
        Object("coordination.k8s.io", "leases"),
        &["spec.preferredHolder"],
    ),
    row(
        "CoordinatedLeaderElection",
        Beta,
        Object("coordination.k8s.io", "leases"),
        &["spec.strategy"],
    ),
    Row {
        gate: "CrossNamespaceVolumeDataSource",
        stage: Alpha,
        place: Object("", "persistentvolumeclaims"),
        fields: &["spec.dataSourceRef"],
        when: "spec.dataSourceRef.namespace",
    },
    row(
        "DRADerivedAttributes",
        Alpha,
        Object(DEVICES, "resourceclaims"),
        &[
            "spec.devices.requests[].exactly.derivedAttributes",
            "spec.devices.requests[].firstAvailable[].derivedAttributes",
        ],
    ),
    row(
        "DRADerivedAttributes",
        Alpha,
        Object(DEVICES, "resourceclaimtemplates"),
        &[
            "spec.spec.devices.requests[].exactly.derivedAttributes",
            "spec.spec.devices.requests[].firstAvailable[].derivedAttributes",
        ],
    ),
    row(
        "DRADeviceCompatibilityGroups",
        Alpha,
        Object(DEVICES, "resourceslices"),
        &["spec.devices[].consumesCounters[].compatibilityGroups"],
    ),
    row(
        "DRAListTypeAttributes",
        Alpha,
        Object(DEVICES, "resourceslices"),
        &[
            "spec.devices[].attributes{}.bools",
            "spec.devices[].attributes{}.ints",
            "spec.devices[].attributes{}.strings",
            "spec.devices[].attributes{}.versions",
        ],
    ),
    row(
        "DRANodeAllocatableResources",
        Alpha,
        Object("", "pods"),
        &["status.nodeAllocatableResourceClaimStatuses"],
    ),
    row(
        "DRANodeAllocatableResources",
        Alpha,
        Object(DEVICES, "resourceslices"),
        &["spec.devices[].nodeAllocatableResources"],
    ),
    row(
        "DRAOptionalNodeOperations",
        Alpha,
        Object(DEVICES, "resourceclaims"),
        &["status.allocation.devices.results[].skipNodeOperations"],
    ),
    row(
        "DRAOptionalNodeOperations",
        Alpha,
        Object(DEVICES, "resourceslices"),
        &["spec.skipNodeOperations"],
    ),
    row(
        "DRAPartitionableDevicesType",
        Alpha,
        Object(DEVICES, "resourceslices"),
        &["spec.partitionTypeAttribute"],
    ),
    row(
        "DRAWorkloadResourceClaims",
        Beta,
        Object(SCHEDULING, "podgroups"),
        &["spec.resourceClaims"],
    ),
    row(
        "DRAWorkloadResourceClaims",
        Beta,
        Object(SCHEDULING, "workloads"),
        &[
            "spec.compositePodGroupTemplates[+].podGroupTemplates[].resourceClaims",
            "spec.podGroupTemplates[].resourceClaims",
        ],
    ),
    row(
        "EmptyDirVolumeMode",
        Alpha,
        PodSpec,
        &["volumes[].emptyDir.mode"],
    ),
    row(
        "EvictionRequestAPI",
        Alpha,
        PodSpec,
        &["evictionResponders"],
    ),
    row(
        "GRPCContainerProbeTLS",
        Alpha,
        PodSpec,
        &[
            "(containers).livenessProbe.grpc.mode",
            "(containers).readinessProbe.grpc.mode",
            "(containers).startupProbe.grpc.mode",
        ],
    ),
    row("GenericWorkload", Beta, PodSpec, &["schedulingGroup"]),
    row(
        "H2CContainerProbe",
        Alpha,
        PodSpec,
        &[
            "(containers).livenessProbe.httpGet.protocol",
            "(containers).readinessProbe.httpGet.protocol",
            "(containers).startupProbe.httpGet.protocol",
        ],
    ),
    row(
        "InPlacePodVerticalScalingSchedulerPreemption",
        Alpha,
        Object("", "nodes"),
        &["spec.podPreemptionPolicy"],
    ),
    row(
        "PodGroupPreemptionPolicy",
        Alpha,
        Object(SCHEDULING, "compositepodgroups"),
        &["spec.preemptionPolicy"],
    ),
    row(
        "PodGroupPreemptionPolicy",
        Alpha,
        Object(SCHEDULING, "podgroups"),
        &["spec.preemptionPolicy"],
    ),
    row(
        "PodGroupPreemptionPolicy",
        Alpha,
        Object(SCHEDULING, "workloads"),
        &[
            "spec.compositePodGroupTemplates[+].podGroupTemplates[].preemptionPolicy",
            "spec.compositePodGroupTemplates[+].preemptionPolicy",
            "spec.podGroupTemplates[].preemptionPolicy",
        ],
    ),
    row(
        "TopologyAwareWorkloadScheduling",
        Alpha,
        Object(SCHEDULING, "compositepodgroups"),
        &["spec.schedulingConstraints"],
    ),
    row(
        "TopologyAwareWorkloadScheduling",
        Alpha,
        Object(SCHEDULING, "podgroups"),
        &["spec.schedulingConstraints"],
    ),
    row(
        "TopologyAwareWorkloadScheduling",
        Alpha,
        Object(SCHEDULING, "workloads"),
        &[
            "spec.compositePodGroupTemplates[+].podGroupTemplates[].schedulingConstraints",
            "spec.compositePodGroupTemplates[+].schedulingConstraints",
            "spec.podGroupTemplates[].schedulingConstraints",
        ],
    ),
    row(
        "VolumeBindMountOptions",
        Alpha,
        PodSpec,
        &["(containers).volumeMounts[].bindMountOptions"],
    ),
    row(
        "WorkloadWithJob",
        Alpha,
        Object("batch", "cronjobs"),
        &["spec.jobTemplate.spec.scheduling"],
    ),
    row(
        "WorkloadWithJob",
        Alpha,
        Object("batch", "jobs"),
        &["spec.scheduling"],
    ),
];
