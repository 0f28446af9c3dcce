//! TLS of a component: its certificate, made anew at each start unless it is given, and whose client certificates count.
//!
//! Every client is asked for a certificate. A stranger's does not end the handshake, its requests are refused; so the
//! authorities may become known, or change, while connections are open.

use std::path::PathBuf;
use std::sync::Arc;

use apiserver::front::tls::AskForCertificate;
use parking_lot::RwLock;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use time::{Duration, OffsetDateTime};
use tokio_rustls::TlsAcceptor;

use super::ComponentError;

/// How long a certificate that is made lasts (client-go's GenerateSelfSignedCertKey), and how far clocks may differ.
const LIFETIME: Duration = Duration::days(365);
const CLOCK_SKEW: Duration = Duration::hours(1);

/// Who signs client certificates; none at first. Clones share them.
#[derive(Clone, Default)]
pub struct Authorities(Arc<RwLock<Option<Arc<dyn ClientCertVerifier>>>>);

impl Authorities {
    /// Nobody any more.
    pub fn clear(&self) {
        *self.0.write() = None;
    }

    /// Takes those of a PEM bundle in place of all before.
    pub fn set(&self, pem: &str) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().map_err(|error| error.to_string())?;
        *self.0.write() = Some(verifier);
        Ok(())
    }

    /// Whether the chain leads to one of them, is in its time, and is meant for clients.
    pub fn trust(&self, chain: &[CertificateDer<'static>]) -> bool {
        let verifier = self.0.read().clone();
        let Some((verifier, (leaf, rest))) = verifier.zip(chain.split_first()) else {
            return false;
        };
        verifier
            .verify_client_cert(leaf, rest, UnixTime::now())
            .is_ok()
    }
}

fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// What accepts connections with the given certificate, or one for `host` that signs itself.
pub fn acceptor(
    files: Option<&(PathBuf, PathBuf)>,
    host: &str,
) -> Result<TlsAcceptor, ComponentError> {
    let failed = |error: String| ComponentError::Certificate(error);
    let (chain, key) = match files {
        Some((certificate, key)) => {
            let told = |path: &PathBuf, error: &dyn std::fmt::Display| {
                failed(format!("{}: {error}", path.display()))
            };
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| told(certificate, &error))?;
            let read = PrivateKeyDer::from_pem_file(key).map_err(|error| told(key, &error))?;
            (chain, read)
        }
        None => self_signed(host).map_err(|error| failed(error.to_string()))?,
    };
    let provider = provider();
    let ask = AskForCertificate::new(&provider, Vec::new());
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_client_cert_verifier(Arc::new(ask))
        .with_single_cert(chain, key);
    let mut config = config.map_err(|error| failed(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

type Certificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn self_signed(host: &str) -> Result<Certificate, rcgen::Error> {
    let names = [host, "localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - CLOCK_SKEW, now + LIFETIME);
    let name = format!("{host}@{}", now.unix_timestamp());
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    Ok((vec![certificate.der().clone()], key))
}
