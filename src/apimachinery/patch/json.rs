//! Owns: JSON patch (RFC 6902) with the limits a server needs: operations, and bytes that `copy` may add.

use super::PatchError;
use crate::codec::MAX_DEPTH;
use serde_json::Value;

/// Most operations in one patch (handlers.maxJSONPatchOperations).
const MAX_OPERATIONS: usize = 10_000;
/// Most bytes all `copy` operations may add, as large as a body may be; a chain of copies would double each time.
const MAX_COPIED: usize = 3 << 20;
/// Most values all operations together may look at or shift, beyond those that the patch brings: ten thousand changes of a
/// list of five thousand.
const MAX_WORK: usize = 50_000_000;

/// Applies the operations in order.
///
/// # Errors
/// A malformed patch, too many operations, a path that is not there, a `test` that does not hold.
pub fn json_patch(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = patch.as_array().ok_or_else(|| {
        PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type jsonpatch.Patch",
            if patch.is_object() { "object" } else { "value" }
        ))
    })?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut spent = Spent::default();
    for operation in operations {
        apply(target, operation, &mut spent)?;
        if spent.work > MAX_WORK {
            return Err(PatchError::TooLarge(
                "the operations of the JSON patch take too much work".to_owned(),
            ));
        }
    }
    Ok(())
}

/// What the operations of a patch have cost so far.
#[derive(Default)]
struct Spent {
    /// Bytes added by `copy`.
    copied: usize,
    /// Values looked at or shifted.
    work: usize,
}

fn rejected(text: impl Into<String>) -> PatchError {
    PatchError::Rejected(text.into())
}

fn apply(target: &mut Value, operation: &Value, spent: &mut Spent) -> Result<(), PatchError> {
    let text = |field: &str| operation.get(field).and_then(Value::as_str);
    let path = text("path").ok_or_else(|| rejected("missing path"))?;
    let value = || {
        operation
            .get("value")
            .cloned()
            .ok_or_else(|| rejected("missing value"))
    };
    let from = || text("from").ok_or_else(|| rejected("missing from"));
    match text("op").unwrap_or("") {
        "add" => add(target, path, value()?, spent),
        "remove" => remove(target, path, spent).map(drop),
        "replace" => {
            *find_mut(target, path)? = value()?;
            Ok(())
        }
        "move" => {
            let from = from()?;
            if path.len() > from.len()
                && path.starts_with(from)
                && path.as_bytes()[from.len()] == b'/'
            {
                return Err(rejected("cannot move a value into itself"));
            }
            let value = remove(target, from, spent)?;
            add(target, path, value, spent)
        }
        "copy" => {
            let value = find(target, from()?)?;
            spent.copied += size(value);
            if spent.copied > MAX_COPIED {
                return Err(PatchError::TooLarge(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MAX_COPIED}",
                    spent.copied
                )));
            }
            let value = value.clone();
            add(target, path, value, spent)
        }
        "test" => {
            // A path that is not there equals null, as in evanphx/json-patch.
            let expected = operation.get("value").unwrap_or(&Value::Null);
            match find(target, path) {
                Ok(found) if same(found, expected) => Ok(()),
                Err(_) if expected.is_null() => Ok(()),
                _ => Err(PatchError::TestFailed(format!(
                    "testing value {path} failed"
                ))),
            }
        }
        other => Err(rejected(format!("Unexpected kind: {other}"))),
    }
}

/// About how many bytes a value takes as JSON.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            map.iter()
                .map(|(key, value)| key.len() + size(value) + 4)
                .sum::<usize>()
                + 2
        }
        _ => 8,
    }
}

/// Equality in which `1` and `1.0` are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Splits a pointer into the pointer of the parent and the last token, unescaped.
fn split(path: &str) -> Result<(&str, String), PatchError> {
    let (parent, token) = path
        .rsplit_once('/')
        .ok_or_else(|| rejected(format!("invalid path {path}")))?;
    Ok((parent, unescape(token)))
}

fn unescape(token: &str) -> String {
    if token.contains('~') {
        token.replace("~1", "/").replace("~0", "~")
    } else {
        token.to_owned()
    }
}

fn index(token: &str, length: usize) -> Option<usize> {
    if token.len() > 1 && token.starts_with('0') || token.starts_with('+') {
        return None;
    }
    token.parse().ok().filter(|index| *index < length)
}

fn missing(path: &str) -> PatchError {
    rejected(format!("doc is missing path: {path}: missing value"))
}

fn find<'a>(target: &'a Value, path: &str) -> Result<&'a Value, PatchError> {
    let mut at = target;
    for token in tokens(path)? {
        let token = unescape(token);
        at = match at {
            Value::Object(map) => map.get(&token),
            Value::Array(items) => index(&token, items.len()).map(|index| &items[index]),
            _ => None,
        }
        .ok_or_else(|| missing(path))?;
    }
    Ok(at)
}

fn find_mut<'a>(target: &'a mut Value, path: &str) -> Result<&'a mut Value, PatchError> {
    let mut at = target;
    for token in tokens(path)? {
        let token = unescape(token);
        at = match at {
            Value::Object(map) => map.get_mut(&token),
            Value::Array(items) => {
                index(&token, items.len()).and_then(|index| items.get_mut(index))
            }
            _ => None,
        }
        .ok_or_else(|| missing(path))?;
    }
    Ok(at)
}

fn tokens(path: &str) -> Result<impl Iterator<Item = &str>, PatchError> {
    if !path.is_empty() && !path.starts_with('/') {
        return Err(rejected(format!("invalid path {path}")));
    }
    Ok(path.split('/').skip(1))
}

/// How many levels a value nests; scalars are 0. Counts the values it looks at.
fn depth(value: &Value, work: &mut usize) -> usize {
    *work += 1;
    match value {
        Value::Array(items) => {
            1 + items
                .iter()
                .map(|item| depth(item, work))
                .max()
                .unwrap_or(0)
        }
        Value::Object(map) => {
            1 + map
                .values()
                .map(|item| depth(item, work))
                .max()
                .unwrap_or(0)
        }
        _ => 0,
    }
}

fn add(target: &mut Value, path: &str, value: Value, spent: &mut Spent) -> Result<(), PatchError> {
    // Decoders bound nesting; a chain of operations must not get past it.
    if path.matches('/').count() + depth(&value, &mut spent.work) > MAX_DEPTH {
        return Err(PatchError::TooLarge("exceeded max depth".to_owned()));
    }
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, token) = split(path)?;
    match find_mut(target, parent)? {
        Value::Object(map) => {
            map.insert(token, value);
            Ok(())
        }
        Value::Array(items) if token == "-" => {
            items.push(value);
            Ok(())
        }
        Value::Array(items) => {
            let at = index(&token, items.len() + 1)
                .ok_or_else(|| rejected(format!("invalid index {token}")))?;
            spent.work += items.len() - at;
            items.insert(at, value);
            Ok(())
        }
        _ => Err(missing(path)),
    }
}

fn remove(target: &mut Value, path: &str, spent: &mut Spent) -> Result<Value, PatchError> {
    if path.is_empty() {
        return Ok(std::mem::take(target));
    }
    let (parent, token) = split(path)?;
    match find_mut(target, parent)? {
        Value::Object(map) => map.remove(&token).ok_or_else(|| missing(path)),
        Value::Array(items) => {
            let at = index(&token, items.len()).ok_or_else(|| missing(path))?;
            spent.work += items.len() - at;
            Ok(items.remove(at))
        }
        _ => Err(missing(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(mut target: Value, patch: Value, expected: Value) {
        json_patch(&mut target, &patch).expect("applies");
        assert_eq!(target, expected);
    }

    #[track_caller]
    fn check_rejected(mut target: Value, patch: Value) {
        assert!(json_patch(&mut target, &patch).is_err(), "{patch}");
    }

    #[test]
    fn each_operation_works() {
        check(
            json!({"a": [1]}),
            json!([{"op": "add", "path": "/a/-", "value": 2}]),
            json!({"a": [1, 2]}),
        );
        check(
            json!({"a": [1]}),
            json!([{"op": "add", "path": "/a/0", "value": 2}]),
            json!({"a": [2, 1]}),
        );
        check(
            json!({}),
            json!([{"op": "add", "path": "/x~1y", "value": 2}]),
            json!({"x/y": 2}),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "remove", "path": "/a"}]),
            json!({}),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "replace", "path": "/a", "value": null}]),
            json!({"a": null}),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "move", "from": "/a", "path": "/b"}]),
            json!({"b": 1}),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "copy", "from": "/a", "path": "/b"}]),
            json!({"a": 1, "b": 1}),
        );
        check(
            json!({"a": 1}),
            json!([{"op": "test", "path": "/a", "value": 1.0}]),
            json!({"a": 1}),
        );
        check(
            json!({}),
            json!([{"op": "test", "path": "/a", "value": null}]),
            json!({}),
        );
        check(
            json!(1),
            json!([{"op": "replace", "path": "", "value": 2}]),
            json!(2),
        );
    }

    #[test]
    fn what_does_not_fit_is_rejected() {
        check_rejected(json!({}), json!([{"op": "remove", "path": "/a"}]));
        check_rejected(
            json!({}),
            json!([{"op": "replace", "path": "/a", "value": 1}]),
        );
        check_rejected(
            json!({}),
            json!([{"op": "add", "path": "/a/b", "value": 1}]),
        );
        check_rejected(
            json!({"a": [1]}),
            json!([{"op": "add", "path": "/a/5", "value": 1}]),
        );
        check_rejected(
            json!({"a": [1]}),
            json!([{"op": "remove", "path": "/a/01"}]),
        );
        check_rejected(
            json!({"a": 1}),
            json!([{"op": "test", "path": "/a", "value": 2}]),
        );
        check_rejected(
            json!({"a": {}}),
            json!([{"op": "move", "from": "/a", "path": "/a/b"}]),
        );
        check_rejected(json!({}), json!([{"op": "jump", "path": "/a"}]));
        check_rejected(json!({}), json!({}));
        check_rejected(json!({}), json!([{"op": "add", "path": "a", "value": 1}]));
    }

    #[test]
    fn copies_and_operations_are_bounded() {
        let doubling: Vec<Value> = (0..64)
            .map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"}))
            .collect();
        let error = json_patch(&mut json!({"a": ["0123456789"]}), &Value::Array(doubling))
            .expect_err("a bomb");
        assert!(matches!(error, PatchError::TooLarge(_)));
        let nesting: Vec<Value> = (0..9000)
            .map(|_| json!({"op": "copy", "from": "", "path": "/a"}))
            .collect();
        let error = json_patch(&mut json!({}), &Value::Array(nesting)).expect_err("too deep");
        assert_eq!(error, PatchError::TooLarge("exceeded max depth".to_owned()));
        let shifts = vec![json!({"op": "remove", "path": "/a/0"}); 9000];
        let error = json_patch(&mut json!({"a": vec![0; 100_000]}), &Value::Array(shifts))
            .expect_err("too much work");
        assert!(matches!(error, PatchError::TooLarge(_)));
        let many = vec![json!({"op": "test", "path": "", "value": {}}); MAX_OPERATIONS + 1];
        assert!(matches!(
            json_patch(&mut json!({}), &Value::Array(many)),
            Err(PatchError::TooLarge(_))
        ));
    }
}
