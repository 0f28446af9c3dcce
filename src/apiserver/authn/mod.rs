//! Who asks: client certificates, service-account tokens, bootstrap tokens, and nobody (`system:anonymous`).
//!
//! As upstream's union: a certificate first, then a bearer token; credentials that nobody accepts are a 401, no
//! credentials at all are the anonymous user. Nothing here decides what the user may do.

pub mod bootstrap;
pub mod certificate;
pub mod impersonation;
pub mod keys;
pub mod peer;
pub mod token;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;

pub use peer::Peer;

use crate::backend::Backend;
use crate::front::tls::ClientCa;
use crate::request::UserInfo;
use token::{Refusal, Tokens, Verified};

/// A believed token is not looked at again for this long (upstream's token cache).
const TOKEN_CACHE_TIME: Duration = Duration::from_secs(10);

/// Believed tokens remembered. A user is about 600 bytes: 2.5 MB when full.
const TOKEN_CACHE_SIZE: usize = 4096;

/// Longest bearer token looked at (bytes).
const TOKEN_BYTES: usize = 64 * 1024;

/// The prefix of a WebSocket subprotocol that carries a bearer token, for browsers.
const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// The credentials were looked at and are not believed: 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

type TokenHash = [u8; 32];

/// All ways to prove who one is, in order.
pub struct Authenticators {
    clients: Option<Arc<ClientCa>>,
    tokens: Arc<Tokens>,
    backend: Arc<dyn Backend>,
    anonymous: Option<Arc<UserInfo>>,
    cache: Mutex<HashMap<TokenHash, Cached>>,
}

struct Cached {
    user: Arc<UserInfo>,
    until: Instant,
}

impl Authenticators {
    /// `anonymous`: requests without credentials are `system:anonymous`.
    pub fn new(
        clients: Option<Arc<ClientCa>>,
        tokens: Arc<Tokens>,
        backend: Arc<dyn Backend>,
        anonymous: bool,
    ) -> Self {
        Self {
            clients,
            tokens,
            backend,
            anonymous: anonymous.then(|| Arc::new(UserInfo::anonymous())),
            cache: Mutex::new(HashMap::new()),
        }
    }

    /// Finds out who sent these headers over this connection. Takes the credentials out of the headers, so that no
    /// proxied request passes them on.
    pub async fn authenticate(
        &self,
        peer: &Peer,
        headers: &mut HeaderMap,
    ) -> Result<Arc<UserInfo>, Refused> {
        let mut refused = false;
        if let Some(clients) = &self.clients {
            match peer.certificate_user(clients) {
                Ok(Some(user)) => {
                    headers.remove(AUTHORIZATION);
                    return Ok(user);
                }
                Ok(None) => {}
                Err(Refused) => refused = true,
            }
        }
        if let Some(token) = take_token(headers) {
            return self.bearer(&token).await.ok_or(Refused);
        }
        match &self.anonymous {
            Some(anonymous) if !refused => Ok(anonymous.clone()),
            _ => Err(Refused),
        }
    }

    async fn bearer(&self, token: &str) -> Option<Arc<UserInfo>> {
        let hash = hash(token);
        if let Some(user) = self.cached(&hash) {
            return Some(user);
        }
        let verified = self.review(token, self.tokens.api_audiences()).await;
        match verified {
            Ok(verified) => {
                let user = Arc::new(verified.user);
                self.remember(hash, user.clone());
                Some(user)
            }
            Err(refusal) => {
                tracing::debug!(%refusal, "Refused a bearer token");
                None
            }
        }
    }

    /// Looks at a token for one of `audiences`, past the cache: what a TokenReview asks.
    pub async fn review(&self, token: &str, audiences: &[String]) -> Result<Verified, Refusal> {
        let now = apimachinery::time::now().unix_timestamp();
        let backend = self.backend.as_ref();
        if bootstrap::looks_like(token) {
            let user = bootstrap::verify(token, backend, now).await?;
            let wanted = audiences
                .iter()
                .filter(|audience| self.tokens.api_audiences().contains(audience));
            return Ok(Verified {
                user,
                audiences: wanted.cloned().collect(),
                expires: i64::MAX,
            });
        }
        self.tokens.verify(token, audiences, backend, now).await
    }

    fn cached(&self, hash: &TokenHash) -> Option<Arc<UserInfo>> {
        let cache = self.cache.lock();
        let entry = cache.get(hash)?;
        (entry.until > Instant::now()).then(|| entry.user.clone())
    }

    fn remember(&self, hash: TokenHash, user: Arc<UserInfo>) {
        let now = Instant::now();
        let until = now + TOKEN_CACHE_TIME;
        let mut cache = self.cache.lock();
        if cache.len() >= TOKEN_CACHE_SIZE {
            cache.retain(|_, entry| entry.until > now);
            if cache.len() >= TOKEN_CACHE_SIZE {
                cache.clear();
            }
        }
        cache.insert(hash, Cached { user, until });
    }
}

fn hash(token: &str) -> TokenHash {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    hash
}

/// The bearer token of a request, taken out of its headers.
fn take_token(headers: &mut HeaderMap) -> Option<String> {
    if let Some(value) = headers.remove(AUTHORIZATION) {
        let text = value.to_str().ok()?;
        let (scheme, token) = text.trim().split_once(' ')?;
        let token = token.trim();
        let usable = scheme.eq_ignore_ascii_case("bearer")
            && !token.is_empty()
            && token.len() <= TOKEN_BYTES;
        return usable.then(|| token.split(' ').next().unwrap_or(token).to_owned());
    }
    take_websocket_token(headers)
}

fn take_websocket_token(headers: &mut HeaderMap) -> Option<String> {
    let offered = headers.get(SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    if !offered.contains(WEBSOCKET_TOKEN) {
        return None;
    }
    let (tokens, rest): (Vec<&str>, Vec<&str>) = offered
        .split(',')
        .map(str::trim)
        .partition(|protocol| protocol.starts_with(WEBSOCKET_TOKEN));
    let token = URL_SAFE_NO_PAD
        .decode(&tokens.first()?[WEBSOCKET_TOKEN.len()..])
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())?;
    let rest = HeaderValue::from_str(&rest.join(", ")).ok()?;
    headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_taken_out_of_the_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        assert_eq!(take_token(&mut headers).as_deref(), Some("abc"));
        assert!(headers.is_empty());
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic abc"));
        assert_eq!(take_token(&mut headers), None);
    }

    #[test]
    fn browsers_send_the_token_as_a_subprotocol() {
        let mut headers = HeaderMap::new();
        let offered = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj";
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offered));
        assert_eq!(take_token(&mut headers).as_deref(), Some("abc"));
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
    }
}
