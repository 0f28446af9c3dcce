//! Events: they live for an hour, and are served as core/v1 and as events.k8s.io/v1 out of the same stored bytes.

use std::time::Duration;

use api::Resource;
use apimachinery::field::ErrorList;
use apimachinery::{Value, meta, name};

use super::super::check::Node;
use super::super::tree::{at, has, remove, set};
use crate::registry::Registry;
use crate::registry::strategy::{Change, Strategy};

/// The group whose events are held to stricter rules than the core group's.
const NEW_GROUP: &str = "events.k8s.io";
/// Bounds of an event's texts (bytes).
const MAX_WORD: usize = 128;
const MAX_NOTE: usize = 1024;

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

    fn validate_create(&self, change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = event(object);
        if change.request.info.group == NEW_GROUP {
            new_event(object, &mut errors);
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = event(new);
        if change.request.info.group == NEW_GROUP {
            series(new, &mut errors);
            unchanged(new, old, &mut errors);
        }
        errors
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

/// `legacyValidateEvent`: what every event is held to.
fn event(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let root = Node::root(object, "");
    let involved = root.at("involvedObject");
    let about = involved.at("namespace");
    let namespace = meta::namespace(object);
    let timed = root.at("eventTime").is_set();
    let fits = match about.text() {
        "" => {
            namespace.is_empty() || namespace == "default" || (timed && namespace == "kube-system")
        }
        about => timed || about == namespace,
    };
    if !fits {
        about.invalid_as(errors, about.text(), "does not match event.namespace");
    }
    if timed {
        let controller = root.at("reportingComponent");
        controller.present(errors);
        controller.syntax_if_set(errors, name::qualified_name);
        for field in ["reportingInstance", "action", "reason"] {
            let word = root.at(field);
            word.present(errors);
            at_most(&word, MAX_WORD, errors);
        }
        at_most(&root.at("message"), MAX_NOTE, errors);
    }
    let kind = involved.at("kind").text();
    let (group, version) = meta::group_version(involved.at("apiVersion").text());
    if let Some(known) = api::find_kind(group, version, kind) {
        if known.namespaced && about.text().is_empty() {
            about.required(errors, &format!("required for kind {kind}"));
        } else if !known.namespaced && !about.text().is_empty() {
            about.invalid(errors, format!("not allowed for kind {kind}"));
        }
    }
    std::mem::take(errors)
}

fn at_most(word: &Node<'_, '_>, most: usize, errors: &mut ErrorList) {
    if word.text().len() > most {
        word.invalid_as(errors, "", format!("can have at most {most} characters"));
    }
}

/// What `events.k8s.io/v1` asks for beyond that.
fn new_event(object: &Value, errors: &mut ErrorList) {
    let root = Node::root(object, "");
    series(object, errors);
    root.at("eventTime").present(errors);
    let kind = root.at("type");
    if kind.present(errors) && !matches!(kind.text(), "Normal" | "Warning") {
        kind.invalid_as(errors, "", format!("has invalid value: {}", kind.text()));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let old = root.at(field);
        let set = match old.value {
            Value::Number(number) => number.as_i64() != Some(0),
            Value::Object(map) => !map.is_empty(),
            other => !other.is_null(),
        };
        if set {
            old.invalid_as(errors, "", "needs to be unset");
        }
    }
}

fn series(object: &Value, errors: &mut ErrorList) {
    let root = Node::root(object, "");
    let series = root.at("series");
    if !series.is_set() {
        return;
    }
    if series.at("count").int().unwrap_or(0) < 2 {
        series
            .at("count")
            .invalid_as(errors, "", "should be at least 2");
    }
    series.at("lastObservedTime").present(errors);
}

fn unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !has(old, &["eventTime"]) {
        return;
    }
    let root = Node::root(new, "");
    for field in [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingComponent",
        "reportingInstance",
    ] {
        root.at(field).unchanged(errors, at(old, &[field]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn events_are_where_their_object_is() {
        let event_of = |namespace: &str, involved: Value| {
            event(&json!({"metadata": {"namespace": namespace}, "involvedObject": involved}))
        };
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "a"});
        check(event_of("a", pod.clone()), &[]);
        check(
            event_of("b", pod),
            &["involvedObject.namespace: Invalid value: \"a\": does not match event.namespace"],
        );
        let node = json!({"apiVersion": "v1", "kind": "Node"});
        check(event_of("default", node.clone()), &[]);
        check(
            event_of("b", node),
            &["involvedObject.namespace: Invalid value: \"\": does not match event.namespace"],
        );
        check(
            event_of("default", json!({"apiVersion": "v1", "kind": "Pod"})),
            &["involvedObject.namespace: Required value: required for kind Pod"],
        );
    }

    #[test]
    fn new_events_say_when_who_and_what() {
        let mut errors = ErrorList::new();
        new_event(
            &json!({"type": "Odd", "count": 2, "series": {"count": 1}}),
            &mut errors,
        );
        check(
            errors,
            &[
                "series.count: Invalid value: \"\": should be at least 2",
                "series.lastObservedTime: Required value",
                "eventTime: Required value",
                "type: Invalid value: \"\": has invalid value: Odd",
                "count: Invalid value: \"\": needs to be unset",
            ],
        );
    }
}
