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

/// The managed fields of an object that the server makes itself.
pub fn on_system_create(kind: &Kind, manager: &str, object: &mut Value) {
    let version = kind.storage.api_version();
    managed_fields::update(
        &Value::Null,
        object,
        &Record {
            manager,
            api_version: &version,
            subresource: "",
            now: &time::now_text(),
            message: kind.storage.schema,
            reset: kind.resets().of(""),
        },
    );
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
