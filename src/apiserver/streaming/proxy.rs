//! The proxy subresource of pods, services and nodes: any method, any path, one backend, no redirect followed.

use std::net::IpAddr;

use apimachinery::Value;
use apimachinery::status::Status;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use rand::seq::IndexedRandom;

use super::backend::Security;
use super::target::{SchemeNamePort, find, is_proxyable, items, kubelet, text};
use super::{Streaming, upgrade};
use crate::backend::Backend;
use crate::body::Body;
use crate::request::{RequestContext, RequestInfo};

/// Where a proxied request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Location {
    host: String,
    port: u16,
    security: Security,
}

impl Location {
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl Streaming {
    pub(super) async fn proxy(
        &self,
        objects: &dyn Backend,
        context: &RequestContext,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let location = match info.resource.as_str() {
            "pods" => self.pod_location(objects, info).await?,
            "services" => self.service_location(objects, info).await?,
            _ => self.node_location(objects, info).await?,
        };
        let (prefix, rest) = split_path(request.uri().path());
        let query = request
            .uri()
            .query()
            .map(|q| format!("?{q}"))
            .unwrap_or_default();
        let unreachable = |error: &dyn std::fmt::Display| {
            Status::service_unavailable(format!("error trying to reach service: {error}"))
        };
        let wants_upgrade = upgrade::is_wanted(request.headers());
        if rest.is_empty() && !wants_upgrade {
            return Ok(to_directory(prefix, &query));
        }
        let connection = self
            .connector
            .connect(&location.host, location.port, location.security)
            .await
            .map_err(|error| unreachable(&error))?;
        let target = if rest.is_empty() {
            format!("/{query}")
        } else {
            format!("{rest}{query}")
        };
        let authority = location.authority();
        if wants_upgrade {
            return self
                .pass_through(context, request, connection, &target, &authority)
                .await;
        }
        let prefix = prefix.to_owned();
        let mut onward = Request::new(Body::empty());
        *onward.method_mut() = request.method().clone();
        *onward.uri_mut() = target
            .parse()
            .map_err(|_| Status::bad_request(format!("invalid path {target:?}")))?;
        *onward.headers_mut() = request_headers(context, &request, &authority);
        *onward.body_mut() = request.into_body();
        let answer = connection
            .send(onward)
            .await
            .map_err(|error| unreachable(&error))?;
        let mut response = answer.into_response();
        response_headers(response.headers_mut(), &prefix, &authority);
        Ok(response)
    }

    async fn pod_location(
        &self,
        objects: &dyn Backend,
        info: &RequestInfo,
    ) -> Result<Location, Status> {
        let asked = SchemeNamePort::parse(&info.name)
            .ok_or_else(|| Status::bad_request(format!("invalid pod request {:?}", info.name)))?;
        let pod = find(objects, "pods", &info.namespace, asked.name).await?;
        let port = match asked.port {
            "" => first_port(&pod).unwrap_or(if asked.is_https() { 443 } else { 80 }),
            port => number(port).ok_or_else(|| {
                Status::bad_request(format!("invalid pod request {:?}", info.name))
            })?,
        };
        let host = self.checked(text(&pod, "/status/podIP"))?;
        Ok(Location {
            host,
            port,
            security: security(&asked),
        })
    }

    async fn service_location(
        &self,
        objects: &dyn Backend,
        info: &RequestInfo,
    ) -> Result<Location, Status> {
        let asked = SchemeNamePort::parse(&info.name).ok_or_else(|| {
            Status::bad_request(format!("invalid service request {:?}", info.name))
        })?;
        let service = find(objects, "services", &info.namespace, asked.name).await?;
        let mut port_name = asked.port.to_owned();
        if let Ok(wanted) = asked.port.parse::<u64>() {
            let port = items(&service, "/spec/ports").find(|p| p["port"].as_u64() == Some(wanted));
            let port = port.ok_or_else(|| {
                Status::service_unavailable(format!(
                    "no service port {wanted} found for service {:?}",
                    asked.name
                ))
            })?;
            port_name = text(port, "/name").to_owned();
        }
        let slices = objects.cached_list("discovery.k8s.io", "endpointslices");
        let mine = slices.iter().filter(|slice| {
            text(slice, "/metadata/namespace") == info.namespace
                && text(slice, "/metadata/labels/kubernetes.io~1service-name") == asked.name
        });
        let endpoints: Vec<_> = mine
            .flat_map(|slice| ready_endpoints(slice, &port_name))
            .collect();
        let (ip, port) = endpoints.choose(&mut rand::rng()).ok_or_else(|| {
            Status::service_unavailable(format!(
                "no endpoints available for service {:?}",
                asked.name
            ))
        })?;
        Ok(Location {
            host: self.checked(ip)?,
            port: *port,
            security: security(&asked),
        })
    }

    async fn node_location(
        &self,
        objects: &dyn Backend,
        info: &RequestInfo,
    ) -> Result<Location, Status> {
        let asked = SchemeNamePort::parse(&info.name)
            .ok_or_else(|| Status::bad_request(format!("invalid node request {:?}", info.name)))?;
        let node = find(objects, "nodes", "", asked.name).await?;
        let address = kubelet(&node, &self.address_types)?;
        let host = self.checked(&address.host)?;
        let port = match asked.port {
            "" => address.port,
            port => number(port).ok_or_else(|| {
                Status::bad_request(format!("invalid node request {:?}", info.name))
            })?,
        };
        let security = if port == address.port {
            Security::Kubelet
        } else {
            security(&asked)
        };
        Ok(Location {
            host,
            port,
            security,
        })
    }

    /// An address the server may be made to connect to; a name is the cluster's own choice.
    fn checked(&self, host: &str) -> Result<String, Status> {
        let allowed = match host.parse::<IpAddr>() {
            Ok(ip) => is_proxyable(ip) || (self.allow_loopback && ip.is_loopback()),
            Err(_) => !host.is_empty(),
        };
        if allowed {
            Ok(host.to_owned())
        } else {
            Err(Status::bad_request("address not allowed"))
        }
    }
}

fn security(asked: &SchemeNamePort<'_>) -> Security {
    if asked.is_https() {
        Security::Anybody
    } else {
        Security::Plain
    }
}

fn number(port: &str) -> Option<u16> {
    port.parse().ok().filter(|p| *p != 0)
}

fn first_port(pod: &Value) -> Option<u16> {
    let mut ports = items(pod, "/spec/containers").flat_map(|c| items(c, "/ports"));
    ports.find_map(|p| u16::try_from(p["containerPort"].as_u64()?).ok())
}

fn ready_endpoints(slice: &Value, port_name: &str) -> Vec<(String, u16)> {
    let port = items(slice, "/ports").find(|p| text(p, "/name") == port_name);
    let Some(port) = port.and_then(|p| u16::try_from(p["port"].as_u64()?).ok()) else {
        return Vec::new();
    };
    items(slice, "/endpoints")
        .filter(|e| e.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false))
        .filter_map(|e| Some((e.pointer("/addresses/0")?.as_str()?.to_owned(), port)))
        .collect()
}

/// The path up to and with `/proxy`, and what follows, still escaped.
fn split_path(path: &str) -> (&str, &str) {
    let segments = if path.starts_with("/api/v1/namespaces/") {
        7
    } else {
        5
    };
    let ends = path
        .char_indices()
        .filter(|(_, c)| *c == '/')
        .map(|(i, _)| i);
    let end = ends.skip(1).nth(segments - 1).unwrap_or(path.len());
    path.split_at(end)
}

/// Sends a browser to the directory, for its relative links to work.
fn to_directory(prefix: &str, query: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(place) = HeaderValue::from_str(&format!("{prefix}/{query}")) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

fn request_headers(
    context: &RequestContext,
    request: &Request<Body>,
    authority: &str,
) -> HeaderMap {
    let mut headers = upgrade::forwardable(request.headers());
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|h| h.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(http::uri::Authority::as_str));
    set(header::HOST, host.unwrap_or(authority));
    set(
        HeaderName::from_static("x-forwarded-uri"),
        request.uri().path(),
    );
    set(
        HeaderName::from_static("x-forwarded-host"),
        host.unwrap_or(""),
    );
    set(HeaderName::from_static("x-forwarded-proto"), "https");
    if let Some(ip) = context.remote {
        let before = request
            .headers()
            .get("x-forwarded-for")
            .and_then(|v| v.to_str().ok());
        let all = before.map_or_else(|| ip.to_string(), |before| format!("{before}, {ip}"));
        set(HeaderName::from_static("x-forwarded-for"), &all);
    }
    headers
}

/// Makes a backend's answer one of this server: its redirects lead through the proxy again, and it decides nothing
/// about who else may read this server's answers (`corsRemovingTransport`).
fn response_headers(headers: &mut HeaderMap, prefix: &str, authority: &str) {
    upgrade::remove_hop_headers(headers);
    for name in [
        header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        header::ACCESS_CONTROL_MAX_AGE,
    ] {
        headers.remove(name);
    }
    let place = headers.get(header::LOCATION).and_then(|l| l.to_str().ok());
    if let Some(place) = place.and_then(|place| through_proxy(place, prefix, authority)) {
        headers.insert(header::LOCATION, place);
    }
}

fn through_proxy(place: &str, prefix: &str, authority: &str) -> Option<HeaderValue> {
    let uri: Uri = place.parse().ok()?;
    let elsewhere = uri.authority().is_some_and(|a| a.as_str() != authority);
    let path = uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    if elsewhere || !path.starts_with('/') || path.starts_with(prefix) {
        return None;
    }
    HeaderValue::from_str(&format!("{prefix}{path}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_after_the_proxy_is_kept_as_it_was_written() {
        for (path, rest) in [
            ("/api/v1/namespaces/a/pods/p/proxy", ""),
            ("/api/v1/namespaces/a/services/http:s:80/proxy/", "/"),
            ("/api/v1/namespaces/a/pods/p/proxy/x%2Fy//z/", "/x%2Fy//z/"),
            ("/api/v1/nodes/n/proxy/proxy/logs", "/proxy/logs"),
        ] {
            assert_eq!(split_path(path).1, rest, "{path}");
        }
    }

    #[test]
    fn redirects_within_the_backend_lead_through_the_proxy() {
        let check = |place, want: Option<&str>| {
            let got = through_proxy(place, "/api/v1/nodes/n/proxy", "10.0.0.1:80");
            assert_eq!(got.as_ref().and_then(|v| v.to_str().ok()), want, "{place}");
        };
        check("/a?b=c", Some("/api/v1/nodes/n/proxy/a?b=c"));
        check("http://10.0.0.1:80/a", Some("/api/v1/nodes/n/proxy/a"));
        check("http://example.org/a", None);
        check("/api/v1/nodes/n/proxy/a", None);
        check("a/b", None);
    }
}
