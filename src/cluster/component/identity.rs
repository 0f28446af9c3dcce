//! Who calls a component, and whether he may: asked of the API server and remembered for a short while.

use std::sync::Arc;
use std::time::Duration;

use api::r::CONFIGMAPS;
use apimachinery::{Status, Value};
use client::delegation::{Caller, Delegation, Holds, bearer};
use client::{Client, Factory, Informer, Selectors};
use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::front_proxy::FrontProxies;
use super::tls::Authorities;

/// How long answers hold (`--authentication-token-webhook-cache-ttl`, `--authorization-webhook-cache-*-ttl`).
pub const HOLDS: Holds = Holds {
    tokens: Duration::from_secs(10),
    allowed: Duration::from_secs(10),
    denied: Duration::from_secs(10),
};
/// May do everything without being asked about (`AlwaysAllowGroups`).
const MASTERS: &str = "system:masters";
/// Where the API server tells who signs client certificates.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// Keeps `authorities`, if that is asked for, and `proxies` as the API server tells them, until `shutdown`. Without a
/// client it only waits.
pub async fn follow(
    client: Option<Client>,
    authorities: Option<Authorities>,
    proxies: FrontProxies,
    shutdown: CancellationToken,
) {
    let Some(client) = client else {
        return shutdown.cancelled().await;
    };
    let factory = Factory::new(client, shutdown.clone());
    let selected = Selectors::fields(format!("metadata.name={CONFIG_MAP}"));
    let maps: Informer<Value> = factory.informer(&CONFIGMAPS, NAMESPACE, selected);
    maps.add_handler(move |delta| {
        let Some(map) = &delta.new else { return };
        let data = &map["data"];
        let pem = data["client-ca-file"].as_str();
        let own = authorities.as_ref().zip(pem);
        let own = own.map_or(Ok(()), |(authorities, pem)| authorities.set(pem));
        if let Err(error) = own.and(proxies.set(data)) {
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

/// See the module.
pub struct Identity {
    authorities: Authorities,
    proxies: FrontProxies,
    delegation: Delegation,
    always_allowed: Vec<String>,
}

impl Identity {
    pub fn new(
        authorities: Authorities,
        proxies: FrontProxies,
        delegation: Delegation,
        always_allowed: Vec<String>,
    ) -> Self {
        Identity {
            authorities,
            proxies,
            delegation,
            always_allowed,
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
        if caller.is_in(&[MASTERS]) || self.is_always_allowed(path) {
            return Ok(());
        }
        let wish = json!({"nonResourceAttributes": {"verb": verb, "path": path}});
        if self.delegation.may(&caller, &wish).await {
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

    /// Who calls: whom a front proxy, then a certificate, then a token names. `None` if he shows something of which
    /// nothing tells who he is.
    async fn caller(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Option<Arc<Caller>> {
        let by_proxy = self.proxies.caller(chain, headers);
        let own = || {
            let leaf = chain.first()?;
            Caller::of_certificate(leaf).filter(|_| self.authorities.trust(chain))
        };
        if let Some(caller) = by_proxy.or_else(own) {
            return Some(Arc::new(caller));
        }
        let token = bearer(headers).filter(|_| self.delegation.knows_tokens());
        match token {
            Some(token) => self.delegation.of_token(token).await,
            None if chain.is_empty() => Some(Arc::new(Caller::anonymous())),
            None => None,
        }
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
}
