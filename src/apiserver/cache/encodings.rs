//! Encodings of entries beside their stored JSON (protobuf, other versions): made once for many readers.
//!
//! All caches of a server share one bound. What does not fit is made anew for each reader, and what nobody has asked
//! for since the last two sweeps is let go: a busy server encodes an object once, an idle one holds it once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::entry::EncodingId;

/// Bytes of all encodings that are kept: 10,000 pods of 4.5 KB are 34 MB of protobuf, which must not double a server.
const MAX_BYTES: usize = 24 << 20;
/// Sweeps that an encoding outlives unused.
const IDLE_SWEEPS: u32 = 2;

/// How much is kept, and what was used lately. One for all caches of a server.
#[derive(Debug, Default)]
pub struct Encodings {
    bytes: AtomicUsize,
    /// Number of the current sweep.
    sweep: AtomicU32,
    /// Told when there is something to sweep again.
    some: Notify,
}

impl Encodings {
    /// Bytes kept now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until something is kept.
    pub async fn any(&self) {
        while self.bytes() == 0 {
            self.some.notified().await;
        }
    }

    /// Begins a sweep: `Entry::let_go_unused` then drops what was not used since the one before the last.
    pub fn begin_sweep(&self) {
        self.sweep.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u32 {
        self.sweep.load(Ordering::Relaxed)
    }

    fn admit(&self, length: usize) -> bool {
        let admitted = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
                bytes.checked_add(length).filter(|sum| *sum <= MAX_BYTES)
            });
        if admitted == Ok(0) {
            self.some.notify_one();
        }
        admitted.is_ok()
    }
}

/// The encodings of one entry.
#[derive(Debug)]
pub(super) struct Kept {
    list: SmallVec<[(EncodingId, Bytes); 1]>,
    used: u32,
    counted_by: Arc<Encodings>,
}

impl Kept {
    pub fn new(counted_by: &Arc<Encodings>) -> Self {
        Self {
            list: SmallVec::new(),
            used: counted_by.now(),
            counted_by: counted_by.clone(),
        }
    }

    pub fn find(&mut self, id: EncodingId) -> Option<Bytes> {
        let (_, bytes) = self.list.iter().find(|(have, _)| *have == id)?;
        self.used = self.counted_by.now();
        Some(bytes.clone())
    }

    /// Keeps an encoding if there is room for it.
    pub fn add(&mut self, id: EncodingId, bytes: &Bytes) {
        if self.counted_by.admit(bytes.len()) {
            self.list.push((id, bytes.clone()));
        }
    }

    pub fn is_unused(&self) -> bool {
        self.list.is_empty() || self.counted_by.now().wrapping_sub(self.used) >= IDLE_SWEEPS
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let bytes: usize = self.list.iter().map(|(_, bytes)| bytes.len()).sum();
        self.counted_by.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_kept_until_the_bound_and_counted_until_they_are_dropped() {
        let all = Arc::new(Encodings::default());
        let mut kept = Kept::new(&all);
        kept.add(1, &Bytes::from(vec![0; MAX_BYTES - 10]));
        kept.add(2, &Bytes::from_static(b"eleven bytes"));
        assert!(kept.find(1).is_some());
        assert_eq!(kept.find(2), None);
        drop(kept);
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn an_encoding_is_unused_after_two_sweeps_without_a_reader() {
        let all = Arc::new(Encodings::default());
        let mut kept = Kept::new(&all);
        kept.add(1, &Bytes::from_static(b"x"));
        all.begin_sweep();
        assert!(!kept.is_unused());
        assert!(kept.find(1).is_some());
        all.begin_sweep();
        assert!(!kept.is_unused());
        all.begin_sweep();
        assert!(kept.is_unused());
    }
}
