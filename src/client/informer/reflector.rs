//! Keeps one informer current: WatchList first, list and watch where the server has none, resumption after a break.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::Resource;
use futures::StreamExt;
use rand::Rng;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    Informer, Selectors,
    cache::{Cache, Entry},
};
use crate::{Client, ClientError, ListOptions, Result, WatchEvent, WatchOptions, WatchStream};

/// First pause after a failure; doubles up to `MAX_PAUSE`, each with up to as much jitter again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause, so that a server that comes back is seen soon.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// A watch that lived this long ends the back-off.
const HEALTHY: Duration = Duration::from_secs(2);
/// The server is asked to end a watch after 5 to 10 minutes, as client-go does, which spreads load over servers.
const WATCH_TIMEOUT_SECONDS: std::ops::Range<u64> = 300..600;
/// Objects a page of a fallback list.
const PAGE: usize = 500;

/// The driver of one informer; `run` never returns of itself.
pub(super) struct Reflector<T> {
    client: Client,
    resource: &'static Resource,
    namespace: String,
    selectors: Selectors,
    informer: Informer<T>,
    /// Resume from here; empty means that a full state must be read first.
    version: String,
    /// The server refused `sendInitialEvents`.
    without_watch_list: bool,
}

/// An object as its text; each is decoded once it is known to be wanted.
type Raw = Box<RawValue>;

/// Why a watch ended.
enum End {
    /// Resume from the last version.
    Resume,
    /// The version is too old: read a full state.
    Relist,
}

impl<T: DeserializeOwned + Send + Sync + 'static> Reflector<T> {
    pub(super) fn new(
        client: Client,
        resource: &'static Resource,
        namespace: String,
        selectors: Selectors,
        informer: Informer<T>,
    ) -> Self {
        Reflector {
            client,
            resource,
            namespace,
            selectors,
            informer,
            version: String::new(),
            without_watch_list: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = tokio::time::Instant::now();
            let result = self.once().await;
            if started.elapsed() >= HEALTHY {
                pause = FIRST_PAUSE;
            }
            match result {
                Ok(End::Resume) if started.elapsed() >= HEALTHY => continue,
                Ok(End::Resume) => {}
                Ok(End::Relist) => self.version.clear(),
                Err(error) => {
                    let resource = self.resource.plural;
                    if error.is_transient() {
                        tracing::debug!(resource, %error, "watch failed, will be resumed");
                    } else {
                        tracing::warn!(resource, %error, "list or watch failed, will be retried");
                    }
                }
            }
            let jitter = rand::rng().random_range(1.0..2.0);
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Reads a full state if there is none, then follows changes until the stream ends.
    async fn once(&mut self) -> Result<End> {
        let stream = if !self.version.is_empty() {
            None
        } else if self.without_watch_list {
            self.list().await?;
            None
        } else {
            match self.watch_list().await {
                Ok(stream) => Some(stream),
                Err(error) if refuses_watch_list(&error) => {
                    self.without_watch_list = true;
                    self.list().await?;
                    None
                }
                Err(error) => return Err(error),
            }
        };
        let stream = match stream {
            Some(stream) => stream,
            None => match self.open(self.version.clone(), false).await {
                Err(error) if error.is_gone() => return Ok(End::Relist),
                other => other?,
            },
        };
        self.follow(stream).await
    }

    async fn open(&self, resource_version: String, initial: bool) -> Result<WatchStream<Raw>> {
        let seconds = rand::rng().random_range(WATCH_TIMEOUT_SECONDS);
        let options = WatchOptions {
            label_selector: self.selectors.labels.clone(),
            field_selector: self.selectors.fields.clone(),
            resource_version,
            send_initial_events: initial,
            timeout: Some(Duration::from_secs(seconds)),
        };
        self.client
            .watch(self.resource, &self.namespace, &options)
            .await
    }

    /// KEP-3157: the full state and then the changes in one stream.
    async fn watch_list(&mut self) -> Result<WatchStream<Raw>> {
        let mut stream = self.open(String::new(), true).await?;
        let mut state: BTreeMap<Arc<str>, Entry<T>> = BTreeMap::new();
        while let Some(event) = stream.next().await {
            match event? {
                WatchEvent::Added(raw) | WatchEvent::Modified(raw) => {
                    let identity = identify(&raw)?;
                    let key = identity.key();
                    match decode(&raw, &identity) {
                        Some(entry) => state.insert(key, entry),
                        None => state.remove(&key),
                    };
                }
                WatchEvent::Deleted(raw) => {
                    state.remove(&*identify(&raw)?.key());
                }
                WatchEvent::Bookmark {
                    resource_version,
                    initial_events_end: true,
                } => {
                    self.replace(state.into_values().collect(), resource_version);
                    return Ok(stream);
                }
                WatchEvent::Bookmark { .. } => {}
            }
        }
        Err(ClientError::Transport(
            "the watch ended within its initial events".into(),
        ))
    }

    async fn list(&mut self) -> Result<()> {
        let options = ListOptions {
            label_selector: self.selectors.labels.clone(),
            field_selector: self.selectors.fields.clone(),
            limit: PAGE,
            resource_version: "0".into(),
            ..ListOptions::default()
        };
        let list = self
            .client
            .list_all::<Raw>(self.resource, &self.namespace, &options)
            .await?;
        let mut entries = Vec::with_capacity(list.items.len());
        for raw in &list.items {
            entries.extend(decode(raw, &identify(raw)?));
        }
        self.replace(entries, list.metadata.resource_version);
        Ok(())
    }

    fn replace(&mut self, entries: Vec<Entry<T>>, version: String) {
        self.informer
            .change(|cache| cache.replace(entries, &version));
        self.version = version;
        self.informer.set_synced();
    }

    async fn follow(&mut self, stream: WatchStream<Raw>) -> Result<End> {
        self.informer.set_contact(true);
        let end = self.events(stream).await;
        self.informer.set_contact(false);
        end
    }

    async fn events(&mut self, mut stream: WatchStream<Raw>) -> Result<End> {
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.event(event)?,
                Err(error) if error.is_gone() => return Ok(End::Relist),
                Err(error) => return Err(error),
            }
        }
        Ok(End::Resume)
    }

    fn event(&mut self, event: WatchEvent<Raw>) -> Result<()> {
        let version = match event {
            WatchEvent::Added(raw) | WatchEvent::Modified(raw) => {
                let identity = identify(&raw)?;
                let version = identity.metadata.resource_version.to_string();
                match decode(&raw, &identity) {
                    Some(entry) => self.change(&version, |cache| cache.put(entry)),
                    None => self.change(&version, |cache| cache.remove(&identity.key(), None)),
                }
                version
            }
            WatchEvent::Deleted(raw) => {
                let identity = identify(&raw)?;
                let last = decode(&raw, &identity).map(|entry| entry.object);
                let version = identity.metadata.resource_version.to_string();
                self.change(&version, |cache| cache.remove(&identity.key(), last));
                version
            }
            WatchEvent::Bookmark {
                resource_version, ..
            } => {
                self.change(&resource_version, |_| None);
                resource_version
            }
        };
        self.version = version;
        Ok(())
    }

    fn change(&self, version: &str, change: impl FnOnce(&mut Cache<T>) -> Option<super::Delta<T>>) {
        self.informer.change(|cache| {
            cache.set_resource_version(version);
            change(cache).into_iter().collect()
        });
    }
}

/// Whether the server does not know (or cannot do) `sendInitialEvents`, as opposed to not answering at all.
fn refuses_watch_list(error: &ClientError) -> bool {
    error
        .status()
        .is_some_and(|status| matches!(status.code, 400 | 422 | 501 | 504) || error.is_gone())
}

/// What identifies an object and its state.
#[derive(Deserialize)]
struct Identity<'a> {
    #[serde(borrow)]
    metadata: IdentityMeta<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMeta<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: std::borrow::Cow<'a, str>,
}

impl Identity<'_> {
    fn key(&self) -> Arc<str> {
        if self.metadata.namespace.is_empty() {
            Arc::from(self.metadata.name.as_ref())
        } else {
            format!("{}/{}", self.metadata.namespace, self.metadata.name).into()
        }
    }
}

fn identify(raw: &RawValue) -> Result<Identity<'_>> {
    serde_json::from_str(raw.get()).map_err(ClientError::Decode)
}

/// The object as `T`. One that does not fit is logged and counts as absent, so that it cannot stall all the others.
fn decode<T: DeserializeOwned>(raw: &RawValue, identity: &Identity<'_>) -> Option<Entry<T>> {
    match serde_json::from_str(raw.get()) {
        Ok(object) => Some(Entry {
            key: identity.key(),
            resource_version: identity.metadata.resource_version.as_ref().into(),
            object: Arc::new(object),
        }),
        Err(error) => {
            let key = identity.key();
            tracing::error!(%key, %error, "an object cannot be decoded and is left out");
            None
        }
    }
}
