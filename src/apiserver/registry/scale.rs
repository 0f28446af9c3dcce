//! The scale subresource: the replicas of any workload through one shape (`autoscaling/v1` Scale).

use apimachinery::selector::LabelSelector;
use apimachinery::{Status, Value, meta};
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::codec::{self, Expected};
use super::dispatch::Call;
use super::errors;
use super::options::WriteOptions;
use super::output;
use super::write::{Current, Next, Preconditions};
use crate::body::Body;
use crate::cache::Entry;
use crate::kinds::tree::{at, int, object_mut};

/// The Scale of a workload.
pub fn of(object: &Value, revision: i64) -> Value {
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
        "status": { "replicas": int(object, &["status", "replicas"]).unwrap_or(0) },
    });
    if revision > 0 {
        meta::set_resource_version(&mut scale, &revision.to_string());
    }
    let replicas = int(object, &["spec", "replicas"]).unwrap_or(0);
    if replicas != 0 {
        scale["spec"]["replicas"] = replicas.into();
    }
    let text = selector.to_string();
    if !text.is_empty() {
        scale["status"]["selector"] = text.into();
    }
    scale
}

fn respond(call: &Call<'_>, entry: &Entry, revision: i64) -> Result<Response<Body>, Status> {
    let scale = of(&codec::entry_value(entry)?, revision);
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
pub fn apply(scale: &Value, current: &Current) -> Value {
    let mut object = current.object.clone();
    let replicas = int(scale, &["spec", "replicas"]).unwrap_or(0);
    object_mut(&mut object, &["spec"]).insert("replicas".to_owned(), replicas.into());
    meta::set_resource_version(&mut object, meta::resource_version(scale));
    object
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
    let mut scale = codec::decode_body(
        expected,
        call.media()?,
        body,
        options.field_validation,
        &call.context.warnings,
    )?;
    call.check_name(&mut scale)?;
    check(call, &scale)?;
    let preconditions = Preconditions {
        uid: Some(meta::uid(&scale).to_owned()).filter(|uid| !uid.is_empty()),
    };
    let manager = call.manager(&options);
    let written = call
        .write(&options, &manager)
        .update(call.name(), &preconditions, false, |current| {
            Ok(Next {
                object: apply(&scale, current),
                managed: false,
            })
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
            let scale = change(of(&current.object, revision))?;
            check(call, &scale)?;
            Ok(Next {
                object: apply(&scale, current),
                managed: false,
            })
        })
        .await?;
    respond(call, &written.entry, written.revision)
}
