//! Service account tokens bound to pods, asked for by TokenRequest and renewed
//! when four fifths of their life are over (upstream's token manager).

use std::collections::HashMap;
use std::sync::Arc;

use client::options::WriteOptions;
use client::{Client, ClientError};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::clock;
use crate::k8s::{Pod, Time};
use crate::pod::back_off::SECOND;
use crate::pod::spec;
use crate::pod::view::Nanos;

/// A token's life when the pod does not say.
const DEFAULT_SECONDS: i64 = 3600;
/// Renewed after a day at the latest (upstream's `maxTTL`).
const MAX_AGE: Nanos = 24 * 3600 * SECOND;
/// Renewal is spread over so long (upstream's `maxJitter`).
const MAX_JITTER: Nanos = 10 * SECOND;

/// One token.
#[derive(Clone)]
pub struct Token {
    /// The JWT.
    pub text: String,
    /// When to ask for another.
    pub refresh_at: Nanos,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    pod_uid: String,
    audience: String,
    seconds: i64,
}

/// Tokens of the node's pods; clones share them. Bounded by the pods' volumes:
/// a pod's tokens are forgotten with it.
#[derive(Clone)]
pub struct Tokens {
    client: Client,
    known: Arc<Mutex<HashMap<Key, Token>>>,
}

impl Tokens {
    /// Asks with `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            known: Arc::default(),
        }
    }

    /// A token of the pod's service account that is good for a while.
    pub async fn get(
        &self,
        pod: &Pod,
        audience: &str,
        seconds: Option<i64>,
    ) -> Result<Token, ClientError> {
        let seconds = seconds.unwrap_or(DEFAULT_SECONDS);
        let (pod_uid, audience) = (spec::uid(pod).to_owned(), audience.to_owned());
        let key = Key {
            pod_uid,
            audience,
            seconds,
        };
        let now = clock::now();
        let known = self.known.lock().get(&key).cloned();
        if let Some(token) = known.clone().filter(|token| token.refresh_at > now) {
            return Ok(token);
        }
        match self.request(pod, &key, now).await {
            Ok(token) => {
                self.known.lock().insert(key, token.clone());
                Ok(token)
            }
            // The old one is good for a fifth of its life; ask again soon.
            Err(error) => match known {
                Some(token) if error.is_transient() => {
                    tracing::warn!(%error, pod = spec::describe(pod), "cannot renew a token, will be retried");
                    Ok(Token {
                        refresh_at: now + MAX_JITTER,
                        ..token
                    })
                }
                _ => Err(error),
            },
        }
    }

    /// Forgets the tokens of a pod.
    pub fn forget(&self, pod_uid: &str) {
        self.known.lock().retain(|key, _| key.pod_uid != pod_uid);
    }

    async fn request(&self, pod: &Pod, key: &Key, now: Nanos) -> Result<Token, ClientError> {
        let spec = spec::spec(pod);
        let account = spec
            .service_account_name
            .as_deref()
            .filter(|name| !name.is_empty());
        let audiences: Vec<_> = [&key.audience]
            .into_iter()
            .filter(|a| !a.is_empty())
            .collect();
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": key.seconds,
                "boundObjectRef": {
                    "kind": "Pod", "apiVersion": "v1",
                    "name": spec::name(pod), "uid": spec::uid(pod),
                },
            },
        });
        let answer: Value = self
            .client
            .create_subresource(
                &api::r::SERVICEACCOUNTS,
                spec::namespace(pod),
                account.unwrap_or("default"),
                "token",
                &request,
                &WriteOptions::default(),
            )
            .await?;
        let expires = answer["status"]["expirationTimestamp"].clone();
        let expires = serde_json::from_value::<Time>(expires)
            .ok()
            .map(|time| clock::nanos(&time));
        let expires = expires.unwrap_or(now + key.seconds * SECOND);
        let jitter = rand::random_range(0..MAX_JITTER);
        Ok(Token {
            text: answer["status"]["token"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            refresh_at: refresh_at(now, expires, jitter),
        })
    }
}

/// Four fifths of its life after `now`, a day at most, a little sooner at random.
fn refresh_at(now: Nanos, expires: Nanos, jitter: Nanos) -> Nanos {
    let life = (expires - now).max(0);
    let after = (life / 5 * 4).min(MAX_AGE);
    now + (after - jitter).max(after / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_after_four_fifths_or_a_day() {
        assert_eq!(refresh_at(0, 3600 * SECOND, 0), 2880 * SECOND);
        assert_eq!(refresh_at(0, 3600 * SECOND, 5 * SECOND), 2875 * SECOND);
        assert_eq!(refresh_at(0, 365 * 24 * 3600 * SECOND, 0), MAX_AGE);
        assert_eq!(refresh_at(0, 10 * SECOND, 9 * SECOND), 4 * SECOND);
    }
}
