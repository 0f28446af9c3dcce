//! serviceaccount-token-controller: fills Secrets of type `kubernetes.io/service-account-token` with a token of their
//! ServiceAccount, and removes them with it.
//!
//! The token is asked of the API server, bound to the Secret: it ends when the Secret does. Upstream signs one itself
//! that names no end; this one ends after 136 years, the longest that may be asked for.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    r::{SECRETS, SERVICEACCOUNTS},
    view::ObjectMeta,
};
use apimachinery::{Value, meta::join_key};
use async_trait::async_trait;
use base64::Engine;
use client::{
    ClientError, DeleteOptions, Informer, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde::Deserialize;
use serde_json::json;

use crate::{Context, Controller, context::synced, objects::Metadata, writes::modify};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
/// Seconds: the most a token may be asked for.
const LIFE: u64 = 1 << 32;
/// Index of Secrets by the ServiceAccount they are of.
const BY_ACCOUNT: &str = "account";
/// Secrets looked at at a time (`--concurrent-serviceaccount-token-syncs`).
const WORKERS: usize = 5;

pub struct TokenSecrets;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Secret {
    metadata: ObjectMeta,
    /// Values in base64.
    data: BTreeMap<String, String>,
}

impl Secret {
    fn account(&self) -> Option<String> {
        let name = self.metadata.annotations.get(NAME)?;
        Some(join_key(&self.metadata.namespace, name))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Its account is gone.
    Delete,
    /// Put in what is missing; a token too, or the one there is is good.
    Fill { token: bool },
}

#[async_trait]
impl Controller for TokenSecrets {
    fn name(&self) -> &'static str {
        "serviceaccount-token-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["serviceaccount-token"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let secrets: Informer<Secret> =
            informers.informer(&SECRETS, "", Selectors::fields(format!("type={TYPE}")));
        let accounts: Informer<Metadata> =
            informers.informer(&SERVICEACCOUNTS, "", Selectors::default());
        secrets.add_index(BY_ACCOUNT, |secret| secret.account().into_iter().collect());
        if !synced!(context, secrets, accounts) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        secrets.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        let (keys, all) = (queue.clone(), secrets.clone());
        accounts.add_handler(move |change| {
            if change.is_added() || change.is_deleted() {
                for secret in all.by_index(BY_ACCOUNT, &change.key) {
                    keys.add(secret.metadata.key());
                }
            }
        });
        let name = "serviceaccount-token";
        workqueue::run(name, &queue, WORKERS, &context.shutdown, |key| {
            let (context, secrets) = (&context, &secrets);
            async move { reconcile(context, secrets.get(&key)).await }
        })
        .await;
    }
}

async fn reconcile(context: &Context, secret: Option<Arc<Secret>>) -> Result<Requeue, ClientError> {
    let Some(secret) = secret.filter(|secret| !secret.metadata.is_deleting()) else {
        return Ok(Requeue::No);
    };
    let meta = &secret.metadata;
    let Some(name) = meta.annotations.get(NAME) else {
        return Ok(Requeue::No);
    };
    // Asked of the server itself: a Secret is not deleted because a cache is behind.
    let found = context
        .client
        .get::<Metadata>(&SERVICEACCOUNTS, &meta.namespace, name);
    let account = match found.await {
        Ok(account) => Some(account.metadata),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let root_ca = context.config.root_ca.as_deref();
    match (plan(&secret, account.as_ref(), root_ca), account) {
        (Some(Action::Delete), _) => {
            let mut options = DeleteOptions::uid(&meta.uid);
            options.preconditions.resource_version = Some(meta.resource_version.clone());
            let deleted = context
                .client
                .delete(&SECRETS, &meta.namespace, &meta.name, &options);
            match deleted.await {
                Err(error) if !error.is_not_found() => Err(error),
                _ => Ok(Requeue::No),
            }
        }
        (Some(Action::Fill { token }), Some(account)) => {
            let token = if token {
                Some(ask(context, &secret, &account).await?)
            } else {
                None
            };
            fill(context, &secret, &account, token).await?;
            Ok(Requeue::No)
        }
        _ => Ok(Requeue::No),
    }
}

/// What a Secret needs, given its account.
fn plan(secret: &Secret, account: Option<&ObjectMeta>, root_ca: Option<&str>) -> Option<Action> {
    let uid = secret.metadata.annotations.get(UID);
    let Some(account) = account.filter(|account| uid.is_none_or(|uid| *uid == account.uid)) else {
        return Some(Action::Delete);
    };
    let has = |key: &str| secret.data.get(key).is_some_and(|value| !value.is_empty());
    let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let token = !has("token");
    let complete = !token
        && uid == Some(&account.uid)
        && has("namespace")
        && root_ca.is_none_or(|ca| secret.data.get("ca.crt") == Some(&encoded(ca)));
    (!complete).then_some(Action::Fill { token })
}

/// A token bound to the Secret.
async fn ask(
    context: &Context,
    secret: &Secret,
    account: &ObjectMeta,
) -> Result<String, ClientError> {
    let meta = &secret.metadata;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "audiences": [], "expirationSeconds": LIFE,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": meta.name, "uid": meta.uid},
        },
    });
    let options = WriteOptions::default();
    let (namespace, name) = (&account.namespace, &account.name);
    let answer: Value = context
        .client
        .create_subresource(
            &SERVICEACCOUNTS,
            namespace,
            name,
            "token",
            &request,
            &options,
        )
        .await?;
    let token = answer["status"]["token"].as_str();
    token
        .map(ToString::to_string)
        .ok_or_else(|| ClientError::Request("the answer has no token".into()))
}

async fn fill(
    context: &Context,
    secret: &Secret,
    account: &ObjectMeta,
    token: Option<String>,
) -> Result<(), ClientError> {
    let encoded = |text: &str| json!(base64::engine::general_purpose::STANDARD.encode(text));
    modify(&context.client, &SECRETS, &secret.metadata, |object| {
        apimachinery::meta::set_annotation(object, UID, &account.uid);
        if let Some(token) = &token {
            object["data"]["token"] = encoded(token);
        }
        object["data"]["namespace"] = encoded(&account.namespace);
        if let Some(ca) = &context.config.root_ca {
            object["data"]["ca.crt"] = encoded(ca);
        }
    })
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(uid: &str, keys: &[(&str, &str)]) -> Secret {
        let mut secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "n", "annotations": {NAME: "a"}},
        }))
        .unwrap();
        if !uid.is_empty() {
            secret.metadata.annotations.insert(UID.into(), uid.into());
        }
        for (key, value) in keys {
            let value = base64::engine::general_purpose::STANDARD.encode(value);
            secret.data.insert((*key).to_string(), value);
        }
        secret
    }

    #[test]
    fn a_secret_is_filled_kept_up_to_date_and_goes_with_its_account() {
        let account = ObjectMeta {
            uid: "u".into(),
            ..ObjectMeta::default()
        };
        let full = [("token", "t"), ("namespace", "n"), ("ca.crt", "CA")];
        let planned =
            |secret: &Secret, account: Option<&ObjectMeta>| plan(secret, account, Some("CA"));
        assert_eq!(
            planned(&secret("", &[]), Some(&account)),
            Some(Action::Fill { token: true })
        );
        assert_eq!(planned(&secret("u", &full), Some(&account)), None);
        assert_eq!(
            planned(&secret("", &full), Some(&account)),
            Some(Action::Fill { token: false })
        );
        let old_ca = [("token", "t"), ("namespace", "n"), ("ca.crt", "OLD")];
        assert_eq!(
            planned(&secret("u", &old_ca), Some(&account)),
            Some(Action::Fill { token: false })
        );
        assert_eq!(planned(&secret("u", &full), None), Some(Action::Delete));
        assert_eq!(
            planned(&secret("other", &full), Some(&account)),
            Some(Action::Delete)
        );
    }
}
