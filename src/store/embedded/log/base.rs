//! Writes checkpoints: every key at the compaction floor and every lease, in a file of its own.
//!
//! The file is written under another name, synced, and renamed; it either is there whole or is not there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::lease::LeaseState;
use super::super::range::KeyRange;
use super::super::request::Query;
use super::super::version::Version;
use super::super::view::{records_after, select, undo};
use super::super::{Shared, files::Place};
use super::codec::{FrameBuilder, HEADER_BYTES, Header, Kind};
use super::{base_path, random, sync_dir};
use crate::kv::{RangeRequest, StoreError};

/// Bytes of one frame of a checkpoint.
const FRAME_BYTES: usize = 1024 * 1024;
/// The file is synced every so many bytes: one sync of everything would hold up the log's own.
const SYNC_BYTES: usize = 4 * 1024 * 1024;

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) struct Job {
    pub dir: PathBuf,
    pub number: u32,
    /// Of the oldest group that still has to be replayed on top of it.
    pub first_sequence: u64,
}

/// A checkpoint that is on the disk.
#[derive(Debug)]
pub(crate) struct Written {
    pub number: u32,
    pub size: u64,
    pub first_sequence: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BaseError {
    #[error("writing the checkpoint: {0}")]
    Io(#[from] io::Error),
    #[error("reading what goes into the checkpoint: {0}")]
    Read(#[from] StoreError),
    #[error("the store is closing")]
    Closed,
}

impl Job {
    /// Writes the checkpoint at the store's present compaction floor. Takes a while.
    pub fn run(self, shared: &Shared) -> Result<Written, BaseError> {
        let temporary = self.dir.join(format!("{:08}.tmp", self.number));
        let result = self.write(shared, &temporary);
        if result.is_err() {
            // Opening removes it too.
            let _ = std::fs::remove_file(&temporary);
        }
        result
    }

    fn write(self, shared: &Shared, temporary: &Path) -> Result<Written, BaseError> {
        let everything = KeyRange::new(&bytes::Bytes::from_static(b"\0"), Some(&b"\0"[..].into()));
        let (view, records) = {
            let published = shared.feed.published.read();
            let from = records_after(&published.history, published.view.compacted);
            // Copied, so that the writer is not held up while they are sorted.
            let records: Vec<_> = published.history.range(from..).cloned().collect();
            (published.view.clone(), records)
        };
        let before = undo(&everything, records.iter());
        let query = Query::from(RangeRequest::default());
        let versions = select(&view, &query, &everything, before).versions;

        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(temporary)?;
        let header = Header {
            kind: Kind::Base,
            number: self.number,
            salt: random(),
            first_sequence: self.first_sequence,
            floor: view.compacted,
        };
        let mut output = Output::new(file, &header)?;
        for lease in view.leases.values() {
            output.lease(lease, shared);
        }
        let mut places = Vec::with_capacity(versions.len());
        for version in &versions {
            if shared.feed.closed.is_cancelled() {
                return Err(BaseError::Closed);
            }
            places.push(output.entry(version, shared)?);
        }
        let (file, size) = output.finish(versions.len() as u64)?;
        std::fs::rename(temporary, base_path(&self.dir, self.number))?;
        sync_dir(&self.dir)?;
        // From here on old values are read from the new file, and the old ones may go.
        shared.feed.files.insert(self.number, Arc::new(file));
        for (version, place) in versions.iter().zip(places) {
            version.set_place(Place {
                file: self.number,
                ..place
            });
        }
        Ok(Written {
            number: self.number,
            size,
            first_sequence: self.first_sequence,
        })
    }
}

struct Output {
    file: File,
    salt: u64,
    frame: FrameBuilder,
    sequence: u64,
    at: u64,
    unsynced: usize,
}

impl Output {
    fn new(file: File, header: &Header) -> io::Result<Self> {
        file.write_all_at(&header.encode(), 0)?;
        Ok(Self {
            file,
            salt: header.salt,
            frame: FrameBuilder::default(),
            sequence: 1,
            at: HEADER_BYTES as u64,
            unsynced: 0,
        })
    }

    fn lease(&mut self, lease: &LeaseState, shared: &Shared) {
        let deadline = shared.clock.to_unix(lease.deadline());
        self.frame
            .lease(lease.id, lease.ttl, deadline, lease.is_renewed());
    }

    fn entry(&mut self, version: &Version, shared: &Shared) -> Result<Place, BaseError> {
        let value = version.value(&shared.feed.files)?;
        let fields = [
            version.create_revision,
            version.mod_revision,
            version.version,
            version.lease,
        ];
        let offset = self.frame.entry(fields, &version.key, &value);
        let place = Place {
            file: 0,
            length: value.len() as u32,
            offset: self.at + offset as u64,
        };
        if self.frame.len() >= FRAME_BYTES {
            self.flush()?;
        }
        Ok(place)
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = self.frame.seal(self.salt, self.sequence);
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.unsynced += bytes.len();
        self.sequence += 1;
        self.frame.clear();
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn finish(mut self, entries: u64) -> io::Result<(File, u64)> {
        self.frame.end(entries);
        self.flush()?;
        self.file.sync_all()?;
        Ok((self.file, self.at))
    }
}
