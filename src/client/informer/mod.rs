//! Shared informers: a local copy of a resource kept current by one watch, with indexes, handlers and subscriptions.
//!
//! Data flow: `reflector` turns a WatchList (or list and watch) into changes of the `cache`; each change goes to the
//! handlers (called at once, must not block) and the subscriptions (coalesced per key). `Factory` shares one informer
//! per resource, namespace, selectors and type. Read `Informer` first.
//!
//! **Invariant:** nothing polls. After a broken connection the watch resumes from the last version without a list;
//! only 410 lists again, and then handlers see only what differs.

mod cache;
mod factory;
mod reflector;
mod subscription;

pub use factory::{Factory, InformerEnded, Selectors};
pub use subscription::Subscription;

use std::{any::Any, sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use tokio::{sync::watch, time::Instant};

use cache::Cache;

/// How one key changed: added (no `old`), updated, or deleted (no `new`).
///
/// Of an object that was deleted and created anew while nobody looked (a relist, or coalescing in a subscription),
/// only one change is seen: compare the uids where that matters.
#[derive(Debug)]
pub struct Delta<T> {
    /// `namespace/name`, or `name` of a cluster-scoped object.
    pub key: Arc<str>,
    pub old: Option<Arc<T>>,
    pub new: Option<Arc<T>>,
}

impl<T> Clone for Delta<T> {
    fn clone(&self) -> Self {
        Delta {
            key: self.key.clone(),
            old: self.old.clone(),
            new: self.new.clone(),
        }
    }
}

impl<T> Delta<T> {
    pub fn is_added(&self) -> bool {
        self.old.is_none()
    }

    pub fn is_deleted(&self) -> bool {
        self.new.is_none()
    }

    /// The newest state there is: the new one, or the last before deletion.
    pub fn object(&self) -> &Arc<T> {
        self.new.as_ref().or(self.old.as_ref()).expect(
            "a delta has at least one side: made only by Cache, which never makes an empty one",
        )
    }
}

type Handler<T> = Box<dyn Fn(&Delta<T>) + Send + Sync>;

/// A shared, current, read-only view of a resource. Clones share it.
pub struct Informer<T>(Arc<Shared<T>>);

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Informer(self.0.clone())
    }
}

pub(crate) struct Shared<T> {
    cache: RwLock<Cache<T>>,
    /// Held over "change the cache, tell everyone", so that handlers see changes in order and a new one misses none.
    handlers: Mutex<Handlers<T>>,
    synced: watch::Sender<bool>,
    contact: Mutex<Contact>,
}

/// Whether changes arrive. Written by the reflector.
#[derive(Clone, Copy)]
enum Contact {
    Since(Instant),
    /// Lost at the second time, after having been there since the first.
    Lost(Option<Instant>, Instant),
}

struct Handlers<T> {
    functions: Vec<Handler<T>>,
    subscriptions: Vec<std::sync::Weak<subscription::Shared<T>>>,
}

impl<T: Any + Send + Sync> Informer<T> {
    pub(crate) fn new() -> Self {
        Informer(Arc::new(Shared {
            cache: RwLock::new(Cache::default()),
            handlers: Mutex::new(Handlers {
                functions: Vec::new(),
                subscriptions: Vec::new(),
            }),
            synced: watch::Sender::new(false),
            contact: Mutex::new(Contact::Lost(None, Instant::now())),
        }))
    }

    /// The object under `namespace/name` (or `name`).
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        self.0.cache.read().get(key)
    }

    /// All objects, ordered by key.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.0.cache.read().list()
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<Arc<str>> {
        self.0.cache.read().keys()
    }

    pub fn len(&self) -> usize {
        self.0.cache.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Indexes all objects, present and future, under the values `of` gives. A second index of the same name is
    /// ignored, so that several users may each declare the one they need.
    pub fn add_index(
        &self,
        name: &'static str,
        of: impl Fn(&T) -> Vec<String> + Send + Sync + 'static,
    ) {
        self.0.cache.write().add_index(name, Box::new(of));
    }

    /// The objects under `value` of an index, ordered by key; none if there is no such index.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<T>> {
        self.0.cache.read().by_index(name, value)
    }

    /// How many objects are under `value` of an index.
    pub fn count_by_index(&self, name: &str, value: &str) -> usize {
        self.0.cache.read().count_by_index(name, value)
    }

    /// Calls `handler` for every object there is (as an addition), then for every change, in order. It runs in the
    /// informer's task and must not block, nor add a handler to the same informer; it usually adds a key to a queue.
    pub fn add_handler(&self, handler: impl Fn(&Delta<T>) + Send + Sync + 'static) {
        let mut handlers = self.0.handlers.lock();
        for delta in self.0.cache.read().as_additions() {
            handler(&delta);
        }
        handlers.functions.push(Box::new(handler));
    }

    /// A stream of what differs from what was last received, starting with every object there is. It holds at most
    /// one pending change per key, so a slow reader costs no memory and slows nobody.
    pub fn subscribe(&self) -> Subscription<T> {
        let mut handlers = self.0.handlers.lock();
        let (subscription, shared) = Subscription::new(self.0.cache.read().as_additions());
        handlers
            .subscriptions
            .retain(|weak| weak.strong_count() > 0);
        handlers.subscriptions.push(shared);
        subscription
    }

    /// Whether the first state is complete.
    pub fn has_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// Waits until the first state is complete; never returns if the informer's task ended before.
    pub async fn wait_synced(&self) {
        let mut synced = self.0.synced.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Since when changes have been arriving; `None` while there is no watch. Breaks shorter than a second do not
    /// count. Whoever concludes something from silence must not count the time before.
    pub fn in_contact_since(&self) -> Option<Instant> {
        match *self.0.contact.lock() {
            Contact::Since(since) => Some(since),
            Contact::Lost(..) => None,
        }
    }

    /// The resourceVersion of the last change or bookmark seen; empty before the first.
    pub fn resource_version(&self) -> String {
        self.0.cache.read().resource_version().to_string()
    }

    /// Whether the change that gave an object this resourceVersion has arrived here. A reconciler asks it about its
    /// own last write before it decides on what the cache holds. Versions of one server are comparable (KEP-5504).
    pub fn has_seen(&self, resource_version: &str) -> bool {
        let Ok(wanted) = resource_version.parse::<u64>() else {
            return true;
        };
        let seen = self.0.cache.read().resource_version().parse::<u64>();
        seen.is_ok_and(|seen| seen >= wanted)
    }

    /// The only way the cache changes; called by the reflector.
    fn change(&self, change: impl FnOnce(&mut Cache<T>) -> Vec<Delta<T>>) {
        let handlers = self.0.handlers.lock();
        let deltas = change(&mut self.0.cache.write());
        for delta in &deltas {
            for handler in &handlers.functions {
                handler(delta);
            }
        }
        if deltas.is_empty() {
            return;
        }
        for subscription in &handlers.subscriptions {
            if let Some(subscription) = subscription.upgrade() {
                subscription.push(&deltas);
            }
        }
    }

    fn set_contact(&self, is_open: bool) {
        const UNNOTICED: Duration = Duration::from_secs(1);
        let now = Instant::now();
        let mut contact = self.0.contact.lock();
        *contact = match (*contact, is_open) {
            (Contact::Lost(Some(since), at), true) if now - at < UNNOTICED => Contact::Since(since),
            (Contact::Lost(..), true) => Contact::Since(now),
            (Contact::Since(since), false) => Contact::Lost(Some(since), now),
            (same, _) => same,
        };
    }

    fn set_synced(&self) {
        self.0
            .synced
            .send_if_modified(|synced| !std::mem::replace(synced, true));
    }
}

#[cfg(test)]
mod tests;
