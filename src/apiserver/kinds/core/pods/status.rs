//! What may be written to a pod's status (`ValidatePodStatusUpdate`): it is a report, yet some things cannot be true.

use std::net::IpAddr;

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name};

use super::super::super::check::Node;
use super::super::super::tree::{at, int, items, text};

const SYSTEM_CONDITIONS: [&str; 3] = ["Initialized", "PodScheduled", "Ready"];

/// Validates an update of the status.
pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Node::root(at(new, &["status"]), "status");
    // Upstream looks for conditions in the metadata.
    let told = Node::root(root.at("conditions").value, "metadata.conditions");
    for condition in told.items() {
        let kind = condition.at("type").text();
        if !SYSTEM_CONDITIONS.contains(&kind) {
            for why in name::qualified_name(kind) {
                condition.told_at("Type").invalid_as(&mut errors, kind, why);
            }
        }
    }
    let nominated = root.at("nominatedNodeName");
    if nominated.text() != text(old, &["status", "nominatedNodeName"]) {
        nominated.syntax_if_set(&mut errors, name::dns_1123_subdomain);
    }
    transitions(new, old, &root, &mut errors);
    claims(new, &root.at("resourceClaimStatuses"), &mut errors);
    extended(new, &root.at("extendedResourceClaimStatus"), &mut errors);
    addresses(&root, "podIPs", "podIP", &mut errors);
    addresses(&root, "hostIPs", "hostIP", &mut errors);
    errors
}

/// What ended and is not restarted does not run again.
fn transitions(new: &Value, old: &Value, root: &Node<'_, '_>, errors: &mut ErrorList) {
    for (list, spec_list) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ] {
        // Nothing restarts an ephemeral container.
        let policy = if spec_list.is_empty() {
            "Never"
        } else {
            text(new, &["spec", "restartPolicy"])
        };
        if policy == "Always" {
            continue;
        }
        let statuses = root.at(list);
        for status in statuses.items() {
            let called = status.at("name").text();
            let own_policy = items(new, &["spec", spec_list])
                .iter()
                .find(|container| text(container, &["name"]) == called)
                .is_some_and(|container| {
                    !at(container, &["restartPolicy"]).is_null()
                        || !items(container, &["restartPolicyRules"]).is_empty()
                });
            let ended = items(old, &["status", list])
                .iter()
                .find(|was| text(was, &["name"]) == called)
                .map(|was| at(was, &["state", "terminated"]))
                .filter(|ended| !ended.is_null());
            let Some(ended) = ended.filter(|_| !own_policy) else {
                continue;
            };
            let failed = int(ended, &["exitCode"]).unwrap_or(0) != 0;
            let state = status.at("state");
            if !(policy == "OnFailure" && failed) && !state.at("terminated").is_set() {
                state.forbidden(errors, "may not be transitioned to non-terminated state");
            }
        }
    }
}

/// Claims that were made for the pod are those it asks for, each once.
fn claims(pod: &Value, statuses: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for status in statuses.items() {
        let called = status.at("name");
        let asked = items(pod, &["spec", "resourceClaims"])
            .iter()
            .any(|claim| text(claim, &["name"]) == called.text());
        if !asked {
            called.invalid(
                errors,
                "must match the name of an entry in `spec.resourceClaims`",
            );
        }
        if seen.contains(&called.text()) {
            called.duplicate(errors);
        }
        seen.push(called.text());
        let claim = status.at("resourceClaimName").text();
        if !claim.is_empty() {
            for why in name::dns_1123_subdomain(claim) {
                called.invalid_as(errors, claim, why);
            }
        }
    }
}

/// The claim for extended resources is given to containers that ask for them, each time once
/// (`validatePodExtendedResourceClaimStatus`).
fn extended(pod: &Value, status: &Node<'_, '_>, errors: &mut ErrorList) {
    if !status.is_set() {
        return;
    }
    let mappings = status.at("requestMappings");
    if mappings.is_empty() {
        mappings.required(errors, "at least one request mapping is required");
    }
    let inits = items(pod, &["spec", "initContainers"]).iter();
    let containers: Vec<&Value> = inits.chain(items(pod, &["spec", "containers"])).collect();
    let mut seen = Vec::new();
    for mapping in mappings.items() {
        let [container, resource, request] =
            ["containerName", "resourceName", "requestName"].map(|field| mapping.at(field));
        let mut named = containers.iter();
        match named.find(|one| text(one, &["name"]) == container.text()) {
            None => container.invalid(
                errors,
                "must match the name of an entry in spec.initContainers.name or spec.containers.name",
            ),
            Some(one) if at(one, &["resources", "requests", resource.text()]).is_null() => {
                resource.invalid(
                    errors,
                    "must match the extended resource name of an entry in \
                     spec.initContainers.resources.requests or spec.containers.resources.requests",
                );
            }
            Some(_) => {}
        }
        // Upstream says so of the status.
        for why in name::dns_1123_label(request.text()) {
            let told = status.at("requestName");
            told.invalid_as(errors, request.text(), why);
        }
        let all = [container.text(), resource.text(), request.text()];
        if seen.contains(&all) {
            for field in [&container, &resource, &request] {
                field.duplicate(errors);
            }
        }
        seen.push(all);
    }
    let claim = status.at("resourceClaimName");
    if claim.present(errors) {
        claim.syntax(errors, name::dns_1123_subdomain);
    }
}

/// Addresses are addresses, at most one of each family, and none is said twice (`validatePodIPs`).
fn addresses(root: &Node<'_, '_>, list: &str, single: &str, errors: &mut ErrorList) {
    let addresses = root.at(list);
    for address in addresses.items() {
        let ip = address.at("ip").text();
        for why in name::ip_address(ip) {
            address.invalid_as(errors, ip, why);
        }
    }
    // The single field says what the list begins with.
    let parsed: Vec<Option<IpAddr>> = addresses
        .list()
        .iter()
        .map(|address| text(address, &["ip"]).parse().ok())
        .collect();
    if parsed.is_empty() {
        root.at(single).syntax_if_set(errors, name::ip_address);
    }
    if parsed.len() > 1 && parsed.iter().all(Option::is_some) {
        let sixes = parsed
            .iter()
            .flatten()
            .filter(|address| address.is_ipv6())
            .count();
        if parsed.len() > 2 || sixes != 1 {
            addresses.invalid(errors, "may specify no more than one IP for each IP family");
        }
        for address in addresses.items() {
            let ip = address.at("ip").text();
            let again = addresses
                .list()
                .iter()
                .filter(|other| text(other, &["ip"]) == ip)
                .count();
            if again > 1 {
                errors.push(Error::duplicate(&address.path(), ip));
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn what_ended_for_good_does_not_run_again() {
        let pod = |policy: &str, state: Value| {
            json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c"}]},
                "status": {"containerStatuses": [{"name": "c", "state": state}]}})
        };
        let failed = json!({"terminated": {"exitCode": 1}});
        let running = json!({"running": {}});
        check(
            validate(
                &pod("Never", running.clone()),
                &pod("Never", failed.clone()),
            ),
            &[
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
            ],
        );
        for policy in ["Always", "OnFailure"] {
            check(
                validate(&pod(policy, running.clone()), &pod(policy, failed.clone())),
                &[],
            );
        }
    }

    #[test]
    fn a_pod_has_one_address_of_each_family() {
        let both = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
        check(validate(&both, &json!({})), &[]);
        let two = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}]}});
        check(
            validate(&two, &json!({})),
            &[
                "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.1\"}]: may specify no more than one IP for each IP family",
                "status.podIPs[0]: Duplicate value: \"10.0.0.1\"",
            ],
        );
    }

    #[test]
    fn conditions_are_named_and_claims_are_the_pods() {
        let pod = json!({"status": {"conditions": [{"type": "a b"}, {"type": "Ready"}],
            "resourceClaimStatuses": [{"name": "x"}]}});
        let texts = validate(&pod, &json!({})).aggregate();
        assert!(
            texts.contains("metadata.conditions[0].Type: Invalid value: \"a b\""),
            "{texts}"
        );
        assert!(
            texts.contains("must match the name of an entry in `spec.resourceClaims`"),
            "{texts}"
        );
    }

    #[test]
    fn a_claim_for_extended_resources_is_for_containers_that_ask_for_them() {
        let pod = |mappings: Value| {
            let container =
                json!({"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}});
            json!({"spec": {"containers": [container]}, "status": {"extendedResourceClaimStatus": {
                "resourceClaimName": "x", "requestMappings": mappings}}})
        };
        let mapping = |container: &str, resource: &str| json!({"containerName": container, "resourceName": resource, "requestName": "r"});
        let good = mapping("c", "example.com/gpu");
        check(validate(&pod(json!([good])), &json!({})), &[]);
        let wrong = json!([good, good, mapping("d", "x"), mapping("c", "x")]);
        let root = "status.extendedResourceClaimStatus.requestMappings";
        check(
            validate(&pod(wrong), &json!({})),
            &[
                &format!("{root}[1].containerName: Duplicate value: \"c\""),
                &format!("{root}[1].resourceName: Duplicate value: \"example.com/gpu\""),
                &format!("{root}[1].requestName: Duplicate value: \"r\""),
                &format!(
                    "{root}[2].containerName: Invalid value: \"d\": must match the name of an entry in spec.initContainers.name or spec.containers.name"
                ),
                &format!(
                    "{root}[3].resourceName: Invalid value: \"x\": must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"
                ),
            ],
        );
        check(
            validate(&pod(json!([])), &json!({})),
            &[&format!(
                "{root}: Required value: at least one request mapping is required"
            )],
        );
    }
}
