//! Against real etcds, of every version that is in `PATH`.

use std::time::{Duration, Instant};

use super::{Etcd, EtcdOptions};
use crate::contract::Fixture;
use crate::kv::*;
use crate::testing::{EtcdProcess, Pki, found, until_healthy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_etcd_costs_no_acknowledged_write_and_no_event() {
    for program in found("etcd") {
        let mut etcd = EtcdProcess::start(&program);
        let f = Fixture::new(etcd.connect().await, "killed");
        let mut watched = f.watch(0).await;
        let mut written = Vec::new();
        for n in 0..50 {
            written.push(f.put("k", &n.to_string()).await);
        }
        etcd.kill();
        let started = Instant::now();
        let put = Txn {
            success: vec![f.put_op("k", "while it is down", 0)],
            ..Txn::default()
        };
        let error = f.store.txn(put).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        let error = f.store.range(f.all()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "it took {:?}",
            started.elapsed()
        );
        etcd.run();
        until_healthy(&*f.store).await;
        for n in 50..100 {
            written.push(f.put("k", &n.to_string()).await);
        }
        let events = watched.events(100).await;
        let seen: Vec<i64> = events.iter().map(|event| event.kv.mod_revision).collect();
        assert_eq!(seen, written);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_not_there_is_passed_over() {
    for program in found("etcd") {
        let etcd = EtcdProcess::start(&program);
        let mut options = etcd.options();
        options.endpoints.insert(0, "https://127.0.0.1:1".into());
        let store = Etcd::connect(options).await.unwrap();
        until_healthy(&*store).await;
        let f = Fixture::new(store, "members");
        let mut watched = f.watch(0).await;
        f.put("k", "v").await;
        watched.events(1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_before_the_window_is_replayed_and_joins() {
    for program in found("etcd") {
        let etcd = EtcdProcess::start(&program);
        let f = Fixture::new(etcd.connect().await, "replayed");
        let mut current = f.watch(0).await;
        let large = "x".repeat(1024 * 1024);
        let first = f.put("k", "first").await;
        for n in 0..40 {
            f.put(&format!("other{}", n % 3), &large).await;
        }
        let last = f.put("k", "last").await;
        assert_eq!(current.until(last).await.len(), 42);
        let request = WatchRequest {
            key: f.key("k"),
            start_revision: first,
            prev_kv: true,
            progress_notify: true,
            ..WatchRequest::default()
        };
        let mut replayed = f.watch_with(request).await;
        let events = replayed.events(2).await;
        assert_eq!(events[1].prev.as_ref().unwrap().value, "first");
        f.put("k", "later").await;
        assert_eq!(replayed.events(1).await[0].kv.value, "later");
        let elsewhere = f.put("other0", "small").await;
        f.store.request_progress().await.unwrap();
        assert_eq!(replayed.until(elsewhere).await.len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_compacted_while_the_watch_was_broken_is_said() {
    for program in found("etcd") {
        let mut etcd = EtcdProcess::start(&program);
        let first = etcd.connect().await;
        let second = etcd.connect().await;
        let f = Fixture::new(first, "compacted");
        let other = Fixture::new(second, "compacted");
        let start = f.put("k", "0").await + 1;
        for n in 0..10 {
            f.put("k", &n.to_string()).await;
        }
        let now = f.put("k", "now").await;
        other.store.compact(now).await.unwrap();
        // Nobody watched yet, so the watch is opened in the past.
        let mut watched = f.watch(start).await;
        let error = watched.batch().await.unwrap_err();
        assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
        // And a new one goes on.
        let mut watched = f.watch(now).await;
        assert_eq!(watched.events(1).await[0].kv.mod_revision, now);
        etcd.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_good_certificate_gets_nothing() {
    for program in found("etcd") {
        let etcd = EtcdProcess::start(&program);
        drop(etcd.connect().await);
        let other = Pki::new();
        let options = EtcdOptions {
            cert: Some(other.path("client.crt")),
            key: Some(other.path("client.key")),
            ..etcd.options()
        };
        let store = Etcd::connect(options).await.unwrap();
        let error = store.health().await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    }
}
