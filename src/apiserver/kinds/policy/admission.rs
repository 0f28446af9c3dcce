//! Configurations of admission: webhooks and policies.

use apimachinery::Value;
use serde_json::json;

use super::super::tree::{at_mut, default_text, default_value, items_mut};
use crate::registry::strategy::Strategy;

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
}
