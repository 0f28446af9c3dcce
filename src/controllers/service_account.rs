//! serviceaccount-controller: every namespace has a ServiceAccount `default`.

use api::r::{NAMESPACES, SERVICEACCOUNTS};
use async_trait::async_trait;
use client::{
    ClientError, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde_json::{Value, json};

use crate::{
    Context, Controller,
    context::synced,
    objects::{Metadata, Namespace},
};

const NAME: &str = "default";

pub struct ServiceAccounts;

#[async_trait]
impl Controller for ServiceAccounts {
    fn name(&self) -> &'static str {
        "serviceaccount-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["serviceaccount"]
    }

    async fn run(&self, context: Context) {
        let namespaces =
            context
                .informers
                .informer::<Namespace>(&NAMESPACES, "", Selectors::default());
        let selectors = Selectors::fields(format!("metadata.name={NAME}"));
        let accounts = context
            .informers
            .informer::<Metadata>(&SERVICEACCOUNTS, "", selectors);
        if !synced!(context, namespaces, accounts) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        namespaces.add_handler(move |change| keys.add(change.key.to_string()));
        let keys = queue.clone();
        accounts.add_handler(move |change| {
            if change.is_deleted() {
                keys.add(change.object().metadata.namespace.clone());
            }
        });
        workqueue::run(
            "serviceaccount",
            &queue,
            1,
            &context.shutdown,
            |namespace| {
                let (context, namespaces, accounts) = (&context, &namespaces, &accounts);
                async move {
                    let present = accounts.get(&format!("{namespace}/{NAME}")).is_some();
                    if !is_missing(namespaces.get(&namespace).as_deref(), present) {
                        return Ok(Requeue::No);
                    }
                    create(context, &namespace).await.map(|()| Requeue::No)
                }
            },
        )
        .await;
    }
}

fn is_missing(namespace: Option<&Namespace>, present: bool) -> bool {
    !present && namespace.is_some_and(|namespace| !namespace.is_terminating())
}

async fn create(context: &Context, namespace: &str) -> Result<(), ClientError> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": namespace},
    });
    let options = WriteOptions::default();
    let created =
        context
            .client
            .create::<_, Value>(&SERVICEACCOUNTS, namespace, &account, &options);
    match created.await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() || error.is_namespace_terminating() => Ok(()),
        // The namespace went away; its deletion will be seen.
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
