//! What a pod spec may be (`ValidatePodSpec`): the spec's own fields; containers and volumes have their own files.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::object_meta::validate_labels;
use super::super::tree::{at, has, int, items, text};
use super::{affinity, containers, level, security, volumes};

pub const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Most characters of all search paths with spaces between them.
const MAX_SEARCH_CHARS: usize = 2048;
const UNDERSCORED: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '_' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";

/// Validates a pod's spec, or a template's.
pub fn pod_spec(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let names = volumes::list(spec, &path.child("volumes"), &mut errors);
    containers::all(spec, &names, path, &mut errors);
    policies(spec, path, &mut errors);
    errors.extend(validate_labels(
        at(spec, &["nodeSelector"]),
        &path.child("nodeSelector"),
    ));
    security::pod(spec, path, &mut errors);
    level::resources(spec, path, &mut errors);
    resource_claims(spec, path, &mut errors);
    affinity::validate(spec, path, &mut errors);
    dns_config(spec, path, &mut errors);
    gates(spec, path, &mut errors);
    affinity::spread(spec, path, &mut errors);
    names_of_others(spec, path, &mut errors);
    if let Some(seconds) = int(spec, &["activeDeadlineSeconds"])
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.push(Error::invalid(
            &path.child("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    tolerations(
        items(spec, &["tolerations"]),
        &path.child("tolerations"),
        &mut errors,
    );
    host_aliases(spec, path, &mut errors);
    errors
}

fn policies(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let restart = text(spec, &["restartPolicy"]);
    one_of(
        restart,
        &RESTART_POLICIES,
        &path.child("restartPolicy"),
        errors,
    );
    let dns = text(spec, &["dnsPolicy"]);
    one_of(dns, &DNS_POLICIES, &path.child("dnsPolicy"), errors);
    let preemption = text(spec, &["preemptionPolicy"]);
    if !preemption.is_empty() {
        let valid = ["PreemptLowerPriority", "Never"];
        one_of(preemption, &valid, &path.child("preemptionPolicy"), errors);
    }
    let os = text(spec, &["os", "name"]);
    if has(spec, &["os"]) {
        one_of(os, &["linux", "windows"], &path.child("os.name"), errors);
    }
}

/// A value that must be given and be one of a few.
pub fn one_of(value: &str, valid: &[&str], path: &Path, errors: &mut ErrorList) {
    if value.is_empty() {
        errors.push(Error::required(path, ""));
    } else if !valid.contains(&value) {
        errors.push(Error::not_supported(path, value, valid));
    }
}

/// Claims of devices, and that containers ask for claims the pod has.
fn resource_claims(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let root = Node::root(spec, path.as_str());
    let claims = root.at("resourceClaims");
    let mut names: Vec<&str> = Vec::new();
    for claim in claims.items() {
        let called = claim.at("name");
        called.named(errors, name::dns_1123_label);
        if names.contains(&called.text()) {
            called.duplicate(errors);
        }
        names.push(called.text());
        let (direct, made) = (
            claim.at("resourceClaimName"),
            claim.at("resourceClaimTemplateName"),
        );
        match (direct.is_set(), made.is_set()) {
            (true, true) => claim.invalid(
                errors,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
            (false, false) => claim.invalid(
                errors,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            _ => {
                direct.syntax_if_set(errors, name::dns_1123_subdomain);
                made.syntax_if_set(errors, name::dns_1123_subdomain);
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let containers = root.at(list);
        for container in containers.items() {
            let resources = container.at("resources");
            let wanted = resources.at("claims");
            for (index, claim) in wanted.items().enumerate() {
                let called = claim.at("name");
                if called.text().is_empty() {
                    called.required(errors, "");
                } else if !names.contains(&called.text()) {
                    errors.push(Error::not_found(&wanted.path().index(index), called.text()));
                } else if wanted.list()[..index].contains(claim.value) {
                    claim.duplicate(errors);
                }
            }
        }
    }
}

/// User and group numbers.
pub fn id_in_range(id: i64, path: &Path, errors: &mut ErrorList) {
    if !(0..=i64::from(i32::MAX)).contains(&id) {
        errors.push(Error::invalid(
            path,
            id,
            "must be between 0 and 2147483647, inclusive",
        ));
    }
}

fn dns_config(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("dnsConfig");
    let config = at(spec, &["dnsConfig"]);
    let servers = items(config, &["nameservers"]);
    if text(spec, &["dnsPolicy"]) == "None" && servers.is_empty() {
        let (path, why) = match config.is_null() {
            true => (path, "must provide `dnsConfig` when `dnsPolicy` is None"),
            false => (
                path.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
        };
        errors.push(Error::required(&path, why));
        return;
    }
    if servers.len() > MAX_NAMESERVERS {
        errors.push(Error::invalid(
            &path.child("nameservers"),
            at(config, &["nameservers"]).clone(),
            format!("must not have more than {MAX_NAMESERVERS} nameservers"),
        ));
    }
    for (index, server) in servers.iter().enumerate() {
        let server = server.as_str().unwrap_or("");
        let path = path.child("nameservers").index(index);
        errors.push_invalid(&path, server, name::ip_address(server));
    }
    searches(config, &path.child("searches"), errors);
    for (index, option) in items(config, &["options"]).iter().enumerate() {
        if text(option, &["name"]).is_empty() {
            errors.push(Error::required(
                &path.child("options").index(index),
                "must not be empty",
            ));
        }
    }
}

fn searches(config: &Value, path: &Path, errors: &mut ErrorList) {
    let list = at(config, &["searches"]);
    let domains: Vec<&str> = items(config, &["searches"])
        .iter()
        .map(|domain| domain.as_str().unwrap_or(""))
        .collect();
    if domains.len() > MAX_SEARCHES {
        let why = format!("must not have more than {MAX_SEARCHES} search paths");
        errors.push(Error::invalid(path, list, why));
    }
    if domains.join(" ").len() > MAX_SEARCH_CHARS {
        let why = format!(
            "must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list"
        );
        errors.push(Error::invalid(path, list, why));
    }
    for (index, domain) in domains.into_iter().enumerate() {
        let domain = match domain {
            "." => continue,
            domain => domain.strip_suffix('.').unwrap_or(domain),
        };
        // Names with underscores are searched too, as SRV records have them.
        if !name::dns_1123_subdomain(&domain.replace('_', "a")).is_empty() {
            errors.push(Error::invalid(&path.index(index), domain, UNDERSCORED));
        }
    }
}

fn gates(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for (index, gate) in items(spec, &["readinessGates"]).iter().enumerate() {
        let kind = text(gate, &["conditionType"]);
        let path = path
            .child("readinessGates")
            .index(index)
            .child("conditionType");
        errors.push_invalid(&path, kind, name::qualified_name(kind));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, gate) in items(spec, &["schedulingGates"]).iter().enumerate() {
        let called = text(gate, &["name"]);
        let path = path.child("schedulingGates").index(index);
        errors.push_invalid(&path, called, name::qualified_name(called));
        if seen.contains(&called) {
            errors.push(Error::duplicate(&path, called));
        }
        seen.push(called);
    }
}

fn names_of_others(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for field in [
        "serviceAccountName",
        "nodeName",
        "priorityClassName",
        "runtimeClassName",
    ] {
        let value = text(spec, &[field]);
        if !value.is_empty() {
            errors.push_invalid(&path.child(field), value, name::dns_1123_subdomain(value));
        }
    }
    for field in ["hostname", "subdomain"] {
        let value = text(spec, &[field]);
        if !value.is_empty() {
            errors.push_invalid(&path.child(field), value, name::dns_1123_label(value));
        }
    }
}

/// `ValidateTolerations`.
pub fn tolerations(list: &[Value], path: &Path, errors: &mut ErrorList) {
    for (index, toleration) in list.iter().enumerate() {
        let path = path.index(index);
        let key = text(toleration, &["key"]);
        let operator = text(toleration, &["operator"]);
        let value = text(toleration, &["value"]);
        let effect = text(toleration, &["effect"]);
        if !key.is_empty() {
            errors.push_invalid(&path.child("key"), key, name::qualified_name(key));
        }
        if key.is_empty() && operator != "Exists" {
            errors.push(Error::invalid(
                &path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if has(toleration, &["tolerationSeconds"]) && effect != "NoExecute" {
            errors.push(Error::invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "" | "Equal" => {
                errors.push_invalid(&path.child("operator"), value, name::label_value(value));
            }
            "Exists" if !value.is_empty() => errors.push(Error::invalid(
                &path.child("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            )),
            "Exists" => {}
            other => errors.push(Error::not_supported(
                &path.child("operator"),
                other,
                &["Equal", "Exists"],
            )),
        }
        if !effect.is_empty() {
            let valid = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            one_of(effect, &valid, &path.child("effect"), errors);
        }
    }
}

fn host_aliases(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for (index, alias) in items(spec, &["hostAliases"]).iter().enumerate() {
        let path = path.child("hostAliases").index(index);
        let address = text(alias, &["ip"]);
        errors.push_invalid(&path.child("ip"), address, name::ip_address(address));
        for (index, host) in items(alias, &["hostnames"]).iter().enumerate() {
            let host = host.as_str().unwrap_or("");
            errors.push_invalid(
                &path.child("hostnames").index(index),
                host,
                name::dns_1123_subdomain(host),
            );
        }
    }
}
