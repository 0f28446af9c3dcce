//! Owns: turning the structural OpenAPI v3 schema of a custom resource into the tables the built-in types have
//! (apiextensions-apiserver/pkg/apiserver/schema). Values are not constrained here: that is validation.
//!
//! Custom objects keep what they are given: no field is written unasked and a zero stays, so every field is a pointer.

use super::{Field, KeyDefault, ListKey, ListKind, ListType, MapType, Message, Ref, Type};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The table of a custom resource: its schema with `apiVersion`, `kind` and `metadata`, whose type is given.
pub fn resource(name: &str, schema: &Value, object_meta: &'static Message) -> Message {
    let mut message = message(name, schema, object_meta);
    add_type_meta(&mut message, object_meta);
    message
}

fn add_type_meta(message: &mut Message, object_meta: &'static Message) {
    let fields = message.fields.to_mut();
    fields.retain(|field| !matches!(&*field.name, "apiVersion" | "kind" | "metadata"));
    fields.push(field("apiVersion", Type::String, 0));
    fields.push(field("kind", Type::String, 0));
    fields.push(field("metadata", Type::message(object_meta), 0));
    fields.sort_by(|a, b| a.name.cmp(&b.name));
}

fn field(name: &str, ty: Type, flags: u16) -> Field {
    Field {
        name: Cow::Owned(name.to_owned()),
        ty,
        flags: flags | Field::POINTER,
    }
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn text<'a>(schema: &'a Value, name: &str) -> &'a str {
    schema.get(name).and_then(Value::as_str).unwrap_or("")
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

fn message(name: &str, schema: &Value, object_meta: &'static Message) -> Message {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let fields: Vec<Field> = properties(schema)
        .into_iter()
        .flatten()
        .map(|(property, schema)| {
            let mut flags = 0;
            if required.contains(&property.as_str()) {
                flags |= Field::REQUIRED;
            }
            if flag(schema, "nullable") {
                flags |= Field::NULLABLE;
            }
            field(
                property,
                type_of(&format!("{name}.{property}"), schema, object_meta),
                flags,
            )
        })
        .collect();
    let mut message = Message {
        name: Cow::Owned(name.to_owned()),
        // A JSON map is sorted already.
        fields: Cow::Owned(fields),
        wire: Cow::Borrowed(&[]),
        atomic: text(schema, "x-kubernetes-map-type") == "atomic",
        preserve_unknown: flag(schema, "x-kubernetes-preserve-unknown-fields"),
        embedded_resource: flag(schema, "x-kubernetes-embedded-resource"),
    };
    if message.embedded_resource {
        add_type_meta(&mut message, object_meta);
    }
    message
}

fn type_of(name: &str, schema: &Value, object_meta: &'static Message) -> Type {
    if flag(schema, "x-kubernetes-int-or-string") {
        return Type::IntOrString;
    }
    match text(schema, "type") {
        "string" => Type::String,
        "boolean" => Type::Bool,
        "integer" => Type::Int64,
        "number" => Type::Double,
        "array" => Type::List(list(name, schema, object_meta).into()),
        "object" => object(name, schema, object_meta),
        // Without a type only what is preserved can be here.
        _ => Type::Json,
    }
}

fn object(name: &str, schema: &Value, object_meta: &'static Message) -> Type {
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    if properties(schema).is_some() || embedded {
        return Type::Message(Ref::from(message(name, schema, object_meta)));
    }
    let value = match schema.get("additionalProperties") {
        Some(inner @ Value::Object(_)) => type_of(name, inner, object_meta),
        Some(Value::Bool(true)) => Type::Json,
        _ if flag(schema, "x-kubernetes-preserve-unknown-fields") => return Type::Json,
        // An object of which nothing is said: everything in it is unknown.
        _ => return Type::Message(Ref::from(message(name, schema, object_meta))),
    };
    Type::Map(
        MapType {
            value,
            atomic: text(schema, "x-kubernetes-map-type") == "atomic",
        }
        .into(),
    )
}

fn list(name: &str, schema: &Value, object_meta: &'static Message) -> ListType {
    let items = schema.get("items").unwrap_or(&Value::Null);
    let kind = match text(schema, "x-kubernetes-list-type") {
        "map" => ListKind::Map,
        "set" => ListKind::Set,
        "atomic" => ListKind::Atomic,
        _ => ListKind::Unset,
    };
    let names = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array);
    let keys = names
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|key| {
            let default = properties(items)
                .and_then(|p| p.get(key)?.get("default"))
                .cloned();
            ListKey {
                name: Cow::Owned(key.to_owned()),
                default: default.map(KeyDefault::Value),
            }
        })
        .collect();
    ListType {
        item: type_of(name, items, object_meta),
        kind,
        keys: Cow::Owned(keys),
        merge_key: None,
        wrapped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::FieldSet;
    use crate::apply::managed_fields::{Write, apply};
    use crate::schema::prune;
    use serde_json::json;

    static META_FIELDS: [Field; 1] = [Field::new("name", Type::String, 0)];
    static META: Message = Message::new("meta.v1.ObjectMeta", &META_FIELDS, &[]);

    fn widget() -> Message {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer"}, "port": {"x-kubernetes-int-or-string": true}, "note": {"type": "string", "nullable": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object", "properties": {}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "zone"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "zone": {"type": "string", "default": "a"}, "count": {"type": "integer"}}}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}}});
        resource("widgets.example.com", &schema, &META)
    }

    #[test]
    fn unknown_fields_go_unless_preserved() {
        let mut object = json!({"apiVersion": "x/v1", "kind": "Widget", "metadata": {"name": "w"}, "other": 1,
            "spec": {"size": 0, "bad": 1, "free": {"any": {"thing": 1}}, "open": {"x": 1, "known": {"y": 1}}, "labels": {"a": "b"},
                "parts": [{"name": "p", "bad": 1}], "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t"}, "bad": 1}}});
        assert_eq!(
            prune(&mut object, &widget()),
            [
                "other",
                "spec.bad",
                "spec.open.known.y",
                "spec.parts[0].bad",
                "spec.template.bad"
            ]
        );
        assert_eq!(
            object,
            json!({"apiVersion": "x/v1", "kind": "Widget", "metadata": {"name": "w"},
                "spec": {"size": 0, "free": {"any": {"thing": 1}}, "open": {"x": 1, "known": {}}, "labels": {"a": "b"},
                    "parts": [{"name": "p"}], "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t"}}}})
        );
    }

    #[test]
    fn custom_objects_are_applied_by_their_keys_and_defaults() {
        let (message, reset) = (widget(), FieldSet::new());
        let write = |manager| Write {
            manager,
            api_version: "x/v1",
            subresource: "",
            now: "2026-01-01T00:00:00Z",
            message: &message,
            reset: &reset,
        };
        let config = |spec: Value| json!({"apiVersion": "x/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec});
        let one = apply(
            &Value::Null,
            &config(json!({"size": 0, "parts": [{"name": "p", "count": 1}]})),
            &write("a"),
            false,
        )
        .expect("new");
        assert_eq!(one["spec"]["size"], json!(0));
        let two = apply(
            &one,
            &config(json!({"parts": [{"name": "p", "zone": "a"}, {"name": "p", "zone": "b"}]})),
            &write("b"),
            false,
        )
        .expect("shared");
        assert_eq!(
            two["spec"]["parts"],
            json!([{"name": "p", "zone": "a", "count": 1}, {"name": "p", "zone": "b"}])
        );
        let three = apply(&two, &config(json!({"size": 0})), &write("a"), false).expect("less");
        assert_eq!(
            three["spec"]["parts"],
            json!([{"name": "p", "zone": "a"}, {"name": "p", "zone": "b"}])
        );
    }
}
