//! Measures the embedded store and prints what it finds: `cargo run --release -p store --example store-bench [DIR]`.
//!
//! Durable writes a second by number of clients, start times, memory for 10,000 pods and 100,000 small keys, what
//! a write costs with watchers, and what an idle store does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::embedded::{Embedded, EmbeddedOptions};
use store::{Op, RangeRequest, Store, Txn, WatchRequest};

const VALUE: usize = 2048;
const POD: usize = 4500;
const MEASURE: Duration = Duration::from_secs(3);

fn put(key: String, size: usize) -> Txn {
    Txn {
        success: vec![Op::Put {
            key: Bytes::from(key),
            value: Bytes::from(vec![b'x'; size]),
            lease: 0,
        }],
        ..Txn::default()
    }
}

fn open(dir: &Path) -> Arc<Embedded> {
    Embedded::open(dir, EmbeddedOptions::default()).expect("the store opens")
}

/// Resident memory in MB.
fn memory() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("there is /proc");
    let pages: f64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number of pages");
    pages * 4096.0 / 1e6
}

/// CPU time of this process, user and system, in clock ticks of 10 ms.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("there is /proc");
    let ticks: u64 = stat
        .split(' ')
        .skip(13)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number of ticks"))
        .sum();
    Duration::from_millis(10 * ticks)
}

fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("there is /proc");
    io.lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))
        .and_then(|bytes| bytes.parse().ok())
        .expect("a number of bytes")
}

async fn writes(dir: &Path, clients: usize) {
    let store = open(dir);
    let until = Instant::now() + MEASURE;
    let (before, started) = (cpu(), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let store = store.clone();
        tasks.spawn(async move {
            let mut count = 0_u64;
            while Instant::now() < until {
                let key = format!("/registry/pods/default/{client}-{}", count % 100);
                store.txn(put(key, VALUE)).await.expect("it is written");
                count += 1;
            }
            count
        });
    }
    let count: u64 = tasks.join_all().await.into_iter().sum();
    let rate = count as f64 / started.elapsed().as_secs_f64();
    let each = (cpu() - before).as_secs_f64() * 1e6 / count as f64;
    println!(
        "{clients:>4} clients: {rate:>8.0} writes/s of {VALUE} bytes, {each:.0} µs of CPU each"
    );
}

async fn fill(store: &Arc<Embedded>, keys: usize, size: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..64 {
        let store = store.clone();
        tasks.spawn(async move {
            for n in (client..keys).step_by(64) {
                let key = format!("/registry/pods/namespace-{}/pod-{n:06}", n % 20);
                store.txn(put(key, size)).await.expect("it is written");
            }
        });
    }
    tasks.join_all().await;
}

async fn content(dir: &Path, name: &str, keys: usize, size: usize) {
    let before = memory();
    let store = open(dir);
    fill(&store, keys, size).await;
    let filled = memory() - before;
    let revision = store.revision().await.expect("a revision");
    store.compact(revision).await.expect("it compacts");
    let started = Instant::now();
    let all = RangeRequest {
        key: Bytes::from_static(b"/"),
        range_end: Some(Bytes::from_static(b"\0")),
        ..RangeRequest::default()
    };
    let count = store.range(all).await.expect("it reads").kvs.len();
    let listed = started.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let compacted = memory() - before;
    let disk = store.db_size().await.expect("a size") as f64 / 1e6;
    drop(store);
    let started = Instant::now();
    let store = open(dir);
    let opened = started.elapsed();
    println!(
        "{name}: {filled:.1} MB, compacted {compacted:.1} MB, {disk:.0} MB on disk; \
         list of {count} in {listed:.1?}, opened again in {opened:.1?}, then {:.1} MB",
        memory() - before
    );
    drop(store);
}

async fn watchers(dir: &Path, watchers: usize) {
    const WRITES: usize = 2000;
    let store = open(dir);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..watchers {
        let request = WatchRequest {
            key: Bytes::from_static(b"/registry/pods/"),
            range_end: Some(Bytes::from_static(b"/registry/pods0")),
            ..WatchRequest::default()
        };
        let mut stream = store.watch(request).await.expect("it watches");
        tasks.spawn(async move {
            let mut events = 0;
            while events < WRITES {
                let batch = stream.receiver.recv().await.expect("it goes on");
                events += batch.expect("a batch").events.len();
            }
        });
    }
    let before = cpu();
    fill(&store, WRITES, VALUE).await;
    tasks.join_all().await;
    let each = (cpu() - before).as_secs_f64() * 1e6 / WRITES as f64;
    println!("{watchers:>4} watchers of every key: {each:.0} µs of CPU a write");
}

async fn idle(dir: &Path) {
    let store = open(dir);
    fill(&store, 100, VALUE).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (cpu_before, disk_before) = (cpu(), written());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cpu, disk) = (cpu() - cpu_before, written() - disk_before);
    println!("idle for 5 s: {cpu:?} of CPU, {disk} bytes written");
}

#[tokio::main]
async fn main() {
    let root = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let root = root.join(format!("skiff-store-bench-{}", std::process::id()));
    let dir = |name: &str| root.join(name);
    let started = Instant::now();
    drop(open(&dir("empty")));
    let first = started.elapsed();
    let started = Instant::now();
    drop(open(&dir("empty")));
    println!(
        "opened empty in {first:.1?}, again in {:.1?}",
        started.elapsed()
    );
    content(&dir("pods"), "10,000 pods of 4.5 KB", 10_000, POD).await;
    content(&dir("keys"), "100,000 keys of 200 bytes", 100_000, 200).await;
    for clients in [1, 16, 128] {
        writes(&dir(&format!("writes-{clients}")), clients).await;
    }
    for count in [0, 1, 100] {
        watchers(&dir(&format!("watchers-{count}")), count).await;
    }
    idle(&dir("idle")).await;
    std::fs::remove_dir_all(root).expect("the folder can be removed");
}
