//! HorizontalPodAutoscalers, stored as v2. In v1 all but the CPU target travels in annotations
//! (`pkg/apis/autoscaling/v1/conversion.go`), so that a round trip loses nothing.

mod rules;

use api::Resource;
use apimachinery::field::ErrorList;
use apimachinery::{Value, meta};
use serde_json::json;

use super::check::Node;
use super::tree::{
    at, at_mut, default_text, default_value, int, items, object_mut, remove, set, text,
};
use crate::registry::strategy::{Change, Strategy};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The CPU use a pod without metrics is scaled for (percent).
const CPU_TARGET: i64 = 80;

pub struct HorizontalPodAutoscalers;

impl Strategy for HorizontalPodAutoscalers {
    fn id(&self) -> (&'static str, &'static str) {
        ("autoscaling", "horizontalpodautoscalers")
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = at_mut(object, &["spec"]) else {
            return;
        };
        default_value(spec, "minReplicas", 1);
        if items(spec, &["metrics"]).is_empty() {
            set(spec, "metrics", json!([cpu(CPU_TARGET)]));
        }
        if let Some(behavior) = at_mut(spec, &["behavior"]) {
            default_behavior(behavior);
        }
    }

    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        match (from.version, to.version) {
            ("v1", "v2") => to_v2(object),
            ("v2", "v1") => to_v1(object),
            _ => {}
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(
            object,
            "status",
            json!({"desiredReplicas": 0, "currentMetrics": null}),
        );
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        rules::autoscaler(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status(new);
        }
        self.validate_create(change, new)
    }
}

/// `ValidateHorizontalPodAutoscalerStatusUpdate`.
fn status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(object, &["status"]), "status");
    for field in ["currentReplicas", "desiredReplicas"] {
        status.at(field).nonnegative(&mut errors);
    }
    errors
}

fn cpu(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

fn default_behavior(behavior: &mut Value) {
    let up = json!([
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ]);
    let down = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
    for (direction, policies, window) in [("scaleUp", up, Some(0)), ("scaleDown", down, None)] {
        object_mut(behavior, &[direction]);
        let rules = &mut behavior[direction];
        if let Some(window) = window {
            default_value(rules, "stabilizationWindowSeconds", window);
        }
        default_text(rules, "selectPolicy", "Max");
        default_value(rules, "policies", policies);
    }
}

/// Where the parts of a metric stand: v2's name, and those of v1.
const SOURCES: [(&str, &str); 5] = [
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("Pods", "pods"),
    ("Object", "object"),
    ("External", "external"),
];

fn source_of(metric: &Value) -> Option<&'static str> {
    let kind = text(metric, &["type"]);
    SOURCES
        .iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, field)| *field)
}

fn put(into: &mut Value, field: &str, value: &Value) {
    if !value.is_null() {
        set(into, field, value.clone());
    }
}

/// A metric, target (`target`) or reading (`current`), as v1 writes it.
fn metric_to_v1(metric: &Value, side: &str) -> Value {
    let Some(field) = source_of(metric) else {
        return metric.clone();
    };
    let source = at(metric, &[field]);
    let value = at(source, &[side]);
    let target = side == "target";
    let mut old = json!({});
    put(&mut old, "container", at(source, &["container"]));
    match field {
        "resource" | "containerResource" => {
            put(&mut old, "name", at(source, &["name"]));
            let (percent, amount) = if target {
                ("targetAverageUtilization", "targetAverageValue")
            } else {
                ("currentAverageUtilization", "currentAverageValue")
            };
            put(&mut old, percent, at(value, &["averageUtilization"]));
            put(&mut old, amount, at(value, &["averageValue"]));
        }
        _ => {
            put(&mut old, "metricName", at(source, &["metric", "name"]));
            let selector = if field == "external" {
                "metricSelector"
            } else {
                "selector"
            };
            put(&mut old, selector, at(source, &["metric", "selector"]));
            put(&mut old, "target", at(source, &["describedObject"]));
            let (whole, average) = match (field, target) {
                ("object", true) => ("targetValue", "averageValue"),
                ("object", false) => ("currentValue", "averageValue"),
                (_, true) => ("targetValue", "targetAverageValue"),
                (_, false) => ("currentValue", "currentAverageValue"),
            };
            put(&mut old, whole, at(value, &["value"]));
            put(&mut old, average, at(value, &["averageValue"]));
        }
    }
    json!({"type": text(metric, &["type"]), field: old})
}

/// The same back.
fn metric_to_v2(metric: &Value, side: &str) -> Value {
    let Some(field) = source_of(metric) else {
        return metric.clone();
    };
    let old = at(metric, &[field]);
    let first = |names: [&str; 2]| {
        let found = at(old, &[names[0]]);
        if found.is_null() {
            at(old, &[names[1]])
        } else {
            found
        }
    };
    let mut value = json!({});
    let percent = first(["targetAverageUtilization", "currentAverageUtilization"]);
    let whole = first(["targetValue", "currentValue"]);
    let average = match field {
        "object" => at(old, &["averageValue"]),
        _ => first(["targetAverageValue", "currentAverageValue"]),
    };
    if side == "target" {
        let kind = if !percent.is_null() {
            "Utilization"
        } else if !average.is_null() {
            "AverageValue"
        } else {
            "Value"
        };
        set(&mut value, "type", kind);
    }
    put(&mut value, "averageUtilization", percent);
    put(&mut value, "averageValue", average);
    put(&mut value, "value", whole);
    let mut new = json!({});
    put(&mut new, "container", at(old, &["container"]));
    match field {
        "resource" | "containerResource" => put(&mut new, "name", at(old, &["name"])),
        _ => {
            put(&mut new, "describedObject", at(old, &["target"]));
            let mut named = json!({});
            put(&mut named, "name", at(old, &["metricName"]));
            put(
                &mut named,
                "selector",
                first(["metricSelector", "selector"]),
            );
            set(&mut new, "metric", named);
        }
    }
    set(&mut new, side, value);
    json!({"type": text(metric, &["type"]), field: new})
}

/// The CPU target in percent, when that is what a metric is.
fn cpu_percent(metric: &Value, side: &str) -> Option<i64> {
    if text(metric, &["type"]) != "Resource" || text(metric, &["resource", "name"]) != "cpu" {
        return None;
    }
    int(metric, &["resource", side, "averageUtilization"])
}

fn to_v1(object: &mut Value) {
    let mut others = Vec::new();
    let mut percent = None;
    for metric in items(object, &["spec", "metrics"]) {
        match cpu_percent(metric, "target") {
            Some(number) if percent.is_none() => percent = Some(number),
            _ => others.push(metric_to_v1(metric, "target")),
        }
    }
    let mut current = Vec::new();
    let mut reading = None;
    for metric in items(object, &["status", "currentMetrics"]) {
        let number = cpu_percent(metric, "current");
        if number.is_some() && reading.is_none() {
            reading = number;
        }
        current.push(metric_to_v1(metric, "current"));
    }
    let conditions = items(object, &["status", "conditions"]).to_vec();
    let behavior = at(object, &["spec", "behavior"]).clone();
    let mut annotate = |key: &str, value: Value, empty: bool| {
        if empty {
            meta::remove_annotation(object, key);
        } else {
            meta::set_annotation(object, key, &value.to_string());
        }
    };
    annotate(METRICS, json!(others), others.is_empty());
    annotate(CURRENT, json!(current), current.is_empty());
    annotate(CONDITIONS, json!(conditions), conditions.is_empty());
    annotate(BEHAVIOR, behavior.clone(), behavior.is_null());
    let spec = object_mut(object, &["spec"]);
    for field in ["metrics", "behavior"] {
        spec.remove(field);
    }
    if let Some(percent) = percent {
        spec.insert("targetCPUUtilizationPercentage".to_owned(), percent.into());
    }
    let status = object_mut(object, &["status"]);
    for field in ["currentMetrics", "conditions"] {
        status.remove(field);
    }
    status.entry("currentReplicas").or_insert_with(|| 0.into());
    status.entry("desiredReplicas").or_insert_with(|| 0.into());
    if let Some(reading) = reading {
        status.insert("currentCPUUtilizationPercentage".to_owned(), reading.into());
    }
}

fn take_annotation(object: &mut Value, key: &str) -> Value {
    let text = meta::annotation(object, key).unwrap_or("").to_owned();
    meta::remove_annotation(object, key);
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

fn to_v2(object: &mut Value) {
    let mut metrics: Vec<Value> = take_annotation(object, METRICS)
        .as_array()
        .into_iter()
        .flatten()
        .map(|metric| metric_to_v2(metric, "target"))
        .collect();
    let current: Vec<Value> = take_annotation(object, CURRENT)
        .as_array()
        .into_iter()
        .flatten()
        .map(|metric| metric_to_v2(metric, "current"))
        .collect();
    let conditions = take_annotation(object, CONDITIONS);
    let behavior = take_annotation(object, BEHAVIOR);
    if let Some(spec) = at_mut(object, &["spec"]) {
        if let Some(percent) = remove(spec, "targetCPUUtilizationPercentage") {
            metrics.push(cpu(percent.as_i64().unwrap_or(CPU_TARGET)));
        }
        if !metrics.is_empty() {
            set(spec, "metrics", metrics);
        }
        put(spec, "behavior", &behavior);
    }
    let status = object_mut(object, &["status"]);
    let reading = status.remove("currentCPUUtilizationPercentage");
    let mut readings = current;
    if let Some(reading) = reading.filter(|_| readings.is_empty()) {
        readings.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": reading}}}));
    }
    status.insert(
        "currentMetrics".to_owned(),
        if readings.is_empty() {
            Value::Null
        } else {
            readings.into()
        },
    );
    if !conditions.is_null() {
        status.insert("conditions".to_owned(), conditions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_through_v1_loses_nothing() {
        let original = json!({
            "metadata": {"name": "a"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
                "behavior": {"scaleUp": {"selectPolicy": "Max"}},
                "metrics": [
                    {"type": "Pods", "pods": {"metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
                        "target": {"type": "AverageValue", "averageValue": "5"}}},
                    {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s"}, "metric": {"name": "m"},
                        "target": {"type": "Value", "value": "7"}}},
                    cpu(50)]},
            "status": {"currentReplicas": 1, "desiredReplicas": 2, "conditions": [{"type": "AbleToScale", "status": "True"}],
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 40, "averageValue": "4m"}}}]},
        });
        let mut object = original.clone();
        to_v1(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 50);
        assert_eq!(object["status"]["currentCPUUtilizationPercentage"], 40);
        assert!(object["spec"].get("metrics").is_none());
        to_v2(&mut object);
        meta::metadata_mut(&mut object).remove("annotations");
        assert_eq!(object, original);
    }
}
