//! The cluster's certificates, with kubeadm's file names.
//!
//! Read `ensure` first: it fills a folder with every certificate a control plane needs and keeps what is there
//! and still fits. `authority` issues and checks single certificates and knows nothing of Kubernetes.
//!
//! Everything is ECDSA P-256, so that a whole set takes a few milliseconds. Names and subjects are kubeadm's
//! (`cmd/kubeadm/app/phases/certs`); `admin` is `kubernetes-admin` in `system:masters`.

mod authority;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use authority::{Authority, Issued, Profile, Usage};

use crate::files::{self, FileError};

/// Why the certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot make a certificate for {name}: {source}")]
    Issue { name: String, source: rcgen::Error },
    #[error("{path} is not a usable certificate authority: {reason}")]
    Authority { path: PathBuf, reason: String },
    #[error("cannot make a key: {0}")]
    Key(rcgen::Error),
}

/// The names and addresses the API server and etcd are reached by.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// The control-plane node's name, or the machine's.
    pub node: String,
    /// The control-plane node's addresses.
    pub addresses: Vec<IpAddr>,
    /// The `kubernetes` service's address.
    pub service_address: Option<IpAddr>,
    /// More names or addresses for the API server's certificate.
    pub extra: Vec<String>,
}

/// A folder of certificates.
#[derive(Clone, Debug)]
pub struct Pki {
    directory: PathBuf,
}

impl Pki {
    /// Points at a folder without reading it.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The certificate named `name`, such as `apiserver` or `etcd/server`.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.crt"))
    }

    /// The key of the certificate named `name`.
    pub fn key(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.key"))
    }

    /// The key that signs service-account tokens.
    pub fn service_account_key(&self) -> PathBuf {
        self.directory.join("sa.key")
    }

    pub fn service_account_public_key(&self) -> PathBuf {
        self.directory.join("sa.pub")
    }

    /// Loads one of the authorities: `ca`, `front-proxy-ca` or `etcd/ca`.
    pub fn authority(&self, name: &str) -> Result<Authority, PkiError> {
        Authority::load(&self.certificate(name), &self.key(name))
    }

    /// Writes a certificate of this folder unless the one there fits `profile` and has 30 days left.
    pub fn ensure_leaf(
        &self,
        authority: &Authority,
        name: &str,
        profile: &Profile,
    ) -> Result<(), PkiError> {
        let (certificate, key) = (self.certificate(name), self.key(name));
        if let (Ok(certificate), Ok(key)) = (
            std::fs::read_to_string(&certificate),
            std::fs::read_to_string(&key),
        ) && authority.accepts(&certificate, &key, profile)
        {
            return Ok(());
        }
        let issued = authority.issue(profile)?;
        files::write(&key, issued.key.as_bytes(), 0o600)?;
        files::write(&certificate, issued.certificate.as_bytes(), 0o644)?;
        Ok(())
    }

    fn ensure_authority(&self, name: &str, common_name: &str) -> Result<Authority, PkiError> {
        let (certificate, key) = (self.certificate(name), self.key(name));
        if certificate.exists() && key.exists() {
            return Authority::load(&certificate, &key);
        }
        let authority = Authority::generate(common_name)?;
        files::write(&key, authority.key_pem().as_bytes(), 0o600)?;
        files::write(&certificate, authority.certificate_pem().as_bytes(), 0o644)?;
        Ok(authority)
    }

    fn ensure_service_account_key(&self) -> Result<(), PkiError> {
        let (private, public) = (
            self.service_account_key(),
            self.service_account_public_key(),
        );
        if private.exists() && public.exists() {
            return Ok(());
        }
        let key = match std::fs::read_to_string(&private) {
            Ok(text) => rcgen::KeyPair::from_pem(&text),
            Err(_) => rcgen::KeyPair::generate(),
        }
        .map_err(PkiError::Key)?;
        files::write(&private, key.serialize_pem().as_bytes(), 0o600)?;
        files::write(&public, key.public_key_pem().as_bytes(), 0o644)?;
        Ok(())
    }
}

/// Fills `directory` with the certificates of a control plane, keeping those that are present and fit.
///
/// An authority that is there is never replaced, since everything it signed would be lost with it.
pub fn ensure(directory: &Path, hosts: &Hosts) -> Result<Pki, PkiError> {
    let pki = Pki::at(directory);
    files::create_directory(directory, 0o755)?;
    files::create_directory(&directory.join("etcd"), 0o755)?;

    let cluster = pki.ensure_authority("ca", "kubernetes")?;
    let names = api_server_names(hosts);
    pki.ensure_leaf(
        &cluster,
        "apiserver",
        &Profile::server("kube-apiserver", &names),
    )?;
    let masters = Some("system:masters");
    let kubelet_client = Profile::client("kube-apiserver-kubelet-client", masters);
    pki.ensure_leaf(&cluster, "apiserver-kubelet-client", &kubelet_client)?;
    pki.ensure_leaf(
        &cluster,
        "admin",
        &Profile::client("kubernetes-admin", masters),
    )?;

    let front_proxy = pki.ensure_authority("front-proxy-ca", "front-proxy-ca")?;
    pki.ensure_leaf(
        &front_proxy,
        "front-proxy-client",
        &Profile::client("front-proxy-client", None),
    )?;

    let etcd = pki.ensure_authority("etcd/ca", "etcd-ca")?;
    let names = etcd_names(hosts);
    for name in ["etcd/server", "etcd/peer"] {
        pki.ensure_leaf(&etcd, name, &Profile::both(&hosts.node, &names))?;
    }
    let health = Profile::client("kube-etcd-healthcheck-client", None);
    pki.ensure_leaf(&etcd, "etcd/healthcheck-client", &health)?;
    let api_server = Profile::client("kube-apiserver-etcd-client", None);
    pki.ensure_leaf(&etcd, "apiserver-etcd-client", &api_server)?;

    pki.ensure_service_account_key()?;
    Ok(pki)
}

fn api_server_names(hosts: &Hosts) -> Vec<String> {
    let mut names: Vec<String> = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(String::from)
    .to_vec();
    names.extend(hosts.service_address.iter().map(IpAddr::to_string));
    names.extend(own_names(hosts));
    names.extend(hosts.extra.iter().cloned());
    dedupe(names)
}

fn etcd_names(hosts: &Hosts) -> Vec<String> {
    dedupe(own_names(hosts))
}

fn own_names(hosts: &Hosts) -> Vec<String> {
    let mut names = vec![
        hosts.node.clone(),
        "localhost".into(),
        "127.0.0.1".into(),
        "::1".into(),
    ];
    names.extend(hosts.addresses.iter().map(IpAddr::to_string));
    names
}

fn dedupe(names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    names
        .into_iter()
        .filter(|name| !name.is_empty() && seen.insert(name.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts {
            node: "lab-control-plane".into(),
            addresses: vec!["172.30.0.2".parse().expect("an address")],
            service_address: Some("10.96.0.1".parse().expect("an address")),
            extra: vec![],
        }
    }

    fn read(pki: &Pki, name: &str) -> String {
        std::fs::read_to_string(pki.certificate(name)).expect("written")
    }

    #[test]
    fn every_file_that_kubeadm_makes_is_there_and_keys_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let pki = ensure(folder.path(), &hosts()).expect("made");
        for name in [
            "ca",
            "apiserver",
            "apiserver-kubelet-client",
            "front-proxy-ca",
            "front-proxy-client",
            "etcd/ca",
            "etcd/server",
            "etcd/peer",
            "etcd/healthcheck-client",
            "apiserver-etcd-client",
            "admin",
        ] {
            assert!(
                read(&pki, name).starts_with("-----BEGIN CERTIFICATE-----"),
                "{name}"
            );
            let mode = std::fs::metadata(pki.key(name))
                .expect("a key")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert!(
            std::fs::read_to_string(pki.service_account_public_key())
                .expect("there")
                .contains("PUBLIC KEY")
        );
    }

    #[test]
    fn what_fits_is_kept_and_a_new_address_gets_a_new_certificate() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = ensure(folder.path(), &hosts()).expect("made");
        let names = ["ca", "apiserver", "etcd/server", "admin"];
        let before = names.map(|name| read(&pki, name));
        ensure(folder.path(), &hosts()).expect("made");
        assert_eq!(before, names.map(|name| read(&pki, name)));

        let mut moved = hosts();
        moved.addresses = vec!["172.30.1.2".parse().expect("an address")];
        ensure(folder.path(), &moved).expect("made");
        assert_eq!(before[0], read(&pki, "ca"));
        assert_ne!(before[1], read(&pki, "apiserver"));
        assert_ne!(before[2], read(&pki, "etcd/server"));
        assert_eq!(before[3], read(&pki, "admin"));
    }

    #[test]
    fn a_damaged_certificate_is_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = ensure(folder.path(), &hosts()).expect("made");
        std::fs::write(pki.certificate("apiserver"), "nonsense").expect("written");
        std::fs::copy(pki.key("apiserver"), pki.key("admin")).expect("copied");
        ensure(folder.path(), &hosts()).expect("made");
        let authority = pki.authority("ca").expect("loads");
        let key = std::fs::read_to_string(pki.key("admin")).expect("there");
        let profile = Profile::client("kubernetes-admin", Some("system:masters"));
        assert!(authority.accepts(&read(&pki, "admin"), &key, &profile));
        assert!(read(&pki, "apiserver").contains("CERTIFICATE"));
    }
}
