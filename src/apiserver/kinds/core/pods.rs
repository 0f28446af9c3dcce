//! Pods.

use apimachinery::Value;
use serde_json::json;

use super::super::pod_spec::{defaults, qos};
use super::super::tree::set;
use crate::registry::strategy::{Change, Strategy};

pub struct Pods;

impl Strategy for Pods {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "pods")
    }

    fn default(&self, object: &mut Value) {
        defaults::pod(object);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        let class = qos::class(object);
        set(
            object,
            "status",
            json!({"phase": "Pending", "qosClass": class}),
        );
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "spec.hostNetwork" {
            "false"
        } else {
            ""
        }
    }
}
