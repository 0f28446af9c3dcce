//! legacy-serviceaccount-token-cleaner-controller: Secrets with tokens that nobody has used for a year, made by
//! clusters of old, are marked invalid, and after another year deleted (KEP-2799).
//!
//! Nothing of it needs a cache: it looks once a day, and only where use has been tracked long enough.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::{
    r::{CONFIGMAPS, PODS, SECRETS, SERVICEACCOUNTS},
    view::ObjectMeta,
};
use apimachinery::{
    Value,
    meta::join_key,
    time::{Time, now, parse},
};
use async_trait::async_trait;
use client::{ClientError, DeleteOptions, ListOptions, Patch, WriteOptions};
use serde::Deserialize;
use serde_json::json;

use crate::{Context, Controller, objects::Metadata};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(24 * 3600);
/// How long a token must be unused, and then invalid (`--legacy-service-account-token-clean-up-period`).
const CLEAN_UP: Duration = Duration::from_secs(365 * 24 * 3600);
/// Tried again so soon when the server does not answer.
const RETRY: Duration = Duration::from_secs(60);
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

pub struct LegacyTokens;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tracking {
    data: BTreeMap<String, String>,
}

/// A ServiceAccount with the Secrets that were made for it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Account {
    metadata: ObjectMeta,
    secrets: Vec<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

/// A pod with the Secrets it mounts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Mounting {
    metadata: ObjectMeta,
    spec: MountingSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MountingSpec {
    volumes: Vec<MountedVolume>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MountedVolume {
    secret: Option<MountedSecret>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MountedSecret {
    secret_name: String,
}

/// What becomes of a Secret.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Invalidate,
    Delete,
}

#[async_trait]
impl Controller for LegacyTokens {
    fn name(&self) -> &'static str {
        "legacy-serviceaccount-token-cleaner-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["legacy-service-account-token-cleaner"]
    }

    async fn run(&self, context: Context) {
        loop {
            let pause = match clean(&context).await {
                Ok(()) => PERIOD,
                Err(error) => {
                    tracing::warn!(%error, "cannot clean up legacy tokens, will be retried");
                    RETRY
                }
            };
            tokio::select! {
                () = context.shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// A day, as the labels have it.
fn day(text: &str) -> Option<Time> {
    parse(&format!("{text}T00:00:00Z"))
}

fn today(now: Time) -> String {
    apimachinery::time::format(now)[..10].to_string()
}

async fn clean(context: &Context) -> Result<(), ClientError> {
    let client = &context.client;
    let now = now();
    let tracking = match client
        .get::<Tracking>(&CONFIGMAPS, "kube-system", TRACKING)
        .await
    {
        Ok(tracking) => tracking,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let since = tracking.data.get("since").and_then(|since| day(since));
    if since.is_none_or(|since| since + CLEAN_UP > now) {
        return Ok(());
    }
    let options = ListOptions::default();
    let accounts = client
        .list_all::<Account>(&SERVICEACCOUNTS, "", &options)
        .await?;
    let made: BTreeSet<String> = accounts
        .items
        .iter()
        .flat_map(|account| {
            account
                .secrets
                .iter()
                .map(|one| join_key(&account.metadata.namespace, &one.name))
        })
        .collect();
    if made.is_empty() {
        return Ok(());
    }
    let pods = client.list_all::<Mounting>(&PODS, "", &options).await?;
    let mounted: BTreeSet<String> = pods.items.iter().flat_map(mounts).collect();
    let tokens = ListOptions {
        field_selector: "type=kubernetes.io/service-account-token".into(),
        ..ListOptions::default()
    };
    for secret in client
        .list_all::<Metadata>(&SECRETS, "", &tokens)
        .await?
        .items
    {
        let key = secret.metadata.key();
        if made.contains(&key) && !mounted.contains(&key) {
            apply(context, &secret.metadata, now).await?;
        }
    }
    Ok(())
}

fn mounts(pod: &Mounting) -> impl Iterator<Item = String> {
    let secrets = pod
        .spec
        .volumes
        .iter()
        .filter_map(|volume| volume.secret.as_ref());
    secrets.map(|secret| join_key(&pod.metadata.namespace, &secret.secret_name))
}

/// What becomes of a token that no pod mounts. A label that cannot be read keeps it.
fn plan(secret: &ObjectMeta, now: Time) -> Option<Action> {
    let used = match secret.labels.get(LAST_USED) {
        Some(label) => day(label)?,
        None => secret.creation_timestamp.as_deref().and_then(parse)?,
    };
    if used + CLEAN_UP > now {
        return None;
    }
    let Some(invalid) = secret.labels.get(INVALID_SINCE) else {
        return Some(Action::Invalidate);
    };
    (day(invalid)? + CLEAN_UP <= now).then_some(Action::Delete)
}

async fn apply(context: &Context, secret: &ObjectMeta, now: Time) -> Result<(), ClientError> {
    let (client, namespace, name) = (&context.client, &secret.namespace, &secret.name);
    let done = match plan(secret, now) {
        None => return Ok(()),
        Some(Action::Invalidate) => {
            // As of this version: it may be used at this moment.
            let patch = Patch::Merge(json!({"metadata": {
                "uid": secret.uid, "resourceVersion": secret.resource_version,
                "labels": {INVALID_SINCE: today(now)},
            }}));
            let options = WriteOptions::default();
            client
                .patch::<Value>(&SECRETS, namespace, name, "", &patch, &options)
                .await
        }
        Some(Action::Delete) => {
            let mut options = DeleteOptions::uid(&secret.uid);
            options.preconditions.resource_version = Some(secret.resource_version.clone());
            client.delete(&SECRETS, namespace, name, &options).await
        }
    };
    match done {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{seconds, start};
    use client::fake::Server;

    #[test]
    fn a_token_is_invalid_after_a_year_and_gone_after_two() {
        let now = parse("2026-06-01T12:00:00Z").unwrap();
        for (labels, expected) in [
            (json!({}), Some(Action::Invalidate)),
            (json!({LAST_USED: "2026-05-01"}), None),
            (json!({LAST_USED: "2025-05-01"}), Some(Action::Invalidate)),
            (json!({LAST_USED: "?"}), None),
            (
                json!({LAST_USED: "2024-05-01", INVALID_SINCE: "2025-07-01"}),
                None,
            ),
            (
                json!({LAST_USED: "2024-05-01", INVALID_SINCE: "2025-05-01"}),
                Some(Action::Delete),
            ),
            (json!({LAST_USED: "2024-05-01", INVALID_SINCE: "?"}), None),
            // Used again since.
            (
                json!({LAST_USED: "2026-05-01", INVALID_SINCE: "2025-05-01"}),
                None,
            ),
        ] {
            let meta =
                json!({"name": "s", "creationTimestamp": "2020-01-01T00:00:00Z", "labels": labels});
            assert_eq!(
                plan(&serde_json::from_value(meta).unwrap(), now),
                expected,
                "{labels}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_tokens_made_for_an_account_and_mounted_nowhere_are_touched() {
        let server = Server::default();
        for name in ["unused", "mounted", "own"] {
            server.put(&SECRETS, json!({"metadata": {"name": name, "namespace": "n", "creationTimestamp": "2020-01-01T00:00:00Z"},
                "type": "kubernetes.io/service-account-token"}));
        }
        server.put(&SERVICEACCOUNTS, json!({"metadata": {"name": "a", "namespace": "n"}, "secrets": [{"name": "unused"}, {"name": "mounted"}]}));
        server.put(&PODS, json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"volumes": [{"secret": {"secretName": "mounted"}}]}}));
        let tracked = |since: &str| {
            server.put(&CONFIGMAPS, json!({"metadata": {"name": TRACKING, "namespace": "kube-system"}, "data": {"since": since}}));
        };
        let marked = || -> Vec<bool> {
            let marked = |name: &str| {
                server.get(&SECRETS, &format!("n/{name}")).unwrap()["metadata"]["labels"]
                    [INVALID_SINCE]
                    .is_string()
            };
            ["unused", "mounted", "own"].map(marked).into()
        };
        tracked(&today(now()));
        let _guard = start(&server, &["legacy-service-account-token-cleaner"]);
        seconds(10).await;
        assert_eq!(marked(), [false, false, false]);
        tracked("2020-01-01");
        seconds(24 * 3600).await;
        assert_eq!(marked(), [true, false, false]);
    }
}
