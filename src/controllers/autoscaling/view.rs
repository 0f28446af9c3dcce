//! autoscaling/v2 HorizontalPodAutoscaler.

use api::view::ObjectMeta;
use apimachinery::{Value, quantity::Quantity};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Autoscaler {
    pub metadata: ObjectMeta,
    pub spec: Spec,
    pub status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub scale_target_ref: Target,
    pub min_replicas: Option<i64>,
    pub max_replicas: i64,
    pub metrics: Vec<Metric>,
    pub behavior: Option<Behavior>,
}

/// CrossVersionObjectReference.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Target {
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

/// One of the five, by `type`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metric {
    #[serde(rename = "type")]
    pub kind: String,
    pub resource: Option<Source>,
    pub container_resource: Option<Source>,
    pub pods: Option<Source>,
    pub object: Option<Source>,
    pub external: Option<Source>,
}

/// What is measured and what it should be; each kind of metric has some of the fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Source {
    /// Of a resource.
    pub name: String,
    pub container: String,
    pub metric: Identifier,
    pub described_object: Target,
    pub target: Goal,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Identifier {
    pub name: String,
    pub selector: Value,
}

/// MetricTarget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Goal {
    #[serde(rename = "type")]
    pub kind: String,
    pub value: Option<String>,
    pub average_value: Option<String>,
    pub average_utilization: Option<i64>,
}

impl Goal {
    /// The value in thousandths.
    pub fn value(&self) -> Option<i64> {
        milli(self.value.as_deref()?)
    }

    /// The value for each pod in thousandths.
    pub fn average(&self) -> Option<i64> {
        milli(self.average_value.as_deref()?)
    }
}

/// A quantity in thousandths.
pub fn milli(text: &str) -> Option<i64> {
    text.parse::<Quantity>()
        .ok()
        .map(|quantity| quantity.milli_value())
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Behavior {
    pub scale_up: Option<Rules>,
    pub scale_down: Option<Rules>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    pub stabilization_window_seconds: Option<u64>,
    pub select_policy: Option<String>,
    pub policies: Vec<Policy>,
    pub tolerance: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    #[serde(rename = "type")]
    pub kind: String,
    pub value: i64,
    pub period_seconds: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// None while the object counts no generations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<String>,
    pub current_replicas: i64,
    pub desired_replicas: i64,
    /// Stored as null while there are none.
    #[serde(deserialize_with = "null_is_empty")]
    pub current_metrics: Vec<Value>,
    #[serde(deserialize_with = "null_is_empty")]
    pub conditions: Vec<Condition>,
}

fn null_is_empty<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(from)?.unwrap_or_default())
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub last_transition_time: Option<String>,
}
