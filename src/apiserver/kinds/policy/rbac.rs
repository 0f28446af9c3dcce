//! Roles and their bindings (`pkg/apis/rbac/validation`). Whether the caller may grant what they say is admission's matter.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::object_meta::{NameRule, path_segment};
use super::super::pod_spec::affinity::label_selector;
use super::super::tree::{at, default_text, items_mut, text};
use crate::registry::strategy::{Change, Strategy};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Roles and ClusterRoles, by their plural.
pub struct Roles(pub &'static str);

impl Strategy for Roles {
    fn id(&self) -> (&'static str, &'static str) {
        (RBAC, self.0)
    }

    fn name_rule(&self) -> NameRule {
        path_segment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        role(object, self.0 == "roles")
    }
}

fn role(object: &Value, namespaced: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Node::root(object, "");
    let rules = root.at("rules");
    for rule in rules.items() {
        policy_rule(&rule, namespaced, &mut errors);
    }
    let aggregation = root.at("aggregationRule");
    if aggregation.is_set() && !namespaced {
        let selectors = aggregation.at("clusterRoleSelectors");
        if selectors.list().is_empty() {
            selectors.required(
                &mut errors,
                "at least one clusterRoleSelector required if aggregationRule is non-nil",
            );
        }
        for selector in selectors.items() {
            label_selector(selector.value, &selector.path(), &mut errors);
        }
    }
    errors
}

/// `ValidatePolicyRule`.
fn policy_rule(rule: &Node<'_, '_>, namespaced: bool, errors: &mut ErrorList) {
    let empty = |field: &str| rule.at(field).list().is_empty();
    if empty("verbs") {
        rule.at("verbs")
            .required(errors, "verbs must contain at least one value");
    }
    let urls = rule.at("nonResourceURLs");
    if !urls.list().is_empty() {
        if namespaced {
            urls.invalid(errors, "namespaced rules cannot apply to non-resource URLs");
        }
        if !["apiGroups", "resources", "resourceNames"]
            .into_iter()
            .all(empty)
        {
            urls.invalid(
                errors,
                "rules cannot apply to both regular resources and non-resource URLs",
            );
        }
        return;
    }
    if empty("apiGroups") {
        rule.at("apiGroups")
            .required(errors, "resource rules must supply at least one api group");
    }
    if empty("resources") {
        rule.at("resources")
            .required(errors, "resource rules must supply at least one resource");
    }
}

/// RoleBindings and ClusterRoleBindings, by their plural.
pub struct Bindings(pub &'static str);

impl Strategy for Bindings {
    fn id(&self) -> (&'static str, &'static str) {
        (RBAC, self.0)
    }

    fn name_rule(&self) -> NameRule {
        path_segment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if let Some(reference) = object
            .get_mut("roleRef")
            .filter(|reference| reference.is_object())
        {
            default_text(reference, "apiGroup", RBAC);
        }
        for subject in items_mut(object, &["subjects"]) {
            if matches!(text(subject, &["kind"]), "User" | "Group") {
                default_text(subject, "apiGroup", RBAC);
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        binding(object, self.0 == "rolebindings")
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = self.validate_create(change, new);
        if at(new, &["roleRef"]) != at(old, &["roleRef"]) {
            errors.push(Error::invalid(
                &Path::new("roleRef"),
                at(new, &["roleRef"]),
                "cannot change roleRef",
            ));
        }
        errors
    }
}

fn binding(object: &Value, namespaced: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Node::root(object, "");
    let reference = root.at("roleRef");
    reference.at("apiGroup").known(&mut errors, &[RBAC]);
    let kinds: &[&str] = if namespaced {
        &["ClusterRole", "Role"]
    } else {
        &["ClusterRole"]
    };
    reference.at("kind").known(&mut errors, kinds);
    reference.at("name").named(&mut errors, name::path_segment);
    let subjects = root.at("subjects");
    for subject in subjects.items() {
        self::subject(&subject, namespaced, &mut errors);
    }
    errors
}

fn subject(subject: &Node<'_, '_>, namespaced: bool, errors: &mut ErrorList) {
    let called = subject.at("name");
    called.present(errors);
    let group = subject.at("apiGroup");
    match subject.at("kind").text() {
        "ServiceAccount" => {
            called.syntax_if_set(errors, name::dns_1123_subdomain);
            if !group.text().is_empty() {
                group.not_supported(errors, &[""]);
            }
            if !namespaced {
                subject.at("namespace").present(errors);
            }
        }
        "User" | "Group" => group.known(errors, &[RBAC]),
        _ => subject
            .at("kind")
            .not_supported(errors, &["Group", "ServiceAccount", "User"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn rules_need_verbs_groups_and_resources() {
        check(
            role(&json!({"rules": [{}]}), true),
            &[
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ],
        );
        let urls = json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}]});
        check(
            role(&urls, false),
            &[
                "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs",
            ],
        );
        let urls = json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
        check(
            role(&urls, true),
            &[
                "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
            ],
        );
        check(
            role(&json!({"aggregationRule": {}}), false),
            &[
                "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil",
            ],
        );
    }

    #[test]
    fn bindings_name_a_role_and_subjects_that_can_be() {
        let good = json!({"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "a"}, {"kind": "User", "apiGroup": RBAC, "name": "b"}]});
        check(binding(&good, true), &[]);
        let bad = json!({"roleRef": {"apiGroup": "x", "kind": "Role", "name": ""},
            "subjects": [{"kind": "ServiceAccount", "name": "A"}, {"kind": "Robot", "name": "b"}]});
        let texts: Vec<String> = binding(&bad, false)
            .iter()
            .map(|error| error.to_string().chars().take(60).collect())
            .collect();
        assert_eq!(
            texts,
            [
                "roleRef.apiGroup: Unsupported value: \"x\": supported values: ",
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"",
                "roleRef.name: Required value",
                "subjects[0].name: Invalid value: \"A\": a lowercase RFC 1123 s",
                "subjects[0].namespace: Required value",
                "subjects[1].kind: Unsupported value: \"Robot\": supported valu",
            ]
        );
    }
}
