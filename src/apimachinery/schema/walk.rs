//! Owns: walks over an object beside its table: which fields are unknown, removing them, and adding the fields a Go
//! server always writes. Both sides are sorted by name, so a level costs one merge of two lists.
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

/// Removes every unknown field and returns their paths, as `unknown_fields` does.
pub fn prune(object: &mut Value, message: &Message) -> Vec<String> {
    let found = unknown_fields(object, message);
    if !found.is_empty() {
        prune_message(object, message);
    }
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

fn prune_message(value: &mut Value, message: &Message) {
    let Value::Object(map) = value else { return };
    if !message.preserve_unknown {
        map.retain(|name, _| {
            message.field(name).is_some() || message.embedded_resource && is_type_meta(name)
        });
    }
    for (name, value) in map
        .iter_mut()
        .filter(|(_, value)| value.is_object() || value.is_array())
    {
        if let Some(field) = message.field(name) {
            prune_type(value, &field.ty);
        }
    }
}

fn prune_type(value: &mut Value, ty: &Type) {
    match (ty, value) {
        (Type::Message(message), value) => prune_message(value, message),
        (Type::Map(map), Value::Object(entries)) if is_deep(&map.value) => {
            entries
                .values_mut()
                .for_each(|value| prune_type(value, &map.value));
        }
        (Type::List(list), Value::Array(items)) if is_deep(&list.item) => {
            items
                .iter_mut()
                .for_each(|value| prune_type(value, &list.item));
        }
        (Type::SchemaOr(message, _), value @ Value::Object(_)) => prune_message(value, message),
        (Type::SchemaOr(message, SchemaOr::Array), Value::Array(items)) => {
            items
                .iter_mut()
                .for_each(|value| prune_message(value, message));
        }
        _ => {}
    }
}

/// Makes an object look as a Go server writes it: fields without `omitempty` are there, zero values of fields with it
/// are not, `null` is absent, quantities and times are canonical.
///
/// Unknown fields are left alone; prune first.
pub fn complete(object: &mut Value, message: &Message) {
    let Value::Object(map) = object else { return };
    complete_map(map, message);
}

fn complete_map(map: &mut Map<String, Value>, message: &Message) {
    map.retain(|name, value| match message.field(name) {
        None => !(value.is_null() && !message.preserve_unknown),
        Some(field) => {
            complete_type(value, &field.ty);
            match value {
                Value::Null => field.has(Field::NULLABLE),
                _ if field.has(Field::ALWAYS) || field.has(Field::POINTER) => true,
                value => !is_zero(value, &field.ty),
            }
        }
    });
    for field in message
        .fields
        .iter()
        .filter(|field| field.has(Field::ALWAYS) && !field.has(Field::POINTER))
    {
        if !map.contains_key(&*field.name) {
            if let Some(zero) = zero(&field.ty) {
                map.insert(field.name.to_string(), zero);
            }
        }
    }
}

fn is_zero(value: &Value, ty: &Type) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0) && !matches!(ty, Type::IntOrString),
        Value::Array(items) => items.is_empty(),
        // A struct that is not a pointer is always written; an empty map is not.
        Value::Object(map) => map.is_empty() && matches!(ty, Type::Map(_)),
    }
}

fn zero(ty: &Type) -> Option<Value> {
    Some(match ty {
        Type::String => Value::String(String::new()),
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 => 0.into(),
        Type::Double => 0.into(),
        Type::Message(message) => {
            let mut map = Map::new();
            complete_map(&mut map, message);
            Value::Object(map)
        }
        Type::Quantity => Value::String("0".to_owned()),
        Type::IntOrString => 0.into(),
        Type::Duration => Value::String("0s".to_owned()),
        Type::List(_) | Type::Map(_) | Type::Bytes | Type::Time | Type::MicroTime => Value::Null,
        Type::Raw | Type::FieldsV1 | Type::Json | Type::SchemaOr(..) => return None,
    })
}

fn complete_type(value: &mut Value, ty: &Type) {
    match (ty, value) {
        (Type::Message(message), Value::Object(map)) => complete_map(map, message),
        (Type::Map(map), Value::Object(entries)) => {
            entries
                .values_mut()
                .for_each(|value| complete_type(value, &map.value));
        }
        (Type::List(list), Value::Array(items)) => {
            items
                .iter_mut()
                .for_each(|value| complete_type(value, &list.item));
        }
        (Type::SchemaOr(message, _), Value::Object(map)) => complete_map(map, message),
        (Type::SchemaOr(message, SchemaOr::Array), Value::Array(items)) => {
            items
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(|map| complete_map(map, message));
        }
        (Type::Quantity, value) => canonical_quantity(value),
        (Type::Time, Value::String(text)) => canonical_time(text),
        _ => {}
    }
}

fn canonical_quantity(value: &mut Value) {
    let text = match &*value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    // Most are canonical already: plain digits without leading zero, with nothing to shorten.
    if let Ok(quantity) = text.trim().parse::<crate::quantity::Quantity>() {
        let canonical = quantity.to_string();
        if value.as_str() != Some(&canonical) {
            *value = Value::String(canonical);
        }
    }
}

fn canonical_time(text: &mut String) {
    let plain = text.len() == 20 && text.ends_with('Z');
    if !plain {
        if let Some(time) = crate::time::parse(text) {
            *text = crate::time::format(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ListKind, ListType, MapType};
    use super::*;
    use serde_json::json;

    static INNER_FIELDS: [Field; 3] = [
        Field::new("amount", Type::Quantity, 0),
        Field::new("name", Type::String, Field::REQUIRED | Field::ALWAYS),
        Field::new("on", Type::Bool, Field::POINTER),
    ];
    static INNER: Message = Message::new("test.v1.Inner", &INNER_FIELDS, &[]);
    static ITEMS: ListType = ListType::new(Type::message(&INNER), ListKind::Atomic, &[], "");
    static LABELS: MapType = MapType {
        value: Type::String,
        atomic: false,
    };
    static OUTER_FIELDS: [Field; 4] = [
        Field::new("items", Type::list(&ITEMS), 0),
        Field::new("labels", Type::map(&LABELS), 0),
        Field::new("raw", Type::Raw, 0),
        Field::new("status", Type::message(&INNER), Field::ALWAYS),
    ];
    static OUTER: Message = Message::new("test.v1.Outer", &OUTER_FIELDS, &[]);

    #[test]
    fn unknown_fields_are_named_by_path_and_removed() {
        let mut object = json!({"a": 1, "items": [{"name": "x"}, {"y": {"z": 1}}], "labels": {"any": "k"},
            "raw": {"free": 1}, "status": {"zzz": 1}});
        assert_eq!(
            unknown_fields(&object, &OUTER),
            ["a", "items[1].y", "status.zzz"]
        );
        assert_eq!(prune(&mut object, &OUTER).len(), 3);
        assert_eq!(
            object,
            json!({"items": [{"name": "x"}, {}], "labels": {"any": "k"}, "raw": {"free": 1}, "status": {}})
        );
    }

    #[test]
    fn an_object_is_completed_as_go_writes_it() {
        let mut object =
            json!({"items": [{"amount": "1000m", "on": false}], "labels": {}, "raw": null});
        complete(&mut object, &OUTER);
        assert_eq!(
            object,
            json!({"items": [{"amount": "1", "name": "", "on": false}], "status": {"name": ""}})
        );
    }
}
