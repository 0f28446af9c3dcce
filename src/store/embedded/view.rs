//! The store's state at one revision, and the record of changes since the compaction floor.
//!
//! A `View` is a handful of persistent maps: cloning it is O(1), so that a reader takes one under a lock
//! for an instant and then walks it freely, and the writer can throw away what the disk refused.
//! The past is not kept as a second index: a `Record` remembers what it replaced, and a range at an old
//! revision starts from the newest view and takes the records after that revision back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};

use super::files::Files;
use super::lease::LeaseState;
use super::range::KeyRange;
use super::request::{Query, SortBy};
use super::version::{Entry, Version};
use crate::kv::{KeyValue, RangeResponse, StoreError};

/// One key's change in one transaction.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The state the key was brought to; a tombstone for a delete.
    pub now: Arc<Version>,
    pub prev: Option<Arc<Version>>,
}

impl Record {
    pub fn revision(&self) -> i64 {
        self.now.mod_revision
    }
}

/// Everything at one revision.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub revision: i64,
    /// The oldest revision that can be read; 0 before the first compaction.
    pub compacted: i64,
    pub keys: OrdSet<Entry>,
    pub leases: OrdMap<i64, Arc<LeaseState>>,
}

impl View {
    /// A new store is at revision 1, as etcd's is.
    pub fn empty() -> Self {
        Self {
            revision: 1,
            compacted: 0,
            keys: OrdSet::new(),
            leases: OrdMap::new(),
        }
    }

    pub fn get(&self, key: &[u8]) -> Option<&Arc<Version>> {
        self.keys.get(key).map(|entry| &entry.0)
    }

    pub fn range(&self, range: &KeyRange) -> impl Iterator<Item = &Arc<Version>> {
        range
            .bounds()
            .into_iter()
            .flat_map(|bounds| self.keys.range::<_, [u8]>(bounds))
            .map(|entry| &entry.0)
    }

    pub fn check_revision(&self, requested: i64) -> Result<(), StoreError> {
        if requested > self.revision {
            return Err(StoreError::FutureRevision {
                requested,
                current: self.revision,
            });
        }
        if requested > 0 && requested < self.compacted {
            return Err(StoreError::Compacted {
                requested,
                compacted: self.compacted,
            });
        }
        Ok(())
    }
}

/// What the keys of a range were before the records given, oldest first, changed them.
///
/// A `None` means that the key did not exist.
pub(crate) fn undo<'a>(
    range: &KeyRange,
    records: impl Iterator<Item = &'a Record>,
) -> BTreeMap<Bytes, Option<Arc<Version>>> {
    let mut before = BTreeMap::new();
    for record in records {
        if range.contains(&record.now.key) {
            before
                .entry(record.now.key.clone())
                .or_insert_with(|| record.prev.clone());
        }
    }
    before
}

/// Index of the first record after `revision`.
pub(crate) fn records_after(history: &VecDeque<Record>, revision: i64) -> usize {
    history.partition_point(|record| record.revision() <= revision)
}

/// The versions a query answers with. The values are read by `materialize`, which may have to go to disk.
pub(crate) struct Selection {
    pub revision: i64,
    pub versions: Vec<Arc<Version>>,
    pub more: bool,
    pub count: i64,
}

/// Selects from `view`, with the keys in `before` as they were.
pub(crate) fn select(
    view: &View,
    query: &Query,
    range: &KeyRange,
    before: BTreeMap<Bytes, Option<Arc<Version>>>,
) -> Selection {
    let request = &query.range;
    let plain = query.is_plain();
    let keep = |found: usize| {
        !request.count_only && (!plain || request.limit == 0 || found < request.limit)
    };
    let mut versions = Vec::new();
    let mut count = 0;
    let mut take = |version: &Arc<Version>| {
        count += 1;
        if keep(versions.len()) {
            versions.push(version.clone());
        }
    };
    if before.is_empty() {
        view.range(range).for_each(&mut take);
    } else {
        merge(view.range(range), before, &mut take);
    }
    let mut more = request.limit > 0 && count > request.limit as i64;
    if !plain {
        versions.retain(|version| query.keeps(version));
        more = request.limit > 0 && versions.len() > request.limit;
    }
    Selection {
        revision: view.revision,
        versions,
        more: more && !request.count_only,
        count,
    }
}

/// Walks two ordered sources; a key in `before` hides the newest one.
fn merge<'a>(
    newest: impl Iterator<Item = &'a Arc<Version>>,
    before: BTreeMap<Bytes, Option<Arc<Version>>>,
    take: &mut impl FnMut(&Arc<Version>),
) {
    let mut before = before.into_iter().peekable();
    for version in newest {
        let mut hidden = false;
        while let Some((key, old)) = before.next_if(|(key, _)| *key <= version.key) {
            hidden = key == version.key;
            if let Some(old) = &old {
                take(old);
            }
        }
        if !hidden {
            take(version);
        }
    }
    before.filter_map(|(_, old)| old).for_each(|old| take(&old));
}

impl Selection {
    /// Whether `materialize` will not touch the disk (or hardly).
    pub fn is_hot(&self, query: &Query) -> bool {
        query.range.keys_only && query.is_plain()
            || self.versions.iter().all(|version| version.hot().is_some())
    }

    pub fn materialize(
        mut self,
        query: &Query,
        files: &Files,
    ) -> Result<RangeResponse, StoreError> {
        let limit = match query.range.limit {
            0 => usize::MAX,
            limit => limit,
        };
        let by_value = query.sort.is_some_and(|sort| sort.by == SortBy::Value);
        if let Some(sort) = query.sort.filter(|_| !by_value) {
            let order = |version: &Arc<Version>| match sort.by {
                SortBy::Version => version.version,
                SortBy::CreateRevision => version.create_revision,
                SortBy::ModRevision => version.mod_revision,
                SortBy::Key | SortBy::Value => 0,
            };
            self.versions.sort_by_key(order);
            if sort.descending {
                self.versions.reverse();
            }
        }
        if !by_value {
            self.versions.truncate(limit);
        }
        let keys_only = query.range.keys_only && !by_value;
        let mut kvs = self
            .versions
            .iter()
            .map(|version| version.to_kv(files, keys_only))
            .collect::<Result<Vec<KeyValue>, _>>()?;
        if let Some(sort) = query.sort.filter(|_| by_value) {
            kvs.sort_by(|left, right| left.value.cmp(&right.value));
            if sort.descending {
                kvs.reverse();
            }
            kvs.truncate(limit);
            if query.range.keys_only {
                kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
            }
        }
        Ok(RangeResponse {
            revision: self.revision,
            kvs,
            more: self.more,
            count: self.count,
        })
    }
}
