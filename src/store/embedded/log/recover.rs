//! Opens a folder: takes the lock, reads the newest checkpoint, replays the segments, and leaves a log that
//! can be appended to.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};
use nix::unistd::{Whence, lseek};

use super::super::files::{Files, Place};
use super::super::lease::{Clock, LeaseState};
use super::super::version::{Entry, Version};
use super::super::view::{Record, View, records_after};
use super::codec::{
    FRAME_HEADER_BYTES, HEADER_BYTES, Header, Item, Kind, Value, frame, frame_bytes, later_frame,
};
use super::{
    Base, DiskUse, Log, OpenError, Segment, Sizes, base_path, remove, segment_path, sync_dir,
};

/// What a folder holds.
pub(crate) struct Opened {
    pub log: Log,
    pub view: View,
    pub history: VecDeque<Record>,
}

/// Opens a folder, which is made if there is none.
pub(crate) fn open(
    dir: &Path,
    sizes: Sizes,
    files: &Arc<Files>,
    clock: Clock,
    disk: &Arc<DiskUse>,
) -> Result<Opened, OpenError> {
    if !dir.exists() {
        std::fs::create_dir_all(dir).map_err(OpenError::io("create", dir))?;
        // The folder itself must outlive a crash too.
        let parent = dir.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        sync_dir(parent).map_err(OpenError::io("sync", parent))?;
    }
    let lock = lock(dir)?;
    let listing = Listing::read(dir)?;
    let mut replay = Replay::new(clock);
    let base = match listing.bases.last() {
        Some(&number) => Some(replay.load_base(dir, number, files)?),
        None => None,
    };
    let mut log = Log {
        dir: dir.to_owned(),
        files: files.clone(),
        segments: VecDeque::new(),
        next_number: listing.next_number(),
        next_sequence: base.as_ref().map_or(1, |(_, header)| header.first_sequence),
        base: base.map(|(base, _)| base),
        sizes,
        disk: disk.clone(),
        _lock: lock,
    };
    replay.load_segments(&listing.segments, &mut log)?;
    if log.segments.is_empty() {
        log.add_segment(0, replay.view.revision)
            .map_err(OpenError::io("write the first segment of", dir))?;
    }
    // Only now that everything was read: what a newer checkpoint replaced, or a crash left unfinished.
    for number in listing.bases.iter().rev().skip(1) {
        remove(&base_path(dir, *number));
    }
    listing.temporary.iter().for_each(|path| remove(path));
    log.count_disk();
    let (view, history) = replay.finish();
    Ok(Opened { log, view, history })
}

fn lock(dir: &Path) -> Result<Flock<File>, OpenError> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(OpenError::io("open", &path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => OpenError::Locked(dir.to_owned()),
        errno => OpenError::Io {
            step: "lock",
            path,
            source: errno.into(),
        },
    })
}

/// The store's files in a folder, by number.
#[derive(Debug, Default)]
struct Listing {
    segments: Vec<u32>,
    bases: Vec<u32>,
    temporary: Vec<PathBuf>,
}

impl Listing {
    fn read(dir: &Path) -> Result<Self, OpenError> {
        let mut listing = Self::default();
        let entries = std::fs::read_dir(dir).map_err(OpenError::io("list", dir))?;
        for entry in entries {
            let path = entry.map_err(OpenError::io("list", dir))?.path();
            let number = || path.file_stem()?.to_str()?.parse().ok();
            match (path.extension().and_then(|text| text.to_str()), number()) {
                (Some("log"), Some(number)) => listing.segments.push(number),
                (Some("base"), Some(number)) => listing.bases.push(number),
                (Some("tmp"), Some(_)) => listing.temporary.push(path),
                _ => {}
            }
        }
        listing.segments.sort_unstable();
        listing.bases.sort_unstable();
        Ok(listing)
    }

    fn next_number(&self) -> u32 {
        let last = self.segments.iter().chain(&self.bases).max();
        last.map_or(1, |number| number + 1)
    }
}

/// The state as it grows from the files.
struct Replay {
    view: View,
    history: VecDeque<Record>,
    clock: Clock,
    /// The revision the checkpoint shows; changes up to it are in the state already.
    floor: i64,
    /// The transaction being replayed.
    revision: i64,
}

impl Replay {
    fn new(clock: Clock) -> Self {
        Self {
            view: View::empty(),
            history: VecDeque::new(),
            clock,
            floor: 0,
            revision: 0,
        }
    }

    fn load_base(
        &mut self,
        dir: &Path,
        number: u32,
        files: &Files,
    ) -> Result<(Base, Header), OpenError> {
        let path = base_path(dir, number);
        let file = File::open(&path).map_err(OpenError::io("open", &path))?;
        let io = || OpenError::io("read", &path);
        let size = file.metadata().map_err(io())?.len();
        let mut bytes = Vec::new();
        read_at(&file, &mut bytes, 0, HEADER_BYTES as u64, size).map_err(io())?;
        let header = Header::decode(&bytes)
            .filter(|header| header.kind == Kind::Base && header.number == number)
            .ok_or_else(|| damaged(&path, 0, "the header is unreadable"))?;
        self.floor = header.floor;
        self.view.compacted = header.floor;
        self.view.revision = self.view.revision.max(header.floor);
        let mut at = HEADER_BYTES as u64;
        let mut complete = false;
        // Frame by frame: the values are copied out, and the file need not be in memory beside them.
        loop {
            read_at(&file, &mut bytes, at, FRAME_HEADER_BYTES as u64, size).map_err(io())?;
            let length = frame_bytes(&bytes);
            read_at(&file, &mut bytes, at, length, size).map_err(io())?;
            let Some(frame) = frame(&bytes, 0, header.salt) else {
                break;
            };
            let source = Source { file: number, at };
            for item in frame.items {
                let item = item.map_err(|_| damaged(&path, at, "an item of an unknown kind"))?;
                if let Item::End(entries) = item {
                    complete = entries == self.view.keys.len() as u64;
                } else {
                    self.apply(item, source);
                }
            }
            at += frame.end as u64;
        }
        if !complete {
            return Err(damaged(&path, at, "the checkpoint is not complete"));
        }
        files.insert(number, Arc::new(file));
        Ok((Base { number, size }, header))
    }

    fn load_segments(&mut self, numbers: &[u32], log: &mut Log) -> Result<(), OpenError> {
        for (index, &number) in numbers.iter().enumerate() {
            let last = index + 1 == numbers.len();
            let path = segment_path(&log.dir, number);
            let (file, bytes) = read(&path)?;
            let header = Header::decode(&bytes)
                .filter(|header| header.kind == Kind::Segment && header.number == number);
            let Some(header) = header else {
                if last && bytes.iter().skip(HEADER_BYTES).all(|byte| *byte == 0) {
                    // Its creation was interrupted, so nothing was ever written to it.
                    remove(&path);
                    break;
                }
                return Err(damaged(&path, 0, "the header is unreadable"));
            };
            let first = log.segments.is_empty();
            if first && header.first_sequence > log.next_sequence
                || !first && header.first_sequence != log.next_sequence
            {
                return Err(damaged(&path, 0, "the segment before it is missing"));
            }
            log.next_sequence = header.first_sequence;
            let end = self.replay_segment(&path, &bytes, &header, log)?;
            if bytes.iter().skip(end).any(|byte| *byte != 0) {
                if !last {
                    return Err(damaged(&path, end as u64, "a group is unreadable"));
                }
                clear_tail(&file, end).map_err(OpenError::io("clear the torn end of", &path))?;
            }
            let size = file
                .metadata()
                .map_err(OpenError::io("look at", &path))?
                .len();
            let file = Arc::new(file);
            log.files.insert(number, file.clone());
            log.segments.push_back(Segment {
                number,
                salt: header.salt,
                file,
                first_sequence: header.first_sequence,
                last_revision: self.view.revision,
                used: end as u64,
                size,
            });
        }
        Ok(())
    }

    /// Replays a segment's groups and returns where they end.
    fn replay_segment(
        &mut self,
        path: &Path,
        bytes: &[u8],
        header: &Header,
        log: &mut Log,
    ) -> Result<usize, OpenError> {
        let source = Source {
            file: header.number,
            at: 0,
        };
        let mut at = HEADER_BYTES;
        while let Some(frame) = frame(bytes, at, header.salt) {
            if frame.sequence != log.next_sequence {
                return Err(damaged(path, at as u64, "a group is out of order"));
            }
            for item in frame.items {
                let item =
                    item.map_err(|_| damaged(path, at as u64, "an item of an unknown kind"))?;
                self.apply(item, source);
            }
            log.next_sequence += 1;
            at = frame.end;
        }
        if later_frame(bytes, at, header.salt, log.next_sequence).is_some() {
            return Err(damaged(
                path,
                at as u64,
                "a group is unreadable, but later ones are not",
            ));
        }
        Ok(at)
    }

    fn apply(&mut self, item: Item<'_>, source: Source) {
        match item {
            Item::Transaction(revision) => {
                self.revision = revision;
                self.view.revision = self.view.revision.max(revision);
            }
            Item::Put { key, value, lease } => self.put(key, value, lease, source),
            Item::Delete(key) => self.delete(key),
            Item::Lease {
                id,
                ttl,
                deadline,
                renewed,
            } => self.lease(id, ttl, deadline, renewed),
            Item::Revoke(id) => {
                self.view.leases.remove(&id);
            }
            Item::Compact(revision) => {
                self.view.compacted = self.view.compacted.max(revision);
            }
            Item::Entry {
                create,
                modification,
                version,
                lease,
                key,
                value,
            } => {
                let key = Bytes::copy_from_slice(key);
                let held = Bytes::copy_from_slice(value.bytes);
                let entry = Version::new(key, held, create, modification, version, lease);
                entry.set_place(source.place(value));
                self.view.keys.insert(Entry(Arc::new(entry)));
            }
            // Only checkpoints have it, and reading them looks at it.
            Item::End(_) => {}
        }
    }

    fn put(&mut self, key: &[u8], value: Value<'_>, lease: i64, source: Source) {
        let prev = self.view.get(key).cloned();
        if self.revision <= self.floor {
            // The state has it; the one change at the floor itself is still part of the history.
            if let Some(now) = prev.filter(|prev| prev.mod_revision == self.revision)
                && self.revision == self.floor
            {
                self.history.push_back(Record { now, prev: None });
            }
            return;
        }
        let (key, create, version) = match &prev {
            Some(prev) => (prev.key.clone(), prev.create_revision, prev.version + 1),
            None => (Bytes::copy_from_slice(key), self.revision, 1),
        };
        let held = Bytes::copy_from_slice(value.bytes);
        let now = Arc::new(Version::new(
            key,
            held,
            create,
            self.revision,
            version,
            lease,
        ));
        now.set_place(source.place(value));
        if let Some(prev) = &prev {
            prev.cool();
        }
        self.view.keys.insert(Entry(now.clone()));
        self.history.push_back(Record { now, prev });
    }

    fn delete(&mut self, key: &[u8]) {
        if self.revision < self.floor {
            return;
        }
        let key = Bytes::copy_from_slice(key);
        let prev = if self.revision == self.floor {
            None
        } else {
            self.view.keys.remove(key.as_ref()).map(|Entry(prev)| prev)
        };
        if let Some(prev) = &prev {
            prev.cool();
        }
        let now = Arc::new(Version::tombstone(key, self.revision));
        self.history.push_back(Record { now, prev });
    }

    fn lease(&mut self, id: i64, ttl: i64, deadline: i64, renewed: bool) {
        let full = self.clock.now().saturating_add(ttl.saturating_mul(1000));
        // Who kept it alive could not do so while the store was down. Else its time went on, but the clock
        // may have been set back.
        let deadline = if renewed {
            full
        } else {
            self.clock.at_unix(deadline).min(full)
        };
        let state = LeaseState::new(id, ttl, deadline, renewed);
        self.view.leases.insert(id, Arc::new(state));
    }

    fn finish(mut self) -> (View, VecDeque<Record>) {
        let stale = records_after(&self.history, self.view.compacted - 1);
        self.history.drain(..stale);
        self.history.shrink_to_fit();
        let attached: Vec<(i64, Bytes)> = self
            .view
            .keys
            .iter()
            .filter(|entry| entry.0.lease != 0)
            .map(|entry| (entry.0.lease, entry.0.key.clone()))
            .collect();
        for (id, key) in attached {
            self.view.attach(id, &key);
        }
        (self.view, self.history)
    }
}

/// Where the bytes being replayed come from.
#[derive(Clone, Copy)]
struct Source {
    file: u32,
    /// Of the first of them.
    at: u64,
}

impl Source {
    fn place(self, value: Value<'_>) -> Place {
        Place {
            file: self.file,
            length: value.bytes.len() as u32,
            offset: self.at + value.offset,
        }
    }
}

fn damaged(path: &Path, offset: u64, reason: &'static str) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        offset,
        reason,
    }
}

/// A file and its bytes up to the last one that was ever written.
fn read(path: &Path) -> Result<(File, Vec<u8>), OpenError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(OpenError::io("open", path))?;
    let bytes = read_written(&file).map_err(OpenError::io("read", path))?;
    Ok((file, bytes))
}

/// Reads up to `length` bytes at `at`, less at the end of the file.
fn read_at(file: &File, into: &mut Vec<u8>, at: u64, length: u64, size: u64) -> io::Result<()> {
    let length = length.min(size.saturating_sub(at));
    into.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
    file.read_exact_at(into, at)
}

/// Space that was allocated but never written is a hole to `lseek`, and is not read.
fn read_written(file: &File) -> io::Result<Vec<u8>> {
    let size = i64::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut end = 0;
    while end < size {
        match lseek(file, end, Whence::SeekData) {
            Ok(data) => end = lseek(file, data, Whence::SeekHole)?,
            // ENXIO: nothing but a hole is left.
            Err(nix::errno::Errno::ENXIO) => break,
            Err(nix::errno::Errno::EINVAL) => end = size,
            Err(error) => return Err(error.into()),
        }
    }
    let mut bytes = vec![0; usize::try_from(end).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Zeroes what a torn group left, so that the next groups are followed by nothing.
fn clear_tail(file: &File, end: usize) -> io::Result<()> {
    let end = i64::try_from(end).map_err(io::Error::other)?;
    let size = i64::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    match fallocate(file, FallocateFlags::FALLOC_FL_ZERO_RANGE, end, size - end) {
        Ok(()) => {}
        Err(nix::errno::Errno::EOPNOTSUPP) => {
            file.set_len(end as u64)?;
            file.set_len(size as u64)?;
        }
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}
