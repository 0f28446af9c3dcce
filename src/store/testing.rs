//! What several tests need: certificates, and the real etcd's programs where they are installed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::etcd::{Etcd, EtcdOptions};
use crate::kv::Store;

/// A folder with a CA, a server's and a client's certificate in PEM files. The server's is good for clients
/// too, as kubeadm's is.
pub(crate) struct Pki {
    dir: TempDir,
}

impl Pki {
    pub fn new() -> Self {
        let pki = Self {
            dir: tempfile::tempdir().expect("a folder"),
        };
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, "etcd-ca");
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("a CA");
        pki.write("ca.crt", &ca.pem());
        for name in ["server", "client"] {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let mut params = CertificateParams::new(names).expect("the names are names");
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &ca).expect("a certificate");
            pki.write(&format!("{name}.crt"), &certificate.pem());
            pki.write(&format!("{name}.key"), &key.serialize_pem());
        }
        pki
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the file is written");
    }
}

/// Every version of a program of etcd's in the folders of `PATH`. Says so when there is none.
pub(crate) fn found(program: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs: Vec<PathBuf> = std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .filter_map(|path| Path::canonicalize(&path).ok())
        .collect();
    programs.dedup();
    if programs.is_empty() {
        println!("skipped: there is no {program} in PATH");
    }
    programs
}

/// A real etcd of one member with mutual TLS, in a folder of its own. Killed when dropped.
pub(crate) struct EtcdProcess {
    program: PathBuf,
    pub pki: Pki,
    data: TempDir,
    client_port: u16,
    peer_port: u16,
    child: Option<std::process::Child>,
}

impl EtcdProcess {
    pub fn start(program: &Path) -> Self {
        Self::start_in(program, tempfile::tempdir().expect("a folder"))
    }

    /// Starts it on data that is there already.
    pub fn start_in(program: &Path, data: TempDir) -> Self {
        let mut process = Self {
            program: program.to_owned(),
            pki: Pki::new(),
            data,
            client_port: free_port(),
            peer_port: free_port(),
            child: None,
        };
        process.run();
        process
    }

    /// Starts it again where it was.
    pub fn run(&mut self) {
        let client = self.url();
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let child = std::process::Command::new(&self.program)
            .arg("--data-dir")
            .arg(self.data.path())
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--log-level", "error", "--client-cert-auth", "--cert-file"])
            .arg(self.pki.path("server.crt"))
            .arg("--key-file")
            .arg(self.pki.path("server.key"))
            .arg("--trusted-ca-file")
            .arg(self.pki.path("ca.crt"))
            .stdin(std::process::Stdio::null())
            .spawn()
            .expect("etcd starts");
        self.child = Some(child);
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.client_port)
    }

    pub fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.url()],
            ca: Some(self.pki.path("ca.crt")),
            cert: Some(self.pki.path("client.crt")),
            key: Some(self.pki.path("client.key")),
        }
    }

    /// A client, once the etcd serves.
    pub async fn connect(&self) -> Arc<Etcd> {
        let store = Etcd::connect(self.options())
            .await
            .expect("the options are good");
        until_healthy(&*store).await;
        store
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) async fn until_healthy(store: &dyn Store) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.health().await {
        assert!(Instant::now() < deadline, "etcd does not serve: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}
