//! Who may ask the kubelet for what: client certificates of the cluster's CA or
//! bearer tokens, then the API server's verdict on the `nodes` subresource that
//! the path stands for. The API server itself needs no verdict.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::body::Body;
use client::Client;
use client::options::WriteOptions;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Groups that may do everything: the API server's client and cluster administrators.
const MASTERS: [&str; 2] = ["system:masters", "kubeadm:cluster-admins"];
/// How long verdicts hold (upstream's webhook `cacheAuthorizedTTL`, `cacheUnauthorizedTTL`).
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Verdicts that are kept; beyond that all are forgotten.
const MAX_VERDICTS: usize = 1024;

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    /// CN of the certificate, or the token's user.
    pub name: String,
    /// Its groups.
    pub groups: Vec<String>,
}

impl Caller {
    /// Whom a verified client certificate names.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok());
        Some(Self {
            name,
            groups: groups.map(str::to_owned).collect(),
        })
    }
}

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
    client: Client,
    node_name: String,
    verdicts: Mutex<HashMap<(Caller, &'static str, &'static str), (Instant, bool)>>,
}

impl Authorizer {
    /// Asks with `client` about the node `node_name`.
    pub fn new(client: Client, node_name: String) -> Self {
        Self {
            client,
            node_name,
            verdicts: Mutex::default(),
        }
    }

    /// Lets the request through, or says why not. `caller` is whom the
    /// connection's certificate names.
    pub async fn check<B>(
        &self,
        caller: Option<Caller>,
        request: &Request<B>,
    ) -> Result<(), Refusal> {
        let caller = match caller {
            Some(caller) => caller,
            None => self
                .of_token(request)
                .await
                .ok_or_else(Refusal::unauthorized)?,
        };
        if caller
            .groups
            .iter()
            .any(|group| MASTERS.contains(&group.as_str()))
        {
            return Ok(());
        }
        let (verb, subresource) = (verb(request.method()), subresource(request.uri().path()));
        if self.may(&caller, verb, subresource).await {
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

    async fn of_token<B>(&self, request: &Request<B>) -> Option<Caller> {
        let header = request
            .headers()
            .get(http::header::AUTHORIZATION)?
            .to_str()
            .ok()?;
        let token = header.strip_prefix("Bearer ")?.trim();
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let options = WriteOptions::default();
        let answer = self
            .client
            .create(&api::r::TOKENREVIEWS, "", &review, &options)
            .await;
        let answer: Value = answer.ok()?;
        let status = &answer["status"];
        if status["authenticated"] != true {
            return None;
        }
        let groups = status["user"]["groups"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        Some(Caller {
            name: status["user"]["username"].as_str()?.to_owned(),
            groups: groups
                .iter()
                .filter_map(|group| group.as_str().map(str::to_owned))
                .collect(),
        })
    }

    async fn may(&self, caller: &Caller, verb: &'static str, subresource: &'static str) -> bool {
        let key = (caller.clone(), verb, subresource);
        let known = self.verdicts.lock().get(&key).copied();
        if let Some((at, allowed)) = known {
            if at.elapsed() < if allowed { ALLOWED_TTL } else { DENIED_TTL } {
                return allowed;
            }
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.name,
                "groups": caller.groups,
                "resourceAttributes": {
                    "verb": verb, "version": "v1", "resource": "nodes",
                    "subresource": subresource, "name": self.node_name,
                },
            },
        });
        let options = WriteOptions::default();
        let answer = self
            .client
            .create(&api::r::SUBJECTACCESSREVIEWS, "", &review, &options)
            .await;
        let answer: Value = match answer {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "cannot ask whether a caller is allowed");
                return false;
            }
        };
        let allowed = answer["status"]["allowed"] == true;
        let mut verdicts = self.verdicts.lock();
        if verdicts.len() >= MAX_VERDICTS {
            verdicts.clear();
        }
        verdicts.insert(key, (Instant::now(), allowed));
        allowed
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
