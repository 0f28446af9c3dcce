//! Owns: naming the fields of an object that its table does not have. Both sides are sorted by name, so a level costs
//! one merge of two lists.
//!
//! **Invariant:** recursion is bounded by the nesting of the input, which the decoders bound.

use super::{Field, Message, SchemaOr, Type};
use crate::field::Path;
use serde_json::{Map, Value};

/// Every unknown field: called with its path (`spec.containers[0].foo`). Values of the wrong type are passed over.
pub fn unknown_fields(object: &Value, message: &Message) -> Vec<String> {
    let mut found = Vec::new();
    walk_message(object, message, &mut Vec::new(), &mut found);
    found
}

enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

fn path(steps: &[Step<'_>], last: &str) -> String {
    let mut path = Path::default();
    for step in steps {
        path = match step {
            Step::Name(name) => path.child(name),
            Step::Index(index) => path.index(*index),
        };
    }
    path.child(last).to_string()
}

/// Walks two sorted lists at once: each name of the object with the field of that name, if there is one.
fn merge<'o, 'm>(
    object: &'o Map<String, Value>,
    message: &'m Message,
) -> impl Iterator<Item = (&'o String, &'o Value, Option<&'m Field>)> {
    let mut fields = message.fields.iter().peekable();
    object.iter().map(move |(name, value)| {
        while fields.peek().is_some_and(|field| *field.name < **name) {
            fields.next();
        }
        (
            name,
            value,
            fields
                .peek()
                .copied()
                .filter(|field| field.name == name.as_str()),
        )
    })
}

fn walk_message<'a>(
    value: &'a Value,
    message: &Message,
    steps: &mut Vec<Step<'a>>,
    found: &mut Vec<String>,
) {
    let Value::Object(map) = value else { return };
    for (name, value, field) in merge(map, message) {
        match field {
            Some(field) => {
                if value.is_object() || value.is_array() {
                    steps.push(Step::Name(name));
                    walk_type(value, &field.ty, steps, found);
                    steps.pop();
                }
            }
            None if message.preserve_unknown || message.embedded_resource && is_type_meta(name) => {
            }
            None => found.push(path(steps, name)),
        }
    }
}

fn is_type_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

fn walk_type<'a>(value: &'a Value, ty: &Type, steps: &mut Vec<Step<'a>>, found: &mut Vec<String>) {
    match (ty, value) {
        (Type::Message(message), _) => walk_message(value, message, steps, found),
        (Type::Map(map), Value::Object(entries)) if is_deep(&map.value) => {
            for (name, value) in entries {
                steps.push(Step::Name(name));
                walk_type(value, &map.value, steps, found);
                steps.pop();
            }
        }
        (Type::List(list), Value::Array(items)) if is_deep(&list.item) => {
            for (index, value) in items.iter().enumerate() {
                steps.push(Step::Index(index));
                walk_type(value, &list.item, steps, found);
                steps.pop();
            }
        }
        (Type::SchemaOr(message, _), Value::Object(_)) => {
            walk_message(value, message, steps, found)
        }
        (Type::SchemaOr(message, SchemaOr::Array), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                steps.push(Step::Index(index));
                walk_message(value, message, steps, found);
                steps.pop();
            }
        }
        _ => {}
    }
}

fn is_deep(ty: &Type) -> bool {
    matches!(
        ty,
        Type::Message(_) | Type::Map(_) | Type::List(_) | Type::SchemaOr(..)
    )
}

#[cfg(test)]
mod tests {
    use super::super::conform::tests::OUTER;
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_named_by_path() {
        let object = json!({"a": 1, "items": [{"name": "x"}, {"y": {"z": 1}}], "labels": {"any": "k"},
            "raw": {"free": 1}, "status": {"zzz": 1}});
        assert_eq!(
            unknown_fields(&object, &OUTER),
            ["a", "items[1].y", "status.zzz"]
        );
    }
}
