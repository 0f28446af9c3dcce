//! One key at one revision, as the engine keeps it: the value in memory, on disk, or both.
//!
//! A current version always has its value in memory. A superseded one may give the memory back once the
//! value's place on disk is known; it is then read from there on demand.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::files::{Files, Place};
use crate::kv::{KeyValue, StoreError};

/// What the engine knows of one key at one revision.
#[derive(Debug)]
pub(crate) struct Version {
    pub key: Bytes,
    pub create_revision: i64,
    pub mod_revision: i64,
    /// Number of changes since creation; 0 marks a delete.
    pub version: i64,
    pub lease: i64,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
struct Slot {
    value: Option<Bytes>,
    place: Option<Place>,
}

impl Version {
    pub fn new(
        key: Bytes,
        value: Bytes,
        create_revision: i64,
        mod_revision: i64,
        version: i64,
        lease: i64,
    ) -> Self {
        let slot = Mutex::new(Slot {
            value: Some(value),
            place: None,
        });
        Self {
            key,
            create_revision,
            mod_revision,
            version,
            lease,
            slot,
        }
    }

    pub fn tombstone(key: Bytes, mod_revision: i64) -> Self {
        Self::new(key, Bytes::new(), 0, mod_revision, 0, 0)
    }

    pub fn is_delete(&self) -> bool {
        self.version == 0
    }

    /// The value's length in bytes.
    pub fn length(&self) -> usize {
        let slot = self.slot.lock();
        match (&slot.value, slot.place) {
            (Some(value), _) => value.len(),
            (None, place) => place.map_or(0, |place| place.length as usize),
        }
    }

    /// The value, when it is in memory.
    pub fn hot(&self) -> Option<Bytes> {
        self.slot.lock().value.clone()
    }

    /// The value, from disk when it must be.
    ///
    /// Errs with `Compacted` when the file that held it has been dropped, which only happens to versions
    /// below the compaction floor.
    pub fn value(&self, files: &Files) -> Result<Bytes, StoreError> {
        // The place may move to a newer file between the look and the read, hence the second try.
        for _ in 0..2 {
            let place = {
                let slot = self.slot.lock();
                match (&slot.value, slot.place) {
                    (Some(value), _) => return Ok(value.clone()),
                    (None, Some(place)) => place,
                    (None, None) => break,
                }
            };
            if let Some(value) = files.read(place)? {
                return Ok(value);
            }
        }
        Err(StoreError::Compacted {
            requested: self.mod_revision,
            compacted: self.mod_revision + 1,
        })
    }

    /// Where the value now is on disk.
    pub fn set_place(&self, place: Place) {
        self.slot.lock().place = Some(place);
    }

    /// Gives the value's memory back if it can be read from disk. Returns the bytes freed.
    pub fn cool(&self) -> usize {
        let mut slot = self.slot.lock();
        if slot.place.is_none() {
            return 0;
        }
        slot.value.take().map_or(0, |value| value.len())
    }

    pub fn to_kv(&self, files: &Files, keys_only: bool) -> Result<KeyValue, StoreError> {
        let value = if keys_only {
            Bytes::new()
        } else {
            self.value(files)?
        };
        Ok(self.with_value(value))
    }

    pub fn with_value(&self, value: Bytes) -> KeyValue {
        KeyValue {
            key: self.key.clone(),
            value,
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// A version as the key index orders it: by key alone, so that inserting one replaces its predecessor.
#[derive(Clone, Debug)]
pub(crate) struct Entry(pub Arc<Version>);

impl Borrow<[u8]> for Entry {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}
