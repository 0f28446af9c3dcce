//! Ownership told as stories: who writes what, and what `managedFields` says afterwards.

use super::super::typed::tests::ROOT;
use super::*;

struct Story {
    object: Value,
    tick: u32,
}

impl Story {
    fn new() -> Self {
        Self {
            object: Value::Null,
            tick: 0,
        }
    }

    fn write<'a>(manager: &'a str, now: &'a str, reset: &'a FieldSet) -> Write<'a> {
        Write {
            manager,
            api_version: "test/v1",
            subresource: "",
            now,
            message: &ROOT,
            reset,
        }
    }

    fn now(&mut self) -> String {
        self.tick += 1;
        format!("2026-01-01T00:00:{:02}Z", self.tick)
    }

    /// The manager writes this spec; metadata stays as it is.
    fn update(&mut self, manager: &str, spec: Value) -> &mut Self {
        let now = self.now();
        let mut new = if self.object.is_object() {
            self.object.clone()
        } else {
            json!({"metadata": {"name": "x"}})
        };
        new["spec"] = spec;
        update(
            &self.object,
            &mut new,
            &Self::write(manager, &now, &FieldSet::of_paths(&["status"])),
        );
        self.object = new;
        self
    }

    fn try_apply(&mut self, manager: &str, spec: Value, force: bool) -> Result<(), Status> {
        let now = self.now();
        let config = json!({"apiVersion": "test/v1", "kind": "Root", "metadata": {"name": "x"}, "spec": spec});
        let reset = FieldSet::of_paths(&["status"]);
        self.object = apply(
            &self.object,
            &config,
            &Self::write(manager, &now, &reset),
            force,
        )?;
        Ok(())
    }

    #[track_caller]
    fn apply(&mut self, manager: &str, spec: Value) -> &mut Self {
        self.try_apply(manager, spec, false).expect("no conflict");
        self
    }

    #[track_caller]
    fn spec(&mut self, expected: Value) -> &mut Self {
        assert_eq!(self.object["spec"], expected);
        self
    }

    /// What a manager owns below spec, by operation.
    #[track_caller]
    fn owns(&mut self, manager: &str, operation: &str, expected: Value) -> &mut Self {
        let found = self.object["metadata"]["managedFields"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|e| e["manager"] == manager && e["operation"] == operation)
            .map_or(json!({}), |e| e["fieldsV1"]["f:spec"].clone());
        assert_eq!(found, expected, "{manager}");
        self
    }
}

#[test]
fn a_create_owns_what_it_sets_and_an_update_what_it_changes() {
    Story::new()
        .update("a", json!({"items": [{"name": "i", "value": "1"}], "replicas": 1, "words": ["w"]}))
        .owns(
            "a",
            "Update",
            json!({"f:items": {"k:{\"name\":\"i\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:replicas": {},
                "f:words": {".": {}, "v:\"w\"": {}}}),
        )
        .update("b", json!({"items": [{"name": "i", "value": "2"}], "replicas": 1}))
        .owns("b", "Update", json!({"f:items": {"k:{\"name\":\"i\"}": {"f:value": {}}}}))
        .owns("a", "Update", json!({"f:items": {"k:{\"name\":\"i\"}": {".": {}, "f:name": {}}}, "f:replicas": {}}));
}

#[test]
fn a_write_without_change_leaves_the_entries_alone() {
    let mut story = Story::new();
    story.update("a", json!({"replicas": 1}));
    let before = story.object.clone();
    story.update("b", json!({"replicas": 1}));
    assert_eq!(story.object, before);
    story.update("a", json!({"replicas": 1}));
    assert_eq!(story.object, before);
}

#[test]
fn an_entry_has_upstreams_fields() {
    let mut story = Story::new();
    story.update("a", json!({"replicas": 1}));
    assert_eq!(
        story.object["metadata"]["managedFields"],
        json!([{"manager": "a", "operation": "Update", "apiVersion": "test/v1", "time": "2026-01-01T00:00:01Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}}])
    );
}

#[test]
fn applying_again_removes_what_is_no_longer_there() {
    Story::new()
        .apply("a", json!({"replicas": 1, "items": [{"name": "i", "value": "1"}, {"name": "j"}], "words": ["w", "v"]}))
        .apply("a", json!({"items": [{"name": "i"}], "words": ["v"]}))
        .spec(json!({"items": [{"name": "i"}], "words": ["v"]}))
        .owns("a", "Apply", json!({"f:items": {"k:{\"name\":\"i\"}": {".": {}, "f:name": {}}}, "f:words": {"v:\"v\"": {}}}))
        .apply("a", json!({}))
        .spec(json!({"items": null}));
}

#[test]
fn what_another_manager_owns_is_kept_when_the_applier_leaves_it() {
    Story::new()
        .apply("a", json!({"replicas": 1, "words": ["w"]}))
        .apply("b", json!({"replicas": 1, "words": ["v"]}))
        .apply("a", json!({"words": ["w"]}))
        .spec(json!({"items": null, "replicas": 1, "words": ["w", "v"]}))
        .owns(
            "b",
            "Apply",
            json!({"f:replicas": {}, "f:words": {"v:\"v\"": {}}}),
        )
        .apply("b", json!({}))
        .spec(json!({"items": null, "words": ["w"]}));
}

#[test]
fn another_managers_value_is_a_conflict_unless_forced() {
    let mut story = Story::new();
    story.update(
        "a",
        json!({"items": [{"name": "i", "value": "1"}], "replicas": 1}),
    );
    let error = story
        .try_apply("b", json!({"replicas": 2}), false)
        .expect_err("a conflict");
    assert_eq!(error.code, 409);
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"a\" using test/v1: .spec.replicas"
    );
    let causes = error.details.expect("details").causes;
    assert_eq!(
        (causes[0].reason.as_str(), causes[0].field.as_str()),
        ("FieldManagerConflict", ".spec.replicas")
    );
    let error = story
        .try_apply(
            "b",
            json!({"replicas": 2, "items": [{"name": "i", "value": "2"}]}),
            false,
        )
        .expect_err("two conflicts");
    assert_eq!(
        error.message,
        "Apply failed with 2 conflicts: conflicts with \"a\" using test/v1:\n- .spec.items[name=\"i\"].value\n- .spec.replicas"
    );
    story
        .try_apply("b", json!({"replicas": 2}), true)
        .expect("forced");
    story
        .spec(json!({"items": [{"name": "i", "value": "1"}], "replicas": 2}))
        .owns("b", "Apply", json!({"f:replicas": {}}))
        .owns(
            "a",
            "Update",
            json!({"f:items": {"k:{\"name\":\"i\"}": {".": {}, "f:name": {}, "f:value": {}}}}),
        );
}

#[test]
fn the_same_value_is_shared_and_an_update_takes_it_from_the_applier() {
    Story::new()
        .update("a", json!({"replicas": 1}))
        .apply("b", json!({"replicas": 1}))
        .owns("a", "Update", json!({"f:replicas": {}}))
        .owns("b", "Apply", json!({"f:replicas": {}}))
        .update("a", json!({"replicas": 3}))
        .owns("b", "Apply", json!({}))
        .apply("b", json!({"words": ["w"]}))
        .spec(json!({"items": null, "replicas": 3, "words": ["w"]}));
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let mut story = Story::new();
    story.apply(
        "a",
        json!({"replicas": 1, "items": [{"name": "i", "ports": [{"port": 80}]}]}),
    );
    let before = story.object.clone();
    story.apply(
        "a",
        json!({"replicas": 1, "items": [{"name": "i", "ports": [{"port": 80}]}]}),
    );
    assert_eq!(story.object, before);
}

#[test]
fn an_object_without_managed_fields_is_owned_by_its_past() {
    let mut story = Story::new();
    story.object = json!({"metadata": {"name": "x"}, "spec": {"replicas": 1}});
    let error = story
        .try_apply("a", json!({"replicas": 2}), false)
        .expect_err("a conflict");
    assert!(
        error
            .message
            .contains("\"before-first-apply\" using test/v1: .spec.replicas"),
        "{}",
        error.message
    );
}

#[test]
fn kubectl_takes_over_from_its_client_side_apply() {
    let mut story = Story::new();
    story.update(
        "kubectl-client-side-apply",
        json!({"replicas": 1, "words": ["w"]}),
    );
    let last = json!({"apiVersion": "test/v1", "kind": "Root", "metadata": {"name": "x"}, "spec": {"replicas": 1}}).to_string();
    meta::set_annotation(&mut story.object, LAST_APPLIED, &last);
    let error = story
        .try_apply("other", json!({"replicas": 2}), false)
        .expect_err("a conflict");
    assert_eq!(error.code, 409);
    story
        .apply("kubectl", json!({"replicas": 2}))
        .spec(json!({"items": null, "replicas": 2, "words": ["w"]}));
    let refreshed = meta::annotation(&story.object, LAST_APPLIED).expect("kept");
    assert!(
        refreshed.contains("\"replicas\":2") && refreshed.ends_with('\n'),
        "{refreshed}"
    );
}

#[test]
fn a_configuration_is_checked() {
    let reset = FieldSet::new();
    let write = Story::write("a", "2026-01-01T00:00:00Z", &reset);
    let refuse = |config: Value| {
        apply(&Value::Null, &config, &write, false)
            .expect_err("refused")
            .message
    };
    assert_eq!(
        refuse(json!({"apiVersion": "test/v1", "metadata": {"managedFields": []}})),
        "metadata.managedFields must be nil"
    );
    assert!(refuse(json!({"apiVersion": "v2", "metadata": {}})).starts_with("Incorrect version"));
    assert!(
        refuse(json!({"apiVersion": "test/v1", "kind": "Root", "metadata": {"name": "x"}, "spec": {"foo": 1}}))
            .ends_with(": .spec.foo: field not declared in schema")
    );
    assert!(
        refuse(json!({"apiVersion": "test/v1", "kind": "Root", "metadata": {"name": "x"}, "spec": {"replicas": "1"}}))
            .ends_with(": .spec.replicas: expected numeric (int or float), got string")
    );
    assert!(
        refuse(json!({"apiVersion": "test/v1", "kind": "Root", "metadata": {"name": "x"}, "spec": {"items": [{}]}}))
            .starts_with("failed to create typed patch object (/x; test/v1, Kind=Root): .spec.items")
    );
}

#[test]
fn clients_may_send_reset_or_forget_managed_fields() {
    let mut story = Story::new();
    story.update("a", json!({"replicas": 1}));
    let kept = story.object["metadata"]["managedFields"].clone();
    let reset = FieldSet::new();
    let write = Story::write("b", "2026-01-01T00:01:00Z", &reset);
    let mut forgotten = story.object.clone();
    meta::metadata_mut(&mut forgotten).remove("managedFields");
    update(&story.object, &mut forgotten, &write);
    assert_eq!(forgotten["metadata"]["managedFields"], kept);
    let mut emptied = story.object.clone();
    emptied["metadata"]["managedFields"] = json!([{}]);
    update(&story.object, &mut emptied, &write);
    assert!(emptied["metadata"].get("managedFields").is_none());
    let mut broken = story.object.clone();
    broken["metadata"]["managedFields"] = json!([{"operation": "x"}]);
    update(&story.object, &mut broken, &write);
    assert_eq!(broken["metadata"]["managedFields"], kept);
}

#[test]
fn old_update_managers_are_folded() {
    let mut story = Story::new();
    for n in 0..15 {
        let words: Vec<String> = (0..=n).map(|w| format!("w{w}")).collect();
        story.update(&format!("m{n:02}"), json!({"words": words}));
    }
    let entries = story.object["metadata"]["managedFields"]
        .as_array()
        .expect("entries")
        .clone();
    assert_eq!(entries.len(), MAX_UPDATE_MANAGERS);
    assert!(entries.iter().any(|e| e["manager"] == ANCIENT));
    assert!(entries.iter().any(|e| e["manager"] == "m14"));
    let reset = FieldSet::new();
    let mut all = FieldSet::new();
    entries
        .iter()
        .for_each(|e| all.union(FieldSet::from_fields_v1(e["fieldsV1"].clone()).expect("a set")));
    let mut created = story.object.clone();
    meta::metadata_mut(&mut created).remove("managedFields");
    update(
        &Value::Null,
        &mut created,
        &Story::write("z", "2026-01-01T00:01:00Z", &reset),
    );
    assert_eq!(
        created["metadata"]["managedFields"][0]["fieldsV1"],
        all.into_fields_v1()
    );
}

#[test]
fn a_difference_in_times_alone_is_none() {
    let mut story = Story::new();
    story.update("a", json!({"replicas": 1}));
    let mut later = story.object.clone();
    later["metadata"]["managedFields"][0]["time"] = json!("2027-01-01T00:00:00Z");
    ignore_times(&story.object, &mut later);
    assert_eq!(later, story.object);
    later["metadata"]["managedFields"][0]["time"] = json!("2027-01-01T00:00:00Z");
    later["spec"]["replicas"] = json!(2);
    ignore_times(&story.object, &mut later);
    assert_ne!(later["metadata"], story.object["metadata"]);
}
