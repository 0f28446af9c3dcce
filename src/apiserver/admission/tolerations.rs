//! DefaultTolerationSeconds and TaintNodesByCondition: how long pods stay on a node that is gone, and new nodes' first taint.

use apimachinery::{Status, Value};
use async_trait::async_trait;
use serde_json::json;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{items, object_mut, text};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

pub struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_core("pods")
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        let options = attributes.options();
        for (key, seconds) in [
            (NOT_READY, options.default_not_ready_toleration_seconds),
            (UNREACHABLE, options.default_unreachable_toleration_seconds),
        ] {
            if !items(object, &["spec", "tolerations"])
                .iter()
                .any(|toleration| tolerates(toleration, key))
            {
                let list = object_mut(object, &["spec"])
                    .entry("tolerations")
                    .or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    list.push(json!({
                        "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
                    }));
                }
            }
        }
        Ok(())
    }
}

/// Whether a toleration says anything about `key:NoExecute`.
fn tolerates(toleration: &Value, key: &str) -> bool {
    let have = text(toleration, &["key"]);
    let effect = text(toleration, &["effect"]);
    (have == key || have.is_empty()) && (effect == "NoExecute" || effect.is_empty())
}

pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_core("nodes") && attributes.operation == Operation::Create
    }

    async fn admit(&self, _attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        let tainted = items(object, &["spec", "taints"]).iter().any(|taint| {
            text(taint, &["key"]) == NOT_READY && text(taint, &["effect"]) == "NoSchedule"
        });
        if !tainted {
            let list = object_mut(object, &["spec"])
                .entry("taints")
                .or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_key_or_effect_tolerates_everything() {
        for (toleration, expect) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": NOT_READY, "operator": "Exists"}), true),
            (json!({"key": NOT_READY, "effect": "NoSchedule"}), false),
            (json!({"key": "other"}), false),
        ] {
            assert_eq!(tolerates(&toleration, NOT_READY), expect, "{toleration}");
        }
    }
}
