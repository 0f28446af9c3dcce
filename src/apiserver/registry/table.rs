//! Tables: what `kubectl get` shows, made by the server (KEP-555).

use api::{Column, Resource};
use apimachinery::{Status, Value, time};
use serde_json::json;

use super::codec::encode_object;
use super::output::{Format, Include};
use crate::cache::Entry;

/// The columns as a table names them.
fn columns(columns: &[Column]) -> Value {
    columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.ty,
                "format": column.format,
                "description": "",
                "priority": column.priority,
            })
        })
        .collect()
}

fn row(format: &Format, object: &Value, now: time::Time) -> Vec<Value> {
    match format.kind.strategy.custom(format.resource) {
        Some(version) => version.cells(object, now),
        None => api::table::row(format.resource, object, now),
    }
}

/// Appends an object's row.
pub fn write_row(
    out: &mut Vec<u8>,
    format: &Format,
    entry: &Entry,
    object: &Value,
    revision: i64,
    now: time::Time,
) -> Result<(), Status> {
    let cells = Value::Array(row(format, object, now));
    out.extend_from_slice(b"{\"cells\":");
    out.extend_from_slice(cells.to_string().as_bytes());
    out.extend_from_slice(b",\"object\":");
    match format.include {
        Include::None => out.extend_from_slice(b"null"),
        Include::Metadata => {
            let mut partial = format.clone();
            partial.transform = apimachinery::codec::media::Transform::PartialObjectMetadata;
            partial.write_json(out, entry, revision, false)?;
        }
        Include::Object => out.extend_from_slice(&encode_object(object, false)),
    }
    out.push(b'}');
    Ok(())
}

/// A table up to its first row.
pub fn head(format: &Format, metadata: &Value, with_columns: bool) -> Vec<u8> {
    let version = if format.v1beta1 { "v1beta1" } else { "v1" };
    let columns = if with_columns {
        columns(api::table::columns(format.resource))
    } else {
        Value::Null
    };
    format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":{metadata},\"columnDefinitions\":{columns},\"rows\":["
    )
    .into_bytes()
}

/// Objects that are not stored, as a table.
pub fn of_values(resource: &Resource, objects: &[Value]) -> Value {
    let now = time::now();
    let rows = objects.iter().map(|object| {
        json!({
            "cells": api::table::row(resource, object, now),
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            },
        })
    });
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns(api::table::columns(resource)),
        "rows": rows.collect::<Vec<Value>>(),
    })
}

const fn column(name: &'static str, ty: &'static str, format: &'static str) -> Column {
    Column {
        name,
        ty,
        format,
        priority: 0,
    }
}

/// What is shown of a Scale, whatever it scales.
const SCALE: [Column; 4] = [
    column("Name", "string", "name"),
    column("Desired", "integer", ""),
    column("Available", "integer", ""),
    column("Age", "string", ""),
];

/// A Scale as a table.
pub fn of_scale(scale: &Value) -> Value {
    let metadata = &scale["metadata"];
    let made = metadata["creationTimestamp"].as_str().unwrap_or("");
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": metadata["resourceVersion"] },
        "columnDefinitions": columns(&SCALE),
        "rows": [{
            "cells": [
                metadata["name"],
                scale["spec"]["replicas"].as_i64().unwrap_or(0),
                scale["status"]["replicas"].as_i64().unwrap_or(0),
                time::age(made, time::now()),
            ],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            },
        }],
    })
}

/// One object as a table of one row. Only the first table of a watch names its columns.
pub fn single(
    format: &Format,
    entry: &Entry,
    object: &Value,
    revision: i64,
    with_columns: bool,
) -> Result<Vec<u8>, Status> {
    let metadata = match revision {
        0 => json!({}),
        revision => json!({ "resourceVersion": revision.to_string() }),
    };
    let mut out = head(format, &metadata, with_columns);
    write_row(&mut out, format, entry, object, revision, time::now())?;
    out.extend_from_slice(b"]}");
    Ok(out)
}

/// A bookmark as a table: one row whose object says how far the watch has come.
pub fn bookmark(format: &Format, metadata: &Value) -> Vec<u8> {
    let object = json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format.meta_version(),
        "metadata": metadata,
    });
    let cells = Value::Array(row(format, &object, time::now()));
    let list = json!({ "resourceVersion": metadata["resourceVersion"] });
    let mut out = head(format, &list, false);
    out.extend_from_slice(
        json!({"cells": cells, "object": object})
            .to_string()
            .as_bytes(),
    );
    out.extend_from_slice(b"]}");
    out
}
