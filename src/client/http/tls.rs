//! TLS towards the server: our certificate, and whom we trust. Files are read anew for a new connection if they changed.

use std::{sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    BoxError,
    config::{ConfigError, Source},
};

pub(super) struct Tls {
    name: ServerName<'static>,
    ca: Option<Source>,
    insecure: bool,
    certificate: Option<Source>,
    key: Option<Source>,
    /// The configuration made of the files as they were at these times.
    current: Mutex<(Times, Arc<ClientConfig>)>,
}

type Times = [Option<SystemTime>; 3];

impl Tls {
    pub(super) fn new(
        name: &str,
        ca: Option<Source>,
        insecure: bool,
        certificate: Option<Source>,
        key: Option<Source>,
    ) -> Result<Self, ConfigError> {
        let name = ServerName::try_from(name.to_string())
            .map_err(|_| ConfigError::Server(name.to_string()))?;
        let times = times(&ca, &certificate, &key);
        let config = configure(&ca, insecure, &certificate, &key)?;
        Ok(Tls {
            name,
            ca,
            insecure,
            certificate,
            key,
            current: Mutex::new((times, config)),
        })
    }

    pub(super) async fn connect(
        &self,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        let connector = TlsConnector::from(self.config());
        let stream = connector.connect(self.name.clone(), stream).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err("the server does not speak HTTP/2".into());
        }
        Ok(stream)
    }

    /// The same for a server that speaks HTTP/1.1.
    pub(super) async fn connect_http1(
        &self,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        let mut config = ClientConfig::clone(&self.config());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        Ok(connector.connect(self.name.clone(), stream).await?)
    }

    /// The present configuration. Files that are half replaced keep the old one in use.
    fn config(&self) -> Arc<ClientConfig> {
        let mut current = self.current.lock();
        let times = times(&self.ca, &self.certificate, &self.key);
        if times != current.0 {
            match configure(&self.ca, self.insecure, &self.certificate, &self.key) {
                Ok(config) => *current = (times, config),
                Err(error) => tracing::warn!(%error, "changed certificates cannot be used yet"),
            }
        }
        current.1.clone()
    }
}

fn times(ca: &Option<Source>, certificate: &Option<Source>, key: &Option<Source>) -> Times {
    [ca, certificate, key].map(|source| match source {
        Some(Source::File(path)) => std::fs::metadata(path)
            .and_then(|meta| meta.modified())
            .ok(),
        _ => None,
    })
}

fn configure(
    ca: &Option<Source>,
    insecure: bool,
    certificate: &Option<Source>,
    key: &Option<Source>,
) -> Result<Arc<ClientConfig>, ConfigError> {
    let tls = |error: &dyn std::fmt::Display| ConfigError::Tls(error.to_string());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls(&error))?;
    let builder = if insecure {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
    } else {
        let mut roots = RootCertStore::empty();
        for root in certificates(
            ca.as_ref()
                .ok_or_else(|| tls(&"no certificate authority"))?,
        )? {
            roots.add(root).map_err(|error| tls(&error))?;
        }
        builder.with_root_certificates(roots)
    };
    let mut config = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| tls(&error))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, key)
                .map_err(|error| tls(&error))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => {
            return Err(tls(
                &"a client certificate needs its key, and a key its certificate",
            ));
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn read(source: &Source) -> Result<Vec<u8>, ConfigError> {
    match source {
        Source::Data(bytes) => Ok(bytes.clone()),
        Source::File(path) => std::fs::read(path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        }),
    }
}

fn certificates(source: &Source) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let bytes = read(source)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(ConfigError::Tls("no certificate in PEM".into())),
        Err(error) => Err(ConfigError::Tls(error.to_string())),
    }
}

/// Trusts whoever answers (`insecure-skip-tls-verify`), though it must have the key of the certificate it shows.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
