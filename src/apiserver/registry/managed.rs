//! Field ownership on every write: who last set what (`metadata.managedFields`), and server-side apply.
//!
//! Ownership is told in the version of the request; where that is not the stored one, both sides are converted for it.

use api::Resource;
use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{self, Write as Record};
use apimachinery::{Map, Status, Value, meta, time};

use super::kind::Kind;
use super::options::WriteOptions;
use super::strategy::Strategy;
use super::write::{Current, Next, Write};
use crate::kinds::status::kept_metadata;
use crate::kinds::tree::{at_mut, object_mut, remove};

/// What the endpoints of a kind reset, and so nobody comes to own there.
pub struct Resets {
    object: FieldSet,
    status: FieldSet,
    nothing: FieldSet,
}

impl Resets {
    pub fn new(resource: &Resource, strategy: &dyn Strategy) -> Self {
        let status_fields = strategy.status_fields();
        let has_status = resource.subresource("status").is_some();
        let others: Vec<&str> = resource
            .schema
            .fields
            .iter()
            .map(|field| &*field.name)
            .filter(|name| !matches!(*name, "apiVersion" | "kind"))
            .filter(|name| *name != "metadata" || strategy.status_keeps_metadata())
            .filter(|name| !status_fields.contains(name))
            .collect();
        let own = if has_status { status_fields } else { &[] };
        let mut status = FieldSet::of_paths(&others);
        for field in kept_metadata(resource.group, resource.plural) {
            status.union(FieldSet::of_paths(&[&format!("metadata.{field}")]));
        }
        Self {
            object: FieldSet::of_paths(own),
            status,
            nothing: FieldSet::new(),
        }
    }

    fn of(&self, subresource: &str) -> &FieldSet {
        match subresource {
            "" => &self.object,
            "status" => &self.status,
            _ => &self.nothing,
        }
    }
}

/// The managed fields of a new object (in the stored version).
pub fn on_create(write: &Write<'_>, object: &mut Value) {
    record(write, object, None);
}

/// The managed fields of an update that says what the object shall be.
pub fn on_update(write: &Write<'_>, new: &mut Value, old: &Value) {
    record(write, new, Some(old));
}

fn record(write: &Write<'_>, new: &mut Value, old: Option<&Value>) {
    let kind = write.kind;
    let now = time::now_text();
    let version = write.resource.api_version();
    let how = Record {
        manager: write.manager,
        api_version: &version,
        subresource: write.subresource,
        now: &now,
        message: write.resource.schema,
        reset: kind.resets().of(write.subresource),
    };
    if std::ptr::eq(write.resource, kind.storage) {
        managed_fields::update(old.unwrap_or(&Value::Null), new, &how);
        return;
    }
    let in_request = |object: &Value| {
        let mut object = object.clone();
        kind.convert(&mut object, kind.storage, write.resource);
        object
    };
    let mut converted = in_request(new);
    let live = old.map_or(Value::Null, in_request);
    managed_fields::update(&live, &mut converted, &how);
    move_fields(&mut converted, new);
}

fn move_fields(from: &mut Value, to: &mut Value) {
    let fields = meta::metadata_mut(from).remove("managedFields");
    let metadata = meta::metadata_mut(to);
    match fields {
        Some(fields) => metadata.insert("managedFields".to_owned(), fields),
        None => metadata.remove("managedFields"),
    };
}

/// Fields of the server's own objects that upstream's strategies and allocators fill in, after it is noted who owns what.
const UNOWNED: &[(&str, &[&str])] = &[
    ("namespaces", &["spec"]),
    ("services", &["spec", "clusterIPs"]),
    ("services", &["spec", "ipFamilies"]),
];

/// Who applies the status of the server's own objects.
const STATUS_APPLIERS: &[(&str, &str)] = &[
    (
        "flowschemas",
        "api-priority-and-fairness-config-consumer-v1",
    ),
    ("servicecidrs", "kubernetes-service-cidr-controller"),
];

fn status_applier(kind: &Kind) -> Option<&'static str> {
    STATUS_APPLIERS
        .iter()
        .find(|(plural, _)| *plural == kind.storage.plural)
        .map(|(_, applier)| *applier)
}

/// The status of an own object that is not made with it but applied, as it was written down.
pub fn take_applied_status(kind: &Kind, object: &mut Value) -> Option<Value> {
    status_applier(kind).and_then(|_| remove(object, "status"))
}

/// The managed fields of an object that the server makes itself, and the status that is applied to it.
///
/// # Errors
/// None but of tables that do not fit the object.
pub fn on_system_create(
    kind: &Kind,
    manager: &str,
    object: &mut Value,
    status: Option<Value>,
) -> Result<(), Status> {
    let plural = kind.storage.plural;
    let mut aside = Vec::new();
    for (_, path) in UNOWNED.iter().filter(|(of, _)| *of == plural) {
        if let Some((last, above)) = path.split_last()
            && let Some(above_value) = at_mut(object, above)
            && let Some(value) = remove(above_value, last)
        {
            aside.push((above, *last, value));
        }
    }
    on_system_update(kind, manager, object, &Value::Null);
    for (above, last, value) in aside {
        object_mut(object, above).insert(last.to_owned(), value);
    }
    if let (Some(applier), Some(status)) = (status_applier(kind), status) {
        let (version, nothing) = (kind.storage.api_version(), FieldSet::new());
        let config = serde_json::json!({"apiVersion": version, "kind": kind.storage.kind,
            "metadata": {"name": meta::name(object)}, "status": status});
        let now = time::now_text();
        let how = Record {
            subresource: "status",
            ..system_record(kind, applier, &version, &now, &nothing)
        };
        *object = managed_fields::apply(object, &config, &how, true)?;
        apimachinery::schema::complete(object, kind.storage.schema);
    }
    Ok(())
}

/// The managed fields of what the server makes of an object itself.
pub fn on_system_update(kind: &Kind, manager: &str, new: &mut Value, old: &Value) {
    let (version, now) = (kind.storage.api_version(), time::now_text());
    let how = system_record(kind, manager, &version, &now, kind.resets().of(""));
    managed_fields::update(old, new, &how);
}

fn system_record<'a>(
    kind: &Kind,
    manager: &'a str,
    api_version: &'a str,
    now: &'a str,
    reset: &'a FieldSet,
) -> Record<'a> {
    Record {
        manager,
        api_version,
        subresource: "",
        now,
        message: kind.storage.schema,
        reset,
    }
}

/// A write that changes nothing but the times in managedFields is no write.
pub fn ignore_times(old: &Value, new: &mut Value) {
    managed_fields::ignore_times(old, new);
}

/// Server-side apply of `applied` (as sent, in the request's version) to the current object.
pub fn apply(
    write: &Write<'_>,
    options: &WriteOptions,
    applied: &Value,
    current: &Current<'_>,
) -> Result<Next, Status> {
    let now = time::now_text();
    let version = write.resource.api_version();
    let how = Record {
        manager: write.manager,
        api_version: &version,
        subresource: write.subresource,
        now: &now,
        message: write.resource.schema,
        reset: write.kind.resets().of(write.subresource),
    };
    let live = if current.exists {
        &current.object
    } else {
        &Value::Null
    };
    let mut object = managed_fields::apply(live, applied, &how, options.force == Some(true))?;
    // A version in the configuration is a condition, and the object's own none.
    let condition = meta::resource_version(applied).to_owned();
    if current.exists && condition.is_empty() {
        let own = meta::resource_version(&current.object).to_owned();
        meta::set_resource_version(&mut object, &own);
    } else {
        meta::set_resource_version(&mut object, &condition);
    }
    if !object.is_object() {
        object = Value::Object(Map::new());
    }
    meta::set_type(&mut object, &version, write.resource.kind);
    Ok(Next {
        object,
        managed: true,
    })
}
