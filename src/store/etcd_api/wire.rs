//! What is on the wire, message by message: the same script is run against real etcds, whose answers are the
//! right ones, and against the front.

use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status, Streaming};

use crate::embedded::Embedded;
use crate::generated::etcdserverpb as pb;
use crate::generated::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::generated::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::generated::etcdserverpb::request_op::Request as Op;
use crate::generated::etcdserverpb::response_op::Response as Done;
use crate::generated::etcdserverpb::watch_request::RequestUnion;
use crate::testing::{EtcdProcess, found};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_front_answers_as_the_script_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    let front = super::serve_on(Embedded::in_memory(), listener, None, shutdown.clone());
    let front = tokio::spawn(front);
    script(Endpoint::from_shared(url).unwrap().connect_lazy()).await;
    shutdown.cancel();
    front.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_etcds_answer_as_the_script_says() {
    for program in found("etcd") {
        println!("{}", program.display());
        let etcd = EtcdProcess::start(&program);
        drop(etcd.connect().await);
        let read = |name: &str| std::fs::read(etcd.pki.path(name)).unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read("ca.crt")))
            .identity(Identity::from_pem(read("client.crt"), read("client.key")));
        let endpoint = Endpoint::from_shared(etcd.url()).unwrap();
        script(endpoint.tls_config(tls).unwrap().connect_lazy()).await;
    }
}

type Kv = pb::kv_client::KvClient<Channel>;

async fn script(channel: Channel) {
    let kv = Kv::new(channel.clone());
    errors(kv.clone()).await;
    previous_and_kept_values(kv.clone()).await;
    transactions(kv.clone()).await;
    ranges(kv.clone()).await;
    leases(channel.clone()).await;
    watches(channel).await;
}

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn put_request(key: &'static str, value: &'static str) -> pb::PutRequest {
    pb::PutRequest {
        key: b(key),
        value: b(value),
        ..pb::PutRequest::default()
    }
}

fn range_request(key: &'static str, end: &'static str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: b(key),
        range_end: b(end),
        ..pb::RangeRequest::default()
    }
}

fn op(request: Op) -> pb::RequestOp {
    pb::RequestOp {
        request: Some(request),
    }
}

async fn put(kv: &mut Kv, key: &'static str, value: &'static str) -> i64 {
    let response = kv.put(put_request(key, value)).await.unwrap().into_inner();
    response.header.unwrap().revision
}

#[track_caller]
fn check_error<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, message: &str) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

async fn errors(mut kv: Kv) {
    use Code::{InvalidArgument, NotFound, OutOfRange};
    let empty = "etcdserver: key is not provided";
    check_error(
        kv.range(range_request("", "")).await,
        InvalidArgument,
        empty,
    );
    check_error(kv.put(put_request("", "v")).await, InvalidArgument, empty);
    check_error(
        kv.delete_range(pb::DeleteRangeRequest::default()).await,
        InvalidArgument,
        empty,
    );
    let future = pb::RangeRequest {
        revision: 1_000_000,
        ..range_request("k", "")
    };
    let message = "etcdserver: mvcc: required revision is a future revision";
    check_error(kv.range(future).await, OutOfRange, message);
    let leased = pb::PutRequest {
        lease: 77,
        ..put_request("k", "v")
    };
    let message = "etcdserver: requested lease not found";
    check_error(kv.put(leased).await, NotFound, message);
    let kept = pb::PutRequest {
        ignore_value: true,
        ..put_request("k", "")
    };
    let message = "etcdserver: key not found";
    check_error(kv.put(kept.clone()).await, InvalidArgument, message);
    let both = pb::PutRequest {
        value: b("v"),
        ..kept
    };
    let message = "etcdserver: value is provided";
    check_error(kv.put(both).await, InvalidArgument, message);
    let both = pb::PutRequest {
        lease: 77,
        ignore_lease: true,
        ..put_request("k", "v")
    };
    let message = "etcdserver: lease is provided";
    check_error(kv.put(both).await, InvalidArgument, message);
    let twice = pb::TxnRequest {
        success: vec![
            op(Op::RequestPut(put_request("k", "1"))),
            op(Op::RequestPut(put_request("k", "2"))),
        ],
        ..pb::TxnRequest::default()
    };
    let message = "etcdserver: duplicate key given in txn request";
    check_error(kv.txn(twice).await, InvalidArgument, message);
    let many = pb::TxnRequest {
        success: vec![op(Op::RequestRange(range_request("k", ""))); 129],
        ..pb::TxnRequest::default()
    };
    let message = "etcdserver: too many operations in txn request";
    check_error(kv.txn(many).await, InvalidArgument, message);
    let large = pb::PutRequest {
        key: b("k"),
        value: Bytes::from(vec![b'x'; 1600 * 1024]),
        ..pb::PutRequest::default()
    };
    let message = "etcdserver: request is too large";
    check_error(kv.put(large).await, InvalidArgument, message);
}

async fn previous_and_kept_values(mut kv: Kv) {
    put(&mut kv, "p", "one").await;
    let request = pb::PutRequest {
        prev_kv: true,
        ..put_request("p", "two")
    };
    let prev = kv.put(request).await.unwrap().into_inner().prev_kv.unwrap();
    assert_eq!((prev.value, prev.version), (b("one"), 1));
    let request = pb::PutRequest {
        ignore_value: true,
        ignore_lease: true,
        prev_kv: true,
        ..put_request("p", "")
    };
    let prev = kv.put(request).await.unwrap().into_inner().prev_kv.unwrap();
    assert_eq!(prev.value, b("two"));
    let response = kv.range(range_request("p", "")).await.unwrap().into_inner();
    assert_eq!(
        (&response.kvs[0].value, response.kvs[0].version),
        (&b("two"), 3)
    );
    let request = pb::DeleteRangeRequest {
        key: b("p"),
        prev_kv: true,
        ..pb::DeleteRangeRequest::default()
    };
    let response = kv.delete_range(request).await.unwrap().into_inner();
    assert_eq!((response.deleted, response.prev_kvs.len()), (1, 1));
    assert_eq!(response.prev_kvs[0].value, b("two"));
}

async fn transactions(mut kv: Kv) {
    let before = put(&mut kv, "t/1", "a").await;
    put(&mut kv, "t/2", "a").await;
    // Every key of a range has to compare so; a nested guard looks at the state before the transaction.
    let every = |value: &'static str| pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Value.into(),
        key: b("t/"),
        range_end: b("t0"),
        target_union: Some(TargetUnion::Value(b(value))),
    };
    let inner = pb::TxnRequest {
        compare: vec![every("a")],
        success: vec![op(Op::RequestPut(put_request("t/nested", "yes")))],
        failure: vec![op(Op::RequestPut(put_request("t/nested", "no")))],
    };
    let outer = pb::TxnRequest {
        compare: vec![every("a")],
        success: vec![
            op(Op::RequestPut(put_request("t/1", "b"))),
            op(Op::RequestTxn(inner)),
            op(Op::RequestRange(range_request("t/", "t0"))),
        ],
        failure: Vec::new(),
    };
    let response = kv.txn(outer).await.unwrap().into_inner();
    assert!(response.succeeded);
    assert_eq!(response.header.unwrap().revision, before + 2);
    let [first, second, third] = &response.responses[..] else {
        panic!("three answers were expected: {response:?}");
    };
    let Some(Done::ResponsePut(first)) = &first.response else {
        panic!("{first:?}");
    };
    assert_eq!(first.header.unwrap().revision, before + 2);
    let Some(Done::ResponseTxn(second)) = &second.response else {
        panic!("{second:?}");
    };
    assert!(second.succeeded);
    let Some(Done::ResponseRange(third)) = &third.response else {
        panic!("{third:?}");
    };
    let values: Vec<_> = third.kvs.iter().map(|kv| kv.value.clone()).collect();
    assert_eq!(values, [b("b"), b("a"), b("yes")]);
    let failing = pb::TxnRequest {
        compare: vec![every("a")],
        ..pb::TxnRequest::default()
    };
    let response = kv.txn(failing).await.unwrap().into_inner();
    assert!(!response.succeeded);
    assert_eq!(response.header.unwrap().revision, before + 2);
}

async fn ranges(mut kv: Kv) {
    let first = put(&mut kv, "r/1", "c").await;
    put(&mut kv, "r/2", "b").await;
    put(&mut kv, "r/3", "a").await;
    put(&mut kv, "r/1", "d").await;
    let all = || range_request("r/", "r0");
    let sorted = |target: SortTarget, order: SortOrder| pb::RangeRequest {
        sort_order: order.into(),
        sort_target: target.into(),
        ..all()
    };
    let newest = pb::RangeRequest {
        min_mod_revision: first + 2,
        ..all()
    };
    let oldest = pb::RangeRequest {
        max_mod_revision: first + 1,
        ..all()
    };
    let created = pb::RangeRequest {
        min_create_revision: first + 1,
        max_create_revision: first + 1,
        ..all()
    };
    let limited = pb::RangeRequest {
        limit: 2,
        ..sorted(SortTarget::Value, SortOrder::Descend)
    };
    let checks = [
        (sorted(SortTarget::Key, SortOrder::Descend), "3 2 1", false),
        (
            sorted(SortTarget::Version, SortOrder::Descend),
            "1 3 2",
            false,
        ),
        (
            sorted(SortTarget::Create, SortOrder::Ascend),
            "1 2 3",
            false,
        ),
        (sorted(SortTarget::Mod, SortOrder::None), "2 3 1", false),
        (sorted(SortTarget::Value, SortOrder::Ascend), "3 2 1", false),
        (newest, "1 3", false),
        (oldest, "2", false),
        (created, "2", false),
        (limited, "1 2", true),
    ];
    for (request, expected, more) in checks {
        let what = format!("{request:?}");
        let by_version = request.sort_target == i32::from(SortTarget::Version);
        let response = kv.range(request).await.unwrap().into_inner();
        let keys = response
            .kvs
            .iter()
            .map(|kv| String::from_utf8_lossy(&kv.key[2..]));
        let mut keys: Vec<_> = keys.collect();
        if by_version {
            // How equal ones are ordered is not said.
            keys[1..].sort_by(|left, right| right.cmp(left));
        }
        assert_eq!(
            (keys.join(" ").as_str(), response.more),
            (expected, more),
            "{what}"
        );
        assert_eq!(response.count, 3, "{what}");
    }
}

async fn leases(channel: Channel) {
    let mut kv = Kv::new(channel.clone());
    let mut client = pb::lease_client::LeaseClient::new(channel);
    let grant = pb::LeaseGrantRequest { ttl: 100, id: 9 };
    let granted = client.lease_grant(grant).await.unwrap().into_inner();
    assert_eq!((granted.id, granted.ttl), (9, 100));
    let message = "etcdserver: lease already exists";
    check_error(
        client.lease_grant(grant).await,
        Code::FailedPrecondition,
        message,
    );
    let long = pb::LeaseGrantRequest {
        ttl: 10_000_000_000,
        id: 0,
    };
    let message = "etcdserver: too large lease TTL";
    check_error(client.lease_grant(long).await, Code::OutOfRange, message);
    let leased = pb::PutRequest {
        lease: 9,
        ..put_request("l/1", "v")
    };
    kv.put(leased).await.unwrap();
    let ask = |id| pb::LeaseTimeToLiveRequest { id, keys: true };
    let left = client
        .lease_time_to_live(ask(9))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((left.granted_ttl, left.keys), (100, vec![b("l/1")]));
    let left = client
        .lease_time_to_live(ask(10))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((left.id, left.ttl), (10, -1));
    let request = tokio_stream::iter([9, 10].map(|id| pb::LeaseKeepAliveRequest { id }));
    let mut kept = client.lease_keep_alive(request).await.unwrap().into_inner();
    for expected in [(9, 100), (10, 0)] {
        let response = kept.message().await.unwrap().unwrap();
        assert_eq!((response.id, response.ttl), expected);
    }
    let revoke = pb::LeaseRevokeRequest { id: 9 };
    client.lease_revoke(revoke).await.unwrap();
    let message = "etcdserver: requested lease not found";
    check_error(client.lease_revoke(revoke).await, Code::NotFound, message);
    let response = kv
        .range(range_request("l/1", ""))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.count, 0);
}

/// A stream of watches.
struct Watches {
    requests: mpsc::Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
}

impl Watches {
    async fn open(channel: Channel) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        let mut client = pb::watch_client::WatchClient::new(channel);
        let first = create("w/", "w0");
        requests.send(first).await.unwrap();
        let responses = client.watch(ReceiverStream::new(receiver)).await.unwrap();
        Self {
            requests,
            responses: responses.into_inner(),
        }
    }

    async fn send(&mut self, request: pb::WatchRequest) {
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> pb::WatchResponse {
        let next = tokio::time::timeout(Duration::from_secs(10), self.responses.message());
        next.await.expect("in time").unwrap().expect("it goes on")
    }
}

fn create(key: &'static str, end: &'static str) -> pb::WatchRequest {
    create_with(pb::WatchCreateRequest {
        key: b(key),
        range_end: b(end),
        ..pb::WatchCreateRequest::default()
    })
}

fn create_with(request: pb::WatchCreateRequest) -> pb::WatchRequest {
    pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(request)),
    }
}

async fn watches(channel: Channel) {
    let mut kv = Kv::new(channel.clone());
    let mut watches = Watches::open(channel).await;
    let created = watches.next().await;
    assert_eq!(
        (created.watch_id, created.created, created.canceled),
        (0, true, false)
    );
    let start = created.header.unwrap().revision;

    // A number of the client's own, and a filter.
    let no_puts = pb::WatchCreateRequest {
        key: b("w/"),
        range_end: b("w0"),
        watch_id: 40,
        filters: vec![pb::watch_create_request::FilterType::Noput.into()],
        ..pb::WatchCreateRequest::default()
    };
    watches.send(create_with(no_puts.clone())).await;
    assert_eq!(watches.next().await.watch_id, 40);
    watches.send(create_with(no_puts)).await;
    let refused = watches.next().await;
    assert_eq!(
        (refused.watch_id, refused.created, refused.canceled),
        (-1, true, true)
    );
    watches.send(create("w/", "a")).await;
    let refused = watches.next().await;
    assert_eq!((refused.watch_id, refused.canceled), (-1, true));

    let first = put(&mut kv, "w/1", "v").await;
    assert!(first > start);
    let event = watches.next().await;
    assert_eq!((event.watch_id, event.events.len()), (0, 1));
    let delete = pb::DeleteRangeRequest {
        key: b("w/1"),
        ..pb::DeleteRangeRequest::default()
    };
    kv.delete_range(delete).await.unwrap();
    let mut ids = [watches.next().await.watch_id, watches.next().await.watch_id];
    ids.sort_unstable();
    assert_eq!(ids, [0, 40]);

    let cancel = pb::WatchCancelRequest { watch_id: 40 };
    watches
        .send(pb::WatchRequest {
            request_union: Some(RequestUnion::CancelRequest(cancel)),
        })
        .await;
    let canceled = watches.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled), (40, true));

    // Progress of the whole stream.
    let other = put(&mut kv, "elsewhere", "v").await;
    watches
        .send(pb::WatchRequest {
            request_union: Some(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})),
        })
        .await;
    let progress = watches.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (-1, 0));
    assert_eq!(progress.header.unwrap().revision, other);

    // The past, and what is left of it.
    kv.compact(pb::CompactionRequest {
        revision: first,
        physical: true,
    })
    .await
    .unwrap();
    let past = |watch_id, start_revision| {
        create_with(pb::WatchCreateRequest {
            key: b("w/1"),
            start_revision,
            watch_id,
            ..pb::WatchCreateRequest::default()
        })
    };
    watches.send(past(50, first - 1)).await;
    assert!(watches.next().await.created);
    let compacted = watches.next().await;
    assert!(compacted.canceled);
    assert_eq!(
        (compacted.watch_id, compacted.compact_revision),
        (50, first)
    );
    watches.send(past(51, first)).await;
    assert!(watches.next().await.created);
    let events = watches.next().await.events;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].kv.as_ref().unwrap().mod_revision, first);
}
