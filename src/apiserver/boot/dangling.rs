//! Whether a flow schema's priority level is there: the `Dangling` condition of each, as upstream's
//! `api-priority-and-fairness-config-consumer` writes it.

use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;

use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{self, Write};
use apimachinery::{Status, Value, meta, time};
use serde_json::json;

use crate::kinds::tree::{items, text};
use crate::registry::Registry;
use crate::registry::write::{compares, puts};
use crate::registry::{codec, kind::Kind};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
const DANGLING: &str = "Dangling";

/// Tries of one write that others come before.
const MAX_TRIES: usize = 8;
/// Pause before a pass that failed is made again.
const RETRY: Duration = Duration::from_secs(1);

/// Follows schemas and levels until the registry goes away.
pub async fn run(registry: Weak<Registry>) {
    loop {
        let Some(strong) = registry.upgrade() else {
            return;
        };
        let (Some(mut schemas), Some(mut levels)) = (
            strong.changes(GROUP, SCHEMAS),
            strong.changes(GROUP, LEVELS),
        ) else {
            return;
        };
        let done = sync(&strong).await;
        drop(strong);
        if let Err(error) = done {
            tracing::warn!(%error, "the conditions of flow schemas cannot be written yet");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        let changed = tokio::select! {
            changed = schemas.changed() => changed,
            changed = levels.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn sync(registry: &Registry) -> Result<(), Status> {
    let Some(kind) = registry.kind(GROUP, SCHEMAS) else {
        return Ok(());
    };
    let levels = registry.cached_values(GROUP, LEVELS).await?;
    let names: HashSet<&str> = levels.iter().map(meta::name).collect();
    for schema in registry.cached_values(GROUP, SCHEMAS).await?.iter() {
        let name = meta::name(schema);
        for _ in 0..MAX_TRIES {
            if written(registry, &kind, name, &names).await? {
                break;
            }
        }
    }
    Ok(())
}

/// Whether the stored schema says what is so, now or before.
async fn written(
    registry: &Registry,
    kind: &Kind,
    name: &str,
    levels: &HashSet<&str>,
) -> Result<bool, Status> {
    let key = kind.key("", name);
    let Some(kv) = registry.read_raw(&key).await? else {
        return Ok(true);
    };
    let stored = registry.decode_raw(kind, &kv)?;
    let Some(wanted) = condition(&stored, levels, &time::now_text()) else {
        return Ok(true);
    };
    let version = meta::api_version(&stored).to_owned();
    let config = json!({"apiVersion": version, "kind": meta::kind(&stored), "metadata": {"name": name},
        "status": {"conditions": [wanted]}});
    let reset = FieldSet::new();
    let write = Write {
        manager: MANAGER,
        api_version: &version,
        subresource: "status",
        now: &time::now_text(),
        message: kind.storage.schema,
        reset: &reset,
    };
    let object = managed_fields::apply(&stored, &config, &write, true)?;
    let value = codec::encode_object(&object, true);
    let txn = store::Txn {
        compare: compares(&key, kv.mod_revision, Vec::new()),
        success: puts(&key, &value, kv.lease, Vec::new()),
        failure: Vec::new(),
    };
    registry.store_txn(txn).await
}

/// The condition a schema ought to have; none when it has it.
fn condition(schema: &Value, levels: &HashSet<&str>, now: &str) -> Option<Value> {
    let level = text(schema, &["spec", "priorityLevelConfiguration", "name"]);
    let subject =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = if levels.contains(level) {
        ("False", "Found", format!("{subject} and it exists"))
    } else {
        (
            "True",
            "NotFound",
            format!("{subject} but there is no such object"),
        )
    };
    let have = items(schema, &["status", "conditions"])
        .iter()
        .find(|condition| text(condition, &["type"]) == DANGLING);
    let same = |name: &str, wanted: &str| have.is_some_and(|have| text(have, &[name]) == wanted);
    if same("status", status) && same("reason", reason) && same("message", &message) {
        return None;
    }
    let since = have
        .filter(|_| same("status", status))
        .map_or(now, |have| text(have, &["lastTransitionTime"]));
    Some(
        json!({"type": DANGLING, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_says_whether_the_level_is_there() {
        let mut schema = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}}});
        let (none, one) = (HashSet::new(), HashSet::from(["l"]));
        let dangling = condition(&schema, &none, "t1").expect("a condition");
        assert_eq!(
            dangling,
            json!({"type": "Dangling", "status": "True", "reason": "NotFound", "lastTransitionTime": "t1",
            "message": "This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object"})
        );
        schema["status"] = json!({"conditions": [dangling]});
        assert_eq!(condition(&schema, &none, "t2"), None);
        let found = condition(&schema, &one, "t2").expect("a condition");
        assert_eq!(
            (&found["reason"], &found["lastTransitionTime"]),
            (&json!("Found"), &json!("t2"))
        );
        schema["status"] = json!({"conditions": [found]});
        assert_eq!(condition(&schema, &one, "t3"), None);
    }
}
