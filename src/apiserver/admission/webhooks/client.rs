//! One POST to a webhook: where it is, whose certificate it must show, and a bounded answer in time.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::{Value, meta};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::kinds::tree::{at, int, items, text};
use crate::registry::Registry;

/// Longest answer that is read (bytes).
const MAX_ANSWER: usize = 3 * 1024 * 1024;
/// The machine's own authorities, for hooks that name none.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Where a webhook is.
struct Place {
    /// What the certificate must be for, and the `Host` header.
    name: String,
    /// Where to connect.
    host: String,
    port: u16,
    /// Path and query.
    path: String,
}

/// Asks a webhook and gives the body of its answer. Errors read as Go's client tells them.
pub async fn call(
    registry: &Registry,
    config: &Value,
    question: &Value,
    timeout: Duration,
) -> Result<Vec<u8>, String> {
    let place = place(registry, config, timeout).await?;
    let url = format!("https://{}:{}{}", place.name, place.port, place.path);
    let told = |why: String| format!("failed to call webhook: Post {url:?}: {why}");
    let asking = ask(&place, config, question);
    match tokio::time::timeout(timeout, asking).await {
        Ok(answer) => answer.map_err(told),
        Err(_) => Err(told("context deadline exceeded".to_owned())),
    }
}

async fn place(registry: &Registry, config: &Value, timeout: Duration) -> Result<Place, String> {
    let query = format!("timeout={}s", timeout.as_secs());
    let url = text(config, &["url"]);
    if !url.is_empty() {
        let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
        let name = uri.host().ok_or("the URL has no host")?.to_owned();
        return Ok(Place {
            host: name.trim_matches(['[', ']']).to_owned(),
            name,
            port: uri.port_u16().unwrap_or(443),
            path: format!("{}?{query}", uri.path()),
        });
    }
    let service = at(config, &["service"]);
    let (name, namespace) = (text(service, &["name"]), text(service, &["namespace"]));
    let port = u16::try_from(int(service, &["port"]).unwrap_or(443)).unwrap_or(443);
    let (host, target) = resolve(registry, namespace, name, port).await?;
    let path = match text(service, &["path"]) {
        "" => "/",
        path => path,
    };
    Ok(Place {
        name: format!("{name}.{namespace}.svc"),
        host,
        port: target,
        path: format!("{path}?{query}"),
    })
}

/// An address of a service: one of its ready endpoints, or its own.
async fn resolve(
    registry: &Registry,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<(String, u16), String> {
    let missing = || format!("service {name:?} not found");
    let service = registry
        .stored_value("", "services", namespace, name)
        .await
        .map_err(|status| status.message)?
        .ok_or_else(missing)?;
    if text(&service, &["spec", "type"]) == "ExternalName" {
        return Ok((text(&service, &["spec", "externalName"]).to_owned(), port));
    }
    let wanted = items(&service, &["spec", "ports"])
        .iter()
        .find(|item| int(item, &["port"]) == Some(i64::from(port)))
        .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let slices = registry
        .cached_values("discovery.k8s.io", "endpointslices")
        .await
        .map_err(|status| status.message)?;
    let endpoint = slices
        .iter()
        .filter(|slice| {
            meta::namespace(slice) == namespace
                && meta::label(slice, "kubernetes.io/service-name") == Some(name)
        })
        .find_map(|slice| ready(slice, text(wanted, &["name"])));
    if let Some(endpoint) = endpoint {
        return Ok(endpoint);
    }
    match text(&service, &["spec", "clusterIP"]) {
        "" | "None" => Err(format!("no endpoints available for service {name:?}")),
        address => Ok((address.to_owned(), port)),
    }
}

/// A ready address of a slice and its port of this name.
fn ready(slice: &Value, port: &str) -> Option<(String, u16)> {
    let number = items(slice, &["ports"])
        .iter()
        .find(|item| text(item, &["name"]) == port)
        .and_then(|item| int(item, &["port"]))?;
    let address = items(slice, &["endpoints"])
        .iter()
        .filter(|endpoint| at(endpoint, &["conditions", "ready"]) != &Value::Bool(false))
        .find_map(|endpoint| items(endpoint, &["addresses"]).first()?.as_str())?;
    Some((address.to_owned(), u16::try_from(number).ok()?))
}

fn tls(config: &Value) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let pem = match text(config, &["caBundle"]) {
        "" => std::fs::read(SYSTEM_ROOTS).unwrap_or_default(),
        encoded => STANDARD
            .decode(encoded)
            .map_err(|_| "unable to load root certificates: unable to parse bytes as PEM block")?,
    };
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate =
            certificate.map_err(|error| format!("unable to load root certificates: {error}"))?;
        // An authority this library cannot use is one nobody is known by.
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

async fn ask(place: &Place, config: &Value, question: &Value) -> Result<Vec<u8>, String> {
    let address = (place.host.as_str(), place.port);
    let stream = TcpStream::connect(address).await.map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            _ => error.to_string(),
        };
        format!("dial tcp {}:{}: {why}", place.host, place.port)
    })?;
    let bare = place.name.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(bare).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(tls(config)?)
        .connect(name, stream)
        .await
        .map_err(|error| format!("tls: failed to verify certificate: {error}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Full<bytes::Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&place.path)
        .header(HOST, format!("{}:{}", place.name, place.port))
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, "kube-apiserver-admission")
        .body(Full::from(question.to_string()))
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let code = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        if code != StatusCode::OK {
            return Err(format!(
                "an error on the server ({:?}) has prevented the request from succeeding",
                String::from_utf8_lossy(&body)
            ));
        }
        Ok(body.to_vec())
    };
    // The connection makes progress only while it is polled; it ends with the exchange.
    tokio::select! {
        answer = exchange => answer,
        ended = connection => Err(match ended {
            Ok(()) => "EOF".to_owned(),
            Err(error) => error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_endpoint_that_is_ready_is_asked_at_the_ports_number() {
        let slice = json!({"ports": [{"name": "web", "port": 8443}], "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": false}}, {"addresses": ["10.0.0.2"], "conditions": {}}]});
        assert_eq!(ready(&slice, "web"), Some(("10.0.0.2".to_owned(), 8443)));
        assert_eq!(ready(&slice, "other"), None);
    }
}
