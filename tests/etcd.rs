//! A real etcd behind the server: two servers share it, and an outage under load loses nothing acknowledged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use integration::connection::Target;
use integration::process::{self, Server};
use serde_json::{Value, json};

const PATH: &str = "/api/v1/namespaces/default/configmaps";
/// How long etcd stays away.
const OUTAGE: Duration = Duration::from_secs(10);

/// A real etcd with client certificates required, on certificates a skiff server made.
struct Etcd {
    process: Option<Child>,
    program: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl Etcd {
    async fn start(program: &Path) -> Self {
        let server = Server::start(&[])
            .await
            .expect("a server makes the certificates");
        let folder = tempfile::tempdir().expect("a folder");
        let copied = Command::new("cp")
            .arg("-r")
            .arg(server.data_dir().join("pki"))
            .arg(folder.path())
            .status();
        assert!(copied.expect("cp runs").success());
        let port = process::free_port();
        let mut etcd = Self {
            process: None,
            program: program.to_owned(),
            folder,
            port,
        };
        etcd.run();
        etcd
    }

    fn run(&mut self) {
        let pki = self.folder.path().join("pki/etcd");
        let url = format!("https://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", process::free_port());
        let log = std::fs::File::create(self.folder.path().join("etcd.log")).expect("a log");
        let process = Command::new(&self.program)
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args(["--listen-peer-urls", &peer, "--client-cert-auth"])
            .arg("--trusted-ca-file")
            .arg(pki.join("ca.crt"))
            .arg("--cert-file")
            .arg(pki.join("server.crt"))
            .arg("--key-file")
            .arg(pki.join("server.key"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        self.process = Some(process.expect("etcd starts"));
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself, which is as good.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// What a server needs to reach it.
    fn flags(&self) -> Vec<String> {
        let pki = self.folder.path().join("pki");
        let file = |name: &str| pki.join(name).display().to_string();
        vec![
            // Each server has certificates of its own, and would publish its own root for all namespaces.
            "--controllers=-*".to_owned(),
            "--disable-scheduler".to_owned(),
            "--store=etcd".to_owned(),
            format!("--etcd-servers=https://127.0.0.1:{}", self.port),
            format!("--etcd-cafile={}", file("etcd/ca.crt")),
            format!("--etcd-certfile={}", file("apiserver-etcd-client.crt")),
            format!("--etcd-keyfile={}", file("apiserver-etcd-client.key")),
        ]
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Debian's etcd and the 3.5 one, as far as they are here.
fn programs() -> Vec<PathBuf> {
    let tools = std::env::var_os("SKIFF_TOOLS")
        .map(PathBuf::from)
        .unwrap_or_default();
    let all = [PathBuf::from("/usr/bin/etcd"), tools.join("etcd-3.5/etcd")];
    let (here, missing): (Vec<_>, Vec<_>) = all.into_iter().partition(|program| program.exists());
    for program in missing {
        println!("skipped: {} is not installed", program.display());
    }
    here
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a resourceVersion")
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": name}})
}

/// The names and versions of `count` ADDED events.
async fn watch(target: Target, from: u64, count: usize) -> Vec<(String, u64)> {
    let connection = target.connect().await.expect("a connection");
    let path = format!("{PATH}?watch=1&resourceVersion={from}&timeoutSeconds=60");
    let mut body = connection
        .open(Method::GET, &path, &[], Bytes::new())
        .await
        .expect("a watch")
        .into_body();
    let (mut pending, mut seen) = (Vec::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.expect("a frame").into_data() else {
            continue;
        };
        pending.extend_from_slice(&data);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).expect("an event");
            assert_eq!(event["type"], "ADDED", "{event}");
            let name = event["object"]["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            seen.push((name, version(&event["object"])));
            if seen.len() == count {
                return seen;
            }
        }
    }
    panic!("the watch ended after {} of {count}", seen.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_one_etcd_see_each_others_writes_in_order() {
    process::install_crypto();
    for program in programs() {
        let etcd = Etcd::start(&program).await;
        let one = Server::start(&etcd.flags()).await.expect("a server");
        let two = Server::start(&etcd.flags()).await.expect("another");
        let (first, second) = (one.connect().await, two.connect().await);
        let (status, list) = second
            .json(Method::GET, PATH, &Value::Null)
            .await
            .expect("a list");
        assert_eq!(status, 200, "{list}");
        let watching = tokio::spawn(watch(
            two.target().expect("certificates"),
            version(&list),
            100,
        ));
        let mut made = Vec::new();
        for number in 0..100 {
            let writer = if number % 2 == 0 { &first } else { &second };
            let name = format!("shared-{number}");
            let (status, object) = writer
                .json(Method::POST, PATH, &map(&name))
                .await
                .expect("an answer");
            assert_eq!(status, 201, "{object}");
            // What one acknowledged, the other reads at once.
            let reader = if number % 2 == 0 { &second } else { &first };
            let (status, read) = reader
                .json(Method::GET, &format!("{PATH}/{name}"), &Value::Null)
                .await
                .expect("an answer");
            assert_eq!((status, version(&read)), (200, version(&object)), "{read}");
            made.push((name, version(&object)));
        }
        assert_eq!(watching.await.expect("a watch"), made);
    }
}

/// Creates until told to stop, going on after every failure; gives what was acknowledged.
async fn write(target: Target, writer: usize, stop: Arc<AtomicBool>) -> BTreeMap<String, u64> {
    let connection = target.connect().await.expect("a connection");
    let mut acknowledged = BTreeMap::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("w{writer}-{number}");
        number += 1;
        match connection.json(Method::POST, PATH, &map(&name)).await {
            Ok((201, object)) => drop(acknowledged.insert(name, version(&object))),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_ten_seconds_under_load_loses_nothing_and_all_resumes() {
    process::install_crypto();
    for program in programs() {
        let mut etcd = Etcd::start(&program).await;
        let server = Server::start(&etcd.flags()).await.expect("a server");
        let connection = server.connect().await;
        let stop = Arc::new(AtomicBool::new(false));
        let target = server.target().expect("certificates");
        let writers: Vec<_> = (0..4)
            .map(|writer| tokio::spawn(write(target.clone(), writer, stop.clone())))
            .collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        etcd.stop();
        tokio::time::sleep(OUTAGE / 2).await;
        let (status, said) = connection
            .json(Method::GET, "/readyz", &Value::Null)
            .await
            .expect("an answer");
        assert_eq!(status, 500, "not ready without its store: {said}");
        tokio::time::sleep(OUTAGE / 2).await;
        etcd.run();
        wait_until_ready(&server).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        stop.store(true, Ordering::Relaxed);
        let mut acknowledged = BTreeMap::new();
        for writer in writers {
            acknowledged.extend(writer.await.expect("a writer"));
        }
        let (_, list) = connection
            .json(Method::GET, PATH, &Value::Null)
            .await
            .expect("a list");
        let stored: BTreeMap<String, u64> = list["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| {
                (
                    item["metadata"]["name"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    version(item),
                )
            })
            .collect();
        for (name, version) in &acknowledged {
            assert_eq!(stored.get(name), Some(version), "{name} was acknowledged");
        }
        println!(
            "{}: {} acknowledged writes over an outage",
            program.display(),
            acknowledged.len()
        );
    }
}

async fn wait_until_ready(server: &Server) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if let Ok((200, _)) = server
            .connect()
            .await
            .json(Method::GET, "/readyz", &Value::Null)
            .await
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not ready 30 s after its store came back");
}
