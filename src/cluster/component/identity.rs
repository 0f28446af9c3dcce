//! Who calls a component, and whether he may: asked of the API server and remembered for a short while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::r::{CONFIGMAPS, SUBJECTACCESSREVIEWS, TOKENREVIEWS};
use apimachinery::{Status, Value};
use client::{Client, Factory, Informer, Selectors, WriteOptions};
use http::{HeaderMap, header};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::tls::Authorities;

/// How long answers hold (`--authentication-token-webhook-cache-ttl`, `--authorization-webhook-cache-*-ttl`).
const HOLDS: Duration = Duration::from_secs(10);
/// Answers that are kept; beyond that all are forgotten.
const MAX_KEPT: usize = 1024;
/// May do everything without being asked about (`AlwaysAllowGroups`).
const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
/// Where the API server tells who signs client certificates.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// Keeps `authorities` as the API server tells them, until `shutdown`. Without a client it only waits.
pub async fn follow(client: Option<Client>, authorities: Authorities, shutdown: CancellationToken) {
    let Some(client) = client else {
        return shutdown.cancelled().await;
    };
    let factory = Factory::new(client, shutdown.clone());
    let selected = Selectors::fields(format!("metadata.name={CONFIG_MAP}"));
    let maps: Informer<Value> = factory.informer(&CONFIGMAPS, NAMESPACE, selected);
    maps.add_handler(move |delta| {
        let pem = delta.new.as_ref();
        let pem = pem.and_then(|map| map["data"]["client-ca-file"].as_str());
        if let Some(Err(error)) = pem.map(|pem| authorities.set(pem)) {
            tracing::warn!(error, "The API server's client CA cannot be used");
        }
    });
    tokio::select! {
        () = shutdown.cancelled() => {}
        ended = factory.join() => if let Err(error) = ended {
            tracing::warn!(%error, "The API server's client CA is not followed any more");
            shutdown.cancelled().await;
        },
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Caller {
    name: String,
    uid: String,
    groups: Vec<String>,
}

impl Caller {
    fn anonymous() -> Self {
        Caller {
            name: "system:anonymous".into(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".into()],
        }
    }

    /// Whom a certificate names.
    fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok());
        let groups = groups.chain([AUTHENTICATED]).map(str::to_owned).collect();
        Some(Caller {
            name,
            uid: String::new(),
            groups,
        })
    }

    /// Whom a TokenReview's status names.
    fn of_review(status: &Value) -> Option<Self> {
        if status["authenticated"] != true {
            return None;
        }
        let user = &status["user"];
        let groups = user["groups"].as_array().into_iter().flatten();
        let groups = groups.filter_map(Value::as_str).map(str::to_owned);
        Some(Caller {
            name: user["username"].as_str()?.to_owned(),
            uid: user["uid"].as_str().unwrap_or_default().to_owned(),
            groups: groups.collect(),
        })
    }
}

/// Answers with when they came.
type Kept<K, V> = Mutex<HashMap<K, (Instant, V)>>;

/// See the module.
pub struct Identity {
    authorities: Authorities,
    authentication: Option<Client>,
    authorization: Option<Client>,
    always_allowed: Vec<String>,
    /// By the token's hash.
    tokens: Kept<[u8; 32], Option<Arc<Caller>>>,
    verdicts: Kept<(Arc<Caller>, String, String), bool>,
}

impl Identity {
    pub fn new(
        authorities: Authorities,
        authentication: Option<Client>,
        authorization: Option<Client>,
        always_allowed: Vec<String>,
    ) -> Self {
        Identity {
            authorities,
            authentication,
            authorization,
            always_allowed,
            tokens: Mutex::default(),
            verdicts: Mutex::default(),
        }
    }

    /// Lets a request through, or says why not.
    pub async fn check(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
        verb: &str,
        path: &str,
    ) -> Result<(), Status> {
        let caller = self.caller(chain, headers).await;
        let caller = caller.ok_or_else(Status::unauthorized)?;
        let is_master = caller.groups.iter().any(|group| group == MASTERS);
        if is_master || self.is_always_allowed(path) || self.may(&caller, verb, path).await {
            return Ok(());
        }
        let message = format!(
            "forbidden: User {:?} cannot {verb} path {path:?}",
            caller.name
        );
        Err(Status::failure(
            403,
            apimachinery::status::Reason::Forbidden,
            message,
        ))
    }

    /// Who calls; `None` if he is not who he says.
    async fn caller(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Option<Arc<Caller>> {
        if let Some(leaf) = chain.first() {
            let named = Caller::of_certificate(leaf).filter(|_| self.authorities.trust(chain));
            return named.map(Arc::new);
        }
        let header = headers.get(header::AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok());
        let token = header
            .and_then(|text| text.strip_prefix("Bearer "))
            .map(str::trim);
        match token {
            Some(token) if !token.is_empty() => self.of_token(token).await,
            _ => Some(Arc::new(Caller::anonymous())),
        }
    }

    async fn of_token(&self, token: &str) -> Option<Arc<Caller>> {
        let client = self.authentication.as_ref()?;
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = remembered(&self.tokens, &key) {
            return known;
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let options = WriteOptions::default();
        let answer: Value = match client.create(&TOKENREVIEWS, "", &review, &options).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "Cannot ask whose token it is");
                return None;
            }
        };
        let caller = Caller::of_review(&answer["status"]).map(Arc::new);
        remember(&self.tokens, key, caller.clone());
        caller
    }

    fn is_always_allowed(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.always_allowed.iter().any(|allowed| {
            let allowed = allowed.trim_start_matches('/');
            match allowed.strip_suffix('*') {
                Some(start) => path.starts_with(start),
                None => path == allowed,
            }
        })
    }

    async fn may(&self, caller: &Arc<Caller>, verb: &str, path: &str) -> bool {
        let Some(client) = &self.authorization else {
            return false;
        };
        let key = (caller.clone(), verb.to_owned(), path.to_owned());
        if let Some(known) = remembered(&self.verdicts, &key) {
            return known;
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.name,
                "uid": caller.uid,
                "groups": caller.groups,
                "nonResourceAttributes": {"verb": verb, "path": path},
            },
        });
        let options = WriteOptions::default();
        let answer = client.create(&SUBJECTACCESSREVIEWS, "", &review, &options);
        let answer: Value = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "Cannot ask whether a caller is allowed");
                return false;
            }
        };
        let allowed = answer["status"]["allowed"] == true;
        remember(&self.verdicts, key, allowed);
        allowed
    }
}

fn remembered<K: std::hash::Hash + Eq, V: Clone>(kept: &Kept<K, V>, key: &K) -> Option<V> {
    let kept = kept.lock();
    let (at, value) = kept.get(key)?;
    (at.elapsed() < HOLDS).then(|| value.clone())
}

fn remember<K: std::hash::Hash + Eq, V>(kept: &Kept<K, V>, key: K, value: V) {
    let mut kept = kept.lock();
    if kept.len() >= MAX_KEPT {
        kept.clear();
    }
    kept.insert(key, (Instant::now(), value));
}
