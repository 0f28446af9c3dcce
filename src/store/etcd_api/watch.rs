//! The Watch service: many watches over one stream.
//!
//! One task per stream does everything: it takes the client's requests, opens watches on the store, and sends
//! what they deliver. A client that reads slowly blocks its own task only; the store's watchers then catch up
//! from the history.

use std::collections::HashMap;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{self, status};
use super::{Front, MAX_REQUEST_BYTES};
use crate::generated::{etcdserverpb as pb, mvccpb};
use crate::kv::{Store, StoreError, WatchBatch, WatchRequest};

/// Answers of a stream that wait for the connection. Each is at most one batch.
const ANSWERS: usize = 16;
/// Watches of one stream. Each costs a few kilobytes.
const WATCHES: usize = 10_000;
/// What etcd calls no watch in particular (`clientv3.InvalidWatchID`).
const NO_WATCH: i64 = -1;

type Answer = Result<pb::WatchResponse, Status>;
type Delivery = (i64, Option<Result<WatchBatch, StoreError>>);

#[tonic::async_trait]
impl pb::watch_server::Watch for Front {
    type WatchStream = ReceiverStream<Answer>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (answers, receiver) = mpsc::channel(ANSWERS);
        let session = Session {
            front: self.clone(),
            answers,
            watches: HashMap::new(),
            deliveries: SelectAll::new(),
            next_id: 0,
            progress: None,
        };
        let shutdown = self.shutdown.clone();
        let requests = request.into_inner();
        // Its end is the end of the response stream, which the client observes.
        tokio::spawn(async move {
            tokio::select! {
                _ = session.run(requests) => {}
                () = shutdown.cancelled() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

struct Session {
    front: Front,
    answers: mpsc::Sender<Answer>,
    watches: HashMap<i64, Open>,
    deliveries: SelectAll<BoxStream<'static, Delivery>>,
    /// Where the search for a free number starts.
    next_id: i64,
    /// The revision a progress request waits for all watches to reach.
    progress: Option<i64>,
}

struct Open {
    abort: AbortHandle,
    wants_progress: bool,
    fragment: bool,
    no_put: bool,
    no_delete: bool,
    /// Everything up to here was delivered.
    revision: i64,
}

/// The client or the server is gone.
struct Ended;

impl Session {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>) -> Result<(), Ended> {
        loop {
            tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(request)) => self.request(request).await?,
                    Some(Err(_)) | None => return Ok(()),
                },
                Some((id, delivered)) = self.deliveries.next() => {
                    self.deliver(id, delivered).await?;
                }
            }
        }
    }

    async fn request(&mut self, request: pb::WatchRequest) -> Result<(), Ended> {
        use pb::watch_request::RequestUnion;
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => self.request_progress().await,
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Ended> {
        let now = self.revision().await?;
        let created = pb::WatchResponse {
            header: self.front.header_at(now),
            created: true,
            ..pb::WatchResponse::default()
        };
        let id = match self.choose_id(&request) {
            Ok(id) => id,
            Err(reason) => {
                return self
                    .send(pb::WatchResponse {
                        watch_id: NO_WATCH,
                        canceled: true,
                        cancel_reason: reason.into(),
                        ..created
                    })
                    .await;
            }
        };
        let created = pb::WatchResponse {
            watch_id: id,
            ..created
        };
        self.send(created).await?;
        let filters = request.filters.clone();
        let has = |filter: pb::watch_create_request::FilterType| filters.contains(&filter.into());
        let open = Open {
            abort: AbortHandle::new_pair().0,
            wants_progress: request.progress_notify,
            fragment: request.fragment,
            no_put: has(pb::watch_create_request::FilterType::Noput),
            no_delete: has(pb::watch_create_request::FilterType::Nodelete),
            revision: 0,
        };
        match self.front.store.watch(watch_request(request)).await {
            Ok(stream) => {
                let batches = ReceiverStream::new(stream.receiver);
                let batches = batches.map(move |batch| (id, Some(batch)));
                let ended = futures::stream::once(async move { (id, None) });
                let (batches, abort) = abortable(batches.chain(ended));
                self.deliveries.push(batches.boxed());
                self.watches.insert(id, Open { abort, ..open });
                Ok(())
            }
            Err(error) => self.fail(id, error).await,
        }
    }

    fn choose_id(&mut self, request: &pb::WatchCreateRequest) -> Result<i64, &'static str> {
        let end = &request.range_end;
        if !end.is_empty() && end.as_ref() != b"\0" && request.key >= *end {
            return Err("mvcc: watcher range is empty");
        }
        if self.watches.len() >= WATCHES {
            return Err("etcdserver: too many requests");
        }
        if request.watch_id != 0 {
            if self.watches.contains_key(&request.watch_id) {
                return Err("mvcc: duplicate watch ID provided on the WatchStream");
            }
            return Ok(request.watch_id);
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Ended> {
        let Some(open) = self.watches.remove(&id) else {
            return Ok(());
        };
        open.abort.abort();
        let revision = self.revision().await?;
        let header = self.front.header_at(revision);
        self.send(pb::WatchResponse {
            header,
            watch_id: id,
            canceled: true,
            ..pb::WatchResponse::default()
        })
        .await?;
        self.answer_progress().await
    }

    async fn deliver(
        &mut self,
        id: i64,
        delivered: Option<Result<WatchBatch, StoreError>>,
    ) -> Result<(), Ended> {
        let batch = match delivered {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return self.fail(id, error).await,
            None => {
                let error = StoreError::Unavailable("the watch ended".into());
                return self.fail(id, error).await;
            }
        };
        // A watch that was just cancelled may have one more batch under way.
        let Some(open) = self.watches.get_mut(&id) else {
            return Ok(());
        };
        open.revision = batch.revision;
        let is_progress = batch.events.is_empty();
        let events: Vec<mvccpb::Event> = batch
            .events
            .into_iter()
            .map(convert::event)
            .filter(|event| !open.filters(event))
            .collect();
        let (wanted, fragment) = (open.wants_progress, open.fragment);
        let response = pb::WatchResponse {
            header: self.front.header_at(batch.revision),
            watch_id: id,
            events,
            ..pb::WatchResponse::default()
        };
        if !response.events.is_empty() || is_progress && wanted {
            if fragment {
                self.send_fragments(response).await?;
            } else {
                self.send(response).await?;
            }
        }
        self.answer_progress().await
    }

    /// Splits an answer that is too large for a client's default limit.
    async fn send_fragments(&mut self, response: pb::WatchResponse) -> Result<(), Ended> {
        if response.events.len() < 2 || response.encoded_len() < MAX_REQUEST_BYTES {
            return self.send(response).await;
        }
        let part = |events: Vec<mvccpb::Event>, fragment| pb::WatchResponse {
            events,
            fragment,
            header: response.header,
            ..pb::WatchResponse {
                watch_id: response.watch_id,
                ..pb::WatchResponse::default()
            }
        };
        let mut events = Vec::new();
        let mut bytes = 0;
        for event in response.events.iter().cloned() {
            let length = event.encoded_len();
            if bytes + length >= MAX_REQUEST_BYTES && !events.is_empty() {
                let full = std::mem::take(&mut events);
                self.send(part(full, true)).await?;
                bytes = 0;
            }
            bytes += length;
            events.push(event);
        }
        self.send(part(events, false)).await
    }

    /// Ends a watch that the store gave up.
    async fn fail(&mut self, id: i64, error: StoreError) -> Result<(), Ended> {
        if let Some(open) = self.watches.remove(&id) {
            open.abort.abort();
        }
        let (compact_revision, cancel_reason) = match error {
            StoreError::Compacted { compacted, .. } => (compacted, String::new()),
            error => (0, status(error).message().to_owned()),
        };
        let revision = self.revision().await?;
        let header = self.front.header_at(revision);
        self.send(pb::WatchResponse {
            header,
            watch_id: id,
            canceled: true,
            compact_revision,
            cancel_reason,
            ..pb::WatchResponse::default()
        })
        .await?;
        self.answer_progress().await
    }

    /// The answer says that every watch of the stream has everything up to its revision.
    async fn request_progress(&mut self) -> Result<(), Ended> {
        self.progress = Some(self.revision().await?);
        let asked = self.front.store.request_progress().await;
        asked.map_err(|_| Ended)?;
        self.answer_progress().await
    }

    async fn answer_progress(&mut self) -> Result<(), Ended> {
        let Some(revision) = self.progress else {
            return Ok(());
        };
        if self.watches.values().any(|open| open.revision < revision) {
            return Ok(());
        }
        self.progress = None;
        let header = self.front.header_at(revision);
        self.send(pb::WatchResponse {
            header,
            watch_id: NO_WATCH,
            ..pb::WatchResponse::default()
        })
        .await
    }

    async fn revision(&mut self) -> Result<i64, Ended> {
        self.front.store.revision().await.map_err(|_| Ended)
    }

    async fn send(&mut self, response: pb::WatchResponse) -> Result<(), Ended> {
        self.answers.send(Ok(response)).await.map_err(|_| Ended)
    }
}

impl Open {
    fn filters(&self, event: &mvccpb::Event) -> bool {
        let is_put = event.r#type == i32::from(mvccpb::event::EventType::Put);
        if is_put { self.no_put } else { self.no_delete }
    }
}

fn watch_request(request: pb::WatchCreateRequest) -> WatchRequest {
    // etcd takes no key for the smallest one.
    let key = if request.key.is_empty() {
        Bytes::from_static(b"\0")
    } else {
        request.key
    };
    WatchRequest {
        key,
        range_end: (!request.range_end.is_empty()).then_some(request.range_end),
        start_revision: request.start_revision.max(0),
        prev_kv: request.prev_kv,
        // Needed for the stream's own progress requests too.
        progress_notify: true,
    }
}
