//! The paths of the kubelet's server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Backend, logs, metrics, stats, stream};
use crate::cri::{labels, v1};
use crate::k8s::Pod;
use crate::pod::spec;

/// Query parameters in order; a name may come more than once.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Takes a query string apart.
    pub fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a name.
    pub fn all(&self, name: &str) -> Vec<String> {
        self.0
            .iter()
            .filter(|(own, _)| own == name)
            .map(|(_, value)| value.clone())
            .collect()
    }

    /// `1` or `true`.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "true"))
    }
}

/// Percent and plus decoding.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = bytes
            .get(at + 1..at + 3)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        match (byte, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(decoded)) => {
                out.push(decoded);
                at += 3;
                continue;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A plain text answer.
pub fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

fn json(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Answers one request that was allowed.
pub async fn route(backend: &Arc<Backend>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let parts: Vec<_> = path
        .split('/')
        .filter(|part| !part.is_empty())
        .map(decode)
        .collect();
    let parts: Vec<_> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz"] | ["healthz", "ping" | "log" | "syncloop"] => {
            text(StatusCode::OK, "ok")
        }
        ["pods"] => json(&pod_list(&backend.board.pods())),
        ["runningpods"] => running_pods(backend).await,
        ["containerLogs", namespace, pod, container] => {
            logs::answer(backend, namespace, pod, container, &query).await
        }
        ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
            stream::exec(backend, namespace, pod, container, &query, request).await
        }
        ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
            stream::attach(backend, namespace, pod, container, &query, request).await
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
            stream::port_forward(backend, namespace, pod, &query, request).await
        }
        ["run", namespace, pod, container] | ["run", namespace, pod, _, container] => {
            run(backend, namespace, pod, container, &query).await
        }
        ["metrics"] => text(StatusCode::OK, metrics::own(backend)),
        ["metrics", "resource" | "cadvisor"] => match stats::resource_metrics(backend).await {
            Ok(metrics) => text(StatusCode::OK, metrics),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        ["metrics", "probes"] => text(StatusCode::OK, ""),
        ["stats", "summary"] | ["stats"] => match stats::summary(backend).await {
            Ok(summary) => json(&summary),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        ["configz"] => json(&configz(backend)),
        ["logs", ..] => text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled."),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn pod_list(pods: &[Arc<Pod>]) -> Value {
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort_by_key(|pod| (spec::namespace(pod).to_owned(), spec::name(pod).to_owned()));
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
}

/// What the runtime runs, whether the API knows it or not.
async fn running_pods(backend: &Backend) -> Response<Body> {
    let containers = match backend.runtime.list_containers(HashMap::new()).await {
        Ok(containers) => containers,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut pods: HashMap<String, Value> = HashMap::new();
    let running = v1::ContainerState::ContainerRunning as i32;
    for container in containers
        .iter()
        .filter(|container| container.state == running)
    {
        let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
        let pod = pods.entry(label(labels::POD_UID)).or_insert_with(|| {
            json!({
                "metadata": {
                    "name": label(labels::POD_NAME),
                    "namespace": label(labels::POD_NAMESPACE),
                    "uid": label(labels::POD_UID),
                },
                "spec": {"containers": []},
                "status": {},
            })
        });
        if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
            containers.push(json!({
                "name": label(labels::CONTAINER_NAME), "image": container.image_ref, "resources": {},
            }));
        }
    }
    let items: Vec<_> = pods.into_values().collect();
    json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

async fn run(
    backend: &Backend,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let id = match stream::running_container(backend, namespace, pod, container) {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let command = query
        .get("cmd")
        .unwrap_or_default()
        .split(' ')
        .map(str::to_owned)
        .collect();
    match backend
        .runtime
        .exec_sync(&id, command, Duration::ZERO)
        .await
    {
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            let ok = answer.exit_code == 0;
            let status = if ok {
                StatusCode::OK
            } else {
                StatusCode::INTERNAL_SERVER_ERROR
            };
            text(status, String::from_utf8_lossy(&output))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn configz(backend: &Backend) -> Value {
    let config = &backend.config;
    let dns: Vec<_> = config.cluster_dns.iter().map(ToString::to_string).collect();
    json!({"kubeletconfig": {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": config.address.to_string(),
        "port": config.port,
        "clusterDNS": dns,
        "clusterDomain": config.cluster_domain,
        "containerLogMaxFiles": config.container_log_max_files,
        "containerLogMaxSize": config.container_log_max_size.to_string(),
        "containerRuntimeEndpoint": config.cri_socket,
        "maxPods": config.max_pods,
        "nodeLeaseDurationSeconds": config.node_lease_duration.as_secs(),
        "nodeStatusReportFrequency": crate::text::duration(config.node_status_report_frequency),
        "nodeStatusUpdateFrequency": crate::text::duration(config.node_status_update_frequency),
        "registerNode": config.register_node,
        "serializeImagePulls": config.serialize_image_pulls,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_keep_repeated_names() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%26b&input=1&tty=");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a&b"]);
        assert!(query.flag("input") && !query.flag("tty") && query.get("x").is_none());
        assert_eq!(decode("%zz%4"), "%zz%4");
    }
}
