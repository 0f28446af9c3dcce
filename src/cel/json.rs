//! From values of expressions back to JSON: what a mutation's expression made becomes a patch.

use apimachinery::{Map, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::value::Val;

/// A value as JSON.
///
/// # Errors
/// A value that JSON has no form for: a type, a check, a key that is no text.
pub fn to_json(value: &Val<'_>) -> Result<Value, String> {
    Ok(match value {
        Val::Null | Val::Optional(None) => Value::Null,
        Val::Bool(flag) => (*flag).into(),
        Val::Int(number) => (*number).into(),
        Val::Uint(number) => (*number).into(),
        Val::Double(number) => double(*number)?,
        Val::Text(text) => text.as_ref().into(),
        Val::Bytes(bytes) => STANDARD.encode(bytes.as_slice()).into(),
        Val::JsonList(list) => Value::Array(list.to_vec()),
        Val::JsonMap(map) => Value::Object((*map).clone()),
        Val::List(list) => {
            let items: Result<Vec<Value>, String> = list.iter().map(to_json).collect();
            Value::Array(items?)
        }
        Val::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries.iter() {
                let Val::Text(key) = key else {
                    return Err(format!(
                        "map key {:?} is of type {}, not string",
                        key.show(),
                        key.type_name()
                    ));
                };
                map.insert(key.to_string(), to_json(value)?);
            }
            Value::Object(map)
        }
        Val::Object(object) => {
            let mut map = Map::new();
            for (field, value) in &object.fields {
                let value = to_json(value)
                    .map_err(|why| format!("fail to convert field {field:?}: {why}"))?;
                map.insert(field.clone(), value);
            }
            Value::Object(map)
        }
        Val::Optional(Some(inner)) => to_json(inner)?,
        Val::Duration(_) | Val::Timestamp(_) | Val::Quantity(_) | Val::Address(_) => {
            value.show().into()
        }
        Val::Range(_, _) | Val::Url(_) => value.show().into(),
        Val::Type(_) | Val::Check(_) | Val::Decision(_) | Val::Format(_) | Val::Version(_) => {
            return Err(format!("unable to convert {} to JSON", value.type_name()));
        }
    })
}

/// A number; whole ones are written without a point, as Go does.
fn double(number: f64) -> Result<Value, String> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        return Ok((number as i64).into());
    }
    serde_json::Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| format!("json: unsupported value: {number}"))
}

/// What is wrong with the types of the objects in a value: each must be called by its path
/// (`CheckTypeNamesMatchFieldPathNames`).
///
/// # Errors
/// Every mismatch, a line each.
pub fn check_type_names(value: &Val<'_>, root: &str) -> Result<(), String> {
    let mut errors = Vec::new();
    names(value, root, &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    Err(errors.join("\n"))
}

fn names(value: &Val<'_>, path: &str, errors: &mut Vec<String>) {
    match value {
        Val::Object(object) => {
            if object.name != path {
                errors.push(format!(
                    "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                    object.name
                ));
            }
            for (field, value) in &object.fields {
                names(value, &format!("{path}.{field}"), errors);
            }
        }
        Val::List(items) => {
            for item in items.iter() {
                names(item, path, errors);
            }
        }
        Val::Map(entries) => {
            for (_, value) in entries.iter() {
                names(value, path, errors);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Program, Scope};
    use serde_json::json;

    #[track_caller]
    fn check(text: &str, expect: Value) {
        let object = json!({"spec": {"replicas": 2, "list": [1], "none": null}});
        let scope = Scope::new(&[("object", crate::json(&object))]);
        let value = Program::parse(text)
            .and_then(|program| program.evaluate(&scope).and_then(|value| to_json(&value)));
        assert_eq!(value, Ok(expect), "{text}");
    }

    #[test]
    fn objects_lists_and_maps_become_json() {
        check(
            "Object{spec: Object.spec{replicas: object.spec.replicas + 1, list: object.spec.list}}",
            json!({"spec": {"replicas": 3, "list": [1]}}),
        );
        check(
            "Object{metadata: Object.metadata{labels: {'a': 'b'}, ?annotations: object.?none}}",
            json!({"metadata": {"labels": {"a": "b"}}}),
        );
        check(
            "[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('x/y~z'), value: 1.5}]",
            json!([{"op": "add", "path": "/a/x~1y~0z", "value": 1.5}]),
        );
        check("[?object.?spec, ?object.?none].size()", json!(1));
        check("{?'a': object.?none, 'b': 2.0}", json!({"b": 2}));
        check("duration('90s')", json!("1m30s"));
    }

    #[test]
    fn objects_are_called_by_their_paths() {
        let wrong = |text: &str| {
            let scope = Scope::new(&[]);
            let program = Program::parse(text).expect("parses");
            let value = program.evaluate(&scope).expect("evaluates");
            check_type_names(&value, "Object").err().unwrap_or_default()
        };
        assert_eq!(wrong("Object{spec: Object.spec{a: [Object.spec.a{}]}}"), "");
        assert_eq!(
            wrong("Object{spec: Object.other{}}"),
            "unexpected type name \"Object.other\", expected \"Object.spec\", which matches field name path from root Object type"
        );
    }

    #[test]
    fn unknown_types_and_fields_of_patches_are_refused() {
        for (text, expect) in [
            ("Foo{}", "unknown type: Foo"),
            ("JSONPatch{no: 1}", "unexpected JSONPatchType field: no"),
            (
                "JSONPatch{op: 1}",
                "unexpected type int for JSONPatchType 'op' field",
            ),
        ] {
            let program = Program::parse(text).expect("parses");
            let why = program.evaluate(&Scope::new(&[])).expect_err("is refused");
            assert_eq!(why, expect);
        }
    }
}
