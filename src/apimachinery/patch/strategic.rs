//! Owns: strategic merge patch (k8s.io/apimachinery/pkg/util/strategicpatch): maps are merged, lists are merged by the
//! key their table names, and directives in the patch say what else to do:
//!
//! | directive | where | does |
//! |---|---|---|
//! | `$patch: replace` / `delete` | map | replaces it with the rest of the patch / empties it |
//! | `$patch: replace` / `delete` | item of a merged list | replaces the list / removes the item with that key |
//! | `$retainKeys: […]` | map | drops every field not named |
//! | `$setElementOrder/f: […]` | map | orders the list `f` |
//! | `$deleteFromPrimitiveList/f: […]` | map | removes values from the list `f` |

use super::{PatchError, go_text};
use crate::schema::{Field, Message, Type};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

pub(super) const DIRECTIVE: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const SET_ORDER: &str = "$setElementOrder/";
pub(super) const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// Applies a strategic merge patch to an object of this type.
///
/// # Errors
/// A patch with malformed directives, or list items without their merge key.
pub fn strategic_merge(
    original: Value,
    patch: Value,
    message: &Message,
) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(malformed("invalid JSON document"));
    };
    merge_map(original, patch, &Shape::Message(message)).map(Value::Object)
}

fn unmergeable(text: impl Into<String>) -> PatchError {
    PatchError::Unmergeable(text.into())
}

fn malformed(text: impl Into<String>) -> PatchError {
    PatchError::Malformed(text.into())
}

/// What is known of the fields of a map.
pub(super) enum Shape<'a> {
    /// A struct.
    Message(&'a Message),
    /// A map whose values all have one type.
    Map(&'a Type),
    /// Nothing: merge maps, replace lists.
    Unknown,
}

/// How a field is patched.
pub(super) struct Strategy<'a> {
    /// Shape of the value, or of the items of a list.
    pub shape: Shape<'a>,
    /// Replace the value whole.
    pub replace: bool,
    /// Merge the list.
    pub merge: bool,
    /// By this key; none for a list of scalars.
    pub key: Option<&'a str>,
    /// Diffs name what to keep.
    pub retain_keys: bool,
}

fn shape_of(ty: &Type) -> Shape<'_> {
    match ty {
        Type::Message(message) | Type::SchemaOr(message, _) => Shape::Message(message),
        Type::Map(map) => Shape::Map(&map.value),
        _ => Shape::Unknown,
    }
}

impl<'a> Shape<'a> {
    pub(super) fn field(&self, name: &str) -> Strategy<'a> {
        let (ty, flags) = match self {
            Shape::Message(message) => match message.field(name) {
                Some(field) => (&field.ty, field.flags),
                None => {
                    return Strategy {
                        shape: Shape::Unknown,
                        replace: false,
                        merge: false,
                        key: None,
                        retain_keys: false,
                    };
                }
            },
            Shape::Map(ty) => (*ty, 0),
            Shape::Unknown => {
                return Strategy {
                    shape: Shape::Unknown,
                    replace: false,
                    merge: false,
                    key: None,
                    retain_keys: false,
                };
            }
        };
        let (shape, key) = match ty {
            Type::List(list) => (shape_of(&list.item), list.merge_key.as_deref()),
            other => (shape_of(other), None),
        };
        Strategy {
            shape,
            replace: flags & Field::REPLACE != 0,
            merge: flags & Field::MERGE != 0,
            key,
            retain_keys: flags & Field::RETAIN_KEYS != 0,
        }
    }
}

type Object = Map<String, Value>;

fn merge_map(
    mut original: Object,
    mut patch: Object,
    shape: &Shape<'_>,
) -> Result<Object, PatchError> {
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(Value::String(word)) if word == "replace" => return Ok(drop_directives_in_map(patch)),
        Some(Value::String(word)) if word == "delete" => return Ok(Object::new()),
        Some(other) => return Err(bad_directive(&other, &patch)),
    }
    retain_keys(&mut original, &mut patch)?;
    set_element_orders(&mut original, &mut patch, shape)?;
    for (name, value) in patch {
        if let Some(field) = name.strip_prefix(DELETE_FROM) {
            delete_from_list(&mut original, field, value)?;
            continue;
        }
        if value.is_null() {
            original.remove(&name);
            continue;
        }
        let strategy = shape.field(&name);
        let merged = match (original.remove(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                if strategy.replace {
                    Value::Object(new)
                } else {
                    Value::Object(merge_map(old, new, &strategy.shape)?)
                }
            }
            (Some(Value::Array(old)), Value::Array(new)) => Value::Array(if strategy.merge {
                merge_list(old, new, &strategy)?
            } else {
                new
            }),
            (_, value) => drop_directives(value).unwrap_or(Value::Object(Object::new())),
        };
        original.insert(name, merged);
    }
    Ok(original)
}

fn bad_directive(directive: &Value, map: &Object) -> PatchError {
    unmergeable(format!(
        "unknown patch type: {} in map: {}",
        go_text(directive),
        go_text(&Value::Object(map.clone()))
    ))
}

/// A value that is new to the object, without directives and nulls; none when the patch says to delete it.
fn drop_directives(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) => {
            if map.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                return None;
            }
            Value::Object(drop_directives_in_map(map))
        }
        Value::Array(items) => Value::Array(
            items
                .into_iter()
                .filter(|item| {
                    // `{"$patch": "replace"}` stands for the list, not for an item.
                    !matches!(item, Value::Object(map) if map.len() == 1 && map.contains_key(DIRECTIVE))
                })
                .filter_map(drop_directives)
                .collect(),
        ),
        scalar => scalar,
    })
}

fn drop_directives_in_map(map: Object) -> Object {
    map.into_iter()
        .filter(|(name, value)| {
            !(value.is_null()
                || name == DIRECTIVE
                || name == RETAIN_KEYS
                || name.starts_with(SET_ORDER)
                || name.starts_with(DELETE_FROM))
        })
        .filter_map(|(name, value)| Some((name, drop_directives(value)?)))
        .collect()
}

fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(keep) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let invalid = || malformed("invalid patch format of retainKeys");
    let keep: HashSet<&str> = keep
        .as_array()
        .ok_or_else(invalid)?
        .iter()
        .map(|key| key.as_str().ok_or_else(invalid))
        .collect::<Result<_, _>>()?;
    for (name, value) in patch.iter() {
        let directive = name.starts_with(SET_ORDER) || name.starts_with(DELETE_FROM);
        if !value.is_null() && !directive && !keep.contains(name.as_str()) {
            return Err(PatchError::Rejected(
                "patch content doesn't match retainKeys list".to_owned(),
            ));
        }
    }
    original.retain(|name, _| keep.contains(name.as_str()));
    Ok(())
}

fn delete_from_list(original: &mut Object, field: &str, values: Value) -> Result<(), PatchError> {
    let Value::Array(values) = values else {
        return Err(malformed("invalid patch format of primitive list"));
    };
    let values: HashSet<Value> = values.into_iter().collect();
    if let Some(Value::Array(items)) = original.get_mut(field) {
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

fn set_element_orders(
    original: &mut Object,
    patch: &mut Object,
    shape: &Shape<'_>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|name| name.starts_with(SET_ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let field = &directive[SET_ORDER.len()..];
        let Some(Value::Array(order)) = patch.remove(&directive) else {
            return Err(malformed("invalid patch format of setElementOrder list"));
        };
        let strategy = shape.field(field);
        let old = match original.remove(field) {
            Some(Value::Array(items)) => Some(items),
            Some(other) => {
                original.insert(field.to_owned(), other);
                continue;
            }
            None => None,
        };
        let new = match patch.get(field) {
            Some(Value::Array(_)) => match patch.remove(field) {
                Some(Value::Array(items)) => Some(items),
                _ => None,
            },
            Some(_) => {
                // Null removes the list, anything else replaces it: the plain merge does that.
                original.extend(old.map(|items| (field.to_owned(), Value::Array(items))));
                continue;
            }
            None => None,
        };
        check_order(new.as_deref(), &order, strategy.key)?;
        let server_order = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (Some(old), None) => old,
            (None, Some(new)) => match drop_directives(Value::Array(new)) {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            },
            (Some(old), Some(new)) if strategy.merge => merge_list(old, new, &strategy)?,
            (Some(_), Some(new)) => new,
            (None, None) => continue,
        };
        let ordered = arrange(merged, &order, &server_order, strategy.key);
        original.insert(field.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

/// The items the patch sets must stand in the order it gives, each at a place of its own.
fn check_order(
    items: Option<&[Value]>,
    order: &[Value],
    key: Option<&str>,
) -> Result<(), PatchError> {
    let items = items.unwrap_or_default();
    let same = |item: &Value, place: &Value| match key {
        Some(key) => item.get(key) == place.get(key),
        None => item == place,
    };
    let mut places = order.iter();
    let set = items.iter().filter(|item| item.get(DIRECTIVE).is_none());
    for item in set {
        if !places.any(|place| same(item, place)) {
            return Err(unmergeable(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                go_list(items),
                go_list(order)
            )));
        }
    }
    Ok(())
}

fn go_list(items: &[Value]) -> String {
    let items: Vec<String> = items.iter().map(super::go_text).collect();
    format!("[{}]", items.join(" "))
}

/// Where items are: by the key if there is one, by value if not. Of those that are there several times the first counts.
pub(super) struct Positions<'a> {
    at: HashMap<&'a Value, usize>,
    key: Option<&'a str>,
}

impl<'a> Positions<'a> {
    pub(super) fn of(items: &'a [Value], key: Option<&'a str>) -> Self {
        let mut at = HashMap::with_capacity(items.len());
        for (position, item) in items.iter().enumerate() {
            if let Some(identity) = identity(item, key) {
                at.entry(identity).or_insert(position);
            }
        }
        Self { at, key }
    }

    pub(super) fn get(&self, item: &Value) -> Option<usize> {
        self.at.get(identity(item, self.key)?).copied()
    }

    /// Items that can be told apart.
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }
}

/// What makes an item the one it is; none when it lacks the key.
fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

fn merge_list(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    strategy: &Strategy<'_>,
) -> Result<Vec<Value>, PatchError> {
    let server_order = original.clone();
    let maps = original.iter().chain(&patch).any(Value::is_object);
    let Some(key) = strategy.key.filter(|_| maps) else {
        if maps {
            return Err(unmergeable("cannot merge lists without merge key"));
        }
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        let mut seen = HashSet::new();
        for item in original.iter().chain(&patch) {
            if seen.insert(item) {
                merged.push(item.clone());
            }
        }
        return Ok(arrange(merged, &patch, &server_order, None));
    };
    let mut plain = Vec::with_capacity(patch.len());
    let (mut replace, mut deleted) = (false, HashSet::new());
    for item in patch {
        let Value::Object(map) = &item else {
            return Err(unmergeable("list of maps has an item that is not one"));
        };
        match map.get(DIRECTIVE).and_then(Value::as_str) {
            None if map.contains_key(DIRECTIVE) => return Err(bad_directive(&Value::Null, map)),
            None => plain.push(item),
            Some("delete") => {
                let wanted = map.get(key).ok_or_else(|| no_merge_key(&item, key))?;
                deleted.insert(wanted.clone());
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(unmergeable(
                    "merging lists cannot yet be specified in the patch",
                ));
            }
            Some(other) => return Err(bad_directive(&Value::from(other), map)),
        }
    }
    if replace {
        return Ok(plain.into_iter().filter_map(drop_directives).collect());
    }
    original.retain(|other| other.get(key).is_none_or(|found| !deleted.contains(found)));
    let order: Vec<Value> = plain.iter().map(|item| key_only(item, key)).collect();
    let mut positions: HashMap<Value, usize> = HashMap::with_capacity(original.len() + plain.len());
    for (at, item) in original.iter().enumerate() {
        if let Some(found) = item.get(key) {
            positions.entry(found.clone()).or_insert(at);
        }
    }
    for item in plain {
        let Some(found) = item.get(key) else {
            return Err(no_merge_key(&item, key));
        };
        match positions.get(found) {
            Some(&at) => {
                if let (Value::Object(old), Value::Object(new)) = (original[at].take(), item) {
                    original[at] = Value::Object(merge_map(old, new, &strategy.shape)?);
                }
            }
            None => {
                // A null is no key any more once it is written.
                if !found.is_null() {
                    positions.insert(found.clone(), original.len());
                }
                original.extend(drop_directives(item));
            }
        }
    }
    Ok(arrange(original, &order, &server_order, Some(key)))
}

fn key_only(item: &Value, key: &str) -> Value {
    let mut map = Object::new();
    if let Some(value) = item.get(key) {
        map.insert(key.to_owned(), value.clone());
    }
    Value::Object(map)
}

fn no_merge_key(item: &Value, key: &str) -> PatchError {
    unmergeable(format!(
        "map: {} does not contain declared merge key: {key}",
        go_text(item)
    ))
}

/// Orders a merged list: items the patch names go in its order, the others keep the server's, and where the server
/// knows both it decides which comes first; otherwise the patch's item does (normalizeElementOrder).
fn arrange(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let (mut named, mut others): (Vec<(usize, Value)>, Vec<(usize, Value)>) =
        (Vec::new(), Vec::new());
    let (patch_order, server_order) = (
        Positions::of(patch_order, key),
        Positions::of(server_order, key),
    );
    for item in merged {
        match patch_order.get(&item) {
            Some(at) => named.push((at, item)),
            None => {
                let at = server_order.get(&item).unwrap_or(usize::MAX);
                others.push((at, item));
            }
        }
    }
    named.sort_by_key(|(at, _)| *at);
    others.sort_by_key(|(at, _)| *at);
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, item) in named {
        let here = server_order.get(&item);
        while let (Some(here), Some((there, _))) = (here, others.peek()) {
            if *there >= here || *there == usize::MAX {
                break;
            }
            out.extend(others.next().map(|(_, other)| other));
        }
        out.push(item);
    }
    out.extend(others.map(|(_, item)| item));
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::schema::{ListKind, ListType, MapType};
    use serde_json::json;

    static ITEM_FIELDS: [Field; 4] = [
        Field::new("name", Type::String, 0),
        Field::new("nested", Type::list(&ITEMS), Field::MERGE),
        Field::new("value", Type::String, 0),
        Field::new("words", Type::list(&WORDS), Field::MERGE),
    ];
    static ITEM: Message = Message::new("test.v1.Item", &ITEM_FIELDS, &[]);
    static ITEMS: ListType = ListType::new(Type::message(&ITEM), ListKind::Map, &[], "name");
    static ATOMIC: ListType = ListType::new(Type::message(&ITEM), ListKind::Atomic, &[], "");
    static WORDS: ListType = ListType::new(Type::String, ListKind::Set, &[], "");
    static STRINGS: MapType = MapType {
        value: Type::String,
        atomic: false,
    };
    static FIELDS: [Field; 7] = [
        Field::new("atomic", Type::list(&ATOMIC), 0),
        Field::new("items", Type::list(&ITEMS), Field::MERGE),
        Field::new("labels", Type::map(&STRINGS), 0),
        Field::new("replaced", Type::message(&ITEM), Field::REPLACE),
        Field::new("retained", Type::message(&ITEM), Field::RETAIN_KEYS),
        Field::new("single", Type::message(&ITEM), 0),
        Field::new("words", Type::list(&WORDS), Field::MERGE),
    ];
    pub(in crate::patch) static ROOT: Message = Message::new("test.v1.Root", &FIELDS, &[]);

    #[track_caller]
    fn check(original: Value, patch: Value, expected: Value) {
        assert_eq!(
            strategic_merge(original, patch, &ROOT).expect("applies"),
            expected
        );
    }

    #[track_caller]
    fn check_error(original: Value, patch: Value) {
        assert!(
            strategic_merge(original, patch.clone(), &ROOT).is_err(),
            "{patch}"
        );
    }

    #[test]
    fn maps_merge_and_null_removes() {
        check(
            json!({"labels": {"a": "1", "b": "2"}, "single": {"name": "x"}}),
            json!({"labels": {"b": null, "c": "3"}, "single": {"value": "y"}}),
            json!({"labels": {"a": "1", "c": "3"}, "single": {"name": "x", "value": "y"}}),
        );
        check(
            json!({}),
            json!({"labels": {"a": null, "b": "1"}}),
            json!({"labels": {"b": "1"}}),
        );
        check(
            json!({"replaced": {"name": "a"}}),
            json!({"replaced": {"value": "b"}}),
            json!({"replaced": {"value": "b"}}),
        );
    }

    #[test]
    fn lists_merge_by_key_and_others_are_replaced() {
        check(
            json!({"items": [{"name": "a", "value": "1"}, {"name": "b"}], "atomic": [{"name": "x"}]}),
            json!({"items": [{"name": "a", "value": "2"}, {"name": "c"}], "atomic": [{"name": "y"}]}),
            json!({"items": [{"name": "a", "value": "2"}, {"name": "c"}, {"name": "b"}], "atomic": [{"name": "y"}]}),
        );
        check(
            json!({"items": [{"name": "a", "nested": [{"name": "x"}]}]}),
            json!({"items": [{"name": "a", "nested": [{"name": "y"}]}]}),
            json!({"items": [{"name": "a", "nested": [{"name": "y"}, {"name": "x"}]}]}),
        );
        check(
            json!({"words": ["a", "b"]}),
            json!({"words": ["c", "a"]}),
            json!({"words": ["c", "a", "b"]}),
        );
    }

    #[test]
    fn directives_replace_and_delete() {
        check(
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
            json!({"items": [{"name": "a", "$patch": "delete"}]}),
            json!({"items": [{"name": "b"}]}),
        );
        check(
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
            json!({"items": [{"$patch": "replace"}, {"name": "c"}]}),
            json!({"items": [{"name": "c"}]}),
        );
        check(
            json!({"single": {"name": "a", "value": "b"}}),
            json!({"single": {"$patch": "replace", "value": "c"}}),
            json!({"single": {"value": "c"}}),
        );
        check(
            json!({"single": {"name": "a"}}),
            json!({"single": {"$patch": "delete"}}),
            json!({"single": {}}),
        );
        check(
            json!({}),
            json!({"items": [{"name": "a", "$patch": "delete"}, {"name": "b"}]}),
            json!({"items": [{"name": "b"}]}),
        );
        check_error(
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"value": "a"}]}),
        );
        check_error(
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"name": "a", "$patch": "x"}]}),
        );
        check_error(json!({}), json!({"$patch": "x"}));
        check_error(json!({}), json!([]));
    }

    #[test]
    fn retain_keys_drops_the_rest() {
        check(
            json!({"retained": {"name": "a", "value": "b"}}),
            json!({"retained": {"$retainKeys": ["name"], "name": "c"}}),
            json!({"retained": {"name": "c"}}),
        );
        check_error(json!({}), json!({"$retainKeys": ["labels"], "single": {}}));
        check_error(json!({}), json!({"$retainKeys": "labels"}));
    }

    #[test]
    fn values_are_deleted_from_primitive_lists() {
        check(
            json!({"words": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/words": ["b", "x"]}),
            json!({"words": ["a", "c"]}),
        );
        check_error(
            json!({"words": []}),
            json!({"$deleteFromPrimitiveList/words": "b"}),
        );
    }

    #[test]
    fn the_element_order_is_set() {
        check(
            json!({"items": [{"name": "a"}, {"name": "b"}, {"name": "server"}]}),
            json!({"$setElementOrder/items": [{"name": "b"}, {"name": "c"}, {"name": "a"}], "items": [{"name": "c", "value": "1"}]}),
            json!({"items": [{"name": "b"}, {"name": "c", "value": "1"}, {"name": "a"}, {"name": "server"}]}),
        );
        check(
            json!({"words": ["a", "b", "c"]}),
            json!({"$setElementOrder/words": ["c", "b"], "$deleteFromPrimitiveList/words": ["a"]}),
            json!({"words": ["c", "b"]}),
        );
        check_error(
            json!({}),
            json!({"$setElementOrder/items": [{"name": "b"}], "items": [{"name": "c"}]}),
        );
        let twisted = json!({"$setElementOrder/items": [{"name": "a"}, {"name": "b"}], "items": [{"name": "b"}, {"name": "a"}]});
        let error = strategic_merge(json!({"items": []}), twisted, &ROOT).unwrap_err();
        assert_eq!(
            error.to_string(),
            "The order in patch list:\n[map[name:b] map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:a] map[name:b]]\n"
        );
        check_error(json!({}), json!({"$setElementOrder/items": "b"}));
    }
}
