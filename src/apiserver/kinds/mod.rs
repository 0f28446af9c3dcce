//! The kinds: what is special about each, as rows of one table. A kind without a row is served by the defaults alone.
//!
//! To add a kind's rules: a unit struct that implements `Strategy` in the file of its group, and its line in `KINDS`.

pub mod api_services;
pub mod apps;
pub mod autoscaling;
pub mod batch;
pub mod check;
pub mod core;
pub mod devices;
pub mod gates;
pub mod lease_candidates;
pub mod migrations;
pub mod networking;
pub mod nodes;
pub mod object_meta;
pub mod pod_spec;
pub mod policy;
pub mod simple;
pub mod status;
pub mod storage;
pub mod storage_versions;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod unstored;
pub mod volume_source;
pub mod workloads;

use std::sync::LazyLock;

use api::Resource;

use crate::registry::strategy::{Plain, Strategy};

/// Every kind with rules of its own.
pub static KINDS: &[&dyn Strategy] = &[
    &crate::crd::CustomResourceDefinitions,
    &apps::DaemonSets,
    &apps::Deployments,
    &apps::PodTemplates,
    &apps::ReplicaSets,
    &apps::ReplicationControllers,
    &apps::StatefulSets,
    &autoscaling::HorizontalPodAutoscalers,
    &batch::CronJobs,
    &batch::Jobs,
    &core::claims::PersistentVolumeClaims,
    &core::config::ConfigMaps,
    &core::config::Secrets,
    &core::endpoints::EndpointSlices,
    &core::endpoints::Endpoints,
    &core::endpoints::Leases,
    &core::events::Events,
    &core::namespaces::Namespaces,
    &core::nodes::Nodes,
    &core::pods::Pods,
    &core::service_accounts::ServiceAccounts,
    &core::services::Services,
    &core::volumes::PersistentVolumes,
    &devices::DeviceTaintRules,
    &devices::RESOURCE_CLAIMS,
    &devices::RESOURCE_CLAIM_TEMPLATES,
    &devices::ResourceSlices,
    &lease_candidates::LeaseCandidates,
    &migrations::StorageVersionMigrations,
    &networking::Ingresses,
    &networking::IpAddresses,
    &networking::NetworkPolicies,
    &networking::ServiceCidrs,
    &policy::PodDisruptionBudgets,
    &policy::PriorityClasses,
    &policy::admission::Policies("mutatingadmissionpolicies"),
    &policy::admission::Policies("validatingadmissionpolicies"),
    &policy::admission::PolicyBindings("mutatingadmissionpolicybindings"),
    &policy::admission::PolicyBindings("validatingadmissionpolicybindings"),
    &policy::admission::Webhooks("mutatingwebhookconfigurations"),
    &policy::admission::Webhooks("validatingwebhookconfigurations"),
    &policy::certificates::CertificateSigningRequests,
    &policy::certificates::ClusterTrustBundles,
    &policy::flow::FlowSchemas,
    &policy::flow::PriorityLevelConfigurations,
    &policy::pod_certificates::PodCertificateRequests,
    &policy::quota::LimitRanges,
    &policy::quota::ResourceQuotas,
    &policy::rbac::Bindings("clusterrolebindings"),
    &policy::rbac::Bindings("rolebindings"),
    &policy::rbac::Roles("clusterroles"),
    &policy::rbac::Roles("roles"),
    &simple::API_SERVICES,
    &simple::CONTROLLER_REVISIONS,
    &simple::CSI_NODES,
    &simple::CSI_STORAGE_CAPACITIES,
    &simple::DEVICE_CLASSES,
    &simple::INGRESS_CLASSES,
    &simple::RUNTIME_CLASSES,
    &simple::VOLUME_ATTACHMENTS,
    &storage::CsiDrivers,
    &storage::StorageClasses,
    &storage::VolumeAttributesClasses,
    &storage_versions::StorageVersions,
    &workloads::PodGroups("compositepodgroups"),
    &workloads::PodGroups("podgroups"),
    &workloads::Workloads,
];

static PLAIN: LazyLock<Vec<Plain>> =
    LazyLock::new(|| api::RESOURCES.iter().copied().map(Plain).collect());

/// The rules of a stored resource.
pub fn strategy_of(resource: &'static Resource) -> &'static dyn Strategy {
    let id = (resource.group, resource.plural);
    if let Some(strategy) = KINDS.iter().find(|kind| kind.id() == id) {
        return *strategy;
    }
    let plain = PLAIN
        .iter()
        .find(|plain| std::ptr::eq(plain.0, resource))
        .expect("every resource has a plain strategy");
    plain
}
