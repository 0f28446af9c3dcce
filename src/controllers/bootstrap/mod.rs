//! Bootstrap tokens: signing `kube-public/cluster-info` with each, so that a joining node can trust it, and removing
//! expired ones (KEP for kubeadm join; `bootstrap-token-<id>` Secrets in kube-system).

pub mod cleaner;
pub mod signer;

use std::collections::BTreeMap;

use api::view::ObjectMeta;
use apimachinery::time::{Time, parse};
use base64::Engine;
use client::Selectors;
use serde::Deserialize;

const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";

/// The Secrets that are tokens.
fn tokens() -> Selectors {
    Selectors::fields(format!("type={SECRET_TYPE}"))
}

/// core/v1 Secret.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Secret {
    metadata: ObjectMeta,
    #[serde(rename = "type")]
    kind: String,
    /// Values in base64.
    data: BTreeMap<String, String>,
}

impl Secret {
    fn value(&self, key: &str) -> Option<String> {
        let text = self.data.get(key)?;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()?;
        String::from_utf8(bytes).ok()
    }

    /// When the token expires; none is never. What cannot be read has expired.
    fn expires(&self) -> Option<Time> {
        let text = self.value("expiration").filter(|text| !text.is_empty())?;
        Some(parse(&text).unwrap_or(Time::UNIX_EPOCH))
    }

    /// The token's id and secret, if it is a valid one that may sign.
    fn signing(&self, now: Time) -> Option<(String, String)> {
        let id = self.value("token-id")?;
        let secret = self.value("token-secret")?;
        let named = self.metadata.name.strip_prefix(PREFIX) == Some(id.as_str());
        let usable = self.value("usage-bootstrap-signing").as_deref() == Some("true");
        let alive = self.expires().is_none_or(|expires| expires > now);
        let fits = self.kind == SECRET_TYPE
            && !self.metadata.is_deleting()
            && named
            && usable
            && alive
            && !secret.is_empty();
        fits.then_some((id, secret))
    }
}
