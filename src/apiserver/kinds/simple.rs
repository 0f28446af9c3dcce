//! Kinds that differ from the defaults in a few answers only: one row each.

use super::object_meta::{NameRule, dns_label, dns_subdomain, path_segment};
use crate::registry::strategy::Strategy;

/// A kind told by its answers.
pub struct Simple {
    id: (&'static str, &'static str),
    name: NameRule,
    generation: bool,
    creates_on_update: bool,
    unconditional: bool,
}

impl Simple {
    const fn new(group: &'static str, plural: &'static str) -> Self {
        Self {
            id: (group, plural),
            name: dns_subdomain,
            generation: false,
            creates_on_update: false,
            unconditional: true,
        }
    }

    const fn counted(mut self) -> Self {
        self.generation = true;
        self
    }

    const fn named(mut self, rule: NameRule) -> Self {
        self.name = rule;
        self
    }

    const fn created_by_put(mut self) -> Self {
        self.creates_on_update = true;
        self
    }

    const fn with_version_only(mut self) -> Self {
        self.unconditional = false;
        self
    }
}

impl Strategy for Simple {
    fn id(&self) -> (&'static str, &'static str) {
        self.id
    }

    fn name_rule(&self) -> NameRule {
        self.name
    }

    fn counts_generation(&self) -> bool {
        self.generation
    }

    fn creates_on_update(&self) -> bool {
        self.creates_on_update
    }

    fn updates_unconditionally(&self) -> bool {
        self.unconditional
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const RESOURCE: &str = "resource.k8s.io";
const STORAGE: &str = "storage.k8s.io";

pub static CLUSTER_ROLES: Simple = Simple::new(RBAC, "clusterroles")
    .named(path_segment)
    .created_by_put();
pub static ROLES: Simple = Simple::new(RBAC, "roles")
    .named(path_segment)
    .created_by_put();
pub static API_SERVICES: Simple =
    Simple::new("apiregistration.k8s.io", "apiservices").with_version_only();
pub static CSI_NODES: Simple = Simple::new(STORAGE, "csinodes").with_version_only();
pub static VOLUME_ATTACHMENTS: Simple =
    Simple::new(STORAGE, "volumeattachments").with_version_only();
pub static DEVICE_CLASSES: Simple = Simple::new(RESOURCE, "deviceclasses").counted();
pub static DEVICE_TAINT_RULES: Simple = Simple::new(RESOURCE, "devicetaintrules").counted();
pub static RESOURCE_SLICES: Simple = Simple::new(RESOURCE, "resourceslices").counted();
pub static CONTROLLER_REVISIONS: Simple = Simple::new("apps", "controllerrevisions");
pub static INGRESS_CLASSES: Simple = Simple::new("networking.k8s.io", "ingressclasses").counted();
pub static RUNTIME_CLASSES: Simple = Simple::new("node.k8s.io", "runtimeclasses")
    .named(dns_label)
    .with_version_only();
pub static CUSTOM_RESOURCE_DEFINITIONS: Simple =
    Simple::new("apiextensions.k8s.io", "customresourcedefinitions")
        .counted()
        .with_version_only();
