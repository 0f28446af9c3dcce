//! Upstream's conformance tests that need an API server alone, each told anew and run against `skiff server`.
//!
//! `checklist!` names each by upstream's `Testname` and gives the function that shows the behaviour; a row is a test.
//! `endpoint` speaks to the server, `lifecycle` is what kinds have in common, the other files are areas.

mod accounts;
mod certificates;
mod chunks;
mod cluster;
mod config;
mod devices;
mod endpoint;
mod events;
mod flow_control;
mod kinds;
mod lifecycle;
mod machinery;
mod namespaces;
mod network;
mod nodes;
mod pods;
mod quotas;
mod services;
mod storage;
mod watches;
mod workloads;

/// Makes a test of each row, and the list of the rows.
macro_rules! checklist {
    ($($name:literal => $area:ident::$test:ident,)*) => {
        /// The names of upstream's tests that are told here.
        const CHECKLIST: &[&str] = &[$($name),*];

        $(
            #[test]
            fn $test() {
                cluster::run($area::$test);
            }
        )*
    };
}

checklist! {
    "Priority and Fairness FlowSchema API" => flow_control::flow_schemas_live,
    "Priority and Fairness PriorityLevelConfiguration API" => flow_control::priority_levels_live,
    "Namespace, apply finalizer to a namespace" => namespaces::a_namespace_waits_for_its_finalizers,
    "Namespace, apply update to a namespace" => namespaces::a_namespace_takes_an_update,
    "Namespace, apply changes to a namespace status" => namespaces::a_namespaces_status_is_written,
    "Namespace patching" => namespaces::a_namespace_is_patched,
    "ResourceQuota, update and delete" => quotas::a_quota_is_updated_and_deleted,
    "ResourceQuota, manage lifecycle of a ResourceQuota" => quotas::quotas_live,
    "LimitRange, resources" => quotas::a_limit_range_gives_pods_their_defaults,
    "LimitRange, list, patch and delete a LimitRange by collection" => quotas::limit_ranges_live,
    "API Chunking, server should return chunks of results for list calls" => chunks::pages_make_up_one_list,
    "API Chunking, server should support continue listing from the last key even if the original version has been compacted away" => chunks::a_list_goes_on_after_its_version_was_compacted,
    "API metadata HTTP return" => machinery::what_has_no_metadata_is_no_table,
    "Confirm a server version" => machinery::the_server_tells_its_version,
    "watch-configmaps-with-multiple-watchers" => watches::several_watchers_each_see_their_own,
    "watch-configmaps-from-resource-version" => watches::a_watch_starts_behind_a_version,
    "watch-configmaps-closed-and-restarted" => watches::a_watch_goes_on_where_another_ended,
    "watch-configmaps-label-changed" => watches::an_object_that_loses_its_label_is_gone,
    "watch-consistency" => watches::watchers_see_one_order,
    "CronJob API Operations" => workloads::cron_jobs_live,
    "Scheduler, Verify PriorityClass endpoints" => workloads::priority_classes_live,
    "CertificateSigningRequest API" => certificates::signing_requests_live,
    "Service account tokens auto mount optionally" => accounts::a_pod_may_refuse_the_token,
    "ServiceAccount, create and review token" => accounts::a_token_is_made_and_reviewed,
    "ServiceAccount lifecycle test" => accounts::service_accounts_live,
    "ServiceAccount, update a ServiceAccount" => accounts::a_service_account_is_updated,
    "SubjectReview, API Operations" => accounts::reviews_tell_what_an_account_may,
    "New Event resource lifecycle, testing a list of events" => events::a_collection_of_new_events_is_deleted,
    "New Event resource lifecycle, testing a single event" => events::an_event_of_the_new_group_lives,
    "Event, delete a collection" => events::a_collection_of_events_is_deleted,
    "Event, manage lifecycle of an Event" => events::an_event_lives,
    "kubernetes.default Endpoints and EndpointSlices" => services::the_servers_endpoints_are_told_in_both_forms,
    "Kubernetes Service" => services::the_servers_service_is_secure,
    "Find Kubernetes Service in default Namespace" => services::the_servers_service_is_found_in_all_namespaces,
    "Service, complete ServiceStatus lifecycle" => services::a_services_status_is_written,
    "Service, deletes a collection of services" => services::a_collection_of_services_is_deleted,
    "EndpointSlice API" => services::endpoint_slices_live,
    "Endpoint resource lifecycle" => services::endpoints_live,
    "Ingress API" => network::ingresses_live,
    "IngressClass API" => network::ingress_classes_live,
    "IPAddress API" => network::addresses_live,
    "ServiceCIDR API" => network::service_ranges_live,
    "ConfigMap, with empty-key" => config::a_config_map_has_no_empty_key,
    "ConfigMap lifecycle" => config::config_maps_live,
    "ConfigMap Update" => config::a_config_map_is_updated,
    "ConfigMap Volume, immutability" => config::an_immutable_config_map_stays,
    "Secrets, with empty-key" => config::a_secret_has_no_empty_key,
    "Secret patching" => config::a_secret_is_patched,
    "Secrets Volume, immutability" => config::an_immutable_secret_stays,
    "lease API should be available" => nodes::leases_live,
    "Node, resource lifecycle" => nodes::a_node_lives,
    "RuntimeClass API" => nodes::runtime_classes_live,
    "Pod with the deleted RuntimeClass is rejected." => nodes::a_pod_of_a_deleted_runtime_class_is_refused,
    "Pod with the non-existing RuntimeClass is rejected." => nodes::a_pod_of_no_runtime_class_is_refused,
    "PodTemplate, delete a collection" => pods::a_collection_of_pod_templates_is_deleted,
    "PodTemplate, replace" => pods::a_pod_template_is_replaced,
    "PodTemplate lifecycle" => pods::pod_templates_live,
    "Pods, QOS" => pods::a_pod_has_its_quality_of_service,
    "Sysctls, reject invalid sysctls" => pods::malformed_sysctls_are_refused,
    "CSIInlineVolumes should support Pods with inline volumes" => pods::a_pod_may_have_a_volume_of_its_own,
    "CRUD operations for deviceclasses" => devices::device_classes_live,
    "CRUD operations for resourceclaims" => devices::resource_claims_live,
    "CRUD operations for resourceclaimtemplates" => devices::resource_claim_templates_live,
    "CRUD operations for resoureslices" => devices::resource_slices_live,
    "CSIDriver, lifecycle" => storage::drivers_live,
    "CSINode, lifecycle" => storage::driver_nodes_live,
    "CSIStorageCapacity API" => storage::storage_capacities_live,
    "StorageClass, lifecycle" => storage::storage_classes_live,
    "VolumeAttachment, lifecycle" => storage::attachments_live,
    "VolumeAttachment, apply changes to a volumeattachment status" => storage::an_attachments_status_is_written,
    "PersistentVolumes(Claims), apply changes to a pv/pvc status" => storage::a_volumes_and_a_claims_status_are_written,
}

/// Areas that are told elsewhere in the suite, by how upstream names their tests.
const ELSEWHERE: &[&str] = &[
    "Aggregated Discovery ",
    "Custom Resource ",
    "Discovery, ",
    "Kubectl, ",
    "MutatingAdmissionPolicy",
    "Server side field validation, ",
    "ValidatingAdmissionPolicy",
    "ValidatingadmissionPolicyBinding ",
];

#[test]
fn every_test_that_needs_the_api_alone_is_told() {
    let facts = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/facts/conformance-tests.tsv"
    );
    let Ok(facts) = std::fs::read_to_string(facts) else {
        println!("skipped: ../shared/facts is not there");
        return;
    };
    let wanted: Vec<&str> = facts
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|columns| columns.get(3) == Some(&"i-api-only"))
        .map(|columns| columns[1])
        .filter(|name| !ELSEWHERE.iter().any(|area| name.starts_with(area)))
        .collect();
    assert!(!wanted.is_empty());
    let missing: Vec<_> = wanted
        .iter()
        .filter(|name| !CHECKLIST.contains(name))
        .collect();
    assert!(missing.is_empty(), "not told: {missing:#?}");
    let unknown: Vec<_> = CHECKLIST
        .iter()
        .filter(|name| !wanted.contains(name))
        .collect();
    assert!(unknown.is_empty(), "no test of upstream: {unknown:#?}");
}
