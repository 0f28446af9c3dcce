//! Writes that upstream's bootstrap roles allow: most of a controller's kinds may be updated as a whole, not patched.

use api::{Resource, view::ObjectMeta};
use apimachinery::{Value, meta};
use client::{Client, ClientError, WriteOptions};
use serde::Serialize;
use serde_json::json;

/// Writes an object's status as of the version `of` was read at. That the object is gone, or newer, is no error: the
/// newer one is on its way to the cache, and then its key comes again.
pub async fn write_status(
    client: &Client,
    resource: &Resource,
    of: &ObjectMeta,
    status: &impl Serialize,
) -> Result<(), ClientError> {
    put_status(client, resource, of, status).await.map(drop)
}

/// Like `write_status`; the resourceVersion after it, or nothing if it was not written.
pub async fn put_status(
    client: &Client,
    resource: &Resource,
    of: &ObjectMeta,
    status: &impl Serialize,
) -> Result<Option<String>, ClientError> {
    let object = json!({
        "apiVersion": meta::join_group_version(resource.group, resource.version), "kind": resource.kind,
        "metadata": of, "status": status,
    });
    let options = WriteOptions::default();
    let (namespace, name) = (&of.namespace, &of.name);
    let written = client.update_status::<_, Value>(resource, namespace, name, &object, &options);
    match written.await {
        Ok(stored) => Ok(Some(meta::resource_version(&stored).to_string())),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the object anew and writes what `change` makes of it: the resourceVersion after that; nothing if the object is
/// gone, or another one of its name, or there is nothing to change.
pub async fn modify(
    client: &Client,
    resource: &Resource,
    of: &ObjectMeta,
    change: impl FnOnce(&mut Value),
) -> Result<Option<String>, ClientError> {
    modify_part(client, resource, of, "", change).await
}

/// Like `modify`, of the object's status.
pub async fn modify_status(
    client: &Client,
    resource: &Resource,
    of: &ObjectMeta,
    change: impl FnOnce(&mut Value),
) -> Result<Option<String>, ClientError> {
    modify_part(client, resource, of, "status", change).await
}

async fn modify_part(
    client: &Client,
    resource: &Resource,
    of: &ObjectMeta,
    subresource: &str,
    change: impl FnOnce(&mut Value),
) -> Result<Option<String>, ClientError> {
    let (namespace, name) = (&of.namespace, &of.name);
    let mut object: Value = match client.get(resource, namespace, name).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    if meta::uid(&object) != of.uid {
        return Ok(None);
    }
    let before = object.clone();
    change(&mut object);
    if object == before {
        return Ok(None);
    }
    let options = WriteOptions::default();
    let written = client.update_subresource::<_, Value>(
        resource,
        namespace,
        name,
        subresource,
        &object,
        &options,
    );
    match written.await {
        Ok(stored) => Ok(Some(meta::resource_version(&stored).to_string())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
