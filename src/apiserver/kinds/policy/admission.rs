//! Configurations of admission: webhooks and policies. What they may say is in `rules`.

mod rules;

use apimachinery::Value;
use apimachinery::field::ErrorList;
use serde_json::json;

use super::super::tree::{at_mut, default_text, default_value, items_mut};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "admissionregistration.k8s.io";

/// Mutating and validating webhook configurations, by their plural.
pub struct Webhooks(pub &'static str);

impl Strategy for Webhooks {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, self.0)
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        let mutating = self.0 == "mutatingwebhookconfigurations";
        for hook in items_mut(object, &["webhooks"]) {
            default_text(hook, "failurePolicy", "Fail");
            default_text(hook, "matchPolicy", "Equivalent");
            default_value(hook, "namespaceSelector", json!({}));
            default_value(hook, "objectSelector", json!({}));
            default_value(hook, "timeoutSeconds", 10);
            if mutating {
                default_text(hook, "reinvocationPolicy", "Never");
            }
            rules(hook, &["rules"]);
            if let Some(service) = at_mut(hook, &["clientConfig", "service"]) {
                default_value(service, "port", 443);
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        rules::webhooks(object, self.0 == "mutatingwebhookconfigurations")
    }
}

fn rules(holder: &mut Value, path: &[&str]) {
    for rule in items_mut(holder, path) {
        default_text(rule, "scope", "*");
    }
}

/// Validating and mutating admission policies, by their plural.
pub struct Policies(pub &'static str);

impl Strategy for Policies {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, self.0)
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = at_mut(object, &["spec"]) else {
            return;
        };
        default_text(spec, "failurePolicy", "Fail");
        if let Some(constraints) = at_mut(spec, &["matchConstraints"]) {
            matches(constraints);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        rules::policy(object, self.0 == "mutatingadmissionpolicies")
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        self.validate_create(change, new)
    }
}

fn matches(constraints: &mut Value) {
    default_text(constraints, "matchPolicy", "Equivalent");
    default_value(constraints, "namespaceSelector", json!({}));
    default_value(constraints, "objectSelector", json!({}));
    rules(constraints, &["resourceRules"]);
    rules(constraints, &["excludeResourceRules"]);
}

/// Their bindings, by their plural.
pub struct PolicyBindings(pub &'static str);

impl Strategy for PolicyBindings {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, self.0)
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        if let Some(constraints) = at_mut(object, &["spec", "matchResources"]) {
            matches(constraints);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        rules::policy_binding(object, self.0 == "mutatingadmissionpolicybindings")
    }
}
