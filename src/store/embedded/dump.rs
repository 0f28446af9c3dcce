//! Everything the store holds at one moment, for a snapshot.

use std::sync::Arc;

use bytes::Bytes;

use super::Embedded;
use super::files::Files;
use super::version::Version;
use crate::kv::StoreError;

/// Every key at the newest revision, oldest change first.
pub(crate) struct Dump {
    pub revision: i64,
    pub compacted: i64,
    pub versions: Vec<Dumped>,
    /// Number and time to live in seconds.
    pub leases: Vec<(i64, i64)>,
    files: Arc<Files>,
}

pub(crate) struct Dumped {
    pub version: Arc<Version>,
    /// Its place among the changes of its revision.
    pub sub: i64,
}

impl Embedded {
    pub(crate) fn dump(&self) -> Dump {
        let (view, last) = {
            let published = self.shared.feed.published.read();
            (published.view.clone(), published.history.back().cloned())
        };
        let mut versions: Vec<_> = view.keys.iter().map(|entry| entry.0.clone()).collect();
        // The newest revision is read off the newest change, which may have been a delete.
        let last = last.map(|record| record.now);
        versions.extend(last.filter(|now| now.is_delete() && now.mod_revision == view.revision));
        versions.sort_by_key(|version| version.mod_revision);
        let mut before = (0, 0);
        let versions = versions.into_iter().map(|version| {
            let sub = if version.mod_revision == before.0 {
                before.1 + 1
            } else {
                0
            };
            before = (version.mod_revision, sub);
            Dumped { version, sub }
        });
        Dump {
            revision: view.revision,
            compacted: view.compacted,
            versions: versions.collect(),
            leases: view
                .leases
                .values()
                .map(|lease| (lease.id, lease.ttl))
                .collect(),
            files: self.shared.feed.files.clone(),
        }
    }
}

impl Dump {
    pub fn value(&self, dumped: &Dumped) -> Result<Bytes, StoreError> {
        dumped.version.value(&self.files)
    }
}
