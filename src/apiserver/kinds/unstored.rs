//! Resources that are answered and not stored: bindings, component statuses.

use api::Resource;
use apimachinery::Status;
use http::{Request, Response};

use crate::body::Body;
use crate::registry::Registry;
use crate::request::RequestContext;

/// Answers a request for a resource without storage.
pub async fn handle(
    _registry: &Registry,
    _context: &RequestContext,
    _resource: &'static Resource,
    _request: Request<Body>,
) -> Result<Response<Body>, Status> {
    Err(Status::path_not_found())
}
