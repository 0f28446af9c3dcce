//! `kill -9` of a process that writes, and a disk that is full, and what is there afterwards.
//!
//! The test binary starts itself again as the process to be killed, which prints every write once it was
//! acknowledged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Embedded, EmbeddedOptions};
use crate::contract::Random;
use crate::kv::*;

const ROUNDS: u64 = 20;
const WRITERS: u64 = 8;
const DIR_VARIABLE: &str = "SKIFF_STORE_CRASH_DIR";
const SEED_VARIABLE: &str = "SKIFF_STORE_CRASH_SEED";

/// Small, so that segments end and checkpoints are written all the time.
fn options() -> EmbeddedOptions {
    EmbeddedOptions {
        segment_bytes: 32 * 1024,
        garbage_bytes: 64 * 1024,
        superseded_bytes: 4096,
        ..EmbeddedOptions::default()
    }
}

fn put(key: &str, value: &str) -> Txn {
    Txn {
        success: vec![Op::Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            lease: 0,
        }],
        ..Txn::default()
    }
}

/// The process that is killed. Does nothing when it is run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else {
        return;
    };
    let seed: u64 = std::env::var(SEED_VARIABLE).unwrap().parse().unwrap();
    let store = Embedded::open(dir, options()).unwrap();
    println!("\nopen");
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(store.clone(), writer, Random(seed ^ writer)));
    }
    writers.spawn(compact(store));
    writers.join_all().await;
}

async fn write(store: Arc<Embedded>, writer: u64, mut random: Random) {
    loop {
        let key = format!("k{writer}-{}", random.below(5));
        let value = format!("{:x}", random.next()).repeat(1 + random.below(60) as usize);
        let revision = store.txn(put(&key, &value)).await.unwrap().revision;
        let line = format!("ack {revision} {key} {value}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
}

async fn compact(store: Arc<Embedded>) {
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let revision = store.revision().await.unwrap() - 200;
        if revision > store.compacted_revision() {
            store.compact(revision).await.unwrap();
        }
    }
}

/// Everything acknowledged, by revision.
type Acknowledged = BTreeMap<i64, (String, String)>;

/// Lets the child write for a while and kills it.
fn run_and_kill(dir: &Path, seed: u64, random: &mut Random) -> Acknowledged {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::crash::child", "--nocapture"])
        .env(DIR_VARIABLE, dir)
        .env(SEED_VARIABLE, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut read = || lines.next().map(|line| line.unwrap_or_default());
    while read().expect("the store opens") != "open" {}
    let enough = 1 + random.below(1000) as usize;
    let mut acknowledged = Acknowledged::new();
    let mut killed = false;
    while let Some(line) = read() {
        let mut words = line.split(' ');
        // The last line may be a torn one.
        if let (Some("ack"), Some(revision), Some(key), Some(value)) =
            (words.next(), words.next(), words.next(), words.next())
            && let Ok(revision) = revision.parse()
        {
            acknowledged.insert(revision, (key.to_owned(), value.to_owned()));
        }
        if acknowledged.len() >= enough && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    // What is in the pipe after the kill was acknowledged before it; only the very last line may be cut short.
    if acknowledged.len() > 1 {
        acknowledged.pop_last();
    }
    acknowledged
}

#[tokio::test]
async fn a_killed_store_loses_nothing_acknowledged_and_its_watch_has_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(42);
    let mut last = 1;
    for round in 0..ROUNDS {
        let acknowledged = run_and_kill(dir.path(), round, &mut random);
        let store = Embedded::open(dir.path(), options()).unwrap();
        let now = store.revision().await.unwrap();
        let floor = store.compacted_revision();
        let newest = *acknowledged.last_key_value().unwrap().0;
        assert!(
            now >= newest,
            "round {round}: {newest} is lost, {now} is left"
        );
        let first = (last + 1).max(floor);
        let request = WatchRequest {
            key: Bytes::from_static(b"k"),
            range_end: Some(Bytes::from_static(b"l")),
            start_revision: first,
            ..WatchRequest::default()
        };
        let mut stream = store.watch(request).await.unwrap();
        let mut next = first;
        while next <= now {
            let batch = stream.receiver.recv().await.unwrap().unwrap();
            for event in batch.events {
                let kv = event.kv;
                assert_eq!(kv.mod_revision, next, "round {round}: the watch has a gap");
                if let Some((key, value)) = acknowledged.get(&next) {
                    assert_eq!(
                        (&kv.key, &kv.value),
                        (&Bytes::from(key.clone()), &Bytes::from(value.clone()))
                    );
                }
                next += 1;
            }
        }
        check_newest(&store, &acknowledged).await;
        last = now;
        println!(
            "round {round}: {} acknowledged, at revision {now}",
            acknowledged.len()
        );
    }
}

/// The keys hold their last acknowledged values, or later ones.
async fn check_newest(store: &Embedded, acknowledged: &Acknowledged) {
    let mut newest = BTreeMap::new();
    for (revision, (key, value)) in acknowledged {
        newest.insert(key.clone(), (*revision, value));
    }
    for (key, (revision, value)) in newest {
        let request = RangeRequest {
            key: Bytes::from(key.clone()),
            ..RangeRequest::default()
        };
        let kv = store.range(request).await.unwrap().kvs.pop().unwrap();
        assert!(kv.mod_revision >= revision, "{key} went back");
        if kv.mod_revision == revision {
            assert_eq!(kv.value, value.as_bytes());
        }
    }
}

/// The process on a small disk. Does nothing when it is run as a test.
#[tokio::test]
async fn child_on_a_full_disk() {
    const DISK_VARIABLE: &str = "SKIFF_STORE_SMALL_DISK";
    let Some(dir) = std::env::var_os(DISK_VARIABLE) else {
        return;
    };
    let store = Embedded::open(Path::new(&dir).join("store"), options()).unwrap();
    let value = "v".repeat(5000);
    let mut kept = 0;
    let error = loop {
        match store.txn(put(&format!("k{kept}"), &value)).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::NoSpace), "{error}");
    let count = || async {
        let request = RangeRequest {
            key: Bytes::from_static(b"k"),
            range_end: Some(Bytes::from_static(b"l")),
            count_only: true,
            ..RangeRequest::default()
        };
        store.range(request).await.unwrap().count
    };
    assert_eq!(count().await, kept, "what was refused is not there");
    let revision = store.revision().await.unwrap();
    assert_eq!(revision, kept + 1);
    store.health().await.unwrap();
    // A delete is small enough for what is left of the active segment, and compaction makes room.
    let delete = Txn {
        success: vec![Op::Delete {
            key: Bytes::from_static(b"k1"),
            range_end: Some(Bytes::from_static(b"l")),
            prev_kv: false,
        }],
        ..Txn::default()
    };
    let revision = store.txn(delete).await.unwrap().revision;
    store.compact(revision).await.unwrap();
    let mut attempts = 0;
    while store.txn(put("k1", &value)).await.is_err() {
        attempts += 1;
        assert!(attempts < 500, "compaction made no room");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = count().await;
    drop(store);
    let store = Embedded::open(Path::new(&dir).join("store"), options()).unwrap();
    assert_eq!(store.revision().await.unwrap(), revision + 1);
    let request = RangeRequest {
        key: Bytes::from_static(b"k0"),
        ..RangeRequest::default()
    };
    assert_eq!(store.range(request).await.unwrap().count, 1);
    assert_eq!(before, 2);
    println!("\nfull disk survived after {kept} writes");
}

#[test]
fn a_full_disk_refuses_writes_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    // A mount namespace of its own, so that nothing is left of it.
    let script = "mount -t tmpfs -o size=600k tmpfs \"$SKIFF_STORE_SMALL_DISK\" && exec \"$0\" \
                  --exact embedded::crash::child_on_a_full_disk --nocapture";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("SKIFF_STORE_SMALL_DISK", dir.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return println!("skipped: there is no unshare: {error}"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare failed") || errors.contains("permission denied") {
        return println!("skipped: {errors}");
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("full disk survived"),
        "{printed}\n{errors}"
    );
}
