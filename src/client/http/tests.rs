//! The transport over real sockets: TLS with both sides' certificates, reuse, growth and replacement of connections.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use api::r::PODS;
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::{
    BoxBody, Client, RestConfig, WatchEvent, WatchOptions,
    config::{Source, Token},
    fake, full,
};

/// A CA with a server's and a client's certificate.
struct Pki {
    ca: String,
    server: (String, String),
    client: (String, String),
}

fn pki() -> Pki {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let leaf = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    Pki {
        ca,
        server: leaf("kubernetes"),
        client: leaf("client"),
    }
}

/// The server in memory behind TLS; `drop_all` ends its connections.
struct Tls {
    address: String,
    connections: Arc<AtomicUsize>,
    generation: watch::Sender<u64>,
    tasks: JoinSet<()>,
}

async fn serve(pki: &Pki, server: fake::Server) -> Tls {
    let der = |pem: &str| rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(&pki.ca)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![der(&pki.server.0)],
            PrivateKeyDer::from_pem_slice(pki.server.1.as_bytes()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let generation = watch::Sender::new(0);
    let mut tasks = JoinSet::new();
    let (count, generations) = (connections.clone(), generation.subscribe());
    tasks.spawn(async move {
        let mut all = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let (acceptor, server) = (acceptor.clone(), server.clone());
            let mut generations = generations.clone();
            generations.mark_unchanged();
            all.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(move |request| answer(server.clone(), request));
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    _ = connection => {}
                    _ = generations.changed() => {}
                }
            });
        }
    });
    Tls {
        address,
        connections,
        generation,
        tasks,
    }
}

async fn answer(
    server: fake::Server,
    request: Request<Incoming>,
) -> Result<Response<BoxBody>, Infallible> {
    use crate::Transport;
    if request.uri().path() == "/whoami" {
        let token = request.headers().get("authorization");
        let token = token.and_then(|value| value.to_str().ok()).unwrap_or("");
        return Ok(Response::new(full(serde_json::json!(token).to_string())));
    }
    let (head, body) = request.into_parts();
    let body: Bytes = crate::call::collect(crate::boxed(body), 1 << 20)
        .await
        .unwrap();
    Ok(server.send(Request::from_parts(head, body)).await.unwrap())
}

fn client(pki: &Pki, tls: &Tls) -> Client {
    let data = |text: &str| Some(Source::Data(text.as_bytes().to_vec()));
    Client::connect(RestConfig {
        server: tls.address.clone(),
        ca: data(&pki.ca),
        server_name: Some("kubernetes".into()),
        insecure_skip_tls_verify: false,
        client_certificate: data(&pki.client.0),
        client_key: data(&pki.client.1),
        token: Some(Token::Value("secret".into())),
    })
    .unwrap()
}

fn pod(name: &str) -> Value {
    serde_json::json!({"metadata": {"name": name, "namespace": "default"}})
}

#[tokio::test]
async fn calls_and_watches_share_a_connection_that_is_replaced_when_it_breaks() {
    let pki = pki();
    let server = fake::Server::default();
    let tls = serve(&pki, server.clone()).await;
    let client = client(&pki, &tls);
    let token: String = client.get_path("/whoami").await.unwrap();
    assert_eq!(token, "Bearer secret");
    let mut watch = client
        .watch::<Value>(&PODS, "", &WatchOptions::default())
        .await
        .unwrap();
    let options = Default::default();
    let _: Value = client
        .create(&PODS, "default", &pod("a"), &options)
        .await
        .unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
    assert_eq!(tls.connections.load(Ordering::SeqCst), 1);

    tls.generation.send_modify(|generation| *generation += 1);
    assert!(matches!(watch.next().await, Some(Err(_)) | None));
    let found: Value = client.get(&PODS, "default", "a").await.unwrap();
    assert_eq!(found["metadata"]["name"], "a");
    let missing = client
        .get::<Value>(&PODS, "default", "b")
        .await
        .unwrap_err();
    assert!(missing.is_not_found());
    assert_eq!(tls.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn more_watches_than_streams_open_another_connection_and_many_callers_dial_once() {
    let pki = pki();
    let tls = serve(&pki, fake::Server::default()).await;
    let client = client(&pki, &tls);
    let options = WatchOptions::default();
    let open = (0..super::MAX_STREAMS).map(|_| client.watch::<Value>(&PODS, "", &options));
    let watches: Vec<_> = futures::future::try_join_all(open).await.unwrap();
    assert_eq!(tls.connections.load(Ordering::SeqCst), 1);
    let one_more = client.watch::<Value>(&PODS, "", &options).await.unwrap();
    assert_eq!(tls.connections.load(Ordering::SeqCst), 2);
    drop((watches, one_more));
}

#[tokio::test]
async fn a_server_of_another_ca_or_none_at_all_is_an_error_that_says_so() {
    let (pki, other) = (pki(), pki());
    let mut tls = serve(&pki, fake::Server::default()).await;
    let stranger = Pki {
        ca: other.ca,
        server: other.server,
        client: other.client,
    };
    let error = client(&stranger, &tls)
        .get_path::<Value>("/")
        .await
        .unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("cannot connect"),
        "{error}"
    );
    tls.tasks.shutdown().await;
    let error = client(&pki, &tls).get_path::<Value>("/").await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}
