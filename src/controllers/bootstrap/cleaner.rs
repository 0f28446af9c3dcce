//! token-cleaner-controller: deletes bootstrap tokens that have expired.

use std::{sync::Arc, time::Duration};

use api::r::SECRETS;
use apimachinery::time::now;
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer,
    workqueue::{self, Queue, Requeue},
};

use super::{NAMESPACE, Secret, tokens};
use crate::{Context, Controller, context::synced};

pub struct TokenCleaner;

#[async_trait]
impl Controller for TokenCleaner {
    fn name(&self) -> &'static str {
        "token-cleaner-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["tokencleaner"]
    }

    fn default_on(&self) -> bool {
        false
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let secrets: Informer<Secret> = informers.informer(&SECRETS, NAMESPACE, tokens());
        if !synced!(context, secrets) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        secrets.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run("token-cleaner", &queue, 1, &context.shutdown, |key| {
            let (context, secrets) = (&context, &secrets);
            async move { reconcile(context, secrets.get(&key)).await }
        })
        .await;
    }
}

async fn reconcile(context: &Context, secret: Option<Arc<Secret>>) -> Result<Requeue, ClientError> {
    let Some(secret) = secret else {
        return Ok(Requeue::No);
    };
    let Some(expires) = secret.expires() else {
        return Ok(Requeue::No);
    };
    let left = Duration::try_from(expires - now()).unwrap_or_default();
    if !left.is_zero() {
        return Ok(Requeue::After(left));
    }
    let meta = &secret.metadata;
    let options = DeleteOptions::uid(&meta.uid);
    match context
        .client
        .delete(&SECRETS, NAMESPACE, &meta.name, &options)
        .await
    {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(Requeue::No),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use client::fake::Server;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    #[tokio::test(start_paused = true)]
    async fn expired_tokens_go_and_others_stay() {
        let server = Server::default();
        for (name, expiration) in [
            ("old", "2020-01-01T00:00:00Z"),
            ("new", "2999-01-01T00:00:00Z"),
            ("eternal", ""),
        ] {
            let expiration = base64::engine::general_purpose::STANDARD.encode(expiration);
            server.put(
                &SECRETS,
                json!({"metadata": {"name": name, "namespace": NAMESPACE},
                "type": "bootstrap.kubernetes.io/token", "data": {"expiration": expiration}}),
            );
        }
        let config = crate::ControllersConfig {
            controllers: vec!["tokencleaner".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.get(&SECRETS, "kube-system/old").is_none());
        assert_eq!(server.list(&SECRETS).len(), 2);
    }
}
