//! Owns: the set of fields an object or a configuration has.

use super::super::set::{self, FieldSet};
use super::{Object, Shape, element, field_key, is_empty};
use crate::schema::{ListKind, ListType, Message, Type};
use serde_json::Value;

/// The fields a configuration sets.
///
/// # Errors
/// Every field the type does not have, every value of the wrong type, every item of a keyed list that lacks a key or is
/// there twice; with their paths, as upstream lists them.
pub fn field_set(config: &Value, message: &Message) -> Result<FieldSet, String> {
    let mut walk = Walk {
        strict: true,
        errors: Vec::new(),
    };
    let fields = walk.root(config, message);
    match walk.errors.len() {
        0 => Ok(fields),
        1 => Err(walk.errors.swap_remove(0)),
        _ => Err(format!("errors:\n  {}", walk.errors.join("\n  "))),
    }
}

/// The fields an object has; a list whose items cannot be told apart counts as a whole.
pub(in crate::apply) fn lenient_field_set(object: &Value, message: &Message) -> FieldSet {
    Walk {
        strict: false,
        errors: Vec::new(),
    }
    .root(object, message)
}

/// Most errors told of one configuration.
const MAX_ERRORS: usize = 100;

struct Walk {
    strict: bool,
    errors: Vec<String>,
}

impl Walk {
    fn root(&mut self, object: &Value, message: &Message) -> FieldSet {
        match object {
            Value::Object(map) => {
                FieldSet::from_children(self.map(map, Shape::Struct(message), ""))
            }
            _ => FieldSet::new(),
        }
    }

    fn refuse(&mut self, error: impl FnOnce() -> String) {
        if self.strict && self.errors.len() < MAX_ERRORS {
            self.errors.push(error());
        }
    }

    fn map(&mut self, map: &Object, shape: Shape<'_>, path: &str) -> Object {
        let mut fields = Object::new();
        for (name, value) in map {
            let child_path = if self.strict {
                format!("{path}.{name}")
            } else {
                String::new()
            };
            if self.strict {
                if let Some(error) = check(name, value, shape) {
                    self.refuse(|| format!("{child_path}: {error}"));
                    continue;
                }
            }
            let children = self.value(value, shape.field(name), &child_path);
            // An entry of a map is a field of its own; a struct's field is one when nothing stands below it.
            let member = is_empty(Some(value)) || children.is_empty() || !shape.has_field(name);
            fields.extend(set::node(children, member).map(|node| (field_key(name), node)));
        }
        fields
    }

    fn value(&mut self, value: &Value, shape: Shape<'_>, path: &str) -> Object {
        match (shape, value) {
            (Shape::Struct(_) | Shape::Map(_) | Shape::Deduced, Value::Object(map)) => {
                self.map(map, shape, path)
            }
            (Shape::List(list), Value::Array(items)) => self.list(items, list, path),
            _ => Object::new(),
        }
    }

    fn list(&mut self, items: &[Value], list: &ListType, path: &str) -> Object {
        let mut fields = Object::new();
        for (index, item) in items.iter().enumerate() {
            let Some(element) = element(list, item) else {
                self.refuse(|| missing_key(list, item, path, index));
                return Object::new();
            };
            if fields.contains_key(&element) {
                self.refuse(|| {
                    format!(
                        "{path}: duplicate entries for key {}",
                        element_in_words(&element)
                    )
                });
            }
            let item_path = if self.strict {
                format!("{path}[{index}]")
            } else {
                String::new()
            };
            let children = self.value(item, Shape::of(&list.item), &item_path);
            fields.extend(set::node(children, true).map(|node| (element, node)));
        }
        fields
    }
}

/// What is wrong with a field: the table does not have it, or the value is not of its type.
fn check(name: &str, value: &Value, shape: Shape<'_>) -> Option<String> {
    let ty = match shape {
        Shape::Struct(message) => match message.field(name) {
            Some(field) => &field.ty,
            None if message.preserve_unknown || message.embedded_resource => return None,
            None => return Some("field not declared in schema".to_owned()),
        },
        Shape::Map(ty) => ty,
        _ => return None,
    };
    // Go prints the value it holds, a pointer to it for maps and lists.
    let held = || match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match (ty, value) {
        (_, Value::Null) => None,
        (Type::String | Type::Bytes, value) if !value.is_string() => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            held()
        )),
        (Type::Int32 | Type::Int64 | Type::Double, value) if !value.is_number() => {
            let kind = match value {
                Value::String(_) => "string",
                Value::Bool(_) => "boolean",
                Value::Array(_) => "list",
                _ => "map",
            };
            Some(format!("expected numeric (int or float), got {kind}"))
        }
        (Type::Bool, value) if !value.is_boolean() => Some(format!(
            "expected boolean, got &value.valueUnstructured{{Value:{}}}",
            held()
        )),
        (Type::List(_), value) if !value.is_array() => {
            Some(format!("expected list, got &{{{}}}", held()))
        }
        (Type::Map(_) | Type::Message(_), value) if !value.is_object() => {
            Some(format!("expected map, got &{{{}}}", held()))
        }
        _ => None,
    }
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
