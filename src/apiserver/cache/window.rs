//! The most recent events of a resource, so that a watch resumes without asking the store.
//!
//! Bounded by count and by the bytes that only the window keeps alive (states that were replaced or deleted). What
//! has fallen out is still in the store's history until it is compacted; `history` reads it from there.

use std::collections::VecDeque;
use std::sync::Arc;

use super::entry::Entry;

/// Most events kept. At the 2,000 writes a second of a busy cluster this is a second of reconnecting.
pub const MAX_EVENTS: usize = 2048;
/// Most bytes of replaced states kept.
const MAX_BYTES: usize = 4 << 20;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// One change of one object. For a deletion `entry` is the last state, and `revision` that of the deletion.
#[derive(Clone, Debug)]
pub struct Event {
    pub change: Change,
    pub revision: i64,
    pub entry: Arc<Entry>,
    /// The state before, for a modification.
    pub previous: Option<Arc<Entry>>,
}

impl Event {
    fn kept_bytes(&self) -> usize {
        let replaced = match self.change {
            Change::Added => None,
            Change::Modified => self.previous.as_ref(),
            Change::Deleted => Some(&self.entry),
        };
        replaced.map_or(0, |entry| entry.stored().len())
    }
}

#[derive(Debug, Default)]
pub struct Window {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Every event after this revision is in `events`.
    start: i64,
}

impl Window {
    /// A window that knows nothing before `revision`.
    pub fn starting_at(revision: i64) -> Self {
        Self {
            start: revision,
            ..Self::default()
        }
    }

    /// A watch from this revision on (exclusive), or a later one, can be served.
    pub fn start(&self) -> i64 {
        self.start
    }

    pub fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.kept_bytes();
        self.events.push_back(event);
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.events.pop_front() else {
                return;
            };
            self.bytes -= oldest.kept_bytes();
            self.start = oldest.revision;
            // A transaction's events share a revision and leave together: half of one would be a gap.
            while self
                .events
                .front()
                .is_some_and(|event| event.revision == oldest.revision)
            {
                if let Some(event) = self.events.pop_front() {
                    self.bytes -= event.kept_bytes();
                }
            }
        }
    }

    /// The events after `revision`, which must not be before `start`.
    pub fn after(&self, revision: i64) -> VecDeque<Arc<Event>> {
        let from = self
            .events
            .partition_point(|event| event.revision <= revision);
        self.events.range(from..).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::{kv, shape};
    use super::*;

    fn event(revision: i64, size: usize) -> Arc<Event> {
        let json = format!(
            r#"{{"apiVersion":"v1","metadata":{{"name":"{}"}}}}"#,
            "x".repeat(size)
        );
        let entry = Entry::new(&shape(), &kv("/registry/pods/a/b", &json, revision)).unwrap();
        Arc::new(Event {
            change: Change::Deleted,
            revision,
            entry: Arc::new(entry),
            previous: None,
        })
    }

    #[test]
    fn the_window_is_bounded_by_count() {
        let mut window = Window::starting_at(10);
        for revision in 11..=(11 + MAX_EVENTS as i64) {
            window.push(event(revision, 1));
        }
        assert_eq!(window.start(), 11);
        assert_eq!(window.after(11).len(), MAX_EVENTS);
        assert_eq!(window.after(11 + MAX_EVENTS as i64 - 1).len(), 2 - 1);
    }

    #[test]
    fn the_window_is_bounded_by_bytes_and_never_splits_a_transaction() {
        let mut window = Window::starting_at(1);
        window.push(event(2, MAX_BYTES / 2));
        window.push(event(2, 10));
        window.push(event(3, MAX_BYTES / 2));
        assert_eq!(window.start(), 2);
        let left: Vec<i64> = window.after(2).iter().map(|event| event.revision).collect();
        assert_eq!(left, [3]);
    }
}
