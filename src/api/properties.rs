//! Properties that hold for every kind, checked on the golden objects where they are there and on objects made by chance:
//! each encoding reads back what it wrote, applying twice changes nothing, a strategic patch made of two objects turns one
//! into the other, and so does a merge patch.

use crate::golden::{difference, folder, objects, read};
use std::collections::BTreeSet;

use crate::random::{Random, numbered};
use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{Write, apply, update};
use apimachinery::codec::{json, protobuf, yaml};
use apimachinery::patch::{
    create_merge_patch, create_strategic_patch, merge_patch, strategic_merge,
};
use apimachinery::schema::{Message, Type, conform};
use apimachinery::{Value, meta};
use serde_json::json as tree;

/// Every golden object that is an object of the API, fitted to its table.
fn each(mut check: impl FnMut(&str, &'static Message, Value)) {
    let Some(folder) = folder() else { return };
    for (name, message) in objects(&folder) {
        let mut object: Value =
            serde_json::from_slice(&read(&folder, &name, "json")).expect("golden JSON");
        conform(&mut object, message).expect("fits");
        if meta::name(&object).is_empty() {
            continue;
        }
        meta::metadata_mut(&mut object).remove("managedFields");
        // A map with a null in it, which no patch can say.
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            status.remove("disruptedPods");
        }
        check(&name, message, object);
    }
}

/// Pairs of random objects of each kind for a property.
const ENCODED: usize = 4;
const APPLIED: usize = 2;
const PATCHED: usize = 2;

/// Pairs of random objects of every kind whose objects have a name.
fn each_random(pairs: usize, mut check: impl FnMut(&str, &'static Message, (Value, Value))) {
    let mut random = Random(0x0b1ec7);
    for (group, version, kind, message) in crate::generated::schema::KINDS {
        let metadata = message.field("metadata").map(|field| &field.ty);
        let named =
            matches!(metadata, Some(Type::Message(metadata)) if metadata.field("name").is_some());
        if !named || message.field("kind").is_none() {
            continue;
        }
        let api_version = match *group {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        };
        for _ in 0..pairs {
            let mut make = || random.object(&api_version, kind, message);
            let pair = (make(), make());
            check(&format!("{api_version} {kind}"), message, pair);
        }
    }
}

/// Applies an object twice, and then nothing.
#[track_caller]
fn check_apply(name: &str, message: &'static Message, object: Value) {
    let version = meta::api_version(&object).to_owned();
    let reset = FieldSet::new();
    let at = |now: &'static str| Write {
        manager: "m",
        api_version: &version,
        subresource: "",
        now,
        message,
        reset: &reset,
    };
    let first = apply(&Value::Null, &object, &at("2026-01-01T00:00:00Z"), false)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut plain = first.clone();
    meta::metadata_mut(&mut plain).remove("managedFields");
    assert_eq!(difference("", &object, &plain), None, "{name}");
    let second = apply(&first, &object, &at("2027-01-01T00:00:00Z"), false)
        .expect("no conflict with itself");
    assert_eq!(difference("", &first, &second), None, "{name}");
    let mut third = first.clone();
    update(&first, &mut third, &at("2028-01-01T00:00:00Z"));
    assert_eq!(difference("", &first, &third), None, "{name}");
    // The applier that lets go of everything leaves nothing of it.
    let nothing = tree!({"apiVersion": version, "kind": object["kind"], "metadata": {"name": meta::name(&object)}});
    let emptied = apply(&first, &nothing, &at("2029-01-01T00:00:00Z"), false)
        .expect("no conflict with itself");
    let mut zero = nothing.clone();
    conform(&mut zero, message).expect("fits");
    let mut left = emptied.clone();
    meta::metadata_mut(&mut left).remove("managedFields");
    let removed = create_merge_patch(&zero, &left);
    assert!(
        emptied["metadata"].get("labels").is_none(),
        "{name}: {removed}"
    );
}

#[test]
fn applying_every_kind_twice_changes_nothing() {
    each(|name, message, object| check_apply(name, message, object));
    each_random(APPLIED, |name, message, random| {
        check_apply(name, message, random.1);
    });
}

/// Makes patches from each object to the other, and to itself.
#[track_caller]
fn check_patches(name: &str, message: &'static Message, object: &Value, other: &Value) {
    for (from, to) in [(object, other), (other, object), (object, object)] {
        let patch = create_strategic_patch(from, to, message);
        let mut patched = strategic_merge(from.clone(), patch.clone(), message)
            .unwrap_or_else(|error| panic!("{name}: {error} {patch}"));
        conform(&mut patched, message).expect("fits");
        assert_eq!(difference("", to, &patched), None, "{name}: {patch}");
        let mut merged = from.clone();
        merge_patch(&mut merged, create_merge_patch(from, to));
        conform(&mut merged, message).expect("fits");
        assert_eq!(difference("", to, &merged), None, "{name}");
    }
}

#[test]
fn a_patch_made_of_two_objects_turns_one_into_the_other() {
    each(|name, message, object| {
        let mut bare = tree!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "other", "labels": {"x": "y"}}});
        conform(&mut bare, message).expect("fits");
        check_patches(name, message, &object, &bare);
    });
    each_random(PATCHED, |name, message, random| {
        check_patches(name, message, &random.0, &random.1);
    });
}

#[test]
fn every_encoding_reads_back_what_it_wrote() {
    each_random(ENCODED, |name, message, random| {
        let object = random.0;
        let again = json::decode(&json::encode(&object)).expect("JSON");
        assert_eq!(difference("", &object, &again.value), None, "{name}");
        let text = yaml::encode(&object);
        let again = yaml::decode(&text)
            .unwrap_or_else(|error| panic!("{name}: {error}:\n{}", String::from_utf8_lossy(&text)));
        assert_eq!(difference("", &object, &again.value), None, "{name}");
        if message.wire.is_empty() {
            return;
        }
        let bytes = protobuf::encode_object(&object, message);
        let again = protobuf::decode_object(&bytes, |_, _| Some(message))
            .unwrap_or_else(|error| panic!("{name}: {error}: {object}"));
        assert_eq!(difference("", &object, &again), None, "{name}");
        assert_eq!(
            protobuf::encode_object(&again, message),
            bytes,
            "{name}: other bytes"
        );
    });
}

#[test]
fn every_field_has_a_number_in_protobuf() {
    fn walk(
        message: &'static Message,
        seen: &mut BTreeSet<String>,
        missing: &mut BTreeSet<String>,
    ) {
        if !seen.insert(message.name.to_string()) {
            return;
        }
        let numbered = numbered(message);
        for field in message.fields.iter() {
            let is_kind = matches!(&*field.name, "apiVersion" | "kind");
            if !message.wire.is_empty() && !is_kind && !numbered.contains(&*field.name) {
                missing.insert(format!("{} {}", message.go_name(), field.name));
            }
            inner(&field.ty, seen, missing);
        }
    }
    fn inner(ty: &'static Type, seen: &mut BTreeSet<String>, missing: &mut BTreeSet<String>) {
        match ty {
            Type::Message(message) | Type::SchemaOr(message, _) => walk(message, seen, missing),
            Type::List(list) => inner(&list.item, seen, missing),
            Type::Map(map) => inner(&map.value, seen, missing),
            _ => {}
        }
    }
    let (mut seen, mut missing) = (BTreeSet::new(), BTreeSet::new());
    for (_, _, _, message) in crate::generated::schema::KINDS {
        walk(message, &mut seen, &mut missing);
    }
    assert!(missing.is_empty(), "{missing:?}");
}
