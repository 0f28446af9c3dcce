//! Which resources the garbage collector follows: all that can be, also custom kinds that come and go.
//!
//! A metadata-only informer for each feeds the graph. Discovery is asked again whenever a CustomResourceDefinition or
//! an APIService changes, and never otherwise.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{
    Resource,
    r::{APISERVICES, CUSTOMRESOURCEDEFINITIONS},
};
use client::{Factory, Informer, Selectors};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::Collector;
use crate::{Context, discovery, dynamic, objects::Metadata};

/// Pause before discovery is asked again when it fails.
const DISCOVERY_RETRY: Duration = Duration::from_secs(2);
/// A kind is served a little after its definition changed.
const SETTLE: Duration = Duration::from_secs(1);
/// When an aggregated server did not answer, it is asked again after so long.
const STALE_RETRY: Duration = Duration::from_secs(30);

/// How long the first lists may take (initialGraphSyncTimeout).
const PATIENCE: Duration = Duration::from_secs(30);

type Key = (&'static str, &'static str, &'static str);

struct Followed {
    informer: Informer<Metadata>,
    stop: CancellationToken,
}

pub struct Follower {
    context: Context,
    collector: Arc<Collector>,
    followed: HashMap<Key, Followed>,
    tasks: JoinSet<Result<(), client::informer::InformerEnded>>,
    /// Rung when what is served may have changed.
    changed: Arc<Notify>,
}

impl Follower {
    pub fn new(context: &Context, collector: Arc<Collector>) -> Self {
        let changed = collector.unknown_kind.clone();
        for resource in [&CUSTOMRESOURCEDEFINITIONS, &APISERVICES] {
            let informers = &context.informers;
            let informer: Informer<Metadata> =
                informers.informer(resource, "", Selectors::default());
            let changed = changed.clone();
            informer.add_handler(move |_| changed.notify_one());
        }
        Follower {
            context: context.clone(),
            collector,
            followed: HashMap::new(),
            tasks: JoinSet::new(),
            changed,
        }
    }

    /// Follows all there is now and waits until it has been seen, for a while; false if the shutdown came first.
    pub async fn start(&mut self) -> bool {
        let shutdown = self.context.shutdown.clone();
        tokio::select! {
            () = shutdown.cancelled() => return false,
            _ = self.look() => {}
        }
        let informers: Vec<Informer<Metadata>> = self
            .followed
            .values()
            .map(|one| one.informer.clone())
            .collect();
        let synced = async {
            for informer in &informers {
                informer.wait_synced().await;
            }
        };
        // One resource that cannot be listed must not keep all others from being collected; owners that are not seen
        // are asked for.
        self.context
            .synced(async {
                if tokio::time::timeout(PATIENCE, synced).await.is_err() {
                    tracing::warn!(
                        "not all resources could be listed, collecting those that could"
                    );
                }
            })
            .await
    }

    /// Keeps to what is served. Returns when an informer ends unasked.
    pub async fn run(&mut self) {
        let mut retry = None;
        loop {
            let changed = self.changed.clone();
            tokio::select! {
                () = self.context.shutdown.cancelled() => return,
                Some(ended) = self.tasks.join_next() => {
                    if let Ok(Ok(())) = ended {
                        continue;
                    }
                    tracing::error!(?ended, "the garbage collector lost an informer");
                    return;
                }
                () = changed.notified() => tokio::time::sleep(SETTLE).await,
                () = async {
                    match retry {
                        Some(after) => tokio::time::sleep(after).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
            retry = self.look().await.then_some(STALE_RETRY);
        }
    }

    /// Asks what is served and follows exactly that; whether some of it did not answer.
    async fn look(&mut self) -> bool {
        let (resources, stale) = resources(&self.context).await;
        let wanted: HashMap<Key, &'static Resource> = resources
            .into_iter()
            .map(|one| ((one.group, one.version, one.plural), one))
            .collect();
        if !stale {
            self.drop_all_but(&wanted);
        }
        for (key, resource) in wanted {
            if !self.followed.contains_key(&key) {
                self.follow(key, resource);
            }
        }
        stale
    }

    fn follow(&mut self, key: Key, resource: &'static Resource) {
        let stop = self.context.shutdown.child_token();
        let factory = Factory::new(self.context.client.metadata_only(), stop.clone());
        let informer: Informer<Metadata> = factory.informer(resource, "", Selectors::default());
        let to = self.collector.clone();
        informer.add_handler(move |change| to.changed(resource, change));
        self.tasks.spawn(async move { factory.join().await });
        self.followed.insert(key, Followed { informer, stop });
        self.collector.kind_is_served(resource);
    }

    fn drop_all_but(&mut self, wanted: &HashMap<Key, &'static Resource>) {
        let gone: Vec<Key> = self
            .followed
            .keys()
            .filter(|key| !wanted.contains_key(*key))
            .copied()
            .collect();
        for key in gone {
            if let Some(followed) = self.followed.remove(&key) {
                followed.stop.cancel();
                for object in followed.informer.list() {
                    self.collector.forget(&object.metadata.uid);
                }
                self.collector.kind_is_gone(key);
            }
        }
    }
}

/// What can be collected: everything served that can be listed, watched and deleted, but Events, which expire; and
/// whether some servers did not answer.
async fn resources(context: &Context) -> (Vec<&'static Resource>, bool) {
    loop {
        match discovery::preferred(&context.client).await {
            Ok((served, stale)) => {
                let fits = |one: &&discovery::Served| {
                    one.has("list")
                        && one.has("watch")
                        && one.has("delete")
                        && one.resource != "events"
                };
                let found = served.iter().filter(fits).filter_map(dynamic::resource);
                return (found.collect(), !stale.is_empty());
            }
            Err(error) => {
                tracing::debug!(%error, "discovery failed, will be retried");
                tokio::time::sleep(DISCOVERY_RETRY).await;
            }
        }
    }
}
