//! The inner half of the server: every resource request ends here, whatever its kind.
//!
//! ```text
//! RequestContext ─ dispatch ─┬─ get, list, watch ── cache ──────────────── output ── Response
//!                            └─ create, update, patch, delete ── write ─┬─ output ── Response
//!                                     Strategy, admission, managed ◄────┘
//! ```
//!
//! Read `Registry` (what it holds), `dispatch` (verbs), `write` (the one order of every write) and `strategy::Strategy` (a
//! kind's rules) first. There is no handler per kind: kinds are rows of `kinds::KINDS`.
//!
//! **Invariant:** nothing here looks at a socket or at credentials; who asks has been settled by the front.

pub mod codec;
mod delete;
mod dispatch;
mod errors;
mod indent;
pub mod kind;
mod leases;
mod list;
mod managed;
pub mod options;
mod output;
mod page;
mod patch;
mod protobuf;
mod scale;
mod select;
pub mod strategy;
mod table;
mod watch;
pub mod write;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::{Status, Value};
use async_trait::async_trait;
use futures::FutureExt;
use http::{Request, Response};
use store::Store;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::admission::Chain;
use crate::authn::token::Tokens;
use crate::backend::{Backend, Generation};
use crate::body::Body;
use crate::cache::Cache;
use crate::kinds;
use crate::options::Options;
use crate::request::RequestContext;
use crate::served::Served;
use crate::streaming::Streaming;
use crate::server::Parts;
use kind::Kind;
use leases::Leases;

/// All resources of one server.
pub struct Registry {
    pub options: Arc<Options>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) served: Arc<Served>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) admission: Chain,
    pub(crate) leases: Leases,
    pub(crate) streaming: Streaming,
    /// By plural of the stored resource; groups share some.
    kinds: HashMap<&'static str, Vec<Arc<Kind>>>,
    /// Ends caches and background work; cancelled when the registry is dropped.
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
    tasks: TaskTracker,
    /// Set when background work died: the server reports itself unready.
    broken: Arc<AtomicBool>,
    booted: Arc<AtomicBool>,
}

impl Registry {
    /// A registry whose boot objects are made in the background.
    pub fn start(parts: Parts) -> Arc<Self> {
        let registry = Arc::new(Self::new(parts));
        crate::boot::start(&registry);
        registry
    }

    fn new(parts: Parts) -> Self {
        let Parts {
            options,
            served,
            tokens,
            metrics: _,
            draining: _,
        } = parts;
        let store = options.store.clone();
        let stop = CancellationToken::new();
        Self {
            admission: Chain::new(&options.admission),
            leases: Leases::new(store.clone()),
            streaming: Streaming::new(&options.kubelet_client),
            kinds: make_kinds(&served, &options.storage.prefix),
            store,
            options,
            served,
            tokens,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
            tasks: TaskTracker::new(),
            broken: Arc::default(),
            booted: Arc::default(),
        }
    }

    /// Runs background work for as long as the registry lives. Work that panics makes the server unready.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let broken = self.broken.clone();
        self.tasks.spawn(async move {
            if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                tracing::error!(
                    name,
                    "background work panicked; the server is not ready any more"
                );
                broken.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Cancelled when the registry goes away.
    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    pub(crate) fn set_booted(&self) {
        self.booted.store(true, Ordering::Release);
    }

    /// The kind stored for a resource of any of its groups.
    pub(crate) fn kind(&self, group: &str, plural: &str) -> Option<&Arc<Kind>> {
        let named = self.kinds.get(plural)?;
        named.iter().find(|kind| kind.storage.group == group)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values().flatten()
    }

    fn cache(&self, group: &str, plural: &str) -> Option<&Arc<Cache>> {
        Some(self.kind(group, plural)?.cache(self))
    }

    /// An object as stored, from the cache when it is there, else from the store; `None` when there is none.
    pub(crate) async fn stored_value(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, Status> {
        let Some(kind) = self.kind(group, plural) else {
            return Ok(None);
        };
        let cache = kind.cache(self);
        let key = kind.key(namespace, name);
        let entry = match cache.get(&key) {
            Some(entry) => Some(entry),
            None => cache.read(&key).await.map_err(errors::read)?.0,
        };
        entry.map(|entry| codec::entry_value(&entry)).transpose()
    }

    /// A namespace.
    pub(crate) async fn namespace(&self, name: &str) -> Result<Option<Value>, Status> {
        self.stored_value("", "namespaces", "", name).await
    }

    /// All objects of a resource out of its cache, once that is filled.
    pub(crate) async fn cached_values(
        &self,
        group: &str,
        plural: &str,
    ) -> Result<Vec<Value>, Status> {
        let Some(cache) = self.cache(group, plural) else {
            return Ok(Vec::new());
        };
        cache.filled().await.map_err(errors::cache)?;
        cache
            .snapshot()
            .iter()
            .map(|entry| codec::entry_value(entry))
            .collect()
    }
}

fn make_kinds(served: &Served, root: &str) -> HashMap<&'static str, Vec<Arc<Kind>>> {
    let mut kinds: HashMap<_, Vec<Arc<Kind>>> = HashMap::new();
    for resource in served.resources() {
        let storage = resource.storage();
        let named = kinds.entry(storage.plural).or_default();
        let known = named.iter().any(|kind| kind.storage.group == storage.group);
        if storage.etcd_prefix.is_empty() || known {
            continue;
        }
        let versions: Vec<_> = served
            .resources()
            .iter()
            .copied()
            .filter(|other| std::ptr::eq(other.storage(), storage))
            .collect();
        let strategy = kinds::strategy_of(storage);
        named.push(Arc::new(Kind::new(storage, &versions, strategy, root)));
    }
    kinds
}

#[async_trait]
impl Backend for Registry {
    async fn handle(
        &self,
        context: RequestContext,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        self.dispatch(context, request).await
    }

    async fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Status> {
        let found = self.stored_value(group, plural, namespace, name).await?;
        Ok(found.map(Arc::new))
    }

    fn cached_list(&self, group: &str, plural: &str) -> Vec<Arc<Value>> {
        let Some(cache) = self.cache(group, plural) else {
            return Vec::new();
        };
        cache
            .snapshot()
            .iter()
            .filter_map(|entry| codec::entry_value(entry).ok())
            .map(Arc::new)
            .collect()
    }

    fn generation(&self, group: &str, plural: &str) -> Generation {
        self.cache(group, plural)
            .map_or(0, |cache| cache.changed() as Generation)
    }

    fn is_synced(&self) -> bool {
        let filled = self
            .kinds()
            .filter_map(|kind| kind.started_cache())
            .all(|cache| cache.revision() > 0);
        filled && self.booted.load(Ordering::Acquire) && !self.broken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
