//! Small types and what becomes of their objects.

use super::super::{ListKind, MapType};
use super::*;
use serde_json::json;

static INNER_FIELDS: [Field; 6] = [
    Field::new("amount", Type::Quantity, 0),
    Field::new("count", Type::Int32, Field::POINTER),
    Field::new("data", Type::Bytes, 0),
    Field::new("name", Type::String, Field::REQUIRED | Field::ALWAYS),
    Field::new("off", Type::Bool, 0),
    Field::new("on", Type::Bool, Field::POINTER),
];
static INNER: Message = Message::new("test.v1.Inner", &INNER_FIELDS, &[]);
static ITEMS: ListType = ListType::new(Type::message(&INNER), ListKind::Atomic, &[], "");
static LABELS: MapType = MapType {
    value: Type::String,
    atomic: false,
};
static OUTER_FIELDS: [Field; 7] = [
    Field::new("items", Type::list(&ITEMS), 0),
    Field::new("labels", Type::map(&LABELS), 0),
    Field::new("port", Type::IntOrString, 0),
    Field::new("raw", Type::Raw, 0),
    Field::new("rules", Type::list(&ITEMS), Field::ALWAYS),
    Field::new("status", Type::message(&INNER), Field::ALWAYS),
    Field::new("when", Type::Time, 0),
];
pub(in crate::schema) static OUTER: Message = Message::new("test.v1.Outer", &OUTER_FIELDS, &[]);

#[track_caller]
fn check(mut object: Value, expected: Value) {
    conform(&mut object, &OUTER).expect("fits");
    assert_eq!(object, expected);
}

#[track_caller]
fn check_error(mut object: Value, error: &str) {
    assert_eq!(
        conform(&mut object, &OUTER).expect_err("does not fit"),
        error
    );
}

#[test]
fn an_object_becomes_what_go_writes() {
    check(
        json!({"items": [{"amount": "1000m", "on": false, "off": false, "count": 0}], "labels": {}, "raw": null, "rules": []}),
        json!({"items": [{"amount": "1", "name": "", "on": false, "count": 0}], "rules": [], "status": {"name": ""}}),
    );
    check(
        json!({"labels": {"a": null}, "items": [null], "port": 0, "when": "2020-01-01T01:00:00.5+01:00"}),
        json!({"labels": {"a": ""}, "items": [{"name": ""}], "port": 0, "when": "2020-01-01T00:00:00Z", "rules": null,
            "status": {"name": ""}}),
    );
}

#[test]
fn unknown_fields_are_dropped_and_named() {
    let mut object =
        json!({"a": 1, "items": [{"y": {"z": 1}}], "raw": {"free": 1}, "status": {"zzz": 1}});
    assert_eq!(
        conform(&mut object, &OUTER).expect("fits"),
        ["a", "items[0].y", "status.zzz"]
    );
    assert_eq!(
        object,
        json!({"items": [{"name": ""}], "raw": {"free": 1}, "rules": null, "status": {"name": ""}})
    );
    let mut object = json!({"a": 1, "status": {}});
    assert_eq!(prune(&mut object, &OUTER), ["a"]);
    assert_eq!(object, json!({"status": {}}));
}

#[test]
fn wrong_types_are_refused_in_gos_words() {
    check_error(
        json!({"items": "x"}),
        "json: cannot unmarshal string into Go struct field Outer.items of type []v1.Inner",
    );
    check_error(
        json!({"items": [{"count": "1"}]}),
        "json: cannot unmarshal string into Go struct field Inner.items.count of type int32",
    );
    check_error(
        json!({"items": [{"count": 3000000000u32}]}),
        "json: cannot unmarshal number 3000000000 into Go struct field Inner.items.count of type int32",
    );
    check_error(
        json!({"labels": {"a": 1}}),
        "json: cannot unmarshal number into Go struct field Outer.labels of type string",
    );
    check_error(
        json!([]),
        "json: cannot unmarshal array into Go value of type v1.Outer",
    );
    check_error(
        json!({"port": true}),
        "json: cannot unmarshal bool into Go value of type int32",
    );
    check_error(
        json!({"status": {"data": "a*=="}}),
        "illegal base64 data at input byte 1",
    );
    check_error(
        json!({"status": {"amount": "x"}}),
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    );
    check_error(
        json!({"when": "x"}),
        "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
    );
}
