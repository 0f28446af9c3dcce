//! Events: they live for an hour, and are served as core/v1 and as events.k8s.io/v1 out of the same stored bytes.

use std::time::Duration;

use api::Resource;
use apimachinery::Value;

use super::super::tree::{remove, set};
use crate::registry::Registry;
use crate::registry::strategy::Strategy;

pub struct Events;

/// Members that are called differently: events.k8s.io, core.
const RENAMED: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

impl Strategy for Events {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "events")
    }

    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        let to_core = to.group.is_empty();
        if to_core == from.group.is_empty() {
            return;
        }
        for (new, old) in RENAMED {
            let (name, into) = if to_core { (new, old) } else { (old, new) };
            if let Some(value) = remove(object, name) {
                set(object, into, value);
            }
        }
        apimachinery::schema::complete(object, to.schema);
    }

    fn time_to_live(&self, registry: &Registry) -> Option<Duration> {
        Some(registry.options.storage.event_ttl)
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn field_paths(&self, label: &str) -> Option<Vec<Vec<&'static str>>> {
        let path = |path: &[&'static str]| Some(vec![path.to_vec()]);
        match label {
            "source" => Some(vec![
                vec!["source", "component"],
                vec!["reportingComponent"],
            ]),
            "reportingController" | "reportingComponent" => path(&["reportingComponent"]),
            "regarding.kind" => path(&["involvedObject", "kind"]),
            "regarding.namespace" => path(&["involvedObject", "namespace"]),
            "regarding.name" => path(&["involvedObject", "name"]),
            "regarding.uid" => path(&["involvedObject", "uid"]),
            "regarding.apiVersion" => path(&["involvedObject", "apiVersion"]),
            "regarding.resourceVersion" => path(&["involvedObject", "resourceVersion"]),
            "regarding.fieldPath" => path(&["involvedObject", "fieldPath"]),
            _ => None,
        }
    }
}
