//! The one watch on the etcd: of all keys, resumed behind its last event whenever it breaks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status, Streaming};

use super::connection::Connection;
use super::convert;
use crate::embedded::{Feed, Files, Past, Published, Record, View};
use crate::generated::{etcdserverpb as pb, mvccpb};
use crate::kv::StoreError;

/// Changes that are remembered for watches that start in the recent past or are slow.
const WINDOW_RECORDS: usize = 50_000;
/// Bytes of them, their values and former values included.
const WINDOW_BYTES: usize = 16 * 1024 * 1024;
/// What a record costs beside its bytes.
const RECORD_BYTES: usize = 400;
/// How long a member may take to open a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses between attempts, the last one repeated.
const BACK_OFF: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1000),
    Duration::from_millis(2000),
];

/// A running watch and the feed it fills.
#[derive(Debug)]
pub(super) struct Hub {
    feed: Arc<Feed>,
    _task: AbortOnDropHandle<()>,
}

impl Hub {
    /// Starts a watch whose first revision is `start`.
    pub fn start(connection: Arc<Connection>, start: i64) -> Self {
        let view = View {
            revision: start - 1,
            compacted: start,
            ..View::empty()
        };
        let published = Published {
            view,
            history: VecDeque::new(),
        };
        let files = Arc::new(Files::default());
        let feed = Arc::new(Feed::new(published, files, Past::Window));
        let follower = Follower {
            connection,
            feed: feed.clone(),
            next: start,
            floor: start,
            window: VecDeque::new(),
            bytes: 0,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(follower.run()));
        Self { feed, _task: task }
    }

    pub fn feed(&self) -> Arc<Feed> {
        self.feed.clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.feed.close();
    }
}

struct Follower {
    connection: Arc<Connection>,
    feed: Arc<Feed>,
    next: i64,
    floor: i64,
    /// Revision and bytes of every record in the feed's history.
    window: VecDeque<(i64, usize)>,
    bytes: usize,
}

impl Drop for Follower {
    /// However the task ends, nobody may go on waiting for it.
    fn drop(&mut self) {
        let error = StoreError::Unavailable("the watch on etcd ended".into());
        self.feed.end_watches(&error);
    }
}

impl Follower {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let before = self.next;
            match self.follow().await {
                Broken::Compacted(compacted) => {
                    let requested = self.next;
                    tracing::warn!(
                        requested,
                        compacted,
                        "etcd has compacted what was not seen yet"
                    );
                    self.feed.end_watches(&StoreError::Compacted {
                        requested,
                        compacted,
                    });
                    return;
                }
                Broken::Lost(reason) => {
                    if self.next > before {
                        failures = 0;
                    }
                    tracing::warn!(reason, next = self.next, "lost the watch on etcd; resuming");
                }
            }
            tokio::time::sleep(BACK_OFF[failures.min(BACK_OFF.len() - 1)]).await;
            failures += 1;
        }
    }

    /// Watches until it breaks.
    async fn follow(&mut self) -> Broken {
        let (number, _) = self.connection.member();
        let mut watch = match Watch::open(&self.connection, self.next).await {
            Ok(watch) => watch,
            Err(broken) => {
                self.connection.avoid(number);
                return broken;
            }
        };
        loop {
            let alarm = self.feed.progress_due();
            let alarm = async {
                match alarm {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                records = watch.next() => match records {
                    Ok(records) => self.publish(records),
                    Err(broken) => {
                        self.connection.avoid(number);
                        return broken;
                    }
                },
                () = alarm => self.feed.progress_alarm(std::time::Instant::now()),
            }
        }
    }

    fn publish(&mut self, records: Vec<Record>) {
        let Some(last) = records.last() else {
            return;
        };
        let revision = last.revision();
        self.next = revision + 1;
        for record in &records {
            let prev = record.prev.as_ref().map_or(0, |prev| prev.length());
            let bytes = RECORD_BYTES + record.now.key.len() + record.now.length() + prev;
            self.window.push_back((record.revision(), bytes));
            self.bytes += bytes;
        }
        while self.window.len() > WINDOW_RECORDS || self.bytes > WINDOW_BYTES {
            let Some((dropped, bytes)) = self.window.pop_front() else {
                break;
            };
            self.bytes -= bytes;
            self.floor = self.floor.max(dropped + 1);
        }
        let view = View {
            revision,
            compacted: self.floor,
            ..View::empty()
        };
        let before = self.feed.publish(view, &records).compacted;
        if self.floor > before {
            self.feed.trim(self.floor);
        }
    }
}

/// Why a watch ended.
pub(super) enum Broken {
    /// The oldest revision there is.
    Compacted(i64),
    Lost(String),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Broken::Lost(status.message().to_owned())
    }
}

/// A watch of all keys on one member.
pub(super) struct Watch {
    connection: Arc<Connection>,
    responses: Streaming<pb::WatchResponse>,
    /// What came of an answer that is too large for one message.
    parts: Vec<mvccpb::Event>,
    /// Closing it would end the watch.
    _requests: mpsc::Sender<pb::WatchRequest>,
}

impl Watch {
    /// Opens a watch whose first revision is `start`.
    pub async fn open(connection: &Arc<Connection>, start: i64) -> Result<Self, Broken> {
        let create = pb::WatchCreateRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: start,
            prev_kv: true,
            fragment: true,
            ..pb::WatchCreateRequest::default()
        };
        let (requests, receiver) = mpsc::channel(1);
        let create = pb::WatchRequest {
            request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
        };
        // There is room for one.
        let _ = requests.try_send(create);
        let mut request = Request::new(ReceiverStream::new(receiver));
        // A member that lost its leader shall say so instead of saying nothing.
        let required = MetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", required);
        let member = connection.member().1.clone();
        let mut client = member.watch();
        let responses = tokio::time::timeout(OPEN_TIMEOUT, client.watch(request))
            .await
            .map_err(|_| Broken::Lost("etcd did not open the watch in time".into()))??
            .into_inner();
        Ok(Self {
            connection: connection.clone(),
            responses,
            parts: Vec::new(),
            _requests: requests,
        })
    }

    /// The next changes: of whole revisions, and all of theirs. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Vec<Record>, Broken> {
        loop {
            let Some(response) = self.responses.message().await? else {
                return Err(Broken::Lost("etcd ended the watch".into()));
            };
            self.connection.saw(response.header.as_ref());
            if response.compact_revision != 0 {
                return Err(Broken::Compacted(response.compact_revision));
            }
            if response.canceled {
                return Err(Broken::Lost(response.cancel_reason));
            }
            self.parts.extend(response.events);
            if !response.fragment && !self.parts.is_empty() {
                let events = std::mem::take(&mut self.parts);
                return Ok(events.iter().filter_map(convert::record).collect());
            }
        }
    }
}
