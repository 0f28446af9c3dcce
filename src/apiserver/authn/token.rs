//! Service-account tokens: bound JWTs as TokenRequest makes them (KEP-1205), and their verification.
//!
//! A token is believed when one of our keys signed it, one of our issuers made it, it is meant for one of the wanted
//! audiences, its time is right, and the objects it is bound to still exist with the same uid.

use std::sync::Arc;

use apimachinery::Value;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::certificate::CREDENTIAL_ID;
use super::keys::{KeyError, PrivateKey, PublicKey};
use crate::backend::Backend;
use crate::options::{Options, ServiceAccountOptions};
use crate::request::UserInfo;

/// A token asked for with this life (seconds) is one that a pod mounts: `WarnOnlyBoundTokenExpirationPeriod`.
const MOUNTED_LIFE: i64 = 3607;

/// What such a token really gets with `extend_expiration` (seconds): a year.
const EXTENDED_LIFE: i64 = 365 * 24 * 3600;

/// Clock skew forgiven (seconds), as go-jose's `DefaultLeeway`.
const LEEWAY: i64 = 60;

/// Seconds that a token outlives the deletion of the object it is bound to.
const DELETION_GRACE: i64 = 60;

/// Name and uid of an object a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kubernetes {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Ref>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Ref>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Ref>,
    serviceaccount: Ref,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warnafter: Option<i64>,
}

/// The payload of a token; fields stand in the order upstream writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(deserialize_with = "one_or_many")]
    aud: Vec<String>,
    exp: i64,
    #[serde(default)]
    iat: i64,
    iss: String,
    #[serde(default)]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
    #[serde(default)]
    nbf: i64,
    sub: String,
}

/// RFC 7519: an audience may be one string.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

/// What a TokenRequest asks for, checked already.
#[derive(Clone, Debug)]
pub struct Grant {
    pub namespace: String,
    pub service_account: Ref,
    /// Empty: the API server's own audiences.
    pub audiences: Vec<String>,
    /// Seconds.
    pub expiration_seconds: i64,
    pub pod: Option<Ref>,
    pub node: Option<Ref>,
    pub secret: Option<Ref>,
}

/// A signed token.
#[derive(Clone, Debug)]
pub struct Issued {
    pub token: String,
    /// The audiences it is good for.
    pub audiences: Vec<String>,
    /// What `status.expirationTimestamp` says (seconds since 1970); with `extend_expiration` the token lives longer.
    pub expiration: i64,
    /// The `jti`, for audit annotations.
    pub id: String,
}

/// Why no token could be made or keys could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("read service account key: {0}")]
    Read(#[from] std::io::Error),
    #[error("service account key: {0}")]
    Key(#[from] KeyError),
    #[error("no service account signing key is configured")]
    NoSigner,
    #[error("signing failed")]
    Signing,
}

/// Why a token is not believed, in upstream's words (a TokenReview shows them).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("invalid bearer token")]
    NotOurs,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("token audiences {got:?} is invalid for the target audiences {want:?}")]
    Audience { got: Vec<String>, want: Vec<String> },
    #[error("service account token has been invalidated")]
    Invalidated,
    #[error("cannot look up what the token is bound to")]
    Unavailable,
}

/// Signs and verifies service-account tokens.
pub struct Tokens {
    options: ServiceAccountOptions,
    api_audiences: Vec<String>,
    signer: Option<PrivateKey>,
    keys: Vec<PublicKey>,
}

/// A believed token.
#[derive(Clone, Debug)]
pub struct Verified {
    pub user: UserInfo,
    /// The token's audiences that were wanted.
    pub audiences: Vec<String>,
    /// Seconds since 1970.
    pub expires: i64,
}

impl Tokens {
    /// Reads the keys of `options`.
    pub fn new(options: &Options) -> Result<Self, TokenError> {
        let accounts = &options.service_accounts;
        let signer = match &accounts.signing_key {
            Some(pem) => Some(PrivateKey::read(&pem.read()?)?),
            None => None,
        };
        let mut keys: Vec<PublicKey> = Vec::new();
        for pem in &accounts.keys {
            keys.extend(PublicKey::read_all(&pem.read()?)?);
        }
        if keys.is_empty() {
            keys.extend(signer.iter().map(|signer| signer.public().clone()));
        }
        Ok(Self {
            options: accounts.clone(),
            api_audiences: options.api_audiences().to_vec(),
            signer,
            keys,
        })
    }

    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    pub fn api_audiences(&self) -> &[String] {
        &self.api_audiences
    }

    /// The issuer of new tokens.
    pub fn issuer(&self) -> &str {
        self.options.issuers.first().map_or("", String::as_str)
    }

    /// Makes a token at `now` (seconds since 1970). Signing with RSA costs about a millisecond.
    pub fn issue(&self, grant: Grant, now: i64) -> Result<Issued, TokenError> {
        let Grant {
            namespace,
            service_account,
            audiences,
            expiration_seconds,
            pod,
            node,
            secret,
        } = grant;
        let audiences = if audiences.is_empty() {
            self.api_audiences.clone()
        } else {
            audiences
        };
        let expiration = now + expiration_seconds;
        let is_ours = audiences
            .iter()
            .all(|audience| self.api_audiences.contains(audience));
        let extend =
            self.options.extend_expiration && expiration_seconds == MOUNTED_LIFE && is_ours;
        let claims = Claims {
            exp: if extend {
                now + EXTENDED_LIFE
            } else {
                expiration
            },
            iat: now,
            iss: self.issuer().to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            nbf: now,
            sub: format!("system:serviceaccount:{namespace}:{}", service_account.name),
            kubernetes: Kubernetes {
                namespace,
                node,
                pod,
                secret,
                serviceaccount: service_account,
                warnafter: extend.then_some(expiration),
            },
            aud: audiences,
        };
        Ok(Issued {
            token: self.sign_token(&claims)?,
            audiences: claims.aud,
            expiration,
            id: claims.jti,
        })
    }

    fn sign_token(&self, claims: &Claims) -> Result<String, TokenError> {
        let signer = self.signer.as_ref().ok_or(TokenError::NoSigner)?;
        let public = signer.public();
        let header = format!(
            "{{\"alg\":\"{}\",\"kid\":\"{}\"}}",
            public.algorithm.as_str(),
            public.id
        );
        let payload = serde_json::to_vec(claims).map_err(|_| TokenError::Signing)?;
        let mut token = URL_SAFE_NO_PAD.encode(header);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(payload, &mut token);
        let signature = signer.sign(token.as_bytes()).ok_or(TokenError::Signing)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    /// Whether the token says that one of our issuers made it; cheap, believes nothing.
    pub fn looks_like_ours(&self, token: &str) -> bool {
        parts(token)
            .and_then(|(_, payload, _)| payload_of::<Issuer>(payload))
            .is_some_and(|claims| self.options.issuers.contains(&claims.iss))
    }

    /// Checks signature, issuer, time and audience. What it is bound to is `bound_objects_exist`'s matter.
    fn check(
        &self,
        token: &str,
        wanted: &[String],
        now: i64,
    ) -> Result<(Claims, Vec<String>), Refusal> {
        let (message, payload, signature) = parts(token).ok_or(Refusal::NotOurs)?;
        let header = message.split('.').next().unwrap_or_default();
        let header: Header = payload_of(header).ok_or(Refusal::NotOurs)?;
        let claims: Claims = payload_of(payload).ok_or(Refusal::NotOurs)?;
        if !self.options.issuers.contains(&claims.iss) {
            return Err(Refusal::NotOurs);
        }
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| Refusal::NotOurs)?;
        let verified = self
            .keys
            .iter()
            .filter(|key| key.algorithm.as_str() == header.alg)
            .filter(|key| header.kid.is_empty() || header.kid == key.id)
            .any(|key| key.verify(message.as_bytes(), &signature));
        if !verified {
            return Err(Refusal::NotOurs);
        }
        if now > claims.exp + LEEWAY {
            return Err(Refusal::Expired);
        }
        if now + LEEWAY < claims.nbf {
            return Err(Refusal::NotYet);
        }
        let audiences: Vec<String> = claims
            .aud
            .iter()
            .filter(|audience| wanted.contains(audience))
            .cloned()
            .collect();
        if audiences.is_empty() {
            return Err(Refusal::Audience {
                got: claims.aud,
                want: wanted.to_vec(),
            });
        }
        Ok((claims, audiences))
    }

    /// Believes or refuses `token` for one of the `wanted` audiences.
    pub async fn verify(
        &self,
        token: &str,
        wanted: &[String],
        backend: &dyn Backend,
        now: i64,
    ) -> Result<Verified, Refusal> {
        let (claims, audiences) = self.check(token, wanted, now)?;
        let bound = &claims.kubernetes;
        let account = &bound.serviceaccount;
        let subject = format!("system:serviceaccount:{}:{}", bound.namespace, account.name);
        if claims.sub != subject {
            return Err(Refusal::NotOurs);
        }
        exists(backend, "serviceaccounts", &bound.namespace, account, now).await?;
        if let Some(secret) = &bound.secret {
            exists(backend, "secrets", &bound.namespace, secret, now).await?;
        }
        if let Some(pod) = &bound.pod {
            exists(backend, "pods", &bound.namespace, pod, now).await?;
        } else if let Some(node) = &bound.node {
            exists(backend, "nodes", "", node, now).await?;
        }
        Ok(Verified {
            expires: claims.exp,
            user: user(claims),
            audiences,
        })
    }
}

fn user(claims: Claims) -> UserInfo {
    let Kubernetes {
        namespace,
        node,
        pod,
        secret: _,
        serviceaccount,
        warnafter: _,
    } = claims.kubernetes;
    let namespaced = format!("system:serviceaccounts:{namespace}");
    let mut user = UserInfo::new(claims.sub, ["system:serviceaccounts", namespaced.as_str()]);
    user.uid = serviceaccount.uid;
    let mut extra = |key: &str, value: String| {
        user.extra.insert(key.to_owned(), vec![value]);
    };
    if !claims.jti.is_empty() {
        extra(CREDENTIAL_ID, format!("JTI={}", claims.jti));
    }
    if let Some(pod) = pod {
        extra("authentication.kubernetes.io/pod-name", pod.name);
        extra("authentication.kubernetes.io/pod-uid", pod.uid);
    }
    if let Some(node) = node {
        extra("authentication.kubernetes.io/node-name", node.name);
        extra("authentication.kubernetes.io/node-uid", node.uid);
    }
    user
}

async fn exists(
    backend: &dyn Backend,
    plural: &str,
    namespace: &str,
    wanted: &Ref,
    now: i64,
) -> Result<(), Refusal> {
    let found: Option<Arc<Value>> = backend
        .find("", plural, namespace, &wanted.name)
        .await
        .map_err(|error| {
            tracing::warn!(%error, plural, "Cannot look up what a token is bound to");
            Refusal::Unavailable
        })?;
    let object = found.ok_or(Refusal::Invalidated)?;
    let metadata = &object["metadata"];
    let deleted = metadata["deletionTimestamp"]
        .as_str()
        .and_then(apimachinery::time::parse)
        .is_some_and(|time| time.unix_timestamp() + DELETION_GRACE < now);
    if deleted || metadata["uid"].as_str() != Some(&wanted.uid) {
        return Err(Refusal::Invalidated);
    }
    Ok(())
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

#[derive(Deserialize)]
struct Issuer {
    iss: String,
}

/// `header.payload`, `payload`, `signature`.
fn parts(token: &str) -> Option<(&str, &str, &str)> {
    let (message, signature) = token.rsplit_once('.')?;
    let (_, payload) = message.split_once('.')?;
    (!payload.contains('.')).then_some((message, payload, signature))
}

fn payload_of<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    serde_json::from_slice(&bytes).ok()
}
