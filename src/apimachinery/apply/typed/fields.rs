//! Owns: the set of fields an object or a configuration has.

use super::super::set::{self, FieldSet};
use super::{Object, Shape, element, field_key, is_empty};
use crate::schema::{ListKind, ListType, Message, Type};
use serde_json::Value;

/// The fields a configuration sets.
///
/// # Errors
/// A field the type does not have, a value of the wrong type, an item of a keyed list that lacks a key or is there
/// twice; with its path.
pub fn field_set(config: &Value, message: &Message) -> Result<FieldSet, String> {
    Walk { strict: true }.root(config, message)
}

/// The fields an object has; a list whose items cannot be told apart counts as a whole.
pub(in crate::apply) fn lenient_field_set(object: &Value, message: &Message) -> FieldSet {
    // Only a strict walk refuses anything.
    Walk { strict: false }
        .root(object, message)
        .unwrap_or_default()
}

struct Walk {
    strict: bool,
}

impl Walk {
    fn root(&self, object: &Value, message: &Message) -> Result<FieldSet, String> {
        let Value::Object(map) = object else {
            return Ok(FieldSet::new());
        };
        self.map(map, Shape::Struct(message), "")
            .map(FieldSet::from_children)
    }

    fn map(&self, map: &Object, shape: Shape<'_>, path: &str) -> Result<Object, String> {
        let mut fields = Object::new();
        for (name, value) in map {
            let child_path = format!("{path}.{name}");
            if self.strict {
                check(name, value, shape, &child_path)?;
            }
            let children = self.value(value, shape.field(name), &child_path)?;
            // An entry of a map is a field of its own; a struct's field is one when nothing stands below it.
            let member = is_empty(Some(value)) || children.is_empty() || !shape.has_field(name);
            fields.extend(set::node(children, member).map(|node| (field_key(name), node)));
        }
        Ok(fields)
    }

    fn value(&self, value: &Value, shape: Shape<'_>, path: &str) -> Result<Object, String> {
        match (shape, value) {
            (Shape::Struct(_) | Shape::Map(_) | Shape::Deduced, Value::Object(map)) => {
                self.map(map, shape, path)
            }
            (Shape::List(list), Value::Array(items)) => {
                let mut fields = Object::new();
                for (index, item) in items.iter().enumerate() {
                    let Some(element) = element(list, item) else {
                        if self.strict {
                            return Err(missing_key(list, item, path, index));
                        }
                        return Ok(Object::new());
                    };
                    if self.strict && fields.contains_key(&element) {
                        return Err(format!(
                            "{path}: duplicate entries for key {}",
                            element_in_words(&element)
                        ));
                    }
                    let children =
                        self.value(item, Shape::of(&list.item), &format!("{path}[{index}]"))?;
                    fields.extend(set::node(children, true).map(|node| (element, node)));
                }
                Ok(fields)
            }
            _ => Ok(Object::new()),
        }
    }
}

/// Whether the table has the field and the value may be its.
fn check(name: &str, value: &Value, shape: Shape<'_>, path: &str) -> Result<(), String> {
    let ty = match shape {
        Shape::Struct(message) => match message.field(name) {
            Some(field) => &field.ty,
            None if message.preserve_unknown || message.embedded_resource => return Ok(()),
            None => return Err(format!("{path}: field not declared in schema")),
        },
        Shape::Map(ty) => ty,
        _ => return Ok(()),
    };
    let expected = match (ty, value) {
        (_, Value::Null) => return Ok(()),
        (Type::String | Type::Bytes, value) if !value.is_string() => "string",
        (Type::Int32 | Type::Int64 | Type::Double, value) if !value.is_number() => {
            "numeric (int or float)"
        }
        (Type::Bool, value) if !value.is_boolean() => "boolean",
        (Type::List(_), value) if !value.is_array() => "list",
        (Type::Map(_) | Type::Message(_), value) if !value.is_object() => "map",
        _ => return Ok(()),
    };
    Err(format!("{path}: expected {expected}, got {value}"))
}

fn element_in_words(element: &str) -> String {
    FieldSet::from_children(
        [(element.to_owned(), Value::Object(Object::new()))]
            .into_iter()
            .collect(),
    )
    .paths()
    .pop()
    .unwrap_or_default()
}

fn missing_key(list: &ListType, item: &Value, path: &str, index: usize) -> String {
    if list.kind == ListKind::Set {
        return format!("{path}: element {index}: set may not have a null element");
    }
    let Value::Object(item) = item else {
        return format!(
            "{path}: element {index}: associative list with keys may not have non-map elements"
        );
    };
    let missing = list
        .keys
        .iter()
        .find(|key| !item.contains_key(&*key.name) && key.default.is_none());
    format!(
        "{path}: element {index}: associative list with keys has an element that omits key field {:?} (and doesn't have default value)",
        missing.map_or("", |key| &*key.name)
    )
}
