//! podcertificaterequest-cleaner-controller: deletes requests of pods for certificates some time after they were made
//! (KEP-4317).

use std::{sync::Arc, time::Duration};

use api::r::PODCERTIFICATEREQUESTS;
use apimachinery::time::{Time, now, parse};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};

use crate::{Context, Controller, context::synced, objects::Metadata};

/// How long a request stays; by then the kubelet has its answer, or has asked again.
const STAY: Duration = Duration::from_secs(15 * 60);

pub struct PodRequestCleaner;

#[async_trait]
impl Controller for PodRequestCleaner {
    fn name(&self) -> &'static str {
        "podcertificaterequest-cleaner-controller"
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let requests: Informer<Metadata> =
            informers.informer(&PODCERTIFICATEREQUESTS, "", Selectors::default());
        if !synced!(context, requests) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        requests.add_handler(move |change| {
            if change.is_added() {
                keys.add(change.key.to_string());
            }
        });
        let name = "podcertificaterequest-cleaner";
        workqueue::run(name, &queue, 1, &context.shutdown, |key| {
            let (context, requests) = (&context, &requests);
            async move { reconcile(context, requests.get(&key)).await }
        })
        .await;
    }
}

async fn reconcile(
    context: &Context,
    request: Option<Arc<Metadata>>,
) -> Result<Requeue, ClientError> {
    let Some((request, due)) = request.and_then(|request| due(&request).map(|due| (request, due)))
    else {
        return Ok(Requeue::No);
    };
    let left = Duration::try_from(due - now()).unwrap_or_default();
    if !left.is_zero() {
        return Ok(Requeue::After(left));
    }
    let meta = &request.metadata;
    let options = DeleteOptions::uid(&meta.uid);
    let resource = &PODCERTIFICATEREQUESTS;
    match context
        .client
        .delete(resource, &meta.namespace, &meta.name, &options)
        .await
    {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(Requeue::No),
    }
}

fn due(request: &Metadata) -> Option<Time> {
    let made = request.metadata.creation_timestamp.as_deref()?;
    Some(parse(made)? + STAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{seconds, start};
    use apimachinery::time::format;
    use client::fake::Server;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_request_goes_a_quarter_of_an_hour_after_it_was_made() {
        let server = Server::default();
        let _guard = start(&server, &["podcertificaterequest-cleaner-controller"]);
        let made = |ago: u64| format(now() - Duration::from_secs(ago));
        for (name, ago) in [("old", 16 * 60), ("new", 10 * 60)] {
            let meta = json!({"name": name, "namespace": "n", "creationTimestamp": made(ago)});
            server.put(&PODCERTIFICATEREQUESTS, json!({"metadata": meta}));
        }
        seconds(10).await;
        assert!(server.get(&PODCERTIFICATEREQUESTS, "n/old").is_none());
        assert!(server.get(&PODCERTIFICATEREQUESTS, "n/new").is_some());
    }
}
