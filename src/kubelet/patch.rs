//! What to send so that the API has a new status of a pod or node: a strategic
//! merge patch of just the fields that differ. Lists merged by key get their
//! deletions and their order spelled out, all else is replaced. Pure.

use serde_json::{Map, Value, json};

/// Lists of PodStatus and NodeStatus that are merged by a key, and the key.
const MERGED_LISTS: [(&str, &str); 4] = [
    ("conditions", "type"),
    ("podIPs", "ip"),
    ("hostIPs", "ip"),
    ("addresses", "type"),
];

/// The patch from `old` to `new` for the pod `uid`; `None` when they are equal.
/// The uid makes a patch of another pod of the same name fail.
pub fn pod_status(uid: &str, old: &Value, new: &Value) -> Option<Value> {
    let changes = changes(old, new)?;
    Some(json!({"metadata": {"uid": uid}, "status": changes}))
}

/// The patch from `old` to `new` for a node; `None` when they are equal.
pub fn node_status(old: &Value, new: &Value) -> Option<Value> {
    Some(json!({"status": changes(old, new)?}))
}

fn changes(old: &Value, new: &Value) -> Option<Map<String, Value>> {
    let empty = Map::new();
    let old = old.as_object().unwrap_or(&empty);
    let new = new.as_object().unwrap_or(&empty);
    let mut changes = Map::new();
    for (key, value) in new {
        let before = old.get(key);
        if before == Some(value) {
            continue;
        }
        match MERGED_LISTS.iter().find(|(list, _)| list == key) {
            Some((_, merge_key)) => merge_list(key, merge_key, before, value, &mut changes),
            None => drop(changes.insert(key.clone(), value.clone())),
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then_some(changes)
}

fn merge_list(
    name: &str,
    key: &str,
    before: Option<&Value>,
    after: &Value,
    changes: &mut Map<String, Value>,
) {
    let entries =
        |list: Option<&Value>| list.and_then(Value::as_array).cloned().unwrap_or_default();
    let (before, after) = (entries(before), entries(Some(after)));
    let find = |list: &[Value], wanted: &Value| {
        list.iter()
            .find(|entry| entry.get(key) == wanted.get(key))
            .cloned()
    };
    let mut patch = Vec::new();
    for entry in &after {
        match find(&before, entry) {
            None => patch.push(entry.clone()),
            Some(old) if old != *entry => patch.push(with_removals(&old, entry)),
            Some(_) => {}
        }
    }
    for entry in before.iter().filter(|entry| find(&after, entry).is_none()) {
        patch.push(json!({key: entry.get(key), "$patch": "delete"}));
    }
    let order: Vec<_> = after.iter().map(|entry| ordered(key, entry)).collect();
    changes.insert(name.to_owned(), Value::Array(patch));
    changes.insert(format!("$setElementOrder/{name}"), Value::Array(order));
}

fn ordered(key: &str, entry: &Value) -> Value {
    json!({key: entry.get(key)})
}

/// The entry, with null for each field that it no longer has.
fn with_removals(old: &Value, new: &Value) -> Value {
    let mut patch = new.clone();
    if let (Some(patch), Some(old)) = (patch.as_object_mut(), old.as_object()) {
        for field in old.keys() {
            patch.entry(field.clone()).or_insert(Value::Null);
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(old: Value, new: Value, expected: Value) {
        let patch = pod_status("u", &old, &new).expect("they differ");
        assert_eq!(patch["status"], expected);
        assert_eq!(patch["metadata"], json!({"uid": "u"}));
    }

    #[test]
    fn equal_statuses_send_nothing() {
        let status = json!({"phase": "Running"});
        assert_eq!(pod_status("u", &status, &status.clone()), None);
    }

    #[test]
    fn fields_are_set_and_removed() {
        check(
            json!({"phase": "Pending", "message": "x"}),
            json!({"phase": "Running", "podIP": "1.2.3.4"}),
            json!({"phase": "Running", "podIP": "1.2.3.4", "message": null}),
        );
    }

    #[test]
    fn a_condition_is_merged_by_type_and_loses_what_it_no_longer_has() {
        check(
            json!({"conditions": [
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
                {"type": "PodScheduled", "status": "True"},
            ]}),
            json!({"conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True"},
            ]}),
            json!({
                "conditions": [{"type": "Ready", "status": "True", "reason": null}],
                "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "PodScheduled"}],
            }),
        );
    }

    #[test]
    fn an_address_that_went_is_deleted() {
        check(
            json!({"podIPs": [{"ip": "10.0.0.1"}]}),
            json!({"podIPs": [{"ip": "10.0.0.2"}]}),
            json!({
                "podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1", "$patch": "delete"}],
                "$setElementOrder/podIPs": [{"ip": "10.0.0.2"}],
            }),
        );
    }

    #[test]
    fn container_statuses_are_replaced_as_a_whole() {
        check(
            json!({"containerStatuses": [{"name": "a"}, {"name": "b"}]}),
            json!({"containerStatuses": [{"name": "a", "ready": true}, {"name": "b"}]}),
            json!({"containerStatuses": [{"name": "a", "ready": true}, {"name": "b"}]}),
        );
    }
}
