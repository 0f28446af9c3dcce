//! Owns: what apply does with objects by their tables: comparing two, merging one into the other, telling which fields
//! a configuration sets, and removing a set of fields. Structs and maps are gone into unless atomic, lists only when
//! their items have keys or are a set; everything else is a leaf.

use super::set::{self, FieldSet};
use crate::schema::{Field, KeyDefault, ListKind, ListType, Message, Type};
use serde_json::{Map, Value};
use smallvec::SmallVec;

type Object = Map<String, Value>;

/// What differs between two objects.
#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    /// Fields with another value, or only in the second.
    pub changed: FieldSet,
    /// Fields only in the first.
    pub removed: FieldSet,
}

impl Comparison {
    /// Whether the objects are the same.
    pub fn is_same(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

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

/// An item's path element: `k:{…}` or `v:…`. None when it lacks a key, and for a null.
fn element(list: &ListType, item: &Value) -> Option<String> {
    if list.kind == ListKind::Set {
        return if item.is_null() {
            None
        } else {
            Some(format!("v:{item}"))
        };
    }
    let item = item.as_object()?;
    let mut keys: Vec<(&str, Value)> = Vec::with_capacity(list.keys.len());
    for key in list.keys.iter() {
        let value = match (item.get(&*key.name), &key.default) {
            (Some(value), _) => value.clone(),
            (None, Some(KeyDefault::Text(text))) => Value::String(text.to_string()),
            (None, Some(KeyDefault::Value(value))) => value.clone(),
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
        text.push_str(&value.to_string());
    }
    text.push('}');
    Some(text)
}

/// The elements of all items; none when one has no element, which makes the list a leaf.
fn elements(list: &ListType, items: &[Value]) -> Option<Vec<String>> {
    items.iter().map(|item| element(list, item)).collect()
}

// Compare ---------------------------------------------------------------------------------------------------------

/// Compares two objects of a type.
pub fn compare(old: &Value, new: &Value, message: &Message) -> Comparison {
    let (changed, removed) = compare_maps(old.as_object(), new.as_object(), Shape::Struct(message));
    Comparison {
        changed: FieldSet::from_children(changed),
        removed: FieldSet::from_children(removed),
    }
}

/// The nodes a comparison adds to the two sets.
type Nodes = (Option<Value>, Option<Value>);

fn leaf(old: Option<&Value>, new: Option<&Value>) -> Nodes {
    let here = || Some(Value::Object(Object::new()));
    match (old, new) {
        (None, Some(_)) => (here(), None),
        (Some(_), None) => (None, here()),
        (Some(old), Some(new)) if old != new => (here(), None),
        _ => (None, None),
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn compare_values(old: Option<&Value>, new: Option<&Value>, shape: Shape<'_>) -> Nodes {
    // Two empty values are a leaf, which keeps null and empty apart.
    if is_empty(old) && is_empty(new) {
        return leaf(old, new);
    }
    let fits = |test: fn(&Value) -> bool| {
        let fit = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || test(value));
        fit(old) && fit(new)
    };
    let (changed, removed) = match shape {
        Shape::Struct(_) | Shape::Map(_) | Shape::Deduced if fits(Value::is_object) => {
            compare_maps(
                old.and_then(Value::as_object),
                new.and_then(Value::as_object),
                shape,
            )
        }
        Shape::List(list) if fits(Value::is_array) => {
            match compare_lists(items_of(old), items_of(new), list) {
                Some(nodes) => nodes,
                None => return leaf(old, new),
            }
        }
        _ => return leaf(old, new),
    };
    (
        set::node(changed, old.is_none()),
        set::node(removed, new.is_none()),
    )
}

fn compare_maps(old: Option<&Object>, new: Option<&Object>, shape: Shape<'_>) -> (Object, Object) {
    let (mut changed, mut removed) = (Object::new(), Object::new());
    let mut add = |name: &str, old: Option<&Value>, new: Option<&Value>| {
        let (gained, lost) = compare_values(old, new, shape.field(name));
        if let Some(gained) = gained {
            changed.insert(format!("f:{name}"), gained);
        }
        if let Some(lost) = lost {
            removed.insert(format!("f:{name}"), lost);
        }
    };
    for (name, value) in new.into_iter().flatten() {
        add(name, old.and_then(|old| old.get(name)), Some(value));
    }
    for (name, value) in old.into_iter().flatten() {
        if !new.is_some_and(|new| new.contains_key(name)) {
            add(name, Some(value), None);
        }
    }
    (changed, removed)
}

fn items_of(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn compare_lists(old: &[Value], new: &[Value], list: &ListType) -> Option<(Object, Object)> {
    let (old_elements, new_elements) = (elements(list, old)?, elements(list, new)?);
    let (mut changed, mut removed) = (Object::new(), Object::new());
    let shape = Shape::of(&list.item);
    let mut seen: Vec<&str> = Vec::with_capacity(new_elements.len());
    for element in new_elements.iter().chain(&old_elements) {
        if seen.contains(&element.as_str()) {
            continue;
        }
        seen.push(element);
        let pick = |elements: &[String]| -> SmallVec<[usize; 2]> {
            elements
                .iter()
                .enumerate()
                .filter(|(_, e)| *e == element)
                .map(|(index, _)| index)
                .collect()
        };
        let (before, after) = (pick(&old_elements), pick(&new_elements));
        let (first_old, first_new) = (
            before.first().map(|at| &old[*at]),
            after.first().map(|at| &new[*at]),
        );
        let mark = || Some(Value::Object(Object::new()));
        let (gained, lost) = match (before.len(), after.len()) {
            (0 | 1, 0 | 1) => compare_values(first_old, first_new, shape),
            // Items that are there several times are owned as one.
            (2.., 2..) => {
                let same = before.len() == after.len()
                    && before.iter().zip(&after).all(|(a, b)| old[*a] == new[*b]);
                (if same { None } else { mark() }, None)
            }
            (2.., _) => (compare_values(None, first_new, shape).0, mark()),
            (_, _) => (mark(), compare_values(first_old, None, shape).1),
        };
        if let Some(gained) = gained {
            changed.insert(element.clone(), gained);
        }
        if let Some(lost) = lost {
            removed.insert(element.clone(), lost);
        }
    }
    Some((changed, removed))
}

// Field set of a configuration ------------------------------------------------------------------------------------

/// The fields a configuration sets.
///
/// # Errors
/// An item of a keyed list that lacks a key, with its path.
pub fn field_set(config: &Value, message: &Message) -> Result<FieldSet, String> {
    let Value::Object(map) = config else {
        return Ok(FieldSet::new());
    };
    fields_of_map(map, Shape::Struct(message), "").map(FieldSet::from_children)
}

fn fields_of_map(map: &Object, shape: Shape<'_>, path: &str) -> Result<Object, String> {
    let mut fields = Object::new();
    for (name, value) in map {
        let child_path = format!("{path}.{name}");
        let children = fields_of_value(value, shape.field(name), &child_path)?;
        // An entry of a map is a field of its own; a struct's field is one when nothing stands below it.
        let member = is_empty(Some(value)) || children.is_empty() || !shape.has_field(name);
        fields.extend(set::node(children, member).map(|node| (format!("f:{name}"), node)));
    }
    Ok(fields)
}

fn fields_of_value(value: &Value, shape: Shape<'_>, path: &str) -> Result<Object, String> {
    match (shape, value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Deduced, Value::Object(map)) => {
            fields_of_map(map, shape, path)
        }
        (Shape::List(list), Value::Array(items)) => {
            let mut fields = Object::new();
            for (index, item) in items.iter().enumerate() {
                let Some(element) = element(list, item) else {
                    return Err(missing_key(list, item, path, index));
                };
                if fields.contains_key(&element) {
                    return Err(format!(
                        "{path}: duplicate entries for key {}",
                        element_in_words(&element)
                    ));
                }
                let children =
                    fields_of_value(item, Shape::of(&list.item), &format!("{path}[{index}]"))?;
                fields.extend(set::node(children, true).map(|node| (element, node)));
            }
            Ok(fields)
        }
        _ => Ok(Object::new()),
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

// Merge -----------------------------------------------------------------------------------------------------------

/// The live object with the configuration merged in: the configuration wins, list items keep the live order as far as
/// the configuration's order allows.
pub fn merge(live: Value, config: Value, message: &Message) -> Value {
    merge_values(live, config, Shape::Struct(message))
}

fn merge_values(live: Value, config: Value, shape: Shape<'_>) -> Value {
    match (shape, live, config) {
        (
            Shape::Struct(_) | Shape::Map(_) | Shape::Deduced,
            Value::Object(mut live),
            Value::Object(config),
        ) => {
            for (name, value) in config {
                let merged = match live.remove(&name) {
                    Some(old) => merge_values(old, value, shape.field(&name)),
                    None => value,
                };
                live.insert(name, merged);
            }
            Value::Object(live)
        }
        (Shape::List(list), Value::Array(live), Value::Array(config)) => {
            merge_lists(live, config, list)
        }
        (_, _, config) => config,
    }
}

fn merge_lists(live: Vec<Value>, config: Vec<Value>, list: &ListType) -> Value {
    let (Some(live_elements), Some(config_elements)) =
        (elements(list, &live), elements(list, &config))
    else {
        return Value::Array(config);
    };
    let shape = Shape::of(&list.item);
    let in_config = |element: &String| config_elements.contains(element);
    let mut shared = config_elements
        .iter()
        .filter(|element| live_elements.contains(element))
        .peekable();
    let mut live: Vec<Option<Value>> = live.into_iter().map(Some).collect();
    let mut config: Vec<Option<Value>> = config.into_iter().map(Some).collect();
    let (mut out, mut merged) = (
        Vec::with_capacity(live.len() + config.len()),
        Vec::<&String>::new(),
    );
    let (mut l, mut r) = (0, 0);
    while l < live.len() || r < config.len() {
        if l < live.len() && r < config.len() && live_elements[l] != config_elements[r] {
            let here = &live_elements[l];
            if in_config(here) && shared.peek().is_some_and(|next| *next != here) {
                // In both, but not the one whose turn it is.
                l += 1;
                continue;
            }
        }
        let turn = l < live.len() && (r >= config.len() || live_elements[l] != config_elements[r]);
        if turn {
            let here = &live_elements[l];
            if !in_config(here) {
                out.extend(live[l].take());
                l += 1;
                continue;
            }
            if merged.contains(&here) {
                l += 1;
            }
        }
        if r < config.len() {
            let here = &config_elements[r];
            merged.push(here);
            if let Some(value) = config[r].take() {
                let old = live_elements
                    .iter()
                    .position(|element| element == here)
                    .and_then(|at| live[at].take());
                out.push(match old {
                    Some(old) => merge_values(old, value, shape),
                    None => value,
                });
            }
            if l < live.len() && live_elements[l] == *here {
                l += 1;
            }
            r += 1;
            shared.next_if(|next| *next == here);
        } else if l < live.len()
            && in_config(&live_elements[l])
            && !merged.contains(&&live_elements[l])
        {
            l += 1;
        }
    }
    Value::Array(out)
}

// Remove ----------------------------------------------------------------------------------------------------------

/// Removes the members of a set from an object; containers that become empty are removed too.
pub(super) fn remove_items(object: &mut Value, fields: &FieldSet, message: &Message) {
    remove(object, fields.as_map(), Shape::Struct(message));
}

fn remove(value: &mut Value, fields: &Object, shape: Shape<'_>) {
    match (shape, &mut *value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Deduced, Value::Object(map)) => {
            let had = !map.is_empty();
            map.retain(|name, value| {
                let (member, below) = set::child(fields, &format!("f:{name}"));
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
pub(super) fn with_named_fields(fields: &FieldSet, message: &Message) -> FieldSet {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::schema::{ListKey, MapType};
    use serde_json::json;

    static PORT_FIELDS: [Field; 3] = [
        Field::new("name", Type::String, 0),
        Field::new("port", Type::Int32, 0),
        Field::new("protocol", Type::String, 0),
    ];
    static PORT: Message = Message::new("test.v1.Port", &PORT_FIELDS, &[]);
    static PORT_KEYS: [ListKey; 2] = [
        ListKey::new("port"),
        ListKey::with_default("protocol", "TCP"),
    ];
    static PORTS: ListType = ListType::new(Type::message(&PORT), ListKind::Map, &PORT_KEYS, "port");
    static ITEM_FIELDS: [Field; 3] = [
        Field::new("name", Type::String, 0),
        Field::new("ports", Type::list(&PORTS), 0),
        Field::new("value", Type::String, 0),
    ];
    static ITEM: Message = Message::new("test.v1.Item", &ITEM_FIELDS, &[]);
    static ITEM_KEYS: [ListKey; 1] = [ListKey::new("name")];
    static ITEMS: ListType = ListType::new(Type::message(&ITEM), ListKind::Map, &ITEM_KEYS, "name");
    static WORDS: ListType = ListType::new(Type::String, ListKind::Set, &[], "");
    static PLAIN: ListType = ListType::new(Type::String, ListKind::Unset, &[], "");
    static STRINGS: MapType = MapType {
        value: Type::String,
        atomic: false,
    };
    static SELECTOR: Message = Message::atomic("test.v1.Selector", &ITEM_FIELDS, &[]);
    static META_FIELDS: [Field; 3] = [
        Field::new("annotations", Type::map(&STRINGS), 0),
        Field::new("labels", Type::map(&STRINGS), 0),
        Field::new("name", Type::String, 0),
    ];
    static META: Message = Message::new("test.v1.Meta", &META_FIELDS, &[]);
    static SPEC_FIELDS: [Field; 6] = [
        Field::new("items", Type::list(&ITEMS), Field::ALWAYS),
        Field::new("plain", Type::list(&PLAIN), 0),
        Field::new("replicas", Type::Int32, Field::POINTER),
        Field::new("selector", Type::message(&SELECTOR), 0),
        Field::new("single", Type::message(&ITEM), 0),
        Field::new("words", Type::list(&WORDS), 0),
    ];
    static SPEC: Message = Message::new("test.v1.Spec", &SPEC_FIELDS, &[]);
    static FIELDS: [Field; 5] = [
        Field::new("apiVersion", Type::String, 0),
        Field::new("kind", Type::String, 0),
        Field::new("metadata", Type::message(&META), Field::ALWAYS),
        Field::new("spec", Type::message(&SPEC), Field::ALWAYS),
        Field::new("status", Type::message(&ITEM), Field::ALWAYS),
    ];
    pub(in crate::apply) static ROOT: Message = Message::new("test.v1.Root", &FIELDS, &[]);

    #[track_caller]
    fn check_compare(old: Value, new: Value, changed: Value, removed: Value) {
        let comparison = compare(&json!({"spec": old}), &json!({"spec": new}), &ROOT);
        let inner = |set: FieldSet| {
            set.into_fields_v1()
                .get("f:spec")
                .cloned()
                .unwrap_or(json!({}))
        };
        assert_eq!(
            (inner(comparison.changed), inner(comparison.removed)),
            (changed, removed)
        );
    }

    #[test]
    fn comparing_names_what_changed_and_what_went() {
        check_compare(
            json!({"replicas": 1}),
            json!({"replicas": 2}),
            json!({"f:replicas": {}}),
            json!({}),
        );
        check_compare(
            json!({"replicas": 1}),
            json!({"words": ["a"]}),
            json!({"f:words": {".": {}, "v:\"a\"": {}}}),
            json!({"f:replicas": {}}),
        );
        check_compare(
            json!({"items": [{"name": "a", "value": "1"}, {"name": "b"}]}),
            json!({"items": [{"name": "c"}, {"name": "a", "value": "2"}]}),
            json!({"f:items": {"k:{\"name\":\"a\"}": {"f:value": {}}, "k:{\"name\":\"c\"}": {".": {}, "f:name": {}}}}),
            json!({"f:items": {"k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}}),
        );
        check_compare(
            json!({"selector": {"name": "a"}, "plain": ["a"]}),
            json!({"selector": {"name": "b"}, "plain": ["b"]}),
            json!({"f:selector": {}, "f:plain": {}}),
            json!({}),
        );
        check_compare(
            json!({}),
            json!({"single": {}}),
            json!({"f:single": {}}),
            json!({}),
        );
        // A null list that gets items is not itself new, as with the zero object of a create.
        check_compare(
            json!({"items": null}),
            json!({"items": [{"name": "a"}]}),
            json!({"f:items": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}}),
            json!({}),
        );
    }

    #[test]
    fn keys_have_defaults_and_a_missing_key_makes_a_leaf() {
        check_compare(
            json!({"single": {"ports": []}}),
            json!({"single": {"ports": [{"port": 80}]}}),
            json!({"f:single": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}}),
            json!({}),
        );
        check_compare(
            json!({"items": [{"value": "x"}]}),
            json!({"items": [{"value": "y"}]}),
            json!({"f:items": {}}),
            json!({}),
        );
    }

    #[test]
    fn repeated_items_are_owned_as_one() {
        check_compare(
            json!({"words": ["a"]}),
            json!({"words": ["a", "a"]}),
            json!({"f:words": {"v:\"a\"": {}}}),
            json!({"f:words": {"v:\"a\"": {}}}),
        );
        check_compare(
            json!({"words": ["a", "a"]}),
            json!({"words": ["a", "a"]}),
            json!({}),
            json!({}),
        );
    }

    #[test]
    fn a_configurations_fields_are_its_leaves_entries_and_items() {
        let config = json!({"metadata": {"labels": {"a": "1"}, "annotations": {}},
            "spec": {"items": [{"name": "a", "ports": [{"port": 1}]}], "words": [], "single": {"value": "x"}, "plain": ["a"]}});
        assert_eq!(
            field_set(&config, &ROOT).expect("valid").into_fields_v1(),
            json!({"f:metadata": {"f:labels": {"f:a": {}}, "f:annotations": {}},
                "f:spec": {"f:items": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:ports": {"k:{\"port\":1,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}},
                    "f:words": {}, "f:single": {"f:value": {}}, "f:plain": {}}})
        );
        let error =
            field_set(&json!({"spec": {"items": [{"value": "a"}]}}), &ROOT).expect_err("no key");
        assert!(error.contains("omits key field \"name\""), "{error}");
        let error = field_set(
            &json!({"spec": {"items": [{"name": "a"}, {"name": "a"}]}}),
            &ROOT,
        )
        .expect_err("twice");
        assert_eq!(error, ".spec.items: duplicate entries for key [name=\"a\"]");
    }

    #[track_caller]
    fn check_merge(live: Value, config: Value, expected: Value) {
        let merged = merge(json!({"spec": live}), json!({"spec": config}), &ROOT);
        assert_eq!(merged, json!({"spec": expected}));
    }

    #[test]
    fn merging_keeps_what_the_configuration_does_not_name() {
        check_merge(
            json!({"replicas": 1, "items": [{"name": "a", "value": "1"}, {"name": "b"}], "plain": ["a"], "words": ["a", "b"]}),
            json!({"items": [{"name": "b", "value": "2"}, {"name": "c"}], "plain": ["b"], "words": ["c"]}),
            json!({"replicas": 1, "items": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}, {"name": "c"}], "plain": ["b"], "words": ["a", "b", "c"]}),
        );
        check_merge(
            json!({"words": ["a", "b", "c"]}),
            json!({"words": ["c", "a"]}),
            json!({"words": ["b", "c", "a"]}),
        );
        check_merge(
            json!({"words": ["x", "a", "y"]}),
            json!({"words": ["n", "a"]}),
            json!({"words": ["x", "n", "a", "y"]}),
        );
        check_merge(
            json!({"words": ["a"]}),
            json!({"words": ["a"]}),
            json!({"words": ["a"]}),
        );
        check_merge(
            json!({"words": []}),
            json!({"words": ["a", "b"]}),
            json!({"words": ["a", "b"]}),
        );
    }

    #[test]
    fn removing_takes_items_fields_and_emptied_containers() {
        let mut object = json!({"spec": {"items": [{"name": "a", "value": "1"}, {"name": "b"}], "words": ["a"], "replicas": 1}});
        let fields = FieldSet::from_fields_v1(json!({"f:spec": {"f:items": {"k:{\"name\":\"a\"}": {"f:value": {}}, "k:{\"name\":\"b\"}": {}},
            "f:words": {"v:\"a\"": {}}}}))
        .expect("a set");
        remove_items(&mut object, &fields, &ROOT);
        assert_eq!(
            object,
            json!({"spec": {"items": [{"name": "a"}], "replicas": 1}})
        );
    }

    #[test]
    fn named_fields_on_the_way_become_members() {
        let fields = FieldSet::from_fields_v1(json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:items": {"k:{\"name\":\"a\"}": {"f:value": {}}}}})).expect("a set");
        assert_eq!(
            with_named_fields(&fields, &ROOT).into_fields_v1(),
            json!({"f:metadata": {".": {}, "f:labels": {".": {}, "f:a": {}}},
                "f:spec": {".": {}, "f:items": {".": {}, "k:{\"name\":\"a\"}": {"f:value": {}}}}})
        );
    }
}
