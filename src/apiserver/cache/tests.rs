//! Cache semantics over the in-memory store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::embedded::Embedded;
use store::{Op, Store, Txn};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::entry::tests::shape;
use super::watchers::QUEUE;
use super::*;

struct Fixture {
    store: Arc<Embedded>,
    cache: Arc<Cache>,
    stop: CancellationToken,
    draining: CancellationToken,
    _guard: DropGuard,
}

impl Fixture {
    async fn start() -> Self {
        Self::on(Embedded::in_memory()).await
    }

    async fn on(store: Arc<Embedded>) -> Self {
        let stop = CancellationToken::new();
        let draining = CancellationToken::new();
        let cache = Cache::new(
            store.clone(),
            Arc::new(shape()),
            stop.clone(),
            draining.clone(),
        );
        tokio::spawn(cache.clone().run());
        cache.filled().await.expect("filled");
        Self {
            store,
            cache,
            _guard: stop.clone().drop_guard(),
            stop,
            draining,
        }
    }

    async fn put(&self, key: &str, label: &str) -> i64 {
        let value = format!(r#"{{"apiVersion":"v1","metadata":{{"labels":{{"l":"{label}"}}}}}}"#);
        self.commit(vec![put(key, value)]).await
    }

    async fn delete(&self, key: &str) -> i64 {
        let op = Op::Delete {
            key: Bytes::from(format!("/registry/pods/{key}")),
            range_end: None,
            prev_kv: false,
        };
        self.commit(vec![op]).await
    }

    async fn commit(&self, success: Vec<Op>) -> i64 {
        let txn = Txn {
            success,
            ..Txn::default()
        };
        self.store.txn(txn).await.expect("committed").revision
    }

    async fn watch(&self, from: From) -> Watch {
        let all = Selection::all(self.cache.shape().scope(""));
        self.cache
            .watch(from, all, None, false)
            .await
            .expect("a watch")
    }
}

fn put(key: &str, value: String) -> Op {
    Op::Put {
        key: Bytes::from(format!("/registry/pods/{key}")),
        value: value.into(),
        lease: 0,
    }
}

async fn next(watch: &mut Watch) -> (Kind, String, i64) {
    let delivery = tokio::time::timeout(Duration::from_secs(5), watch.next())
        .await
        .expect("in time")
        .expect("not ended")
        .expect("no error");
    let name = delivery
        .entry
        .as_ref()
        .map(|entry| entry.name().to_owned())
        .unwrap_or_default();
    (delivery.kind, name, delivery.revision)
}

#[tokio::test]
async fn a_snapshot_is_a_state_and_stays_it() {
    let fixture = Fixture::start().await;
    let first = fixture.put("a/x", "1").await;
    fixture.cache.wait(first).await.unwrap();
    let snapshot = fixture.cache.snapshot();
    let second = fixture.put("a/y", "1").await;
    fixture.cache.wait(second).await.unwrap();
    assert_eq!(snapshot.iter().count(), 1);
    assert_eq!((snapshot.changed, snapshot.revision), (first, first));
    assert_eq!(fixture.cache.snapshot().iter().count(), 2);
    let names: Vec<_> = fixture
        .cache
        .snapshot()
        .scan(b"/registry/pods/a/", b"/registry/pods/a/x\0")
        .map(|entry| entry.name().to_owned())
        .collect();
    assert_eq!(names, ["y"]);
}

#[tokio::test]
async fn a_reader_catches_up_with_writes_elsewhere() {
    let fixture = Fixture::start().await;
    let put = Op::Put {
        key: Bytes::from_static(b"/registry/other/z"),
        value: Bytes::from_static(b"x"),
        lease: 0,
    };
    let revision = fixture.commit(vec![put]).await;
    fixture.cache.catch_up().await.unwrap();
    assert!(fixture.cache.revision() >= revision);
    let error = fixture.cache.wait(revision + 1000).await.unwrap_err();
    assert!(matches!(error, CacheError::Behind { .. }));
}

#[tokio::test]
async fn watches_see_every_event_once_and_in_order_from_any_revision() {
    let fixture = Fixture::start().await;
    let mut revisions = vec![fixture.cache.revision()];
    for round in 0..20 {
        revisions.push(fixture.put("a/x", &round.to_string()).await);
    }
    fixture.cache.wait(revisions[20]).await.unwrap();
    for (at, revision) in revisions.iter().enumerate() {
        let mut watch = fixture.watch(From::Revision(*revision)).await;
        for expect in &revisions[at + 1..] {
            let (kind, _, got) = next(&mut watch).await;
            assert_eq!(got, *expect);
            assert_eq!(kind == Kind::Added, got == revisions[1]);
        }
    }
}

#[tokio::test]
async fn a_watch_before_the_window_reads_the_history_and_goes_live() {
    let before = Fixture::start().await;
    let start = before.cache.revision();
    let mut expect = Vec::new();
    for round in 0..5 {
        expect.push(before.put("a/x", &round.to_string()).await);
    }
    expect.push(before.delete("a/x").await);
    // A cache that starts now knows nothing of all this.
    let fixture = Fixture::on(before.store.clone()).await;
    let mut watch = fixture.watch(From::Revision(start)).await;
    for revision in &expect {
        assert_eq!(next(&mut watch).await.2, *revision);
    }
    let live = fixture.put("a/y", "1").await;
    assert_eq!(next(&mut watch).await, (Kind::Added, "y".to_owned(), live));
    assert_eq!(fixture.cache.watcher_count(), 1);
    drop(watch);
    assert_eq!(fixture.cache.watcher_count(), 0);
}

#[tokio::test]
async fn a_transaction_is_delivered_whole() {
    let fixture = Fixture::start().await;
    let mut watch = fixture
        .watch(From::Revision(fixture.cache.revision()))
        .await;
    let body = || r#"{"apiVersion":"v1","metadata":{}}"#.to_owned();
    let revision = fixture
        .commit(vec![put("a/x", body()), put("a/y", body())])
        .await;
    assert_eq!(
        next(&mut watch).await,
        (Kind::Added, "x".to_owned(), revision)
    );
    assert_eq!(
        next(&mut watch).await,
        (Kind::Added, "y".to_owned(), revision)
    );
}

#[tokio::test]
async fn a_slow_watcher_is_dropped_alone() {
    let fixture = Fixture::start().await;
    let mut slow = fixture
        .watch(From::Revision(fixture.cache.revision()))
        .await;
    let mut quick = fixture
        .watch(From::Revision(fixture.cache.revision()))
        .await;
    let mut last = 0;
    for round in 0..=QUEUE {
        last = fixture.put("a/x", &round.to_string()).await;
        assert_eq!(next(&mut quick).await.2, last);
    }
    fixture.cache.wait(last).await.unwrap();
    assert_eq!(fixture.cache.watcher_count(), 1);
    let mut seen = 0;
    while let Some(delivery) = slow.next().await {
        delivery.unwrap();
        seen += 1;
    }
    assert_eq!(seen, QUEUE);
}

#[tokio::test]
async fn bytes_that_are_no_object_are_left_out() {
    let fixture = Fixture::start().await;
    fixture.put("a/x", "1").await;
    let mut watch = fixture.watch(From::Snapshot { mark_end: true }).await;
    let revision = fixture.commit(vec![put("a/x", "garbage".to_owned())]).await;
    fixture.cache.wait(revision).await.unwrap();
    assert_eq!(fixture.cache.snapshot().iter().count(), 0);
    let mut kinds = Vec::new();
    while kinds.last() != Some(&Kind::Deleted) {
        kinds.push(next(&mut watch).await.0);
    }
    assert!(kinds.contains(&Kind::InitialEventsEnd));
}

#[tokio::test]
async fn a_stopped_cache_ends_its_watches() {
    let fixture = Fixture::start().await;
    let mut watch = fixture
        .watch(From::Revision(fixture.cache.revision()))
        .await;
    fixture.stop.cancel();
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn bookmarks_go_to_those_who_want_them_and_tell_something_new() {
    let fixture = Fixture::start().await;
    let all = || Selection::all(fixture.cache.shape().scope(""));
    let from = From::Revision(fixture.cache.revision());
    let mut wants = fixture.cache.watch(from, all(), None, true).await.unwrap();
    let _not = fixture.cache.watch(from, all(), None, false).await.unwrap();
    assert!(fixture.cache.wants_bookmarks());
    fixture.cache.send_bookmarks();
    let revision = fixture.put("a/x", "1").await;
    fixture.cache.wait(revision).await.unwrap();
    fixture.cache.send_bookmarks();
    assert_eq!(next(&mut wants).await.0, Kind::Added);
    let (kind, _, told) = next(&mut wants).await;
    assert_eq!((kind, told), (Kind::Bookmark, revision));
}

#[tokio::test]
async fn watches_end_when_the_server_drains_and_the_cache_goes_on() {
    let fixture = Fixture::start().await;
    let mut watch = fixture.watch(From::Snapshot { mark_end: false }).await;
    let first = fixture.put("a/one", "x").await;
    assert_eq!(next(&mut watch).await.2, first);
    fixture.draining.cancel();
    assert!(watch.next().await.is_none());
    let revision = fixture.put("a/two", "x").await;
    fixture.cache.wait(revision).await.expect("it follows");
    let mut late = fixture.watch(From::Snapshot { mark_end: false }).await;
    assert_eq!(next(&mut late).await.1, "one");
    assert_eq!(next(&mut late).await.1, "two");
    assert!(late.next().await.is_none());
}
