//! Flow schemas and priority levels (KEP-1040).

use apimachinery::field::ErrorList;
use apimachinery::{Value, meta, name};

use super::super::check::Node;
use super::super::tree::{
    at, at_mut, default_number, default_text, default_value, object_mut, text,
};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

pub struct FlowSchemas;

impl Strategy for FlowSchemas {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "flowschemas")
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        if object["spec"].is_object() {
            default_number(&mut object["spec"], "matchingPrecedence", 1000);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        flow_schema(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status(new);
        }
        self.validate_create(change, new)
    }
}

/// Conditions of a schema or a level: each type once.
fn status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(object, &["status"]), "status");
    let conditions = status.at("conditions");
    let mut seen: Vec<&str> = Vec::new();
    for condition in conditions.items() {
        let kind = condition.at("type");
        if seen.contains(&kind.text()) {
            kind.duplicate(&mut errors);
        }
        seen.push(kind.text());
        kind.present(&mut errors);
    }
    errors
}

/// Largest precedence, which matches last.
const MAX_PRECEDENCE: i64 = 10_000;

fn flow_schema(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let precedence = spec.at("matchingPrecedence");
    match precedence.int().unwrap_or(0) {
        ..=0 => precedence.invalid(errors, "must be a positive value"),
        1 if meta::name(object) != "exempt" => precedence.invalid(
            errors,
            "only the schema named 'exempt' may have matchingPrecedence 1",
        ),
        number if number > MAX_PRECEDENCE => {
            precedence.invalid(errors, format!("must not be greater than {MAX_PRECEDENCE}"))
        }
        _ => {}
    }
    let distinguisher = spec.at("distinguisherMethod");
    if distinguisher.is_set() {
        distinguisher
            .at("type")
            .known(errors, &["ByNamespace", "ByUser"]);
    }
    let level = spec.at("priorityLevelConfiguration");
    let level = level.at("name");
    if level.present_or(errors, "must reference a priority level") {
        level.syntax(errors, name::dns_1123_subdomain);
    }
    let rules = spec.at("rules");
    for rule in rules.items() {
        flow_rule(&rule, errors);
    }
    std::mem::take(errors)
}

fn flow_rule(rule: &Node<'_, '_>, errors: &mut ErrorList) {
    let subjects = rule.at("subjects");
    if subjects.list().is_empty() {
        subjects.required(errors, "subjects must contain at least one value");
    }
    for subject in subjects.items() {
        flow_subject(&subject, errors);
    }
    let (resources, urls) = (rule.at("resourceRules"), rule.at("nonResourceRules"));
    if resources.list().is_empty() && urls.list().is_empty() {
        rule.required(
            errors,
            "at least one of resourceRules and nonResourceRules has to be non-empty",
        );
    }
    for rule in resources.items() {
        some(&rule, "verbs", "verbs", errors);
        some_of(
            &rule,
            "apiGroups",
            "resource rules must supply at least one api group",
            "api groups",
            errors,
        );
        some_of(
            &rule,
            "resources",
            "resource rules must supply at least one resource",
            "resources",
            errors,
        );
        let namespaces = rule.at("namespaces");
        if namespaces.list().is_empty() && !rule.at("clusterScope").flag() {
            namespaces.required(
                errors,
                "resource rules that are not cluster scoped must supply at least one namespace",
            );
        }
    }
    for rule in urls.items() {
        some(&rule, "verbs", "verbs", errors);
        some(&rule, "nonResourceURLs", "non-resource URLs", errors);
    }
}

fn some(rule: &Node<'_, '_>, field: &str, others: &str, errors: &mut ErrorList) {
    let why = format!("{field} must contain at least one value");
    some_of(rule, field, &why, others, errors);
}

fn some_of(rule: &Node<'_, '_>, field: &str, none: &str, others: &str, errors: &mut ErrorList) {
    let list = rule.at(field);
    if list.present_or(errors, none)
        && list.list().len() > 1
        && list.list().iter().any(|item| item == "*")
    {
        list.invalid(
            errors,
            format!("if '*' is present, must not specify other {others}"),
        );
    }
}

fn flow_subject(subject: &Node<'_, '_>, errors: &mut ErrorList) {
    let kind = subject.at("kind");
    let (member, fields): (&str, &[&str]) = match kind.text() {
        "ServiceAccount" => ("serviceAccount", &["namespace", "name"]),
        "User" => ("user", &["name"]),
        "Group" => ("group", &["name"]),
        _ => {
            kind.not_supported(errors, &["Group", "ServiceAccount", "User"]);
            return;
        }
    };
    let holder = subject.at(member);
    if !holder.is_set() {
        let why = format!(
            "{} is required when subject kind is '{}'",
            member,
            kind.text()
        );
        holder.required(errors, &why);
        return;
    }
    for field in fields {
        holder.at(field).present(errors);
    }
}

pub struct PriorityLevelConfigurations;

impl Strategy for PriorityLevelConfigurations {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "prioritylevelconfigurations")
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        match text(object, &["spec", "type"]) {
            "Exempt" => {
                object_mut(object, &["spec", "exempt"]);
                let exempt = &mut object["spec"]["exempt"];
                default_value(exempt, "nominalConcurrencyShares", 0);
                default_value(exempt, "lendablePercent", 0);
            }
            "Limited" => {
                object_mut(object, &["spec", "limited"]);
                let limited = &mut object["spec"]["limited"];
                default_value(limited, "nominalConcurrencyShares", 30);
                default_value(limited, "lendablePercent", 0);
                if text(limited, &["limitResponse", "type"]).is_empty() {
                    object_mut(limited, &["limitResponse"]);
                    default_text(&mut limited["limitResponse"], "type", "Queue");
                    object_mut(limited, &["limitResponse", "queuing"]);
                }
                if let Some(queuing) = at_mut(limited, &["limitResponse", "queuing"]) {
                    default_number(queuing, "queues", 64);
                    default_number(queuing, "handSize", 8);
                    default_number(queuing, "queueLengthLimit", 50);
                }
            }
            _ => {}
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        priority_level(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status(new);
        }
        self.validate_create(change, new)
    }
}

/// Most queues of a priority level.
const MAX_QUEUES: i64 = 10_000_000;

fn priority_level(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let kind = spec.at("type");
    if (meta::name(object) == "exempt") != (kind.text() == "Exempt") {
        kind.invalid_as(
            errors,
            kind.text(),
            "type must be 'Exempt' if and only if name is 'exempt'",
        );
    }
    let (exempt, limited) = (spec.at("exempt"), spec.at("limited"));
    match kind.text() {
        "Exempt" if limited.is_set() => {
            limited.forbidden(errors, "must be nil if the type is not Limited");
        }
        "Exempt" => shares(&exempt, errors),
        "Limited" => {
            if exempt.is_set() {
                exempt.forbidden(errors, "must be nil if the type is Limited");
            }
            if limited.is_set() {
                self::limited(&limited, errors);
            } else {
                limited.required(errors, "must not be empty when type is Limited");
            }
        }
        _ => kind.not_supported(errors, &["Exempt", "Limited"]),
    }
    std::mem::take(errors)
}

fn shares(level: &Node<'_, '_>, errors: &mut ErrorList) {
    let shares = level.at("nominalConcurrencyShares");
    if shares.int().is_some_and(|shares| shares < 0) {
        shares.invalid(errors, "must be a non-negative integer");
    }
    level
        .at("lendablePercent")
        .between(errors, 0, 100, "must be between 0 and 100, inclusive");
}

fn limited(level: &Node<'_, '_>, errors: &mut ErrorList) {
    shares(level, errors);
    let response = level.at("limitResponse");
    let (kind, queuing) = (response.at("type"), response.at("queuing"));
    match kind.text() {
        "Reject" if queuing.is_set() => {
            queuing.forbidden(
                errors,
                "must be nil if limited.limitResponse.type is not Limited",
            );
        }
        "Reject" => {}
        "Queue" if !queuing.is_set() => {
            queuing.required(
                errors,
                "must not be empty if limited.limitResponse.type is Limited",
            );
        }
        "Queue" => {
            let (queues, hand) = (queuing.at("queues"), queuing.at("handSize"));
            let limit = queuing.at("queueLengthLimit");
            for number in [&limit, &queues, &hand] {
                if number.int().unwrap_or(0) <= 0 {
                    number.invalid(errors, "must be positive");
                }
            }
            let many = queues.int().unwrap_or(0);
            if many > MAX_QUEUES {
                queues.invalid(errors, format!("must not be greater than {MAX_QUEUES}"));
            }
            if hand.int().unwrap_or(0) > many {
                hand.invalid(
                    errors,
                    format!("should not be greater than queues ({many})"),
                );
            }
        }
        _ => kind.not_supported(errors, &["Queue", "Reject"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn flow_schemas_point_at_a_level_and_name_subjects() {
        check(
            flow_schema(&json!({"spec": {"matchingPrecedence": 10_001,
                "rules": [{"subjects": [{"kind": "User"}, {"kind": "Cat"}]}]}})),
            &[
                "spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000",
                "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
                "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
                "spec.rules[0].subjects[1].kind: Unsupported value: \"Cat\": supported values: \"Group\", \"ServiceAccount\", \"User\"",
                "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
            ],
        );
    }

    #[test]
    fn only_the_level_called_exempt_is() {
        check(
            priority_level(&json!({"metadata": {"name": "x"}, "spec": {"type": "Exempt"}})),
            &[
                "spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'",
            ],
        );
        check(
            priority_level(
                &json!({"metadata": {"name": "x"}, "spec": {"type": "Limited", "limited":
                {"limitResponse": {"type": "Queue", "queuing": {"queues": 2, "handSize": 3, "queueLengthLimit": 1}}}}}),
            ),
            &[
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 3: should not be greater than queues (2)",
            ],
        );
    }
}
