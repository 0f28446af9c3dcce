//! What a controller wrote and its caches may not show yet (upstream's ControllerExpectations).
//!
//! Created objects are waited for by their resourceVersion: until the cache has seen it, nothing is decided. Deleted
//! ones are remembered by uid until the cache shows them as being deleted, or not at all. A create whose answer was
//! lost may have happened: then the server is asked for its present version, and the cache must reach that.

use std::collections::{HashMap, HashSet};

use api::Resource;
use client::{Client, ClientError, Informer, ListOptions};
use parking_lot::Mutex;

use crate::objects::Metadata;

#[derive(Default)]
pub struct Ledger(Mutex<HashMap<String, Entry>>);

#[derive(Default)]
struct Entry {
    version: u64,
    /// A write was sent and its answer never came.
    unsure: bool,
    deleted: HashSet<String>,
}

/// Whether the server may have done what it was asked though this is what came back.
pub fn is_unsure(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Transport(_)
            | ClientError::Timeout(_)
            | ClientError::Decode(_)
            | ClientError::TooLarge(_)
    ) || error.status().is_some_and(|status| status.code == 504)
}

impl Ledger {
    /// Notes a create (or update) for `key` that got this resourceVersion.
    pub fn wrote(&self, key: &str, resource_version: &str) {
        let version = resource_version.parse().unwrap_or(0);
        let mut entries = self.0.lock();
        let entry = entries.entry(key.into()).or_default();
        entry.version = entry.version.max(version);
    }

    /// Notes a failed write for `key`: it may have been done all the same.
    pub fn failed(&self, key: &str, error: &ClientError) {
        if is_unsure(error) {
            self.0.lock().entry(key.into()).or_default().unsure = true;
        }
    }

    /// Notes the deletion of the object with this uid.
    pub fn deleted(&self, key: &str, uid: &str) {
        let mut entries = self.0.lock();
        let entry = entries.entry(key.into()).or_default();
        entry.deleted.insert(uid.into());
    }

    /// Whether the cache shows all that was written for `key`.
    pub fn is_seen<T: Send + Sync + 'static>(&self, key: &str, informer: &Informer<T>) -> bool {
        let version = self.0.lock().get(key).map(|entry| entry.version);
        version.is_none_or(|version| version == 0 || informer.has_seen(&version.to_string()))
    }

    /// Resolves writes without an answer: whatever became of them is in what the server lists now. One ledger serves
    /// one resource, as versions seen by the informer of another say nothing.
    pub async fn settle(
        &self,
        key: &str,
        client: &Client,
        resource: &Resource,
    ) -> Result<(), ClientError> {
        if !self.0.lock().get(key).is_some_and(|entry| entry.unsure) {
            return Ok(());
        }
        let options = ListOptions::default();
        let (namespace, _) = apimachinery::meta::split_key(key);
        let list = client
            .list_all::<Metadata>(resource, namespace, &options)
            .await?;
        for item in &list.items {
            self.wrote(key, &item.metadata.resource_version);
        }
        if let Some(entry) = self.0.lock().get_mut(key) {
            entry.unsure = false;
        }
        Ok(())
    }

    /// Whether the object was deleted though the cache does not show it.
    pub fn is_deleted(&self, key: &str, uid: &str) -> bool {
        let entries = self.0.lock();
        entries
            .get(key)
            .is_some_and(|entry| entry.deleted.contains(uid))
    }

    /// Forgets deletions the cache shows: all but those for which `is_stale` holds.
    pub fn prune(&self, key: &str, is_stale: impl Fn(&str) -> bool) {
        if let Some(entry) = self.0.lock().get_mut(key) {
            entry.deleted.retain(|uid| is_stale(uid));
        }
    }

    pub fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}
