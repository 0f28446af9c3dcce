//! Owns: making a patch that turns one object into another: a merge patch, or a strategic one that names list items by
//! their key (strategicpatch.CreateTwoWayMergePatch).

use super::strategic::{
    DELETE_FROM, DIRECTIVE, Positions, RETAIN_KEYS, SET_ORDER, Shape, Strategy,
};
use crate::schema::Message;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// The merge patch that turns `from` into `to`.
pub fn create_merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return to.clone();
    };
    let mut patch = Object::new();
    for (name, new) in to {
        match from.get(name) {
            Some(old) if old == new => {}
            Some(old @ Value::Object(_)) if new.is_object() => {
                patch.insert(name.clone(), create_merge_patch(old, new));
            }
            _ => {
                patch.insert(name.clone(), new.clone());
            }
        }
    }
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// The strategic merge patch that turns `from` into `to`; empty when they are equal.
pub fn create_strategic_patch(from: &Value, to: &Value, message: &Message) -> Value {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            Value::Object(diff_map(from, to, &Shape::Message(message), false))
        }
        _ => to.clone(),
    }
}

fn diff_map(from: &Object, to: &Object, shape: &Shape<'_>, retain: bool) -> Object {
    let mut patch = Object::new();
    for (name, new) in to {
        let Some(old) = from.get(name) else {
            patch.insert(name.clone(), new.clone());
            continue;
        };
        if old == new {
            continue;
        }
        let strategy = shape.field(name);
        match (old, new) {
            (Value::Object(old), Value::Object(new)) if !strategy.replace => {
                let inner = diff_map(old, new, &strategy.shape, strategy.retain_keys);
                if !inner.is_empty() {
                    patch.insert(name.clone(), Value::Object(inner));
                }
            }
            (Value::Array(old), Value::Array(new))
                if strategy.merge && mergeable(old, new, &strategy) =>
            {
                diff_list(&mut patch, name, old, new, &strategy);
            }
            _ => {
                patch.insert(name.clone(), new.clone());
            }
        }
    }
    let removed = from.keys().filter(|name| !to.contains_key(*name));
    patch.extend(removed.map(|name| (name.clone(), Value::Null)));
    if retain && !patch.is_empty() {
        patch.insert(
            RETAIN_KEYS.to_owned(),
            to.keys().map(String::as_str).collect::<Vec<_>>().into(),
        );
    }
    patch
}

/// Whether items can be told apart: all have the key, or all are scalars, and none is there twice.
fn mergeable(old: &[Value], new: &[Value], strategy: &Strategy<'_>) -> bool {
    let distinct = |items: &[Value]| Positions::of(items, strategy.key).len() == items.len();
    let fit = |item: &Value| match strategy.key {
        Some(key) => item.get(key).is_some(),
        None => !item.is_object() && !item.is_array(),
    };
    old.iter().chain(new).all(fit) && distinct(old) && distinct(new)
}

fn diff_list(
    patch: &mut Object,
    name: &str,
    old: &[Value],
    new: &[Value],
    strategy: &Strategy<'_>,
) {
    let (old_positions, new_positions) = (
        Positions::of(old, strategy.key),
        Positions::of(new, strategy.key),
    );
    let mut changes = Vec::new();
    for item in new {
        match old_positions.get(item).map(|at| &old[at]) {
            None => changes.push(item.clone()),
            Some(before) if before == item => {}
            Some(before) => {
                if let (Value::Object(before), Value::Object(after), Some(key)) =
                    (before, item, strategy.key)
                {
                    let mut inner = diff_map(before, after, &strategy.shape, false);
                    inner.insert(key.to_owned(), after[key].clone());
                    changes.push(Value::Object(inner));
                }
            }
        }
    }
    let removed: Vec<&Value> = old
        .iter()
        .filter(|item| new_positions.get(item).is_none())
        .collect();
    match strategy.key {
        Some(key) => {
            changes.extend(
                removed
                    .iter()
                    .map(|item| json!({DIRECTIVE: "delete", key: item[key]})),
            );
            let order: Vec<Value> = new.iter().map(|item| json!({key: item[key]})).collect();
            patch.insert(format!("{SET_ORDER}{name}"), Value::Array(order));
        }
        None => {
            if !removed.is_empty() {
                let removed: Vec<Value> = removed.into_iter().cloned().collect();
                patch.insert(format!("{DELETE_FROM}{name}"), Value::Array(removed));
            }
            patch.insert(format!("{SET_ORDER}{name}"), Value::Array(new.to_vec()));
        }
    }
    if !changes.is_empty() {
        patch.insert(name.to_owned(), Value::Array(changes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::strategic::tests::ROOT;
    use super::super::{merge_patch, strategic_merge};
    use super::*;

    #[track_caller]
    fn check(from: Value, to: Value) {
        let patch = create_strategic_patch(&from, &to, &ROOT);
        assert_eq!(
            strategic_merge(from.clone(), patch.clone(), &ROOT).expect("applies"),
            to,
            "{patch}"
        );
        assert_eq!(from == to, patch == json!({}), "{patch}");
        let patch = create_merge_patch(&from, &to);
        let mut merged = from;
        merge_patch(&mut merged, patch);
        assert_eq!(merged, to);
    }

    #[test]
    fn a_diff_turns_one_object_into_the_other() {
        let objects = [
            json!({}),
            json!({"labels": {"a": "1"}, "words": ["a", "b"]}),
            json!({"labels": {"b": "1"}, "words": ["c", "b"], "single": {"name": "x"}}),
            json!({"items": [{"name": "a", "value": "1"}, {"name": "b", "nested": [{"name": "c"}]}]}),
            json!({"items": [{"name": "b", "nested": [{"name": "d"}, {"name": "c", "value": "1"}]}, {"name": "a"}]}),
            json!({"items": [{"name": "c"}, {"name": "a", "words": ["x"]}], "retained": {"name": "a"}}),
            json!({"items": [{"name": "a", "words": []}], "retained": {"value": "a"}, "replaced": {"name": "1"}}),
            json!({"atomic": [{"name": "a"}], "words": ["b", "a"], "replaced": {"value": "1"}}),
        ];
        for from in &objects {
            for to in &objects {
                check(from.clone(), to.clone());
            }
        }
    }
}
