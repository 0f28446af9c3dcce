//! The open files that values of superseded versions are read from.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::kv::StoreError;

/// Where a value lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub file: u32,
    /// Bytes.
    pub length: u32,
    /// Bytes from the start of the file.
    pub offset: u64,
}

/// Files by number. A file stays readable for as long as it is listed, even once unlinked.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: RwLock<HashMap<u32, Arc<File>>>,
}

impl Files {
    pub fn insert(&self, number: u32, file: Arc<File>) {
        self.open.write().insert(number, file);
    }

    pub fn remove(&self, number: u32) {
        self.open.write().remove(&number);
    }

    /// Reads a value; `None` when its file is gone.
    pub fn read(&self, place: Place) -> Result<Option<Bytes>, StoreError> {
        let Some(file) = self.open.read().get(&place.file).cloned() else {
            return Ok(None);
        };
        let mut value = vec![0; place.length as usize];
        file.read_exact_at(&mut value, place.offset)
            .map_err(|error| StoreError::Broken(format!("cannot read a stored value: {error}")))?;
        Ok(Some(Bytes::from(value)))
    }
}
