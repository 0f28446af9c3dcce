//! Owns: reading and writing the metadata of an object held as a JSON tree. Knows nothing of kinds; every reader
//! answers with an empty value where a field is absent or has the wrong type, so that input never panics.

use serde_json::{Map, Value};

/// An owner reference as it stands in `metadata.ownerReferences`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// Group and version of the owner, `apps/v1`.
    pub api_version: &'a str,
    /// Kind of the owner.
    pub kind: &'a str,
    /// Name of the owner, in the same namespace or cluster scoped.
    pub name: &'a str,
    /// UID of the owner.
    pub uid: &'a str,
    /// Whether the owner is the managing controller.
    pub controller: bool,
    /// Whether the owner's foreground deletion waits for this object.
    pub block_owner_deletion: bool,
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or("")
}

/// The `metadata` map, if there is one.
pub fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata").and_then(Value::as_object)
}

/// The `metadata` map, made when absent. An object that is not a map is turned into an empty one first.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(as_map_mut(object), "metadata")
}

fn as_map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

fn child_mut<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    as_map_mut(map.entry(key).or_insert_with(|| Value::Object(Map::new())))
}

fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object)
        .and_then(|m| m.get(field))
        .and_then(Value::as_str)
        .unwrap_or("")
}

fn set_meta_text(object: &mut Value, field: &str, value: &str) {
    let metadata = metadata_mut(object);
    if value.is_empty() {
        metadata.remove(field);
    } else {
        metadata.insert(field.to_owned(), Value::String(value.to_owned()));
    }
}

/// `apiVersion`, or "".
pub fn api_version(object: &Value) -> &str {
    text(object, "apiVersion")
}

/// `kind`, or "".
pub fn kind(object: &Value) -> &str {
    text(object, "kind")
}

/// Splits an `apiVersion` into group and version; the core group is "".
pub fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Joins group and version into an `apiVersion`.
pub fn join_group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// `metadata.name`, or "".
pub fn name(object: &Value) -> &str {
    meta_text(object, "name")
}

/// `metadata.namespace`, or "".
pub fn namespace(object: &Value) -> &str {
    meta_text(object, "namespace")
}

/// `metadata.generateName`, or "".
pub fn generate_name(object: &Value) -> &str {
    meta_text(object, "generateName")
}

/// `metadata.uid`, or "".
pub fn uid(object: &Value) -> &str {
    meta_text(object, "uid")
}

/// `metadata.resourceVersion`, or "".
pub fn resource_version(object: &Value) -> &str {
    meta_text(object, "resourceVersion")
}

/// `metadata.creationTimestamp` as written, or "".
pub fn creation_timestamp(object: &Value) -> &str {
    meta_text(object, "creationTimestamp")
}

/// `metadata.deletionTimestamp` as written; `None` when the object is not being deleted.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    Some(meta_text(object, "deletionTimestamp")).filter(|t| !t.is_empty())
}

/// Whether `metadata.deletionTimestamp` is set.
pub fn is_deleting(object: &Value) -> bool {
    deletion_timestamp(object).is_some()
}

/// `metadata.deletionGracePeriodSeconds`.
pub fn deletion_grace_period_seconds(object: &Value) -> Option<i64> {
    metadata(object)?
        .get("deletionGracePeriodSeconds")?
        .as_i64()
}

/// `metadata.generation`, or 0.
pub fn generation(object: &Value) -> i64 {
    metadata(object)
        .and_then(|m| m.get("generation"))
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

/// `metadata.labels`, if present.
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object)?.get("labels")?.as_object()
}

/// One label's value.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    labels(object)?.get(key)?.as_str()
}

/// `metadata.annotations`, if present.
pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object)?.get("annotations")?.as_object()
}

/// One annotation's value.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    annotations(object)?.get(key)?.as_str()
}

/// `metadata.finalizers` in order.
pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    metadata(object)
        .and_then(|m| m.get("finalizers"))
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .filter_map(Value::as_str)
}

/// `metadata.ownerReferences` in order.
pub fn owner_references(object: &Value) -> impl Iterator<Item = OwnerReference<'_>> {
    metadata(object)
        .and_then(|m| m.get("ownerReferences"))
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|owner| OwnerReference {
            api_version: text(owner, "apiVersion"),
            kind: text(owner, "kind"),
            name: text(owner, "name"),
            uid: text(owner, "uid"),
            controller: owner
                .get("controller")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            block_owner_deletion: owner
                .get("blockOwnerDeletion")
                .and_then(Value::as_bool)
                .unwrap_or(false),
        })
}

/// The owner reference with `controller: true`, if any (metav1.GetControllerOf).
pub fn controller_of(object: &Value) -> Option<OwnerReference<'_>> {
    owner_references(object).find(|owner| owner.controller)
}

/// The cache key of an object: `namespace/name`, or `name` for a cluster scoped one.
pub fn key(object: &Value) -> String {
    join_key(namespace(object), name(object))
}

/// Joins namespace and name into a cache key.
pub fn join_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// Splits a cache key into namespace and name.
pub fn split_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Sets `apiVersion` and `kind`.
pub fn set_type(object: &mut Value, api_version: &str, kind: &str) {
    let map = as_map_mut(object);
    map.insert(
        "apiVersion".to_owned(),
        Value::String(api_version.to_owned()),
    );
    map.insert("kind".to_owned(), Value::String(kind.to_owned()));
}

/// Sets `metadata.name`.
pub fn set_name(object: &mut Value, name: &str) {
    set_meta_text(object, "name", name);
}

/// Sets `metadata.namespace`; "" removes it.
pub fn set_namespace(object: &mut Value, namespace: &str) {
    set_meta_text(object, "namespace", namespace);
}

/// Sets `metadata.generateName`; "" removes it.
pub fn set_generate_name(object: &mut Value, prefix: &str) {
    set_meta_text(object, "generateName", prefix);
}

/// Sets `metadata.uid`; "" removes it.
pub fn set_uid(object: &mut Value, uid: &str) {
    set_meta_text(object, "uid", uid);
}

/// Sets `metadata.resourceVersion`; "" removes it.
pub fn set_resource_version(object: &mut Value, version: &str) {
    set_meta_text(object, "resourceVersion", version);
}

/// Sets `metadata.creationTimestamp`; "" removes it.
pub fn set_creation_timestamp(object: &mut Value, timestamp: &str) {
    set_meta_text(object, "creationTimestamp", timestamp);
}

/// Sets `metadata.deletionTimestamp`; `None` removes it.
pub fn set_deletion_timestamp(object: &mut Value, timestamp: Option<&str>) {
    set_meta_text(object, "deletionTimestamp", timestamp.unwrap_or(""));
}

/// Sets `metadata.deletionGracePeriodSeconds`; `None` removes it.
pub fn set_deletion_grace_period_seconds(object: &mut Value, seconds: Option<i64>) {
    set_meta_number(object, "deletionGracePeriodSeconds", seconds);
}

/// Sets `metadata.generation`; 0 removes it.
pub fn set_generation(object: &mut Value, generation: i64) {
    set_meta_number(object, "generation", Some(generation).filter(|g| *g != 0));
}

fn set_meta_number(object: &mut Value, field: &str, value: Option<i64>) {
    let metadata = metadata_mut(object);
    match value {
        Some(number) => metadata.insert(field.to_owned(), number.into()),
        None => metadata.remove(field),
    };
}

/// Sets one label.
pub fn set_label(object: &mut Value, key: &str, value: &str) {
    child_mut(metadata_mut(object), "labels")
        .insert(key.to_owned(), Value::String(value.to_owned()));
}

/// Sets one annotation.
pub fn set_annotation(object: &mut Value, key: &str, value: &str) {
    child_mut(metadata_mut(object), "annotations")
        .insert(key.to_owned(), Value::String(value.to_owned()));
}

/// Removes one annotation, and the map with its last entry.
pub fn remove_annotation(object: &mut Value, key: &str) {
    let metadata = metadata_mut(object);
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove(key);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}

/// Sets `metadata.finalizers`; an empty list removes the field.
pub fn set_finalizers<S: Into<String>>(
    object: &mut Value,
    finalizers: impl IntoIterator<Item = S>,
) {
    let list: Vec<Value> = finalizers
        .into_iter()
        .map(|f| Value::String(f.into()))
        .collect();
    let metadata = metadata_mut(object);
    if list.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), Value::Array(list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_object_reads_as_empty_fields() {
        for object in [
            json!({}),
            json!(null),
            json!({"metadata": 3}),
            json!({"metadata": {"name": 1}}),
        ] {
            assert_eq!(name(&object), "");
            assert_eq!(key(&object), "");
            assert_eq!(generation(&object), 0);
            assert!(labels(&object).is_none());
            assert_eq!(finalizers(&object).count(), 0);
            assert!(controller_of(&object).is_none());
        }
    }

    #[test]
    fn setters_make_metadata_and_empty_values_remove_it() {
        let mut object = json!({});
        set_name(&mut object, "a");
        set_namespace(&mut object, "ns");
        set_label(&mut object, "l", "1");
        set_finalizers(&mut object, ["f"]);
        assert_eq!(key(&object), "ns/a");
        assert_eq!(
            object,
            json!({"metadata": {"name": "a", "namespace": "ns", "labels": {"l": "1"}, "finalizers": ["f"]}})
        );
        set_finalizers(&mut object, Vec::<String>::new());
        set_namespace(&mut object, "");
        assert_eq!(key(&object), "a");
        assert_eq!(finalizers(&object).count(), 0);
    }

    #[test]
    fn the_controller_is_the_owner_marked_so() {
        let object = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "2", "controller": true}]}});
        let owner = controller_of(&object).expect("has one");
        assert_eq!((owner.kind, owner.uid), ("ReplicaSet", "2"));
        assert_eq!(group_version(owner.api_version), ("apps", "v1"));
    }
}
