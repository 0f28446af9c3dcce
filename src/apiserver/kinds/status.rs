//! What status endpoints of several kinds have in common: metadata they keep, conditions, addresses of load balancers.

use std::net::IpAddr;

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList};
use apimachinery::name;

use super::check::Node;

/// Members of metadata that a status endpoint leaves as they are, of kinds that keep some and not all
/// (`Strategy::status_keeps_metadata`).
const KEPT: &[(&str, &str, &[&str])] = &[
    ("", "pods", &["deletionTimestamp", "ownerReferences"]),
    ("apps", "deployments", &["labels"]),
];

/// What the status endpoint of a resource keeps of the metadata.
pub fn kept_metadata(group: &str, plural: &str) -> &'static [&'static str] {
    KEPT.iter()
        .find(|(of, kind, _)| *of == group && *kind == plural)
        .map_or(&[], |(.., kept)| kept)
}

/// Longest reason and message of a condition.
const MAX_REASON: usize = 1024;
const MAX_MESSAGE: usize = 32 * 1024;
const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

/// `metav1.ValidateConditions`: each type once, and all of each condition.
pub fn conditions(conditions: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for condition in conditions.items() {
        let kind = condition.at("type");
        if seen.contains(&kind.text()) {
            kind.duplicate(errors);
        }
        seen.push(kind.text());
        kind.syntax(errors, name::qualified_name);
        condition
            .at("status")
            .known(errors, &["False", "True", "Unknown"]);
        let generation = condition.at("observedGeneration");
        if generation.int().is_some_and(|seen| seen < 0) {
            generation.invalid(errors, "must be greater than or equal to zero");
        }
        condition
            .at("lastTransitionTime")
            .present_or(errors, "must be set");
        let reason = condition.at("reason");
        if reason.present_or(errors, "must be set") {
            if !is_reason(reason.text()) {
                reason.invalid(errors, REASON);
            }
            if reason.text().len() > MAX_REASON {
                errors.push(Error::too_long(&reason.path(), MAX_REASON));
            }
        }
        let message = condition.at("message");
        if message.text().len() > MAX_MESSAGE {
            errors.push(Error::too_long(&message.path(), MAX_MESSAGE));
        }
    }
}

fn is_reason(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    let ends =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && ends(bytes.last())
        && bytes.iter().all(|byte| inner(*byte))
}

/// `ValidateLoadBalancerStatus`.
pub fn load_balancer(service: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let root = Node::root(service, "");
    let (status, spec) = (root.at("status"), root.at("spec"));
    let balancer = status.at("loadBalancer");
    let ingress = balancer.at("ingress");
    if spec.at("type").text() != "LoadBalancer" && !ingress.list().is_empty() {
        ingress.forbidden(
            errors,
            "may only be used when `spec.type` is \"LoadBalancer\"",
        );
        return std::mem::take(errors);
    }
    for point in ingress.items() {
        let (ip, mode, host) = (point.at("ip"), point.at("ipMode"), point.at("hostname"));
        ip.syntax_if_set(errors, name::ip_address);
        match (ip.text().is_empty(), mode.is_set()) {
            (false, false) => mode.required(errors, "must be specified when `ip` is set"),
            (true, true) => mode.forbidden(errors, "may not be specified when `ip` is not set"),
            _ => mode.known_if_set(errors, &["Proxy", "VIP"]),
        }
        if !host.text().is_empty() {
            host.syntax(errors, name::dns_1123_subdomain);
            if host.text().parse::<IpAddr>().is_ok() {
                host.invalid(errors, "must be a DNS name, not an IP address");
            }
        }
    }
    std::mem::take(errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn only_load_balancers_have_points_of_entry() {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP"}]}});
        check(
            load_balancer(&json!({"spec": {"type": "ClusterIP"}, "status": status.clone()})),
            &[
                "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is \"LoadBalancer\"",
            ],
        );
        check(
            load_balancer(&json!({"spec": {"type": "LoadBalancer"}, "status": status})),
            &[],
        );
        check(
            load_balancer(
                &json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [
                {"ip": "1.2.3.4"}, {"hostname": "1.2.3.4", "ipMode": "VIP"}, {"ip": "1.2.3.4", "ipMode": "X"}]}}}),
            ),
            &[
                "status.loadBalancer.ingress[0].ipMode: Required value: must be specified when `ip` is set",
                "status.loadBalancer.ingress[1].ipMode: Forbidden: may not be specified when `ip` is not set",
                "status.loadBalancer.ingress[1].hostname: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
                "status.loadBalancer.ingress[2].ipMode: Unsupported value: \"X\": supported values: \"Proxy\", \"VIP\"",
            ],
        );
    }

    #[test]
    fn conditions_are_whole() {
        let list = json!([
            {"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "Ready", "status": "Yes", "reason": "9", "observedGeneration": -1},
        ]);
        let mut errors = ErrorList::new();
        conditions(&Node::root(&list, "c"), &mut errors);
        check(
            errors,
            &[
                "c[1].type: Duplicate value: \"Ready\"",
                "c[1].status: Unsupported value: \"Yes\": supported values: \"False\", \"True\", \"Unknown\"",
                "c[1].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
                "c[1].lastTransitionTime: Required value: must be set",
                &format!("c[1].reason: Invalid value: \"9\": {REASON}"),
            ],
        );
    }

    #[test]
    fn metadata_that_status_endpoints_keep_is_told_by_kind() {
        assert_eq!(kept_metadata("apps", "deployments"), ["labels"]);
        assert!(kept_metadata("apps", "replicasets").is_empty());
    }
}
