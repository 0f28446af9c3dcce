//! The engine seen through the trait, in memory.

use std::time::Duration;

use bytes::Bytes;

use super::Embedded;
use crate::kv::*;

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn put(store: &Embedded, key: &str, value: &str) -> i64 {
    let op = Op::Put {
        key: b(key),
        value: b(value),
        lease: 0,
    };
    let txn = Txn {
        success: vec![op],
        ..Txn::default()
    };
    store.txn(txn).await.unwrap().revision
}

async fn delete(store: &Embedded, key: &str) -> i64 {
    let op = Op::Delete {
        key: b(key),
        range_end: None,
        prev_kv: false,
    };
    let txn = Txn {
        success: vec![op],
        ..Txn::default()
    };
    store.txn(txn).await.unwrap().revision
}

async fn keys(store: &Embedded, prefix: &str, revision: i64) -> Vec<(String, String, i64)> {
    let request = RangeRequest {
        key: b(prefix),
        range_end: Some(crate::kv::prefix_end(prefix.as_bytes())),
        revision,
        ..RangeRequest::default()
    };
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let kvs = store.range(request).await.unwrap().kvs;
    kvs.iter()
        .map(|kv| (text(&kv.key), text(&kv.value), kv.mod_revision))
        .collect()
}

fn row(key: &str, value: &str, revision: i64) -> (String, String, i64) {
    (key.into(), value.into(), revision)
}

#[tokio::test]
async fn a_range_at_an_old_revision_shows_what_was_there() {
    let store = Embedded::in_memory();
    assert_eq!(put(&store, "a/1", "x").await, 2);
    assert_eq!(put(&store, "a/2", "y").await, 3);
    assert_eq!(put(&store, "a/1", "z").await, 4);
    assert_eq!(delete(&store, "a/2").await, 5);
    assert_eq!(put(&store, "a/3", "w").await, 6);
    assert_eq!(keys(&store, "a/", 1).await, []);
    assert_eq!(keys(&store, "a/", 2).await, [row("a/1", "x", 2)]);
    let both = [row("a/1", "x", 2), row("a/2", "y", 3)];
    assert_eq!(keys(&store, "a/", 3).await, both);
    let changed = [row("a/1", "z", 4), row("a/2", "y", 3)];
    assert_eq!(keys(&store, "a/", 4).await, changed);
    assert_eq!(keys(&store, "a/", 5).await, [row("a/1", "z", 4)]);
    let newest = [row("a/1", "z", 4), row("a/3", "w", 6)];
    assert_eq!(keys(&store, "a/", 0).await, newest);
    assert_eq!(delete(&store, "a/2").await, 6, "nothing was deleted");
}

#[tokio::test]
async fn a_watch_from_the_past_joins_the_present_without_a_gap() {
    let store = Embedded::in_memory();
    for n in 0..10 {
        put(&store, "k", &n.to_string()).await;
    }
    let request = WatchRequest {
        key: b("k"),
        start_revision: 5,
        ..WatchRequest::default()
    };
    let mut stream = store.watch(request).await.unwrap();
    for n in 10..20 {
        put(&store, "k", &n.to_string()).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 17 {
        let batch = stream.receiver.recv().await.unwrap().unwrap();
        seen.extend(batch.events.iter().map(|event| event.kv.mod_revision));
    }
    assert_eq!(seen, (5..22).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stuck_watcher_misses_nothing_and_slows_nobody() {
    let store = Embedded::in_memory();
    let request = WatchRequest {
        key: b("k"),
        progress_notify: true,
        ..WatchRequest::default()
    };
    let mut stream = store.watch(request).await.unwrap();
    for n in 0..2000 {
        put(&store, "k", &n.to_string()).await;
    }
    put(&store, "other", "").await;
    let mut next = 2;
    let mut last = 0;
    while last < 2002 {
        let batch = stream.receiver.recv().await.unwrap().unwrap();
        for event in batch.events {
            assert_eq!(event.kv.mod_revision, next);
            next += 1;
        }
        assert!(batch.revision > last);
        last = batch.revision;
        store.request_progress().await.unwrap();
    }
    assert_eq!(next, 2002);
}

#[tokio::test]
async fn a_lease_takes_its_keys_along() {
    let store = Embedded::in_memory();
    let lease = store.lease_grant(0, 1).await.unwrap();
    let op = |key| Op::Put {
        key: b(key),
        value: b("v"),
        lease: lease.id,
    };
    let txn = Txn {
        success: vec![op("a"), op("b")],
        ..Txn::default()
    };
    let revision = store.txn(txn).await.unwrap().revision;
    let request = WatchRequest {
        key: b("a"),
        range_end: Some(b("c")),
        start_revision: revision + 1,
        ..WatchRequest::default()
    };
    let mut stream = store.watch(request).await.unwrap();
    let batch = tokio::time::timeout(Duration::from_secs(5), stream.receiver.recv());
    let batch = batch.await.unwrap().unwrap().unwrap();
    assert_eq!(batch.revision, revision + 1);
    assert!(
        batch
            .events
            .iter()
            .all(|event| event.kind == EventKind::Delete)
    );
    assert_eq!(batch.events.len(), 2);
    assert!(store.lease_time_to_live(lease.id).await.is_err());
}

#[tokio::test]
async fn what_was_compacted_is_refused() {
    let store = Embedded::in_memory();
    for n in 0..5 {
        put(&store, "k", &n.to_string()).await;
    }
    store.compact(4).await.unwrap();
    assert!(matches!(
        store.compact(4).await,
        Err(StoreError::Compacted { .. })
    ));
    assert!(matches!(
        store.compact(7).await,
        Err(StoreError::FutureRevision { .. })
    ));
    assert_eq!(keys(&store, "k", 4).await, [row("k", "2", 4)]);
    let old = RangeRequest {
        key: b("k"),
        revision: 3,
        ..RangeRequest::default()
    };
    assert!(matches!(
        store.range(old).await,
        Err(StoreError::Compacted { .. })
    ));
    let watch = |start_revision| WatchRequest {
        key: b("k"),
        start_revision,
        ..WatchRequest::default()
    };
    assert!(matches!(
        store.watch(watch(3)).await,
        Err(StoreError::Compacted { .. })
    ));
    let mut stream = store.watch(watch(4)).await.unwrap();
    let batch = stream.receiver.recv().await.unwrap().unwrap();
    assert_eq!(batch.events[0].kv.mod_revision, 4);
}

#[tokio::test]
async fn a_dropped_store_ends_its_watches() {
    let store = Embedded::in_memory();
    let stream = store.watch(WatchRequest {
        key: b("k"),
        ..WatchRequest::default()
    });
    let mut stream = stream.await.unwrap();
    drop(store);
    assert!(stream.receiver.recv().await.is_none());
}
