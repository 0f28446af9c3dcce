//! Reading and filling in objects held as JSON trees: short names for what every kind's rules do all the time.
//!
//! Absent, `null` and Go's zero value are the same thing to upstream's defaults; so they are here.

use apimachinery::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a path of members; `Null` where there is none.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    let mut found = value;
    for step in path {
        match found.get(step) {
            Some(next) => found = next,
            None => return &NULL,
        }
    }
    found
}

/// The text at a path, or "".
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or("")
}

/// The number at a path.
pub fn int(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path).as_i64()
}

/// Whether `true` stands at a path.
pub fn flag(value: &Value, path: &[&str]) -> bool {
    at(value, path).as_bool().unwrap_or(false)
}

/// The list at a path, or an empty one.
pub fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The map at a path.
pub fn map<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Map<String, Value>> {
    at(value, path).as_object()
}

/// Whether something other than `null` stands at a path.
pub fn has(value: &Value, path: &[&str]) -> bool {
    !at(value, path).is_null()
}

/// The list at a path, to change; nothing is made when it is absent.
pub fn items_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    let mut found = value;
    for step in path {
        match found.get_mut(step) {
            Some(next) => found = next,
            None => return &mut [],
        }
    }
    found.as_array_mut().map_or(&mut [], Vec::as_mut_slice)
}

/// The value at a path, to change, when it is there and not `null`.
pub fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    let mut found = value;
    for step in path {
        found = found.get_mut(step)?;
    }
    (!found.is_null()).then_some(found)
}

/// The object at a path, made (with all on the way) where absent.
pub fn object_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut found = as_map(value);
    for step in path {
        found = as_map(found.entry(*step).or_insert(Value::Null));
    }
    found
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// Sets a member of an object; other values are left alone.
pub fn set(value: &mut Value, key: &str, to: impl Into<Value>) {
    if let Value::Object(map) = value {
        map.insert(key.to_owned(), to.into());
    }
}

/// Removes a member of an object.
pub fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut()?.remove(key)
}

/// Copies a member from `old`, or removes it where `old` has none.
pub fn restore(new: &mut Value, old: &Value, key: &str) {
    let Value::Object(map) = new else { return };
    match old.get(key) {
        Some(value) => {
            map.insert(key.to_owned(), value.clone());
        }
        None => {
            map.remove(key);
        }
    }
}

/// Sets a text member that is absent or empty.
pub fn default_text(value: &mut Value, key: &str, to: &str) {
    let Value::Object(map) = value else { return };
    match map.get(key) {
        Some(Value::String(text)) if !text.is_empty() => {}
        Some(Value::Null) | None | Some(Value::String(_)) => {
            map.insert(key.to_owned(), to.into());
        }
        _ => {}
    }
}

/// Sets a member that is absent (a pointer in Go: zero is a value).
pub fn default_value(value: &mut Value, key: &str, to: impl Into<Value>) {
    let Value::Object(map) = value else { return };
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), to.into());
    }
}

/// Sets a number that is absent or zero (not a pointer in Go).
pub fn default_number(value: &mut Value, key: &str, to: i64) {
    let Value::Object(map) = value else { return };
    if map
        .get(key)
        .is_none_or(|have| have.is_null() || have.as_i64() == Some(0))
    {
        map.insert(key.to_owned(), to.into());
    }
}

/// Equal, where an absent member, `null`, an empty list and an empty map are the same (`apiequality.Semantic`).
pub fn semantically_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.iter()
                .all(|(key, value)| semantically_equal(value, right.get(key).unwrap_or(&NULL)))
                && right
                    .iter()
                    .all(|(key, value)| left.contains_key(key) || is_empty(value))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| semantically_equal(left, right))
        }
        _ => left == right || (is_empty(left) && is_empty(right)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_and_empty_are_equal_but_values_are_not() {
        assert!(semantically_equal(&json!({"a": []}), &json!({"b": null})));
        assert!(semantically_equal(&json!({"a": {"b": {}}}), &json!({})));
        assert!(!semantically_equal(&json!({"a": [1]}), &json!({"a": [2]})));
        assert!(!semantically_equal(&json!({"a": 1}), &json!({})));
        assert!(!semantically_equal(&json!({}), &json!({"a": "x"})));
    }

    #[test]
    fn defaults_fill_gaps_only() {
        let mut value = json!({"a": "", "b": "x", "c": 0, "d": null});
        default_text(&mut value, "a", "1");
        default_text(&mut value, "b", "1");
        default_value(&mut value, "c", 7);
        default_number(&mut value, "d", 7);
        assert_eq!(value, json!({"a": "1", "b": "x", "c": 0, "d": 7}));
    }

    #[test]
    fn paths_that_lead_nowhere_read_as_empty() {
        let value = json!({"a": {"b": [1]}});
        assert_eq!(items(&value, &["a", "b"]).len(), 1);
        assert_eq!(items(&value, &["a", "c", "d"]).len(), 0);
        assert_eq!(text(&value, &["a", "b"]), "");
    }
}
