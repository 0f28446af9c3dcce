//! Custom resources in OpenAPI: their definitions' own schemas, words and all, in place of what the tables say.

use serde_json::{Map, Value};

use crate::served::Served;

/// What version 2 cannot say (`schemaconversion`).
const NOT_IN_V2: [&str; 6] = [
    "anyOf",
    "default",
    "not",
    "nullable",
    "oneOf",
    "x-kubernetes-validations",
];

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

/// A schema with what every object has, and with its kind.
fn whole(made: &Value, raw: &Value, v2: bool) -> Value {
    let mut schema = raw.clone();
    if v2 {
        strip(&mut schema);
    }
    let Some(map) = schema.as_object_mut() else {
        return made.clone();
    };
    map.insert("type".to_owned(), "object".into());
    let properties = map.entry("properties").or_insert_with(|| Map::new().into());
    for field in ["apiVersion", "kind", "metadata"] {
        if let (Some(properties), Some(shape)) = (
            properties.as_object_mut(),
            made.pointer(&format!("/properties/{field}")),
        ) {
            properties.insert(field.to_owned(), shape.clone());
        }
    }
    let kinds = "x-kubernetes-group-version-kind";
    if let Some(kind) = made.get(kinds) {
        map.insert(kinds.to_owned(), kind.clone());
    }
    schema
}

fn strip(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // Null has no type there.
            if map.get("nullable") == Some(&Value::Bool(true)) {
                map.remove("type");
            }
            map.retain(|key, _| !NOT_IN_V2.contains(&key.as_str()));
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
