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
pub(crate) mod output;
pub mod page;
mod patch;
mod protobuf;
mod scale;
mod select;
mod series;
pub mod strategy;
pub(crate) mod table;
mod watch;
pub mod write;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::{Status, Value, meta, time};
use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response};
use parking_lot::{Mutex, RwLock};
use store::{KeyValue, RangeRequest, RangeResponse, Store, Txn};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::admission::Chain;
use crate::authn::token::Tokens;
use crate::backend::{Backend, Generation};
use crate::body::Body;
use crate::cache::{Cache, Encodings, Entry};
use crate::crd;
use crate::kinds;
use crate::kinds::gates::Gates;
use crate::options::Options;
use crate::request::{RequestContext, RequestInfo};
use crate::served::Served;
use crate::server::Parts;
use crate::streaming::Streaming;
pub(crate) use dispatch::{read_object, respond_value};
pub(crate) use errors::cache as cache_status;
use kind::Kind;
use leases::Leases;

/// What flow control, authorization and admission look at for most requests.
const BOOT_CACHES: [(&str, &str); 8] = [
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    (
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
    ),
];

/// Parsed lists by group and plural, and what their caches had changed last.
type ParsedLists = HashMap<(&'static str, &'static str), (i64, Arc<Vec<Value>>)>;

/// A custom kind as it is served now.
struct CustomKind {
    kind: Arc<Kind>,
    definition: Arc<crd::Definition>,
    stop: CancellationToken,
}

impl CustomKind {
    fn new(definition: &Arc<crd::Definition>, registry: &Registry) -> Self {
        let stop = registry.stop.child_token();
        let versions: Vec<_> = definition
            .versions
            .iter()
            .map(|version| &version.resource)
            .collect();
        // Lives on as the definition's tables do.
        let strategy: &'static crd::Custom = Box::leak(Box::new(crd::Custom::new(definition)));
        let kind = Kind::new(
            &definition.storage.resource,
            &versions,
            strategy,
            &registry.options.storage.prefix,
            &registry.encodings,
        );
        Self {
            kind: Arc::new(kind.until(stop.clone())),
            definition: definition.clone(),
            stop,
        }
    }
}

/// All resources of one server.
pub struct Registry {
    pub options: Arc<Options>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) served: Arc<Served>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) admission: Chain,
    /// What the features that are off guard.
    pub(crate) gates: Gates,
    pub(crate) leases: Leases,
    pub(crate) streaming: Streaming,
    parsed: Mutex<ParsedLists>,
    /// What all caches keep of objects beside their stored bytes.
    encodings: Arc<Encodings>,
    /// By plural of the stored resource; groups share some.
    kinds: HashMap<&'static str, Vec<Arc<Kind>>>,
    /// Custom kinds by group and plural.
    custom: RwLock<HashMap<(&'static str, &'static str), CustomKind>>,
    /// What definitions were made into; locked while they are followed.
    pub(crate) definitions: tokio::sync::Mutex<crd::Known>,
    /// Ends caches and background work; cancelled when the registry is dropped.
    stop: CancellationToken,
    /// Cancelled when watches shall end.
    draining: CancellationToken,
    _stop_on_drop: DropGuard,
    tasks: TaskTracker,
    /// Set when background work died: the server reports itself unready.
    broken: Arc<AtomicBool>,
    booted: Arc<AtomicBool>,
}

impl Registry {
    /// A registry whose boot objects are made in the background.
    pub fn start(parts: Parts) -> Arc<Self> {
        let metrics = parts.metrics.clone();
        let registry = Arc::new(Self::new(parts));
        metrics.add_source(registry.source());
        crate::boot::start(&registry);
        registry
    }

    fn new(parts: Parts) -> Self {
        let Parts {
            options,
            served,
            tokens,
            metrics: _,
            draining,
        } = parts;
        let store = options.store.clone();
        let stop = CancellationToken::new();
        let encodings = Arc::default();
        Self {
            admission: Chain::new(&options.admission),
            gates: Gates::new(&options.feature_gates),
            leases: Leases::new(store.clone()),
            parsed: Mutex::default(),
            streaming: Streaming::new(&options.kubelet_client),
            kinds: make_kinds(&served, &options.storage.prefix, &encodings),
            custom: RwLock::default(),
            definitions: tokio::sync::Mutex::default(),
            encodings,
            store,
            options,
            served,
            tokens,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
            draining,
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
    pub(crate) fn kind(&self, group: &str, plural: &str) -> Option<Arc<Kind>> {
        let named = self.kinds.get(plural).map_or(&[][..], Vec::as_slice);
        if let Some(kind) = named.iter().find(|kind| kind.storage.group == group) {
            return Some(kind.clone());
        }
        let custom = self.custom.read();
        custom
            .get(&(group, plural))
            .map(|custom| custom.kind.clone())
    }

    pub(crate) fn kinds(&self) -> Vec<Arc<Kind>> {
        let mut kinds: Vec<_> = self.kinds.values().flatten().cloned().collect();
        let custom = self.custom.read();
        kinds.extend(custom.values().map(|custom| custom.kind.clone()));
        kinds
    }

    fn cache(&self, group: &str, plural: &str) -> Option<Arc<Cache>> {
        Some(self.kind(group, plural)?.cache(self).clone())
    }

    /// How far the definitions' cache has changed, and what tells of more.
    pub(crate) fn definitions_changed(&self) -> Option<(i64, tokio::sync::watch::Receiver<i64>)> {
        let cache = self.cache("apiextensions.k8s.io", "customresourcedefinitions")?;
        let mut changes = cache.subscribe();
        changes.mark_unchanged();
        Some((cache.changed(), changes))
    }

    /// What tells of changes of a resource from now on.
    pub(crate) fn changes(
        &self,
        group: &str,
        plural: &str,
    ) -> Option<tokio::sync::watch::Receiver<i64>> {
        let mut changes = self.cache(group, plural)?.subscribe();
        changes.mark_unchanged();
        Some(changes)
    }

    /// Serves these definitions and no others. Those that are as they were keep their caches and watches.
    pub(crate) fn install(&self, definitions: &[Arc<crd::Definition>]) {
        let mut custom = self.custom.write();
        let is_same = |known: &CustomKind| {
            definitions
                .iter()
                .any(|definition| Arc::ptr_eq(definition, &known.definition))
        };
        if custom.len() == definitions.len() && custom.values().all(is_same) {
            return;
        }
        custom.retain(|_, known| {
            let stays = is_same(known);
            if !stays {
                known.stop.cancel();
            }
            stays
        });
        for definition in definitions {
            custom
                .entry((definition.group, definition.plural))
                .or_insert_with(|| CustomKind::new(definition, self));
        }
        let versions: Vec<_> = definitions
            .iter()
            .flat_map(|definition| definition.versions.iter().copied())
            .collect();
        self.served.set_custom(versions);
    }

    /// An object as stored, from the cache when it is there, else from the store; `None` when there is none.
    pub(crate) async fn stored_value(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, Status> {
        let entry = self.stored_entry(group, plural, namespace, name).await?;
        entry.map(|entry| codec::entry_value(&entry)).transpose()
    }

    /// The same, as the cache has it: cheap where labels or fields are enough.
    pub(crate) async fn stored_entry(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Entry>>, Status> {
        let Some(kind) = self.kind(group, plural) else {
            return Ok(None);
        };
        let cache = kind.cache(self);
        let key = kind.key(namespace, name);
        Ok(match cache.get(&key) {
            Some(entry) => Some(entry),
            None => cache.read(&key).await.map_err(errors::read)?.0,
        })
    }

    /// A key of the store as it is.
    pub(crate) async fn read_raw(&self, key: &Bytes) -> Result<Option<KeyValue>, Status> {
        let request = write::read_one(key);
        let response = self.store.range(request).await.map_err(errors::store)?;
        Ok(response.kvs.into_iter().next())
    }

    /// A transaction; whether its conditions held.
    pub(crate) async fn store_txn(&self, txn: Txn) -> Result<bool, Status> {
        let response = self.store.txn(txn).await.map_err(errors::store)?;
        Ok(response.succeeded)
    }

    /// A range of the store.
    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.store.range(request).await.map_err(errors::store)
    }

    /// A stored object of a kind, with its resourceVersion.
    pub(crate) fn decode_raw(&self, kind: &Kind, kv: &KeyValue) -> Result<Value, Status> {
        let entry = Entry::new(kind.shape(), kv).map_err(Status::internal)?;
        codec::entry_value(&entry)
    }

    pub(crate) fn served(&self) -> &Served {
        &self.served
    }

    /// Starts the caches that answering any request needs.
    pub(crate) fn start_boot_caches(&self) {
        for (group, plural) in BOOT_CACHES {
            self.cache(group, plural);
        }
    }

    /// Waits until those caches are filled.
    pub(crate) async fn boot_caches_filled(&self) -> Result<(), Status> {
        for (group, plural) in BOOT_CACHES {
            if let Some(cache) = self.cache(group, plural) {
                cache.catch_up().await.map_err(errors::cache)?;
            }
        }
        Ok(())
    }

    /// Sends the bookmarks that are due on all caches.
    pub(crate) async fn send_bookmarks(&self) {
        let watched: Vec<Arc<Cache>> = self
            .kinds()
            .iter()
            .filter_map(|kind| kind.started_cache().cloned())
            .filter(|cache| cache.wants_bookmarks())
            .collect();
        if watched.is_empty() {
            return;
        }
        // Caches that nothing happened to learn how far the store has come.
        if let Ok(revision) = self.store.revision().await {
            for cache in &watched {
                if let Err(error) = cache.wait(revision).await {
                    tracing::debug!(%error, "a bookmark is older than it could be");
                }
            }
        }
        for cache in watched {
            cache.send_bookmarks();
        }
    }

    pub(crate) fn encodings(&self) -> &Arc<Encodings> {
        &self.encodings
    }

    /// Drops what was encoded of objects and not used lately.
    pub(crate) fn sweep_encodings(&self) {
        self.encodings.begin_sweep();
        for kind in self.kinds() {
            if let Some(cache) = kind.started_cache() {
                cache.sweep_encodings();
            }
        }
    }

    /// Moves when services, addresses or ranges change.
    pub(crate) fn allocations_changed(&self) -> [i64; 2] {
        [("", "services"), ("networking.k8s.io", "ipaddresses")]
            .map(|(group, plural)| self.cache(group, plural).map_or(0, |cache| cache.changed()))
    }

    /// The stored bytes of a new object that the server makes itself.
    pub(crate) fn system_object(&self, kind: &Kind, mut object: Value, manager: &str) -> Bytes {
        let resource = kind.storage;
        meta::set_type(&mut object, &resource.api_version(), resource.kind);
        let status = managed::take_applied_status(kind, &mut object);
        apimachinery::schema::complete(&mut object, resource.schema);
        kind.strategy.default(&mut object);
        if let Err(error) = managed::on_system_create(kind, manager, &mut object, status) {
            tracing::error!(%error, kind = resource.kind, "an own object has no managed fields");
        }
        meta::set_uid(&mut object, &uuid::Uuid::new_v4().to_string());
        meta::set_creation_timestamp(&mut object, &time::now_text());
        if kind.strategy.counts_generation() {
            meta::set_generation(&mut object, 1);
        }
        codec::encode_object(&object, true)
    }

    /// The stored bytes of what the server makes of an object of its own.
    pub(crate) fn system_update(&self, kind: &Kind, mut new: Value, old: &Value) -> Bytes {
        managed::on_system_update(kind, "kube-apiserver", &mut new, old);
        codec::encode_object(&new, true)
    }

    /// A namespace.
    pub(crate) async fn namespace(&self, name: &str) -> Result<Option<Value>, Status> {
        self.stored_value("", "namespaces", "", name).await
    }

    /// A namespace as the store has it now.
    pub(crate) async fn fresh_namespace(&self, name: &str) -> Result<Option<Value>, Status> {
        let Some(kind) = self.kind("", "namespaces") else {
            return Ok(None);
        };
        let kv = self.read_raw(&kind.key("", name)).await?;
        kv.map(|kv| self.decode_raw(&kind, &kv)).transpose()
    }

    /// A namespace that says something with `mark` in it; others are not worth being parsed.
    pub(crate) async fn namespace_marked(
        &self,
        name: &str,
        mark: &str,
    ) -> Result<Option<Value>, Status> {
        let entry = self
            .kind("", "namespaces")
            .and_then(|kind| kind.cache(self).get(&kind.key("", name)));
        let silent = entry.is_some_and(|entry| {
            std::str::from_utf8(entry.stored()).is_ok_and(|text| !text.contains(mark))
        });
        if silent {
            return Ok(None);
        }
        self.namespace(name).await
    }

    /// All objects of a resource that admission looks at for many requests, parsed anew only when one has changed.
    pub(crate) async fn cached_values(
        &self,
        group: &'static str,
        plural: &'static str,
    ) -> Result<Arc<Vec<Value>>, Status> {
        let Some(cache) = self.cache(group, plural) else {
            return Ok(Arc::default());
        };
        cache.filled().await.map_err(errors::cache)?;
        let changed = cache.changed();
        if let Some((at, values)) = self.parsed.lock().get(&(group, plural))
            && *at == changed
        {
            return Ok(values.clone());
        }
        let snapshot = cache.snapshot();
        let values = Arc::new(parse_all(snapshot.iter())?);
        let entry = (snapshot.changed, values.clone());
        self.parsed.lock().insert((group, plural), entry);
        Ok(values)
    }

    /// All objects of a resource out of its cache, parsed for this caller.
    pub(crate) async fn all_values(&self, group: &str, plural: &str) -> Result<Vec<Value>, Status> {
        let Some(cache) = self.cache(group, plural) else {
            return Ok(Vec::new());
        };
        cache.filled().await.map_err(errors::cache)?;
        parse_all(cache.snapshot().iter())
    }
}

fn parse_all<'a>(entries: impl Iterator<Item = &'a Arc<Entry>>) -> Result<Vec<Value>, Status> {
    entries.map(|entry| codec::entry_value(entry)).collect()
}

fn make_kinds(
    served: &Served,
    root: &str,
    encodings: &Arc<Encodings>,
) -> HashMap<&'static str, Vec<Arc<Kind>>> {
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
        named.push(Arc::new(Kind::new(
            storage, &versions, strategy, root, encodings,
        )));
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

    fn pods_on(&self, node: &str, namespace: &str) -> Vec<Arc<Value>> {
        let pods = &api::r::PODS;
        let Some(kind) = self.kind(pods.group, pods.plural) else {
            return Vec::new();
        };
        let cache = kind.cache(self);
        let scope = cache.shape().scope(namespace);
        let Ok(selectors) = select::Selectors::parse(pods, "", &format!("spec.nodeName={node}"))
        else {
            return Vec::new();
        };
        let selection = selectors.selection(&kind, scope.clone(), namespace);
        cache
            .snapshot()
            .scan(&scope, b"")
            .filter(|entry| selection.matches(entry))
            .filter_map(|entry| codec::entry_value(entry).ok())
            .map(Arc::new)
            .collect()
    }

    fn generation(&self, group: &str, plural: &str) -> Generation {
        self.cache(group, plural)
            .map_or(0, |cache| cache.changed() as Generation)
    }

    fn size(&self, group: &str, plural: &str) -> Option<(usize, usize)> {
        self.kind(group, plural)?.started_cache()?.size()
    }

    fn watches(&self, info: &RequestInfo) -> usize {
        let stored = self.served.find(&info.group, &info.version, &info.resource);
        let (group, plural) =
            stored.map_or((info.group.as_str(), info.resource.as_str()), |found| {
                let storage = found.storage();
                (storage.group, storage.plural)
            });
        let Some(kind) = self.kind(group, plural) else {
            return 0;
        };
        let namespace = match kind.storage.namespaced {
            true => info.namespace.as_str(),
            false => "",
        };
        // What is created has no watch of its own yet.
        let key = match info.name.as_str() {
            "" => Bytes::new(),
            name => kind.key(namespace, name),
        };
        kind.started_cache()
            .map_or(0, |cache| cache.interested(&kind.scope(namespace), &key))
    }

    fn is_synced(&self) -> bool {
        let filled = self
            .kinds()
            .iter()
            .filter_map(|kind| kind.started_cache())
            .all(|cache| cache.revision() > 0);
        filled && self.booted.load(Ordering::Acquire) && !self.broken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
