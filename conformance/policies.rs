//! Custom resources, discovery, published schemas, field validation and admission policies, as upstream's conformance
//! tests name them: a test of our own for each behaviour, against a server as a user runs it.
//!
//! `COVERED` says which test stands for which of upstream's; it is held to the list of them where that is at hand.

#[path = "policies/cluster.rs"]
mod cluster;
#[path = "policies/definitions.rs"]
mod definitions;
#[path = "policies/discovery.rs"]
mod discovery;
#[path = "policies/fields.rs"]
mod fields;
#[path = "policies/life.rs"]
mod life;
#[path = "policies/mutating.rs"]
mod mutating;
#[path = "policies/openapi.rs"]
mod openapi;
#[path = "policies/validating.rs"]
mod validating;

/// What upstream's test is called, and ours.
const COVERED: &[(&str, &str)] = &[
    (
        "AggregatedDiscovery should support aggregated discovery interface",
        "discovery::a_client_finds_all_kinds_in_one_document",
    ),
    (
        "AggregatedDiscovery should support aggregated discovery interface for CRDs",
        "discovery::a_custom_kind_is_found_by_clients",
    ),
    (
        "AggregatedDiscovery should support raw aggregated discovery endpoint Accept headers",
        "discovery::the_aggregated_document_is_asked_for_by_its_media_type",
    ),
    (
        "AggregatedDiscovery should support raw aggregated discovery request for CRDs",
        "discovery::a_custom_kind_is_in_the_aggregated_document",
    ),
    (
        "CustomResourceDefinition Watch [Privileged:ClusterAdmin] CustomResourceDefinition Watch watch on custom resource definition objects",
        "definitions::custom_objects_are_watched_by_name",
    ),
    (
        "CustomResourceDefinition resources [Privileged:ClusterAdmin] Simple CustomResourceDefinition creating/deleting custom resource definition objects works",
        "definitions::a_definition_is_established_and_goes",
    ),
    (
        "CustomResourceDefinition resources [Privileged:ClusterAdmin] Simple CustomResourceDefinition getting/updating/patching custom resource definition status sub-resource works",
        "definitions::the_status_of_a_definition_is_read_updated_and_patched",
    ),
    (
        "CustomResourceDefinition resources [Privileged:ClusterAdmin] Simple CustomResourceDefinition listing custom resource definition objects works",
        "definitions::definitions_are_listed_and_deleted_by_label",
    ),
    (
        "CustomResourceDefinition resources [Privileged:ClusterAdmin] custom resource defaulting for requests and from storage works",
        "definitions::defaults_apply_to_requests_and_to_what_is_stored",
    ),
    (
        "CustomResourceDefinition resources [Privileged:ClusterAdmin] should include custom resource definition resources in discovery documents",
        "discovery::definitions_are_in_the_documents_of_their_group",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] removes definition from spec when one version gets changed to not be served",
        "openapi::a_version_no_longer_served_is_no_longer_published",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] updates the published spec when one version gets renamed",
        "openapi::a_renamed_version_is_published_under_its_new_name",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD preserving unknown fields at the schema root",
        "openapi::a_root_that_keeps_unknown_fields_says_nothing_of_its_fields",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD preserving unknown fields in an embedded object",
        "openapi::a_field_that_keeps_unknown_fields_says_nothing_of_its_own",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD with validation schema",
        "openapi::a_schema_is_published_held_to_and_explained",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD without validation schema",
        "openapi::a_definition_that_says_nothing_takes_all",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for multiple CRDs of different groups",
        "openapi::groups_are_published_side_by_side",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for multiple CRDs of same group and version but different kinds",
        "openapi::kinds_of_a_version_are_published_side_by_side",
    ),
    (
        "CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for multiple CRDs of same group but different versions",
        "openapi::versions_of_a_group_are_published_side_by_side",
    ),
    (
        "Discovery should locate the groupVersion and a resource within each APIGroup",
        "discovery::every_version_of_every_group_has_its_resources",
    ),
    (
        "Discovery should validate PreferredVersion for each APIGroup",
        "discovery::every_group_prefers_a_version_that_it_has",
    ),
    (
        "FieldValidation should create/apply a CR with unknown fields for CRD with no validation schema",
        "fields::without_a_schema_all_fields_are_taken",
    ),
    (
        "FieldValidation should create/apply a valid CR for CRD with validation schema",
        "fields::what_fits_the_schema_is_applied",
    ),
    (
        "FieldValidation should create/apply an invalid CR with extra properties for CRD with validation schema",
        "fields::a_field_the_schema_does_not_have_is_refused",
    ),
    (
        "FieldValidation should detect duplicates in a CR when preserving unknown fields",
        "fields::fields_given_twice_are_refused_even_where_unknown_ones_are_kept",
    ),
    (
        "FieldValidation should detect unknown and duplicate fields of a typed object",
        "fields::unknown_and_duplicate_fields_of_built_in_kinds_are_refused",
    ),
    (
        "FieldValidation should detect unknown metadata fields in both the root and embedded object of a CR",
        "fields::unknown_metadata_is_refused_at_the_root_and_within",
    ),
    (
        "FieldValidation should detect unknown metadata fields of a typed object",
        "fields::unknown_metadata_of_built_in_kinds_is_refused",
    ),
    (
        "MutatingAdmissionPolicy [Privileged:ClusterAdmin] should mutate a Deployment",
        "mutating::a_deployment_is_changed_by_a_configuration",
    ),
    (
        "MutatingAdmissionPolicy [Privileged:ClusterAdmin] should mutate a Deployment with annotations",
        "mutating::a_deployment_is_annotated_by_a_patch",
    ),
    (
        "MutatingAdmissionPolicy [Privileged:ClusterAdmin] should support MutatingAdmissionPolicy API operations",
        "mutating::policies_live_their_whole_life",
    ),
    (
        "MutatingAdmissionPolicy [Privileged:ClusterAdmin] should support MutatingAdmissionPolicyBinding API operations",
        "mutating::bindings_live_their_whole_life",
    ),
    (
        "ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should allow expressions to refer variables.",
        "validating::expressions_refer_to_variables",
    ),
    (
        "ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should support ValidatingAdmissionPolicy API operations",
        "validating::policies_live_their_whole_life",
    ),
    (
        "ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should support ValidatingAdmissionPolicyBinding API operations",
        "validating::bindings_live_their_whole_life",
    ),
    (
        "ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should validate against a Deployment",
        "validating::a_deployment_is_held_to_a_policy",
    ),
];

/// Which of upstream's tests this target answers for.
const SUBJECTS: [&str; 8] = [
    "AggregatedDiscovery ",
    "CustomResourceDefinition Watch ",
    "CustomResourceDefinition resources ",
    "CustomResourcePublishOpenAPI ",
    "Discovery ",
    "FieldValidation ",
    "MutatingAdmissionPolicy ",
    "ValidatingAdmissionPolicy ",
];

#[test]
fn every_test_of_upstreams_on_these_subjects_has_one_of_ours() {
    let shared = std::env::var_os("SKIFF_SHARED").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        std::path::PathBuf::from,
    );
    let Ok(list) = std::fs::read_to_string(shared.join("facts/conformance-tests.tsv")) else {
        eprintln!("skipped: there is no list of upstream's tests");
        return;
    };
    let wanted: Vec<&str> = list
        .lines()
        .filter(|line| line.split('\t').nth(3) == Some("i-api-only"))
        .filter_map(|line| line.split('\t').next())
        .filter_map(|name| name.strip_prefix("[sig-api-machinery] "))
        .filter_map(|name| name.strip_suffix(" [Conformance]"))
        .filter(|name| SUBJECTS.iter().any(|subject| name.starts_with(subject)))
        .collect();
    let covered: Vec<&str> = COVERED.iter().map(|(theirs, _)| *theirs).collect();
    for name in &wanted {
        assert!(covered.contains(name), "{name:?} has no test");
    }
    assert_eq!(wanted.len(), covered.len(), "tests that stand for nothing");
}
