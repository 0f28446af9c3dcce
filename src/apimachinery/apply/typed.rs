//! Owns: what apply does with objects by their tables: comparing two, merging one into the other, telling which fields
//! a configuration sets, and removing a set of fields. Structs and maps are gone into unless atomic, lists only when
//! their items have keys or are a set; everything else is a leaf.

mod compare;
mod fields;
mod merge;
mod remove;

pub use compare::{Comparison, compare};
pub use fields::field_set;
pub(super) use fields::lenient_field_set;
pub use merge::merge;
pub(super) use remove::{remove_items, with_named_fields};

use crate::schema::{Field, KeyDefault, ListKind, ListType, Message, Type};
use serde_json::{Map, Value};
use smallvec::SmallVec;
use std::borrow::Cow;

type Object = Map<String, Value>;

/// How a value is looked at.
#[derive(Clone, Copy)]
enum Shape<'a> {
    Leaf,
    Struct(&'a Message),
    Map(&'a Type),
    List(&'a ListType),
    /// No type: maps are maps, the rest are leaves.
    Deduced,
}

impl<'a> Shape<'a> {
    fn of(ty: &'a Type) -> Self {
        match ty {
            Type::Message(message) if !message.atomic => Self::Struct(message),
            Type::Map(map) if !map.atomic => Self::Map(&map.value),
            Type::List(list) if matches!(list.kind, ListKind::Map | ListKind::Set) => {
                Self::List(list)
            }
            Type::Json => Self::Deduced,
            _ => Self::Leaf,
        }
    }

    fn field(self, name: &str) -> Self {
        match self {
            Self::Struct(message) => message.field(name).map_or(Self::Deduced, Self::of_field),
            Self::Map(ty) => Self::of(ty),
            _ => Self::Deduced,
        }
    }

    fn of_field(field: &'a Field) -> Self {
        if field.has(Field::ATOMIC) {
            Self::Leaf
        } else {
            Self::of(&field.ty)
        }
    }

    /// Whether values go by named fields rather than by the entries of a map.
    fn has_field(self, name: &str) -> bool {
        matches!(self, Self::Struct(message) if message.field(name).is_some())
    }
}

/// `f:name`.
fn field_key(name: &str) -> String {
    let mut key = String::with_capacity(name.len() + 2);
    key.push_str("f:");
    key.push_str(name);
    key
}

/// Appends a scalar as JSON; most texts need no escapes.
fn push_json(out: &mut String, value: &Value) {
    match value {
        Value::String(text) if text.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\') => {
            out.push('"');
            out.push_str(text);
            out.push('"');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// An item's path element: `k:{…}` or `v:…`. None when it lacks a key, and for a null.
fn element(list: &ListType, item: &Value) -> Option<String> {
    if list.kind == ListKind::Set {
        let mut text = "v:".to_owned();
        push_json(&mut text, item);
        return if item.is_null() { None } else { Some(text) };
    }
    let item = item.as_object()?;
    let mut keys: SmallVec<[(&str, Cow<'_, Value>); 4]> = SmallVec::new();
    for key in list.keys.iter() {
        let value = match (item.get(&*key.name), &key.default) {
            (Some(value), _) => Cow::Borrowed(value),
            (None, Some(KeyDefault::Text(text))) => Cow::Owned(Value::String(text.to_string())),
            (None, Some(KeyDefault::Value(value))) => Cow::Borrowed(value),
            (None, None) => return None,
        };
        keys.push((&key.name, value));
    }
    keys.sort_by_key(|(name, _)| *name);
    let mut text = String::with_capacity(32);
    text.push_str("k:{");
    for (index, (name, value)) in keys.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push('"');
        text.push_str(name);
        text.push_str("\":");
        push_json(&mut text, value);
    }
    text.push('}');
    Some(text)
}

/// The elements of all items; none when one has no element, which makes the list a leaf.
fn elements(list: &ListType, items: &[Value]) -> Option<Vec<String>> {
    items.iter().map(|item| element(list, item)).collect()
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests;
