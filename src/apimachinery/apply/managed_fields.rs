//! Owns: `metadata.managedFields`: every write leaves there which manager set which fields. `update` is called for
//! create, update, patch and subresources; `apply` for server-side apply
//! (k8s.io/apimachinery/pkg/util/managedfields).
//!
//! **Invariant:** a manager's fields are those it set last; no two `Update` managers own one field with different
//! values, several `Apply` managers may own one with the same value.

use super::set::FieldSet;
use super::typed;
use crate::meta;
use crate::schema::{self, Message};
use crate::status::{Cause, Status};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Most managers kept that are not appliers; the oldest are folded into one (DefaultMaxUpdateManagers).
const MAX_UPDATE_MANAGERS: usize = 10;
/// Who owns the folded fields.
const ANCIENT: &str = "ancient-changes";
/// Who owns what was there before the first apply on an object without managed fields.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The annotation client-side apply keeps its last configuration in.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager kubectl's server-side apply is.
const KUBECTL: &str = "kubectl";
/// Most bytes of annotations on an object; a larger last-applied configuration is dropped.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Fields no manager owns, since the server sets them.
const STRIPPED: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "metadata.name",
    "metadata.namespace",
    "metadata.creationTimestamp",
    "metadata.selfLink",
    "metadata.uid",
    "metadata.clusterName",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
];

static STRIPPED_SET: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_paths(STRIPPED));
static OWN_SET: LazyLock<FieldSet> =
    LazyLock::new(|| FieldSet::of_paths(&["metadata.managedFields"]));

/// What a write is.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// Field manager, or what stands for it (the user agent up to the first `/`).
    pub manager: &'a str,
    /// API version of the object in this request.
    pub api_version: &'a str,
    /// Subresource written through, "" for the object itself.
    pub subresource: &'a str,
    /// Time of the write as metav1.Time.
    pub now: &'a str,
    /// Type of the object.
    pub message: &'a Message,
    /// Fields this endpoint resets and so nobody gains here: `status` for the object, all else for the status
    /// (rest.ResetFieldsStrategy).
    pub reset: &'a FieldSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Apply,
    Update,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug)]
struct Entry {
    manager: String,
    operation: Operation,
    api_version: String,
    time: Option<String>,
    subresource: String,
    fields: FieldSet,
}

impl Entry {
    fn read(value: Value) -> Option<Self> {
        let Value::Object(mut map) = value else {
            return None;
        };
        let mut text = |name: &str| match map.remove(name) {
            Some(Value::String(text)) => Some(text),
            None => Some(String::new()),
            Some(_) => None,
        };
        let operation = match text("operation")?.as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("fieldsType")? != "FieldsV1" {
            return None;
        }
        Some(Self {
            manager: text("manager")?,
            operation,
            api_version: text("apiVersion")?,
            time: Some(text("time")?).filter(|t| !t.is_empty()),
            subresource: text("subresource")?,
            fields: FieldSet::from_fields_v1(map.remove("fieldsV1").unwrap_or_else(|| json!({})))?,
        })
    }

    fn write(self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, text: String| {
            if !text.is_empty() {
                map.insert(name.to_owned(), Value::String(text));
            }
        };
        put("manager", self.manager);
        put(
            "operation",
            if self.operation == Operation::Apply {
                "Apply"
            } else {
                "Update"
            }
            .to_owned(),
        );
        put("apiVersion", self.api_version);
        put("time", self.time.unwrap_or_default());
        put("fieldsType", "FieldsV1".to_owned());
        put("subresource", self.subresource);
        map.insert("fieldsV1".to_owned(), self.fields.into_fields_v1());
        Value::Object(map)
    }

    /// Whether two entries are one manager's: appliers keep their entry when they change the version.
    fn is(&self, operation: Operation, write: &Write<'_>) -> bool {
        self.operation == operation
            && self.manager == write.manager
            && self.subresource == write.subresource
            && (operation == Operation::Apply || self.api_version == write.api_version)
    }

    /// The manager as conflicts name it.
    fn in_words(&self) -> String {
        let mut words = crate::field::quote(&self.manager);
        if !self.subresource.is_empty() {
            words.push_str(&format!(
                " with subresource {}",
                crate::field::quote(&self.subresource)
            ));
        }
        if self.operation == Operation::Update {
            words.push_str(&format!(" using {}", self.api_version));
        }
        words
    }
}

fn take(object: &mut Value) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .remove("managedFields")
}

/// Reads a `managedFields` list; none when an entry is malformed.
fn read(list: Option<Value>) -> Option<Vec<Entry>> {
    match list {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(items)) => items.into_iter().map(Entry::read).collect(),
        Some(_) => None,
    }
}

fn put(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let key = |e: &'_ Entry| (e.operation, e.time.is_some());
        key(a)
            .cmp(&key(b))
            .then_with(|| a.time.cmp(&b.time))
            .then_with(|| a.manager.cmp(&b.manager))
            .then_with(|| a.api_version.cmp(&b.api_version))
            .then_with(|| a.subresource.cmp(&b.subresource))
    });
    let metadata = meta::metadata_mut(object);
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        let list = entries.into_iter().map(Entry::write).collect();
        metadata.insert("managedFields".to_owned(), Value::Array(list));
    }
}

/// The entries a write starts from: those the client sent if they can be read, else the live ones. `[{}]` resets them.
fn entries_for_update(live: &Value, sent: Option<Value>, subresource: &str) -> Vec<Entry> {
    let live_entries = || {
        read(
            meta::metadata(live)
                .and_then(|m| m.get("managedFields"))
                .cloned(),
        )
        .unwrap_or_default()
    };
    if !subresource.is_empty() {
        return live_entries();
    }
    if let Some(Value::Array(items)) = &sent {
        if items.len() == 1 && items[0].as_object().is_some_and(Map::is_empty) {
            return Vec::new();
        }
    }
    read(sent)
        .filter(|entries| !entries.is_empty())
        .unwrap_or_else(live_entries)
}

/// The object as if just made, for creates: what Go's zero value looks like.
fn zero(message: &Message) -> Value {
    let mut object = json!({});
    schema::complete(&mut object, message);
    object
}

/// Records a create, update or patch: sets `metadata.managedFields` of `new`. `live` is what is stored, null on create.
/// Both must fit the table; `new` with defaults and before admission changes it, as upstream.
pub fn update(live: &Value, new: &mut Value, write: &Write<'_>) {
    let sent = take(new);
    let mut entries = entries_for_update(live, sent, write.subresource);
    record(live, new, &mut entries, write);
    cap(&mut entries);
    put(new, entries);
}

/// Gives the writer what changed between the two and takes it from everybody else.
fn record(live: &Value, new: &Value, entries: &mut Vec<Entry>, write: &Write<'_>) {
    let made;
    let live = if live.is_object() {
        live
    } else {
        made = zero(write.message);
        &made
    };
    let mut comparison = compare(live, new, write.message);
    comparison.changed.recursive_difference(write.reset);
    comparison.removed.recursive_difference(write.reset);
    if comparison.is_same() {
        return;
    }
    for entry in entries.iter_mut() {
        entry.fields.difference(&comparison.changed);
        entry.fields.difference(&comparison.removed);
    }
    let mut gained = comparison.changed;
    gained.difference(&STRIPPED_SET);
    if gained.is_empty() {
        return;
    }
    match entries
        .iter_mut()
        .find(|entry| entry.is(Operation::Update, write))
    {
        Some(entry) => {
            entry.fields.union(gained);
            entry.time = Some(write.now.to_owned());
        }
        None => entries.push(new_entry(Operation::Update, write, gained)),
    }
}

fn new_entry(operation: Operation, write: &Write<'_>, fields: FieldSet) -> Entry {
    Entry {
        manager: write.manager.to_owned(),
        operation,
        api_version: write.api_version.to_owned(),
        time: Some(write.now.to_owned()),
        subresource: write.subresource.to_owned(),
        fields,
    }
}

/// Compares without the managed fields themselves.
fn compare(old: &Value, new: &Value, message: &Message) -> typed::Comparison {
    let mut comparison = typed::compare(old, new, message);
    comparison.changed.recursive_difference(&OWN_SET);
    comparison.removed.recursive_difference(&OWN_SET);
    comparison
}

/// Folds the oldest `Update` managers into one a version when there are too many (capManagersManager).
fn cap(entries: &mut Vec<Entry>) {
    let updates = entries
        .iter()
        .filter(|e| e.operation == Operation::Update && !e.fields.is_empty())
        .count();
    if updates <= MAX_UPDATE_MANAGERS {
        return;
    }
    let mut kept: Vec<Entry> = Vec::with_capacity(entries.len());
    let mut by_age: Vec<Entry> = Vec::new();
    for entry in entries.drain(..).filter(|e| !e.fields.is_empty()) {
        if entry.operation == Operation::Update {
            by_age.push(entry)
        } else {
            kept.push(entry)
        }
    }
    by_age.sort_by(|a, b| a.time.cmp(&b.time));
    let mut ancient: Vec<Entry> = Vec::new();
    let mut left = by_age.len();
    let mut rest = by_age.into_iter();
    while left + ancient.len() > MAX_UPDATE_MANAGERS {
        let Some(entry) = rest.next() else { break };
        left -= 1;
        match ancient
            .iter_mut()
            .find(|a| a.api_version == entry.api_version)
        {
            Some(bucket) => {
                bucket.fields.union(entry.fields);
                bucket.time = bucket.time.take().max(entry.time);
            }
            None => ancient.push(Entry {
                manager: ANCIENT.to_owned(),
                subresource: String::new(),
                ..entry
            }),
        }
    }
    kept.extend(ancient);
    kept.extend(rest);
    *entries = kept;
}

/// Applies a configuration to the live object, null when there is none yet: merges it, prunes what this manager
/// applied before and no longer does, and records it. The answer is the new object with its managed fields; when
/// nothing changed it equals the live one.
///
/// # Errors
/// A conflict (409) naming the fields other managers own with other values, unless `force`; a bad request for a
/// configuration that is not of the type or sets `managedFields`.
pub fn apply(
    live: &Value,
    config: &Value,
    write: &Write<'_>,
    force: bool,
) -> Result<Value, Status> {
    check_config(config, write)?;
    let mut base = if live.is_object() {
        live.clone()
    } else {
        zero(write.message)
    };
    let taken = take(&mut base);
    let mut entries = read(taken).unwrap_or_default();
    if entries.is_empty() && live.is_object() {
        // Everything there is was set by somebody before; the applier may conflict with it.
        let before = Write {
            manager: BEFORE_FIRST_APPLY,
            subresource: "",
            ..*write
        };
        record(&Value::Null, &base, &mut entries, &before);
    }
    let mut owned = typed::field_set(config, write.message).map_err(|error| {
        let (group, version) = meta::group_version(write.api_version);
        let kind = format!("{group}/{version}, Kind={}", meta::kind(config));
        let object = format!("{}/{}", meta::namespace(config), meta::name(config));
        Status::failure(
            500,
            crate::status::Reason::Unknown,
            format!("failed to create typed patch object ({object}; {kind}): {error}"),
        )
    })?;
    owned.recursive_difference(write.reset);
    let merged = typed::merge(base.clone(), config.clone(), write.message);
    let last = entries
        .iter()
        .position(|entry| entry.is(Operation::Apply, write))
        .map(|at| entries.swap_remove(at));
    entries.push(new_entry(Operation::Apply, write, owned));
    let mut merged = prune(merged, &entries, last.as_ref(), write.message);
    schema::complete(&mut merged, write.message);
    let same = settle(&base, &merged, &mut entries, write, force)?;
    if let Some(own) = entries.last_mut() {
        own.fields.difference(&STRIPPED_SET);
        // A configuration that changes nothing leaves the time as it was, so that the write is none.
        if let Some(last) = last
            .filter(|last| same && last.fields == own.fields && last.api_version == own.api_version)
        {
            own.time = last.time;
        }
    }
    refresh_last_applied(&mut merged, config, write);
    cap(&mut entries);
    put(&mut merged, entries);
    Ok(merged)
}

/// Refuses what cannot be applied.
fn check_config(config: &Value, write: &Write<'_>) -> Result<(), Status> {
    let Some(metadata) = meta::metadata(config) else {
        return Err(Status::bad_request(
            "metadata is required in an apply patch",
        ));
    };
    if metadata
        .get("managedFields")
        .is_some_and(|fields| !fields.is_null())
    {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let version = meta::api_version(config);
    if version != write.api_version {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
            write.api_version
        )));
    }
    Ok(())
}

/// Removes what the applier owned before unless somebody owns it now (Updater.prune).
fn prune(merged: Value, entries: &[Entry], last: Option<&Entry>, message: &Message) -> Value {
    let Some(last) = last.filter(|last| !last.fields.is_empty()) else {
        return merged;
    };
    let named = |set: &FieldSet| typed::with_named_fields(set, message);
    let fields_of = |object: &Value| typed::lenient_field_set(object, message);
    let last_named = named(&last.fields);
    let mut pruned = merged.clone();
    typed::remove_items(&mut pruned, &last_named, message);
    // What others own comes back with everything around it …
    let mut keep = named(&fields_of(&pruned));
    for entry in entries {
        keep.union(named(&entry.fields));
    }
    let merged_fields = named(&fields_of(&merged));
    let mut remove = merged_fields.clone();
    remove.difference(&keep);
    let mut pruned = merged.clone();
    typed::remove_items(&mut pruned, &remove, message);
    // … and what the applier never owned stays though its surroundings went.
    let mut remove = merged_fields;
    remove.difference(&named(&fields_of(&pruned)));
    let remove = remove.intersection(&last_named);
    let mut result = merged;
    typed::remove_items(&mut result, &remove, message);
    result
}

/// Takes from the other managers what this apply changed; without `force` that is a conflict. Tells whether the object
/// stays the same. The applier's entry is the last one.
fn settle(
    old: &Value,
    new: &Value,
    entries: &mut [Entry],
    write: &Write<'_>,
    force: bool,
) -> Result<bool, Status> {
    let mut comparison = compare(old, new, write.message);
    comparison.changed.recursive_difference(write.reset);
    comparison.removed.recursive_difference(write.reset);
    let Some((_, others)) = entries.split_last_mut() else {
        return Ok(comparison.is_same());
    };
    let allowed = client_side_fields(old, write);
    let mut conflicts: Vec<(String, Vec<String>)> = others
        .iter()
        .map(|entry| {
            let mut fields = entry.fields.intersection(&comparison.changed);
            fields.difference(&allowed);
            (entry.in_words(), fields.paths())
        })
        .filter(|(_, paths)| !paths.is_empty())
        .collect();
    if !force && !conflicts.is_empty() {
        conflicts.sort();
        return Err(conflict(&conflicts));
    }
    for entry in others {
        entry.fields.difference(&comparison.changed);
        entry.fields.difference(&comparison.removed);
    }
    Ok(comparison.is_same())
}

/// The fields kubectl's client-side apply set last, which its server-side apply may take over without a conflict
/// (lastAppliedManager).
fn client_side_fields(live: &Value, write: &Write<'_>) -> FieldSet {
    let last = (write.manager == KUBECTL)
        .then(|| meta::annotation(live, LAST_APPLIED))
        .flatten();
    match last.map(|text| crate::codec::json::decode(text.as_bytes())) {
        Some(Ok(decoded)) => typed::lenient_field_set(&decoded.value, write.message),
        _ => FieldSet::new(),
    }
}

/// `Apply failed with 1 conflict: conflict with "x" using v1: .spec.replicas` (internal.NewConflictError).
fn conflict(conflicts: &[(String, Vec<String>)]) -> Status {
    let causes: Vec<Cause> = conflicts
        .iter()
        .flat_map(|(manager, paths)| {
            paths.iter().map(move |path| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {manager}"),
                field: path.clone(),
            })
        })
        .collect();
    let message = match (causes.as_slice(), conflicts) {
        ([only], [(manager, _)]) => {
            format!(
                "Apply failed with 1 conflict: conflict with {manager}: {}",
                only.field
            )
        }
        _ => {
            let mut lines = Vec::new();
            for (manager, paths) in conflicts {
                lines.push(format!("conflicts with {manager}:"));
                lines.extend(paths.iter().map(|path| format!("- {path}")));
            }
            format!(
                "Apply failed with {} conflicts: {}",
                causes.len(),
                lines.join("\n")
            )
        }
    };
    Status::apply_conflict(causes, message)
}

/// kubectl's own server-side applies keep the annotation of client-side apply up to date, so that one may go back
/// (lastAppliedUpdater).
fn refresh_last_applied(object: &mut Value, config: &Value, write: &Write<'_>) {
    if write.manager != KUBECTL || meta::annotation(object, LAST_APPLIED).is_none_or(str::is_empty)
    {
        return;
    }
    let mut config = config.clone();
    meta::remove_annotation(&mut config, LAST_APPLIED);
    let text = format!("{config}\n");
    if text.len() > MAX_ANNOTATIONS {
        meta::remove_annotation(object, LAST_APPLIED);
    } else {
        meta::set_annotation(object, LAST_APPLIED, &text);
    }
}

/// Takes the old managed fields back when nothing but their times differs, so that a write without change is none
/// (IgnoreManagedFieldsTimestampsTransformer).
pub fn ignore_times(old: &Value, new: &mut Value) {
    let (Some(before), Some(after)) = (entries(old), entries(new)) else {
        return;
    };
    let same = before.len() == after.len()
        && before
            .iter()
            .all(|b| after.iter().any(|a| equal_but(a, b, "time")));
    if !same || before == after || !equal_but_managed_fields(old, new) {
        return;
    }
    let before = Value::Array(before.clone());
    meta::metadata_mut(new).insert("managedFields".to_owned(), before);
}

fn entries(object: &Value) -> Option<&Vec<Value>> {
    meta::metadata(object)?.get("managedFields")?.as_array()
}

fn equal_but_managed_fields(left: &Value, right: &Value) -> bool {
    equal_but(left, right, "metadata")
        && equal_but(&left["metadata"], &right["metadata"], "managedFields")
}

/// Whether two objects have the same members, `name` apart.
fn equal_but(left: &Value, right: &Value, name: &str) -> bool {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else {
        return left == right;
    };
    let others = |map: &'_ Map<String, Value>| map.len() - usize::from(map.contains_key(name));
    others(left) == others(right)
        && left
            .iter()
            .filter(|(key, _)| *key != name)
            .all(|(key, value)| right.get(key) == Some(value))
}

#[cfg(test)]
mod tests;
