//! TLS of the server: the serving certificate, client certificates, and their reload when files change.
//!
//! A client certificate of a stranger does not end the handshake: the connection lives and its requests are answered
//! 401, as upstream does (`tls.RequestClientCert`). `ClientCa::verify` decides who the peer is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::options::{Pem, TlsOptions};

/// Files are looked at for changes at most this often, and only when somebody connects.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

/// Sessions kept for resumption. Each holds the client's certificate chain, a few KB.
const SESSIONS: usize = 1024;

/// Why the server's TLS material cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read {what}: {error}")]
    Read {
        what: &'static str,
        error: io::Error,
    },
    #[error("parse {what}: {error}")]
    Parse { what: &'static str, error: String },
    #[error("serving certificate and key: {0}")]
    Serving(rustls::Error),
    #[error("client CA: {0}")]
    ClientCa(String),
}

/// The TLS settings in force; new connections take the newest.
pub struct Tls {
    options: TlsOptions,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<ServerConfig>>,
    clients: Arc<ClientCa>,
    checked: Mutex<(Instant, Vec<Option<SystemTime>>)>,
}

impl Tls {
    pub fn new(options: TlsOptions) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = Arc::new(ClientCa::new(&options, &provider)?);
        let config = server_config(&options, &provider, &clients)?;
        let checked = Mutex::new((Instant::now(), modification_times(&options)));
        Ok(Self {
            options,
            provider,
            current: RwLock::new(Arc::new(config)),
            clients,
            checked,
        })
    }

    /// Settings for a new connection, read anew when a file has changed. Broken files keep the old settings.
    pub fn config(&self) -> Arc<ServerConfig> {
        if self.is_stale() {
            match self.reload() {
                Ok(()) => tracing::info!("Reloaded serving certificate and client CA"),
                Err(error) => {
                    tracing::warn!(%error, "Cannot reload TLS files, keeping the old ones")
                }
            }
        }
        self.current.read().clone()
    }

    pub fn clients(&self) -> &Arc<ClientCa> {
        &self.clients
    }

    fn is_stale(&self) -> bool {
        let mut checked = self.checked.lock();
        if checked.0.elapsed() < RELOAD_INTERVAL {
            return false;
        }
        checked.0 = Instant::now();
        let times = modification_times(&self.options);
        let changed = times != checked.1;
        checked.1 = times;
        changed
    }

    fn reload(&self) -> Result<(), TlsError> {
        self.clients.reload(&self.options, &self.provider)?;
        let config = server_config(&self.options, &self.provider, &self.clients)?;
        *self.current.write() = Arc::new(config);
        Ok(())
    }
}

fn modification_times(options: &TlsOptions) -> Vec<Option<SystemTime>> {
    let time = |path: &Path| {
        std::fs::metadata(path)
            .and_then(|meta| meta.modified())
            .ok()
    };
    [
        Some(&options.serving.certificate),
        Some(&options.serving.key),
        options.client_ca.as_ref(),
    ]
    .into_iter()
    .flatten()
    .filter_map(Pem::path)
    .map(time)
    .collect()
}

fn server_config(
    options: &TlsOptions,
    provider: &Arc<CryptoProvider>,
    clients: &Arc<ClientCa>,
) -> Result<ServerConfig, TlsError> {
    let chain = read_certificates(&options.serving.certificate, "serving certificate")?;
    let key = read(&options.serving.key, "serving key")?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| TlsError::Parse {
        what: "serving key",
        error: error.to_string(),
    })?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Serving)?;
    let builder = if clients.is_empty() {
        builder.with_no_client_auth()
    } else {
        let hints = clients.hints.clone();
        builder.with_client_cert_verifier(Arc::new(AskForCertificate::new(provider, hints)))
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(TlsError::Serving)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = rustls::server::ServerSessionMemoryCache::new(SESSIONS);
    config.send_tls13_tickets = 1;
    Ok(config)
}

fn read(pem: &Pem, what: &'static str) -> Result<Vec<u8>, TlsError> {
    pem.read().map_err(|error| TlsError::Read { what, error })
}

fn read_certificates(
    pem: &Pem,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(pem, what)?;
    CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Parse {
            what,
            error: error.to_string(),
        })
}

/// Who may sign client certificates.
pub struct ClientCa {
    verifier: RwLock<Option<Arc<dyn ClientCertVerifier>>>,
    /// Moves with every reload, so that connections look at their certificate again.
    generation: AtomicU64,
    /// What clients are told of.
    hints: Vec<DistinguishedName>,
}

impl std::fmt::Debug for ClientCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientCa")
    }
}

impl ClientCa {
    fn new(options: &TlsOptions, provider: &Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let verifier = client_verifier(options, provider)?;
        let hints = verifier
            .as_ref()
            .map(|verifier| verifier.root_hint_subjects().to_vec())
            .unwrap_or_default();
        Ok(Self {
            verifier: RwLock::new(verifier),
            generation: AtomicU64::new(0),
            hints,
        })
    }

    fn reload(&self, options: &TlsOptions, provider: &Arc<CryptoProvider>) -> Result<(), TlsError> {
        *self.verifier.write() = client_verifier(options, provider)?;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.verifier.read().is_none()
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Errs unless the chain leads to one of the CAs, is in its time, and is meant for clients.
    pub fn verify(&self, chain: &[CertificateDer<'static>]) -> Result<(), rustls::Error> {
        let verifier = self.verifier.read().clone();
        match (verifier, chain.split_first()) {
            (Some(verifier), Some((leaf, rest))) => verifier
                .verify_client_cert(leaf, rest, UnixTime::now())
                .map(|_| ()),
            _ => Err(rustls::Error::NoCertificatesPresented),
        }
    }
}

fn client_verifier(
    options: &TlsOptions,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let Some(pem) = &options.client_ca else {
        return Ok(None);
    };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(pem, "client CA")? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::ClientCa(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| TlsError::ClientCa(error.to_string()))?;
    Ok(Some(verifier))
}

/// Asks every client for a certificate and checks only that the client holds its key, so that a stranger's does not end
/// the handshake.
#[derive(Debug)]
pub struct AskForCertificate {
    algorithms: WebPkiSupportedAlgorithms,
    hints: Vec<DistinguishedName>,
}

impl AskForCertificate {
    /// `hints`: the authorities that a client is told of.
    pub fn new(provider: &CryptoProvider, hints: Vec<DistinguishedName>) -> Self {
        Self {
            algorithms: provider.signature_verification_algorithms,
            hints,
        }
    }
}

impl ClientCertVerifier for AskForCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::KeyPair;

    fn write_pair(folder: &Path) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.join("tls.crt"), certificate.pem()).expect("written");
        std::fs::write(folder.join("tls.key"), key.serialize_pem()).expect("written");
    }

    #[test]
    fn changed_files_are_taken_over_and_broken_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        write_pair(folder.path());
        let file = |name: &str| Pem::File(folder.path().join(name));
        let tls = Tls::new(TlsOptions {
            serving: KeyPair {
                certificate: file("tls.crt"),
                key: file("tls.key"),
            },
            client_ca: Some(file("tls.crt")),
        })
        .expect("usable files");
        let first = tls.config();
        let later = || {
            let mut checked = tls.checked.lock();
            checked.0 = Instant::now() - RELOAD_INTERVAL;
            // As if the files had been seen with another time.
            checked.1 = Vec::new();
        };
        assert!(Arc::ptr_eq(&first, &tls.config()));
        write_pair(folder.path());
        later();
        let second = tls.config();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(tls.clients().generation(), 1);
        std::fs::write(folder.path().join("tls.key"), "nonsense").expect("written");
        later();
        assert!(Arc::ptr_eq(&second, &tls.config()));
    }
}
