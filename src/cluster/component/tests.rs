//! A component's answers, over its own TLS, asked by hand.

use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::exposition::Kind;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

static IS_WELL: AtomicBool = AtomicBool::new(true);

fn routes(authorities: tls::Authorities) -> routes::Routes {
    let paths = ["/healthz", "/livez", "/readyz"]
        .map(str::to_owned)
        .to_vec();
    let series: Source = Box::new(|text| {
        text.family("a_total", Kind::Counter, "Things.");
        text.sample("a_total", &[], 3);
    });
    let well = || match IS_WELL.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err("it is late".into()),
    };
    routes::Routes {
        identity: Identity::new(
            authorities,
            FrontProxies::default(),
            Delegation::new(None, None, identity::HOLDS),
            paths,
        ),
        pages: Pages::of(
            "kube-scheduler",
            &routes::PATHS,
            [("v".into(), "2".into())].into(),
        ),
        health: vec![("leaderElection", Box::new(well))],
        ready: vec![("sched-handler-sync", Box::new(|| Ok(())))],
        metrics: vec![series],
        configuration: ("componentconfig", json!({"Parallelism": 16})),
    }
}

/// A client's certificate for `system:masters`, with the authority that signed it.
pub fn master() -> (
    String,
    (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("signed");
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, "admin");
    let name = &mut params.distinguished_name;
    name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let leaf = params.signed_by(&key, &issuer).expect("signed");
    let own = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    (authority.pem(), (vec![leaf.der().clone()], own))
}

#[derive(Debug)]
struct Anyone(rustls::crypto::CryptoProvider);

impl rustls::client::danger::ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

async fn get(
    address: SocketAddr,
    path: &str,
    certificate: Option<&(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> (u16, String) {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)));
    let config = match certificate {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .expect("they fit"),
        None => builder.with_no_client_auth(),
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.expect("it listens");
    let name = "localhost".try_into().expect("a name");
    let mut stream = connector.connect(name, stream).await.expect("TLS");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    // The other side may close without a word of TLS.
    let _ = stream.read_to_string(&mut answer).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("a code"), body.to_owned())
}

#[tokio::test]
async fn anyone_reads_the_health_and_only_who_may_the_rest() {
    let (authority, master) = master();
    let authorities = tls::Authorities::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let acceptor = tls::acceptor(None, "host").expect("a certificate");
    let shutdown = CancellationToken::new();
    let served = routes(authorities.clone());
    let stop = shutdown.clone();
    let serving =
        tokio::spawn(async move { accept(listener, acceptor, Arc::new(served), &stop).await });

    assert_eq!(get(address, "/healthz", None).await, (200, "ok".into()));
    let verbose =
        "[+]ping ok\n[+]leaderElection ok\n[+]sched-handler-sync ok\nreadyz check passed\n";
    assert_eq!(
        get(address, "/readyz?verbose", None).await,
        (200, verbose.into())
    );
    // A path below is another path.
    assert_eq!(get(address, "/healthz/ping", None).await.0, 403);
    let (code, body) = get(address, "/metrics", None).await;
    let status: Value = serde_json::from_str(&body).expect("a Status");
    assert_eq!((code, status["reason"].as_str()), (403, Some("Forbidden")));
    assert_eq!(
        status["message"],
        "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
    );

    // Nobody has signed it, as far as is known.
    assert_eq!(get(address, "/metrics", Some(&master)).await.0, 401);
    authorities.set(&authority).expect("an authority");
    let (code, body) = get(address, "/metrics", Some(&master)).await;
    assert_eq!(code, 200);
    assert!(
        body.contains("a_total 3\n") && body.contains("process_open_fds "),
        "{body}"
    );
    let configuration = "{\"componentconfig\":{\"Parallelism\":16}}";
    assert_eq!(
        get(address, "/configz", Some(&master)).await,
        (200, configuration.into())
    );
    assert_eq!(get(address, "/healthz/ping", Some(&master)).await.0, 200);
    assert_eq!(get(address, "/nothing", Some(&master)).await.0, 404);
    assert_eq!(get(address, "/flagz", None).await.0, 403);
    let (code, flags) = get(address, "/flagz", Some(&master)).await;
    assert_eq!(code, 200);
    assert!(
        flags.starts_with("\nkube-scheduler flagz\n") && flags.ends_with("\nv=2\n"),
        "{flags}"
    );
    let (_, status) = get(address, "/statusz", Some(&master)).await;
    assert!(
        status.contains("\nPaths: /configz /flagz /healthz "),
        "{status}"
    );

    IS_WELL.store(false, Ordering::Relaxed);
    let failed = "[+]ping ok\n[-]leaderElection failed: reason withheld\nlivez check failed\n";
    assert_eq!(get(address, "/livez", None).await, (500, failed.into()));
    assert_eq!(
        get(address, "/livez?exclude=leaderElection", None).await.0,
        200
    );
    shutdown.cancel();
    serving.await.expect("it ends");
}
