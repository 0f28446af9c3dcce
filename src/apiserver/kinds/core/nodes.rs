//! Nodes: status may come with the object that registers them.

use apimachinery::Value;

use super::super::tree::{at, at_mut, has, restore, set};
use crate::registry::strategy::{Change, Strategy, keep_all_but};

pub struct Nodes;

impl Strategy for Nodes {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "nodes")
    }

    fn default(&self, object: &mut Value) {
        if !has(object, &["status", "allocatable"]) {
            let capacity = at(object, &["status", "capacity"]).clone();
            if let Some(status) = at_mut(object, &["status"])
                && capacity.as_object().is_some_and(|map| !map.is_empty())
            {
                set(status, "allocatable", capacity);
            }
        }
    }

    fn keeps_status_on_create(&self) -> bool {
        true
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        match change.subresource {
            "status" => keep_all_but(new, old, &["status"]),
            _ => restore(new, old, "status"),
        }
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "spec.unschedulable" {
            "false"
        } else {
            ""
        }
    }
}
