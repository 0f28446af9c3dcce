//! One watch as its reader sees it: the past first (a snapshot, the store's history or the window), then live events.
//!
//! The stages hand over without a gap: a watch joins the live watchers under the same lock under which it takes the
//! snapshot or the window.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use store::kv::prefix_end;
use store::{EventKind, StoreError, WatchRequest, WatchStream};
use tokio::sync::mpsc;

use super::entry::Entry;
use super::watchers::{Delivery, Encoder, Kind, Selection};
use super::window::{Change, Event};
use super::{Cache, CacheError, Snapshot};

/// Entries taken out of a snapshot at once.
const SNAPSHOT_STEP: usize = 64;

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// With every object there is now, as added; `mark_end`: then a bookmark that says so.
    Snapshot { mark_end: bool },
    /// Behind this revision.
    Revision(i64),
}

enum Stage {
    Snapshot {
        snapshot: Snapshot,
        next: Bytes,
        ready: VecDeque<Arc<Entry>>,
        mark_end: bool,
    },
    History {
        stream: WatchStream,
        ready: VecDeque<Arc<Event>>,
        reached: i64,
        bookmarks: bool,
    },
    Window(VecDeque<Arc<Event>>),
    Live,
}

/// A watch in progress; dropping it ends it. `poll_next` answers `None` when the watch is over (too slow, store
/// gone, server draining) and the client should resume.
pub struct Watch {
    cache: Arc<Cache>,
    selection: Arc<Selection>,
    encoder: Option<Arc<dyn Encoder>>,
    stage: Stage,
    /// Id and queue among the live watchers.
    live: Option<(u64, mpsc::Receiver<Delivery>)>,
    sent_any: bool,
    last_revision: i64,
}

impl Cache {
    /// Starts a watch. `From::Revision` may lie before the cache's window as long as the store remembers it.
    pub async fn watch(
        self: &Arc<Self>,
        from: From,
        selection: Selection,
        encoder: Option<Arc<dyn Encoder>>,
        bookmarks: bool,
    ) -> Result<Watch, CacheError> {
        self.filled().await?;
        let selection = Arc::new(selection);
        if let From::Revision(revision) = from
            && revision < self.state.read().window.start()
        {
            let stream = self.history(&selection, revision).await?;
            return Ok(Watch {
                cache: self.clone(),
                selection,
                encoder,
                stage: Stage::History {
                    stream,
                    ready: VecDeque::new(),
                    reached: revision,
                    bookmarks,
                },
                live: None,
                sent_any: false,
                last_revision: revision,
            });
        }
        let mut watchers = self.watchers.lock();
        let (stage, revision) = match from {
            From::Snapshot { mark_end } => {
                let snapshot = self.snapshot();
                let revision = snapshot.revision;
                let stage = Stage::Snapshot {
                    snapshot,
                    next: selection.prefix.clone(),
                    ready: VecDeque::new(),
                    mark_end,
                };
                (stage, revision)
            }
            From::Revision(revision) => {
                let state = self.state.read();
                if revision < state.window.start() {
                    // The window moved since it was looked at; the client's next try takes the history.
                    return Err(CacheError::TooOld {
                        requested: revision,
                        oldest: state.window.start(),
                    });
                }
                (Stage::Window(state.window.after(revision)), revision)
            }
        };
        let live = watchers.add(selection.clone(), encoder.clone(), bookmarks, revision);
        Ok(Watch {
            cache: self.clone(),
            selection,
            encoder,
            stage,
            live: Some(live),
            sent_any: false,
            last_revision: revision,
        })
    }

    async fn history(
        &self,
        selection: &Selection,
        revision: i64,
    ) -> Result<WatchStream, CacheError> {
        let (key, range_end) = match &selection.only {
            Some(only) => (only.clone(), None),
            None => (
                selection.prefix.clone(),
                Some(prefix_end(&selection.prefix)),
            ),
        };
        let opened = self
            .store
            .watch(WatchRequest {
                key,
                range_end,
                start_revision: revision + 1,
                prev_kv: true,
                progress_notify: true,
            })
            .await;
        match opened {
            Ok(stream) => {
                // Without events the stream says nothing until its next sign of progress: ask for one.
                self.store.request_progress().await?;
                Ok(stream)
            }
            Err(StoreError::Compacted { compacted, .. }) => Err(CacheError::TooOld {
                requested: revision,
                oldest: compacted,
            }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Watch {
    /// The revision everything delivered so far is at least as new as.
    pub fn last_revision(&self) -> i64 {
        self.last_revision
    }

    pub async fn next(&mut self) -> Option<Result<Delivery, CacheError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Delivery, CacheError>>> {
        let polled = self.poll_stage(cx);
        if let Poll::Ready(Some(Ok(delivery))) = polled {
            return Poll::Ready(Some(Ok(self.send(delivery))));
        }
        polled
    }

    fn send(&mut self, mut delivery: Delivery) -> Delivery {
        self.last_revision = self.last_revision.max(delivery.revision);
        if let Some(encoder) = &self.encoder {
            let again = delivery.frame.is_none() || (!self.sent_any && encoder.first_differs());
            match &delivery.entry {
                Some(entry) if again => {
                    let first = !self.sent_any;
                    let frame = encoder.event(delivery.kind, entry, delivery.revision, first);
                    delivery.frame = Some(frame);
                }
                None if delivery.frame.is_none() => {
                    delivery.frame = Some(encoder.bookmark(delivery.kind, delivery.revision));
                }
                _ => {}
            }
            self.sent_any |= delivery.entry.is_some();
        }
        delivery
    }

    fn poll_stage(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Delivery, CacheError>>> {
        loop {
            match &mut self.stage {
                Stage::Snapshot { .. } => {
                    if let Some(delivery) = self.next_of_snapshot() {
                        return Poll::Ready(Some(Ok(delivery)));
                    }
                }
                Stage::History { .. } => match self.poll_history(cx) {
                    Poll::Ready(Step::Deliver(delivery)) => return Poll::Ready(Some(Ok(delivery))),
                    Poll::Ready(Step::Again) => {}
                    Poll::Ready(Step::End) => return Poll::Ready(None),
                    Poll::Ready(Step::Fail(error)) => return Poll::Ready(Some(Err(error))),
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Window(events) => match events.pop_front() {
                    Some(event) => {
                        if let Some(delivery) = deliver(&self.selection, &event) {
                            return Poll::Ready(Some(Ok(delivery)));
                        }
                    }
                    None => self.stage = Stage::Live,
                },
                Stage::Live => {
                    let Some((_, receiver)) = &mut self.live else {
                        return Poll::Ready(None);
                    };
                    return receiver.poll_recv(cx).map(|delivery| delivery.map(Ok));
                }
            }
        }
    }

    /// The next object of the snapshot, or its closing bookmark; `None` when the snapshot is done.
    fn next_of_snapshot(&mut self) -> Option<Delivery> {
        let Stage::Snapshot {
            snapshot,
            next,
            ready,
            mark_end,
        } = &mut self.stage
        else {
            return None;
        };
        loop {
            if let Some(entry) = ready.pop_front() {
                return Some(Delivery {
                    kind: Kind::Added,
                    revision: entry.revision(),
                    entry: Some(entry),
                    frame: None,
                });
            }
            let step: Vec<Arc<Entry>> = snapshot
                .scan(&self.selection.prefix, next)
                .take(SNAPSHOT_STEP)
                .cloned()
                .collect();
            let Some(last) = step.last() else {
                break;
            };
            *next = super::feed::after(last.key());
            ready.extend(
                step.into_iter()
                    .filter(|entry| self.selection.matches(entry)),
            );
        }
        let (mark_end, revision) = (*mark_end, snapshot.revision);
        self.stage = Stage::Live;
        self.last_revision = self.last_revision.max(revision);
        mark_end.then_some(Delivery {
            kind: Kind::InitialEventsEnd,
            revision,
            entry: None,
            frame: None,
        })
    }

    fn poll_history(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Stage::History {
            stream,
            ready,
            reached,
            bookmarks,
        } = &mut self.stage
        else {
            return Poll::Ready(Step::Again);
        };
        while let Some(event) = ready.pop_front() {
            if let Some(delivery) = deliver(&self.selection, &event) {
                return Poll::Ready(Step::Deliver(delivery));
            }
        }
        {
            let mut watchers = self.cache.watchers.lock();
            let state = self.cache.state.read();
            if *reached >= state.window.start() {
                let events = state.window.after(*reached);
                let live = watchers.add(
                    self.selection.clone(),
                    self.encoder.clone(),
                    *bookmarks,
                    *reached,
                );
                self.live = Some(live);
                self.stage = Stage::Window(events);
                return Poll::Ready(Step::Again);
            }
        }
        match stream.receiver.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(Step::End),
            Poll::Ready(Some(Err(StoreError::Compacted { compacted, .. }))) => {
                Poll::Ready(Step::Fail(CacheError::TooOld {
                    requested: *reached,
                    oldest: compacted,
                }))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Step::Fail(error.into())),
            Poll::Ready(Some(Ok(batch))) => {
                *reached = (*reached).max(batch.revision);
                ready.extend(
                    batch
                        .events
                        .iter()
                        .filter_map(|event| past_event(&self.cache, event))
                        .map(Arc::new),
                );
                Poll::Ready(Step::Again)
            }
        }
    }
}

enum Step {
    Deliver(Delivery),
    Again,
    End,
    Fail(CacheError),
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((id, _)) = &self.live {
            self.cache.watchers.lock().remove(*id);
        }
    }
}

fn deliver(selection: &Selection, event: &Event) -> Option<Delivery> {
    let (kind, entry) = selection.view(event)?;
    Some(Delivery {
        kind,
        revision: event.revision,
        entry: Some(entry.clone()),
        frame: None,
    })
}

/// An event of the store's history as the cache would have seen it.
fn past_event(cache: &Cache, event: &store::Event) -> Option<Event> {
    let revision = event.kv.mod_revision;
    let previous = event.prev.as_ref().and_then(|kv| cache.make_entry(kv));
    match event.kind {
        EventKind::Put => {
            let entry = cache.make_entry(&event.kv)?;
            Some(Event {
                change: if previous.is_some() {
                    Change::Modified
                } else {
                    Change::Added
                },
                revision,
                entry,
                previous,
            })
        }
        EventKind::Delete => Some(Event {
            change: Change::Deleted,
            revision,
            entry: previous?,
            previous: None,
        }),
    }
}
