//! Who calls a component, and whether he may, asked of the API server and remembered for a while: what kubelets,
//! schedulers and controller managers delegate (apiserver/pkg/authentication/authenticatorfactory).
//!
//! A `Caller` comes from a client certificate, which whoever made the connection has verified, or from a TokenReview;
//! a SubjectAccessReview says what he may.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::r::{SUBJECTACCESSREVIEWS, TOKENREVIEWS};
use apimachinery::Value;
use http::{HeaderMap, header};
use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Client, WriteOptions};

/// Answers of a kind that are kept; beyond that all are forgotten.
const MAX_KEPT: usize = 1024;
/// Everyone who is not anonymous.
pub const AUTHENTICATED: &str = "system:authenticated";
/// KEP-5607: the subject attribute that carries a user's uid.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Caller {
    /// Who says nothing about himself.
    pub fn anonymous() -> Self {
        Caller {
            name: "system:anonymous".into(),
            groups: vec!["system:unauthenticated".into()],
            ..Caller::default()
        }
    }

    /// Whom a certificate names: its last CN, as Go's pkix takes it, and every O; `None` without a CN
    /// (CommonNameUserConversion).
    pub fn of_certificate(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().last()?.as_str().ok()?;
        if name.is_empty() {
            return None;
        }
        let groups = subject.iter_organization();
        let groups = groups.filter_map(|group| group.as_str().ok());
        let mut attributes = subject.iter_attributes();
        let uid = attributes.find(|one| one.attr_type().to_id_string() == UID_OID);
        let uid = uid.and_then(|one| one.as_str().ok());
        Some(Caller {
            name: name.to_owned(),
            uid: uid.unwrap_or_default().to_owned(),
            groups: groups.chain([AUTHENTICATED]).map(str::to_owned).collect(),
            extra: BTreeMap::new(),
        })
    }

    /// Whom a TokenReview's status names.
    fn of_review(status: &Value) -> Option<Self> {
        if status["authenticated"] != true {
            return None;
        }
        let user = &status["user"];
        let texts = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let extra = user["extra"].as_object().into_iter().flatten();
        Some(Caller {
            name: user["username"].as_str()?.to_owned(),
            uid: user["uid"].as_str().unwrap_or_default().to_owned(),
            groups: texts(&user["groups"]),
            extra: extra.map(|(key, all)| (key.clone(), texts(all))).collect(),
        })
    }

    /// Whether he is in one of the groups.
    pub fn is_in(&self, groups: &[&str]) -> bool {
        self.groups.iter().any(|own| groups.contains(&own.as_str()))
    }
}

/// The bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// How long answers hold.
#[derive(Clone, Copy, Debug)]
pub struct Holds {
    pub tokens: Duration,
    pub allowed: Duration,
    pub denied: Duration,
}

/// Answers with how long they hold yet.
type Kept<K, V> = Mutex<HashMap<K, (Instant, V)>>;

/// See the module.
pub struct Delegation {
    authentication: Option<Client>,
    authorization: Option<Client>,
    holds: Holds,
    /// By the token's hash.
    tokens: Kept<[u8; 32], Option<Arc<Caller>>>,
    /// By caller and what he wants, as text.
    verdicts: Kept<(Arc<Caller>, String), bool>,
}

impl Delegation {
    /// Asks about tokens and rights with these clients. Without the one nobody is known by a token, without the other
    /// nobody may anything.
    pub fn new(
        authentication: Option<Client>,
        authorization: Option<Client>,
        holds: Holds,
    ) -> Self {
        Delegation {
            authentication,
            authorization,
            holds,
            tokens: Mutex::default(),
            verdicts: Mutex::default(),
        }
    }

    /// Whether tokens count at all.
    pub fn knows_tokens(&self) -> bool {
        self.authentication.is_some()
    }

    /// Whose token it is; `None` if nobody's, or if that cannot be told.
    pub async fn of_token(&self, token: &str) -> Option<Arc<Caller>> {
        let client = self.authentication.as_ref()?;
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = remembered(&self.tokens, &key) {
            return known;
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let options = WriteOptions::default();
        let answer = client.create::<_, Value>(&TOKENREVIEWS, "", &review, &options);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "Cannot ask whose token it is");
                return None;
            }
        };
        let caller = Caller::of_review(&answer["status"]).map(Arc::new);
        remember(&self.tokens, key, caller.clone(), self.holds.tokens);
        caller
    }

    /// Whether a caller may do something: `attributes` is what of a SubjectAccessReview's spec says what,
    /// `resourceAttributes` or `nonResourceAttributes`.
    pub async fn may(&self, caller: &Arc<Caller>, attributes: &Value) -> bool {
        let Some(client) = &self.authorization else {
            return false;
        };
        let key = (caller.clone(), attributes.to_string());
        if let Some(known) = remembered(&self.verdicts, &key) {
            return known;
        }
        let mut spec = attributes.clone();
        let Caller {
            name,
            uid,
            groups,
            extra,
        } = &**caller;
        spec["user"] = json!(name);
        spec["groups"] = json!(groups);
        if !uid.is_empty() {
            spec["uid"] = json!(uid);
        }
        if !extra.is_empty() {
            spec["extra"] = json!(extra);
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
        });
        let options = WriteOptions::default();
        let answer = client.create::<_, Value>(&SUBJECTACCESSREVIEWS, "", &review, &options);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "Cannot ask whether a caller is allowed");
                return false;
            }
        };
        let allowed = answer["status"]["allowed"] == true;
        let holds = match allowed {
            true => self.holds.allowed,
            false => self.holds.denied,
        };
        remember(&self.verdicts, key, allowed, holds);
        allowed
    }
}

fn remembered<K: Hash + Eq, V: Clone>(kept: &Kept<K, V>, key: &K) -> Option<V> {
    let kept = kept.lock();
    let (until, value) = kept.get(key)?;
    (*until > Instant::now()).then(|| value.clone())
}

fn remember<K: Hash + Eq, V>(kept: &Kept<K, V>, key: K, value: V, holds: Duration) {
    let mut kept = kept.lock();
    if kept.len() >= MAX_KEPT {
        kept.clear();
    }
    kept.insert(key, (Instant::now() + holds, value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Server;
    use http::HeaderValue;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    #[test]
    fn a_certificate_names_its_last_common_name_and_all_its_organizations() {
        let caller = |names: &[(DnType, &str)]| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            for (kind, name) in names {
                params.distinguished_name.push(kind.clone(), *name);
            }
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("signed");
            Caller::of_certificate(certificate.der())
        };
        let group = (DnType::OrganizationName, "system:nodes");
        let node = caller(&[(DnType::CommonName, "system:node:n"), group.clone()]);
        let node = node.expect("a caller");
        assert_eq!(node.name, "system:node:n");
        assert_eq!(node.groups, ["system:nodes", AUTHENTICATED]);
        assert!(node.is_in(&["x", "system:nodes"]) && !node.is_in(&["x"]));
        assert_eq!(caller(&[group]), None);
    }

    #[test]
    fn a_token_is_what_follows_bearer() {
        let token = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            bearer(&HeaderMap::from_iter([(header::AUTHORIZATION, value)])).map(str::to_owned)
        };
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        for none in ["Bearer", "Bearer  ", "Basic abc"] {
            assert_eq!(token(none), None, "{none}");
        }
    }

    /// The server keeps reviews as they are sent, so it answers what the test puts into them.
    #[tokio::test]
    async fn an_answer_is_asked_for_once_while_it_holds() {
        let server = Server::default();
        let holds = |denied| Holds {
            tokens: Duration::from_secs(60),
            allowed: Duration::from_secs(60),
            denied,
        };
        let asked = |server: &Server| server.requests_of("POST", "reviews").len();
        let caller = Arc::new(Caller::anonymous());
        let wish = json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}});
        for (denied, expected) in [(Duration::from_secs(60), 2), (Duration::ZERO, 3)] {
            server.forget_requests();
            let client = server.client();
            let delegation = Delegation::new(Some(client.clone()), Some(client), holds(denied));
            for _ in 0..2 {
                assert_eq!(delegation.of_token("t").await, None);
                assert!(!delegation.may(&caller, &wish).await);
            }
            assert_eq!(asked(&server), expected);
        }
        let review = server
            .requests_of("POST", "subjectaccessreviews")
            .remove(0)
            .body;
        assert_eq!(
            review["spec"],
            json!({
                "user": "system:anonymous", "groups": ["system:unauthenticated"],
                "nonResourceAttributes": {"verb": "get", "path": "/metrics"},
            })
        );
        let nobody = Delegation::new(None, None, holds(Duration::ZERO));
        assert!(!nobody.knows_tokens() && !nobody.may(&caller, &wish).await);
    }

    #[test]
    fn a_review_names_whom_it_authenticated() {
        let user = json!({"username": "u", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}});
        let caller = Caller::of_review(&json!({"authenticated": true, "user": user}));
        let caller = caller.expect("a caller");
        assert_eq!((caller.name.as_str(), caller.uid.as_str()), ("u", "1"));
        assert_eq!(caller.extra["k"], ["v"]);
        assert_eq!(
            Caller::of_review(&json!({"authenticated": false, "user": {"username": "u"}})),
            None
        );
    }
}
