//! What is on the disk after every kind of end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::codec::{HEADER_BYTES, Header, frame, frame_bytes};
use crate::embedded::{Embedded, EmbeddedOptions, OpenError};
use crate::kv::*;

type Contents = BTreeMap<String, String>;

fn options(segment_bytes: u64) -> EmbeddedOptions {
    EmbeddedOptions {
        segment_bytes,
        garbage_bytes: 4 * segment_bytes,
        superseded_bytes: 0,
        ..EmbeddedOptions::default()
    }
}

async fn put(store: &Embedded, key: &str, value: &str) -> i64 {
    let txn = Txn {
        success: vec![Op::Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            lease: 0,
        }],
        ..Txn::default()
    };
    store.txn(txn).await.unwrap().revision
}

async fn contents(store: &Embedded, revision: i64) -> Contents {
    let request = RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: Some(Bytes::from_static(b"\0")),
        revision,
        ..RangeRequest::default()
    };
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let kvs = store.range(request).await.unwrap().kvs;
    kvs.iter()
        .map(|kv| (text(&kv.key), text(&kv.value)))
        .collect()
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Where each group of a segment ends, without its padding.
fn group_ends(bytes: &[u8]) -> Vec<usize> {
    let header = Header::decode(bytes).unwrap();
    let mut ends = vec![HEADER_BYTES];
    let mut at = HEADER_BYTES;
    while let Some(frame) = frame(bytes, at, header.salt) {
        ends.push(at + frame_bytes(&bytes[at..]) as usize);
        at = frame.end;
    }
    ends
}

#[tokio::test]
async fn whatever_a_crash_tears_off_the_end_the_groups_before_it_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), options(8192)).unwrap();
    let mut states = vec![Contents::new()];
    for n in 0..12 {
        put(&store, &format!("k{}", n % 5), &"v".repeat(n * 3)).await;
        states.push(contents(&store, 0).await);
    }
    drop(store);
    let segment = &files(dir.path(), "log")[0];
    let whole = std::fs::read(segment).unwrap();
    let ends = group_ends(&whole);
    assert_eq!(ends.len(), states.len());
    let last = ends[ends.len() - 1];
    for cut in (HEADER_BYTES..last).step_by(5) {
        // The rest never reached the disk: as zeroes, or as a shorter file.
        for zeroes in [true, false] {
            let torn = tempfile::tempdir().unwrap();
            let mut bytes = whole[..cut].to_vec();
            if zeroes {
                bytes.resize(whole.len(), 0);
            }
            std::fs::write(torn.path().join(segment.file_name().unwrap()), bytes).unwrap();
            let store = Embedded::open(torn.path(), options(8192)).unwrap();
            let groups = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(contents(&store, 0).await, states[groups], "cut at {cut}");
            // And the store goes on from there.
            let revision = put(&store, "after", "v").await;
            assert_eq!(revision, groups as i64 + 2);
            drop(store);
            let store = Embedded::open(torn.path(), options(8192)).unwrap();
            assert_eq!(contents(&store, revision - 1).await, states[groups]);
            assert_eq!(contents(&store, 0).await.len(), states[groups].len() + 1);
        }
    }
}

#[tokio::test]
async fn pages_of_the_last_group_that_came_out_of_order_are_no_group() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), options(32768)).unwrap();
    put(&store, "kept", "v").await;
    put(&store, "torn", &"x".repeat(9000)).await;
    drop(store);
    let segment = files(dir.path(), "log").remove(0);
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4096..8192].fill(0);
    std::fs::write(&segment, bytes).unwrap();
    let store = Embedded::open(dir.path(), options(32768)).unwrap();
    assert_eq!(contents(&store, 0).await.len(), 1);
    put(&store, "torn", "short").await;
    drop(store);
    let store = Embedded::open(dir.path(), options(32768)).unwrap();
    assert_eq!(contents(&store, 0).await["torn"], "short");
}

#[tokio::test]
async fn damage_before_the_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), options(4096)).unwrap();
    for n in 0..60 {
        put(&store, &format!("k{n}"), &"v".repeat(200)).await;
    }
    drop(store);
    let segments = files(dir.path(), "log");
    assert!(segments.len() > 3);
    for segment in [&segments[0], &segments[segments.len() - 1]] {
        let damaged = tempfile::tempdir().unwrap();
        copy(dir.path(), damaged.path());
        let path = damaged.path().join(segment.file_name().unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[HEADER_BYTES + 50] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = Embedded::open(damaged.path(), options(4096)).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    }
    std::fs::remove_file(&segments[1]).unwrap();
    let error = Embedded::open(dir.path(), options(4096)).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_segment_whose_creation_was_interrupted_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), options(4096)).unwrap();
    put(&store, "k", "v").await;
    drop(store);
    for length in [0, 10, 4096] {
        std::fs::write(dir.path().join("00000002.log"), vec![0; length]).unwrap();
        std::fs::write(dir.path().join("00000003.tmp"), "half a checkpoint").unwrap();
        let store = Embedded::open(dir.path(), options(4096)).unwrap();
        assert_eq!(contents(&store, 0).await["k"], "v");
        assert!(files(dir.path(), "tmp").is_empty());
    }
}

#[tokio::test]
async fn two_processes_cannot_open_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), options(4096)).unwrap();
    let error = Embedded::open(dir.path(), options(4096)).unwrap_err();
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    drop(store);
    Embedded::open(dir.path(), options(4096)).unwrap();
}

/// A store with some 22 segments of history.
async fn filled(dir: &Path) -> Arc<Embedded> {
    let store = Embedded::open(dir, options(SEGMENT)).unwrap();
    let value = "v".repeat(SEGMENT as usize / 10);
    for n in 0..220 {
        put(&store, &format!("k{}", n % 7), &format!("{n}{value}")).await;
    }
    store
}

/// Compacts and waits for the space to be returned.
async fn compacted(dir: &Path, store: &Embedded) {
    let revision = store.revision().await.unwrap();
    store.compact(revision - 3).await.unwrap();
    for _ in 0..1000 {
        let size = store.db_size().await.unwrap();
        if !files(dir, "base").is_empty() && size < 5 * SEGMENT as i64 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no checkpoint was written");
}

const SEGMENT: u64 = 100_000;

#[tokio::test]
async fn compaction_returns_space_and_keeps_what_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path()).await;
    compacted(dir.path(), &store).await;
    assert!(files(dir.path(), "log").len() < 5, "of 22 segments");
    let now = store.revision().await.unwrap();
    let mut seen = Vec::new();
    for revision in now - 3..=now {
        seen.push(contents(&store, revision).await);
    }
    drop(store);
    let store = Embedded::open(dir.path(), options(SEGMENT)).unwrap();
    for (revision, expected) in (now - 3..=now).zip(&seen) {
        assert_eq!(&contents(&store, revision).await, expected, "at {revision}");
    }
    let request = WatchRequest {
        key: Bytes::from_static(b"k"),
        range_end: Some(Bytes::from_static(b"l")),
        start_revision: now - 3,
        ..WatchRequest::default()
    };
    let mut stream = store.watch(request).await.unwrap();
    let mut next = now - 3;
    while next <= now {
        let batch = stream.receiver.recv().await.unwrap().unwrap();
        for event in batch.events {
            assert_eq!(event.kv.mod_revision, next);
            next += 1;
        }
    }
    // And on, over several more checkpoints.
    drop(store);
    for _ in 0..3 {
        let store = filled(dir.path()).await;
        compacted(dir.path(), &store).await;
    }
    assert_eq!(files(dir.path(), "base").len(), 1);
}

#[tokio::test]
async fn files_that_a_checkpoint_replaced_may_still_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let before = tempfile::tempdir().unwrap();
    let store = filled(dir.path()).await;
    copy(dir.path(), before.path());
    compacted(dir.path(), &store).await;
    let now = store.revision().await.unwrap();
    let expected = contents(&store, now - 2).await;
    drop(store);
    // As if the crash had come between the checkpoint's rename and the deletions.
    for path in files(before.path(), "log") {
        let to = dir.path().join(path.file_name().unwrap());
        if !to.exists() {
            std::fs::copy(&path, to).unwrap();
        }
    }
    for _ in 0..2 {
        let store = Embedded::open(dir.path(), options(SEGMENT)).unwrap();
        assert_eq!(contents(&store, now - 2).await, expected);
        assert_eq!(store.revision().await.unwrap(), now);
    }
}

#[tokio::test]
async fn a_lease_expires_after_a_restart_when_it_should() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), options(4096)).unwrap();
    let plain = store.lease_grant(0, 100).await.unwrap().id;
    let renewed = store.lease_grant(0, 100).await.unwrap().id;
    store.lease_keep_alive(renewed).await.unwrap();
    let put = Op::Put {
        key: Bytes::from_static(b"k"),
        value: Bytes::new(),
        lease: plain,
    };
    let txn = Txn {
        success: vec![put],
        ..Txn::default()
    };
    store.txn(txn).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    drop(store);
    let store = Embedded::open(dir.path(), options(4096)).unwrap();
    let plain_left = store.lease_time_to_live(plain).await.unwrap().remaining;
    assert!(
        (90..=99).contains(&plain_left),
        "its time went on: {plain_left}"
    );
    let renewed_left = store.lease_time_to_live(renewed).await.unwrap().remaining;
    assert_eq!(renewed_left, 100, "its holder could not renew it meanwhile");
    assert_eq!(store.lease_keys(plain).unwrap(), ["k"]);
    store.lease_revoke(plain).await.unwrap();
    drop(store);
    let store = Embedded::open(dir.path(), options(4096)).unwrap();
    assert_eq!(store.leases(), [renewed]);
    assert!(contents(&store, 0).await.is_empty());
}
