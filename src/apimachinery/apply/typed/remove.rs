//! Owns: taking a set of fields out of an object.

use super::super::set::{self, FieldSet};
use super::{Object, Shape, element, field_key};
use crate::schema::Message;
use serde_json::Value;

/// Removes the members of a set from an object; containers that become empty are removed too.
pub(in crate::apply) fn remove_items(object: &mut Value, fields: &FieldSet, message: &Message) {
    remove(object, fields.as_map(), Shape::Struct(message));
}

fn remove(value: &mut Value, fields: &Object, shape: Shape<'_>) {
    match (shape, &mut *value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Deduced, Value::Object(map)) => {
            let had = !map.is_empty();
            map.retain(|name, value| {
                let (member, below) = set::child(fields, &field_key(name));
                if !member {
                    if let Some(below) = below {
                        remove(value, below, shape.field(name));
                    }
                }
                !(member || below.is_some() && value.is_null())
            });
            if had && map.is_empty() {
                *value = Value::Null;
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            let had = !items.is_empty();
            items.retain_mut(|item| {
                let Some(element) = element(list, item) else {
                    return true;
                };
                let (member, below) = set::child(fields, &element);
                if !member {
                    if let Some(below) = below {
                        remove(item, below, Shape::of(&list.item));
                    }
                }
                !(member || below.is_some() && item.is_null())
            });
            if had && items.is_empty() {
                *value = Value::Null;
            }
        }
        _ => {}
    }
}

/// The set with every struct field on the way to a member made a member too; entries of maps and items of lists are
/// not (Set.EnsureNamedFieldsAreMembers).
pub(in crate::apply) fn with_named_fields(fields: &FieldSet, message: &Message) -> FieldSet {
    FieldSet::from_children(named(fields.as_map(), Shape::Struct(message)))
}

fn named(fields: &Object, shape: Shape<'_>) -> Object {
    let mut out = Object::new();
    for element in fields.keys().filter(|element| *element != ".") {
        let (member, below) = set::child(fields, element);
        let (inner, is_named) = match (shape, element.strip_prefix("f:")) {
            (Shape::List(list), _) => (Shape::of(&list.item), false),
            (shape, Some(name)) => (shape.field(name), shape.has_field(name)),
            (_, None) => (Shape::Deduced, false),
        };
        let children = below.map(|below| named(below, inner)).unwrap_or_default();
        out.extend(set::node(children, member || is_named).map(|node| (element.clone(), node)));
    }
    out
}
