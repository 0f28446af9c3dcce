//! pods/portforward: SPDY passed through, or SPDY inside the messages of a WebSocket (KEP-4006).

use std::io;

use apimachinery::status::Status;
use bytes::BytesMut;
use futures::StreamExt;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use super::backend::Security;
use super::target::{find, kubelet_of_bound};
use super::{Streaming, upgrade, websocket};
use crate::backend::Backend;
use crate::body::Body;
use crate::request::RequestContext;

/// The subprotocol whose messages carry SPDY.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// Bytes of a message towards the client.
const MESSAGE_BYTES: usize = 32 * 1024;

impl Streaming {
    pub(super) async fn port_forward(
        &self,
        objects: &dyn Backend,
        context: &RequestContext,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let pod = find(objects, "pods", &info.namespace, &info.name).await?;
        let kubelet = kubelet_of_bound(objects, &pod, &self.address_types).await?;
        if !upgrade::is_wanted(request.headers()) {
            return Err(upgrade::required());
        }
        let mut target = format!("/portForward/{}/{}", info.namespace, info.name);
        for (i, port) in info.query.all("ports").enumerate() {
            target.push(if i == 0 { '?' } else { '&' });
            target.push_str(&format!("port={}", upgrade::encode(port)));
        }
        let authority = format!("{}:{}", kubelet.host, kubelet.port);
        let connection = self
            .connector
            .connect(&kubelet.host, kubelet.port, Security::Kubelet)
            .await
            .map_err(|error| upgrade::dial_failed(&error))?;
        let is_tunnel = websocket::is_wanted(request.headers())
            && websocket::choose(request.headers(), &[TUNNEL]).is_some();
        if !is_tunnel {
            return self
                .pass_through(context, request, connection, &target, &authority)
                .await;
        }
        let (response, client) = websocket::accept(&mut request, TUNNEL)?;
        let onward = Request::builder()
            .method(Method::POST)
            .uri(&target)
            .header(header::HOST, &authority)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "SPDY/3.1")
            .header("X-Stream-Protocol-Version", "portforward.k8s.io")
            .body(Body::empty())
            .map_err(|error| Status::bad_request(error.to_string()))?;
        let mut answer = connection
            .send(onward)
            .await
            .map_err(|error| upgrade::dial_failed(&error))?;
        if answer.response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let mut response = answer.into_response();
            upgrade::remove_hop_headers(response.headers_mut());
            response
                .headers_mut()
                .entry(header::CONTENT_TYPE)
                .or_insert(HeaderValue::from_static("text/plain"));
            return Ok(response);
        }
        let backend = hyper::upgrade::on(&mut answer.response);
        self.spawn(context, tunnel(client, backend));
        Ok(response)
    }
}

async fn tunnel(client: OnUpgrade, backend: OnUpgrade) -> io::Result<()> {
    let backend = backend.await.map_err(io::Error::other)?;
    let (mut to_client, mut from_client) = websocket::open(client).await?.split();
    let (mut from_backend, mut to_backend) = tokio::io::split(TokioIo::new(backend));
    let downward = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(MESSAGE_BYTES);
            let mut limited = (&mut from_backend).take(MESSAGE_BYTES as u64);
            if limited.read_buf(&mut buffer).await? == 0 {
                return websocket::send(&mut to_client, websocket::normal_close()).await;
            }
            websocket::send(&mut to_client, Message::Binary(buffer.split().freeze())).await?;
        }
    };
    let upward = async {
        while let Some(message) = from_client.next().await {
            match message.map_err(websocket::to_io)? {
                Message::Binary(bytes) => {
                    to_backend.write_all(&bytes).await?;
                    to_backend.flush().await?;
                }
                Message::Close(_) => break,
                _ => {}
            }
        }
        to_backend.shutdown().await
    };
    // SPDY ends as a whole: there is no half of a tunnel.
    tokio::select! {
        done = downward => done,
        done = upward => done,
    }
}
