//! The scale subresource: the replicas of any workload through one shape (`autoscaling/v1` Scale).

use api::Resource;
use apimachinery::codec::media::Transform;
use apimachinery::selector::LabelSelector;
use apimachinery::{Status, Value, meta};
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::codec::{self, Expected};
use super::dispatch::Call;
use super::errors;
use super::managed;
use super::options::WriteOptions;
use super::output;
use super::table;
use super::write::{Current, Next, Preconditions};
use crate::body::Body;
use crate::cache::Entry;
use crate::crd::Scale;
use crate::kinds::tree::{at, int, object_mut};

/// The Scale of a workload.
pub fn of(paths: Option<&Scale>, object: &Value, revision: i64) -> Value {
    let selector = at(object, &["spec", "selector"]);
    // A replication controller's selector is a plain map.
    let selector = match selector {
        Value::Object(map)
            if !map.contains_key("matchLabels") && !map.contains_key("matchExpressions") =>
        {
            let pairs = map
                .iter()
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or("").to_owned()));
            LabelSelector::from_labels(pairs)
        }
        Value::Null => LabelSelector::nothing(),
        selector => {
            LabelSelector::from_value(selector).unwrap_or_else(|_| LabelSelector::nothing())
        }
    };
    let metadata = at(object, &["metadata"]);
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {},
        "status": { "replicas": number(paths.map(|paths| &paths.status_replicas), object, "status") },
    });
    if revision > 0 {
        meta::set_resource_version(&mut scale, &revision.to_string());
    }
    let replicas = number(paths.map(|paths| &paths.spec_replicas), object, "spec");
    if replicas != 0 {
        scale["spec"]["replicas"] = replicas.into();
    }
    let text = match paths {
        None => selector.to_string(),
        Some(paths) => paths
            .selector
            .as_ref()
            .and_then(|path| walk(object, path).as_str())
            .unwrap_or("")
            .to_owned(),
    };
    if !text.is_empty() {
        scale["status"]["selector"] = text.into();
    }
    scale
}

/// The value at a path of a custom object.
fn walk<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    let steps: Vec<&str> = path.iter().map(String::as_str).collect();
    at(object, &steps)
}

fn number(path: Option<&Vec<String>>, object: &Value, part: &str) -> i64 {
    match path {
        Some(path) => walk(object, path).as_i64(),
        None => int(object, &[part, "replicas"]),
    }
    .unwrap_or(0)
}

/// Where a custom kind keeps its replicas.
fn paths<'a>(call: &'a Call<'_>) -> Option<&'a Scale> {
    call.kind.strategy.custom(call.resource)?.scale.as_ref()
}

fn respond(call: &Call<'_>, entry: &Entry, revision: i64) -> Result<Response<Body>, Status> {
    let mut scale = of(paths(call), &codec::entry_value(entry)?, revision);
    if output::negotiate(call.headers)?.transform == Transform::Table {
        scale = table::of_scale(&scale);
    }
    output::value(
        StatusCode::OK,
        &scale,
        api::message_for("autoscaling", "v1", "Scale"),
        call.headers,
        &call.context.info.query,
    )
}

/// GET …/scale
pub async fn get(call: &Call<'_>) -> Result<Response<Body>, Status> {
    let key = call.kind.key(call.namespace(), call.name());
    let cache = call.kind.cache(call.registry);
    let (entry, _) = cache.read(&key).await.map_err(errors::read)?;
    let entry = entry.ok_or_else(|| call.kind.not_found(call.name()))?;
    respond(call, &entry, entry.revision())
}

/// What a Scale may be.
fn check(call: &Call<'_>, scale: &Value) -> Result<(), Status> {
    let replicas = int(scale, &["spec", "replicas"]).unwrap_or(0);
    if replicas >= 0 {
        return Ok(());
    }
    let path = apimachinery::field::Path::new("spec.replicas");
    let error =
        apimachinery::field::Error::invalid(&path, replicas, "must be greater than or equal to 0");
    Err(Status::invalid(
        "autoscaling",
        "Scale",
        call.name(),
        error.into(),
    ))
}

/// The workload with the replicas (and the version) of a Scale.
pub fn apply(paths: Option<&Scale>, scale: &Value, current: Current<'_>) -> Value {
    let mut object = current.object.into_owned();
    let replicas = int(scale, &["spec", "replicas"]).unwrap_or(0);
    set_replicas(&mut object, paths, replicas.into());
    meta::set_resource_version(&mut object, meta::resource_version(scale));
    object
}

fn set_replicas(object: &mut Value, paths: Option<&Scale>, replicas: Value) {
    let own: Vec<&str> = paths
        .map(|paths| paths.spec_replicas.iter().map(String::as_str).collect())
        .unwrap_or_else(|| vec!["spec", "replicas"]);
    if let Some((last, way)) = own.split_last() {
        object_mut(object, way).insert((*last).to_owned(), replicas);
    }
}

/// PUT …/scale
pub async fn update(call: &Call<'_>, body: &Bytes) -> Result<Response<Body>, Status> {
    let options = WriteOptions::parse(&call.context.info.query, "UpdateOptions")?;
    let expected = Expected {
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        message: api::message_for("autoscaling", "v1", "Scale")
            .ok_or_else(|| Status::internal("no schema of Scale"))?,
    };
    let scale = codec::decode_body(
        expected,
        call.media()?,
        body,
        options.field_validation,
        &call.context.warnings,
    )?;
    call.check_name(&scale)?;
    check(call, &scale)?;
    let preconditions = Preconditions {
        uid: Some(meta::uid(&scale).to_owned()).filter(|uid| !uid.is_empty()),
    };
    let manager = call.manager(&options);
    let written = call
        .write(&options, &manager)
        .update(call.name(), &preconditions, false, |current| {
            Ok(Next {
                object: apply(paths(call), &scale, current),
                managed: false,
            })
        })
        .await?;
    respond(call, &written.entry, written.revision)
}

/// The configuration of a workload that an applied Scale is: its replicas and nothing else.
fn as_parent(resource: &Resource, paths: Option<&Scale>, applied: &Value) -> Value {
    let mut parent = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {"name": meta::name(applied)},
    });
    for field in ["namespace", "uid", "resourceVersion"] {
        if let Some(value) = at(applied, &["metadata", field]).as_str() {
            meta::metadata_mut(&mut parent).insert(field.to_owned(), value.into());
        }
    }
    let replicas = at(applied, &["spec", "replicas"]);
    if !replicas.is_null() {
        set_replicas(&mut parent, paths, replicas.clone());
    }
    parent
}

/// PATCH …/scale by apply: the workload's replicas are applied, and owned through this subresource.
pub async fn apply_patch(
    call: &Call<'_>,
    options: &WriteOptions,
    applied: &Value,
) -> Result<Response<Body>, Status> {
    let manager = call.manager(options);
    let write = call.write(options, &manager);
    check(call, applied)?;
    let parent = as_parent(call.resource, paths(call), applied);
    let written = write
        .update(call.name(), &Preconditions::default(), false, |current| {
            managed::apply(&write, options, &parent, &current)
        })
        .await?;
    respond(call, &written.entry, written.revision)
}

/// PATCH …/scale: `change` turns the current Scale into the next.
pub async fn patch(
    call: &Call<'_>,
    options: &WriteOptions,
    mut change: impl FnMut(Value) -> Result<Value, Status>,
) -> Result<Response<Body>, Status> {
    let manager = call.manager(options);
    let written = call
        .write(options, &manager)
        .update(call.name(), &Preconditions::default(), false, |current| {
            let revision = meta::resource_version(&current.object).parse().unwrap_or(0);
            let scale = change(of(paths(call), &current.object, revision))?;
            check(call, &scale)?;
            Ok(Next {
                object: apply(paths(call), &scale, current),
                managed: false,
            })
        })
        .await?;
    respond(call, &written.entry, written.revision)
}
