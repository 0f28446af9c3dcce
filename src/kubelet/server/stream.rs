//! exec, attach and port-forward: the runtime serves the stream at an address
//! it gives us; what comes in is passed to it byte by byte, so SPDY/3.1 and
//! WebSocket both work and neither is understood here.

use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Backend;
use super::routes::{Query, text};
use crate::cri::v1;
use crate::k8s::{ContainerStatus, Pod};

/// Headers that belong to one hop and not to the stream, except those of the upgrade itself.
const HOP_HEADERS: [header::HeaderName; 3] = [header::HOST, header::TE, header::TRANSFER_ENCODING];

/// The id of the running instance of a container, or the answer that says there is none.
#[allow(clippy::result_large_err, reason = "the error is the answer itself")]
pub fn running_container(
    backend: &Backend,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<String, Response<Body>> {
    let pod = find(backend, namespace, pod)?;
    let status = status_of(&pod, container);
    let running = status.filter(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    });
    let id = running.and_then(|status| status.container_id.as_ref()?.split_once("://"));
    id.map(|(_, id)| id.to_owned()).ok_or_else(|| {
        text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("container not found ({container:?})"),
        )
    })
}

#[allow(clippy::result_large_err, reason = "the error is the answer itself")]
fn find(backend: &Backend, namespace: &str, pod: &str) -> Result<Arc<Pod>, Response<Body>> {
    let found = backend
        .board
        .find(namespace, pod)
        .map(|published| published.borrow().clone());
    found.ok_or_else(|| text(StatusCode::NOT_FOUND, "pod does not exist"))
}

/// The status of a container, whatever its kind.
pub fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists
        .into_iter()
        .flat_map(|list| list.iter().flatten())
        .find(|s| s.name == container)
}

pub(super) async fn exec(
    backend: &Backend,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
    request: Request<Incoming>,
) -> Response<Body> {
    let id = match running_container(backend, namespace, pod, container) {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let tty = query.flag("tty");
    let url = backend.runtime.exec_url(v1::ExecRequest {
        container_id: id,
        cmd: query.all("command"),
        tty,
        stdin: query.flag("input"),
        stdout: query.flag("output"),
        // A terminal has one output.
        stderr: query.flag("error") && !tty,
    });
    proxy(url.await, request).await
}

pub(super) async fn attach(
    backend: &Backend,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
    request: Request<Incoming>,
) -> Response<Body> {
    let id = match running_container(backend, namespace, pod, container) {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let tty = query.flag("tty");
    let url = backend.runtime.attach_url(v1::AttachRequest {
        container_id: id,
        tty,
        stdin: query.flag("input"),
        stdout: query.flag("output"),
        stderr: query.flag("error") && !tty,
    });
    proxy(url.await, request).await
}

pub(super) async fn port_forward(
    backend: &Backend,
    namespace: &str,
    pod: &str,
    query: &Query,
    request: Request<Incoming>,
) -> Response<Body> {
    let pod = match find(backend, namespace, pod) {
        Ok(pod) => pod,
        Err(refusal) => return refusal,
    };
    let uid = crate::pod::spec::uid(&pod);
    let sandboxes = backend
        .runtime
        .list_sandboxes(crate::cri::labels::of_pod(uid))
        .await;
    let ready = v1::PodSandboxState::SandboxReady as i32;
    let sandbox = sandboxes
        .unwrap_or_default()
        .into_iter()
        .find(|sandbox| sandbox.state == ready);
    let Some(sandbox) = sandbox else {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no ready sandbox of the pod",
        );
    };
    let ports = query.all("port");
    let ports = ports
        .iter()
        .flat_map(|ports| ports.split(','))
        .filter_map(|port| port.parse().ok());
    let url = backend.runtime.port_forward_url(v1::PortForwardRequest {
        pod_sandbox_id: sandbox.id,
        port: ports.collect(),
    });
    proxy(url.await, request).await
}

/// Passes the request to the runtime's streaming server, and both ways what
/// follows once it agreed to the upgrade.
async fn proxy(
    url: Result<String, crate::cri::CriError>,
    request: Request<Incoming>,
) -> Response<Body> {
    let failed = |error: String| text(StatusCode::INTERNAL_SERVER_ERROR, error);
    let url = match url {
        Ok(url) => url,
        Err(error) => return failed(error.to_string()),
    };
    match connect(&url, request).await {
        Ok(response) => response,
        Err(error) => failed(format!("error streaming: {error}")),
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn connect(url: &str, mut request: Request<Incoming>) -> Result<Response<Body>, BoxError> {
    let url: Uri = url.parse()?;
    let host = url.host().unwrap_or("127.0.0.1");
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    // It ends with the stream, which `splice` below or the body drives.
    tokio::spawn(connection.with_upgrades());
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut onward = Request::builder()
        .method(request.method().clone())
        .uri(path);
    let headers = onward
        .headers_mut()
        .ok_or("the runtime's URL is malformed")?;
    copy_headers(request.headers(), headers);
    headers.insert(
        header::HOST,
        url.authority().map_or("", |a| a.as_str()).parse()?,
    );
    let onward = onward.body(Empty::<bytes::Bytes>::new())?;
    let ours = hyper::upgrade::on(&mut request);
    let mut answer = sender.send_request(onward).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (parts, body) = answer.into_parts();
        return Ok(Response::from_parts(
            parts,
            Body::new(body.map_err(axum::Error::new)),
        ));
    }
    let theirs = hyper::upgrade::on(&mut answer);
    // It ends when either side does; a connection's end ends it too.
    tokio::spawn(splice(ours, theirs));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers().clone();
    Ok(response)
}

fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        let own = HOP_HEADERS.contains(name) || *name == header::AUTHORIZATION;
        if !own {
            to.append(name, value.clone());
        }
    }
}

async fn splice(ours: hyper::upgrade::OnUpgrade, theirs: hyper::upgrade::OnUpgrade) {
    let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) else {
        return;
    };
    let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
    if let Err(error) = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await {
        tracing::debug!(%error, "a stream to a container ended");
    }
}
