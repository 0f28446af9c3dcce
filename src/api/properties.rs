//! Properties that hold for every kind, checked on the golden objects: applying twice changes nothing, a strategic patch
//! made of two objects turns one into the other, and so does a merge patch.

use crate::golden::{difference, folder, objects, read};
use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{Write, apply, update};
use apimachinery::patch::{
    create_merge_patch, create_strategic_patch, merge_patch, strategic_merge,
};
use apimachinery::schema::{Message, conform};
use apimachinery::{Value, meta};
use serde_json::json;

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

#[test]
fn applying_every_kind_twice_changes_nothing() {
    each(|name, message, object| {
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
        let nothing = json!({"apiVersion": version, "kind": object["kind"], "metadata": {"name": meta::name(&object)}});
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
    });
}

#[test]
fn a_patch_made_of_two_objects_turns_one_into_the_other() {
    each(|name, message, object| {
        let mut bare = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "other", "labels": {"x": "y"}}});
        conform(&mut bare, message).expect("fits");
        for (from, to) in [(&object, &bare), (&bare, &object), (&object, &object)] {
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
    });
}
