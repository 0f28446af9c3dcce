//! One kind as the server serves it: its rules, its versions, and its cache, which starts when it is first read.

use std::sync::{Arc, OnceLock};

use api::Resource;
use apimachinery::{Status, Value};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::Registry;
use super::codec;
use super::managed::Resets;
use super::select::Fields;
use super::strategy::Strategy;
use crate::cache::{Cache, Encodings, Shape};

/// Everything about one stored resource.
pub struct Kind {
    /// The version objects are stored in.
    pub storage: &'static Resource,
    pub strategy: &'static dyn Strategy,
    pub fields: Fields,
    shape: Arc<Shape>,
    type_prefix: Vec<u8>,
    resets: Resets,
    cache: OnceLock<Arc<Cache>>,
    /// Ends the cache of a kind that goes away before the registry does.
    stop: Option<CancellationToken>,
}

impl Kind {
    /// `root` is what keys start with in place of `/registry`.
    pub fn new(
        storage: &'static Resource,
        versions: &[&'static Resource],
        strategy: &'static dyn Strategy,
        root: &str,
        encodings: &Arc<Encodings>,
    ) -> Self {
        let rest = storage
            .etcd_prefix
            .strip_prefix("/registry")
            .unwrap_or(storage.etcd_prefix);
        let fields = Fields::new(
            versions,
            |label| strategy.field_paths(label),
            |label| strategy.field_default(label),
        );
        let shape = Shape {
            prefix: Bytes::from(format!("{root}{rest}/")),
            namespaced: storage.namespaced,
            api_version: storage.api_version(),
            paths: fields.paths(),
            revised: crate::crd::is_custom(storage.schema),
            normalize: Arc::new(move |bytes| codec::normalize(storage, strategy, bytes)),
            encodings: encodings.clone(),
        };
        Self {
            storage,
            strategy,
            fields,
            shape: Arc::new(shape),
            type_prefix: codec::type_prefix(storage),
            resets: Resets::new(storage, strategy),
            cache: OnceLock::new(),
            stop: None,
        }
    }

    /// The same kind, whose cache and watches end when `stop` is cancelled.
    pub fn until(mut self, stop: CancellationToken) -> Self {
        self.stop = Some(stop);
        self
    }

    /// The store key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> Bytes {
        self.shape.key(namespace, name)
    }

    /// The prefix of a namespace's keys, or of all.
    pub fn scope(&self, namespace: &str) -> Bytes {
        self.shape.scope(namespace)
    }

    /// What entries of this kind are made with.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What each endpoint resets.
    pub fn resets(&self) -> &Resets {
        &self.resets
    }

    /// What stored objects begin with: their kind and apiVersion.
    pub fn type_prefix(&self) -> &[u8] {
        &self.type_prefix
    }

    /// The cache, started now if it was not.
    pub fn cache(&self, registry: &Registry) -> &Arc<Cache> {
        self.cache.get_or_init(|| {
            let cache = Cache::new(
                registry.store.clone(),
                self.shape.clone(),
                self.stop.clone().unwrap_or_else(|| registry.stop.clone()),
                registry.draining.clone(),
            );
            registry.spawn("cache", cache.clone().run());
            cache
        })
    }

    /// The cache, when it has started.
    pub fn started_cache(&self) -> Option<&Arc<Cache>> {
        self.cache.get()
    }

    /// Turns an object of this kind into another of its versions.
    pub fn convert(&self, object: &mut Value, from: &'static Resource, to: &'static Resource) {
        if std::ptr::eq(from, to) {
            return;
        }
        self.strategy.convert(object, from, to);
        apimachinery::meta::set_type(object, &to.api_version(), to.kind);
    }

    /// 404 in the words of the resource.
    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.storage.group, self.storage.plural, name)
    }
}
