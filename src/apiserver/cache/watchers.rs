//! Those who watch a resource: what each selects, how it wants events encoded, and its bounded queue.
//!
//! An event is encoded once per encoding, whatever the number of watchers. A watcher whose queue is full is dropped
//! alone: its stream ends, and its client resumes from the last revision it saw.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::entry::{EncodingId, Entry};
use super::window::{Change, Event};

/// Deliveries a watcher may lag behind. Frames are shared between watchers, so a slow one costs 64 bytes each.
pub const QUEUE: usize = 4096;

/// What a watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Added,
    Modified,
    Deleted,
    /// Everything up to the delivery's revision was sent.
    Bookmark,
    /// The bookmark that ends the initial events of a streaming list.
    InitialEventsEnd,
}

/// One step of a watch.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub kind: Kind,
    pub revision: i64,
    /// `None` for bookmarks.
    pub entry: Option<Arc<Entry>>,
    /// The event encoded, when the watcher has an encoder.
    pub frame: Option<Bytes>,
}

/// Makes the bytes of watch events. Two encoders with the same id make the same bytes.
pub trait Encoder: Send + Sync + 'static {
    fn id(&self) -> EncodingId;
    /// `first`: nothing was sent on this stream before (tables name their columns then). Never called with a bookmark.
    fn event(&self, kind: Kind, entry: &Entry, revision: i64, first: bool) -> Bytes;
    fn bookmark(&self, kind: Kind, revision: i64) -> Bytes;
    /// Whether the first event differs from later ones.
    fn first_differs(&self) -> bool {
        false
    }
}

type Predicate = Box<dyn Fn(&Entry) -> bool + Send + Sync>;

/// Which objects of a resource are looked at.
pub struct Selection {
    /// Keys start with this (all of the resource, or one namespace).
    pub prefix: Bytes,
    /// This key alone.
    pub only: Option<Bytes>,
    /// Label and field selectors.
    pub predicate: Option<Predicate>,
    /// Pods of one node, as each kubelet watches its own: an event goes to one of these watches.
    pub of_node: bool,
}

impl Selection {
    pub fn all(prefix: Bytes) -> Self {
        Self {
            prefix,
            only: None,
            predicate: None,
            of_node: false,
        }
    }

    pub fn matches(&self, entry: &Entry) -> bool {
        self.covers(entry.key()) && self.predicate.as_ref().is_none_or(|holds| holds(entry))
    }

    fn covers(&self, key: &[u8]) -> bool {
        match &self.only {
            Some(only) => only == key,
            None => key.starts_with(&self.prefix),
        }
    }

    /// How a watcher with this selection sees `event`: an object that comes to match is added, one that ceases to
    /// match is deleted (with its last matching state).
    pub fn view<'a>(&self, event: &'a Event) -> Option<(Kind, &'a Arc<Entry>)> {
        if !self.covers(event.entry.key()) {
            return None;
        }
        let holds = |entry: &Entry| self.predicate.as_ref().is_none_or(|holds| holds(entry));
        match (event.change, &event.previous) {
            (Change::Added, _) | (Change::Modified, None) => {
                holds(&event.entry).then_some((Kind::Added, &event.entry))
            }
            (Change::Deleted, _) => holds(&event.entry).then_some((Kind::Deleted, &event.entry)),
            (Change::Modified, Some(previous)) => match (holds(previous), holds(&event.entry)) {
                (true, true) => Some((Kind::Modified, &event.entry)),
                (false, true) => Some((Kind::Added, &event.entry)),
                (true, false) => Some((Kind::Deleted, previous)),
                (false, false) => None,
            },
        }
    }
}

struct Watcher {
    id: u64,
    selection: Arc<Selection>,
    encoder: Option<Arc<dyn Encoder>>,
    bookmarks: bool,
    bookmarked: i64,
    queue: mpsc::Sender<Delivery>,
}

/// All watchers of one resource.
#[derive(Default)]
pub struct Watchers {
    list: Vec<Watcher>,
    next_id: u64,
    /// No one may watch any more.
    closed: bool,
    traffic: Traffic,
    interest: Interest,
}

/// How many watches there are of a prefix or a key, counted when it is asked for and the list has changed since.
#[derive(Default)]
struct Interest {
    is_counted: bool,
    by_place: HashMap<Bytes, usize>,
    /// Prefixes with watches of nodes' pods.
    of_nodes: HashSet<Bytes>,
}

/// What has gone through so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Events of the store.
    pub received: u64,
    /// Events handed to watches.
    pub delivered: u64,
}

impl Watchers {
    pub fn add(
        &mut self,
        selection: Arc<Selection>,
        encoder: Option<Arc<dyn Encoder>>,
        bookmarks: bool,
        revision: i64,
    ) -> (u64, mpsc::Receiver<Delivery>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        self.next_id += 1;
        if self.closed {
            // The watch ends once it has sent what it starts with.
            return (self.next_id, receiver);
        }
        self.interest.is_counted = false;
        self.list.push(Watcher {
            id: self.next_id,
            selection,
            encoder,
            bookmarks,
            bookmarked: revision,
            queue,
        });
        (self.next_id, receiver)
    }

    /// How many watches of all the resource, of `scope` and of `key` alone there are, selectors aside. All watches of
    /// pods by node count as one (upstream's `watchTracker` with its index).
    pub fn interested(&mut self, all: &[u8], scope: &[u8], key: &[u8]) -> usize {
        if !self.interest.is_counted {
            self.interest.count(&self.list);
        }
        let one = |place: &[u8]| {
            let count = self.interest.by_place.get(place).copied().unwrap_or(0);
            count + usize::from(self.interest.of_nodes.contains(place))
        };
        let scoped = if scope == all { 0 } else { one(scope) };
        one(all) + scoped + one(key)
    }

    pub fn remove(&mut self, id: u64) {
        self.interest.is_counted = false;
        if let Some(at) = self.list.iter().position(|watcher| watcher.id == id) {
            self.list.swap_remove(at);
        }
    }

    /// Ends every watch.
    pub fn clear(&mut self) {
        self.interest.is_counted = false;
        self.list.clear();
    }

    /// Ends every watch, and those that come.
    pub fn close(&mut self) {
        self.closed = true;
        self.clear();
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn wants_bookmarks(&self) -> bool {
        self.list.iter().any(|watcher| watcher.bookmarks)
    }

    pub fn dispatch(&mut self, events: &[Arc<Event>]) {
        for event in events {
            self.dispatch_one(event);
        }
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn dispatch_one(&mut self, event: &Arc<Event>) {
        let (mut delivered, before) = (0, self.list.len());
        let mut frames: SmallVec<[(EncodingId, Kind, Bytes); 4]> = SmallVec::new();
        self.list.retain(|watcher| {
            let Some((kind, entry)) = watcher.selection.view(event) else {
                return true;
            };
            delivered += 1;
            let frame = watcher.encoder.as_ref().map(|encoder| {
                let id = encoder.id();
                if let Some((.., frame)) = frames
                    .iter()
                    .find(|(have, for_kind, _)| *have == id && *for_kind == kind)
                {
                    return frame.clone();
                }
                let frame = encoder.event(kind, entry, event.revision, false);
                frames.push((id, kind, frame.clone()));
                frame
            });
            watcher
                .queue
                .try_send(Delivery {
                    kind,
                    revision: event.revision,
                    entry: Some(entry.clone()),
                    frame,
                })
                .is_ok()
        });
        self.interest.is_counted &= before == self.list.len();
        self.traffic.received += 1;
        self.traffic.delivered += delivered;
    }

    /// Tells those who want bookmarks that everything up to `revision` was sent, unless they know.
    pub fn bookmark(&mut self, revision: i64) {
        self.interest.is_counted = false;
        self.list.retain_mut(|watcher| {
            if !watcher.bookmarks || watcher.bookmarked >= revision {
                return true;
            }
            watcher.bookmarked = revision;
            let frame = watcher
                .encoder
                .as_ref()
                .map(|encoder| encoder.bookmark(Kind::Bookmark, revision));
            watcher
                .queue
                .try_send(Delivery {
                    kind: Kind::Bookmark,
                    revision,
                    entry: None,
                    frame,
                })
                .is_ok()
        });
    }
}

impl Interest {
    fn count(&mut self, list: &[Watcher]) {
        self.by_place.clear();
        self.of_nodes.clear();
        for watcher in list {
            let selection = &watcher.selection;
            let place = selection.only.as_ref().unwrap_or(&selection.prefix);
            if selection.of_node {
                self.of_nodes.insert(place.clone());
            } else {
                *self.by_place.entry(place.clone()).or_default() += 1;
            }
        }
        self.is_counted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_counted_by_what_they_look_at() {
        let mut watchers = Watchers::default();
        let mut add = |prefix: &'static str, only: Option<&'static str>, of_node| {
            let selection = Selection {
                prefix: Bytes::from_static(prefix.as_bytes()),
                only: only.map(|only| Bytes::from_static(only.as_bytes())),
                predicate: None,
                of_node,
            };
            watchers.add(Arc::new(selection), None, false, 0)
        };
        let first = add("/pods/", None, false);
        let _rest = [
            add("/pods/", None, true),
            add("/pods/", None, true),
            add("/pods/a/", None, false),
            add("/pods/b/", None, false),
            add("/pods/a/", Some("/pods/a/x"), false),
        ];
        let ask = |watchers: &mut Watchers, scope: &str, key: &str| {
            watchers.interested(b"/pods/", scope.as_bytes(), key.as_bytes())
        };
        assert_eq!(ask(&mut watchers, "/pods/a/", "/pods/a/x"), 4);
        assert_eq!(ask(&mut watchers, "/pods/c/", "/pods/c/x"), 2);
        watchers.remove(first.0);
        assert_eq!(ask(&mut watchers, "/pods/a/", "/pods/a/y"), 2);
    }
}
