//! Serves a watch that starts before what the feed remembers: out of a watch on the etcd of its own, until it has
//! come so far that the feed can take over.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Etcd;
use super::hub::{Broken, Watch};
use crate::embedded::{Feed, KeyRange, Record, Sender, WATCH_QUEUE, event};
use crate::kv::{StoreError, WatchBatch, WatchRequest, WatchStream};

pub(super) fn start(etcd: &Etcd, feed: Arc<Feed>, request: WatchRequest) -> WatchStream {
    let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
    let connection = etcd.connection.clone();
    let replays = etcd.replays.clone();
    let closed = etcd.closed.clone();
    let gone = sender.clone();
    etcd.replaying.spawn(async move {
        let work = async {
            let Ok(_permit) = replays.acquire().await else {
                return;
            };
            let error = match Watch::open(&connection, request.start_revision).await {
                Ok(watch) => match replay(watch, &feed, &request, &sender).await {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Err(broken) => error(broken, request.start_revision),
            };
            // The watcher may be gone, and then there is nobody to tell.
            let _ = sender.send(Err(error)).await;
        };
        tokio::select! {
            () = work => {}
            () = gone.closed() => {}
            () = closed.cancelled() => {}
        }
    });
    WatchStream { receiver }
}

fn error(broken: Broken, requested: i64) -> StoreError {
    match broken {
        Broken::Compacted(compacted) => StoreError::Compacted {
            requested,
            compacted,
        },
        Broken::Lost(reason) => StoreError::Unavailable(reason),
    }
}

async fn replay(
    mut watch: Watch,
    feed: &Arc<Feed>,
    request: &WatchRequest,
    sender: &Sender,
) -> Result<(), StoreError> {
    let range = KeyRange::new(&request.key, request.range_end.as_ref());
    let mut next = request.start_revision;
    loop {
        let rest = WatchRequest {
            start_revision: next,
            ..request.clone()
        };
        // Every revision has an event, so the watch gets to where the feed begins.
        match feed.attach(rest, sender.clone()) {
            Err(StoreError::SlowWatcher) => {}
            result => return result,
        }
        let records = watch.next().await.map_err(|broken| error(broken, next))?;
        let Some(revision) = records.last().map(Record::revision) else {
            continue;
        };
        next = revision + 1;
        let events = records
            .iter()
            .filter(|record| range.contains(&record.now.key))
            .map(|record| event(record, request.prev_kv, &feed.files))
            .collect::<Result<Vec<_>, _>>()?;
        if !events.is_empty()
            && sender
                .send(Ok(WatchBatch { revision, events }))
                .await
                .is_err()
        {
            return Ok(());
        }
    }
}
