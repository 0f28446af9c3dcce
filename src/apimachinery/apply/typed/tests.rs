//! Small types and what is done with their objects.

use super::super::set::FieldSet;
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
