//! Who may ask the kubelet for what: client certificates of the cluster's CA or
//! bearer tokens, then the API server's verdict on the `nodes` subresource that
//! the path stands for. The API server itself needs no verdict.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use client::Client;
use client::delegation::{Caller, Delegation, Holds, bearer};
use http::{Method, Request, Response, StatusCode};
use serde_json::json;

/// Groups that may do everything: the API server's client and cluster administrators.
const MASTERS: [&str; 2] = ["system:masters", "kubeadm:cluster-admins"];
/// How long answers hold (upstream's webhook `cacheTTL`, `cacheAuthorizedTTL`, `cacheUnauthorizedTTL`).
const HOLDS: Holds = Holds {
    tokens: Duration::from_secs(120),
    allowed: Duration::from_secs(300),
    denied: Duration::from_secs(30),
};

/// A request that is not answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    fn unauthorized() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            message: "Unauthorized".to_owned(),
        }
    }

    /// As an answer.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.message));
        *response.status_mut() = self.status;
        response
    }
}

/// Checks callers.
pub struct Authorizer {
    delegation: Delegation,
    node_name: String,
}

impl Authorizer {
    /// Asks with `client` about the node `node_name`.
    pub fn new(client: Client, node_name: String) -> Self {
        Self {
            delegation: Delegation::new(Some(client.clone()), Some(client), HOLDS),
            node_name,
        }
    }

    /// Lets the request through, or says why not. `caller` is whom the
    /// connection's certificate names.
    pub async fn check<B>(
        &self,
        caller: Option<Arc<Caller>>,
        request: &Request<B>,
    ) -> Result<(), Refusal> {
        let caller = match (caller, bearer(request.headers())) {
            (Some(caller), _) => Some(caller),
            (None, Some(token)) => self.delegation.of_token(token).await,
            (None, None) => None,
        };
        let caller = caller.ok_or_else(Refusal::unauthorized)?;
        if caller.is_in(&MASTERS) {
            return Ok(());
        }
        let (verb, subresource) = (verb(request.method()), subresource(request.uri().path()));
        let wish = json!({"resourceAttributes": {
            "verb": verb, "version": "v1", "resource": "nodes",
            "subresource": subresource, "name": self.node_name,
        }});
        if self.delegation.may(&caller, &wish).await {
            return Ok(());
        }
        Err(Refusal {
            status: StatusCode::FORBIDDEN,
            message: format!(
                "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresource}])",
                caller.name
            ),
        })
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The subresource of nodes that a path stands for (`kubelet/server/auth.go`).
fn subresource(path: &str) -> &'static str {
    match path
        .trim_start_matches('/')
        .split('/')
        .next()
        .unwrap_or_default()
    {
        "stats" => "stats",
        "metrics" => "metrics",
        "logs" => "log",
        "checkpoint" => "checkpoint",
        "healthz" => "healthz",
        "configz" => "configz",
        "pods" | "runningpods" => "pods",
        _ => "proxy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stand_for_subresources_of_nodes() {
        let cases = [
            ("/stats/summary", "stats"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor", "metrics"),
            ("/exec/ns/p/c", "proxy"),
            ("/containerLogs/ns/p/c", "proxy"),
            ("/pods", "pods"),
            ("/", "proxy"),
        ];
        for (path, expected) in cases {
            assert_eq!(subresource(path), expected, "{path}");
        }
        assert_eq!((verb(&Method::GET), verb(&Method::POST)), ("get", "create"));
    }
}
