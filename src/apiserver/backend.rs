//! The seam between the outer half of the server (front, identity, discovery) and the inner one (the registry).
//!
//! The front has authenticated and authorized a request before it calls `Backend::handle`; the backend never
//! sees a path that is not a resource's. The other methods answer from memory what tokens and RBAC need to know.

use std::sync::Arc;

use apimachinery::Value;
use apimachinery::status::Status;
use async_trait::async_trait;
use http::{Request, Response};

use crate::body::Body;
use crate::request::{RequestContext, RequestInfo};

/// A change of a resource that `Backend::generation` counts.
pub type Generation = u64;

#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Answers a resource request (`context.info.is_resource`), streaming subresources included.
    ///
    /// The body has not been read: read it with `Body::collect(limits.body_bytes)`; `CollectError` turns into
    /// upstream's 413 by `?`. The request's extensions hold hyper's `OnUpgrade` for exec, attach and
    /// port-forward. An error is encoded by the front as the client accepts it.
    /// Dropping the future (time-out, client gone) abandons the request.
    async fn handle(
        &self,
        context: RequestContext,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status>;

    /// One object: out of the cache when it is there, else by a consistent read, so that an object just made (by this
    /// server or another one) is found. `group` and `plural` name the resource (`""`, `"serviceaccounts"`).
    async fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Status>;

    /// All objects of a resource out of the cache.
    fn cached_list(&self, group: &str, plural: &str) -> Vec<Arc<Value>>;

    /// The pods bound to `node`, in `namespace` or (`""`) in all, out of the cache: what the Node authorizer asks for.
    fn pods_on(&self, node: &str, namespace: &str) -> Vec<Arc<Value>> {
        let mut pods = self.cached_list("", "pods");
        pods.retain(|pod| {
            pod["spec"]["nodeName"].as_str() == Some(node)
                && (namespace.is_empty() || apimachinery::meta::namespace(pod) == namespace)
        });
        pods
    }

    /// A number that moves whenever `cached_list` of the resource would answer differently. Cheap: it is
    /// read for every authorization.
    fn generation(&self, group: &str, plural: &str) -> Generation;

    /// How many objects of a resource there are, and how many bytes they are together; `None` when that is not known.
    fn size(&self, _group: &str, _plural: &str) -> Option<(usize, usize)> {
        None
    }

    /// How many watches are told of a write that this request asks for.
    fn watches(&self, _info: &RequestInfo) -> usize {
        0
    }

    /// Whether every cache is filled and the boot objects exist: `/readyz` and `informer-sync`.
    fn is_synced(&self) -> bool;
}
