//! What several tests need: certificates, and the real etcd's programs where they are installed.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

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
