//! The subresources that are connections: pods' log, exec, attach and portforward, and the proxies of pods,
//! services and nodes.
//!
//! ```text
//!                        ┌ log ──────────────────────────┐
//! request ─ target ──────┼ exec, attach ┬ remote (WebSocket ⇄ SPDY) ┐
//! (who, where, may it)   │              └ upgrade (bytes) ──────────┼─ backend ─ kubelet, pod
//!                        ├ portforward ─┬ tunnel (WebSocket ⇄ bytes) ┤
//!                        │              └ upgrade (bytes) ──────────┤
//!                        └ proxy ──────────────────────────┘
//! ```
//! Kubelets speak SPDY/3.1 with a half-close of stdin, which the WebSocket protocols before v5 lack; so WebSocket
//! clients are translated, as upstream's `StreamTranslatorHandler` does, and SPDY clients are passed through.
//!
//! **Invariant:** no redirect is followed, and a caller's credentials are never sent on.
//! **Invariant:** every connection ends with its request, its peer, or the server's draining.

mod backend;
mod log;
mod probe;
mod proxy;
mod remote;
mod spdy;
mod target;
#[cfg(test)]
mod tests;
mod tunnel;
mod upgrade;
mod websocket;

use apimachinery::status::Status;
use http::{Method, Request, Response};
use tokio_util::task::TaskTracker;

use crate::backend::Backend;
use crate::body::Body;
use crate::options::KubeletClientOptions;
use crate::request::{RequestContext, RequestInfo};

use backend::Connector;

/// Serves the streaming subresources. One per server.
pub struct Streaming {
    connector: Connector,
    address_types: Vec<String>,
    /// Pods on loopback addresses may be proxied to; for tests only.
    allow_loopback: bool,
    /// The upgraded connections.
    tasks: TaskTracker,
}

impl Streaming {
    /// A server side that reaches kubelets by `options`; certificates are read when first needed.
    pub fn new(options: &KubeletClientOptions) -> Self {
        Self {
            connector: Connector::new(options.clone()),
            address_types: options.address_types.clone(),
            allow_loopback: false,
            tasks: TaskTracker::new(),
        }
    }

    /// Whether a resource request is one of these.
    pub fn handles(info: &RequestInfo) -> bool {
        info.group.is_empty()
            && matches!(
                (info.resource.as_str(), info.subresource.as_str()),
                ("pods", "log" | "exec" | "attach" | "portforward")
                    | ("pods" | "services" | "nodes", "proxy")
            )
    }

    /// Answers a request that `handles` said yes to. An upgraded connection lives on after the answer, until one of
    /// its ends is done or `context.shutdown`.
    ///
    /// # Errors
    /// Upstream's answers to what cannot be connected.
    pub async fn handle(
        &self,
        objects: &dyn Backend,
        context: &RequestContext,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let subresource = info.subresource.as_str();
        let allowed = match subresource {
            "proxy" => true,
            "log" => request.method() == Method::GET,
            _ => matches!(*request.method(), Method::GET | Method::POST),
        };
        if !allowed {
            return Err(Status::method_not_allowed());
        }
        match subresource {
            "log" => self.log(objects, context).await,
            "exec" | "attach" => self.remote_command(objects, context, request).await,
            "portforward" => self.port_forward(objects, context, request).await,
            _ => self.proxy(objects, context, request).await,
        }
    }

    /// Waits for all upgraded connections to end; for a server that drains.
    pub async fn wait(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
