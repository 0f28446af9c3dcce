//! The cases. Each is a sentence about etcd's contract.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Case, Fixture, row};
use crate::kv::*;

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// Every case and its name.
        pub(crate) const CASES: &[(&str, Case)] =
            &[$((stringify!($name), |fixture| Box::pin($name(fixture)))),*];
    };
}

cases![
    a_range_at_an_old_revision_shows_what_was_there,
    a_limit_leaves_out_keys_and_says_so,
    keys_only_and_count_only_leave_out_the_rest,
    a_failed_guard_runs_the_other_branch,
    every_field_can_be_compared,
    a_transaction_has_one_revision,
    a_transaction_that_fails_changes_nothing,
    a_key_counts_its_changes_and_starts_anew,
    a_delete_of_nothing_changes_nothing,
    a_range_is_deleted_at_once,
    a_watch_from_the_past_joins_the_present_without_a_gap,
    a_watch_of_one_key_sees_no_other,
    a_watch_shows_what_was_before,
    a_watch_of_the_future_waits_for_it,
    progress_tells_how_far_the_store_is,
    progress_comes_unasked,
    a_stuck_watcher_misses_nothing_and_slows_nobody,
    a_lease_takes_its_keys_along,
    a_lease_kept_alive_lives,
    a_key_leaves_its_lease,
    leases_that_are_not_there_are_refused,
    what_was_compacted_is_refused,
    what_cannot_be_is_refused,
    large_values_are_kept,
];

async fn a_range_at_an_old_revision_shows_what_was_there(f: Fixture) {
    let first = f.put("1", "x").await;
    let second = f.put("2", "y").await;
    let third = f.put("1", "z").await;
    let fourth = f.delete("2").await;
    let fifth = f.put("3", "w").await;
    assert_eq!(fifth, first + 4);
    assert_eq!(f.list(first - 1).await, []);
    assert_eq!(f.list(first).await, [row("1", "x", first)]);
    let both = [row("1", "x", first), row("2", "y", second)];
    assert_eq!(f.list(second).await, both);
    let changed = [row("1", "z", third), row("2", "y", second)];
    assert_eq!(f.list(third).await, changed);
    assert_eq!(f.list(fourth).await, [row("1", "z", third)]);
    let newest = [row("1", "z", third), row("3", "w", fifth)];
    assert_eq!(f.list(fifth).await, newest);
    assert_eq!(f.list(0).await, newest);
}

async fn a_limit_leaves_out_keys_and_says_so(f: Fixture) {
    for n in 0..5 {
        f.put(&n.to_string(), "v").await;
    }
    let old = f.put("5", "v").await;
    f.delete("1").await;
    for revision in [0, old] {
        let request = RangeRequest {
            limit: 3,
            revision,
            ..f.all()
        };
        let response = f.store.range(request).await.unwrap();
        assert_eq!(response.kvs.len(), 3);
        assert!(response.more);
        assert_eq!(response.count, if revision == 0 { 5 } else { 6 });
    }
    let request = RangeRequest {
        limit: 5,
        ..f.all()
    };
    let response = f.store.range(request).await.unwrap();
    assert_eq!((response.kvs.len(), response.more), (5, false));
}

async fn keys_only_and_count_only_leave_out_the_rest(f: Fixture) {
    f.put("1", "x").await;
    let last = f.put("2", "y").await;
    let keys_only = RangeRequest {
        keys_only: true,
        ..f.all()
    };
    let response = f.store.range(keys_only).await.unwrap();
    assert_eq!(response.count, 2);
    assert_eq!(response.kvs[1].mod_revision, last);
    assert!(response.kvs.iter().all(|kv| kv.value.is_empty()));
    let count_only = RangeRequest {
        count_only: true,
        ..f.all()
    };
    let response = f.store.range(count_only).await.unwrap();
    assert_eq!((response.count, response.kvs.len()), (2, 0));
}

async fn a_failed_guard_runs_the_other_branch(f: Fixture) {
    let create = |value: &str| Txn {
        compare: vec![Compare::ModRevision(f.key("k"), CompareOp::Equal, 0)],
        success: vec![f.put_op("k", value, 0)],
        failure: vec![Op::Range(RangeRequest {
            key: f.key("k"),
            ..RangeRequest::default()
        })],
    };
    let first = f.store.txn(create("a")).await.unwrap();
    assert!(first.succeeded);
    assert!(matches!(first.responses[..], [OpResponse::Put]));
    let second = f.store.txn(create("b")).await.unwrap();
    assert!(!second.succeeded);
    assert_eq!(second.revision, first.revision, "nothing was written");
    let [OpResponse::Range(range)] = &second.responses[..] else {
        panic!("a range was expected: {second:?}");
    };
    assert_eq!(f.rows(&range.kvs), [row("k", "a", first.revision)]);
}

async fn every_field_can_be_compared(f: Fixture) {
    let created = f.put("k", "a").await;
    let changed = f.put("k", "b").await;
    let key = || f.key("k");
    let absent = || f.key("absent");
    let value = |text: &'static str| Bytes::from_static(text.as_bytes());
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let checks = [
        (Compare::ModRevision(key(), Equal, changed), true),
        (Compare::ModRevision(key(), Greater, created), true),
        (Compare::ModRevision(key(), Less, created), false),
        (Compare::CreateRevision(key(), Equal, created), true),
        (Compare::CreateRevision(key(), NotEqual, created), false),
        (Compare::Version(key(), Equal, 2), true),
        (Compare::Lease(key(), Equal, 0), true),
        (Compare::Value(key(), Equal, value("b")), true),
        (Compare::Value(key(), Less, value("c")), true),
        (Compare::Value(key(), Greater, value("c")), false),
        (Compare::ModRevision(absent(), Equal, 0), true),
        (Compare::ModRevision(absent(), Greater, 0), false),
        (Compare::Version(absent(), Equal, 0), true),
        (Compare::Value(absent(), Equal, value("")), false),
        (Compare::Value(absent(), NotEqual, value("x")), false),
    ];
    for (compare, expected) in checks {
        let what = format!("{compare:?}");
        let txn = Txn {
            compare: vec![compare],
            ..Txn::default()
        };
        let response = f.store.txn(txn).await.unwrap();
        assert_eq!(response.succeeded, expected, "{what}");
    }
}

async fn a_transaction_has_one_revision(f: Fixture) {
    let before = f.put("0", "v").await;
    let read = Op::Range(f.all());
    let ops = vec![
        f.put_op("1", "a", 0),
        read.clone(),
        f.put_op("2", "b", 0),
        f.delete_op("0"),
        read,
    ];
    let response = f.run(ops).await;
    let revision = response.revision;
    assert_eq!(revision, before + 1);
    let [
        _,
        OpResponse::Range(middle),
        _,
        OpResponse::Delete { deleted, prev_kvs },
        OpResponse::Range(end),
    ] = &response.responses[..]
    else {
        panic!("unexpected responses: {response:?}");
    };
    let seen = [row("0", "v", before), row("1", "a", revision)];
    assert_eq!(
        f.rows(&middle.kvs),
        seen,
        "a read sees the writes before it"
    );
    assert_eq!((*deleted, prev_kvs.len()), (1, 1));
    let seen = [row("1", "a", revision), row("2", "b", revision)];
    assert_eq!(f.rows(&end.kvs), seen);
    assert_eq!(f.list(before).await, [row("0", "v", before)]);
}

async fn a_transaction_that_fails_changes_nothing(f: Fixture) {
    let before = f.put("k", "v").await;
    let txn = Txn {
        success: vec![f.put_op("k", "changed", 0), f.put_op("l", "v", 4242)],
        ..Txn::default()
    };
    let error = f.store.txn(txn).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseNotFound(_)), "{error}");
    assert_eq!(f.list(0).await, [row("k", "v", before)]);
    assert_eq!(f.put("k", "w").await, before + 1);
}

async fn a_key_counts_its_changes_and_starts_anew(f: Fixture) {
    let created = f.put("k", "1").await;
    f.put("k", "2").await;
    let get = || async { f.store.range(f.all()).await.unwrap().kvs.pop().unwrap() };
    let kv = get().await;
    assert_eq!((kv.version, kv.create_revision), (2, created));
    f.delete("k").await;
    let again = f.put("k", "3").await;
    let kv = get().await;
    assert_eq!((kv.version, kv.create_revision), (1, again));
}

async fn a_delete_of_nothing_changes_nothing(f: Fixture) {
    let before = f.put("k", "v").await;
    let response = f.run(vec![f.delete_op("absent")]).await;
    assert_eq!(response.revision, before);
    let [OpResponse::Delete { deleted: 0, .. }] = &response.responses[..] else {
        panic!("unexpected responses: {response:?}");
    };
    assert_eq!(f.store.revision().await.unwrap(), before);
}

async fn a_range_is_deleted_at_once(f: Fixture) {
    for n in 0..10 {
        f.put(&n.to_string(), "v").await;
    }
    let mut watched = f.watch(0).await;
    let ops = vec![Op::Delete {
        key: f.key("3"),
        range_end: Some(f.key("7")),
        prev_kv: true,
    }];
    let response = f.run(ops).await;
    let [OpResponse::Delete { deleted, prev_kvs }] = &response.responses[..] else {
        panic!("unexpected responses: {response:?}");
    };
    assert_eq!((*deleted, prev_kvs.len()), (4, 4));
    assert_eq!(f.list(0).await.len(), 6);
    // Several events of one revision come in one batch; `Watched` would refuse them one by one.
    let batch = tokio::time::timeout(super::PATIENCE, watched.stream.receiver.recv());
    let batch = batch.await.unwrap().unwrap().unwrap();
    assert_eq!(batch.events.len(), 4);
    let revisions = batch.events.iter().map(|event| event.kv.mod_revision);
    assert!(revisions.into_iter().all(|at| at == response.revision));
    assert!(batch.events.iter().all(|event| event.prev.is_some()));
}

async fn a_watch_from_the_past_joins_the_present_without_a_gap(f: Fixture) {
    let mut first = 0;
    for n in 0..20 {
        let revision = f.put("k", &n.to_string()).await;
        if n == 5 {
            first = revision;
        }
    }
    let mut watched = f.watch(first).await;
    for n in 20..40 {
        f.put("k", &n.to_string()).await;
    }
    let events = watched.events(35).await;
    for (event, n) in events.iter().zip(5..) {
        assert_eq!(event.kv.value, n.to_string());
        let prev = event.prev.as_ref().expect("the key existed before");
        assert_eq!(prev.value, (n - 1).to_string());
    }
}

async fn a_watch_of_one_key_sees_no_other(f: Fixture) {
    let request = WatchRequest {
        key: f.key("b"),
        ..WatchRequest::default()
    };
    let mut watched = f.watch_with(request).await;
    for key in ["a", "b", "ba", "c", "b"] {
        f.put(key, "v").await;
    }
    let events = watched.events(2).await;
    assert!(events.iter().all(|event| event.kv.key == f.key("b")));
    assert!(
        events.iter().all(|event| event.prev.is_none()),
        "not asked for"
    );
}

async fn a_watch_shows_what_was_before(f: Fixture) {
    let mut watched = f.watch(0).await;
    f.put("k", "1").await;
    let changed = f.put("k", "2").await;
    let deleted = f.delete("k").await;
    let events = watched.events(3).await;
    assert_eq!(events[0].prev, None);
    assert_eq!(events[1].prev.as_ref().unwrap().value, "1");
    assert_eq!(events[1].kv.version, 2);
    let last = &events[2];
    assert_eq!(last.kind, EventKind::Delete);
    assert_eq!(last.kv.mod_revision, deleted);
    assert_eq!(last.kv.value, "");
    assert_eq!(last.kv.key, f.key("k"));
    assert_eq!(last.prev.as_ref().unwrap().mod_revision, changed);
}

async fn a_watch_of_the_future_waits_for_it(f: Fixture) {
    let now = f.put("k", "0").await;
    let mut watched = f.watch(now + 3).await;
    for n in 1..=4 {
        f.put("k", &n.to_string()).await;
    }
    let events = watched.events(2).await;
    assert_eq!(events[0].kv.mod_revision, now + 3);
}

async fn progress_tells_how_far_the_store_is(f: Fixture) {
    let mut watched = f.watch(0).await;
    let first = f.put("k", "v").await;
    watched.events(1).await;
    let other = Fixture::new(f.store.clone(), "elsewhere");
    let last = other.put("k", "v").await;
    assert!(last > first);
    let started = Instant::now();
    while watched.revision < last {
        f.store.request_progress().await.unwrap();
        let batch = watched.batch().await.unwrap();
        assert_eq!(batch.events.len(), 0);
    }
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "asked for, yet late"
    );
}

async fn progress_comes_unasked(f: Fixture) {
    let mut watched = f.watch(0).await;
    let other = Fixture::new(f.store.clone(), "elsewhere");
    let last = other.put("k", "v").await;
    assert_eq!(watched.until(last).await.len(), 0);
}

async fn a_stuck_watcher_misses_nothing_and_slows_nobody(f: Fixture) {
    const WRITES: i64 = 400;
    let mut watched = f.watch(0).await;
    let mut last = 0;
    let started = Instant::now();
    for n in 0..WRITES {
        last = f.put("k", &n.to_string()).await;
    }
    assert!(started.elapsed() < super::PATIENCE);
    let events = watched.until(last).await;
    let revisions: Vec<i64> = events.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(revisions, (last - WRITES + 1..=last).collect::<Vec<_>>());
}

async fn a_lease_takes_its_keys_along(f: Fixture) {
    let lease = f.store.lease_grant(0, 2).await.unwrap();
    assert_eq!(lease.ttl, 2);
    let ops = vec![f.put_op("a", "v", lease.id), f.put_op("b", "v", lease.id)];
    let revision = f.run(ops).await.revision;
    let started = Instant::now();
    let mut request = f.all();
    request.count_only = true;
    while f.store.range(request.clone()).await.unwrap().count > 0 {
        assert!(started.elapsed() < super::PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        started.elapsed() > Duration::from_secs(1),
        "it lived long enough"
    );
    assert!(f.store.revision().await.unwrap() > revision);
    let error = f.store.lease_time_to_live(lease.id).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseNotFound(_)), "{error}");
}

async fn a_lease_kept_alive_lives(f: Fixture) {
    let lease = f.store.lease_grant(0, 2).await.unwrap();
    f.run(vec![f.put_op("k", "v", lease.id)]).await;
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let kept = f.store.lease_keep_alive(lease.id).await.unwrap();
        assert_eq!(kept.id, lease.id);
        assert!(kept.remaining >= 1);
    }
    assert_eq!(f.list(0).await.len(), 1);
    let left = f.store.lease_time_to_live(lease.id).await.unwrap();
    assert!((1..=2).contains(&left.remaining), "{left:?}");
    f.store.lease_revoke(lease.id).await.unwrap();
    assert_eq!(f.list(0).await.len(), 0);
}

async fn a_key_leaves_its_lease(f: Fixture) {
    let lease = f.store.lease_grant(0, 600).await.unwrap();
    let ops = vec![f.put_op("a", "v", lease.id), f.put_op("b", "v", lease.id)];
    f.run(ops).await;
    f.put("a", "free").await;
    f.store.lease_revoke(lease.id).await.unwrap();
    let rows = f.list(0).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].1, "free");
}

async fn leases_that_are_not_there_are_refused(f: Fixture) {
    let lease = f.store.lease_grant(7_654_321, 600).await.unwrap();
    assert_eq!(lease.id, 7_654_321);
    let error = f.store.lease_grant(lease.id, 600).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseExists(_)), "{error}");
    f.store.lease_revoke(lease.id).await.unwrap();
    for error in [
        f.store.lease_revoke(lease.id).await.unwrap_err(),
        f.store.lease_keep_alive(lease.id).await.unwrap_err(),
        f.store.lease_time_to_live(lease.id).await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::LeaseNotFound(_)), "{error}");
    }
}

async fn what_was_compacted_is_refused(f: Fixture) {
    let mut revisions = Vec::new();
    for n in 0..5 {
        revisions.push(f.put("k", &n.to_string()).await);
    }
    let floor = revisions[2];
    f.store.compact(floor).await.unwrap();
    let error = f.store.compact(floor).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    let error = f.store.compact(floor + 1000).await.unwrap_err();
    assert!(
        matches!(error, StoreError::FutureRevision { .. }),
        "{error}"
    );
    assert_eq!(f.list(floor).await, [row("k", "2", floor)]);
    let range = |revision| RangeRequest {
        revision,
        ..f.all()
    };
    let error = f.store.range(range(floor - 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    let error = f.store.range(range(floor + 1000)).await.unwrap_err();
    assert!(
        matches!(error, StoreError::FutureRevision { .. }),
        "{error}"
    );
    let mut watched = f.watch(floor).await;
    assert_eq!(watched.events(3).await[0].kv.mod_revision, floor);
    // A backend may say so when asked for the watch or as the first thing the watch delivers.
    let request = WatchRequest {
        key: f.key("k"),
        start_revision: floor - 1,
        ..WatchRequest::default()
    };
    let error = match f.store.watch(request).await {
        Err(error) => error,
        Ok(mut stream) => stream.receiver.recv().await.unwrap().unwrap_err(),
    };
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
}

async fn what_cannot_be_is_refused(f: Fixture) {
    let twice = Txn {
        success: vec![f.put_op("k", "a", 0), f.put_op("k", "b", 0)],
        ..Txn::default()
    };
    let error = f.store.txn(twice).await.unwrap_err();
    assert!(matches!(error, StoreError::DuplicateKey), "{error}");
    let both = Txn {
        success: vec![f.put_op("k", "a", 0), f.delete_op("k")],
        ..Txn::default()
    };
    let error = f.store.txn(both).await.unwrap_err();
    assert!(matches!(error, StoreError::DuplicateKey), "{error}");
    let error = f.store.range(RangeRequest::default()).await.unwrap_err();
    assert!(matches!(error, StoreError::EmptyKey), "{error}");
    assert_eq!(f.list(0).await, []);
}

async fn large_values_are_kept(f: Fixture) {
    let large = "x".repeat(1024 * 1024);
    let first = f.put("k", &large).await;
    let second = f.put("k", "small").await;
    assert_eq!(f.list(first).await, [row("k", &large, first)]);
    assert_eq!(f.list(0).await, [row("k", "small", second)]);
    let mut watched = f.watch(first).await;
    assert_eq!(watched.events(2).await[0].kv.value.len(), large.len());
}
