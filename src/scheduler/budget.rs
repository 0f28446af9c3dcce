//! PodDisruptionBudgets as far as preemption cares for them.

use std::collections::BTreeMap;

use api::view::ObjectMeta;
use apimachinery::{Value, selector::LabelSelector};
use serde::Deserialize;

use crate::pod::Pod;

/// policy/v1 PodDisruptionBudget.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Raw")]
pub struct PodDisruptionBudget {
    pub namespace: String,
    /// `None` selects nothing.
    selector: Option<LabelSelector>,
    pub disruptions_allowed: i64,
    /// Pods whose eviction is under way already.
    disrupted: Vec<String>,
}

impl PodDisruptionBudget {
    /// Whether evicting this pod would take from the budget.
    pub fn counts(&self, pod: &Pod) -> bool {
        let selected = self.selector.as_ref();
        !pod.labels.is_empty()
            && self.namespace == pod.namespace
            && selected
                .is_some_and(|selector| !selector.is_everything() && selector.matches(&pod.labels))
            && !self.disrupted.contains(&pod.name)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Raw {
    metadata: ObjectMeta,
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    selector: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    disruptions_allowed: i64,
    disrupted_pods: BTreeMap<String, Value>,
}

impl From<Raw> for PodDisruptionBudget {
    fn from(raw: Raw) -> Self {
        PodDisruptionBudget {
            namespace: raw.metadata.namespace,
            selector: Some(&raw.spec.selector)
                .filter(|selector| !selector.is_null())
                .and_then(|selector| LabelSelector::from_value(selector).ok()),
            disruptions_allowed: raw.status.disruptions_allowed,
            disrupted: raw.status.disrupted_pods.into_keys().collect(),
        }
    }
}
