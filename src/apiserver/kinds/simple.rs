//! Kinds that differ from the defaults in a few answers only: one row each.

use apimachinery::Value;
use apimachinery::field::ErrorList;

use super::check::Node;
use super::object_meta::{NameRule, dns_label, dns_subdomain};
use super::{api_services, apps, devices, networking, nodes, storage};
use crate::registry::strategy::{Change, Strategy, default_prepare_create};

/// A kind told by its answers.
pub struct Simple {
    id: (&'static str, &'static str),
    name: NameRule,
    generation: bool,
    unconditional: bool,
    validate: fn(&Value) -> ErrorList,
    frozen: &'static [&'static str],
    bare_status: bool,
    begins: fn(&mut Value),
}

fn nothing(_object: &Value) -> ErrorList {
    ErrorList::new()
}

fn as_sent(_object: &mut Value) {}

impl Simple {
    const fn new(group: &'static str, plural: &'static str) -> Self {
        Self {
            id: (group, plural),
            name: dns_subdomain,
            generation: false,
            unconditional: true,
            validate: nothing,
            frozen: &[],
            bare_status: false,
            begins: as_sent,
        }
    }

    /// What a new object has by itself.
    const fn beginning(mut self, with: fn(&mut Value)) -> Self {
        self.begins = with;
        self
    }

    /// What an object must be like.
    const fn checked(mut self, rule: fn(&Value) -> ErrorList) -> Self {
        self.validate = rule;
        self
    }

    /// Members, by dots, that no update changes.
    const fn frozen(mut self, paths: &'static [&'static str]) -> Self {
        self.frozen = paths;
        self
    }

    const fn counted(mut self) -> Self {
        self.generation = true;
        self
    }

    const fn named(mut self, rule: NameRule) -> Self {
        self.name = rule;
        self
    }

    /// Writers of status cannot touch metadata.
    const fn with_bare_status(mut self) -> Self {
        self.bare_status = true;
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

    fn status_keeps_metadata(&self) -> bool {
        self.bare_status
    }

    fn updates_unconditionally(&self) -> bool {
        self.unconditional
    }

    fn prepare_create(&self, change: &Change<'_>, object: &mut Value) {
        default_prepare_create(self.status_fields(), change, object);
        (self.begins)(object);
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        (self.validate)(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        let mut errors = (self.validate)(new);
        for path in self.frozen {
            let mut values = (new, old);
            for step in path.split('.') {
                values = (at(values.0, step), at(values.1, step));
            }
            Node::root(values.0, path).unchanged(&mut errors, values.1);
        }
        errors
    }
}

fn at<'a>(value: &'a Value, step: &str) -> &'a Value {
    super::tree::at(value, &[step])
}

const RESOURCE: &str = "resource.k8s.io";
const STORAGE: &str = "storage.k8s.io";

pub static API_SERVICES: Simple = Simple::new("apiregistration.k8s.io", "apiservices")
    .with_version_only()
    .with_bare_status()
    .beginning(api_services::begin)
    .checked(api_services::service);
pub static CSI_NODES: Simple = Simple::new(STORAGE, "csinodes")
    .with_version_only()
    .checked(storage::csi::node);
pub static CSI_STORAGE_CAPACITIES: Simple = Simple::new(STORAGE, "csistoragecapacities")
    .checked(storage::csi::capacity)
    .frozen(&["nodeTopology", "storageClassName"]);
pub static VOLUME_ATTACHMENTS: Simple = Simple::new(STORAGE, "volumeattachments")
    .with_version_only()
    .with_bare_status()
    .checked(storage::csi::attachment)
    .frozen(&["spec"]);
pub static DEVICE_CLASSES: Simple = Simple::new(RESOURCE, "deviceclasses")
    .counted()
    .checked(devices::class);
pub static CONTROLLER_REVISIONS: Simple = Simple::new("apps", "controllerrevisions")
    .checked(apps::controller_revision)
    .frozen(&["data"]);
pub static INGRESS_CLASSES: Simple = Simple::new("networking.k8s.io", "ingressclasses")
    .counted()
    .checked(networking::ingress_class)
    .frozen(&["spec.controller"]);
pub static RUNTIME_CLASSES: Simple = Simple::new("node.k8s.io", "runtimeclasses")
    .named(dns_label)
    .with_version_only()
    .checked(nodes::runtime_class)
    .frozen(&["handler"]);
