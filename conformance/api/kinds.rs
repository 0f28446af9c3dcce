//! The kinds that the tests work on: what a client has to know to address them.

/// One served kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `v1` or `group/version`.
    pub api_version: &'static str,
    pub kind: &'static str,
    /// The plural in paths.
    pub resource: &'static str,
}

impl Kind {
    const fn new(api_version: &'static str, kind: &'static str, resource: &'static str) -> Self {
        Self {
            api_version,
            kind,
            resource,
        }
    }

    /// The path of its group and version.
    pub fn root(&self) -> String {
        let prefix = if self.api_version.contains('/') {
            "/apis"
        } else {
            "/api"
        };
        format!("{prefix}/{}", self.api_version)
    }
}

pub const CONFIG_MAP: Kind = Kind::new("v1", "ConfigMap", "configmaps");
pub const ENDPOINTS: Kind = Kind::new("v1", "Endpoints", "endpoints");
pub const EVENT: Kind = Kind::new("v1", "Event", "events");
pub const LIMIT_RANGE: Kind = Kind::new("v1", "LimitRange", "limitranges");
pub const NAMESPACE: Kind = Kind::new("v1", "Namespace", "namespaces");
pub const NODE: Kind = Kind::new("v1", "Node", "nodes");
pub const POD: Kind = Kind::new("v1", "Pod", "pods");
pub const POD_TEMPLATE: Kind = Kind::new("v1", "PodTemplate", "podtemplates");
pub const RESOURCE_QUOTA: Kind = Kind::new("v1", "ResourceQuota", "resourcequotas");
pub const SECRET: Kind = Kind::new("v1", "Secret", "secrets");
pub const SERVICE: Kind = Kind::new("v1", "Service", "services");
pub const SERVICE_ACCOUNT: Kind = Kind::new("v1", "ServiceAccount", "serviceaccounts");
pub const VOLUME: Kind = Kind::new("v1", "PersistentVolume", "persistentvolumes");
pub const VOLUME_CLAIM: Kind = Kind::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims");

pub const TOKEN_REVIEW: Kind = Kind::new("authentication.k8s.io/v1", "TokenReview", "tokenreviews");
pub const ACCESS_REVIEW: Kind = Kind::new(
    "authorization.k8s.io/v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
);
pub const LOCAL_ACCESS_REVIEW: Kind = Kind::new(
    "authorization.k8s.io/v1",
    "LocalSubjectAccessReview",
    "localsubjectaccessreviews",
);
pub const SELF_ACCESS_REVIEW: Kind = Kind::new(
    "authorization.k8s.io/v1",
    "SelfSubjectAccessReview",
    "selfsubjectaccessreviews",
);
pub const CRON_JOB: Kind = Kind::new("batch/v1", "CronJob", "cronjobs");
pub const SIGNING_REQUEST: Kind = Kind::new(
    "certificates.k8s.io/v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
);
pub const LEASE: Kind = Kind::new("coordination.k8s.io/v1", "Lease", "leases");
pub const ENDPOINT_SLICE: Kind =
    Kind::new("discovery.k8s.io/v1", "EndpointSlice", "endpointslices");
pub const NEW_EVENT: Kind = Kind::new("events.k8s.io/v1", "Event", "events");
pub const FLOW_SCHEMA: Kind = Kind::new(
    "flowcontrol.apiserver.k8s.io/v1",
    "FlowSchema",
    "flowschemas",
);
pub const PRIORITY_LEVEL: Kind = Kind::new(
    "flowcontrol.apiserver.k8s.io/v1",
    "PriorityLevelConfiguration",
    "prioritylevelconfigurations",
);
pub const INGRESS: Kind = Kind::new("networking.k8s.io/v1", "Ingress", "ingresses");
pub const INGRESS_CLASS: Kind = Kind::new("networking.k8s.io/v1", "IngressClass", "ingressclasses");
pub const IP_ADDRESS: Kind = Kind::new("networking.k8s.io/v1", "IPAddress", "ipaddresses");
pub const SERVICE_CIDR: Kind = Kind::new("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs");
pub const RUNTIME_CLASS: Kind = Kind::new("node.k8s.io/v1", "RuntimeClass", "runtimeclasses");
pub const ROLE: Kind = Kind::new("rbac.authorization.k8s.io/v1", "Role", "roles");
pub const ROLE_BINDING: Kind = Kind::new(
    "rbac.authorization.k8s.io/v1",
    "RoleBinding",
    "rolebindings",
);
pub const DEVICE_CLASS: Kind = Kind::new("resource.k8s.io/v1", "DeviceClass", "deviceclasses");
pub const RESOURCE_CLAIM: Kind = Kind::new("resource.k8s.io/v1", "ResourceClaim", "resourceclaims");
pub const RESOURCE_CLAIM_TEMPLATE: Kind = Kind::new(
    "resource.k8s.io/v1",
    "ResourceClaimTemplate",
    "resourceclaimtemplates",
);
pub const RESOURCE_SLICE: Kind = Kind::new("resource.k8s.io/v1", "ResourceSlice", "resourceslices");
pub const PRIORITY_CLASS: Kind =
    Kind::new("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses");
pub const CSI_DRIVER: Kind = Kind::new("storage.k8s.io/v1", "CSIDriver", "csidrivers");
pub const CSI_NODE: Kind = Kind::new("storage.k8s.io/v1", "CSINode", "csinodes");
pub const STORAGE_CAPACITY: Kind = Kind::new(
    "storage.k8s.io/v1",
    "CSIStorageCapacity",
    "csistoragecapacities",
);
pub const STORAGE_CLASS: Kind = Kind::new("storage.k8s.io/v1", "StorageClass", "storageclasses");
pub const VOLUME_ATTACHMENT: Kind =
    Kind::new("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments");
