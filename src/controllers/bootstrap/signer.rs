//! bootstrap-signer-controller: signs the kubeconfig in `kube-public/cluster-info` with every token that may.

use std::collections::BTreeMap;

use api::{
    r::{CONFIGMAPS, SECRETS},
    view::ObjectMeta,
};
use apimachinery::time::{Time, now};
use async_trait::async_trait;
use base64::Engine;
use client::{
    ClientError, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{NAMESPACE, Secret, tokens};
use crate::{Context, Controller, context::synced, writes::modify};

const MAP: &str = "cluster-info";
const PUBLIC: &str = "kube-public";
const KUBECONFIG: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

pub struct BootstrapSigner;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ConfigMap {
    metadata: ObjectMeta,
    data: BTreeMap<String, String>,
}

#[async_trait]
impl Controller for BootstrapSigner {
    fn name(&self) -> &'static str {
        "bootstrap-signer-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["bootstrapsigner"]
    }

    fn default_on(&self) -> bool {
        false
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let selectors = Selectors::fields(format!("metadata.name={MAP}"));
        let maps: Informer<ConfigMap> = informers.informer(&CONFIGMAPS, PUBLIC, selectors);
        let secrets: Informer<Secret> = informers.informer(&SECRETS, NAMESPACE, tokens());
        if !synced!(context, maps, secrets) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        maps.add_handler(move |_| keys.add(()));
        let keys = queue.clone();
        secrets.add_handler(move |_| keys.add(()));
        workqueue::run("bootstrap-signer", &queue, 1, &context.shutdown, |()| {
            let (context, maps, secrets) = (&context, &maps, &secrets);
            async move { reconcile(context, maps, secrets).await }
        })
        .await;
    }
}

async fn reconcile(
    context: &Context,
    maps: &Informer<ConfigMap>,
    secrets: &Informer<Secret>,
) -> Result<Requeue, ClientError> {
    let Some(map) = maps.get(&format!("{PUBLIC}/{MAP}")) else {
        return Ok(Requeue::No);
    };
    let now = now();
    let secrets = secrets.list();
    let tokens: Vec<_> = secrets
        .iter()
        .filter_map(|secret| secret.signing(now))
        .collect();
    if let Some(data) = plan(&map.data, &tokens) {
        modify(&context.client, &CONFIGMAPS, &map.metadata, |map| {
            map["data"] = json!(data);
        })
        .await?;
    }
    // A token that expires takes its signature with it.
    let next = secrets.iter().filter_map(|secret| secret.expires());
    let next = next.filter(|at: &Time| *at > now).min();
    Ok(next.map_or(Requeue::No, |at| {
        Requeue::After(std::time::Duration::try_from(at - now).unwrap_or_default())
    }))
}

/// The map's data with the signatures it should have, if it has others.
fn plan(
    data: &BTreeMap<String, String>,
    tokens: &[(String, String)],
) -> Option<BTreeMap<String, String>> {
    let content = data.get(KUBECONFIG)?;
    let mut wanted = data.clone();
    wanted.retain(|key, _| !key.starts_with(SIGNATURE));
    for (id, secret) in tokens {
        wanted.insert(format!("{SIGNATURE}{id}"), sign(content, id, secret));
    }
    (wanted != *data).then_some(wanted)
}

/// A detached JWS: header and signature, without the content between them (RFC 7515, appendix F).
fn sign(content: &str, id: &str, secret: &str) -> String {
    let base64 = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let header = base64.encode(format!("{{\"alg\":\"HS256\",\"kid\":\"{id}\"}}"));
    let signed = format!("{header}.{}", base64.encode(content));
    let key = format!("{id}.{secret}");
    let signature = base64.encode(hmac(key.as_bytes(), signed.as_bytes()));
    format!("{header}..{signature}")
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut padded = [0u8; BLOCK];
    if key.len() > BLOCK {
        padded[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let masked = |mask: u8| padded.map(|byte| byte ^ mask);
    let inner = Sha256::new()
        .chain_update(masked(0x36))
        .chain_update(message)
        .finalize();
    Sha256::new()
        .chain_update(masked(0x5c))
        .chain_update(inner)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_rfc() {
        // RFC 4231, test cases 2 and 6.
        let hex = |bytes: [u8; 32]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            hex(hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(hmac(
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First"
            )),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn every_signing_token_has_its_signature_and_no_other_is_left() {
        let mut data = BTreeMap::from([
            (KUBECONFIG.to_string(), "x".to_string()),
            (format!("{SIGNATURE}gone"), "y".to_string()),
        ]);
        let tokens = [("abcdef".to_string(), "0123456789abcdef".to_string())];
        data = plan(&data, &tokens).unwrap();
        assert_eq!(data.len(), 2);
        let signature = &data["jws-kubeconfig-abcdef"];
        assert!(signature.starts_with("eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9.."));
        assert_eq!(plan(&data, &tokens), None);
        assert_eq!(plan(&data, &[]).unwrap().len(), 1);
    }

    #[test]
    fn only_valid_tokens_that_may_sign_do() {
        let now = now();
        let secret = |name: &str, usage: &str, expiration: &str| {
            let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
            let secret: Secret = serde_json::from_value(json!({
                "metadata": {"name": name}, "type": "bootstrap.kubernetes.io/token",
                "data": {"token-id": base64("abcdef"), "token-secret": base64("s"), "expiration": base64(expiration),
                         "usage-bootstrap-signing": base64(usage)},
            }))
            .unwrap();
            secret.signing(now).is_some()
        };
        assert!(secret("bootstrap-token-abcdef", "true", ""));
        assert!(secret(
            "bootstrap-token-abcdef",
            "true",
            "2999-01-01T00:00:00Z"
        ));
        assert!(!secret(
            "bootstrap-token-abcdef",
            "true",
            "2020-01-01T00:00:00Z"
        ));
        assert!(!secret("bootstrap-token-abcdef", "false", ""));
        assert!(!secret("other", "true", ""));
    }
}
