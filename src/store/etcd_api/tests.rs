//! The front as etcd's own clients see it: etcdctl with real certificates, where it is installed.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{ServeError, TlsFiles, serve_on};
use crate::embedded::Embedded;
use crate::kv::*;
use crate::testing::{EtcdProcess, Pki, found};

/// A front on a free port, and etcdctl set up for it.
struct Running {
    store: Arc<Embedded>,
    pki: Pki,
    url: String,
    shutdown: CancellationToken,
    server: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    async fn start() -> Self {
        let store = Embedded::in_memory();
        let pki = Pki::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let tls = TlsFiles {
            cert: pki.path("server.crt"),
            key: pki.path("server.key"),
            client_ca: pki.path("ca.crt"),
        };
        let server = tokio::spawn(serve_on(
            store.clone(),
            listener,
            Some(tls),
            shutdown.clone(),
        ));
        Self {
            store,
            pki,
            url,
            shutdown,
            server,
        }
    }

    fn command(&self, etcdctl: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(etcdctl);
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url, "--cacert"])
            .arg(self.pki.path("ca.crt"))
            .arg("--cert")
            .arg(self.pki.path("client.crt"))
            .arg("--key")
            .arg(self.pki.path("client.key"))
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn output(&self, etcdctl: &Path, arguments: &[&str]) -> Output {
        let output = self.command(etcdctl, arguments).output();
        tokio::time::timeout(Duration::from_secs(30), output)
            .await
            .expect("etcdctl ends")
            .expect("etcdctl runs")
    }

    /// Runs etcdctl and returns what it prints.
    #[track_caller]
    fn check<'a>(
        &'a self,
        etcdctl: &'a Path,
        arguments: &'a [&'a str],
        expected: &'a str,
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let output = self.output(etcdctl, arguments).await;
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                printed.contains(expected) || errors.contains(expected),
                "{caller}: {arguments:?} printed {printed:?} and {errors:?}, not {expected:?}"
            );
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(10), self.server).await;
        ended
            .expect("it ends")
            .expect("no panic")
            .expect("no error");
    }
}

fn etcdctls() -> Vec<PathBuf> {
    found("etcdctl")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_reads_and_writes() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        run.check(ctl, &["get", "/registry/", "--prefix"], "").await;
        run.check(ctl, &["put", "/registry/pods/default/a", "one"], "OK\n")
            .await;
        run.check(ctl, &["put", "/registry/pods/default/b", "two"], "OK\n")
            .await;
        run.check(ctl, &["get", "/registry/pods/default/a"], "one\n")
            .await;
        let both = "/registry/pods/default/a\n\n/registry/pods/default/b\n";
        run.check(ctl, &["get", "/registry/", "--prefix", "--keys-only"], both)
            .await;
        run.check(
            ctl,
            &["put", "/registry/pods/default/a", "new", "--prev-kv"],
            "OK\n/registry/pods/default/a\none\n",
        )
        .await;
        run.check(
            ctl,
            &["get", "/registry/pods/default/a", "--rev", "2"],
            "one\n",
        )
        .await;
        run.check(
            ctl,
            &["get", "/registry/pods/default/a", "--rev", "99"],
            "required revision is a future revision",
        )
        .await;
        let descending = [
            "get",
            "/",
            "--prefix",
            "--keys-only",
            "--order",
            "DESCEND",
            "--sort-by",
            "MODIFY",
        ];
        run.check(
            ctl,
            &descending,
            "/registry/pods/default/a\n\n/registry/pods/default/b\n",
        )
        .await;
        run.check(
            ctl,
            &["get", "/", "--prefix", "--limit", "1", "-w", "fields"],
            "\"More\" : true",
        )
        .await;
        run.check(
            ctl,
            &["del", "/registry/pods/default/b", "--prev-kv"],
            "1\n/registry/pods/default/b\ntwo\n",
        )
        .await;
        run.check(ctl, &["put", "absent", "--ignore-value"], "key not found")
            .await;
        run.check(ctl, &["compact", "3"], "compacted revision 3")
            .await;
        run.check(
            ctl,
            &["compact", "3"],
            "etcdserver: mvcc: required revision has been compacted",
        )
        .await;
        run.check(
            ctl,
            &["get", "x", "--rev", "2"],
            "required revision has been compacted",
        )
        .await;
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_runs_transactions() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        run.check(ctl, &["put", "k", "v"], "OK").await;
        let mut command = run.command(ctl, &["txn"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let script =
            b"value(\"k\") = \"v\"\nmod(\"k\") > \"1\"\n\nput k \"w\"\nget k\n\nput k failed\n\n";
        tokio::io::AsyncWriteExt::write_all(&mut stdin, script)
            .await
            .unwrap();
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            printed.contains("SUCCESS") && printed.ends_with("k\nw\n"),
            "{printed}"
        );
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_watches() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        run.check(ctl, &["put", "/a/0", "old"], "OK").await;
        let mut command = run.command(
            ctl,
            &["watch", "/a/", "--prefix", "--rev", "2", "--prev-kv"],
        );
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        run.check(ctl, &["put", "/b", "elsewhere"], "OK").await;
        run.check(ctl, &["put", "/a/0", "new"], "OK").await;
        run.check(ctl, &["del", "/a/0"], "1").await;
        let expected = [
            "PUT", "/a/0", "old", "PUT", "/a/0", "old", "/a/0", "new", "DELETE", "/a/0", "new",
            "/a/0", "",
        ];
        for expected in expected {
            let line = tokio::time::timeout(Duration::from_secs(20), lines.next_line());
            assert_eq!(line.await.unwrap().unwrap().unwrap(), expected);
        }
        child.kill().await.unwrap();
        run.check(ctl, &["compact", "4"], "compacted").await;
        run.check(
            ctl,
            &["watch", "/a/", "--rev", "2"],
            "required revision has been compacted",
        )
        .await;
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_handles_leases() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        let output = run.output(ctl, &["lease", "grant", "100"]).await;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.contains("granted with TTL(100s)"), "{printed}");
        let id = printed.split(' ').nth(1).unwrap();
        run.check(ctl, &["put", "k", "v", "--lease", id], "OK")
            .await;
        run.check(ctl, &["lease", "list"], id).await;
        run.check(
            ctl,
            &["lease", "timetolive", id, "--keys"],
            "attached keys([k])",
        )
        .await;
        run.check(
            ctl,
            &["lease", "keep-alive", id, "--once"],
            "keepalived with TTL(100)",
        )
        .await;
        run.check(ctl, &["lease", "revoke", id], "revoked").await;
        run.check(ctl, &["get", "k", "-w", "fields"], "\"Count\" : 0")
            .await;
        run.check(ctl, &["lease", "revoke", id], "requested lease not found")
            .await;
        run.check(ctl, &["lease", "timetolive", id], "already expired")
            .await;
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_looks_after_the_endpoint() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        run.check(ctl, &["endpoint", "health"], "is healthy").await;
        run.check(ctl, &["endpoint", "status", "-w", "table"], super::VERSION)
            .await;
        run.check(ctl, &["endpoint", "hashkv"], ",").await;
        run.check(ctl, &["member", "list"], "started, skiff").await;
        run.check(ctl, &["alarm", "list"], "").await;
        run.check(ctl, &["defrag"], "Finished defragmenting").await;
        run.check(ctl, &["auth", "enable"], "root user does not exist")
            .await;
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_our_certificate_is_refused() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        let mut command = Command::new(ctl);
        command
            .env("ETCDCTL_API", "3")
            .args([
                "--endpoints",
                &run.url,
                "--command-timeout",
                "2s",
                "--cacert",
            ])
            .arg(run.pki.path("ca.crt"))
            .args(["get", "k"]);
        let output = command.output().await.unwrap();
        assert!(!output.status.success());
        let other = Pki::new();
        command.arg("--cert").arg(other.path("client.crt"));
        command.arg("--key").arg(other.path("client.key"));
        let output = command.output().await.unwrap();
        assert!(!output.status.success());
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_starts_a_real_etcd() {
    for ctl in &etcdctls() {
        let run = Running::start().await;
        let large = "x".repeat(10_000);
        for n in 0..500 {
            let value = if n % 50 == 0 { large.as_str() } else { "small" };
            let op = Op::Put {
                key: format!("/registry/{n:03}").into(),
                value: value.to_owned().into(),
                lease: 0,
            };
            let txn = Txn {
                success: vec![op],
                ..Txn::default()
            };
            run.store.txn(txn).await.unwrap();
        }
        run.check(ctl, &["lease", "grant", "1000"], "granted").await;
        run.check(ctl, &["del", "/registry/499"], "1").await;
        let file = run.pki.path("snapshot.db");
        let file = file.to_str().unwrap();
        run.check(ctl, &["snapshot", "save", file], "Snapshot saved")
            .await;
        run.check(
            ctl,
            &["snapshot", "status", file, "-w", "fields"],
            "\"Revision\" : 502",
        )
        .await;
        let data = tempfile::tempdir().unwrap();
        let restored = data.path().join("restored");
        let restore = [
            "snapshot",
            "restore",
            file,
            "--data-dir",
            restored.to_str().unwrap(),
        ];
        let output = run.output(ctl, &restore).await;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for entry in std::fs::read_dir(&restored).unwrap() {
            let path = entry.unwrap().path();
            std::fs::rename(&path, data.path().join(path.file_name().unwrap())).unwrap();
        }
        let program = ctl.with_file_name("etcd");
        if !program.exists() {
            println!("skipped: there is no etcd beside {}", ctl.display());
            continue;
        }
        let etcd = EtcdProcess::start_in(&program, data);
        let real = etcd.connect().await;
        let all = RangeRequest {
            key: "/".into(),
            range_end: Some("0".into()),
            ..RangeRequest::default()
        };
        let ours = run.store.range(all.clone()).await.unwrap();
        let theirs = real.range(all).await.unwrap();
        assert_eq!(theirs.kvs, ours.kvs);
        assert_eq!(theirs.revision, ours.revision);
        run.stop().await;
    }
}
