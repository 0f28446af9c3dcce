//! Custom resources in OpenAPI: their definitions' own schemas, words and all, in place of what the tables say.

use serde_json::{Map, Value, json};

use crate::served::Served;

/// What version 2 cannot say (`schemaconversion`).
const NOT_IN_V2: [&str; 7] = [
    "allOf",
    "anyOf",
    "default",
    "not",
    "nullable",
    "oneOf",
    "x-kubernetes-validations",
];
const KEEPS_UNKNOWN: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const KINDS: &str = "x-kubernetes-group-version-kind";
/// What every object has.
const OF_ALL: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Puts the schemas of custom versions into a document's definitions that name them.
pub fn publish(definitions: &mut Value, served: &Served, v2: bool) {
    let Some(definitions) = definitions.as_object_mut() else {
        return;
    };
    for version in served.custom() {
        let name = version.resource.schema.name.as_ref();
        let Some(made) = definitions.get(name) else {
            continue;
        };
        let whole = whole(made, version.schema.raw(), v2);
        let inner = format!("{name}.");
        definitions.retain(|key, _| !key.starts_with(&inner));
        definitions.insert(name.to_owned(), whole);
    }
}

/// A schema with what every object has, and with its kind (`builder.buildKubeNative`).
fn whole(made: &Value, raw: &Value, v2: bool) -> Value {
    let mut schema = raw.clone();
    // Of a kind that keeps what it does not know, clients of version 2 would refuse what it does not name.
    if v2 && is(&schema, KEEPS_UNKNOWN) {
        schema = json!({});
    } else {
        if v2 {
            strip(&mut schema);
        }
        embed(&mut schema, made, v2);
        add_to_object(&mut schema, made);
    }
    let Some(map) = schema.as_object_mut() else {
        return made.clone();
    };
    map.insert("type".to_owned(), "object".into());
    if let Some(kind) = made.get(KINDS) {
        map.insert(KINDS.to_owned(), kind.clone());
    }
    schema
}

fn is(schema: &Value, word: &str) -> bool {
    schema.get(word) == Some(&Value::Bool(true))
}

/// Gives a schema the fields of every object, as `made` has them.
fn add_to_object(schema: &mut Value, made: &Value) {
    let Some(map) = schema.as_object_mut() else {
        return;
    };
    let properties = map.entry("properties").or_insert_with(|| Map::new().into());
    for field in OF_ALL {
        if let (Some(properties), Some(shape)) = (
            properties.as_object_mut(),
            made.pointer(&format!("/properties/{field}")),
        ) {
            properties.insert(field.to_owned(), shape.clone());
        }
    }
}

/// The same for the objects within (`addEmbeddedProperties`).
fn embed(schema: &mut Value, made: &Value, v2: bool) {
    for_each_inner(schema, &mut |inner| {
        embed(inner, made, v2);
        if !is(inner, EMBEDDED) || (v2 && is(inner, KEEPS_UNKNOWN)) {
            return;
        }
        add_to_object(inner, made);
        let Some(map) = inner.as_object_mut() else {
            return;
        };
        let required = map.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            for field in ["kind", "apiVersion"] {
                if !required.iter().any(|have| have == field) {
                    required.push(field.into());
                }
            }
        }
    });
}

/// Calls `each` with every schema right below one.
fn for_each_inner(schema: &mut Value, each: &mut dyn FnMut(&mut Value)) {
    let Some(map) = schema.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(&mut *each);
    }
    for word in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(word)
            && inner.is_object()
        {
            each(inner);
        }
    }
}

/// Takes away what version 2 cannot say, and what its clients would take amiss (`ToStructuralOpenAPIV2`).
fn strip(schema: &mut Value) {
    let nullable: Vec<String> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, inner)| is(inner, "nullable"))
        .map(|(name, _)| name.clone())
        .collect();
    let (was_null, keeps) = (is(schema, "nullable"), is(schema, KEEPS_UNKNOWN));
    let Some(map) = schema.as_object_mut() else {
        return;
    };
    map.retain(|word, _| !NOT_IN_V2.contains(&word.as_str()));
    if was_null || keeps {
        map.remove("items");
        map.remove("properties");
    }
    let untyped = match map.get("type").and_then(Value::as_str) {
        Some("array") => !map.contains_key("items"),
        Some("object") => keeps,
        _ => false,
    };
    if was_null || untyped {
        map.remove("type");
    }
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.retain(|name| !nullable.iter().any(|null| name == null.as_str()));
        if required.is_empty() {
            map.remove("required");
        }
    }
    for_each_inner(schema, &mut strip);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_schema_has_its_words_and_what_every_object_has() {
        let made = json!({"type": "object", "properties": {"kind": {"type": "string"}, "spec": {"$ref": "x"}},
            "x-kubernetes-group-version-kind": [{"kind": "W"}]});
        let raw = json!({"description": "A widget.", "type": "object", "properties": {"spec": {"type": "object", "description": "Its spec.",
            "nullable": true, "default": {}}}});
        assert_eq!(
            whole(&made, &raw, false),
            json!({"description": "A widget.", "type": "object", "properties": {"kind": {"type": "string"},
                "spec": {"type": "object", "description": "Its spec.", "nullable": true, "default": {}}},
                "x-kubernetes-group-version-kind": [{"kind": "W"}]})
        );
        assert_eq!(
            whole(&made, &raw, true)["properties"]["spec"],
            json!({"description": "Its spec."})
        );
    }

    #[track_caller]
    fn check(raw: Value, v2: bool, expect: Value) {
        let made = json!({"properties": {"kind": {"type": "string"}}});
        assert_eq!(whole(&made, &raw, v2), expect);
    }

    #[test]
    fn what_keeps_unknown_fields_names_none_in_version_two() {
        let raw = json!({"type": "object", "description": "d", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
        check(raw.clone(), true, json!({"type": "object"}));
        let mut complete = raw.clone();
        complete["properties"]["kind"] = json!({"type": "string"});
        check(raw.clone(), false, complete);
        check(
            json!({"type": "object", "properties": {"spec": raw}}),
            true,
            json!({"type": "object", "properties": {"kind": {"type": "string"},
                "spec": {"description": "d", "x-kubernetes-preserve-unknown-fields": true}}}),
        );
    }

    #[test]
    fn version_two_has_no_nulls_and_fields_may_be_called_as_its_words() {
        check(
            json!({"type": "object", "required": ["n", "not"], "properties": {
                "n": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}},
                "not": {"type": "string", "not": {}, "default": "d"}, "list": {"type": "array", "items": {"type": "string", "allOf": []}}}}),
            true,
            json!({"type": "object", "required": ["not"], "properties": {"kind": {"type": "string"}, "n": {},
                "not": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}}),
        );
    }

    #[test]
    fn objects_within_have_what_every_object_has() {
        check(
            json!({"type": "object", "properties": {"inner": {"type": "object", "x-kubernetes-embedded-resource": true}}}),
            false,
            json!({"type": "object", "properties": {"kind": {"type": "string"}, "inner": {"type": "object",
                "x-kubernetes-embedded-resource": true, "required": ["kind", "apiVersion"], "properties": {"kind": {"type": "string"}}}}}),
        );
    }
}
