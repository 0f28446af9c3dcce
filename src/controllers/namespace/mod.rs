//! namespace-controller: empties a namespace that is being deleted, then lets it go.
//!
//! Pods are deleted first and waited for (KEP-5080), then all else that discovery tells of. What is left, and why,
//! stands in the namespace's conditions. When nothing is left, the finalizer `kubernetes` is taken off.

mod report;

use std::{sync::Arc, time::Duration};

use api::r::{NAMESPACES, PODS};
use apimachinery::Value;
use async_trait::async_trait;
use client::{
    Client, ClientError, Informer, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, RateLimit, Requeue},
};
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    discovery::{self, Served},
    objects::{Metadata, Namespace, Pod},
};
use report::Report;

const FINALIZER: &str = "kubernetes";
/// Namespaces emptied at a time (`--concurrent-namespace-syncs`).
const WORKERS: usize = 10;
/// Requests under way for one namespace.
const PARALLEL: usize = 8;
/// When to look again at content that is kept by finalizers.
const REMAINING_RETRY: Duration = Duration::from_secs(5);

pub struct Namespaces;

#[async_trait]
impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["namespace"]
    }

    async fn run(&self, context: Context) {
        let namespaces: Informer<Namespace> =
            context
                .informers
                .informer(&NAMESPACES, "", Selectors::default());
        let pods: Informer<Pod> = context.informers.informer(&PODS, "", Selectors::default());
        if !synced!(context, namespaces, pods) {
            return;
        }
        let limit = RateLimit {
            base: Duration::from_millis(100),
            max: Duration::from_secs(60),
        };
        let queue = Queue::new(limit);
        let keys = queue.clone();
        namespaces.add_handler(move |change| {
            if change
                .new
                .as_ref()
                .is_some_and(|new| new.metadata.is_deleting())
            {
                keys.add(change.key.to_string());
            }
        });
        // A pod that is gone may be the last one waited for.
        let (keys, of) = (queue.clone(), namespaces.clone());
        pods.add_handler(move |change| {
            let namespace = &change.object().metadata.namespace;
            if change.is_deleted()
                && of
                    .get(namespace)
                    .is_some_and(|one| one.metadata.is_deleting())
            {
                keys.add(namespace.clone());
            }
        });
        workqueue::run("namespace", &queue, WORKERS, &context.shutdown, |name| {
            let (context, namespaces) = (&context, &namespaces);
            async move {
                match namespaces.get(&name) {
                    Some(namespace) => reconcile(&context.client, &namespace).await,
                    None => Ok(Requeue::No),
                }
            }
        })
        .await;
    }
}

async fn reconcile(client: &Client, namespace: &Arc<Namespace>) -> Result<Requeue, ClientError> {
    let finalizers = &namespace.spec.finalizers;
    if !namespace.metadata.is_deleting() || !finalizers.iter().any(|one| one == FINALIZER) {
        return Ok(Requeue::No);
    }
    let name = &namespace.metadata.name;
    let report = empty(client, name).await?;
    let changed = report.changed(
        &namespace.status.conditions,
        &apimachinery::time::now_text(),
    );
    if !changed.is_empty() {
        let patch = Patch::Strategic(json!({"status": {"conditions": changed}}));
        let options = WriteOptions::default();
        let patched = client
            .patch::<Value>(&NAMESPACES, "", name, "status", &patch, &options)
            .await;
        match patched {
            Err(error) if error.is_not_found() => return Ok(Requeue::No),
            other => other?,
        };
    }
    if let Some(error) = report.failure {
        return Err(error);
    }
    if !report.remaining.is_empty() || !report.undiscovered.is_empty() {
        return Ok(Requeue::After(REMAINING_RETRY));
    }
    finalize(client, name).await.map(|()| Requeue::No)
}

/// Takes the finalizer off; the server then removes the namespace.
async fn finalize(client: &Client, name: &str) -> Result<(), ClientError> {
    let mut namespace: Value = match client.get(&NAMESPACES, "", name).await {
        Err(error) if error.is_not_found() => return Ok(()),
        other => other?,
    };
    if let Some(all) = namespace["spec"]["finalizers"].as_array_mut() {
        all.retain(|one| one != FINALIZER);
    }
    let options = WriteOptions::default();
    let done = client
        .update_subresource::<_, Value>(&NAMESPACES, "", name, "finalize", &namespace, &options)
        .await;
    match done {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks for the deletion of everything that is in the namespace, and tells what is left.
async fn empty(client: &Client, namespace: &str) -> Result<Report, ClientError> {
    let (served, undiscovered) = discovery::preferred(client).await?;
    let mut report = Report {
        undiscovered,
        ..Report::default()
    };
    let deletable = |one: &Served| {
        one.is_namespaced && one.has("list") && (one.has("delete") || one.has("deletecollection"))
    };
    let (pods, rest): (Vec<Served>, Vec<Served>) = served
        .into_iter()
        .filter(deletable)
        .partition(|one| one.group.is_empty() && one.resource == "pods");
    for stage in [pods, rest] {
        let left =
            stream::iter(stage)
                .map(|resource| async move {
                    (delete_all(client, namespace, &resource).await, resource)
                })
                .buffer_unordered(PARALLEL);
        let left: Vec<_> = left.collect().await;
        for (result, resource) in left {
            match result {
                Ok(objects) => report.add(&resource, &objects),
                Err(error) => report.failure = Some(error),
            }
        }
        if report.failure.is_some() || !report.remaining.is_empty() {
            break;
        }
    }
    Ok(report)
}

/// Deletes what there is of a resource and returns what is still there afterwards.
async fn delete_all(
    client: &Client,
    namespace: &str,
    resource: &Served,
) -> Result<Vec<Metadata>, ClientError> {
    let path = resource.path(namespace);
    if list(client, &path).await?.is_empty() {
        return Ok(Vec::new());
    }
    let options =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    if resource.has("deletecollection") {
        client
            .call_path::<Value>(Method::DELETE, &path, Some(&options))
            .await?;
    } else {
        let objects = list(client, &path).await?;
        stream::iter(objects.iter().map(Ok))
            .try_for_each_concurrent(PARALLEL, |object| {
                let path = format!("{path}/{}", object.metadata.name);
                let options = &options;
                async move {
                    match client
                        .call_path::<Value>(Method::DELETE, &path, Some(options))
                        .await
                    {
                        Err(error) if !error.is_not_found() => Err(error),
                        _ => Ok(()),
                    }
                }
            })
            .await?;
    }
    list(client, &path).await
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Metadata>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListMeta {
    #[serde(rename = "continue")]
    token: String,
}

/// All objects at a path, their metadata only.
async fn list(client: &Client, path: &str) -> Result<Vec<Metadata>, ClientError> {
    const ACCEPT: &str =
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    let mut objects = Vec::new();
    let mut token = String::new();
    loop {
        let page: List = match client
            .get_path_as(&format!("{path}?limit=500{token}"), ACCEPT)
            .await
        {
            // A resource that went away has no objects.
            Err(error) if error.is_not_found() => return Ok(objects),
            other => other?,
        };
        objects.extend(page.items.unwrap_or_default());
        if page.metadata.token.is_empty() {
            return Ok(objects);
        }
        // Tokens are base64 without padding, of either alphabet.
        token = format!(
            "&continue={}",
            page.metadata
                .token
                .replace('+', "%2B")
                .replace('/', "%2F")
                .replace('=', "%3D")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seconds;
    use api::r::CONFIGMAPS;
    use client::fake::Server;

    fn discovery(server: &Server) {
        let resource = |name: &str, kind: &str| {
            json!({"resource": name, "responseKind": {"kind": kind}, "scope": "Namespaced",
                   "verbs": ["create", "delete", "deletecollection", "get", "list", "watch"]})
        };
        let resources = [resource("pods", "Pod"), resource("configmaps", "ConfigMap")];
        server.set_discovery(
            "/api",
            json!({"items": [
                {"metadata": {}, "versions": [{"version": "v1", "resources": resources}]},
            ]}),
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_emptied_pods_first_and_then_let_go() {
        let server = Server::default();
        discovery(&server);
        let _guard = crate::testing::start(&server, &["namespace-controller"]);
        server.put(
            &CONFIGMAPS,
            json!({"metadata": {"name": "c", "namespace": "n"}}),
        );
        server.put(
            &PODS,
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "w"}}),
        );
        server.put(
            &PODS,
            json!({"metadata": {"name": "p", "namespace": "other"}}),
        );
        server.put(
            &NAMESPACES,
            json!({
                "metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"},
            }),
        );
        seconds(60).await;
        assert!(
            server.get(&CONFIGMAPS, "n/c").is_some(),
            "waits for the pod"
        );
        let namespace = server.get(&NAMESPACES, "n").unwrap();
        let conditions = namespace["status"]["conditions"].as_array().unwrap();
        let remaining = conditions
            .iter()
            .find(|one| one["type"] == "NamespaceContentRemaining")
            .unwrap();
        assert_eq!(
            remaining["message"],
            "Some resources are remaining: pods. has 1 resource instances"
        );
        server.remove(&PODS, "n/p");
        seconds(1).await;
        assert!(server.get(&CONFIGMAPS, "n/c").is_none());
        assert!(server.get(&NAMESPACES, "n").is_none());
        assert!(server.get(&PODS, "other/p").is_some());
    }
}
