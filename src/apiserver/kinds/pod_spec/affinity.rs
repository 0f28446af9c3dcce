//! Affinities and topology spread constraints: that their terms are well formed.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::selector::LabelSelector;
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::tree::{at, has, int, items, text};
use super::validation::one_of;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// `validateAffinity`.
pub fn validate(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let affinity = at(spec, &["affinity"]);
    let path = path.child("affinity");
    node_affinity(
        at(affinity, &["nodeAffinity"]),
        &path.child("nodeAffinity"),
        errors,
    );
    for kind in ["podAffinity", "podAntiAffinity"] {
        let terms = at(affinity, &[kind]);
        let path = path.child(kind);
        for (index, term) in items(terms, &[REQUIRED]).iter().enumerate() {
            pod_term(term, &path.child(REQUIRED).index(index), errors);
        }
        for (index, weighted) in items(terms, &[PREFERRED]).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            weight(weighted, &path, errors);
            pod_term(
                at(weighted, &["podAffinityTerm"]),
                &path.child("podAffinityTerm"),
                errors,
            );
        }
    }
}

fn weight(term: &Value, path: &Path, errors: &mut ErrorList) {
    let weight = int(term, &["weight"]).unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.push(Error::invalid(
            &path.child("weight"),
            weight,
            "must be in the range 1-100",
        ));
    }
}

fn node_affinity(affinity: &Value, path: &Path, errors: &mut ErrorList) {
    if has(affinity, &[REQUIRED]) {
        node_selector(at(affinity, &[REQUIRED]), &path.child(REQUIRED), errors);
    }
    for (index, preferred) in items(affinity, &[PREFERRED]).iter().enumerate() {
        let path = path.child(PREFERRED).index(index);
        weight(preferred, &path, errors);
        node_term(
            at(preferred, &["preference"]),
            &path.child("preference"),
            errors,
        );
    }
}

/// `ValidateNodeSelector`.
pub fn node_selector(selector: &Value, path: &Path, errors: &mut ErrorList) {
    let terms = items(selector, &["nodeSelectorTerms"]);
    let path = path.child("nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(Error::required(
            &path,
            "must have at least one node selector term",
        ));
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(term, &path.index(index), errors);
    }
}

fn node_term(term: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["matchExpressions", "matchFields"] {
        for (index, requirement) in items(term, &[field]).iter().enumerate() {
            let path = path.child(field).index(index);
            let values = items(requirement, &["values"]);
            match text(requirement, &["operator"]) {
                "In" | "NotIn" if values.is_empty() => errors.push(Error::required(
                    &path.child("values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                )),
                "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(Error::forbidden(
                    &path.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                )),
                "Gt" | "Lt" if values.len() != 1 => errors.push(Error::required(
                    &path.child("values"),
                    "must be specified single value when `operator` is 'Lt' or 'Gt'",
                )),
                "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
                other => errors.push(Error::invalid(
                    &path.child("operator"),
                    other,
                    "not a valid selector operator",
                )),
            }
            let key = text(requirement, &["key"]);
            if field == "matchExpressions" {
                errors.push_invalid(&path.child("key"), key, name::qualified_name(key));
            } else if key != "metadata.name" {
                errors.push(Error::invalid(
                    &path.child("key"),
                    key,
                    "not a valid field selector key",
                ));
            }
        }
    }
}

fn pod_term(term: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["labelSelector", "namespaceSelector"] {
        label_selector(at(term, &[field]), &path.child(field), errors);
    }
    for (index, namespace) in items(term, &["namespaces"]).iter().enumerate() {
        let namespace = namespace.as_str().unwrap_or("");
        let path = path.child("namespaces").index(index);
        errors.push_invalid(&path, namespace, name::dns_1123_label(namespace));
    }
    topology_key(term, path, errors);
}

fn topology_key(term: &Value, path: &Path, errors: &mut ErrorList) {
    let key = text(term, &["topologyKey"]);
    let path = path.child("topologyKey");
    if key.is_empty() {
        errors.push(Error::required(&path, "can not be empty"));
    } else {
        errors.push_invalid(&path, key, name::qualified_name(key));
    }
}

/// `ValidateLabelSelector`; an absent selector is fine.
pub fn label_selector(selector: &Value, path: &Path, errors: &mut ErrorList) {
    if selector.is_null() {
        return;
    }
    errors.extend(super::super::object_meta::validate_labels(
        at(selector, &["matchLabels"]),
        &path.child("matchLabels"),
    ));
    for (index, requirement) in items(selector, &["matchExpressions"]).iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = items(requirement, &["values"]);
        match text(requirement, &["operator"]) {
            "In" | "NotIn" if values.is_empty() => errors.push(Error::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(Error::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(Error::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        let key = text(requirement, &["key"]);
        errors.push_invalid(&path.child("key"), key, name::qualified_name(key));
    }
    if errors.is_empty()
        && let Err(why) = LabelSelector::from_value(selector)
    {
        errors.push(Error::invalid(path, selector.clone(), why));
    }
}

/// `validateTopologySpreadConstraints`.
pub fn spread(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, constraint) in items(spec, &["topologySpreadConstraints"])
        .iter()
        .enumerate()
    {
        let path = path.child("topologySpreadConstraints").index(index);
        let skew = int(constraint, &["maxSkew"]).unwrap_or(0);
        if skew <= 0 {
            errors.push(Error::invalid(
                &path.child("maxSkew"),
                skew,
                "must be greater than zero",
            ));
        }
        topology_key(constraint, &path, errors);
        let when = text(constraint, &["whenUnsatisfiable"]);
        let valid = ["DoNotSchedule", "ScheduleAnyway"];
        one_of(when, &valid, &path.child("whenUnsatisfiable"), errors);
        spread_details(constraint, when, &path, errors);
        let pair = (text(constraint, &["topologyKey"]), when);
        if seen.contains(&pair) {
            errors.push(Error::duplicate(
                &path.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{}, {}}}", pair.0, pair.1),
            ));
        }
        seen.push(pair);
        label_selector(
            at(constraint, &["labelSelector"]),
            &path.child("labelSelector"),
            errors,
        );
    }
}

/// What a constraint may say besides: domains, whose nodes count, labels taken from the pod.
fn spread_details(constraint: &Value, when: &str, path: &Path, errors: &mut ErrorList) {
    let node = Node::root(constraint, path.as_str());
    let domains = node.at("minDomains");
    if let Some(number) = domains.int() {
        if number <= 0 {
            domains.invalid(errors, "must be greater than zero");
        }
        if when != "DoNotSchedule" {
            domains.invalid(
                errors,
                format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"),
            );
        }
    }
    for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        node.at(field).known_if_set(errors, &["Ignore", "Honor"]);
    }
    let keys = node.at("matchLabelKeys");
    if keys.list().is_empty() {
        return;
    }
    if !node.at("labelSelector").is_set() {
        keys.forbidden(
            errors,
            "must not be specified when labelSelector is not set",
        );
        return;
    }
    let selector = node.at("labelSelector");
    for key in keys.items() {
        key.syntax(errors, name::qualified_name);
        let twice = at(selector.value, &["matchLabels"])
            .get(key.text())
            .is_some()
            || items(selector.value, &["matchExpressions"])
                .iter()
                .any(|requirement| text(requirement, &["key"]) == key.text());
        if twice {
            key.invalid(errors, "exists in both matchLabelKeys and labelSelector");
        }
    }
}
